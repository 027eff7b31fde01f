/* The pipeline plugin, between its sources. */
#ifndef PP_H
#define PP_H

#include <ctitan/lib/pipeline.h>
#include <ctitan/run.h>

struct pp_config {
    int64_t degree, microbatch_size, layers_per_stage;
    const char *schedule, *schedule_csv, *split_points;
};
extern struct pp_config pp_config;

/* ---- stages: partition.c ---- */

/* Move every op of the forward into the section of its stage: "0F", "1F", .. */
int pp_partition(struct ct_graph *graph, int stages);
/* How many stages [pp] layers_per_stage or split_points ask for; 0: neither does. */
int pp_count_stages(const struct ct_graph *graph);

/* How the stages of a graph lie on the ranks along pp. */
struct pp_stages {
    int ranks, count;
    int *rank_of; /* by stage */
};
/* CT_ECONFIG: the schedule that [pp] names is not there. */
int pp_stages_of(const struct ct_graph *graph, struct ct_arena *arena, struct pp_stages *stages);

/* ---- the schedule: order.c ---- */

int pp_find_schedule(const struct ct_schedule_ops **ops);
extern const struct ct_order_ops pp_order;

/* ---- one rank's part: localise.c, transfer.c ---- */

/* Say which ranks hold each parameter. */
void pp_mark_holders(struct ct_graph *graph, const struct pp_stages *stages);
/* What the host reads is on one rank; afterwards it is a sum over all. */
int pp_collect(struct ct_graph *graph, struct ct_run *run);
/* Leave this rank's ops, and what it sends to others and receives. */
int pp_localise(struct ct_graph *graph, struct ct_run *run);

/* A value that one rank has after the microbatches and another needs. */
struct pp_message {
    struct ct_value *value;
    struct ct_op *user; /* that wants it first */
    int from, to;
};

struct pp_local {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct pp_stages stages;
    int me;
    uint64_t *where;  /* by value id: the ranks that have it, as bits */
    uint64_t *needed; /* by value id: the ranks that have it and need it */
    struct pp_message *message;
    size_t messages, message_room;
};

bool pp_has(const struct pp_local *c, const struct ct_value *v, int rank);
/* The ranks that keep an op. Parts before and after the microbatches: as find_needed found. */
uint64_t pp_keepers(const struct pp_local *c, const struct ct_op *op);
/* Of the ranks that keep op, those that use its input v. */
uint64_t pp_wanters(const struct pp_local *c, const struct ct_op *op, const struct ct_value *v);
void pp_find_needed(struct pp_local *c);

/* What must be sent after the microbatches; all ranks find the same. */
void pp_find_messages(struct pp_local *c);
/* Insert sends and receives: in the microbatches, and after them. */
int pp_forward_values(struct pp_local *c);
int pp_exchange(struct pp_local *c);

#endif
