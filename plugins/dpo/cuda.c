/*
 * The kernels for CUDA.
 */
#include <ctitan/lib/cuda_tokens.h>
#include <ctitan/op_author.h>

#include "dpo.h"
#include "dpo_cuda.h"

CT_CUDA_CODE(dpo_cuda_code);

/* ---- log-probabilities ---- */

static int prepare_logp(struct ct_prepare *p)
{
    return ct_cuda_prepare_tokens(p, &dpo_cuda_code, 0, 1,
                                  CT_CUDA_NAMES("dpo_logp_rows_*", "dpo_logp_sums"));
}

static int run_logp(const struct ct_launch *l)
{
    struct dpo_logp_call a = {
        .in = ct_cuda_tokens(l, 0), .lse = l->out[1].data, .logp = l->workspace};
    int rc = ct_cuda_launch_tokens(l, 0, &a);

    return rc < 0 ? rc : ct_cuda_sum_tokens(l, 0, 1, l->in[0].shape[0]);
}

static int prepare_logp_grad(struct ct_prepare *p)
{
    return ct_cuda_prepare_tokens(p, &dpo_cuda_code, 1, 0, CT_CUDA_NAMES("dpo_logp_grad_rows_*"));
}

static int run_logp_grad(const struct ct_launch *l)
{
    struct dpo_logp_call a = {.in = ct_cuda_tokens(l, 1),
                              .lse = l->in[3].data,
                              .dlogp = l->in[0].data,
                              .dlogits = l->out[0].data,
                              .tokens = l->in[1].shape[1]};

    return ct_cuda_launch_tokens(l, 1, &a);
}

static bool accepts_logp(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && p->out[0].dtype == CT_F32 &&
           p->out[1].dtype == CT_F32;
}

static bool accepts_logp_grad(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[1].dtype) && p->in[0].dtype == CT_F32 &&
           p->in[3].dtype == CT_F32 && p->out[0].dtype == p->in[1].dtype;
}

/* ---- losses ---- */

/* Pairs and sums are float32; numbers may have any floating dtype. */
static bool accepts_pairs(const struct ct_prepare *p)
{
    for (int i = 0; i < p->ins; i++)
        if (p->present[i] && p->in[i].dtype != CT_F32 &&
            (p->in[i].ndim || !(p->in[i].dtype == CT_F64 || p->in[i].dtype == CT_BF16)))
            return false;
    for (int i = 0; i < p->outs; i++)
        if (p->out[i].dtype != CT_F32)
            return false;
    return true;
}

/* first: of the operands, behind the gradient of the loss. */
static struct dpo_pairs_call call_of(const struct ct_launch *l, int first)
{
    struct dpo_pairs_call a = {.policy = l->in[first].data, .pairs = l->in[first].shape[0]};

    if (first) {
        a.dloss = l->in[0].data;
        a.dloss_kind = ct_cuda_float_of(l->in[0].dtype);
    }
    for (int i = 0; i < l->outs; i++)
        a.out[i] = l->out[i].data;
    return a;
}

static const float *pairs_at(const struct ct_launch *l, int i)
{
    return ct_op_input(l->op, i) ? l->in[i].data : NULL;
}

static int prepare_pairs(struct ct_prepare *p)
{
    return ct_cuda_prepare(p, &dpo_cuda_code, CT_F32, CT_CUDA_NAMES("dpo_@"));
}

static int launch(const struct ct_launch *l, const struct dpo_pairs_call *a)
{
    return ct_cuda_launch(l, ct_cuda_function(l, 0), (struct ct_cuda_size){1, 1, 1},
                          (struct ct_cuda_size){CT_CUDA_TOKEN_THREADS, 1, 1}, 0, a);
}

static int launch_preference(const struct ct_launch *l, int first)
{
    struct dpo_pairs_call a = call_of(l, first);

    a.reference = pairs_at(l, first + 1);
    a.tokens = pairs_at(l, first + 2);
    a.preference = *(const struct dpo_preference *)l->op->attrs;
    return launch(l, &a);
}

static int run_preference(const struct ct_launch *l)
{
    return launch_preference(l, 0);
}

static int run_preference_grad(const struct ct_launch *l)
{
    return launch_preference(l, 1);
}

static int run_divergence(const struct ct_launch *l)
{
    struct dpo_pairs_call a = call_of(l, 0);

    a.reference = l->in[1].data;
    return launch(l, &a);
}

/* Operands: policy, reference, desirable, sum. */
static int launch_kto(const struct ct_launch *l, int first)
{
    struct dpo_pairs_call a = call_of(l, first);

    a.reference = l->in[first + 1].data;
    a.tokens = l->in[first + 2].data;
    a.sum = l->in[first + 3].data;
    a.sum_kind = ct_cuda_float_of(l->in[first + 3].dtype);
    a.kto = *(const struct dpo_kto *)l->op->attrs;
    return launch(l, &a);
}

static int run_kto(const struct ct_launch *l)
{
    return launch_kto(l, 0);
}

static int run_kto_grad(const struct ct_launch *l)
{
    return launch_kto(l, 1);
}

enum { PAIRS = 3, TRAINED_TOKENS }; /* inputs of orpo and of its gradient */

static int launch_orpo(const struct ct_launch *l, int first)
{
    struct dpo_pairs_call a = call_of(l, first);

    a.tokens = l->in[first + 1].data;
    a.trained = first ? NULL : l->in[2].data;
    a.sum = l->in[PAIRS].data;
    a.sum_kind = ct_cuda_float_of(l->in[PAIRS].dtype);
    a.trained_tokens = l->in[TRAINED_TOKENS].data;
    a.trained_kind = ct_cuda_float_of(l->in[TRAINED_TOKENS].dtype);
    a.orpo = *(const struct dpo_orpo *)l->op->attrs;
    return launch(l, &a);
}

static int run_orpo(const struct ct_launch *l)
{
    return launch_orpo(l, 0);
}

static int run_orpo_grad(const struct ct_launch *l)
{
    return launch_orpo(l, 1);
}

const struct ct_kernel dpo_cuda_kernels[] = {
    CT_KERNEL("sequence_logp", "rows", 0, accepts_logp, prepare_logp, run_logp),
    CT_KERNEL("sequence_logp_grad", "rows", 0, accepts_logp_grad, prepare_logp_grad, run_logp_grad),
    CT_KERNEL("preference", "pairs", 0, accepts_pairs, prepare_pairs, run_preference),
    CT_KERNEL("preference_grad", "pairs", 0, accepts_pairs, prepare_pairs, run_preference_grad),
    CT_KERNEL("divergence", "pairs", 0, accepts_pairs, prepare_pairs, run_divergence),
    CT_KERNEL("kto", "pairs", 0, accepts_pairs, prepare_pairs, run_kto),
    CT_KERNEL("kto_grad", "pairs", 0, accepts_pairs, prepare_pairs, run_kto_grad),
    CT_KERNEL("orpo", "pairs", 0, accepts_pairs, prepare_pairs, run_orpo),
    CT_KERNEL("orpo_grad", "pairs", 0, accepts_pairs, prepare_pairs, run_orpo_grad),
    {0}};
