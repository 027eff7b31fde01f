#include <endian.h>
#include <string.h>

#include <ctitan/error.h>

#include "charsmap.h"
#include "unicode.h"

/* ---- units of the double array ---- */

static size_t offset(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

static bool has_leaf(uint32_t unit)
{
    return unit >> 8 & 1;
}

static uint32_t label(uint32_t unit)
{
    return unit & (1u << 31 | 0xFF);
}

/* ---- the map ---- */

int charsmap_read(struct charsmap *map, struct ct_arena *arena, const char *bytes, size_t size)
{
    uint32_t trie, *units;
    size_t strings;
    char *copy;

    if (size < sizeof(trie))
        return ct_fail(CT_ECONFIG, "precompiled_charsmap: %zu bytes", size);
    memcpy(&trie, bytes, sizeof(trie));
    trie = le32toh(trie);
    if (trie < sizeof(*units) || trie % sizeof(*units) || trie > size - sizeof(trie))
        return ct_fail(CT_ECONFIG, "precompiled_charsmap: a trie of %u bytes in %zu", trie, size);
    units = ct_arena_alloc(arena, trie);
    memcpy(units, bytes + sizeof(trie), trie);
    for (size_t i = 0; i < trie / sizeof(*units); i++)
        units[i] = le32toh(units[i]);
    bytes += sizeof(trie) + trie;
    strings = size - sizeof(trie) - trie;
    if (!unicode_is_valid(bytes, strings))
        return ct_fail(CT_ECONFIG, "precompiled_charsmap: its strings are not UTF-8");
    copy = ct_arena_alloc(arena, strings + 1);
    memcpy(copy, bytes, strings);
    copy[strings] = '\0';
    *map = (struct charsmap){units, trie / sizeof(*units), copy, strings + 1};
    return 0;
}

const char *charsmap_find(const struct charsmap *map, const char *text, size_t size)
{
    size_t node = offset(map->units[0]);

    for (size_t i = 0; i < size && text[i]; i++) {
        uint32_t unit;
        size_t value;

        node ^= (unsigned char)text[i];
        if (node >= map->unit_count || label(map->units[node]) != (unsigned char)text[i])
            return NULL;
        unit = map->units[node];
        node ^= offset(unit);
        if (!has_leaf(unit))
            continue;
        value = node < map->unit_count ? map->units[node] & 0x7FFFFFFF : map->string_size;
        return value < map->string_size ? map->strings + value : NULL;
    }
    return NULL;
}
