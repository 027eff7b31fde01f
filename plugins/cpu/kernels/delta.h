/*
 * Chunks of the gated delta rule (Yang et al. 2024). Of the tokens i of a chunk, with G[i] the sum
 * of gates up to i, D[i, j] = exp(G[i] - G[j]) for j <= i of the same document, else 0, and S the
 * state before:
 *
 *     w[i] = v[i] - exp(G[i]) k[i] S - sum over j < i of D[i, j] (k[i] . k[j]) u[j]
 *     u = beta w
 *     o = exp(G) q S + (D * q k^T) u
 *     S <- exp(G[last]) S + (D[last] k)^T u
 *
 * All products are of blocks in float32. Rows of matrices have DELTA_ROW(n) floats, zeros from n
 * on.
 */
#ifndef CPU_KERNELS_DELTA_H
#define CPU_KERNELS_DELTA_H

#include <math.h>
#include <string.h>

#include <ctitan/lib/ops.h>

#include "../cpu.h"
#include "kernels.h"
#include "vector.h"

#define CHUNK CT_DELTA_CHUNK
#define DELTA_ROW(n) (((n) + 15) & ~(int64_t)15)
#define ROWS 4 /* of a tile */

enum { DOCUMENTS = 5, STATE, SLOTS }; /* inputs, q being 0 */

/* The operands of one call. */
struct delta {
    const struct ct_tensor *q, *k, *v, *gate, *beta, *documents; /* documents NULL: none */
    const struct ct_tensor *state, *slots; /* of a part of a sequence; NULL: it is whole */
    int64_t batch, tokens, groups, heads, share, dk, dv, ldk, ldv;
    int64_t *at; /* by position: index of the token */
};

/* One thread's matrices of a chunk of one head. */
struct chunk {
    int64_t count;                              /* tokens */
    float *q, *k, *kt;                          /* [CHUNK][ldk]; kt: k transposed */
    float *v, *u;                               /* [CHUNK][ldv]; v: w, once it is known */
    float *pairs;                               /* D * q k^T, [CHUNK][CHUNK] */
    float *solve;                               /* -D * k k^T, j < i */
    float *decay;                               /* D */
    float gate[CHUNK], beta[CHUNK], sum[CHUNK]; /* sum: G */
    float since[CHUNK], until[CHUNK];           /* exp(G), D[last]; 0 beyond the document */
    float kept;                                 /* exp(G[last]), or 0 */
    bool first[CHUNK];                          /* of its document */
};

/* One tile of c[m, n] += a[m, k] b[k, n]; a[i, l] is a[i rows + l columns]. */
CPU_INLINE void delta_tile(int rows, int vectors, float *c, int64_t ldc, const float *a,
                           int64_t a_rows, int64_t a_columns, const float *b, int64_t ldb,
                           int64_t k)
{
    vf sum[ROWS][2];

    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++)
            sum[i][j] = v_load(c + i * ldc + j * CPU_LANES);
    for (int64_t l = 0; l < k; l++)
        for (int i = 0; i < rows; i++) {
            vf x = v_set(a[i * a_rows + l * a_columns]);

            for (int j = 0; j < vectors; j++)
                sum[i][j] += x * v_load(b + l * ldb + j * CPU_LANES);
        }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++)
            v_store(c + i * ldc + j * CPU_LANES, sum[i][j]);
}

/* c += a b, where n is a multiple of a vector. */
static inline void delta_multiply(float *c, int64_t ldc, const float *a, int64_t a_rows,
                                  int64_t a_columns, const float *b, int64_t ldb, int64_t m,
                                  int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; i += ROWS)
        for (int64_t j = 0; j < n; j += 2 * CPU_LANES) {
            float *to = c + i * ldc + j;
            const float *from = a + i * a_rows;

            if (m - i >= ROWS && n - j >= 2 * CPU_LANES)
                delta_tile(ROWS, 2, to, ldc, from, a_rows, a_columns, b + j, ldb, k);
            else
                for (int64_t row = 0; row < ROWS && i + row < m; row++)
                    for (int64_t x = 0; x < 2 * CPU_LANES && j + x < n; x += CPU_LANES)
                        delta_tile(1, 1, to + row * ldc + x, ldc, from + row * a_rows, a_rows,
                                   a_columns, b + j + x, ldb, k);
        }
}

