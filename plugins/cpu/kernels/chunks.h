/*
 * Chunks of linear attention with decays (Yang et al. 2024; Dao and Gu 2024). Of the tokens i of a
 * chunk, with G[i] the sum of gates up to i, D[i, j] = exp(G[i] - G[j]) for j <= i of the same
 * document, else 0, and S[k, v] the state before the chunk:
 *
 *     o = exp(G) q S + (D * q k^T) u
 *     S <- exp(G[last]) S + (D[last] k)^T u
 *
 * u[i] is what token i adds to the state. The gated delta rule makes it from values and the state
 * (delta.c), the state space scan from its inputs alone (state_scan.c).
 *
 * All products are of blocks in float32. Tokens of a chunk are padded to whole grains, rows of
 * heads to ROW_WIDTH(n) floats: with zeros. Matrices of pairs are read where j is in the grain of
 * i, or before.
 */
#ifndef CPU_KERNELS_CHUNKS_H
#define CPU_KERNELS_CHUNKS_H

#include <math.h>

#include <ctitan/lib/ops.h>

#include "product.h"
#include "rows.h"

#define CHUNK 64
#define GRAIN 16

/* ---- matrices ---- */

/* The sizes of heads, and of their rows. */
struct widths {
    int64_t k, v, ldk, ldv;
};

static inline struct widths widths_of(int64_t k, int64_t v)
{
    return (struct widths){k, v, ROW_WIDTH(k), ROW_WIDTH(v)};
}

/* Tokens that all heads of a group have in common. */
struct shared {
    int64_t count, rows; /* tokens, and with those of padding */
    float *q, *k;        /* [CHUNK][ldk] */
    float *kt;           /* [ldk][CHUNK] */
    float *qk, *kk;      /* q k^T and k k^T, [CHUNK][CHUNK]; kk NULL: not wanted */
};

#define SHARED_FLOATS(ldk) (CHUNK * (3 * (ldk) + 2 * CHUNK))
static inline struct shared shared_at(float *memory, const struct widths *w, int64_t tokens,
                                      int64_t chunk)
{
    struct shared s = {.count = tokens - chunk * CHUNK};

    s.count = s.count < CHUNK ? s.count : CHUNK;
    s.rows = ROW_WIDTH(s.count);
    s.q = memory + chunk * SHARED_FLOATS(w->ldk);
    s.k = s.q + CHUNK * w->ldk;
    s.kt = s.k + CHUNK * w->ldk;
    s.qk = s.kt + CHUNK * w->ldk;
    s.kk = s.qk + CHUNK * CHUNK;
    return s;
}

/* One head's part of a chunk. */
struct chunk {
    struct shared s;
    struct widths w;
    float *u;                         /* [CHUNK][ldv] */
    float *pairs, *decay;             /* D * q k^T, and D: [CHUNK][CHUNK] */
    float *scaled;                    /* room for [CHUNK][ldk] */
    float gate[CHUNK], sum[CHUNK];    /* sum: G */
    float since[CHUNK], until[CHUNK]; /* exp(G), D[last]; 0 beyond the document */
    float kept;                       /* exp(G[last]), or 0 */
    bool first[CHUNK];                /* of its document */
};

#define CHUNK_FLOATS(ldk, ldv) (CHUNK * ((ldk) + (ldv) + 2 * CHUNK))
static inline float *chunk_place(struct chunk *c, const struct widths *w, float *at)
{
    c->w = *w;
    c->u = at;
    c->pairs = c->u + CHUNK * w->ldv;
    c->decay = c->pairs + CHUNK * CHUNK;
    c->scaled = c->decay + CHUNK * CHUNK;
    return c->scaled + CHUNK * w->ldk;
}

static inline void chunk_zero(float *x, int64_t count)
{
    memset(x, 0, sizeof(*x) * (size_t)count);
}

static inline float chunk_dot(const float *x, const float *y, int64_t n)
{
    vf sum = v_set(0);

    for (int64_t i = 0; i < n; i += CPU_LANES)
        sum += v_load(x + i) * v_load(y + i);
    return v_sum(sum);
}

/* y += a x */
static inline void chunk_add(float *y, float a, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_store(y + i, v_load(y + i) + a * v_load(x + i));
}

static inline void chunk_scale(float *y, float a, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_store(y + i, a * v_load(x + i));
}

/* to[n][m] of from[m][n], both in whole grains */
static inline void chunk_transpose(float *to, int64_t ld_to, const float *from, int64_t ld_from,
                                   int64_t m, int64_t n)
{
    for (int64_t i = 0; i < m; i += CPU_LANES)
        for (int64_t j = 0; j < n; j += CPU_LANES) {
            vf block[CPU_LANES];

            for (int64_t r = 0; r < CPU_LANES; r++)
                block[r] = v_load(from + (i + r) * ld_from + j);
            v_transpose(block);
            for (int64_t r = 0; r < CPU_LANES; r++)
                v_store(to + (j + r) * ld_to + i, block[r]);
        }
}

