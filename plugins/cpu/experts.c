/*
 * experts, experts_dx and experts_dw: grouped matrix products.
 *
 * The choices of experts are sorted by expert. The rows of one expert are copied into tiles of TILE
 * rows, the last one padded with zeros, so products have one shape, whatever is chosen, and are
 * prepared once. What a tile gives is added to the rows of its tokens. The order of all sums
 * depends on the choices alone.
 */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>

#include "convert.h"
#include "gemm.h"

#define TILE 64

enum { GATE, DOWN, DH, DX, DX_MORE, DW, DDOWN, PRODUCTS };

struct state {
    int64_t tokens, k, n, f, count; /* experts of this rank */
    struct cpu_gemm *product[PRODUCTS];
    /* in the workspace: */
    size_t order, first;            /* choices by expert; the first one of each, and the end */
    size_t x, dy, g, u, h, dh, sum; /* a tile's rows; sums of tokens */
    size_t scratch;                 /* of products */
};

/* One call: operands, and the addresses of the state's workspace. */
struct call {
    const struct state *s;
    const struct ct_launch *l;
    const float *weights;
    const int32_t *ids;
    int at; /* the input x */
    int64_t *order, *first;
    char *x;
    float *dy, *g, *u, *h, *dh, *sum;
    void *scratch;
};

/* ---- preparing ---- */

/* C[m, n] = A[m, k] B, A dense, or its transpose; B = w[n, k]^T or w[k, n]. */
static int product(struct ct_prepare *p, struct state *s, int which, int64_t m, int64_t n,
                   int64_t k, enum ct_dtype a, enum ct_dtype b, bool a_transposed,
                   bool w_transposed, bool accumulate)
{
    struct cpu_gemm_spec spec = {.m = m,
                                 .n = n,
                                 .k = k,
                                 .a_type = a,
                                 .b_type = b,
                                 .c_type = CT_F32,
                                 .a_row = a_transposed ? 1 : k,
                                 .a_col = a_transposed ? m : 1,
                                 .b_row = w_transposed ? 1 : n,
                                 .b_col = w_transposed ? k : 1,
                                 .c_row = n,
                                 .accumulate = accumulate};
    int rc = cpu_gemm_prepare(&spec, &s->product[which]);

    (void)p;
    if (rc >= 0 && cpu_gemm_workspace(s->product[which]) > s->scratch)
        s->scratch = cpu_gemm_workspace(s->product[which]);
    return rc;
}

/* at: the input x; the op is a gradient if it is 1, and dw if it has three outputs. */
static int prepare(struct ct_prepare *p)
{
    int at = p->outs == 1 ? 0 : 1, rc;
    const struct ct_tensor *in = p->in + at;
    struct state *s = ct_arena_new(p->arena, struct state);
    enum ct_dtype type = in[0].dtype;
    size_t scratch, *size = &p->workspace, tile = TILE * sizeof(float);

    s->n = in[3].shape[2];
    s->f = in[3].shape[1];
    s->count = in[3].shape[0];
    s->k = in[1].shape[in[1].ndim - 1];
    s->tokens = ct_tensor_count(&in[1]) / s->k;
    rc = product(p, s, GATE, TILE, s->f, s->n, type, type, false, true, false);
    if (rc >= 0 && at == 0)
        rc = product(p, s, DOWN, TILE, s->n, s->f, CT_F32, type, false, true, false);
    if (rc >= 0 && at == 1)
        rc = product(p, s, DH, TILE, s->f, s->n, CT_F32, type, false, false, false);
    if (rc >= 0 && p->outs == 2) {
        rc = product(p, s, DX, TILE, s->n, s->f, CT_F32, type, false, false, false);
        if (rc >= 0)
            rc = product(p, s, DX_MORE, TILE, s->n, s->f, CT_F32, type, false, false, true);
    }
    if (rc >= 0 && p->outs == 3) {
        rc = product(p, s, DW, s->f, s->n, TILE, CT_F32, type, true, false, true);
        if (rc >= 0)
            rc = product(p, s, DDOWN, s->n, s->f, TILE, CT_F32, CT_F32, true, false, true);
    }
    if (rc < 0)
        return rc;
    scratch = s->scratch;
    s->order = cpu_carve(size, (size_t)(s->tokens * s->k) * sizeof(int64_t));
    s->first = cpu_carve(size, (size_t)(s->count + 1) * sizeof(int64_t));
    s->x = cpu_carve(size, TILE * (size_t)s->n * ct_dtype_size(type));
    s->dy = cpu_carve(size, tile * (size_t)s->n);
    s->g = cpu_carve(size, tile * (size_t)s->f);
    s->u = cpu_carve(size, tile * (size_t)s->f);
    s->h = cpu_carve(size, tile * (size_t)s->f);
    s->dh = cpu_carve(size, tile * (size_t)(s->f > s->n ? s->f : s->n));
    s->sum = cpu_carve(size, p->outs == 3 ? 0 : (size_t)(s->tokens * s->n) * sizeof(float));
    s->scratch = cpu_carve(size, scratch);
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
           p->in[at + 3].shape[0] > 0;
}

