/*
 * The gradient norm: sums of squares in float64 over blocks of fixed size, added in order, so that
 * the result does not depend on the number of threads.
 */
#include <math.h>

#include <ctitan/lib/ops.h>
#include <ctitan/error.h>

#include "cpu.h"
#include "loops.h"

#define BLOCK 65536

struct squares_call {
    const struct ct_launch *launch;
    double *sums; /* of all blocks of all tensors */
};

static int64_t blocks_of(const struct ct_tensor *t)
{
    return (ct_tensor_count(t) + BLOCK - 1) / BLOCK;
}

static bool accepts_squares(const struct ct_prepare *p)
{
    for (int i = 0; i < p->ins; i++)
        if (!cpu_is_compute_dtype(p->in[i].dtype))
            return false;
    return p->out[0].dtype == CT_F64;
}

static int prepare_squares(struct ct_prepare *p)
{
    for (int i = 0; i < p->ins; i++)
        p->workspace += (size_t)blocks_of(&p->in[i]) * sizeof(double);
    return 0;
}

static void sum_blocks(void *context, int thread, int threads)
{
    const struct squares_call *c = context;
    int64_t block = 0;

    for (int i = 0; i < c->launch->ins; i++) {
        const struct ct_tensor *t = &c->launch->in[i];
        int64_t count = ct_tensor_count(t);

        for (int64_t first = 0; first < count; first += BLOCK, block++) {
            const char *at = (const char *)t->data + (size_t)first * ct_dtype_size(t->dtype);
            int64_t n = count - first < BLOCK ? count - first : BLOCK;

            if (block % threads == thread)
                c->sums[block] = cpu_loops()->squares(t->dtype, at, (struct ct_matrix){1, n, n});
        }
    }
}

static int run_squares(const struct ct_launch *l)
{
    struct squares_call call = {l, l->workspace};
    double total = 0, *out = l->out[0].data;
    int64_t blocks = 0;

    for (int i = 0; i < l->ins; i++)
        blocks += blocks_of(&l->in[i]);
    cpu_parallel(sum_blocks, &call);
    for (int64_t i = 0; i < blocks; i++)
        total += call.sums[i];
    *out = l->accumulate & 1 ? *out + total : total;
    return 0;
}

static int run_clip(const struct ct_launch *l)
{
    const struct ct_clip_coefficient *attrs = l->op->attrs;
    double sum = 0, norm, coefficient = 1, max_norm = attrs->max_norm;
    float *out[2] = {l->out[0].data, l->out[1].data};

    for (int i = 0; i < l->ins; i++)
        sum += *(const double *)l->in[i].data;
    norm = sqrt(sum);
    if (!isfinite(norm))
        coefficient = -1;
    else if (max_norm > 0)
        coefficient = fmin(1, max_norm / (norm + 1e-6));
    *out[0] = (float)norm;
    *out[1] = (float)coefficient;
    return 0;
}

static bool accepts_clip(const struct ct_prepare *p)
{
    for (int i = 0; i < p->ins; i++)
        if (p->in[i].dtype != CT_F64)
            return false;
    return p->out[0].dtype == CT_F32 && p->out[1].dtype == CT_F32;
}

const struct ct_kernel cpu_reduce_kernels[] = {
    CT_KERNEL("squared_norm", "vector", CT_KERNEL_ACCUMULATES, accepts_squares, prepare_squares,
              run_squares),
    CT_KERNEL("clip_coefficient", "scalar", 0, accepts_clip, NULL, run_clip),
    {0}};
