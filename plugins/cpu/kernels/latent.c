/*
 * Parts of the last dimension, and keys and values of latent attention. All are copies: a thread
 * copies whole rows, or all heads of whole tokens, so that it reads and writes memory in order.
 */
#include <omp.h>

#include <ctitan/lib/ops.h>

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

#define SHARED 1024 /* features that all heads share, at most */

static bool all_compute(const struct ct_prepare *prepare)
{
    return cpu_is_compute_dtype(prepare->out->dtype);
}

/* ---- split ---- */

struct parts {
    const struct ct_tensor *t[1 + CT_MAX_DIMS]; /* the whole, then its parts; NULL: absent */
    int64_t bytes[1 + CT_MAX_DIMS];             /* of a row of each */
    int count;
    struct cpu_runs runs;
};

static struct parts parts_of(const struct ct_launch *launch, const struct ct_tensor *whole,
                             const struct ct_tensor *part)
{
    const struct ct_shape *widths = &((const struct ct_split *)launch->op->attrs)->widths;
    struct parts p = {.t = {whole}, .count = widths->ndim};

    for (int i = 0; i < p.count; i++) {
        p.t[1 + i] = part[i].data ? part + i : NULL;
        p.bytes[1 + i] = widths->size[i] * (int64_t)ct_dtype_size(whole->dtype);
    }
    p.runs = cpu_rows_of(p.t, 1 + p.count);
    return p;
}

static char *row_of(const struct parts *p, int operand, int64_t row)
{
    const struct ct_tensor *t = p->t[operand];

    return (char *)t->data + cpu_run_at(&p->runs, operand, row) * (int64_t)ct_dtype_size(t->dtype);
}

static void split_row(const struct parts *p, int64_t row)
{
    const char *whole = row_of(p, 0, row);

    for (int i = 1; i <= p->count; whole += p->bytes[i++])
        memcpy(row_of(p, i, row), whole, (size_t)p->bytes[i]);
}

static void join_row(const struct parts *p, int64_t row)
{
    char *whole = row_of(p, 0, row);

    for (int i = 1; i <= p->count; whole += p->bytes[i++])
        if (p->t[i])
            memcpy(whole, row_of(p, i, row), (size_t)p->bytes[i]);
        else
            memset(whole, 0, (size_t)p->bytes[i]);
}

bool CPU_ISA(cpu_split_accepts)(const struct ct_prepare *prepare)
{
    return all_compute(prepare);
}

int CPU_ISA(cpu_split_run)(const struct ct_launch *launch)
{
    const struct parts p = parts_of(launch, launch->in, launch->out);

#pragma omp parallel for schedule(static) if (cpu_worth_threads(ct_tensor_count(launch->in)))
    for (int64_t row = 0; row < p.runs.count; row++)
        split_row(&p, row);
    return 0;
}

bool CPU_ISA(cpu_split_grad_accepts)(const struct ct_prepare *prepare)
{
    return all_compute(prepare);
}

int CPU_ISA(cpu_split_grad_run)(const struct ct_launch *launch)
{
    const struct parts p = parts_of(launch, launch->out, launch->in);

#pragma omp parallel for schedule(static) if (cpu_worth_threads(ct_tensor_count(launch->out)))
    for (int64_t row = 0; row < p.runs.count; row++)
        join_row(&p, row);
    return 0;
}

/* ---- expand_latent ---- */

/* A token's heads, or what they share. */
struct token {
    char *at;
    int64_t step; /* bytes from a head to the next */
};

static struct token token_of(const struct ct_tensor *t, int64_t b, int64_t i)
{
    int64_t size = (int64_t)ct_dtype_size(t->dtype);

    return (struct token){(char *)t->data + (b * t->stride[0] + i * t->stride[1]) * size,
                          t->stride[2] * size};
}

/* Bytes of a head's own features of the key, of those that all share, and of its value. */
struct latent {
    size_t keys, shared, values;
    int64_t heads;
};

static struct latent latent_of(enum ct_dtype dtype, int64_t keys, int64_t shared, int64_t values,
                               int64_t heads)
{
    size_t size = ct_dtype_size(dtype);

    return (struct latent){(size_t)keys * size, (size_t)shared * size, (size_t)values * size,
                           heads};
}

