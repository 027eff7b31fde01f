/*
 * What the sources of schedules share: where actions stand in lists, and lists run without work.
 */
#ifndef CT_SCHEDULE_INTERNAL_H
#define CT_SCHEDULE_INTERNAL_H

#include <ctitan/lib/pipeline.h>

#include "lanes.h"

/* ---- actions ---- */

bool ct_action_computes(const struct ct_action *action);
bool ct_action_sends(const struct ct_action *action);
bool ct_action_receives(const struct ct_action *action);

/* An overlapped pair is an F and a B; any other action is itself. Returns how many. */
int ct_action_parts(const struct ct_action *action, struct ct_action part[2]);

/* The F, I and W that a compute action is; none of others. Returns how many. */
int ct_action_atoms(const struct ct_action *action, struct ct_action atom[3]);
/* Time of an F, I or W of a stage. */
double ct_atom_cost(const struct ct_costs *costs, enum ct_action_type atom, int stage);

/* The other end of a transfer. Its stage may be one that is not there. */
struct ct_action ct_action_partner(const struct ct_action *transfer);

/* ---- where actions stand ---- */

/* What a microbatch does once on each stage. B is both I and W. */
enum ct_event { EVENT_F, EVENT_I, EVENT_W, EVENT_SEND_F, EVENT_RECV_F, EVENT_SEND_B, EVENT_RECV_B };
#define EVENTS 7

struct ct_action_index {
    const struct ct_schedule *schedule;
    int32_t *at[EVENTS]; /* by stage and microbatch: place in its rank's list; -1: nowhere */
};

/* CT_EINVAL: an action is out of range, on a rank without its stage, or there twice. */
int ct_action_index_make(const struct ct_schedule *schedule, struct ct_arena *arena,
                         struct ct_action_index *index);
int32_t ct_action_place(const struct ct_action_index *index, enum ct_event event, int stage,
                        int microbatch);
/* The event that an action is; of a B, EVENT_I. Not for UNSHARD and the like, nor pairs. */
enum ct_event ct_action_event(const struct ct_action *action);

/* ---- rules ---- */

/* Every action and transfer is there once, in the order of its own microbatch. CT_EINVAL. */
int ct_schedule_check_actions(const struct ct_schedule *schedule, struct ct_arena *arena,
                              struct ct_action_index *index);

/* Stages are whole where they compute, if anything is unsharded; reduced once, if any is.
 * CT_EINVAL. */
int ct_schedule_check_sharding(const struct ct_schedule *schedule, struct ct_arena *arena);

/* Activations fit into the limits. CT_EINVAL. */
int ct_schedule_check_memory(const struct ct_schedule *schedule,
                             const struct ct_schedule_limits *limits);

/* ---- communication within a rank ---- */

/* Add UNSHARD, RESHARD and REDUCE_GRAD, as the options say. */
void ct_schedule_shard(struct ct_schedule *schedule, const struct ct_communicate_options *options,
                       struct ct_arena *scratch);

/* ---- lists run without work ---- */

enum ct_run_mode {
    /* Everything of a rank in its list's order. */
    RUN_ONE_STREAM,
    /* Only receives run beside the rest: each may begin when what stands before it is done.
       Whatever memory a plan uses again, a rank with streams of its own for transfers waits for no
       more. */
    RUN_RECEIVES_ASIDE,
    /* Compute actions, sends and receives each in their own order. */
    RUN_OWN_STREAMS,
};

struct ct_dry_run {
    const struct ct_schedule *schedule;
    const struct ct_action_index *index;
    enum ct_run_mode mode;
    const struct ct_costs *costs; /* NULL: no times */
    struct ct_lanes lanes;        /* with each action's start and end */
    int32_t *first;               /* by rank: item of its first action; the others follow */
};

/* Run until nothing moves. True: every list came to its end. Fill in the first group of fields. */
bool ct_dry_run(struct ct_dry_run *run, struct ct_arena *arena);

/* The failure of a run that did not: who waits for whom, in the shortest circle. CT_EINVAL. */
int ct_dry_run_stuck(const struct ct_dry_run *run);

#endif
