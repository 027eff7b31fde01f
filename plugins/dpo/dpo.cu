/*
 * Log-probabilities of sequences: a block for each row of logits, then one for each sequence's sum.
 * Losses of pairs: one block, in float64, as the references compute them.
 */
#include <ctitan/lib/cuda/tokens.cuh>

#define DPO_FUNCTION DEVICE
#include "losses.h"

#include "dpo_cuda.h"

/* ---- log-probabilities ---- */

template <typename T> DEVICE void logp_rows(const dpo_logp_call &a)
{
    int64_t row = blockIdx.x;
    const T *x = logits_at<T>(a.in, row);
    double lse = block_log_sum(a.in.vocabulary, 1.0, logits_of<T>{x});
    int32_t label = label_at(a.in, row);

    if (threadIdx.x != 0)
        return;
    a.lse[row] = (float)lse;
    a.logp[row] = label == CT_CUDA_TOKEN_MASKED ? 0.0 : to_float(x[label]) - lse;
}

template <typename T> DEVICE void logp_grad_rows(const dpo_logp_call &a)
{
    int64_t row = blockIdx.x;
    const T *x = logits_at<T>(a.in, row);
    T *to = (T *)a.dlogits + row * a.in.vocabulary;
    int32_t label = a.in.labels[row];
    float scale = label == CT_CUDA_TOKEN_MASKED ? 0.0f : a.dlogp[row / a.tokens];
    float lse = a.lse[row];

    for (int64_t n = threadIdx.x; n < a.in.vocabulary; n += blockDim.x) {
        float p = scale == 0 ? 0.0f : expf(to_float(x[n]) - lse);

        to[n] = from_float<T>(scale * ((n == label) - p));
    }
}

