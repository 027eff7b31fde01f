/*
 * Copies of heads, and the sums of their gradients, on dense tensors.
 */
#include <ctitan/lib/ops.h>

#include "gpu.h"

#define THREADS 256

static bool accepts_copy_heads(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && p->out[0].dtype == p->in[0].dtype;
}

static int prepare_copy(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->in[0].dtype, "@_*");
}

static int launch(const struct ct_launch *l, bool back)
{
    const struct ct_value *heads = back ? l->op->in[0] : l->op->out[0];
    const struct ct_value *groups = back ? l->op->out[0] : l->op->in[0];
    const int64_t *of_heads = (back ? l->in : l->out)->shape;
    const int64_t *of_groups = (back ? l->out : l->in)->shape;
    int d = heads->ndim - 2;
    struct gpu_copy_heads a = {.to = l->out[0].data,
                               .from = l->in[0].data,
                               .count = ct_tensor_count(&l->out[0]),
                               .heads = of_heads[d],
                               .groups = of_groups[d],
                               .size = of_heads[d + 1],
                               .first = ct_launch_offset(l, heads, d),
                               .first_group = ct_launch_offset(l, groups, d),
                               .share = heads->shape[d] / groups->shape[d]};

    return gpu_launch(l, 0, (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.count, THREADS), 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

static int run_copy_heads(const struct ct_launch *l)
{
    return launch(l, false);
}

static int run_grad(const struct ct_launch *l)
{
    return launch(l, true);
}

const struct ct_kernel gpu_copy_heads_kernels[] = {
    CT_KERNEL("copy_heads", "plain", 0, accepts_copy_heads, prepare_copy, run_copy_heads),
    CT_KERNEL("copy_heads_grad", "plain", 0, accepts_copy_heads, prepare_copy, run_grad),
    {0}};
