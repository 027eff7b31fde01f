/*
 * The programs of several ranks as lanes (lanes.h): one lane for each stream of a rank.
 *
 * Every instruction is an item. It comes after the events that it waits for. The n-th send of a
 * rank to another is matched with the n-th receive there; the n-th call of a collective in a group,
 * on a stream, with those of all ranks of the group that are among the given ones. A call whose
 * partner is missing can never be done.
 */
#ifndef CT_PROGRAM_LANES_H
#define CT_PROGRAM_LANES_H

#include <ctitan/program.h>

#include "lanes.h"

struct ct_program_lanes {
    const struct ct_program *const *program; /* by index */
    const int64_t *rank;                     /* by index: its number in the mesh */
    int count;
    bool in_order;   /* all streams of a rank are one lane */
    bool host_waits; /* what follows a compute instruction in the program starts when that is done,
                        as on a CPU, where the host's thread computes */
    /* True: an instruction of the rank at `index` runs on processors that compute, in the lane of
       the compute stream whatever its own is. NULL: none does. */
    bool (*computes)(const void *client, int index, const struct ct_instruction *instruction);
    /* Its seconds. NULL: nothing takes time. */
    double (*cost)(const void *client, int index, const struct ct_instruction *instruction);
    const void *client;

    struct ct_arena *arena; /* for all below */
    int32_t *first;         /* by index: item of its first instruction; one more at the end */
    struct ct_lanes lanes;
};

/* Build the lanes from the fields above `arena`, and it. CT_EINVAL: a send is matched with the
   receive of another value. */
int ct_program_lanes_build(struct ct_program_lanes *p);

/* Describe lanes that did not reach their end. CT_EINVAL. */
int ct_program_lanes_stuck(const struct ct_program_lanes *p);

#endif