/* c[m][n] (+)= a[m][k] b[k][n] */
static inline void chunk_multiply(float *c, int64_t ldc, const float *a, int64_t lda,
                                  const float *b, int64_t ldb, int64_t m, int64_t n, int64_t k,
                                  bool add)
{
    multiply((struct product){.c = c,
                              .c_row = ldc,
                              .a = a,
                              .row = lda,
                              .step = 1,
                              .b = b,
                              .b_row = ldb,
                              .m = m,
                              .n = n,
                              .k = k,
                              .add = add});
}

/* c[m][n] += a^T b, a[k][m] */
static inline void chunk_multiply_turned(float *c, int64_t ldc, const float *a, int64_t lda,
                                         const float *b, int64_t ldb, int64_t m, int64_t n,
                                         int64_t k)
{
    multiply((struct product){.c = c,
                              .c_row = ldc,
                              .a = a,
                              .row = 1,
                              .step = lda,
                              .b = b,
                              .b_row = ldb,
                              .m = m,
                              .n = n,
                              .k = k,
                              .add = true});
}

/* Pairs of tokens: p[i][j] = a[i] . b[j], j up to i's grain; bt[n][CHUNK] is b transposed. */
static inline void chunk_pairs(float *p, const float *a, int64_t lda, const float *bt, int64_t rows,
                               int64_t n)
{
    for (int64_t i = 0; i < rows; i += GRAIN)
        chunk_multiply(p + i * CHUNK, CHUNK, a + i * lda, lda, bt, CHUNK, GRAIN, i + GRAIN, n,
                       false);
}

/* y[i] += p[i][j] x[j], j up to i's grain */
static inline void chunk_gather(float *y, const float *p, const float *x, int64_t rows, int64_t ld)
{
    for (int64_t i = 0; i < rows; i += GRAIN)
        chunk_multiply(y + i * ld, ld, p + i * CHUNK, CHUNK, x, ld, GRAIN, ld, i + GRAIN, true);
}

/* y[j] += p[i][j] x[i], i from j's grain on */
static inline void chunk_scatter(float *y, const float *p, const float *x, int64_t rows, int64_t ld)
{
    for (int64_t j = 0; j < rows; j += GRAIN)
        chunk_multiply_turned(y + j * ld, ld, p + j * CHUNK + j, CHUNK, x + j * ld, ld, GRAIN, ld,
                              rows - j);
}

/* ---- reading ---- */

/* Read a group's queries (of NULL: none) and keys, and make their products. */
static inline void shared_read(struct shared *s, const struct widths *w, const struct rows *q,
                               const struct rows *k, int64_t begin, int64_t group, bool kk)
{
    for (int64_t i = 0; i < s->count; i++) {
        if (q)
            row_load(q, begin + i, group, s->q + i * w->ldk);
        row_load(k, begin + i, group, s->k + i * w->ldk);
    }
    chunk_zero(s->q + s->count * w->ldk, (s->rows - s->count) * w->ldk);
    chunk_zero(s->k + s->count * w->ldk, (s->rows - s->count) * w->ldk);
    chunk_transpose(s->kt, CHUNK, s->k, w->ldk, s->rows, w->ldk);
    if (q)
        chunk_pairs(s->qk, s->q, w->ldk, s->kt, s->rows, w->k);
    if (kk)
        chunk_pairs(s->kk, s->k, w->ldk, s->kt, s->rows, w->k);
}

/* The decays of a chunk, from c->gate and c->first. */
static inline void chunk_decays(struct chunk *c)
{
    int32_t document[CHUNK], documents = 0;
    int64_t n = c->s.count;
    float sum = 0;

    for (int64_t i = 0; i < CHUNK; i++) {
        document[i] = i < n ? documents += c->first[i] : -1;
        c->sum[i] = sum = i >= n ? sum : c->first[i] ? 0 : sum + c->gate[i];
    }
    for (int64_t i = 0; i < CHUNK; i += CPU_LANES) {
        vi of;
        vf g = v_load(c->sum + i);

        memcpy(&of, document + i, sizeof(of));
        v_store(c->since + i, v_select(of == v_seti(0), v_exp(g), v_set(0)));
        v_store(c->until + i, v_select(of == v_seti(documents), v_exp(v_set(sum) - g), v_set(0)));
    }
    c->kept = documents == 0 ? c->since[n - 1] : 0;
    for (int64_t i = 0; i < c->s.rows; i++)
        for (int64_t j = 0; j < i / GRAIN * GRAIN + GRAIN; j += CPU_LANES) {
            vf g = v_set(c->sum[i]) - v_load(c->sum + j);
            vi of;

            memcpy(&of, document + j, sizeof(of));
            of = (of == v_seti(document[i])) & (v_iota() + v_seti((int32_t)j) <= (int32_t)i);
            v_store(c->decay + i * CHUNK + j, v_select(of, v_exp(g), v_set(0)));
        }
}

