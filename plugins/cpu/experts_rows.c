/*
 * Mixtures of experts: a call's sizes, the choices of this rank's experts, copies of rows, and sums
 * in float32, by token and by expert.
 */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "convert.h"
#include "experts.h"

bool cpu_experts_accept(const struct ct_prepare *p)
{
    int at = cpu_experts_x(p->op);
    enum ct_dtype type = p->in[at].dtype;

    for (int i = at ? at - 1 : 0; i < p->ins; i++)
        if (i != at + 1 && i != at + 2 && p->in[i].dtype != type)
            return false;
    for (int i = 0; i < p->outs; i++) {
        bool dweights =
            i == 1 && i < cpu_experts_first_gradient(p->op) && cpu_experts_is_gradient(p->op);

        if (p->out[i].dtype != CT_F32 && (dweights || !cpu_is_compute_dtype(p->out[i].dtype)))
            return false;
    }
    return cpu_is_compute_dtype(type) && p->in[at + 1].dtype == CT_F32 &&
           ct_tensor_count(&p->in[at + 3]) > 0;
}

/* NULL: SwiGLU, which has loops of its own. */
static const struct cpu_gate *gate_of(const struct ct_prepare *p)
{
    const struct ct_experts *how = p->op->attrs;
    struct cpu_gate gate = {.alpha = how->alpha != 0 ? (float)how->alpha : 1,
                            .limit = how->limit > 0 ? (float)how->limit : INFINITY,
                            .offset = (float)how->offset};

    return gate.alpha == 1 && isinf(gate.limit) && gate.offset == 0
               ? NULL
               : ct_arena_copy(p->arena, &gate, sizeof(gate));
}

struct experts_sizes cpu_experts_sizes(struct ct_prepare *p)
{
    int at = cpu_experts_x(p->op);
    const struct ct_tensor *in = p->in + at;
    struct experts_sizes s = {.n = in[W_GATE].shape[2],
                              .f = in[W_GATE].shape[1],
                              .count = in[W_GATE].shape[0],
                              .k = in[1].shape[in[1].ndim - 1],
                              .gate = gate_of(p),
                              .biased = p->ins > at + B_GATE};

    s.tokens = ct_tensor_count(&in[1]) / s.k;
    s.order = cpu_carve(&p->workspace, (size_t)(s.tokens * s.k) * sizeof(int64_t));
    s.first = cpu_carve(&p->workspace, (size_t)(s.count + 1) * sizeof(int64_t));
    s.sum =
        cpu_carve(&p->workspace,
                  cpu_experts_sums_tokens(p->op) ? (size_t)(s.tokens * s.n) * sizeof(float) : 0);
    return s;
}

/* ---- choices ---- */

int cpu_experts_check(const int32_t *ids, int64_t count, int64_t experts)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= experts)
            return ct_fail(CT_EINVAL, "expert %d at position %lld is not below %lld", (int)ids[i],
                           (long long)i, (long long)experts);
    return 0;
}

/* Sorts the choices of this rank's experts, in the order of tokens. */
int cpu_experts_sort(const struct ct_launch *l, const struct experts_sizes *s,
                     struct experts_choices *c)
{
    int at = cpu_experts_x(l->op);
    const struct ct_value *gate = l->op->in[at + W_GATE];
    int64_t from = ct_launch_offset(l, gate, 0), all = gate->shape[0], total = 0;

    *c = (struct experts_choices){.sizes = s,
                                  .order = (int64_t *)(void *)((char *)l->workspace + s->order),
                                  .first = (int64_t *)(void *)((char *)l->workspace + s->first),
                                  .weights = l->in[at + 1].data,
                                  .ids = l->in[at + 2].data};
    memset(c->first, 0, (size_t)(s->count + 1) * sizeof(*c->first));
    for (int64_t i = 0; i < s->tokens * s->k; i++) {
        int64_t e = c->ids[i] - from;

        if (c->ids[i] < CT_NO_EXPERT || c->ids[i] >= all)
            return ct_fail(CT_EINVAL, "expert %d at position %lld is not below %lld", c->ids[i],
                           (long long)i, (long long)all);
        if (c->ids[i] >= 0 && e >= 0 && e < s->count)
            c->first[e]++;
    }
    for (int64_t e = 0; e <= s->count; e++) {
        int64_t here = c->first[e];

        c->first[e] = total;
        total += here;
    }
    for (int64_t i = 0; i < s->tokens * s->k; i++) {
        int64_t e = c->ids[i] - from;

        if (c->ids[i] >= 0 && e >= 0 && e < s->count)
            c->order[c->first[e]++] = i;
    }
    memmove(c->first + 1, c->first, (size_t)s->count * sizeof(*c->first));
    c->first[0] = 0;
    return 0;
}

/* ---- what is kept ---- */

float *cpu_experts_kept(const struct ct_launch *l, const struct experts_sizes *s, bool other,
                        int64_t from)
{
    const struct ct_tensor *kept = cpu_experts_is_gradient(l->op) ? &l->in[0] : &l->out[1];

    return (float *)kept->data + (other ? s->tokens * s->k + from : from) * s->f;
}

/* ---- sums of tokens ---- */

struct cleared {
    float *at;
    int64_t count;
};

