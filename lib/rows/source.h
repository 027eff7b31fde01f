/*
 * Between passes.c, which finds what is computed in which pass over a row, and source.c, which
 * writes it.
 */
#ifndef ROWS_SOURCE_H
#define ROWS_SOURCE_H

#include <stdio.h>

#include <ctitan/lib/rows.h>

#define WHOLE (CT_BY_ROW | CT_BY_COLUMN)

struct writer {
    const struct ct_rows_program *f;
    const struct ct_pointwise_node *node;
    struct ct_arena *arena;
    FILE *out;
    const char **use; /* by node: its name in C where it has one */
    bool *needed;     /* by node: an output depends on it */
    int *stage; /* by node: the first pass in which it is known; of a reduction, the pass after
                         its own */
    uint32_t *passes; /* by node: the passes that need it inside their loop */
    int *buffer;      /* by node: number of the buffer that keeps it; -1: none */
    bool *common; /* by node: varies along columns alone, and is made once for all rows of a call */
    int buffers, sums, last;
    unsigned flags; /* of ct_rows_write */
};

static inline bool in_loop(const struct writer *w, int k)
{
    return w->node[k].level & CT_BY_COLUMN;
}

static inline bool is_row_reduction(const struct writer *w, int k)
{
    return w->node[k].kind >= CT_POINTWISE_ROW_SUM && w->node[k].kind < CT_POINTWISE_COLUMN_SUM;
}

static inline bool is_column_sum(const struct writer *w, int k)
{
    return w->node[k].kind == CT_POINTWISE_COLUMN_SUM;
}

/* Set needed .. last from f, node, arena and flags. */
void rows_find_passes(struct writer *w);
/* The last nodes of a pass: arguments of its reductions, and in the last one the outputs. */
int rows_ends(const struct writer *w, int pass, int *end);
/* The sum over rows that output i is, rounded or not; -1: it is none. */
int rows_sum_of(const struct writer *w, int i);

#endif
