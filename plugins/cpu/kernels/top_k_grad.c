/*
 * The gradient of the choice of experts.
 */
#include <omp.h>

#include <ctitan/op_author.h>

#include "../cpu.h"
#include "../experts.h"
#include "../loops.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "top_k.h"

enum { DWEIGHTS, IDS, X, LOAD };

static bool accepts_gradient(const struct ct_prepare *p)
{
    return cpu_is_compute_dtype(p->in[X].dtype) && cpu_is_compute_dtype(p->out[0].dtype) &&
           p->in[DWEIGHTS].dtype == CT_F32 && p->in[IDS].dtype == CT_I32 &&
           ct_tensor_is_dense(&p->in[DWEIGHTS]) && ct_tensor_is_dense(&p->in[IDS]) &&
           (p->ins <= LOAD || (p->in[LOAD].dtype == CT_F32 && ct_tensor_is_dense(&p->in[LOAD])));
}

/* Two rows of numbers for each thread: scores, and their gradients. */
static size_t lane_floats(int64_t n)
{
    return 2 * ((size_t)n + CPU_LANES);
}

static int prepare_gradient(struct ct_prepare *p)
{
    p->workspace = lane_floats(ct_columns(&p->in[X])) * sizeof(float) * (size_t)cpu_threads();
    return 0;
}

bool CPU_ISA(cpu_top_k_grad_accepts)(const struct ct_prepare *p)
{
    return accepts_gradient(p);
}

int CPU_ISA(cpu_top_k_grad_prepare)(struct ct_prepare *p)
{
    return prepare_gradient(p);
}

bool CPU_ISA(cpu_balanced_top_k_grad_accepts)(const struct ct_prepare *p)
{
    return accepts_gradient(p);
}

int CPU_ISA(cpu_balanced_top_k_grad_prepare)(struct ct_prepare *p)
{
    return prepare_gradient(p);
}

/* e^-|x| loses nothing on either side of 0. */
CPU_INLINE vf sigmoid(vf x, vf *slope)
{
    vf e = v_exp(-(vf)((vi)x & 0x7fffffff)), s = 1.0f / (1.0f + e);

    *slope = e * s * s;
    return v_select(x < 0, e * s, s);
}

CPU_INLINE void score_row(bool softmax, enum ct_dtype dtype, const void *x, int64_t n, float *score)
{
    float largest = 0, scale = 1;

    if (softmax)
        scale = 1 / CPU_ISA(cpu_sum_exp)(dtype, x, n, &largest);
    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf a = v_get(dtype, x, i, n), slope;

        v_store(score + i, softmax ? v_exp(a - largest) * scale : sigmoid(a, &slope));
    }
}

/* One token's operands. */
struct row {
    const struct ct_top_k *how;
    const float *dw, *load; /* load NULL: none */
    const int32_t *ids;
    const void *x;
    void *dx;
    enum ct_dtype out;
    int64_t n, k;
    float *score, *dp; /* dp: of the chosen */
};

/* At the chosen, p dp: of softmax, normalised. Weights are computed from the chosen logits: all
   their scores may be too small for float32. */
static void normalised_gradients(const struct row *r, enum ct_dtype dtype)
{
    float largest = -INFINITY, sum = 0, mean = 0;

    for (int64_t i = 0; i < r->k; i++)
        largest = fmaxf(largest, top_k_logit(dtype, r->x, r->ids[i]));
    for (int64_t i = 0; i < r->k; i++) {
        float e = expf(top_k_logit(dtype, r->x, r->ids[i]) - largest);

        sum += e;
        mean += e * r->dw[i];
    }
    mean /= sum;
    for (int64_t i = 0; i < r->k; i++) {
        float w = expf(top_k_logit(dtype, r->x, r->ids[i]) - largest) / sum;

        r->dp[r->ids[i]] += (float)top_k_scale(r->how) * w * (r->dw[i] - mean);
    }
}

