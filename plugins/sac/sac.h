/* Selective activation checkpointing: declarations shared by its sources. */
#ifndef SAC_H
#define SAC_H

#include <ctitan/run.h>

enum sac_mode { SAC_NONE, SAC_FULL, SAC_LAYER, SAC_OP, SAC_BUDGET, SAC_AUTO };

struct sac_config {
    enum sac_mode mode;
    const char *save_ops, *offload, *budget, *memory;
    int64_t every;
    bool measure;
    double tflops, memory_gbps, link_gbps, host_gbps;
};
extern struct sac_config sac_config;

/* A repeated region of the model, such as "layers.3", on this rank. */
struct sac_layer {
    const char *name;
    int group;
};

/* Most microbatches of a group at a time between F and I, and between F and W. */
struct sac_flight {
    int group, until_i, until_w;
    int now_i, now_w; /* current number, while counting */
};

/* The last kind of use of a value. */
enum sac_use { SAC_UNUSED, SAC_USED_BY_F, SAC_USED_BY_I, SAC_USED_BY_W };

/* An op of a layer whose results are kept, offloaded or recomputed. */
struct sac_decided {
    const struct ct_op *of;
    size_t bytes; /* of its results, for all microbatches in flight */
    double seconds, flops;
    double copy;    /* seconds to copy the results of one microbatch to host memory, or back */
    bool needed;    /* the backward itself needs it */
    bool must;      /* it must be recomputed */
    bool must_not;  /* it must not be */
    bool may_leave; /* it may be offloaded */
    int ins, *in;   /* ops of the layer whose results it takes */
};

struct sac_problem {
    struct sac_decided *op;
    int count;
    size_t room;
    size_t fixed;             /* bytes that every choice keeps */
    double forward, backward; /* seconds of one microbatch, which copies overlap at no cost */
};

/* One point of a front: no other choice takes less of both bytes and seconds. */
struct sac_choice {
    size_t bytes;
    double seconds, flops; /* to recompute one microbatch */
    double copied;         /* bytes offloaded for one microbatch */
    const uint64_t *saved; /* bit i: results of op i of the problem are kept, or offloaded */
    const uint64_t *away;  /* bit i: they are offloaded */
};

struct sac_front {
    struct sac_choice *choice; /* sorted by bytes */
    int count;
    bool partial; /* there are choices that are not in it */
};

/* A choice for all layers of a rank. */
struct sac_plan {
    size_t bytes; /* kept for the backward at a time */
    double seconds, flops, copied;
    int *choice;                  /* by layer: index into its front; NULL: see kept */
    bool *kept;                   /* by value id; NULL: see choice */
    size_t planned, planned_host; /* memory of a step, if planned */
};

/*
 * The forward in the form used for decisions. `forward` is a copy of the graph in which ops of
 * several outputs are split, so that each output can be kept or recomputed by itself. An op at the
 * entry of a layer belongs to the previous layer if that reduces the bytes that cross. Values have
 * the same ids as in the graph.
 */
struct sac {
    struct ct_graph *graph, *forward;
    struct ct_arena scratch;
    int64_t rank; /* whose shards are counted; the same on all ranks of a stage */
    size_t count; /* values of the graph; the forward may have more */
    struct sac_layer *layer;
    int layers;
    int *layer_of;          /* by value id: its layer; -1: none */
    struct ct_value **root; /* by value id: what it is a view of; else itself */
    bool *may;              /* by value id: it can be recomputed */
    bool *must;             /* by value id: another transform recomputes it */
    int *stream;            /* by value id: stream of that recomputation */
    bool *kept;             /* by value id: the backward uses the forward's value */
    bool *may_leave;        /* by value id: an op of [sac] offload makes it */
    bool *away;             /* by value id: kept in host memory */
    bool offloads;          /* [sac] offload lists ops */

    /* for modes that search */
    struct {
        double flops, memory, link, host; /* per second */
    } rates;
    struct ct_device *device; /* to measure ops on; NULL: they are not */
    struct sac_measured *measured;
    struct sac_flight *flight;
    int flights;
    enum sac_use *use;           /* by value id; uses of a view count for its root */
    int *place;                  /* by value id: index of its op in the layer's problem; -1: none */
    struct sac_problem *problem; /* by layer */
    struct sac_front *front;     /* by layer */
    size_t fixed, saved;         /* bytes that every choice keeps; bytes kept without sac */
    double forward_flops;        /* of the layers, in one microbatch */
    /* Sorted: each has more bytes and less time than the last. There is room for one more. */
    struct sac_plan *plan;
    int plans;
};

/* ---- forward.c ---- */

/* Take over recomputation in graph by other transforms. */
int sac_begin(struct sac *s, struct ct_graph *graph, const struct ct_run *run);
void sac_finish(struct sac *s);
/* Is the op one of the backward? */
bool sac_is_backward(const struct ct_op *op);
/* Replace an op that has `apart` by several ops. */
int sac_take_apart(struct ct_graph *graph, struct ct_op *op);

/* ---- cost.c ---- */

int sac_find_rates(struct sac *s, struct ct_run *run);
double sac_flops(const struct sac *s, const struct ct_op *op);
/* By the roofline, or measured. */
double sac_seconds(struct sac *s, const struct ct_op *op);

/* ---- policy.c ---- */

/* Find what may be offloaded. */
int sac_find_leaving(struct sac *s);
/* Choose what is kept, in the modes none, full, layer and op. */
int sac_choose_by_rule(struct sac *s);
/* True if another region or the host uses v. */
bool sac_leaves(const struct sac *s, const struct ct_value *v);
/* Views follow their roots; values that another transform recomputes stay recomputed. */
void sac_settle(struct sac *s);

/* Saves those of the recomputable values that leave a layer or that the listed ops make: a
   comma-separated list, or "default". CT_ECONFIG: the list has an op that no layer has. */
int sac_keep_listed(struct sac *s, const char *ops);

/* ---- pareto.c, budget.c ---- */

void sac_front(struct sac *s, const struct sac_problem *p, struct sac_front *front);
/* Compute s->plan. */
void sac_solve(struct sac *s);
/* Keep what the plan keeps. */
void sac_keep_plan(struct sac *s, const struct sac_plan *plan);
/* The plan that keeps what is kept now, without copies to host memory. */
void sac_plan_of_kept(struct sac *s, struct sac_plan *plan);

/* ---- search.c ---- */

const struct sac_flight *sac_flight_of(const struct sac *s, int group);
/* Choose what is kept, in the modes budget and auto. */
int sac_choose_by_search(struct sac *s, struct ct_run *run);

/* ---- replay.c ---- */

/* Let the backward recompute the values that are not kept, and load the offloaded ones. */
int sac_replay(struct sac *s);

#endif
