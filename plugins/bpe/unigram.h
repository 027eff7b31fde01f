/*
 * Unigram models (Kudo 2018): of all ways to split a text into tokens, the one whose scores have
 * the largest sum. Ties go to what was found first, from left to right, shorter tokens first.
 */
#ifndef UNIGRAM_H
#define UNIGRAM_H

#include "vocabulary.h"

struct unigram {
    double *scores;  /* by id */
    int32_t *sorted; /* the ids in the order of their bytes */
    size_t count;
    size_t first[257]; /* where the tokens that begin with a byte begin in sorted */
    int32_t unknown;   /* -1: none */
    double unknown_score;
    bool byte_fallback;
    struct unigram_node *nodes; /* scratch */
    size_t room;
};

/* Call after all tokens are in the vocabulary; of equal ones the last counts. scores has `count`
   elements and is taken over, also by a failure. CT_ENOMEM. */
int unigram_open(struct unigram *unigram, const struct vocabulary *vocabulary, double *scores,
                 size_t count);
void unigram_close(struct unigram *unigram);

/* Encode one part. CT_ENOMEM; CT_EINVAL: a character is unknown, and there is no token for that. */
int unigram_encode(struct unigram *unigram, const struct vocabulary *vocabulary, const char *part,
                   size_t size, struct ids *out);

#endif
