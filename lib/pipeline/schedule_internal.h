/*
 * Shared by the sources of schedules: positions of actions in lists, and dry runs of lists.
 */
#ifndef CT_SCHEDULE_INTERNAL_H
#define CT_SCHEDULE_INTERNAL_H

#include <setjmp.h>

#include <ctitan/lib/pipeline.h>

#include "lanes.h"

/* ---- generation ---- */

/* A call of a plugin's `generate`, which ends where a list is to get more than `most` actions:
   `generate` may add to it without end. NULL: none is going on in this thread. */
struct ct_generation {
    jmp_buf stop;
    size_t most;
};
extern _Thread_local struct ct_generation *ct_generation;

/* ---- actions ---- */

bool ct_action_computes(const struct ct_action *action);
bool ct_action_sends(const struct ct_action *action);
bool ct_action_receives(const struct ct_action *action);

/* Split an overlapped pair into an F and a B; any other action is itself. Returns how many. */
int ct_action_parts(const struct ct_action *action, struct ct_action part[2]);

/* Split a compute action into F, I and W; others give none. Returns how many. */
int ct_action_atoms(const struct ct_action *action, struct ct_action atom[3]);
/* Time of an F, I or W of a stage. */
double ct_atom_cost(const struct ct_costs *costs, enum ct_action_type atom, int stage);

/* The other end of a transfer. Its stage may not exist. */
struct ct_action ct_action_partner(const struct ct_action *transfer);

/* ---- positions of actions ---- */

/* Events of a microbatch, each once on each stage. B is both I and W. */
enum ct_event { EVENT_F, EVENT_I, EVENT_W, EVENT_SEND_F, EVENT_RECV_F, EVENT_SEND_B, EVENT_RECV_B };
#define EVENTS 7

struct ct_action_index {
    const struct ct_schedule *schedule;
    int32_t *at[EVENTS]; /* by stage and microbatch: position in its rank's list; -1: none */
};

/* CT_EINVAL: an action is out of range, on a rank without its stage, or repeated. */
int ct_action_index_make(const struct ct_schedule *schedule, struct ct_arena *arena,
                         struct ct_action_index *index);
int32_t ct_action_place(const struct ct_action_index *index, enum ct_event event, int stage,
                        int microbatch);
/* The event of an action; of a B, EVENT_I. Not for UNSHARD and the like, nor pairs. */
enum ct_event ct_action_event(const struct ct_action *action);

/* ---- rules ---- */

/* Check that each action and transfer occurs once, in its microbatch's order. CT_EINVAL. */
int ct_schedule_check_actions(const struct ct_schedule *schedule, struct ct_arena *arena,
                              struct ct_action_index *index);

/* Check that stages are whole where they compute, if any is unsharded, and reduced once, if any is.
 * CT_EINVAL. */
int ct_schedule_check_sharding(const struct ct_schedule *schedule, struct ct_arena *arena);

/* Check that activations fit into the limits. CT_EINVAL. */
int ct_schedule_check_memory(const struct ct_schedule *schedule,
                             const struct ct_schedule_limits *limits);

/* ---- communication within a rank ---- */

/* Add UNSHARD, RESHARD and REDUCE_GRAD according to the options. */
void ct_schedule_shard(struct ct_schedule *schedule, const struct ct_communicate_options *options,
                       struct ct_arena *scratch);

/* ---- dry runs ---- */

enum ct_run_mode {
    /* All actions of a rank run in its list's order. */
    RUN_ONE_STREAM,
    /* Only receives run apart: each may begin when what precedes it is done. With separate transfer
       streams, a rank waits for no more than this, however a plan reuses memory. */
    RUN_RECEIVES_ASIDE,
    /* Compute actions, sends and receives each run in their own order. */
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

/* Run until nothing moves. The caller sets the fields up to costs. True: every list ended. */
bool ct_dry_run(struct ct_dry_run *run, struct ct_arena *arena);

/* Describe a failed run: who waits for whom, in the shortest circle. CT_EINVAL. */
int ct_dry_run_stuck(const struct ct_dry_run *run);

#endif