static void expand(const struct latent *l, struct token kv, struct token shared, struct token k,
                   struct token v)
{
    for (int64_t h = 0; h < l->heads; h++, kv.at += kv.step, k.at += k.step, v.at += v.step) {
        memcpy(k.at, kv.at, l->keys);
        memcpy(k.at + l->keys, shared.at, l->shared);
        memcpy(v.at, kv.at + l->keys, l->values);
    }
}

bool CPU_ISA(cpu_expand_latent_accepts)(const struct ct_prepare *prepare)
{
    return all_compute(prepare);
}

int CPU_ISA(cpu_expand_latent_run)(const struct ct_launch *launch)
{
    const struct ct_tensor *kv = launch->in, *shared = kv + 1, *k = launch->out, *v = k + 1;
    int64_t keys = ((const struct ct_expand_latent *)launch->op->attrs)->keys;
    int64_t batch = kv->shape[0], tokens = kv->shape[1];
    struct latent l = latent_of(kv->dtype, keys, shared->shape[2], v->shape[3], kv->shape[2]);

#pragma omp parallel for schedule(static) if (cpu_worth_threads(ct_tensor_count(k)))
    for (int64_t i = 0; i < batch * tokens; i++)
        expand(&l, token_of(kv, i / tokens, i % tokens), token_of(shared, i / tokens, i % tokens),
               token_of(k, i / tokens, i % tokens), token_of(v, i / tokens, i % tokens));
    return 0;
}

/* ---- its gradient ---- */

static void copy_or_clear(char *to, const char *from, size_t bytes)
{
    if (from)
        memcpy(to, from, bytes);
    else
        memset(to, 0, bytes);
}

CPU_INLINE void add(enum ct_dtype dtype, float *sum, const char *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(CT_F32, sum, i, n, v_get(CT_F32, sum, i, n) + v_get(dtype, from, i, n));
}

/* Head after head, as they lie in memory. dk, dv: at NULL where there is none. */
CPU_INLINE void gather(enum ct_dtype dtype, const struct latent *l, struct token dkv, char *dshared,
                       struct token dk, struct token dv)
{
    int64_t n = (int64_t)l->shared / (dtype == CT_F32 ? 4 : 2);
    float sum[SHARED];

    memset(sum, 0, (size_t)n * sizeof(*sum));
    for (int64_t h = 0; h < l->heads; h++) {
        const char *key = dk.at ? dk.at + h * dk.step : NULL;

        copy_or_clear(dkv.at + h * dkv.step, key, l->keys);
        if (key)
            add(dtype, sum, key + l->keys, n);
        copy_or_clear(dkv.at + h * dkv.step + l->keys, dv.at ? dv.at + h * dv.step : NULL,
                      l->values);
    }
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(dtype, dshared, i, n, v_get(CT_F32, sum, i, n));
}

static void gather_token(const struct ct_launch *launch, const struct latent *l, int64_t b,
                         int64_t i)
{
    const struct ct_tensor *dk = launch->in, *dv = dk + 1, *dkv = launch->out, *dshared = dkv + 1;
    struct token key = {0}, value = {0};

    if (dk->data)
        key = token_of(dk, b, i);
    if (launch->ins > 1 && dv->data)
        value = token_of(dv, b, i);
    if (dkv->dtype == CT_F32)
        gather(CT_F32, l, token_of(dkv, b, i), token_of(dshared, b, i).at, key, value);
    else
        gather(CT_BF16, l, token_of(dkv, b, i), token_of(dshared, b, i).at, key, value);
}

bool CPU_ISA(cpu_expand_latent_grad_accepts)(const struct ct_prepare *prepare)
{
    return all_compute(prepare) && prepare->out[1].shape[2] <= SHARED;
}

int CPU_ISA(cpu_expand_latent_grad_run)(const struct ct_launch *launch)
{
    const struct ct_expand_latent_grad *a = launch->op->attrs;
    const struct ct_tensor *dkv = launch->out;
    int64_t batch = dkv->shape[0], tokens = dkv->shape[1];
    struct latent l = latent_of(dkv->dtype, a->keys, a->shared, a->values, dkv->shape[2]);

#pragma omp parallel for schedule(static) if (cpu_worth_threads(ct_tensor_count(dkv)))
    for (int64_t i = 0; i < batch * tokens; i++)
        gather_token(launch, &l, i / tokens, i % tokens);
    return 0;
}
