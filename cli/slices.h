/*
 * Traces (ctitan/lib/trace.h) that are read again: the slices of all threads, and the names of the
 * processes.
 */
#ifndef CT_SLICES_H
#define CT_SLICES_H

#include <stdbool.h>

#include <ctitan/arena.h>

struct slice {
    int rank, stream;
    const char *name, *section;            /* section NULL: it is no instruction's */
    int64_t step, instruction, microbatch; /* -1: it has none */
    bool validation;
    double start, end; /* in seconds */
};

struct slices {
    struct slice *list;
    size_t count, room;
    const char **rank; /* names of the ranks of all slices; NULL: it has none */
    size_t ranks, rank_room;
};

/*
 * Add what a trace has; *slices begins as zeros. began: the second since 1970 at which the trace's
 * clock is to begin, where the trace says when its own began; 0: times stay as they are. CT_ENOENT;
 * CT_ECONFIG: it is no JSON.
 */
int slices_read(struct ct_arena *arena, const char *path, double began, struct slices *slices);

#endif
