/*
 * Parameters and the ops that fill them. An element depends only on the seed, the parameter's name
 * and the element's index in the whole parameter.
 */
#include <math.h>

#include <ctitan/config.h>
#include <ctitan/rng.h>

#include "list.h"

/* Index in the whole parameter of element i of this rank's shard. */
static uint64_t global_index(const struct ct_launch *l, int64_t i)
{
    const struct ct_value *p = l->op->in[0];
    uint64_t index = 0, stride = 1;

    for (int d = p->ndim - 1; d >= 0; d--) {
        int64_t size = l->in[0].shape[d];

        index += (uint64_t)(ct_launch_offset(l, p, d) + i % size) * stride;
        stride *= (uint64_t)p->shape[d];
        i /= size;
    }
    return index;
}

static int init_normal_reference(const struct ct_launch *l)
{
    const struct ct_init_normal *attrs = l->op->attrs;
    uint64_t seed = (uint64_t)attrs->seed;
    uint64_t stream = ct_rng_stream(ct_value_model_name(ct_value_origin(l->op->in[0])));

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        uint64_t draw = stream, index = global_index(l, i);
        double n = ct_normal(seed, draw, index);

        while (attrs->truncate > 0 && fabs(n) > attrs->truncate)
            n = ct_normal(seed, draw += 0x9E3779B97F4A7C15u, index);
        ct_tensor_store(&l->in[0], i, attrs->std * n);
    }
    return 0;
}

const struct ct_op_type ct_op_init_normal = {
    .size = sizeof(struct ct_op_type),
    .name = "init_normal",
    .summary = "fills p with normal numbers, redrawn beyond some deviations",
    .signature = "!p[.] F",
    .attrs =
        (const struct ct_option[]){
            CT_OPT_FLOAT(struct ct_init_normal, std, "std", "1", 0, 1e30, "Standard deviation"),
            CT_OPT_FLOAT(struct ct_init_normal, truncate, "truncate", "0", 0, 1e30,
                         "Largest deviation, in units of std; 0: any"),
            CT_OPT_INT(struct ct_init_normal, seed, "seed", "0", -0x1p63, 0x1p63,
                       "Seed of the run"),
            {0}},
    .attrs_size = sizeof(struct ct_init_normal),
    .reference = init_normal_reference,
    .samples = "std=2 truncate=1.5 seed=3: real[4,6]",
};

static int init_constant_reference(const struct ct_launch *l)
{
    const struct ct_init_constant *attrs = l->op->attrs;

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        ct_tensor_store(&l->in[0], i, attrs->value);
    return 0;
}

const struct ct_op_type ct_op_init_constant = {
    .size = sizeof(struct ct_op_type),
    .name = "init_constant",
    .summary = "fills p with one number",
    .signature = "!p[.] F",
    .attrs = (const struct ct_option[]){CT_OPT_FLOAT(struct ct_init_constant, value, "value", "0",
                                                     -1e300, 1e300, "The number"),
                                        {0}},
    .attrs_size = sizeof(struct ct_init_constant),
    .reference = init_constant_reference,
    .samples = "value=2: real[4,6]",
};

static int init_uniform_reference(const struct ct_launch *l)
{
    const struct ct_init_uniform *attrs = l->op->attrs;
    uint64_t stream = ct_rng_stream(ct_value_model_name(ct_value_origin(l->op->in[0])));

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        uint64_t index = global_index(l, i);
        double u = ct_uniform(ct_philox((uint64_t)attrs->seed, stream, index / 4).v[index % 4]);

        ct_tensor_store(&l->in[0], i, attrs->low + (attrs->high - attrs->low) * u);
    }
    return 0;
}

const struct ct_op_type ct_op_init_uniform = {
    .size = sizeof(struct ct_op_type),
    .name = "init_uniform",
    .summary = "fills p with numbers between low and high",
    .signature = "!p[.] F",
    .attrs =
        (const struct ct_option[]){
            CT_OPT_FLOAT(struct ct_init_uniform, low, "low", "0", -1e30, 1e30, "Smallest number"),
            CT_OPT_FLOAT(struct ct_init_uniform, high, "high", "1", -1e30, 1e30, "Largest number"),
            CT_OPT_INT(struct ct_init_uniform, seed, "seed", "0", -0x1p63, 0x1p63,
                       "Seed of the run"),
            {0}},
    .attrs_size = sizeof(struct ct_init_uniform),
    .reference = init_uniform_reference,
    .samples = "low=-1 high=2 seed=3: real[4,6]",
};

void ct_init_normal(struct ct_builder *b, struct ct_value *p, const struct ct_init_normal *attrs)
{
    ct_emit_type(b, &ct_op_init_normal, NULL, &p, 1, attrs);
}

void ct_init_uniform(struct ct_builder *b, struct ct_value *p, const struct ct_init_uniform *attrs)
{
    ct_emit_type(b, &ct_op_init_uniform, NULL, &p, 1, attrs);
}

void ct_init_constant(struct ct_builder *b, struct ct_value *p, double value)
{
    ct_emit_type(b, &ct_op_init_constant, NULL, &p, 1, &(struct ct_init_constant){value});
}

static void emit_init(struct ct_builder *b, struct ct_value *p, const struct ct_init *init)
{
    int64_t seed = (int64_t)b->graph->seed;

    if (init->kind == CT_INIT_NORMAL)
        ct_init_normal(b, p, &(struct ct_init_normal){init->a, init->truncate, seed});
    else if (init->kind == CT_INIT_UNIFORM)
        ct_init_uniform(b, p, &(struct ct_init_uniform){init->a, init->b, seed});
    else
        ct_init_constant(b, p, init->kind == CT_INIT_ZERO ? 0 : init->a);
}

struct ct_init ct_init_weight(double std, double share)
{
    double range = ct_config.initializer_range;

    return CT_INIT_STD(range > 0 ? range * share : std);
}

struct ct_value *ct_parameter(struct ct_builder *b, const char *name, int ndim,
                              const int64_t *shape, struct ct_init init)
{
    const struct ct_weight_set *set = b->graph->set;
    struct ct_builder at = ct_init_builder(b->graph);
    struct ct_value *p;

    if (b->status < 0)
        return NULL;
    if (set)
        name = ct_arena_printf(b->graph->arena, "%s.%s", set->name, name);
    p = b->graph->same_parameters ? ct_graph_find(b->graph, name) : NULL;
    if (p && p->role == CT_ROLE_PARAM)
        return p;
    at.region = b->region;
    at.why = b->why;
    p = ct_graph_source(b->graph, CT_ROLE_PARAM, name, CT_F32, ndim, shape);
    p->set = set;
    emit_init(&at, p, &init);
    b->status = at.status;
    return b->status < 0 ? NULL : p;
}
