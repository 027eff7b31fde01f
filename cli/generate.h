/*
 * Parts of the verb `generate`: answers, which are texts that grow, and where they stop.
 */
#ifndef CT_CLI_GENERATE_H
#define CT_CLI_GENERATE_H

#include <ctitan/arena.h>

#define STOPS 64

struct stops {
    const int32_t *ids;
    size_t ids_count;
    const char *texts[STOPS];
    size_t count, longest; /* of texts; bytes */
};

bool stops_have(const struct stops *stops, int32_t token);

struct answer {
    char *text;
    size_t size, room;
    size_t shown; /* bytes that have been printed */
};

/* Append text. true: a stop is in the answer now; the answer ends before it. */
bool answer_add(struct ct_arena *arena, struct answer *answer, const struct stops *stops,
                const char *text, size_t size);
/* Print what is new. While the answer goes on, this leaves out what may become a stop, and the
   bytes of a character that is not whole. CT_EIO. */
int answer_show(struct answer *answer, const struct stops *stops, bool ended);

#endif
