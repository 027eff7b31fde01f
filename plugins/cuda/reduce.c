/*
 * The norm of the gradients, clipping, and withholding the update.
 */
#include <ctitan/lib/ops.h>

#include "gpu.h"

#define THREADS 256

static int64_t blocks_of(const struct ct_tensor *t)
{
    return ct_cuda_blocks(ct_tensor_count(t), GPU_GRAIN);
}

static int64_t all_blocks(const struct ct_tensor *t, int count)
{
    int64_t blocks = 0;

    for (int i = 0; i < count; i++)
        blocks += blocks_of(&t[i]);
    return blocks;
}

enum { SQUARES, ADD }; /* functions */

static bool accepts_squares(const struct ct_prepare *p)
{
    for (int i = 0; i < p->ins; i++)
        if (!ct_cuda_computes(p->in[i].dtype))
            return false;
    return p->out[0].dtype == CT_F64;
}

static int prepare_squares(struct ct_prepare *p)
{
    p->workspace = (size_t)all_blocks(p->in, p->ins) * sizeof(double);
    return gpu_prepare(p, "sum_squares", "add_doubles");
}

/* Tensors [first, first + count) of the inputs, in one launch; their sums go to a->sums. */
static int launch_squares(const struct ct_launch *l, int first, int count, double *sums,
                          int64_t *blocks)
{
    struct gpu_squares a = {.sums = sums, .tensors = count};

    for (int i = 0; i < count; i++) {
        const struct ct_tensor *t = &l->in[first + i];

        a.tensor[i] = t->data;
        a.count[i] = ct_tensor_count(t);
        a.kind[i] = (uint8_t)ct_cuda_float_of(t->dtype);
        a.first_block[i + 1] = a.first_block[i] + (int32_t)blocks_of(t);
    }
    *blocks = a.first_block[count];
    return gpu_launch(l, SQUARES, (struct ct_cuda_size){(unsigned)*blocks, 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

static int run_squares(const struct ct_launch *l)
{
    struct gpu_add_doubles add = {
        .out = l->out[0].data, .in = l->workspace, .accumulate = l->accumulate & 1};
    int64_t blocks;
    int rc = 0;

    for (int i = 0, count; rc == 0 && i < l->ins; i += count, add.count += blocks) {
        count = l->ins - i < GPU_TENSORS ? l->ins - i : GPU_TENSORS;
        rc = launch_squares(l, i, count, (double *)l->workspace + add.count, &blocks);
    }
    if (rc < 0)
        return rc;
    return gpu_launch(l, ADD, (struct ct_cuda_size){1, 1, 1}, (struct ct_cuda_size){1024, 1, 1}, 0,
                      &add);
}

static bool accepts_clip(const struct ct_prepare *p)
{
    for (int i = 0; i < p->ins; i++)
        if (p->in[i].dtype != CT_F64)
            return false;
    return p->ins <= GPU_NORMS && p->out[0].dtype == CT_F32 && p->out[1].dtype == CT_F32;
}

static int prepare_scalar(struct ct_prepare *p)
{
    return gpu_prepare(p, "@");
}

static int run_clip(const struct ct_launch *l)
{
    const struct ct_clip_coefficient *attrs = l->op->attrs;
    struct gpu_clip a = {.norm = l->out[0].data,
                         .coefficient = l->out[1].data,
                         .count = l->ins,
                         .max_norm = attrs->max_norm};

    for (int i = 0; i < l->ins; i++)
        a.in[i] = l->in[i].data;
    return gpu_launch(l, 0, (struct ct_cuda_size){1, 1, 1}, (struct ct_cuda_size){32, 1, 1}, 0, &a);
}

static bool accepts_withhold(const struct ct_prepare *p)
{
    return p->in[3].dtype == CT_F32 || p->in[3].dtype == CT_F64;
}

static int run_withhold(const struct ct_launch *l)
{
    struct gpu_withhold a = {.out = l->out[0].data,
                             .coefficient = l->in[0].data,
                             .norm = l->in[1].data,
                             .norm_limit = l->in[2].data,
                             .loss = l->in[3].data,
                             .wide = l->in[3].dtype == CT_F64,
                             .count = l->in[4].data,
                             .loss_limit = l->in[5].data};

    return gpu_launch(l, 0, (struct ct_cuda_size){1, 1, 1}, (struct ct_cuda_size){32, 1, 1}, 0, &a);
}

const struct ct_kernel gpu_reduce_kernels[] = {
    CT_KERNEL("withhold", "scalar", 0, accepts_withhold, prepare_scalar, run_withhold),
    CT_KERNEL("squared_norm", "vector", CT_KERNEL_ACCUMULATES, accepts_squares, prepare_squares,
              run_squares),
    CT_KERNEL("clip_coefficient", "scalar", 0, accepts_clip, prepare_scalar, run_clip),
    {0}};
