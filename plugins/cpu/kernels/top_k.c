/*
 * The choice of experts for each token.
 *
 * Ids are those of the reference, which compares in double. Without a bias it compares logits: here
 * as integers, since this device's threads take denormals for zero. With a bias or groups, scores
 * are computed in double. Ranks become integers in the same order, and one pass over them keeps a
 * short list of the highest. A row is one thread's, so results do not depend on their number.
 */
#include <omp.h>

#include <ctitan/op_author.h>

#include "../cpu.h"
#include "../loops.h"
#include "double.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "top_k.h"

/* ---- ranks ---- */

/* Integers in the order of the numbers with these bits: zeros are equal, NaN is like -infinity. */
CPU_INLINE int32_t order_of_bits(uint32_t bits)
{
    int32_t magnitude = (int32_t)(bits & 0x7fffffff);

    if (magnitude > 0x7f800000)
        return -0x7f800000;
    return (int32_t)bits < 0 ? -magnitude : magnitude;
}

CPU_INLINE int64_t order_of(double x)
{
    int64_t bits, magnitude;

    memcpy(&bits, &x, sizeof(bits));
    magnitude = bits & INT64_MAX;
    if (magnitude > 0x7ffLL << 52)
        return -(0x7ffLL << 52);
    return bits < 0 ? -magnitude : magnitude;
}

CPU_INLINE void order_logits(enum ct_dtype dtype, const void *x, int64_t n, int64_t *rank)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;

        if (dtype == CT_F32)
            memcpy(&bits, (const float *)x + i, sizeof(bits));
        else
            bits = (uint32_t)((const uint16_t *)x)[i] << 16;
        rank[i] = order_of_bits(bits);
    }
}

/* The entries of highest rank, in order; of equal ones, those offered first. */
struct entry {
    int64_t rank, index;
    double score; /* once chosen */
};

static void list_clear(struct entry *list, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        list[i] = (struct entry){INT64_MIN, 0, 0};
}

CPU_INLINE void list_offer(struct entry *list, int64_t count, int64_t rank, int64_t index)
{
    int64_t at = count - 1;

    if (rank <= list[at].rank)
        return;
    for (; at > 0 && list[at - 1].rank < rank; at--)
        list[at] = list[at - 1];
    list[at] = (struct entry){rank, index, 0};
}

/* ---- scores in double ---- */

/* e^a, 1 ulp, for a in [-700, 700]: what lies outside is taken for the nearest end. */
CPU_INLINE vd exp_of(vd a)
{
    static const double inverse[] = {1. / 2,       1. / 6,        1. / 24,        1. / 120,
                                     1. / 720,     1. / 5040,     1. / 40320,     1. / 362880,
                                     1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800};
    const vd least = (vd){0} - 700.0, most = (vd){0} + 700.0;
    vl below = (a < least), above = (a > most);
    vd whole, r, p;

    a = (vd)(((vl)least & below) | ((vl)most & above) | ((vl)a & ~(below | above)));
    whole = a * 1.4426950408889634 + 0x1.8p52;
    r = whole - 0x1.8p52;
    r = (a - r * 0x1.62e42fefa0000p-1) - r * 0x1.cf79abc9e3b3ap-40;
    p = (vd){0} + inverse[CT_COUNT(inverse) - 1];
    for (int i = (int)CT_COUNT(inverse) - 2; i >= 0; i--)
        p = p * r + inverse[i];
    p = p * r * r + r + 1.0;
    return p * (vd)(((vl)whole + 1023) << 52);
}

/* n is rounded up to vectors in `score`. Returns the sum of the n. */
CPU_INLINE double exponentials(enum ct_dtype dtype, const void *x, int64_t n, double largest,
                               double *score)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf a = v_get(dtype, x, i, n);

        for (int half = 0; half < 2; half++) {
            vd e = exp_of(v_double(a, half) - largest);

            memcpy(score + i + half * CPU_HALF, &e, sizeof(e));
        }
    }
    for (int64_t i = 0; i < n; i++)
        sum += score[i];
    return sum;
}

