/*
 * Memory nodes of a host (NUMA): which processors a rank runs on, and where its memory comes from.
 *
 * Processors are counted node by node, and those of one core one after the other. The ranks of a
 * host get equal parts of that list, so that few of them are on several nodes. A rank's memory
 * comes from the node of its processors. If these are on several nodes, it comes from each of them
 * in turn, since all threads read the weights.
 *
 * On a host with one node the kernel is asked for nothing. What it refuses, as in a container that
 * may not bind, is no failure: it is logged once. What the user has chosen (numactl) stays.
 */
#ifndef CT_NUMA_H
#define CT_NUMA_H

#include <ctitan/arena.h>

CT_BEGIN_DECLS

struct ct_processor {
    int id, node;
    int core; /* the first processor of the same core; with one node, its own id */
};

struct ct_numa {
    struct ct_processor *processor; /* those that the calling thread may use, as they are counted */
    int count;
    uint64_t nodes;  /* of the host; the bit of its number. Nodes from 64 on are left out */
    uint64_t memory; /* of these, nodes with memory that the calling thread may use */
};

/* Read the nodes of this host, and what the calling thread may use, below a folder that has sys and
   proc; NULL: $CTITAN_SYSTEM_ROOT if it is set, else "/". What cannot be read is not there. */
CT_API void ct_numa_read(const char *root, struct ct_arena *arena, struct ct_numa *numa);
/* The part of a rank among the ranks of this host; everything if that is on one node, or does not
   suffice for a processor each. */
CT_API struct ct_numa ct_numa_share(const struct ct_numa *numa, int rank, int ranks);
/* The nodes that memory of a thread on these processors comes from; 0: as the kernel decides. */
CT_API uint64_t ct_numa_memory(const struct ct_numa *numa);

/* Bind the calling thread, and all that it starts from now on, to its rank's part. */
CT_API void ct_numa_bind(int rank, int ranks);
/* Whether ct_numa_bind has bound this process: no other rank runs on its processors. */
CT_API bool ct_numa_bound(void);
/* Choose the nodes of whole pages that nothing has touched, for the calling thread's processors. */
CT_API void ct_numa_place(void *memory, size_t bytes);

CT_END_DECLS

#endif
