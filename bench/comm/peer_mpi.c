/*
 * The peer: the same calls in plain MPI, with the library's own blocking collectives.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

struct buffers {
    float *in, *out;
    int rank, world;
};

static void call(void *context, enum kind kind, size_t bytes)
{
    struct buffers *b = context;
    int count = (int)(bytes / sizeof(float)), part = count / b->world;

    switch (kind) {
    case BARRIER:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    case ALL_REDUCE:
        MPI_Allreduce(MPI_IN_PLACE, b->out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALL_GATHER:
        MPI_Allgather(b->in, part, MPI_FLOAT, b->out, part, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case REDUCE_SCATTER:
        MPI_Reduce_scatter_block(b->in, b->out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALL_TO_ALL:
        MPI_Alltoall(b->in, part, MPI_FLOAT, b->out, part, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case BROADCAST:
        MPI_Bcast(b->out, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    default:
        MPI_Sendrecv(b->in, count, MPI_FLOAT, (b->rank + 1) % b->world, 0, b->out, count, MPI_FLOAT,
                     (b->rank + b->world - 1) % b->world, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

static double slowest(void *context, double seconds)
{
    double all;

    (void)context;
    MPI_Allreduce(&seconds, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    struct buffers b;
    struct subject s = {.context = &b, .call = call, .slowest = slowest, .suffix = ""};

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &b.world);
    s.rank = b.rank;
    s.world = b.world;
    b.in = malloc(sizes[SIZES - 1]);
    b.out = malloc(sizes[SIZES - 1]);
    if (!b.in || !b.out)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(b.in, 1, sizes[SIZES - 1]);
    memset(b.out, 1, sizes[SIZES - 1]);
    bench_round(&s);
    MPI_Finalize();
    return 0;
}
