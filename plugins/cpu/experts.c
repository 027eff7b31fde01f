/*
 * experts, experts_dx and experts_dw: grouped matrix products.
 *
 * The choices of experts are sorted by expert, and split into tiles of up to TILE rows. One thread
 * computes a tile: it copies the rows of its tokens, and multiplies them in blocks of TILE or of
 * TAIL rows, the last one padded with zeros. So products have two shapes, whatever is chosen, and
 * are prepared once.
 *
 * experts and experts_dx run a wave of tiles at a time, and then add the tiles' rows to those of
 * their tokens, in the order of the tiles. In experts_dw a thread takes all tiles of an expert. The
 * order of all sums therefore depends on the choices alone.
 */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "convert.h"
#include "gemm.h"

#define TILE 64
#define TAIL 16
#define WAVE 4 /* tiles of a wave for each thread */

/* The second of a pair adds to C. */
enum { GATE, DOWN, DH, DX, DX_MORE, DW, DW_MORE, DDOWN, DDOWN_MORE, PRODUCTS };
enum { W_GATE = 3, W_UP, W_DOWN, WEIGHTS }; /* inputs of experts */

struct tile {
    int64_t expert, from, rows; /* choices [from, from + rows) of c->order */
};

struct state {
    int64_t tokens, k, n, f, count; /* experts of this rank */
    int threads;
    bool native;                           /* x, gate and up are multiplied in bfloat16 */
    bool widens;                           /* weights are */
    struct cpu_gemm *product[PRODUCTS][2]; /* of TILE and of TAIL rows */
    size_t scratch_bytes;                  /* of a product */
    /* In the workspace: */
    size_t order, first, tiles; /* choices by expert; the first one of each, and the end; tiles */
    size_t rows, sum;           /* the rows that a wave's tiles give; sums of tokens */
    size_t lanes, lane_bytes;
    /* In a lane, which is a thread's own: */
    size_t x, x_raw, dy, g, u, h, dh, weight[WEIGHTS], scratch;
};

/* One call: operands, and the addresses of the state's workspace. */
struct call {
    const struct state *s;
    const struct ct_launch *l;
    const float *weights;
    const int32_t *ids;
    int at; /* the input x */
    int64_t *order, *first;
    struct tile *tiles;
    int64_t tile_count, wave; /* wave: the first tile of the one that runs */
    float *rows, *sum;
    bool weighted; /* rows of tokens are sums of weighted rows of tiles */
    int (*run_tile)(const struct call *c, int lane, const struct tile *t, float *rows);
    _Atomic int status;
    _Atomic int64_t next; /* expert */
};

/* ---- preparing ---- */

/* C[m, n] = A[m, k] B, A dense, or its transpose; B = w[n, k]^T or w[k, n]. Either m or k is the
   number of rows. */
static int product(struct state *s, int which, int64_t m, int64_t n, int64_t k, enum ct_dtype type,
                   bool a_transposed, bool w_transposed, bool accumulate)
{
    static const int64_t sizes[] = {TILE, TAIL};
    int rc = 0;

    for (int i = 0; rc >= 0 && i < 2; i++) {
        int64_t rows = a_transposed ? m : sizes[i], depth = a_transposed ? sizes[i] : k;
        struct cpu_gemm_spec spec = {.m = rows,
                                     .n = n,
                                     .k = depth,
                                     .a_type = type,
                                     .b_type = type,
                                     .c_type = CT_F32,
                                     .a_row = a_transposed ? 1 : depth,
                                     .a_col = a_transposed ? rows : 1,
                                     .b_row = w_transposed ? 1 : n,
                                     .b_col = w_transposed ? depth : 1,
                                     .c_row = n,
                                     .accumulate = accumulate,
                                     .lanes = s->threads};

        rc = cpu_gemm_prepare(&spec, &s->product[which][i]);
        if (rc >= 0 && cpu_gemm_workspace(s->product[which][i]) > s->scratch_bytes)
            s->scratch_bytes = cpu_gemm_workspace(s->product[which][i]);
    }
    return rc;
}

