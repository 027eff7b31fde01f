/*
 * SentencePiece's compiled map of characters (precompiled_charsmap): a double array (Aoe 1989, in
 * the layout of darts-clone) from strings to offsets in a block of strings that zeros end.
 */
#ifndef CHARSMAP_H
#define CHARSMAP_H

#include <ctitan/arena.h>

struct charsmap {
    const uint32_t *units; /* in this machine's byte order */
    size_t unit_count;
    const char *strings;
    size_t string_size; /* with a zero at the end */
};

/* Read the map's bytes, which are copied. CT_ECONFIG: it is damaged. */
int charsmap_read(struct charsmap *map, struct ct_arena *arena, const char *bytes, size_t size);

/* The string for the shortest key that text begins with; NULL: none. */
const char *charsmap_find(const struct charsmap *map, const char *text, size_t size);

#endif
