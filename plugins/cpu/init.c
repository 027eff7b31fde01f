/*
 * Initial weights. A rank that holds a piece of a parameter fills it row by row: a row's elements
 * are neighbours in the whole parameter too.
 */
#include <string.h>

#include <ctitan/rng.h>

#include "cpu.h"
#include "loops.h"

#define GRAIN 4096 /* elements of one call */

struct init {
    int64_t offset[CT_MAX_RANK], global[CT_MAX_RANK]; /* of the piece; the whole */
};

struct call {
    const struct ct_tensor *piece;
    const struct init *init;
    struct cpu_normal normal;
    float value;
};

static bool accepts(const struct ct_prepare *p)
{
    return cpu_is_compute_dtype(p->in[0].dtype);
}

static int prepare(struct ct_prepare *p)
{
    const struct ct_value *value = p->op->in[0];
    struct init *init = ct_arena_new(p->arena, struct init);
    int64_t local[CT_MAX_RANK];

    memcpy(init->global, value->shape, sizeof(init->global));
    if (p->mesh)
        ct_sharding_local(&value->sharding, p->mesh, p->rank, value->rank, value->shape, local,
                          init->offset);
    p->state = init;
    return 0;
}

/* Index in the whole parameter of element 0 of a row of the piece. */
static uint64_t global_index(const struct call *c, int64_t row)
{
    const struct ct_tensor *t = c->piece;
    uint64_t index = 0, stride = 1;

    for (int d = t->rank - 1; d >= 0; d--) {
        int64_t at = 0;

        if (d < t->rank - 1) {
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
    const struct ct_tensor *t = c->piece;
    int64_t count = ct_tensor_count(t), columns = t->rank ? t->shape[t->rank - 1] : 1;
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
    struct call call = {&l->in[0], l->state, {0}, 0};

    call.normal = (struct cpu_normal){
        .seed = (uint64_t)ct_op_int(l->op, "seed"),
        .stream = ct_rng_stream(ct_value_origin(l->op->in[0])->name),
        .std = (float)ct_op_float(l->op, "std"),
        .cut = (float)ct_op_float(l->op, "cut"),
    };
    cpu_parallel(fill_normal, &call);
    return 0;
}

static void fill_constant(void *context, int thread, int threads)
{
    const struct call *c = context;
    struct cpu_range mine = cpu_share(ct_tensor_count(c->piece), GRAIN, thread, threads);

    for (int64_t i = mine.begin; i < mine.end; i++)
        if (c->piece->dtype == CT_F32)
            ((float *)c->piece->data)[i] = c->value;
        else
            ((uint16_t *)c->piece->data)[i] = ct_f32_to_bf16(c->value);
}

static int run_constant(const struct ct_launch *l)
{
    struct call call = {.piece = &l->in[0], .value = (float)ct_op_float(l->op, "value")};

    cpu_parallel(fill_constant, &call);
    return 0;
}

const struct ct_kernel cpu_init_kernels[] = {
    {"init_normal", "vector", 0, accepts, prepare, run_normal},
    {"init_constant", "vector", 0, accepts, NULL, run_constant},
    {0}};