/* ---- running ---- */

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
                         .x = w + s->x,
                         .dy = (float *)(void *)(w + s->dy),
                         .g = (float *)(void *)(w + s->g),
                         .u = (float *)(void *)(w + s->u),
                         .h = (float *)(void *)(w + s->h),
                         .dh = (float *)(void *)(w + s->dh),
                         .sum = (float *)(void *)(w + s->sum),
                         .scratch = w + s->scratch};
}

static void to_float(enum ct_dtype dtype, const void *from, int64_t n, float *to)
{
    if (dtype == CT_F32)
        memcpy(to, from, (size_t)n * sizeof(*to));
    else
        cpu_widen(to, from, (struct ct_matrix){.rows = 1, .columns = n, .stride = n});
}

static void from_float(enum ct_dtype dtype, const float *from, int64_t n, void *to)
{
    if (dtype == CT_F32)
        memcpy(to, from, (size_t)n * sizeof(*from));
    else
        cpu_round(to, from, (struct ct_matrix){.rows = 1, .columns = n, .stride = n}, false);
}

/* Sort the choices of this rank's experts, in the order of tokens. */
static int sort(const struct call *c)
{
    const struct state *s = c->s;
    int64_t from = ct_launch_offset(c->l, c->l->op->in[c->at + 3], 0);
    int64_t all = c->l->op->in[c->at + 3]->shape[0], total = 0;

    memset(c->first, 0, (size_t)(s->count + 1) * sizeof(*c->first));
    for (int64_t i = 0; i < s->tokens * s->k; i++) {
        int64_t e = c->ids[i] - from;

        if (c->ids[i] < 0 || c->ids[i] >= all)
            return ct_fail(CT_EINVAL, "expert %d at position %lld is not below %lld", c->ids[i],
                           (long long)i, (long long)all);
        if (e >= 0 && e < s->count)
            c->first[e]++;
    }
    for (int64_t e = 0; e <= s->count; e++) {
        int64_t here = c->first[e];

        c->first[e] = total;
        total += here;
    }
    for (int64_t i = 0; i < s->tokens * s->k; i++) {
        int64_t e = c->ids[i] - from;

        if (e >= 0 && e < s->count)
            c->order[c->first[e]++] = i;
    }
    memmove(c->first + 1, c->first, (size_t)s->count * sizeof(*c->first));
    c->first[0] = 0;
    return 0;
}

static const char *weight(const struct call *c, int which, int64_t expert)
{
    const struct ct_tensor *w = &c->l->in[c->at + which];

    return (const char *)w->data + (size_t)(expert * c->s->f * c->s->n) * ct_dtype_size(w->dtype);
}

static int multiply(const struct call *c, int which, const void *a, const void *b, float *to)
{
    return cpu_gemm_run(c->s->product[which], a, b, to, c->scratch);
}

/* Copy the rows of choices [from, from + rows) of x to the tile, and multiply them by gate and up:
   g, u, and h = silu(g) u. */
static int hidden(const struct call *c, int64_t expert, int64_t from, int64_t rows)
{
    const struct state *s = c->s;
    const struct ct_tensor *x = &c->l->in[c->at];
    size_t bytes = (size_t)s->n * ct_dtype_size(x->dtype);
    int rc;

    for (int64_t r = 0; r < rows; r++)
        memcpy(c->x + (size_t)r * bytes,
               (const char *)x->data + (size_t)(c->order[from + r] / s->k) * bytes, bytes);
    memset(c->x + (size_t)rows * bytes, 0, (size_t)(TILE - rows) * bytes);
    rc = multiply(c, GATE, c->x, weight(c, 3, expert), c->g);
    if (rc >= 0)
        rc = multiply(c, GATE, c->x, weight(c, 4, expert), c->u);
#pragma omp parallel for num_threads(cpu_threads())
    for (int64_t i = 0; i < rows * s->f; i++)
        c->h[i] = c->g[i] / (1 + expf(-c->g[i])) * c->u[i];
    memset(c->h + rows * s->f, 0, (size_t)((TILE - rows) * s->f) * sizeof(*c->h));
    return rc;
}

/* The rows of dy in the tile, times their weights if `weighted`; dh from them. */
static int hidden_gradient(const struct call *c, int64_t expert, int64_t from, int64_t rows,
                           bool weighted)
{
    const struct state *s = c->s;
    const struct ct_tensor *dy = &c->l->in[0];

    for (int64_t r = 0; r < rows; r++) {
        int64_t choice = c->order[from + r];
        float factor = weighted ? c->weights[choice] : 1;

        to_float(dy->dtype,
                 (const char *)dy->data + (size_t)(choice / s->k * s->n) * ct_dtype_size(dy->dtype),
                 s->n, c->dy + r * s->n);
        for (int64_t n = 0; n < s->n; n++)
            c->dy[r * s->n + n] *= factor;
    }
    memset(c->dy + rows * s->n, 0, (size_t)((TILE - rows) * s->n) * sizeof(*c->dy));
    return multiply(c, DH, c->dy, weight(c, 5, expert), c->dh);
}