/* to[n, m] of from[m, n], with zeros up to m = ld_to */
static inline void delta_transpose(float *to, int64_t ld_to, const float *from, int64_t ld_from,
                                   int64_t m, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < m; i++)
            to[j * ld_to + i] = from[i * ld_from + j];
        for (int64_t i = m; i < ld_to; i++)
            to[j * ld_to + i] = 0;
    }
}

static inline float delta_dot(const float *x, const float *y, int64_t n)
{
    vf sum = v_set(0);

    for (int64_t i = 0; i < n; i += CPU_LANES)
        sum += v_load(x + i) * v_load(y + i);
    return v_sum(sum);
}

/* q is input `at`. */
static inline struct delta delta_of(const struct ct_launch *l, int at)
{
    const struct ct_tensor *in = l->in + at;
    struct delta d = {.q = in,
                      .k = in + 1,
                      .v = in + 2,
                      .gate = in + 3,
                      .beta = in + 4,
                      .documents =
                          at + DOCUMENTS < l->ins && in[DOCUMENTS].data ? in + DOCUMENTS : NULL,
                      .batch = in->shape[0],
                      .tokens = in->shape[1],
                      .groups = in->shape[2],
                      .heads = in[2].shape[2],
                      .dk = in->shape[3],
                      .dv = in[2].shape[3]};

    if (at == 0 && l->ins > SLOTS && in[SLOTS].data) {
        d.state = in + STATE;
        d.slots = in + SLOTS;
    }
    d.share = d.heads / d.groups;
    d.ldk = DELTA_ROW(d.dk);
    d.ldv = DELTA_ROW(d.dv);
    d.at = l->workspace;
    ct_launch_order(l, l->op->in[at], 1, d.at);
    return d;
}

/* The row of a head of a token, as floats padded with zeros. */
static inline void delta_load(const struct delta *d, const struct ct_tensor *t, int64_t b,
                              int64_t position, int64_t h, float *to)
{
    int64_t n = t->shape[3], ld = DELTA_ROW(n);
    int64_t at = b * t->stride[0] + d->at[position] * t->stride[1] + h * t->stride[2];
    const char *from = (const char *)t->data + at * (int64_t)ct_dtype_size(t->dtype);

    for (int64_t i = 0; i < ld; i += CPU_LANES)
        v_store(to + i, i >= n               ? v_set(0)
                        : t->dtype == CT_F32 ? v_get(CT_F32, from, i, n)
                                             : v_get(CT_BF16, from, i, n));
}

/* Where a row of a result lies. */
static inline char *delta_row(const struct delta *d, const struct ct_tensor *t, int64_t b,
                              int64_t position, int64_t h)
{
    int64_t at = b * t->stride[0] + d->at[position] * t->stride[1] + h * t->stride[2];

    return (char *)t->data + at * (int64_t)ct_dtype_size(t->dtype);
}

static inline void delta_store(const struct delta *d, const struct ct_tensor *t, int64_t b,
                               int64_t position, int64_t h, bool add, const float *from)
{
    char *to = delta_row(d, t, b, position, h);
    int64_t n = t->shape[3];

    for (int64_t i = 0; i < n; i += CPU_LANES)
        if (t->dtype == CT_F32)
            v_put(CT_F32, to, i, n, v_load(from + i) + (add ? v_get(CT_F32, to, i, n) : v_set(0)));
        else
            v_put(CT_BF16, to, i, n,
                  v_load(from + i) + (add ? v_get(CT_BF16, to, i, n) : v_set(0)));
}

static inline float delta_scalar(const struct delta *d, const struct ct_tensor *t, int64_t b,
                                 int64_t position, int64_t h)
{
    return ((const float *)
                t->data)[b * t->stride[0] + d->at[position] * t->stride[1] + h * t->stride[2]];
}

static inline bool delta_begins(const struct delta *d, int64_t b, int64_t position)
{
    const int32_t *documents = d->documents ? d->documents->data : NULL;

    if (position == 0)
        return ct_slots_begin(d->slots, b);
    if (!documents)
        return false;
    documents += b * d->documents->stride[0];
    return documents[d->at[position]] != documents[d->at[position - 1]];
}

