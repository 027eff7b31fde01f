/*
 * Whole documents in rows.
 *
 * A row is a sample of `width` tokens, and each document lies in one row. The table of rows depends
 * on the documents' lengths alone, so every rank makes the same one, and a sample's index says
 * which documents it holds. First fit puts each document into the first row with room for it.
 * Documents are packed in groups, so the cost of each does not grow with their number.
 */
#ifndef PACKING_H
#define PACKING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum packing_how {
    PACKING_CONCAT, /* no rows: documents are joined, and split at every seq_len */
    PACKING_FIRST_FIT,
    PACKING_FIRST_FIT_DECREASING, /* longest first; equal ones in their order */
};

/* Treatment of a document that is longer than a row. */
enum packing_long {
    PACKING_CUT,   /* its first tokens fill a row */
    PACKING_SPLIT, /* into parts, each a document of its own */
    PACKING_DROP,
};

struct packing_request {
    enum packing_how how;
    enum packing_long too_long;
    int64_t width, window; /* window: documents that are packed together */
};

/* The tokens of a document from number `from` on, at most a row of them. */
struct packing_part {
    int64_t document, from;
};

struct packing {
    struct packing_part *parts; /* row r has parts[row[r] .. row[r + 1]) */
    int64_t *row, rows, count;
    int64_t tokens, cut, split, dropped; /* in rows; documents */
};

/* The documents are numbers chosen[0 .. count), or 0 .. count - 1 if that is NULL; document d has
   start[d + 1] - start[d] tokens. CT_ENOMEM. */
int packing_make(struct packing *packing, const struct packing_request *request,
                 const int64_t *start, const int64_t *chosen, int64_t count);
/* Tokens of a part. */
static inline int64_t packing_size(const struct packing_part *part, const int64_t *start,
                                   int64_t width)
{
    int64_t left = start[part->document + 1] - start[part->document] - part->from;

    return left < width ? left : width;
}
/* packing may be zeros. */
void packing_finish(struct packing *packing);

#endif