/* At the chosen, p dp: of softmax; dp: of sigmoids. */
static void plain_gradients(const struct row *r, bool softmax)
{
    double sum = 0, mean = 0, factor;

    for (int64_t i = 0; i < r->k; i++) {
        sum += (double)r->score[r->ids[i]];
        mean += (double)r->dw[i] * (double)r->score[r->ids[i]];
    }
    factor = top_k_factor(r->how, sum);
    mean = r->how->normalised ? mean * factor / top_k_scale(r->how) : 0;
    for (int64_t i = 0; i < r->k; i++)
        r->dp[r->ids[i]] +=
            (float)(((double)r->dw[i] - mean) * factor) * (softmax ? r->score[r->ids[i]] : 1);
}

/* dx = p (load - dot) + p dp */
static void softmax_row(const struct row *r)
{
    vf total = v_set(0), balance = v_set((float)r->how->balance);
    float dot;

    for (int64_t i = 0; i < r->n; i += CPU_LANES) {
        vf load = r->load ? balance * v_get(CT_F32, r->load, i, r->n) : v_set(0);

        total += v_get(CT_F32, r->dp, i, r->n) + load * v_get(CT_F32, r->score, i, r->n);
    }
    dot = v_sum(total);
    for (int64_t i = 0; i < r->n; i += CPU_LANES) {
        vf load = r->load ? balance * v_get(CT_F32, r->load, i, r->n) : v_set(0);

        v_put(r->out, r->dx, i, r->n,
              v_get(CT_F32, r->score, i, r->n) * (load - dot) + v_get(CT_F32, r->dp, i, r->n));
    }
}

CPU_INLINE void gradient_row(bool softmax, enum ct_dtype dtype, const struct row *r)
{
    score_row(softmax, dtype, r->x, r->n, r->score);
    memset(r->dp, 0, (size_t)r->n * sizeof(*r->dp));
    if (softmax && r->how->normalised)
        normalised_gradients(r, dtype);
    else
        plain_gradients(r, softmax);
    if (softmax)
        softmax_row(r);
    for (int64_t i = 0; !softmax && i < r->n; i += CPU_LANES) {
        vf slope;

        sigmoid(v_get(dtype, r->x, i, r->n), &slope);
        v_put(r->out, r->dx, i, r->n, slope * v_get(CT_F32, r->dp, i, r->n));
    }
}

static void gradient_of_row(const struct row *r, enum ct_dtype dtype)
{
    bool softmax = r->how->scores == CT_SCORES_SOFTMAX;

    if (softmax && dtype == CT_F32)
        gradient_row(true, CT_F32, r);
    else if (softmax)
        gradient_row(true, CT_BF16, r);
    else if (dtype == CT_F32)
        gradient_row(false, CT_F32, r);
    else
        gradient_row(false, CT_BF16, r);
}

static int run_gradient(const struct ct_launch *l)
{
    const struct ct_tensor *x = &l->in[X], *dx = &l->out[0];
    int64_t rows = ct_rows(x), n = ct_columns(x), k = ct_columns(&l->in[DWEIGHTS]);
    int rc = cpu_experts_check(l->in[IDS].data, rows * k, n);

    if (rc < 0)
        return rc;
#pragma omp parallel for schedule(static) if (cpu_worth_threads(rows * n))
    for (int64_t row = 0; row < rows; row++) {
        float *lane = (float *)l->workspace + lane_floats(n) * (size_t)omp_get_thread_num();
        struct row r = {.how = l->op->attrs,
                        .dw = (const float *)l->in[DWEIGHTS].data + row * k,
                        .ids = (const int32_t *)l->in[IDS].data + row * k,
                        .x = top_k_row(x, row),
                        .dx = top_k_row(dx, row),
                        .out = dx->dtype,
                        .n = n,
                        .k = k,
                        .score = lane,
                        .dp = lane + lane_floats(n) / 2};

        if (l->ins > LOAD)
            r.load = (const float *)l->in[LOAD].data + row / x->shape[1] * n;
        gradient_of_row(&r, x->dtype);
    }
    return 0;
}

int CPU_ISA(cpu_top_k_grad_run)(const struct ct_launch *l)
{
    return run_gradient(l);
}

int CPU_ISA(cpu_balanced_top_k_grad_run)(const struct ct_launch *l)
{
    return run_gradient(l);
}