/* Read a chunk of head h, and its decays. The sequence has `tokens`. */
static inline void delta_read(const struct delta *d, struct chunk *c, int64_t b, int64_t h,
                              int64_t begin, int64_t tokens)
{
    int64_t document[CHUNK], documents = 0;
    float sum = 0;

    c->count = tokens - begin < CHUNK ? tokens - begin : CHUNK;
    for (int64_t i = 0; i < c->count; i++) {
        int64_t t = begin + i;

        delta_load(d, d->q, b, t, h / d->share, c->q + i * d->ldk);
        delta_load(d, d->k, b, t, h / d->share, c->k + i * d->ldk);
        delta_load(d, d->v, b, t, h, c->v + i * d->ldv);
        c->gate[i] = delta_scalar(d, d->gate, b, t, h);
        c->beta[i] = delta_scalar(d, d->beta, b, t, h);
        c->first[i] = delta_begins(d, b, t);
        document[i] = documents += c->first[i];
        c->sum[i] = sum = c->first[i] ? 0 : sum + c->gate[i];
    }
    for (int64_t i = 0; i < c->count; i++) {
        c->since[i] = document[i] == 0 ? expf(c->sum[i]) : 0;
        c->until[i] = document[i] == documents ? expf(sum - c->sum[i]) : 0;
        for (int64_t j = 0; j < CHUNK; j++)
            c->decay[i * CHUNK + j] =
                j <= i && document[i] == document[j] ? expf(c->sum[i] - c->sum[j]) : 0;
    }
    c->kept = documents == 0 ? expf(sum) : 0;
}

/* w, u and pairs, from what was read and the state s[dk][ldv]. */
static inline void delta_solve(const struct delta *d, struct chunk *c, const float *s)
{
    int64_t n = c->count;

    delta_transpose(c->kt, CHUNK, c->k, d->ldk, n, d->dk);
    memset(c->solve, 0, sizeof(float) * CHUNK * CHUNK);
    delta_multiply(c->solve, CHUNK, c->k, d->ldk, 1, c->kt, CHUNK, n, CHUNK, d->dk);
    memset(c->u, 0, sizeof(float) * (size_t)(n * d->ldv));
    delta_multiply(c->u, d->ldv, c->k, d->ldk, 1, s, d->ldv, n, d->ldv, d->dk);
    for (int64_t i = 0; i < n; i++) {
        float *v = c->v + i * d->ldv, *u = c->u + i * d->ldv;

        for (int64_t j = 0; j < CHUNK; j++)
            c->solve[i * CHUNK + j] *= j < i ? -c->decay[i * CHUNK + j] : 0;
        for (int64_t j = 0; j < d->ldv; j++)
            v[j] -= c->since[i] * u[j];
        delta_multiply(v, d->ldv, c->solve + i * CHUNK, CHUNK, 1, c->u, d->ldv, 1, d->ldv, i);
        for (int64_t j = 0; j < d->ldv; j++)
            u[j] = c->beta[i] * v[j];
    }
    memset(c->pairs, 0, sizeof(float) * CHUNK * CHUNK);
    delta_multiply(c->pairs, CHUNK, c->q, d->ldk, 1, c->kt, CHUNK, n, CHUNK, d->dk);
    for (int64_t i = 0; i < n * CHUNK; i++)
        c->pairs[i] *= c->decay[i];
}

/* The state after the chunk. scaled: room for [CHUNK][ldk]. */
static inline void delta_advance(const struct delta *d, const struct chunk *c, float *s,
                                 float *scaled)
{
    for (int64_t i = 0; i < d->dk * d->ldv; i++)
        s[i] *= c->kept;
    for (int64_t i = 0; i < c->count; i++)
        for (int64_t j = 0; j < d->ldk; j++)
            scaled[i * d->ldk + j] = c->until[i] * c->k[i * d->ldk + j];
    delta_multiply(s, d->ldv, scaled, 1, d->ldk, c->u, d->ldv, d->dk, d->ldv, c->count);
}

/* The chunk's matrices in memory of so many floats; returns the first float behind them. */
#define DELTA_CHUNK_FLOATS(ldk, ldv) (CHUNK * (3 * (ldk) + 2 * (ldv) + 3 * CHUNK))
static inline float *delta_place(struct chunk *c, int64_t ldk, int64_t ldv, float *at)
{
    c->q = at;
    c->k = c->q + CHUNK * ldk;
    c->kt = c->k + CHUNK * ldk;
    c->v = c->kt + CHUNK * ldk;
    c->u = c->v + CHUNK * ldv;
    c->pairs = c->u + CHUNK * ldv;
    c->solve = c->pairs + CHUNK * CHUNK;
    c->decay = c->solve + CHUNK * CHUNK;
    return c->decay + CHUNK * CHUNK;
}

#endif