static int prepare_products(struct state *s, bool forward, bool dx)
{
    int64_t n = s->n, f = s->f;
    int rc = product(s, GATE, 0, f, n, s->native ? CT_BF16 : CT_F32, false, true, false);

    if (rc >= 0 && forward)
        return product(s, DOWN, 0, n, f, CT_F32, false, true, false);
    if (rc >= 0)
        rc = product(s, DH, 0, f, n, CT_F32, false, false, false);
    for (int more = 0; rc >= 0 && more < 2; more++)
        if (dx)
            rc = product(s, DX + more, 0, n, f, CT_F32, false, false, more);
        else {
            rc = product(s, DW + more, f, n, 0, CT_F32, true, false, more);
            if (rc >= 0)
                rc = product(s, DDOWN + more, n, f, 0, CT_F32, true, false, more);
        }
    return rc;
}

static void plan_workspace(struct ct_prepare *p, struct state *s)
{
    size_t *size = &p->workspace, lane = 0, choices = (size_t)(s->tokens * s->k);
    size_t n = TILE * (size_t)s->n * sizeof(float), f = TILE * (size_t)s->f * sizeof(float);
    bool sums = p->outs < 3;

    s->order = cpu_carve(size, choices * sizeof(int64_t));
    s->first = cpu_carve(size, (size_t)(s->count + 1) * sizeof(int64_t));
    s->tiles = cpu_carve(size, (choices / TILE + (size_t)s->count) * sizeof(struct tile));
    s->rows = cpu_carve(size, sums ? (size_t)(WAVE * s->threads) * n : 0);
    s->sum = cpu_carve(size, sums ? (size_t)(s->tokens * s->n) * sizeof(float) : 0);
    s->x = cpu_carve(&lane, n);
    s->x_raw = cpu_carve(&lane, s->native ? n : 0);
    s->dy = cpu_carve(&lane, n);
    s->g = cpu_carve(&lane, f);
    s->u = cpu_carve(&lane, f);
    s->h = cpu_carve(&lane, f);
    s->dh = cpu_carve(&lane, f);
    for (int i = W_GATE; i < WEIGHTS; i++)
        s->weight[i] = cpu_carve(&lane, s->widens ? (size_t)(s->f * s->n) * sizeof(float) : 0);
    s->scratch = cpu_carve(&lane, s->scratch_bytes);
    s->lane_bytes = lane;
    s->lanes = cpu_carve(size, lane * (size_t)s->threads);
}

/* The op is a gradient if it has several outputs, and dw if it has three. */
static int prepare(struct ct_prepare *p)
{
    const struct ct_tensor *in = p->in + (p->outs == 1 ? 0 : 1);
    struct state *s = ct_arena_new(p->arena, struct state);
    int rc;

    s->n = in[W_GATE].shape[2];
    s->f = in[W_GATE].shape[1];
    s->count = in[W_GATE].shape[0];
    s->k = in[1].shape[in[1].ndim - 1];
    s->tokens = ct_tensor_count(&in[1]) / s->k;
    s->threads = cpu_threads();
    s->native = in[0].dtype == CT_BF16 && cpu_bf16_native();
    s->widens = in[0].dtype == CT_BF16;
    rc = prepare_products(s, p->outs == 1, p->outs == 2);
    if (rc < 0)
        return rc;
    plan_workspace(p, s);
    p->state = s;
    return 0;
}

static bool accepts(const struct ct_prepare *p)
{
    int at = p->outs == 1 ? 0 : 1;
    enum ct_dtype type = p->in[at].dtype;

    for (int i = 0; i < p->ins; i++)
        if (i != at + 1 && i != at + 2 && p->in[i].dtype != type)
            return false;
    for (int i = 0; i < p->outs; i++)
        if (p->out[i].dtype != CT_F32 &&
            (i > 0 || p->outs == 3 || !cpu_is_compute_dtype(p->out[i].dtype)))
            return false;
    return cpu_is_compute_dtype(type) && p->in[at + 1].dtype == CT_F32 &&
           ct_tensor_count(&p->in[at + 3]) > 0;
}

/* ---- choices ---- */

static struct call begin(const struct ct_launch *l)
{
    const struct state *s = l->state;
    char *w = l->workspace;
    int at = l->outs == 1 ? 0 : 1;

    return (struct call){.s = s,
                         .l = l,
                         .at = at,
                         .weights = l->in[at + 1].data,
                         .ids = l->in[at + 2].data,
                         .order = (int64_t *)(void *)(w + s->order),
                         .first = (int64_t *)(void *)(w + s->first),
                         .tiles = (struct tile *)(void *)(w + s->tiles),
                         .rows = (float *)(void *)(w + s->rows),
                         .sum = (float *)(void *)(w + s->sum)};
}