#define ROWS(T, dtype)                                                                             \
    KERNEL(dpo_logp_rows_##dtype, dpo_logp_call, CT_CUDA_TOKEN_THREADS)                            \
    {                                                                                              \
        logp_rows<T>(a);                                                                           \
    }                                                                                              \
    KERNEL(dpo_logp_grad_rows_##dtype, dpo_logp_call, CT_CUDA_TOKEN_THREADS)                       \
    {                                                                                              \
        logp_grad_rows<T>(a);                                                                      \
    }
FOR_DTYPES(ROWS)

KERNEL(dpo_logp_sums, ct_cuda_token_sums, CT_CUDA_TOKEN_THREADS)
{
    sum_tokens(a);
}

/* ---- losses ---- */

/* Sums of what each thread has, to the outputs. */
template <int N> DEVICE void put_sums(const dpo_pairs_call &a, const double (&mine)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) {
        double sum = block_sum(mine[k]);

        if (threadIdx.x == 0)
            *a.out[k] = (float)sum;
    }
}

DEVICE double reward(const dpo_pairs_call &a, int64_t answer)
{
    double d = (double)a.policy[answer] - (a.reference ? (double)a.reference[answer] : 0.0);

    return a.tokens ? d / a.tokens[answer] : d;
}

KERNEL(dpo_preference, dpo_pairs_call, CT_CUDA_TOKEN_THREADS)
{
    double sum[4] = {0};

    for (int64_t i = threadIdx.x; i < a.pairs; i += blockDim.x) {
        double chosen = reward(a, 2 * i), rejected = reward(a, 2 * i + 1);

        sum[0] += dpo_loss_of(&a.preference, chosen - rejected);
        sum[1] += a.preference.beta * chosen;
        sum[2] += a.preference.beta * rejected;
        sum[3] += chosen > rejected;
    }
    put_sums(a, sum);
}

KERNEL(dpo_preference_grad, dpo_pairs_call, CT_CUDA_TOKEN_THREADS)
{
    double dloss = load_scalar(a.dloss, a.dloss_kind);

    for (int64_t i = threadIdx.x; i < a.pairs; i += blockDim.x) {
        double d = dloss * dpo_slope_of(&a.preference, reward(a, 2 * i) - reward(a, 2 * i + 1));

        a.out[0][2 * i] = (float)(a.tokens ? d / a.tokens[2 * i] : d);
        a.out[0][2 * i + 1] = (float)-(a.tokens ? d / a.tokens[2 * i + 1] : d);
    }
}

KERNEL(dpo_divergence, dpo_pairs_call, CT_CUDA_TOKEN_THREADS)
{
    double sum[1] = {0};

    for (int64_t i = threadIdx.x; i < a.pairs; i += blockDim.x)
        sum[0] += (double)a.policy[2 * i + 1] - (double)a.reference[2 * i + 1];
    put_sums(a, sum);
}

/* a.tokens: above 0 for desirable answers. */
struct kto_answer {
    double reward, weight, sign, value;
};

DEVICE kto_answer kto_answer_at(const dpo_pairs_call &a, int64_t i)
{
    double z = fmax(0.0, load_scalar(a.sum, a.sum_kind) / a.kto.answers);
    double x = (double)a.policy[2 * i] - (double)a.reference[2 * i];
    bool desirable = a.tokens[2 * i] > 0;
    double sign = desirable ? 1 : -1;

    return {a.kto.beta * x, desirable ? a.kto.desirable : a.kto.undesirable, sign,
            dpo_sigmoid(sign * a.kto.beta * (x - z))};
}

KERNEL(dpo_kto, dpo_pairs_call, CT_CUDA_TOKEN_THREADS)
{
    double sum[3] = {0};

    for (int64_t i = threadIdx.x; i < a.pairs; i += blockDim.x) {
        kto_answer answer = kto_answer_at(a, i);

        sum[0] += answer.weight * (1 - answer.value);
        sum[1] += answer.sign > 0 ? answer.reward : 0.0;
        sum[2] += answer.sign > 0 ? 0.0 : answer.reward;
    }
    put_sums(a, sum);
}

KERNEL(dpo_kto_grad, dpo_pairs_call, CT_CUDA_TOKEN_THREADS)
{
    double dloss = load_scalar(a.dloss, a.dloss_kind);

    for (int64_t i = threadIdx.x; i < a.pairs; i += blockDim.x) {
        kto_answer answer = kto_answer_at(a, i);

        a.out[0][2 * i] = (float)(-dloss * answer.weight * answer.sign * a.kto.beta * answer.value *
                                  (1 - answer.value));
        a.out[0][2 * i + 1] = 0;
    }
}

/* Log-odds of a pair: mean log-probabilities, and their difference. */
struct orpo_odds {
    double chosen, rejected, x;
};

DEVICE orpo_odds odds_at(const dpo_pairs_call &a, int64_t i)
{
    double chosen = (double)a.policy[2 * i] / a.tokens[2 * i];
    double rejected = (double)a.policy[2 * i + 1] / a.tokens[2 * i + 1];

    return {chosen, rejected, chosen - rejected - log(dpo_rest(chosen)) + log(dpo_rest(rejected))};
}

DEVICE double orpo_share(const dpo_pairs_call &a)
{
    return load_scalar(a.sum, a.sum_kind) / load_scalar(a.trained_tokens, a.trained_kind);
}

KERNEL(dpo_orpo, dpo_pairs_call, CT_CUDA_TOKEN_THREADS)
{
    double sum[6] = {0}, share = orpo_share(a), beta = a.orpo.beta;

    for (int64_t i = threadIdx.x; i < a.pairs; i += blockDim.x) {
        orpo_odds o = odds_at(a, i);
        double trained = a.trained[2 * i];

        sum[0] += -trained * share + beta * dpo_softplus(o.x);
        sum[1] -= trained;
        sum[2] += o.x;
        sum[3] += beta * o.chosen;
        sum[4] += beta * o.rejected;
        sum[5] += o.chosen > o.rejected;
    }
    put_sums(a, sum);
}

KERNEL(dpo_orpo_grad, dpo_pairs_call, CT_CUDA_TOKEN_THREADS)
{
    double dloss = load_scalar(a.dloss, a.dloss_kind), share = orpo_share(a);

    for (int64_t i = threadIdx.x; i < a.pairs; i += blockDim.x) {
        orpo_odds o = odds_at(a, i);
        double d = -dloss * a.orpo.beta * dpo_sigmoid(-o.x);

        a.out[0][2 * i] = (float)(d * dpo_odds_slope(o.chosen) / a.tokens[2 * i]);
        a.out[0][2 * i + 1] = (float)(-d * dpo_odds_slope(o.rejected) / a.tokens[2 * i + 1]);
        a.out[1][2 * i] = (float)(-dloss * share);
        a.out[1][2 * i + 1] = 0;
    }
}