/* pairs = D * q k^T */
static inline void chunk_weigh(struct chunk *c)
{
    for (int64_t i = 0; i < c->s.rows; i++)
        for (int64_t j = i * CHUNK; j < i * CHUNK + i / GRAIN * GRAIN + GRAIN; j += CPU_LANES)
            v_store(c->pairs + j, v_load(c->decay + j) * v_load(c->s.qk + j));
}

/* Rows of x times a number each. */
static inline void chunk_scaled(struct chunk *c, const float *factor, const float *x)
{
    for (int64_t i = 0; i < c->s.rows; i++)
        chunk_scale(c->scaled + i * c->w.ldk, factor[i], x + i * c->w.ldk, c->w.ldk);
}

/* ---- forward ---- */

/* o[CHUNK][ldv], from u, pairs and the state before. */
static inline void chunk_output(const struct chunk *c, const float *s, float *o)
{
    int64_t n = c->s.rows, ldv = c->w.ldv;

    chunk_multiply(o, ldv, c->s.q, c->w.ldk, s, ldv, n, ldv, c->w.k, false);
    for (int64_t i = 0; i < n; i++)
        chunk_scale(o + i * ldv, c->since[i], o + i * ldv, ldv);
    chunk_gather(o, c->pairs, c->u, n, ldv);
}

/* The state becomes the one after the chunk. */
static inline void chunk_advance(struct chunk *c, float *s)
{
    int64_t ldk = c->w.ldk, ldv = c->w.ldv;

    chunk_scale(s, c->kept, s, ldk * ldv);
    chunk_scaled(c, c->until, c->s.k);
    chunk_multiply_turned(s, ldv, c->scaled, ldk, c->u, ldv, ldk, ldv, c->s.rows);
}

/* ---- gradient ---- */

/* One head's gradients in a chunk. */
struct back {
    float *ds;       /* of the state behind, then of the one before, [ldk][ldv] */
    float *turned;   /* transposed: the state before, at last; [ldv][ldk] */
    float *d_o, *du; /* [CHUNK][ldv] */
    float *ut;       /* u transposed, [ldv][CHUNK] */
    float *dq, *dk;  /* [CHUNK][ldk] */
    float *pairs;    /* of q k^T, [CHUNK][CHUNK] */
    /* Products of gates: over pairs of tokens with a gate between them (without the sums over
       them, which would cancel), the state before on its way to a token, a token on its way to the
       state behind, and the state from before to behind. */
    float between[CHUNK], since[CHUNK], until[CHUNK], kept;
};

#define BACK_FLOATS(ldk, ldv) (2 * (ldk) * (ldv) + CHUNK * (3 * (ldv) + 2 * (ldk) + CHUNK))
static inline float *back_place(struct back *b, const struct widths *w, float *at)
{
    b->ds = at;
    b->turned = b->ds + w->ldk * w->ldv;
    b->d_o = b->turned + w->ldk * w->ldv;
    b->du = b->d_o + CHUNK * w->ldv;
    b->ut = b->du + CHUNK * w->ldv;
    b->dq = b->ut + CHUNK * w->ldv;
    b->dk = b->dq + CHUNK * w->ldk;
    b->pairs = b->dk + CHUNK * w->ldk;
    return b->pairs + CHUNK * CHUNK;
}

/* du from the state behind and from o; ds is not changed. */
static inline void back_into(struct chunk *c, struct back *b)
{
    int64_t n = c->s.rows, ldv = c->w.ldv;

    chunk_scaled(c, c->until, c->s.k);
    chunk_multiply(b->du, ldv, c->scaled, c->w.ldk, b->ds, ldv, n, ldv, c->w.k, false);
    chunk_scatter(b->du, c->pairs, b->d_o, n, ldv);
}

/* ds becomes what the state before has of the one behind, and of o. */
static inline void back_advance(struct chunk *c, struct back *b)
{
    int64_t ldk = c->w.ldk, ldv = c->w.ldv;

    chunk_scale(b->ds, c->kept, b->ds, ldk * ldv);
    chunk_scaled(c, c->since, c->s.q);
    chunk_multiply_turned(b->ds, ldv, c->scaled, ldk, b->d_o, ldv, ldk, ldv, c->s.rows);
}