CPU_INLINE void sigmoids(enum ct_dtype dtype, const void *x, int64_t n, double *score)
{
    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf a = v_get(dtype, x, i, n);

        for (int half = 0; half < 2; half++) {
            vd s = 1.0 / (1.0 + exp_of(-v_double(a, half)));

            memcpy(score + i + half * CPU_HALF, &s, sizeof(s));
        }
    }
}

CPU_INLINE void scores(const struct ct_top_k *a, enum ct_dtype dtype, const void *x, int64_t n,
                       double *score)
{
    double sum;
    float largest;

    if (a->scores == CT_SCORES_SIGMOID) {
        sigmoids(dtype, x, n, score);
        return;
    }
    CPU_ISA(cpu_sum_exp)(dtype, x, n, &largest);
    sum = exponentials(dtype, x, n, (double)largest, score);
    for (int64_t i = 0; i < n; i++)
        score[i] /= sum;
}

/* ---- the choice ---- */

struct state {
    size_t lane_bytes, score, sum, rank, chosen, best, open; /* of a thread's part of workspace */
};

struct choice {
    const struct ct_top_k *how;
    const float *bias;   /* NULL: none */
    double *score, *sum; /* sum: score + bias */
    int64_t *rank;
    struct entry *chosen, *best; /* experts; groups */
    bool *open;                  /* by group */
};

static bool is_biased(const bool *present, int ins)
{
    return ins > 1 && present[1];
}

bool CPU_ISA(cpu_top_k_accepts)(const struct ct_prepare *p)
{
    return cpu_is_compute_dtype(p->in[0].dtype) && p->out[0].dtype == CT_F32 &&
           p->out[1].dtype == CT_I32 && ct_tensor_is_dense(&p->out[0]) &&
           ct_tensor_is_dense(&p->out[1]) &&
           (!is_biased(p->present, p->ins) ||
            (p->in[1].dtype == CT_F32 && ct_tensor_is_dense(&p->in[1])));
}

int CPU_ISA(cpu_top_k_prepare)(struct ct_prepare *p)
{
    struct state *s = ct_arena_new(p->arena, struct state);
    const struct ct_top_k *how = p->op->attrs;
    size_t n = (size_t)ct_columns(&p->in[0]), padded = n + CPU_LANES;
    bool scored = how->groups > 0 || is_biased(p->present, p->ins);

    s->score = cpu_carve(&s->lane_bytes, scored ? padded * sizeof(double) : 0);
    s->sum = cpu_carve(&s->lane_bytes, scored ? n * sizeof(double) : 0);
    s->rank = cpu_carve(&s->lane_bytes, n * sizeof(int64_t));
    s->chosen = cpu_carve(&s->lane_bytes, (size_t)how->k * sizeof(struct entry));
    s->best = cpu_carve(&s->lane_bytes, (size_t)how->groups_chosen * sizeof(struct entry));
    s->open = cpu_carve(&s->lane_bytes, (size_t)how->groups * sizeof(bool));
    p->workspace = s->lane_bytes * (size_t)cpu_threads();
    p->state = s;
    return 0;
}

static struct choice choice_of(const struct ct_launch *l)
{
    const struct state *s = l->state;
    char *lane = (char *)l->workspace + s->lane_bytes * (size_t)omp_get_thread_num();

    return (struct choice){.how = l->op->attrs,
                           .bias = l->ins > 1 ? l->in[1].data : NULL,
                           .score = (double *)(void *)(lane + s->score),
                           .sum = (double *)(void *)(lane + s->sum),
                           .rank = (int64_t *)(void *)(lane + s->rank),
                           .chosen = (struct entry *)(void *)(lane + s->chosen),
                           .best = (struct entry *)(void *)(lane + s->best),
                           .open = (bool *)(lane + s->open)};
}

