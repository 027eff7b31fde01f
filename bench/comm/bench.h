/*
 * The measurements, for a communicator of ctitan (comm.c) and for plain MPI (peer_mpi.c) alike, so
 * that both print the same lines: "NAME BYTES MICROSECONDS", the slowest rank's time of one call.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stddef.h>

enum kind {
    BARRIER,
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    BROADCAST,
    EXCHANGE,
    KINDS
};

static const char *const kind_names[] = {"barrier",    "all_reduce", "all_gather", "reduce_scatter",
                                         "all_to_all", "broadcast",  "exchange"};
static const size_t sizes[] = {1 << 10, 64 << 10, 1 << 20, 16 << 20};
#define SIZES 4

/* All that is needed from the system under test. size: vector of all_reduce, broadcast and
   exchange, result of all_gather, input of reduce_scatter and all_to_all; floats. */
struct subject {
    void *context;
    int rank, world;
    void (*call)(void *context, enum kind kind, size_t bytes);
    double (*slowest)(void *context, double seconds); /* maximum over ranks; a barrier too */
    const char *suffix;                               /* of printed names: ", arena" */
    size_t limit;                                     /* largest size; 0: none */
};

double bench_now(void);
/* One round over all kinds and sizes; rank 0 prints. */
void bench_round(const struct subject *s);

/* least.c: create before the ranks are forked; then one round in each of them. */
struct shared;
struct shared *least_create(int world);
void least_round(struct shared *shared, int rank, int world);

#endif