/* Sort the choices of this rank's experts, in the order of tokens. */
static int sort(const struct call *c)
{
    const struct state *s = c->s;
    int64_t from = ct_launch_offset(c->l, c->l->op->in[c->at + W_GATE], 0);
    int64_t all = c->l->op->in[c->at + W_GATE]->shape[0], total = 0;

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

static struct tile tile_at(const struct call *c, int64_t expert, int64_t from)
{
    int64_t left = c->first[expert + 1] - from;

    return (struct tile){expert, from, left < TILE ? left : TILE};
}

static void cut(struct call *c)
{
    for (int64_t e = 0; e < c->s->count; e++)
        for (int64_t at = c->first[e]; at < c->first[e + 1]; at += TILE)
            c->tiles[c->tile_count++] = tile_at(c, e, at);
}

/* ---- one tile ---- */

static char *lane_of(const struct call *c, int lane)
{
    return (char *)c->l->workspace + c->s->lanes + c->s->lane_bytes * (size_t)lane;
}

static float *floats(const struct call *c, int lane, size_t offset)
{
    return (float *)(void *)(lane_of(c, lane) + offset);
}

static const char *raw_weight(const struct call *c, int which, int64_t expert)
{
    const struct ct_tensor *w = &c->l->in[c->at + which];

    return (const char *)w->data + (size_t)(expert * c->s->f * c->s->n) * ct_dtype_size(w->dtype);
}

/* Widen an expert's weights, unless the tile before was of the same expert. */
static void widen_weights(const struct call *c, int lane, int64_t expert)
{
    int64_t n = c->s->f * c->s->n;

    for (int i = W_GATE; c->s->widens && i < WEIGHTS; i++)
        cpu_widen(floats(c, lane, c->s->weight[i]), (const void *)raw_weight(c, i, expert),
                  (struct ct_matrix){.rows = 1, .columns = n, .stride = n});
}

static const float *weight(const struct call *c, int lane, int which, int64_t expert)
{
    return c->s->widens ? floats(c, lane, c->s->weight[which])
                        : (const float *)(const void *)raw_weight(c, which, expert);
}

static int64_t padded(int64_t rows)
{
    return rows > TILE - TAIL ? TILE : (rows + TAIL - 1) / TAIL * TAIL;
}

/* A product over a tile's rows, which are of A and C, or of A^T and B. Strides are in bytes. */
static int multiply(const struct call *c, int lane, int which, int64_t rows, const void *a,
                    size_t a_stride, const void *b, size_t b_stride, float *to, int64_t to_stride)
{
    int small = padded(rows) < TILE, rc = 0;
    int64_t step = small ? TAIL : TILE;

    for (int64_t at = 0; rc >= 0 && at < rows; at += step) {
        rc = cpu_gemm_run_alone(c->s->product[which][small], lane,
                                (const char *)a + (size_t)at * a_stride,
                                (const char *)b + (size_t)at * b_stride, to + at * to_stride,
                                lane_of(c, lane) + c->s->scratch);
        if (which == DW || which == DDOWN)
            which++;
    }
    return rc;
}

static int multiply_rows(const struct call *c, int lane, int which, int64_t rows, const float *a,
                         int64_t a_columns, const float *w, float *to, int64_t to_columns)
{
    return multiply(c, lane, which, rows, a, (size_t)a_columns * sizeof(*a), w, 0, to, to_columns);
}

static int add_product(const struct call *c, int lane, int which, int64_t rows, const float *a,
                       int64_t a_columns, const float *b, int64_t b_columns, float *to)
{
    return multiply(c, lane, which, rows, a, (size_t)a_columns * sizeof(*a), b,
                    (size_t)b_columns * sizeof(*b), to, 0);
}

static void to_float(enum ct_dtype dtype, const void *from, int64_t n, float *to)
{
    if (dtype == CT_F32)
        memcpy(to, from, (size_t)n * sizeof(*to));
    else
        cpu_widen(to, from, (struct ct_matrix){.rows = 1, .columns = n, .stride = n});
}

static void clear_rows(float *rows, int64_t columns, const struct tile *t)
{
    memset(rows + t->rows * columns, 0,
           (size_t)((padded(t->rows) - t->rows) * columns) * sizeof(*rows));
}

/* The rows of the tile's tokens in tensor `from`, in float32. */
static void copy_rows(const struct call *c, const struct ct_tensor *from, const struct tile *t,
                      float *to)
{
    int64_t n = c->s->n;
    size_t bytes = (size_t)n * ct_dtype_size(from->dtype);

    for (int64_t r = 0; r < t->rows; r++)
        to_float(from->dtype,
                 (const char *)from->data + (size_t)(c->order[t->from + r] / c->s->k) * bytes, n,
                 to + r * n);
    clear_rows(to, n, t);
}

/* x gate^T and x up^T in bfloat16. */
static int hidden_native(const struct call *c, int lane, const struct tile *t)
{
    const struct state *s = c->s;
    size_t bytes = (size_t)s->n * sizeof(uint16_t);
    char *x = lane_of(c, lane) + s->x_raw;
    int rc;

    for (int64_t r = 0; r < padded(t->rows); r++) {
        const char *from = c->l->in[c->at].data;

        if (r < t->rows)
            memcpy(x + (size_t)r * bytes, from + (size_t)(c->order[t->from + r] / s->k) * bytes,
                   bytes);
        else
            memset(x + (size_t)r * bytes, 0, bytes);
    }
    rc = multiply(c, lane, GATE, t->rows, x, bytes, raw_weight(c, W_GATE, t->expert), 0,
                  floats(c, lane, s->g), s->f);
    return rc < 0 ? rc
                  : multiply(c, lane, GATE, t->rows, x, bytes, raw_weight(c, W_UP, t->expert), 0,
                             floats(c, lane, s->u), s->f);
}

/* The tile's rows of x; g = x gate^T, u = x up^T and h = silu(g) u. */
static int hidden(const struct call *c, int lane, const struct tile *t)
{
    const struct state *s = c->s;
    float *x = floats(c, lane, s->x), *g = floats(c, lane, s->g), *u = floats(c, lane, s->u);
    float *h = floats(c, lane, s->h);
    int rc;

    if (!s->native || c->l->outs == 3)
        copy_rows(c, &c->l->in[c->at], t, x);
    if (s->native) {
        rc = hidden_native(c, lane, t);
    } else {
        rc = multiply_rows(c, lane, GATE, t->rows, x, s->n, weight(c, lane, W_GATE, t->expert), g,
                           s->f);
        if (rc >= 0)
            rc = multiply_rows(c, lane, GATE, t->rows, x, s->n, weight(c, lane, W_UP, t->expert), u,
                               s->f);
    }
    for (int64_t i = 0; rc >= 0 && i < padded(t->rows) * s->f; i++)
        h[i] = g[i] / (1 + expf(-g[i])) * u[i];
    return rc;
}

/* The tile's rows of dy, times their weights if `weighted`; dh from them. */
static int hidden_gradient(const struct call *c, int lane, const struct tile *t, bool weighted)
{
    const struct state *s = c->s;
    float *dy = floats(c, lane, s->dy);

    copy_rows(c, &c->l->in[0], t, dy);
    for (int64_t r = 0; weighted && r < t->rows; r++)
        for (int64_t n = 0; n < s->n; n++)
            dy[r * s->n + n] *= c->weights[c->order[t->from + r]];
    return multiply_rows(c, lane, DH, t->rows, dy, s->n, weight(c, lane, W_DOWN, t->expert),
                         floats(c, lane, s->dh), s->f);
}

/* dg over g and du over u, from dh. */
static void through_silu(const struct call *c, int lane, const struct tile *t)
{
    float *g = floats(c, lane, c->s->g), *u = floats(c, lane, c->s->u);
    const float *dh = floats(c, lane, c->s->dh);

    for (int64_t i = 0; i < padded(t->rows) * c->s->f; i++) {
        float a = 1 / (1 + expf(-g[i])), du = dh[i] * g[i] * a;

        g[i] = dh[i] * u[i] * a * (1 + g[i] * (1 - a));
        u[i] = du;
    }
}

static int forward_tile(const struct call *c, int lane, const struct tile *t, float *rows)
{
    const struct state *s = c->s;
    int rc = hidden(c, lane, t);

    return rc < 0 ? rc
                  : multiply_rows(c, lane, DOWN, t->rows, floats(c, lane, s->h), s->f,
                                  weight(c, lane, W_DOWN, t->expert), rows, s->n);
}

static int dx_tile(const struct call *c, int lane, const struct tile *t, float *rows)
{
    const struct state *s = c->s;
    float *dweights = c->l->out[1].data, *h = floats(c, lane, s->h), *dh = floats(c, lane, s->dh);
    int rc = hidden(c, lane, t);

    if (rc >= 0)
        rc = hidden_gradient(c, lane, t, false);
    if (rc < 0)
        return rc;
    for (int64_t r = 0; r < t->rows; r++) {
        int64_t choice = c->order[t->from + r];
        float dot = 0;

        for (int64_t j = r * s->f; j < (r + 1) * s->f; j++) {
            dot += dh[j] * h[j];
            dh[j] *= c->weights[choice];
        }
        dweights[choice] = dot;
    }
    through_silu(c, lane, t);
    rc = multiply_rows(c, lane, DX, t->rows, floats(c, lane, s->g), s->f,
                       weight(c, lane, W_GATE, t->expert), rows, s->n);
    return rc < 0 ? rc
                  : multiply_rows(c, lane, DX_MORE, t->rows, floats(c, lane, s->u), s->f,
                                  weight(c, lane, W_UP, t->expert), rows, s->n);
}

/* ---- waves: rows of tokens ---- */

static int64_t wave_end(const struct call *c)
{
    int64_t end = c->wave + WAVE * c->s->threads;

    return end < c->tile_count ? end : c->tile_count;
}

static void run_wave(void *context, int thread, int threads)
{
    struct call *c = context;
    struct cpu_range mine = cpu_share(wave_end(c) - c->wave, 1, thread, threads);
    int rc = 0;

    for (int64_t i = mine.begin; rc >= 0 && i < mine.end; i++) {
        const struct tile *t = &c->tiles[c->wave + i];

        if (i == mine.begin || t->expert != t[-1].expert)
            widen_weights(c, thread, t->expert);
        rc = c->run_tile(c, thread, t, c->rows + i * TILE * c->s->n);
    }
    if (rc < 0)
        c->status = rc;
}

/* Add some columns of the wave's rows. */
static void add_wave(void *context, int thread, int threads)
{
    struct call *c = context;
    const struct state *s = c->s;
    struct cpu_range mine = cpu_share(s->n, 16, thread, threads);

    for (int64_t i = c->wave; i < wave_end(c); i++)
        for (int64_t r = 0; r < c->tiles[i].rows; r++) {
            int64_t choice = c->order[c->tiles[i].from + r];
            const float *row = c->rows + ((i - c->wave) * TILE + r) * s->n;
            float *sum = c->sum + choice / s->k * s->n;
            float factor = c->weighted ? c->weights[choice] : 1;

            for (int64_t n = mine.begin; n < mine.end; n++)
                sum[n] += factor * row[n];
        }
}

static void store_sums(const struct call *c)
{
    const struct ct_tensor *y = &c->l->out[0];
    int64_t n = c->s->tokens * c->s->n;

    if (y->dtype == CT_F32)
        memcpy(y->data, c->sum, (size_t)n * sizeof(*c->sum));
    else
        cpu_round_all(
            y->data, c->sum,
            (struct ct_matrix){.rows = c->s->tokens, .columns = c->s->n, .stride = c->s->n}, false);
}

static int failure(const struct call *c)
{
    return c->status < 0 ? ct_fail(c->status, "oneDNN failed on a tile of experts") : 0;
}

static int run_waves(struct call *c)
{
    int rc = sort(c);

    if (rc < 0)
        return rc;
    memset(c->sum, 0, (size_t)(c->s->tokens * c->s->n) * sizeof(*c->sum));
    cut(c);
    for (; c->wave < c->tile_count && c->status >= 0; c->wave = wave_end(c)) {
        cpu_parallel(run_wave, c);
        cpu_parallel(add_wave, c);
    }
    store_sums(c);
    return failure(c);
}

static int run_forward(const struct ct_launch *l)
{
    struct call c = begin(l);

    c.run_tile = forward_tile;
    c.weighted = true;
    return run_waves(&c);
}

static int run_dx(const struct ct_launch *l)
{
    struct call c = begin(l);

    memset(l->out[1].data, 0, (size_t)ct_tensor_count(&l->out[1]) * sizeof(float));
    c.run_tile = dx_tile;
    return run_waves(&c);
}

/* ---- experts: their gradients ---- */

static float *gradient(const struct call *c, int i, int64_t expert)
{
    return (float *)c->l->out[i].data + expert * c->s->f * c->s->n;
}

static int dw_tile(const struct call *c, int lane, const struct tile *t)
{
    const struct state *s = c->s;
    float *dy = floats(c, lane, s->dy), *x = floats(c, lane, s->x), *g = floats(c, lane, s->g);
    float *to[3];
    int add[3], rc = hidden(c, lane, t);

    for (int i = 0; i < 3; i++) {
        to[i] = gradient(c, i, t->expert);
        add[i] = t->from > c->first[t->expert] || c->l->accumulate >> i & 1;
    }
    if (rc >= 0)
        rc = hidden_gradient(c, lane, t, true);
    if (rc >= 0)
        rc = add_product(c, lane, DDOWN + add[2], t->rows, dy, s->n, floats(c, lane, s->h), s->f,
                         to[2]);
    if (rc < 0)
        return rc;
    through_silu(c, lane, t);
    rc = add_product(c, lane, DW + add[0], t->rows, g, s->f, x, s->n, to[0]);
    return rc < 0 ? rc
                  : add_product(c, lane, DW + add[1], t->rows, floats(c, lane, s->u), s->f, x, s->n,
                                to[1]);
}

static int dw_expert(const struct call *c, int lane, int64_t e)
{
    int rc = 0;

    if (c->first[e] == c->first[e + 1])
        for (int i = 0; i < 3; i++)
            if (!(c->l->accumulate >> i & 1))
                memset(gradient(c, i, e), 0, (size_t)(c->s->f * c->s->n) * sizeof(float));
    if (c->first[e] < c->first[e + 1])
        widen_weights(c, lane, e);
    for (int64_t at = c->first[e]; rc >= 0 && at < c->first[e + 1]; at += TILE) {
        struct tile t = tile_at(c, e, at);

        rc = dw_tile(c, lane, &t);
    }
    return rc;
}

/* Threads take the next expert when they are ready. */
static void run_experts(void *context, int thread, int threads)
{
    struct call *c = context;
    int64_t e;

    (void)threads;
    while (c->status >= 0 && (e = c->next++) < c->s->count) {
        int rc = dw_expert(c, thread, e);

        if (rc < 0)
            c->status = rc;
    }
}

static int run_dw(const struct ct_launch *l)
{
    struct call c = begin(l);
    int rc = sort(&c);

    if (rc < 0)
        return rc;
    cpu_parallel(run_experts, &c);
    return failure(&c);
}

/* ---- loads ---- */

static bool accepts_load(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_I32 && p->out[0].dtype == CT_F32;
}

static int run_load(const struct ct_launch *l)
{
    int64_t n = l->out[1].shape[0], sequences = l->in[0].shape[0];
    int64_t each = l->in[0].shape[1] * l->in[0].shape[2];
    const int32_t *ids = l->in[0].data;
    float *load = l->out[0].data, *total = l->out[1].data;

    memset(load, 0, sizeof(*load) * (size_t)(sequences * n));
    memset(total, 0, sizeof(*total) * (size_t)n);
    for (int64_t i = 0; i < sequences * each; i++) {
        if (ids[i] < 0 || ids[i] >= n)
            return ct_fail(CT_EINVAL, "expert %d at position %lld is not below %lld", (int)ids[i],
                           (long long)i, (long long)n);
        load[i / each * n + ids[i]]++;
        total[ids[i]]++;
    }
    return 0;
}

const struct ct_kernel cpu_experts_kernels[] = {
    CT_KERNEL("expert_load", "plain", 0, accepts_load, NULL, run_load),
    CT_KERNEL("experts", "onednn", 0, accepts, prepare, run_forward),
    CT_KERNEL("experts_dx", "onednn", 0, accepts, prepare, run_dx),
    CT_KERNEL("experts_dw", "onednn", CT_KERNEL_ACCUMULATES, accepts, prepare, run_dw),
    {0},
};
