/*
 * Initial weights.
 */
#include <ctitan/lib/ops.h>
#include <ctitan/rng.h>

#include "gpu.h"

#define THREADS 256

static bool accepts_init(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype);
}

/* 8-bit numbers begin as zeros. */
static bool accepts_constant(const struct ct_prepare *p)
{
    bool zeros = ct_dtype_size(p->in[0].dtype) == 1 &&
                 ((const struct ct_init_constant *)p->op->attrs)->value == 0;

    return ct_cuda_computes(p->in[0].dtype) || (zeros && ct_tensor_is_dense(&p->in[0]));
}

/* Where this rank's shard lies in the whole. */
static struct gpu_init shard(const struct ct_launch *l)
{
    const struct ct_value *whole = l->op->in[0];
    const struct ct_tensor *t = &l->in[0];
    struct gpu_init a = {.out = t->data,
                         .count = ct_tensor_count(t),
                         .rank = t->ndim,
                         .kind = ct_cuda_float_of(t->dtype)};

    for (int d = 0; d < t->ndim; d++) {
        a.size[d] = t->shape[d];
        a.global[d] = whole->shape[d];
        a.offset[d] = ct_launch_offset(l, whole, d);
    }
    return a;
}

static int prepare_init(struct ct_prepare *p)
{
    return gpu_prepare(p, "@");
}

static int launch(const struct ct_launch *l, const struct gpu_init *a)
{
    return gpu_launch(l, 0,
                      (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a->count, THREADS), 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, a);
}

static int run_normal(const struct ct_launch *l)
{
    const struct ct_init_normal *attrs = l->op->attrs;
    struct gpu_init a = shard(l);

    a.seed = (uint64_t)attrs->seed;
    a.stream = ct_rng_stream(ct_value_model_name(ct_value_origin(l->op->in[0])));
    a.std = attrs->std;
    a.truncate = attrs->truncate;
    return launch(l, &a);
}

static int run_uniform(const struct ct_launch *l)
{
    const struct ct_init_uniform *attrs = l->op->attrs;
    struct gpu_init a = shard(l);

    a.seed = (uint64_t)attrs->seed;
    a.stream = ct_rng_stream(ct_value_model_name(ct_value_origin(l->op->in[0])));
    a.value = attrs->low;
    a.std = attrs->high - attrs->low;
    return launch(l, &a);
}

static int run_constant(const struct ct_launch *l)
{
    struct gpu_init a = shard(l);

    if (ct_dtype_size(l->in[0].dtype) == 1)
        return gpu_check(gpu_driver.cuMemsetD8Async((CUdeviceptr)(uintptr_t)a.out, 0,
                                                    (size_t)a.count, l->stream),
                         "zeros");
    a.value = ((const struct ct_init_constant *)l->op->attrs)->value;
    return launch(l, &a);
}

const struct ct_kernel gpu_init_kernels[] = {
    CT_KERNEL("init_normal", "philox", 0, accepts_init, prepare_init, run_normal),
    CT_KERNEL("init_uniform", "philox", 0, accepts_init, prepare_init, run_uniform),
    CT_KERNEL("init_constant", "fill", 0, accepts_constant, prepare_init, run_constant),
    {0}};