/* A group's rank is the sum of its two largest. */
static void choose_groups(const struct choice *c, int64_t n)
{
    int64_t groups = c->how->groups, each = n / groups;

    list_clear(c->best, c->how->groups_chosen);
    for (int64_t g = 0; g < groups; g++) {
        double first = -INFINITY, second = -INFINITY;

        for (int64_t i = g * each; i < (g + 1) * each; i++) {
            double x = c->sum[i], less = x > first ? first : x;

            second = less > second ? less : second;
            first = x > first ? x : first;
        }
        list_offer(c->best, c->how->groups_chosen, order_of(first + second), g);
        c->open[g] = false;
    }
    for (int64_t i = 0; i < c->how->groups_chosen; i++)
        c->open[c->best[i].index] = true;
}

static void choose(const struct choice *c, int64_t n)
{
    int64_t groups = c->how->groups > 0 ? c->how->groups : 1, each = n / groups;

    list_clear(c->chosen, c->how->k);
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = g * each; (c->how->groups == 0 || c->open[g]) && i < (g + 1) * each; i++)
            list_offer(c->chosen, c->how->k, c->rank[i], i);
}

static void score_chosen(const struct choice *c, enum ct_dtype dtype, const void *x, int64_t n)
{
    float largest = 0, sum = 1;

    if (c->how->scores == CT_SCORES_SOFTMAX)
        sum = CPU_ISA(cpu_sum_exp)(dtype, x, n, &largest);
    for (int64_t k = 0; k < c->how->k; k++) {
        float at = top_k_logit(dtype, x, c->chosen[k].index);

        c->chosen[k].score = (double)(c->how->scores == CT_SCORES_SOFTMAX ? expf(at - largest) / sum
                                                                          : 1 / (1 + expf(-at)));
    }
}

CPU_INLINE void rank_row(const struct choice *c, enum ct_dtype dtype, const void *x, int64_t n)
{
    if (c->bias || c->how->groups > 0) {
        scores(c->how, dtype, x, n, c->score);
        for (int64_t i = 0; i < n; i++)
            c->sum[i] = c->score[i] + (c->bias ? (double)c->bias[i] : 0);
    }
    if (c->how->groups > 0)
        choose_groups(c, n);
    if (!c->bias)
        order_logits(dtype, x, n, c->rank);
    for (int64_t i = 0; c->bias && i < n; i++)
        c->rank[i] = order_of(c->sum[i]);
}

CPU_INLINE void choose_row(const struct choice *c, enum ct_dtype dtype, const void *x, int64_t n,
                           float *weights, int32_t *ids)
{
    bool scored = c->bias || c->how->groups > 0;
    double sum = 0, factor;

    rank_row(c, dtype, x, n);
    choose(c, n);
    for (int64_t k = 0; scored && k < c->how->k; k++)
        c->chosen[k].score = c->score[c->chosen[k].index];
    if (!scored)
        score_chosen(c, dtype, x, n);
    for (int64_t k = 0; k < c->how->k; k++)
        sum += c->chosen[k].score;
    factor = top_k_factor(c->how, sum);
    for (int64_t k = 0; k < c->how->k; k++) {
        ids[k] = (int32_t)c->chosen[k].index;
        weights[k] = (float)(c->chosen[k].score * factor);
    }
}

int CPU_ISA(cpu_top_k_run)(const struct ct_launch *l)
{
    int64_t rows = ct_rows(&l->in[0]), n = ct_columns(&l->in[0]), k = ct_columns(&l->out[0]);
    const struct ct_tensor *x = &l->in[0];

#pragma omp parallel for schedule(static) if (cpu_worth_threads(rows * n))
    for (int64_t row = 0; row < rows; row++) {
        struct choice c = choice_of(l);
        float *weights = (float *)l->out[0].data + row * k;
        int32_t *ids = (int32_t *)l->out[1].data + row * k;

        if (x->dtype == CT_F32)
            choose_row(&c, CT_F32, top_k_row(x, row), n, weights, ids);
        else
            choose_row(&c, CT_BF16, top_k_row(x, row), n, weights, ids);
    }
    return 0;
}
