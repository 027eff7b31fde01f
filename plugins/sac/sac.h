/* Selective activation checkpointing: what its sources share. */
#ifndef SAC_H
#define SAC_H

#include <ctitan/run.h>

struct sac_config {
    const char *mode, *save_ops, *budget, *memory;
    int64_t every;
    double tflops, memory_gbps, link_gbps;
};
extern struct sac_config sac_config;

/* A region of the model that repeats, "layers.3", on this rank. */
struct sac_layer {
    const char *name;
    int group;
};

/* How many microbatches of a group's sections are between F and I, and between F and W. */
struct sac_flight {
    int group, until_i, until_w;
    int now_i, now_w; /* while they are counted */
};

/* What somebody does with a value; the last that is so. */
enum sac_use { SAC_UNUSED, SAC_USED_BY_F, SAC_USED_BY_I, SAC_USED_BY_W };

/* An op of a layer whose results are kept or recomputed. */
struct sac_decided {
    const struct ct_op *of;
    size_t bytes; /* of its results, all microbatches in flight */
    double seconds, flops;
    bool needed;  /* by the backward itself */
    bool must;    /* be recomputed */
    int ins, *in; /* ops of the layer that it takes results of */
};

struct sac_problem {
    struct sac_decided *op;
    int count;
    size_t room;
    size_t fixed; /* bytes that are kept whatever is chosen */
};

/* One point of a front: no other choice takes less of both bytes and seconds. */
struct sac_choice {
    size_t bytes;
    double seconds, flops; /* of one microbatch's recomputation */
    const uint64_t *saved; /* bit i: what op i of the problem makes is kept */
};

struct sac_front {
    struct sac_choice *choice; /* by bytes */
    int count;
};

/* A choice for all layers of a rank. */
struct sac_plan {
    size_t bytes; /* kept for the backward at a time */
    double seconds, flops;
    int *choice;    /* by layer: of its front */
    size_t planned; /* memory of a step, if it was planned */
};

/*
 * The forward as it is decided upon. `forward` is a copy of the graph in which ops of several
 * outputs are taken apart, so that each can be kept or recomputed by itself, and an op at the
 * entry of a layer belongs to the one before if fewer bytes cross then. Its values have the ids of
 * the graph's.
 */
struct sac {
    struct ct_graph *graph, *forward;
    struct ct_arena scratch;
    int64_t rank; /* whose shards are counted: the same on all ranks of a stage */
    size_t count; /* values of the graph; the forward may have more */
    struct sac_layer *layer;
    int layers;
    int *layer_of;          /* by value id: the layer that makes it; -1: none */
    struct ct_value **root; /* by value id: what it is a view of; else itself */
    bool *may;              /* by value id: it can be recomputed */
    bool *must;             /* by value id: another transform recomputes it already */
    int *stream;            /* by value id: of that recomputation */
    bool *kept;             /* by value id: the backward takes what the forward made */

    /* for modes that search */
    struct {
        double flops, memory, link; /* per second */
    } rates;
    struct sac_flight *flight;
    int flights;
    enum sac_use *use;           /* by value id, views by what they show */
    int *place;                  /* by value id: of its op in the layer's problem; -1: none */
    struct sac_problem *problem; /* by layer */
    struct sac_front *front;     /* by layer */
    size_t fixed, saved;         /* bytes kept in any case, and without sac */
    double forward_flops;        /* of the layers, in one microbatch */
    struct sac_plan *plan;       /* more bytes and less time from one to the next */
    int plans;
};

/* ---- forward.c ---- */

/* Takes over in graph what other transforms recompute. */
int sac_begin(struct sac *s, struct ct_graph *graph, const struct ct_run *run);
void sac_finish(struct sac *s);
/* Several ops in the place of one that has `apart`. */
int sac_take_apart(struct ct_graph *graph, struct ct_op *op);

/* ---- policy.c ---- */

/* Choose what is kept: full, layer, op. */
int sac_choose_by_rule(struct sac *s, const char *mode);
/* Does another region, or the host, take v? */
bool sac_leaves(const struct sac *s, const struct ct_value *v);
/* Views follow what they show; what another transform recomputes stays recomputed. */
void sac_settle(struct sac *s);

/* ---- cost.c ---- */

void sac_find_rates(struct sac *s, struct ct_run *run);
double sac_flops(const struct sac *s, const struct ct_op *op);
double sac_seconds(const struct sac *s, const struct ct_op *op);

/* ---- front.c, budget.c ---- */

void sac_front(struct sac *s, const struct sac_problem *p, struct sac_front *front);
/* Find s->plan. */
void sac_solve(struct sac *s);
/* Choose what is kept: as in a plan. */
void sac_keep_plan(struct sac *s, const struct sac_plan *plan);

/* ---- search.c ---- */

const struct sac_flight *sac_flight_of(const struct sac *s, int group);
/* Choose what is kept: budget, auto. */
int sac_choose_by_search(struct sac *s, struct ct_run *run);

/* ---- replay.c ---- */

/* Let the backward recompute what is not kept. */
int sac_replay(struct sac *s);

#endif
