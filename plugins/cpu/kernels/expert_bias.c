/*
 * Biases of the chosen experts: sums of a token's, dot products with its gradient, and sums of
 * gradients by expert.
 *
 * The last first links the choices of each expert into a list, in order. Threads then share experts
 * and columns: each is summed in float32 and written once. So no result depends on the number of
 * threads.
 */
#include <omp.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

#define STRIP (4 * CPU_LANES) /* columns that are summed at once */
#define COLUMNS 512           /* of an expert's gradient, a thread's share */

/* The choices, and the biases of the experts that lie here. */
struct choices {
    const int32_t *ids;
    int64_t count, k, n;
    int64_t first, experts, all; /* all: of all ranks */
};

/* at: the input ids, in front of the biases. */
static struct choices choices_of(const struct ct_launch *l, int at)
{
    const struct ct_tensor *ids = &l->in[at], *bias = &l->in[at + 1];

    return (struct choices){.ids = ids->data,
                            .count = ct_tensor_count(ids),
                            .k = ids->shape[ids->ndim - 1],
                            .n = bias->shape[1],
                            .first = ct_launch_offset(l, l->op->in[at + 1], 0),
                            .experts = bias->shape[0],
                            .all = l->op->in[at + 1]->shape[0]};
}

/* The expert of choice i, among this rank's experts; -1: it is none of them. */
static int64_t expert_of(const struct choices *c, int64_t i)
{
    int64_t e = c->ids[i] - c->first;

    return c->ids[i] >= 0 && e >= 0 && e < c->experts ? e : -1;
}

static int check_choices(const struct choices *c)
{
    for (int64_t i = 0; i < c->count; i++)
        if (c->ids[i] < CT_NO_EXPERT || c->ids[i] >= c->all)
            return ct_fail(CT_EINVAL, "expert %d at position %lld is not below %lld", c->ids[i],
                           (long long)i, (long long)c->all);
    return 0;
}

static const char *row_of(const struct ct_tensor *t, int64_t element)
{
    return (const char *)t->data + element * (int64_t)ct_dtype_size(t->dtype);
}

static bool accepts_expert_bias(const struct ct_prepare *p, int ids)
{
    enum ct_dtype dtype = p->in[ids + 1].dtype;

    return cpu_is_compute_dtype(dtype) && p->in[ids].dtype == CT_I32 &&
           ct_tensor_count(&p->in[ids]) < INT32_MAX;
}

/* ---- expert_bias ---- */

bool CPU_ISA(cpu_expert_bias_accepts)(const struct ct_prepare *p)
{
    return accepts_expert_bias(p, 1) && p->in[0].dtype == CT_F32 &&
           p->out[0].dtype == p->in[2].dtype;
}

CPU_INLINE void add_token(enum ct_dtype dtype, const struct choices *c, const float *weights,
                          const struct ct_tensor *bias, int64_t token, void *y)
{
    for (int64_t from = 0; from < c->n; from += STRIP) {
        vf sum[4] = {{0}};

        for (int64_t i = token * c->k; i < (token + 1) * c->k; i++) {
            int64_t e = expert_of(c, i);
            const char *row = row_of(bias, e * c->n);

            for (int s = 0; e >= 0 && s < 4 && from + s * CPU_LANES < c->n; s++)
                sum[s] += v_get(dtype, row, from + s * CPU_LANES, c->n) * weights[i];
        }
        for (int64_t s = 0, at = from; s < 4 && at < c->n; s++, at += CPU_LANES)
            v_put(dtype, y, at, c->n, sum[s]);
    }
}

int CPU_ISA(cpu_expert_bias_run)(const struct ct_launch *l)
{
    struct choices c = choices_of(l, 1);
    const struct ct_tensor *bias = &l->in[2], *y = &l->out[0];
    int rc = check_choices(&c);

    if (rc < 0)
        return rc;
#pragma omp parallel for if (cpu_worth_threads(c.count * c.n))
    for (int64_t token = 0; token < c.count / c.k; token++) {
        void *to = (void *)row_of(y, token * c.n);

        if (bias->dtype == CT_F32)
            add_token(CT_F32, &c, l->in[0].data, bias, token, to);
        else
            add_token(CT_BF16, &c, l->in[0].data, bias, token, to);
    }
    return 0;
}

/* ---- expert_bias_dweights ---- */

bool CPU_ISA(cpu_expert_bias_dweights_accepts)(const struct ct_prepare *p)
{
    return accepts_expert_bias(p, 1) && p->in[0].dtype == p->in[2].dtype &&
           p->out[0].dtype == CT_F32;
}

