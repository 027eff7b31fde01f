/*
 * Initial weights.
 */
#include <ctitan/rng.h>

#include "gpu.h"

#define THREADS 256

static bool accepts(const struct ct_prepare *p)
{
    return gpu_is_compute_dtype(p->in[0].dtype);
}

/* Where this rank's piece lies in the whole. */
static struct gpu_init piece(const struct ct_launch *l)
{
    const struct ct_value *whole = l->op->in[0];
    const struct ct_tensor *t = &l->in[0];
    struct gpu_init a = {.out = t->data,
                         .count = ct_tensor_count(t),
                         .rank = t->rank,
                         .kind = gpu_float_kind(t->dtype)};

    for (int d = 0; d < t->rank; d++) {
        a.size[d] = t->shape[d];
        a.global[d] = whole->shape[d];
        a.offset[d] = ct_launch_offset(l, whole, d);
    }
    return a;
}

static int launch(const struct ct_launch *l, const char *name, const struct gpu_init *a)
{
    return gpu_launch(l, name, (struct gpu_size){(unsigned)gpu_blocks(a->count, THREADS), 1, 1},
                      (struct gpu_size){THREADS, 1, 1}, 0, a);
}

static int run_normal(const struct ct_launch *l)
{
    struct gpu_init a = piece(l);

    a.seed = (uint64_t)ct_op_int(l->op, "seed");
    a.stream = ct_rng_stream(ct_value_origin(l->op->in[0])->name);
    a.std = ct_op_float(l->op, "std");
    a.cut = ct_op_float(l->op, "cut");
    return launch(l, "init_normal", &a);
}

static int run_constant(const struct ct_launch *l)
{
    struct gpu_init a = piece(l);

    a.value = ct_op_float(l->op, "value");
    return launch(l, "init_constant", &a);
}

const struct ct_kernel gpu_init_kernels[] = {
    {"init_normal", "philox", 0, accepts, NULL, run_normal},
    {"init_constant", "fill", 0, accepts, NULL, run_constant},
    {0}};
