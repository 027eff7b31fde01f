/* Readers by the names of files. */
#include <string.h>

#include <ctitan/reader.h>

static bool ends_in(const char *path, size_t length, const char *suffix)
{
    size_t size = strlen(suffix);

    return length > size && !memcmp(path + length - size, suffix, size);
}

const struct ct_offer *ct_reader_find(const char *path, size_t length)
{
    const struct ct_offer *offer;

    for (size_t i = 0; (offer = ct_offer_at(CT_READER, i)); i++) {
        const struct ct_reader_ops *ops = offer->ops;

        for (const char *const *suffix = ops->suffixes; *suffix; suffix++)
            if (ends_in(path, length, *suffix))
                return offer;
    }
    return NULL;
}