CPU_INLINE float dot(enum ct_dtype dtype, const void *x, const void *y, int64_t n)
{
    vf sum[4] = {{0}};

    for (int64_t from = 0; from < n; from += STRIP)
        for (int64_t s = 0, at = from; s < 4 && at < n; s++, at += CPU_LANES)
            sum[s] += v_get(dtype, x, at, n) * v_get(dtype, y, at, n);
    return v_sum(sum[0] + sum[1] + (sum[2] + sum[3]));
}

int CPU_ISA(cpu_expert_bias_dweights_run)(const struct ct_launch *l)
{
    struct choices c = choices_of(l, 1);
    const struct ct_tensor *dy = &l->in[0], *bias = &l->in[2];
    float *dweights = l->out[0].data;
    int rc = check_choices(&c);

    if (rc < 0)
        return rc;
#pragma omp parallel for if (cpu_worth_threads(c.count * c.n))
    for (int64_t i = 0; i < c.count; i++) {
        int64_t e = expert_of(&c, i);
        const char *d = row_of(dy, i / c.k * c.n), *row = row_of(bias, e * c.n);

        if (e < 0)
            dweights[i] = 0;
        else if (dy->dtype == CT_F32)
            dweights[i] = dot(CT_F32, d, row, c.n);
        else
            dweights[i] = dot(CT_BF16, d, row, c.n);
    }
    return 0;
}

/* ---- expert_bias_dbias ---- */

struct lists {
    int32_t *first; /* by expert: its first choice; -1: none */
    int32_t *next;  /* by choice: the next of the same expert; -1: the end */
};

bool CPU_ISA(cpu_expert_bias_dbias_accepts)(const struct ct_prepare *p)
{
    return accepts_expert_bias(p, 2) && p->in[0].dtype == p->in[3].dtype &&
           p->in[1].dtype == CT_F32 && cpu_is_compute_dtype(p->out[0].dtype);
}

int CPU_ISA(cpu_expert_bias_dbias_prepare)(struct ct_prepare *p)
{
    p->workspace = (size_t)(p->in[3].shape[0] + ct_tensor_count(&p->in[2])) * sizeof(int32_t);
    return 0;
}

static void link_choices(const struct choices *c, const struct lists *lists)
{
    memset(lists->first, 0xff, (size_t)c->experts * sizeof(*lists->first));
    for (int64_t i = c->count - 1; i >= 0; i--) {
        int64_t e = expert_of(c, i);

        if (e < 0)
            continue;
        lists->next[i] = lists->first[e];
        lists->first[e] = (int32_t)i;
    }
}

/* Columns [at, at + n) of an expert's gradient. */
CPU_INLINE void sum_columns(enum ct_dtype dtype, const struct choices *c, const struct lists *lists,
                            const struct ct_launch *l, int64_t expert, int64_t at, int64_t n)
{
    const struct ct_tensor *out = &l->out[0];
    const float *weights = l->in[1].data;
    void *to = (void *)row_of(out, expert * c->n + at);
    float total[COLUMNS] = {0};

    for (int64_t i = 0; l->accumulate & 1 && i < n; i += CPU_LANES)
        v_put(CT_F32, total, i, n, v_get(out->dtype, to, i, n));
    for (int32_t r = lists->first[expert]; r >= 0; r = lists->next[r]) {
        const char *dy = row_of(&l->in[0], r / c->k * c->n + at);

        for (int64_t i = 0; i < n; i += CPU_LANES)
            v_put(CT_F32, total, i, n,
                  v_get(CT_F32, total, i, n) + v_get(dtype, dy, i, n) * weights[r]);
    }
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(out->dtype, to, i, n, v_get(CT_F32, total, i, n));
}

int CPU_ISA(cpu_expert_bias_dbias_run)(const struct ct_launch *l)
{
    struct choices c = choices_of(l, 2);
    struct lists lists = {l->workspace, (int32_t *)l->workspace + c.experts};
    int64_t shares = (c.n + COLUMNS - 1) / COLUMNS;
    int rc = check_choices(&c);

    if (rc < 0)
        return rc;
    link_choices(&c, &lists);
#pragma omp parallel for schedule(dynamic) if (cpu_worth_threads(c.count * c.n))
    for (int64_t task = 0; task < c.experts * shares; task++) {
        int64_t at = task % shares * COLUMNS, n = c.n - at < COLUMNS ? c.n - at : COLUMNS;

        if (l->in[0].dtype == CT_F32)
            sum_columns(CT_F32, &c, &lists, l, task / shares, at, n);
        else
            sum_columns(CT_BF16, &c, &lists, l, task / shares, at, n);
    }
    return 0;
}
