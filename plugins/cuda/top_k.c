/* The choice of experts, its gradient, and how even it is (kernels/top_k.cu). */
#include <ctitan/op_author.h>

#include "experts.h"

#define SHARED ((size_t)32 << 10) /* of a block, where one warp does not need more */

enum { BIAS = 1 };                       /* of top_k */
enum { DWEIGHTS, CHOSEN, LOGITS, LOAD }; /* of its gradients; LOAD: of balanced_top_k_grad */

static bool is_ranked(const struct ct_op *op)
{
    const struct ct_top_k *a = op->attrs;

    return a->groups > 0 || ct_op_input(op, BIAS);
}

/* Bytes of shared memory for a warp. */
static size_t rank_bytes(const struct ct_op *op, const struct ct_tensor *x)
{
    const struct ct_top_k *a = op->attrs;

    return is_ranked(op) ? (size_t)(ct_columns(x) + a->groups) * sizeof(double) : 0;
}

static bool accepts_top_k(const struct ct_prepare *p)
{
    size_t bytes = rank_bytes(p->op, &p->in[0]),
           most = (size_t)gpu_of(p->device)->cuda.shared_memory;

    if (bytes > most)
        ct_fail(CT_EINVAL, "%zu bytes of ranks exceed a block's %zu", bytes, most);
    return ct_cuda_computes(p->in[0].dtype) && p->out[0].dtype == CT_F32 && bytes <= most &&
           (p->ins <= BIAS || !p->present[BIAS] || p->in[BIAS].dtype == CT_F32);
}

static bool accepts_top_k_grad(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[LOGITS].dtype) && ct_cuda_computes(p->out[0].dtype) &&
           p->in[DWEIGHTS].dtype == CT_F32 && (p->ins <= LOAD || p->in[LOAD].dtype == CT_F32);
}

static struct gpu_top_k choice_of(const struct ct_launch *l, const struct ct_tensor *x)
{
    const struct ct_top_k *attrs = l->op->attrs;

    return (struct gpu_top_k){.x = x->data,
                              .rows = ct_rows(x),
                              .experts = ct_columns(x),
                              .k = attrs->k,
                              .groups = attrs->groups,
                              .groups_chosen = attrs->groups_chosen,
                              .kind = ct_cuda_float_of(x->dtype),
                              .normalised = attrs->normalised,
                              .sigmoid = attrs->scores == CT_SCORES_SIGMOID,
                              .scale = attrs->scale > 0 ? (float)attrs->scale : 1,
                              .fault = ct_cuda_of(l->device)->fault};
}

static int prepare_top_k(struct ct_prepare *p)
{
    return gpu_prepare(p, is_ranked(p->op) ? "top_k_ranked" : "top_k");
}

static int run_top_k(const struct ct_launch *l)
{
    struct gpu_top_k a = choice_of(l, &l->in[0]);
    size_t each = rank_bytes(l->op, &l->in[0]), warps = THREADS / 32;

    a.bias = l->ins > BIAS ? l->in[BIAS].data : NULL;
    a.weights = l->out[0].data;
    a.ids = l->out[1].data;
    if (!each)
        return gpu_launch_rows(l, ct_cuda_function(l, 0), a.rows, &a);
    while (warps > 1 && warps * each > SHARED)
        warps /= 2;
    return gpu_launch(l, 0,
                      (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.rows, (int64_t)warps), 1, 1},
                      (struct ct_cuda_size){(unsigned)warps * 32, 1, 1}, warps * each, &a);
}

static int prepare_top_k_grad(struct ct_prepare *p)
{
    return gpu_prepare(p, "top_k_grad");
}

static int run_top_k_grad(const struct ct_launch *l)
{
    struct gpu_top_k a = choice_of(l, &l->in[LOGITS]);

    a.k = ct_columns(&l->in[DWEIGHTS]);
    a.dweights = l->in[DWEIGHTS].data;
    a.chosen = l->in[CHOSEN].data;
    a.dx = l->out[0].data;
    a.out_kind = ct_cuda_float_of(l->out[0].dtype);
    if (l->ins > LOAD) {
        a.load = l->in[LOAD].data;
        a.tokens = l->in[LOGITS].shape[1];
        a.balance = (float)((const struct ct_top_k *)l->op->attrs)->balance;
    }
    return gpu_launch_rows(l, ct_cuda_function(l, 0), a.rows, &a);
}

/* ---- loads: a block for each expert ---- */

static bool accepts_load(const struct ct_prepare *p)
{
    return p->out[0].dtype == CT_F32;
}

static int prepare_loads(struct ct_prepare *p)
{
    return gpu_prepare(p, "@");
}

static int launch_loads(const struct ct_launch *l, struct gpu_expert_load a)
{
    a.ids = l->in[0].data;
    a.experts = ct_columns(&l->in[1]);
    a.k = ct_columns(&l->in[0]);
    a.choices = ct_tensor_count(&l->in[0]) / a.sequences;
    a.fault = ct_cuda_of(l->device)->fault;
    return gpu_launch(l, 0, (struct ct_cuda_size){(unsigned)a.experts, 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

static int run_load(const struct ct_launch *l)
{
    return launch_loads(l, (struct gpu_expert_load){.load = l->out[0].data,
                                                    .total = l->out[1].data,
                                                    .sequences = l->in[0].shape[0]});
}

static int run_excess(const struct ct_launch *l)
{
    return launch_loads(l, (struct gpu_expert_load){.total = l->out[0].data, .sequences = 1});
}

const struct ct_kernel gpu_top_k_kernels[] = {
    CT_KERNEL("top_k", "rows", 0, accepts_top_k, prepare_top_k, run_top_k),
    CT_KERNEL("top_k_grad", "rows", 0, accepts_top_k_grad, prepare_top_k_grad, run_top_k_grad),
    CT_KERNEL("balanced_top_k_grad", "rows", 0, accepts_top_k_grad, prepare_top_k_grad,
              run_top_k_grad),
    CT_KERNEL("expert_load", "blocks", 0, accepts_load, prepare_loads, run_load),
    CT_KERNEL("expert_excess", "blocks", 0, accepts_load, prepare_loads, run_excess),
    {0}};
