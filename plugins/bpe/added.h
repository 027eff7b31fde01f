/*
 * Added tokens: tokens that are found in the text before anything else, the leftmost first, the
 * longest of those that begin at the same place.
 */
#ifndef ADDED_H
#define ADDED_H

#include <ctitan/arena.h>

struct added_token {
    const char *content;
    size_t size;
    int32_t id;
    bool single_word;    /* not within a word */
    bool lstrip, rstrip; /* takes the white space before it, after it */
};

struct added {
    struct added_node *nodes;
    size_t count, room;
    struct ct_arena *arena;
};

struct added_match {
    int32_t id;
    const char *begin, *stop; /* with the white space that it takes */
    const char *resume;       /* where to look for the next one */
};

/* token and its content stay valid. CT_ECONFIG: it is too long. */
int added_insert(struct added *added, struct ct_arena *arena, const struct added_token *token);

/* The first token in [at, end) of the text that begins at text; from: the end of the one before.
   Returns whether there is one. */
bool added_find(const struct added *added, const char *text, const char *from, const char *at,
                const char *end, struct added_match *match);

#endif