static void clear_share(void *context, int thread, int threads)
{
    const struct cleared *c = context;
    struct cpu_range mine = cpu_share(c->count, 1024, thread, threads);

    if (mine.end > mine.begin)
        memset(c->at + mine.begin, 0, (size_t)(mine.end - mine.begin) * sizeof(*c->at));
}

void cpu_experts_copy(const struct ct_tensor *from, int64_t i, int64_t n, enum ct_dtype dtype,
                      void *to)
{
    size_t bytes = ct_dtype_size(from->dtype);
    const void *first = (const char *)from->data + i * (int64_t)bytes;

    if (from->dtype == dtype)
        memcpy(to, first, (size_t)n * bytes);
    else
        cpu_widen(to, first, (struct ct_matrix){.rows = 1, .columns = n, .stride = n});
}

float *cpu_experts_sums(const struct ct_launch *l, const struct experts_sizes *s)
{
    struct cleared all = {(float *)(void *)((char *)l->workspace + s->sum), s->tokens * s->n};

    cpu_parallel(clear_share, &all);
    return all.at;
}

void cpu_experts_add(const struct experts_choices *c, int64_t from, int64_t rows, const float *row,
                     bool weighted, struct cpu_range columns, float *sums)
{
    int64_t n = c->sizes->n;

    for (int64_t r = 0; r < rows; r++, row += n) {
        int64_t choice = c->order[from + r];

        cpu_loops()->add_scaled(sums + choice / c->sizes->k * n + columns.begin, CT_F32,
                                row + columns.begin, weighted ? c->weights[choice] : 1,
                                columns.end - columns.begin);
    }
}

void cpu_experts_store(const struct ct_launch *l, const struct experts_sizes *s)
{
    const float *sums = (const float *)(const void *)((const char *)l->workspace + s->sum);
    const struct ct_tensor *y = &l->out[0];
    struct ct_matrix rows = {.rows = s->tokens, .columns = s->n, .stride = s->n};

    bool add = l->accumulate & 1;

    if (y->dtype != CT_F32)
        cpu_round_all(y->data, sums, rows, add);
    else if (add)
        cpu_loops()->add_scaled(y->data, CT_F32, sums, 1, s->tokens * s->n);
    else
        memcpy(y->data, sums, (size_t)(s->tokens * s->n) * sizeof(*sums));
}

float *cpu_experts_dweights(const struct ct_launch *l)
{
    const struct ct_tensor *dweights = &l->out[1];

    if (!(l->accumulate >> 1 & 1))
        memset(dweights->data, 0, (size_t)ct_tensor_count(dweights) * sizeof(float));
    return dweights->data;
}

/* ---- sums of experts ---- */

static int64_t elements_each(const struct ct_tensor *t)
{
    return ct_tensor_count(t) / t->shape[0];
}

static void *part_of(const struct ct_tensor *t, int64_t expert)
{
    return (char *)t->data + (size_t)(expert * elements_each(t)) * ct_dtype_size(t->dtype);
}

static const struct ct_tensor *output(const struct ct_launch *l, int gradient)
{
    return &l->out[cpu_experts_first_gradient(l->op) + gradient];
}

static bool accumulates(const struct ct_launch *l, int gradient)
{
    return l->accumulate >> (cpu_experts_first_gradient(l->op) + gradient) & 1;
}

size_t cpu_experts_buffer_bytes(const struct ct_prepare *p, int gradient)
{
    int out = cpu_experts_first_gradient(p->op) + gradient;

    return out < p->outs && p->out[out].dtype != CT_F32
               ? (size_t)elements_each(&p->out[out]) * sizeof(float)
               : 0;
}

float *cpu_experts_gradient(const struct ct_launch *l, int gradient, int64_t expert, float *buffer)
{
    const struct ct_tensor *t = output(l, gradient);

    return t->dtype == CT_F32 ? part_of(t, expert) : buffer;
}

bool cpu_experts_continues(const struct ct_launch *l, int gradient)
{
    return accumulates(l, gradient) && output(l, gradient)->dtype == CT_F32;
}

void cpu_experts_begin_sum(const struct ct_launch *l, int gradient, int64_t expert, float *buffer)
{
    if (!cpu_experts_continues(l, gradient))
        memset(cpu_experts_gradient(l, gradient, expert, buffer), 0,
               (size_t)elements_each(output(l, gradient)) * sizeof(float));
}

void cpu_experts_end_sum(const struct ct_launch *l, int gradient, int64_t expert,
                         const float *buffer)
{
    const struct ct_tensor *t = output(l, gradient);
    int64_t columns = t->shape[t->ndim - 1], rows = elements_each(t) / columns;

    if (t->dtype != CT_F32)
        cpu_round_all(part_of(t, expert), buffer,
                      (struct ct_matrix){.rows = rows, .columns = columns, .stride = columns},
                      accumulates(l, gradient));
}

void cpu_experts_clear(const struct ct_launch *l, int64_t expert)
{
    for (int i = 0; cpu_experts_first_gradient(l->op) + i < l->outs; i++) {
        const struct ct_tensor *t = output(l, i);

        if (!accumulates(l, i))
            memset(part_of(t, expert), 0, (size_t)elements_each(t) * ct_dtype_size(t->dtype));
    }
}
