/*
 * A team of threads, one for each rank of a mesh, with a communicator among them: so that the
 * core's collectives run in one process. All ranks of the mesh must make the same calls.
 */
#ifndef SHARD_TEAM_H
#define SHARD_TEAM_H

#include <ctitan/comm.h>

/* Run body on every rank, each on its own thread, and wait for all. Returns the first failure by
   rank. */
int team_run(int64_t ranks,
             int (*body)(int64_t rank, const struct ct_communicator *communicator, void *context),
             void *context);

#endif