/* Gradients of gates by those of products with D: d[i][j] belongs to value[i][j], which decays by
   the gates behind j up to i. */
static inline void back_decays(const struct chunk *c, struct back *b, const float *d,
                               const float *value)
{
    float later[CHUNK] = {0};

    for (int64_t i = c->s.count - 1; i >= 0; i--) {
        vf sum = v_set(0);

        for (int64_t j = 0; j < i / GRAIN * GRAIN + GRAIN; j += CPU_LANES) {
            vf x = v_load(later + j) + v_load(d + i * CHUNK + j) * v_load(value + i * CHUNK + j);

            v_store(later + j, x);
            sum += v_select(v_iota() + v_seti((int32_t)j) < (int32_t)i, x, v_set(0));
        }
        b->between[i] += v_sum(sum);
    }
}

/* d *= D */
static inline void back_weigh(const struct chunk *c, float *d)
{
    for (int64_t i = 0; i < c->s.rows; i++)
        for (int64_t j = i * CHUNK; j < i * CHUNK + i / GRAIN * GRAIN + GRAIN; j += CPU_LANES)
            v_store(d + j, v_load(c->decay + j) * v_load(d + j));
}

/* du, dq, dk, ds and those of gates, from d_o, u, the state before and ds of the one behind. */
static inline void back_chunk(struct chunk *c, struct back *b, const float *s)
{
    int64_t n = c->s.rows, ldk = c->w.ldk, ldv = c->w.ldv;

    b->kept = c->kept > 0 ? c->kept * chunk_dot(s, b->ds, ldk * ldv) : 0;
    chunk_zero(b->between, CHUNK);
    back_into(c, b);
    chunk_transpose(b->turned, ldk, b->ds, ldv, ldk, ldv);
    chunk_multiply(b->dk, ldk, c->u, ldv, b->turned, ldk, n, ldk, c->w.v, false);
    for (int64_t i = 0; i < c->s.count; i++) {
        float *dk = b->dk + i * ldk;

        chunk_scale(dk, c->until[i], dk, ldk);
        b->until[i] = chunk_dot(dk, c->s.k + i * ldk, ldk);
    }
    chunk_transpose(b->turned, ldk, s, ldv, ldk, ldv);
    chunk_multiply(b->dq, ldk, b->d_o, ldv, b->turned, ldk, n, ldk, c->w.v, false);
    for (int64_t i = 0; i < c->s.count; i++) {
        chunk_scale(b->dq + i * ldk, c->since[i], b->dq + i * ldk, ldk);
        b->since[i] = chunk_dot(b->dq + i * ldk, c->s.q + i * ldk, ldk);
    }
    back_advance(c, b);
    chunk_transpose(b->ut, CHUNK, c->u, ldv, n, ldv);
    chunk_pairs(b->pairs, b->d_o, ldv, b->ut, n, c->w.v);
    back_decays(c, b, b->pairs, c->pairs);
    back_weigh(c, b->pairs);
    chunk_gather(b->dq, b->pairs, c->s.k, n, ldk);
    chunk_scatter(b->dk, b->pairs, c->s.q, n, ldk);
}

/* The gradients of the chunk's gates. */
static inline void back_gates(const struct chunk *c, const struct back *b, float *dgate)
{
    float sum = b->kept;

    for (int64_t i = 0; i < c->s.count; i++) {
        dgate[i] = b->between[i] + sum;
        sum += b->until[i];
    }
    sum = 0;
    for (int64_t i = c->s.count - 1; i >= 0; i--) {
        sum += b->since[i];
        dgate[i] = c->first[i] ? 0 : dgate[i] + sum;
    }
}

/* ---- states: [.., heads, rows, columns], float32 ---- */

static inline void state_load(const struct ct_launch *l, int input, int64_t b, int64_t h, float *s,
                              const struct widths *w)
{
    struct rows r = rows_of_input(l, input, b, 3);

    chunk_zero(s, w->ldk * w->ldv);
    for (int64_t i = 0; r.at && i < w->k; i++)
        row_load(&(struct rows){r.at + h * r.token, r.head, 0, r.size, r.dtype}, i, 0,
                 s + i * w->ldv);
}

static inline void state_store(const struct ct_tensor *t, int64_t b, int64_t h, const float *s,
                               int64_t ld, int64_t rows)
{
    struct rows r = rows_of(t, b, 3);

    for (int64_t i = 0; i < rows; i++)
        row_store(&(struct rows){r.at + h * r.token, r.head, 0, r.size, r.dtype}, i, 0, false,
                  s + i * ld);
}

#endif
