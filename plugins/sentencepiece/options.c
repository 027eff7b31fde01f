#include "options.h"

/* The numbers of the fields, and how values are written. */
enum { TRAINER = 2, NORMALIZER = 3, UNKNOWN_SURFACE = 44, DUMMY_PREFIX = 3, EXTRA_SPACES = 4 };
enum { VARINT = 0, WIDE = 1, BYTES = 2, NARROW = 5 };

struct field {
    uint64_t number, value; /* value: of a varint */
    const char *bytes;      /* NULL: it is none of BYTES */
    size_t size;
};

static bool read_varint(const char **at, const char *end, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && *at < end; shift += 7) {
        unsigned char byte = (unsigned char)*(*at)++;

        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* The next field of a message. */
static bool next_field(const char **at, const char *end, struct field *f)
{
    uint64_t key, size = 0;

    *f = (struct field){0};
    if (!read_varint(at, end, &key))
        return false;
    f->number = key >> 3;
    switch (key & 7) {
    case VARINT:
        return read_varint(at, end, &f->value);
    case WIDE:
        size = 8;
        break;
    case NARROW:
        size = 4;
        break;
    case BYTES:
        if (!read_varint(at, end, &size))
            return false;
        f->bytes = *at;
        break;
    default:
        return false;
    }
    if (size > (uint64_t)(end - *at))
        return false;
    f->size = (size_t)size;
    *at += size;
    return true;
}

static void read_normalizer(const char *at, const char *end, bool *prefix, bool *extra)
{
    struct field f;

    while (next_field(&at, end, &f)) {
        if (f.number == DUMMY_PREFIX)
            *prefix = f.value;
        if (f.number == EXTRA_SPACES)
            *extra = f.value;
    }
}

static void read_trainer(const char *at, const char *end, struct model_options *options)
{
    struct field f;

    while (next_field(&at, end, &f))
        if (f.number == UNKNOWN_SURFACE && f.bytes) {
            options->unknown = f.bytes;
            options->unknown_size = f.size;
        }
}

struct model_options model_options_read(const char *model, size_t size)
{
    struct model_options options = {.unknown = " \xE2\x81\x87 ", .unknown_size = 5};
    bool prefix = true, extra = true;
    const char *at = model, *end = model + size;
    struct field f;

    while (next_field(&at, end, &f)) {
        if (f.number == NORMALIZER && f.bytes)
            read_normalizer(f.bytes, f.bytes + f.size, &prefix, &extra);
        if (f.number == TRAINER && f.bytes)
            read_trainer(f.bytes, f.bytes + f.size, &options);
    }
    options.strips_one = prefix || extra;
    options.strips_all = extra;
    return options;
}
