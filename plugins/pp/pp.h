/* The pipeline plugin: declarations shared by its sources. */
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
/* CT_ECONFIG: [pp] split_points are no regions of the model, or layers_per_stage is set as well. */
int pp_check_points(const struct ct_graph *graph);
/* Number of stages that [pp] layers_per_stage or split_points ask for; 0 if neither is set. */
int pp_count_stages(const struct ct_graph *graph);

/* Placement of a graph's stages on the ranks along pp. */
struct pp_stages {
    int ranks, count;
    int *rank_of; /* by stage */
};
/* CT_ECONFIG: the schedule that [pp] names was not found. */
int pp_stages_of(const struct ct_graph *graph, struct ct_arena *arena, struct pp_stages *stages);

/* ---- the schedule: order.c ---- */

int pp_find_schedule(const struct ct_schedule_ops **ops);
extern const struct ct_order_ops pp_order;

/* ---- one rank's part: localise.c, transfer.c ---- */

/* Record which ranks hold each parameter. */
void pp_mark_holders(struct ct_graph *graph, const struct pp_stages *stages);
/* Turn values that the host reads from one rank into sums over all ranks. */
int pp_collect(struct ct_graph *graph, struct ct_run *run);
/* Keep this rank's ops, and insert its sends and receives. */
int pp_localise(struct ct_graph *graph, struct ct_run *run);

/* A value that one rank has after the microbatches and another rank needs. */
struct pp_message {
    struct ct_value *value;
    struct ct_op *user; /* first user */
    int from, to;
};

struct pp_local {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct pp_stages stages;
    int me;
    int words;        /* of a set of ranks */
    uint64_t *where;  /* by value id: set of the ranks that have it */
    uint64_t *needed; /* by value id: set of the ranks that have and need it */
    uint64_t *set[4]; /* in which one function at a time works */
    struct pp_message *message;
    size_t messages, message_room;
};

/* ---- sets of ranks: ranks.c ---- */

uint64_t *pp_where(const struct pp_local *c, const struct ct_value *v);
uint64_t *pp_needed(const struct pp_local *c, const struct ct_value *v);
void pp_ranks_clear(const struct pp_local *c, uint64_t *set);
void pp_ranks_fill(const struct pp_local *c, uint64_t *set);
void pp_ranks_copy(const struct pp_local *c, uint64_t *to, const uint64_t *from);
void pp_ranks_add(uint64_t *set, int rank);
bool pp_ranks_have(const uint64_t *set, int rank);
void pp_ranks_join(const struct pp_local *c, uint64_t *set, const uint64_t *other);
void pp_ranks_limit(const struct pp_local *c, uint64_t *set, const uint64_t *to);
/* Whether the set was filled. */
bool pp_ranks_full(const struct pp_local *c, const uint64_t *set);
/* The first rank of the set from `from` on; -1: none. */
int pp_ranks_next(const struct pp_local *c, const uint64_t *set, int from);

/* ---- one rank's part ---- */

/* The ranks that keep an op. Before and after the microbatches this follows find_needed. */
void pp_keepers(const struct pp_local *c, const struct ct_op *op, uint64_t *ranks);
/* Leave in a set of ranks that keep op only those that use its input v. */
void pp_limit_to_wanters(const struct pp_local *c, const struct ct_op *op, const struct ct_value *v,
                         uint64_t *ranks);
void pp_find_needed(struct pp_local *c);

/* Find what must be sent after the microbatches; the result is the same on all ranks. */
void pp_find_messages(struct pp_local *c);
/* Insert sends and receives, in the microbatches and after them. */
int pp_forward_values(struct pp_local *c);
int pp_exchange(struct pp_local *c);

#endif