/* dg over g and du over u, from dh. */
static void through_silu(const struct call *c)
{
#pragma omp parallel for num_threads(cpu_threads())
    for (int64_t i = 0; i < TILE * c->s->f; i++) {
        float g = c->g[i], a = 1 / (1 + expf(-g));

        c->g[i] = c->dh[i] * c->u[i] * a * (1 + g * (1 - a));
        c->u[i] = c->dh[i] * g * a;
    }
}

static void add_rows(const struct call *c, const float *tile, int64_t from, int64_t rows,
                     bool weighted)
{
    int64_t n = c->s->n;

    for (int64_t r = 0; r < rows; r++) {
        int64_t choice = c->order[from + r];
        float factor = weighted ? c->weights[choice] : 1;

        for (int64_t i = 0; i < n; i++)
            c->sum[choice / c->s->k * n + i] += factor * tile[r * n + i];
    }
}

static int forward_tile(const struct call *c, int64_t e, int64_t from, int64_t rows)
{
    int rc = hidden(c, e, from, rows);

    if (rc >= 0)
        rc = multiply(c, DOWN, c->h, weight(c, 5, e), c->dy);
    if (rc >= 0)
        add_rows(c, c->dy, from, rows, true);
    return rc;
}

static int dx_tile(const struct call *c, int64_t e, int64_t from, int64_t rows)
{
    const struct state *s = c->s;
    float *dweights = c->l->out[1].data;
    int rc = hidden(c, e, from, rows);

    if (rc >= 0)
        rc = hidden_gradient(c, e, from, rows, false);
    if (rc < 0)
        return rc;
    for (int64_t r = 0; r < rows; r++) {
        int64_t choice = c->order[from + r];
        float dot = 0;

        for (int64_t j = r * s->f; j < (r + 1) * s->f; j++) {
            dot += c->dh[j] * c->h[j];
            c->dh[j] *= c->weights[choice];
        }
        dweights[choice] = dot;
    }
    through_silu(c);
    rc = multiply(c, DX, c->g, weight(c, 3, e), c->dy);
    if (rc >= 0)
        rc = multiply(c, DX_MORE, c->u, weight(c, 4, e), c->dy);
    if (rc >= 0)
        add_rows(c, c->dy, from, rows, false);
    return rc;
}

static int dw_tile(const struct call *c, int64_t e, int64_t from, int64_t rows)
{
    int64_t at = e * c->s->f * c->s->n;
    int rc = hidden(c, e, from, rows);

    if (rc >= 0)
        rc = hidden_gradient(c, e, from, rows, true);
    if (rc >= 0)
        rc = multiply(c, DDOWN, c->dy, c->h, (float *)c->l->out[2].data + at);
    if (rc < 0)
        return rc;
    through_silu(c);
    rc = multiply(c, DW, c->g, c->x, (float *)c->l->out[0].data + at);
    return rc < 0 ? rc : multiply(c, DW, c->u, c->x, (float *)c->l->out[1].data + at);
}

typedef int tile_fn(const struct call *c, int64_t expert, int64_t from, int64_t rows);

static int for_each_tile(const struct call *c, tile_fn *tile)
{
    int rc = sort(c);

    for (int64_t e = 0; rc >= 0 && e < c->s->count; e++)
        for (int64_t at = c->first[e]; rc >= 0 && at < c->first[e + 1]; at += TILE) {
            int64_t left = c->first[e + 1] - at;

            rc = tile(c, e, at, left < TILE ? left : TILE);
        }
    return rc < 0 ? rc : 0;
}

/* The sums of tokens become output 0. */
static int run_summed(const struct ct_launch *l, tile_fn *tile)
{
    struct call c = begin(l);
    size_t count = (size_t)(c.s->tokens * c.s->n);
    int rc;

    memset(c.sum, 0, count * sizeof(*c.sum));
    rc = for_each_tile(&c, tile);
    from_float(l->out[0].dtype, c.sum, (int64_t)count, l->out[0].data);
    return rc;
}

static int run_forward(const struct ct_launch *l)
{
    return run_summed(l, forward_tile);
}

static int run_dx(const struct ct_launch *l)
{
    memset(l->out[1].data, 0, (size_t)ct_tensor_count(&l->out[1]) * sizeof(float));
    return run_summed(l, dx_tile);
}

static int run_dw(const struct ct_launch *l)
{
    struct call c = begin(l);

    for (int i = 0; i < 3; i++)
        if (!(l->accumulate >> i & 1))
            memset(l->out[i].data, 0, (size_t)ct_tensor_count(&l->out[i]) * sizeof(float));
    return for_each_tile(&c, dw_tile);
}

const struct ct_kernel cpu_experts_kernels[] = {
    CT_KERNEL("experts", "onednn", 0, accepts, prepare, run_forward),
    CT_KERNEL("experts_dx", "onednn", 0, accepts, prepare, run_dx),
    CT_KERNEL("experts_dw", "onednn", CT_KERNEL_ACCUMULATES, accepts, prepare, run_dw),
    {0},
};
