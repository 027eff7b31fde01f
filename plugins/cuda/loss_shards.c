/*
 * Cross entropy in two steps, for logits that are split by vocabulary; dense tensors.
 */
#include "gpu.h"

#define THREADS 256
#define STATISTICS 3

static int64_t shards_of(const struct ct_tensor *stats)
{
    return stats->shape[stats->ndim - 2];
}

static int64_t tokens_of(const struct ct_tensor *stats)
{
    return ct_shape_count(stats->ndim - 2, stats->shape);
}

static struct gpu_shards arguments(const struct ct_launch *l, int logits, int labels,
                                   const struct ct_value *whole_stats,
                                   const struct ct_tensor *stats)
{
    const struct ct_value *whole = l->op->in[logits];
    const struct ct_tensor *x = &l->in[logits];

    return (struct gpu_shards){.logits = x->data,
                               .stats = stats->data,
                               .labels = l->in[labels].data,
                               .rows = tokens_of(stats),
                               .shards = shards_of(stats),
                               .shard = ct_launch_offset(l, whole_stats, whole_stats->ndim - 2),
                               .all_shards = whole_stats->shape[whole_stats->ndim - 2],
                               .row_columns = x->shape[x->ndim - 1],
                               .first = ct_launch_offset(l, whole, whole->ndim - 1),
                               .limit = whole->shape[whole->ndim - 1],
                               .fault = ct_cuda_of(l->device)->fault};
}

static int launch(const struct ct_launch *l, enum ct_dtype dtype, const struct gpu_shards *a)
{
    int64_t columns = a->row_columns / a->shards; /* of the smallest shard */
    bool vector = a->row_columns % (a->shards * ct_cuda_lanes(dtype)) == 0 &&
                  (uintptr_t)a->logits % 16 == 0 && (uintptr_t)a->dlogits % 16 == 0;
    int64_t warps = ct_cuda_blocks(columns, 32);

    return gpu_launch(l, vector, (struct ct_cuda_size){(unsigned)(a->rows * a->shards), 1, 1},
                      (struct ct_cuda_size){warps < 8 ? (unsigned)warps * 32 : THREADS, 1, 1}, 0,
                      a);
}

static bool accepts_partial(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && p->out[0].dtype == CT_F32;
}

static int prepare_partial(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->in[0].dtype, "shard_stats_*", "shard_stats_*_vector");
}

static int run_partial(const struct ct_launch *l)
{
    struct gpu_shards a = arguments(l, 0, 1, l->op->out[0], &l->out[0]);

    return launch(l, l->in[0].dtype, &a);
}

static bool accepts_partial_grad(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[2].dtype) && p->out[0].dtype == p->in[2].dtype &&
           p->in[0].dtype == CT_F32 && p->in[1].dtype == CT_F32;
}

static int prepare_partial_grad(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->in[2].dtype, "shard_grad_*", "shard_grad_*_vector");
}

static int run_partial_grad(const struct ct_launch *l)
{
    struct gpu_shards a = arguments(l, 2, 3, l->op->in[1], &l->in[1]);

    a.dstats = l->in[0].data;
    a.dlogits = l->out[0].data;
    return launch(l, l->in[2].dtype, &a);
}

/* ---- merged ---- */

enum { MERGE, SUM }; /* functions */

static bool accepts_merge(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_F32 && p->out[0].dtype == CT_F32 && p->out[1].dtype == CT_F32;
}

static int prepare_merge(struct ct_prepare *p)
{
    p->workspace = (size_t)tokens_of(&p->in[0]) * sizeof(float);
    return gpu_prepare(p, "merge_shards", GPU_SUM_LOSSES);
}

static int run_merge(const struct ct_launch *l)
{
    struct gpu_merge a = {.lse = l->out[1].data,
                          .losses = l->workspace,
                          .stats = l->in[0].data,
                          .labels = l->in[1].data,
                          .rows = tokens_of(&l->in[0]),
                          .shards = shards_of(&l->in[0])};
    int rc =
        gpu_launch(l, MERGE, (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.rows, THREADS), 1, 1},
                   (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);

    return rc < 0
               ? rc
               : gpu_sum_losses(l, ct_cuda_function(l, SUM), &l->out[0], a.losses, a.rows, false);
}

static bool accepts_merge_grad(const struct ct_prepare *p)
{
    return (ct_cuda_computes(p->in[0].dtype) || p->in[0].dtype == CT_F64) &&
           p->in[1].dtype == CT_F32 && p->in[3].dtype == CT_F32 && p->out[0].dtype == CT_F32;
}

static int prepare_merge_grad(struct ct_prepare *p)
{
    return gpu_prepare(p, "merge_shards_grad");
}

static int run_merge_grad(const struct ct_launch *l)
{
    struct gpu_merge a = {.dstats = l->out[0].data,
                          .stats = l->in[1].data,
                          .given_lse = l->in[3].data,
                          .labels = l->in[2].data,
                          .dloss = l->in[0].data,
                          .rows = tokens_of(&l->in[1]),
                          .shards = shards_of(&l->in[1]),
                          .dloss_kind = ct_cuda_float_of(l->in[0].dtype)};

    return gpu_launch(
        l, 0, (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.rows * a.shards, THREADS), 1, 1},
        (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

const struct ct_kernel gpu_loss_shards_kernels[] = {
    CT_KERNEL("cross_entropy_partial", "rows", 0, accepts_partial, prepare_partial, run_partial),
    CT_KERNEL("cross_entropy_partial_grad", "rows", 0, accepts_partial_grad, prepare_partial_grad,
              run_partial_grad),
    CT_KERNEL("cross_entropy_merge", "rows", 0, accepts_merge, prepare_merge, run_merge),
    CT_KERNEL("cross_entropy_merge_grad", "rows", 0, accepts_merge_grad, prepare_merge_grad,
              run_merge_grad),
    {0}};
