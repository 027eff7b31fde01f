/*
 * Interface between the sources of propagation. propagate_choose.c decides how each op is split;
 * propagate.c walks the graph and inserts what moves values.
 */
#ifndef CT_PROPAGATE_H
#define CT_PROPAGATE_H

#include <ctitan/graph.h>

/* A value in a sharding other than its original one. */
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
    ct_axes data;      /* axes that split the inputs of the step */
    ct_marks unplaced; /* CT_MARK_UNPLACED */
};

struct choice {
    double cost;
    struct ct_sharding *in, *out;
};

/* Find the cheapest way to split op. */
int ct_propagate_choose(struct propagation *p, const struct ct_op *op, struct choice *best);

/* v in the given sharding, if it was moved to it before; else NULL. */
struct ct_value *ct_propagate_moved(const struct propagation *p, const struct ct_value *v,
                                    const struct ct_sharding *to);
/* Is it computed from parameters alone? */
bool ct_propagate_is_weight(const struct propagation *p, const struct ct_value *v);

#endif
