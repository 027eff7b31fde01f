/*
 * Propagation, between its sources: propagate_choose.c decides how each op is split, propagate.c
 * walks the graph and inserts what moves values.
 */
#ifndef CT_PROPAGATE_H
#define CT_PROPAGATE_H

#include <ctitan/graph.h>

/* A value in another sharding than it was made in. */
struct moved {
    struct ct_sharding to;
    struct ct_value *value;
    struct moved *next;
};

struct propagation {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct moved **moved; /* by id */
    bool *weight;         /* by id */
    size_t count, weight_room;
    ct_axes data; /* axes that split the inputs of the step */
};

struct choice {
    double cost;
    struct ct_sharding *in, *out;
};

/* The cheapest way to split op. */
int ct_propagate_choose(struct propagation *p, const struct ct_op *op, struct choice *best);

/* v in another sharding, if it was moved to that before; else NULL. */
struct ct_value *ct_propagate_moved(const struct propagation *p, const struct ct_value *v,
                                    const struct ct_sharding *to);
/* Is it made from parameters alone? */
bool ct_propagate_is_weight(const struct propagation *p, const struct ct_value *v);

#endif
