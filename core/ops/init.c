/*
 * Parameters and the ops that fill them. An element depends on the seed, the parameter's name and
 * the element's index in the whole parameter, and on nothing else.
 */
#include <math.h>

#include <ctitan/rng.h>

#include "standard.h"

struct normal {
    double std, cut;
    int64_t seed;
};

struct constant {
    double value;
};

/* Index in the whole parameter of element i of this rank's piece. */
static uint64_t global_index(const struct ct_launch *l, int64_t i)
{
    const struct ct_value *p = l->op->in[0];
    uint64_t index = 0, stride = 1;

    for (int d = p->rank - 1; d >= 0; d--) {
        int64_t size = l->in[0].shape[d];

        index += (uint64_t)(ct_launch_offset(l, p, d) + i % size) * stride;
        stride *= (uint64_t)p->shape[d];
        i /= size;
    }
    return index;
}

static int init_normal_reference(const struct ct_launch *l)
{
    double std = ct_op_float(l->op, "std"), cut = ct_op_float(l->op, "cut");
    uint64_t seed = (uint64_t)ct_op_int(l->op, "seed");
    uint64_t stream = ct_rng_stream(ct_value_origin(l->op->in[0])->name);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        uint64_t draw = stream, index = global_index(l, i);
        double n = ct_normal(seed, draw, index);

        while (cut > 0 && fabs(n) > cut)
            n = ct_normal(seed, draw += 0x9E3779B97F4A7C15u, index);
        ct_tensor_store(&l->in[0], i, std * n);
    }
    return 0;
}

const struct ct_op_type ct_op_init_normal = {
    .name = "init_normal",
    .summary = "fills p with normal numbers, redrawn beyond cut deviations",
    .operands = "p F",
    .rule = ".",
    .attrs =
        (const struct ct_option[]){
            CT_OPT_FLOAT(struct normal, std, "std", "1", 0, 1e30, "Standard deviation"),
            CT_OPT_FLOAT(struct normal, cut, "cut", "0", 0, 1e30,
                         "Largest deviation, in units of std; 0: any"),
            CT_OPT_INT(struct normal, seed, "seed", "0", -0x1p63, 0x1p63, "Seed of the run"),
            {0}},
    .attrs_size = sizeof(struct normal),
    .mutates = 1,
    .reference = init_normal_reference,
};

static int init_constant_reference(const struct ct_launch *l)
{
    double value = ct_op_float(l->op, "value");

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        ct_tensor_store(&l->in[0], i, value);
    return 0;
}

const struct ct_op_type ct_op_init_constant = {
    .name = "init_constant",
    .summary = "fills p with one number",
    .operands = "p F",
    .rule = ".",
    .attrs =
        (const struct ct_option[]){
            CT_OPT_FLOAT(struct constant, value, "value", "0", -1e300, 1e300, "The number"), {0}},
    .attrs_size = sizeof(struct constant),
    .mutates = 1,
    .reference = init_constant_reference,
};

/* Behind the other init ops, in front of everything else. */
static struct ct_builder init_builder(const struct ct_builder *b)
{
    struct ct_builder init = *b;

    init.part = CT_PART_INIT;
    init.before = b->graph->first;
    while (init.before && init.before->part == CT_PART_INIT)
        init.before = init.before->next;
    return init;
}

struct ct_value *ct_parameter(struct ct_builder *b, const char *name, int rank,
                              const int64_t *shape, struct ct_init init)
{
    struct ct_builder at = init_builder(b);
    struct ct_value *p;

    if (b->status < 0)
        return NULL;
    p = ct_graph_source(b->graph, CT_ROLE_PARAM, name, CT_F32, rank, shape);
    if (init.std > 0)
        ct_emit(&at, "init_normal", NULL, &p, 1,
                &(struct normal){init.std, init.cut, (int64_t)b->graph->seed});
    else
        ct_emit(&at, "init_constant", NULL, &p, 1, &(struct constant){1});
    b->status = at.status;
    return b->status < 0 ? NULL : p;
}
