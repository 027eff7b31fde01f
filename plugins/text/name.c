#include <string.h>

#include <ctitan/base.h>

#include "name.h"

/* The first of count endings that `size` bytes of a name have; NULL: none. */
static const char *ending(const char *path, size_t size, const char *const *endings, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(endings[i]);

        if (size > length && !memcmp(path + size - length, endings[i], length))
            return endings[i];
    }
    return NULL;
}

size_t name_length(const char *path)
{
    static const char *const packed[] = {".gz", ".zst", ".zstd"};
    size_t size = strlen(path);
    const char *end = ending(path, size, packed, CT_COUNT(packed));

    return end ? size - strlen(end) : size;
}

bool name_is_json(const char *path)
{
    static const char *const lines[] = {".jsonl", ".ndjson", ".json"};

    return ending(path, name_length(path), lines, CT_COUNT(lines));
}

bool name_is_text(const char *path)
{
    static const char *const text[] = {".txt"};

    return ending(path, name_length(path), text, CT_COUNT(text));
}
