/*
 * Initial weights. A rank that holds a shard of a parameter fills it row by row, because a row's
 * elements are also contiguous in the whole parameter.
 */
#include <string.h>

#include <ctitan/lib/ops.h>
#include <ctitan/rng.h>

#include "cpu.h"
#include "loops.h"

#define GRAIN 4096 /* elements per call */

struct init {
    int64_t offset[CT_MAX_DIMS], global[CT_MAX_DIMS]; /* shard's offset; whole shape */
};

struct call {
    const struct ct_tensor *shard;
    const struct init *init;
    struct cpu_normal normal;
    float value;
    double low, high;
};

static bool accepts_init(const struct ct_prepare *p)
{
    return cpu_is_compute_dtype(p->in[0].dtype);
}

/* Optimizers may have states of 8 bits. */
static bool accepts_constant(const struct ct_prepare *p)
{
    return accepts_init(p) || p->in[0].dtype == CT_E4M3;
}

static int prepare_init(struct ct_prepare *p)
{
    const struct ct_value *value = p->op->in[0];
    struct init *init = ct_arena_new(p->arena, struct init);
    int64_t local[CT_MAX_DIMS];

    memcpy(init->global, value->shape, sizeof(init->global));
    if (p->mesh)
        ct_sharding_local(&value->sharding, p->mesh, p->rank, value->ndim, value->shape, local,
                          init->offset);
    p->state = init;
    return 0;
}

/* Index in the whole parameter of the first element of a row of the shard. */
static uint64_t global_index(const struct call *c, int64_t row)
{
    const struct ct_tensor *t = c->shard;
    uint64_t index = 0, stride = 1;

    for (int d = t->ndim - 1; d >= 0; d--) {
        int64_t at = 0;

        if (d < t->ndim - 1) {
            at = row % t->shape[d];
            row /= t->shape[d];
        }
        index += (uint64_t)(c->init->offset[d] + at) * stride;
        stride *= (uint64_t)c->init->global[d];
    }
    return index;
}

static void fill_normal(void *context, int thread, int threads)
{
    const struct call *c = context;
    const struct ct_tensor *t = c->shard;
    int64_t count = ct_tensor_count(t), columns = t->ndim ? t->shape[t->ndim - 1] : 1;
    struct cpu_range mine = cpu_share(count, GRAIN, thread, threads);
    size_t size = ct_dtype_size(t->dtype);

    for (int64_t i = mine.begin, n; i < mine.end; i += n) {
        int64_t column = i % columns;

        n = columns - column < mine.end - i ? columns - column : mine.end - i;
        cpu_loops()->normal(&c->normal, t->dtype, (char *)t->data + (size_t)i * size,
                            global_index(c, i / columns) + (uint64_t)column, n);
    }
}

static int run_normal(const struct ct_launch *l)
{
    const struct ct_init_normal *attrs = l->op->attrs;
    struct call call = {.shard = &l->in[0], .init = l->state};

    call.normal = (struct cpu_normal){
        .seed = (uint64_t)attrs->seed,
        .stream = ct_rng_stream(ct_value_model_name(ct_value_origin(l->op->in[0]))),
        .std = (float)attrs->std,
        .truncate = (float)attrs->truncate,
    };
    cpu_parallel(fill_normal, &call);
    return 0;
}

static void put(const struct ct_tensor *t, int64_t i, float value)
{
    if (t->dtype == CT_F32)
        ((float *)t->data)[i] = value;
    else if (t->dtype == CT_E4M3)
        ((uint8_t *)t->data)[i] = ct_f32_to_e4m3(value);
    else
        ((uint16_t *)t->data)[i] = ct_f32_to_bf16(value);
}

static void fill_constant(void *context, int thread, int threads)
{
    const struct call *c = context;
    struct cpu_range mine = cpu_share(ct_tensor_count(c->shard), GRAIN, thread, threads);

    for (int64_t i = mine.begin; i < mine.end; i++)
        put(c->shard, i, c->value);
}

static int run_constant(const struct ct_launch *l)
{
    const struct ct_init_constant *attrs = l->op->attrs;
    struct call call = {.shard = &l->in[0], .value = (float)attrs->value};

    cpu_parallel(fill_constant, &call);
    return 0;
}

static void fill_uniform(void *context, int thread, int threads)
{
    const struct call *c = context;
    const struct ct_tensor *t = c->shard;
    int64_t columns = t->ndim ? t->shape[t->ndim - 1] : 1;
    struct cpu_range mine = cpu_share(ct_tensor_count(t), GRAIN, thread, threads);

    for (int64_t i = mine.begin; i < mine.end; i++) {
        uint64_t index = global_index(c, i / columns) + (uint64_t)(i % columns);
        double u = ct_uniform(ct_philox(c->normal.seed, c->normal.stream, index / 4).v[index % 4]);

        put(t, i, (float)(c->low + (c->high - c->low) * u));
    }
}

static int run_uniform(const struct ct_launch *l)
{
    const struct ct_init_uniform *attrs = l->op->attrs;
    struct call call = {.shard = &l->in[0], .init = l->state};

    call.normal.seed = (uint64_t)attrs->seed;
    call.normal.stream = ct_rng_stream(ct_value_model_name(ct_value_origin(l->op->in[0])));
    call.low = attrs->low;
    call.high = attrs->high;
    cpu_parallel(fill_uniform, &call);
    return 0;
}

const struct ct_kernel cpu_init_kernels[] = {
    CT_KERNEL("init_normal", "vector", 0, accepts_init, prepare_init, run_normal),
    CT_KERNEL("init_constant", "vector", 0, accepts_constant, NULL, run_constant),
    CT_KERNEL("init_uniform", "plain", 0, accepts_init, prepare_init, run_uniform),
    {0}};
