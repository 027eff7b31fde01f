/*
 * experts and their gradients: grouped matrix products. By own kernels where there are any
 * (experts_unit.c); here by oneDNN in float32, with weights widened where they are bfloat16.
 *
 * The choices of experts are sorted by expert, and split into tiles of up to TILE rows. One thread
 * computes a tile: it copies the rows of its tokens, and multiplies them in blocks of TILE or of
 * TAIL rows, the last one padded with zeros. So products have two shapes, whatever is chosen, and
 * are prepared once.
 *
 * experts and experts_dx run a wave of tiles at a time, and then add the tiles' rows to those of
 * their tokens, in the order of the tiles. In experts_dw and experts_grad a thread takes all tiles
 * of an expert; rows for tokens are added at the end. The order of all sums therefore depends on
 * the choices alone.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "experts.h"
#include "gemm.h"

#define TILE 64
#define TAIL 16
#define WAVE 4 /* tiles of a wave for each thread */

/* The second of a pair adds to C. */
enum { GATE, DOWN, DH, DX, DX_MORE, DW, DW_MORE, DDOWN, DDOWN_MORE, PRODUCTS };

struct tile {
    int64_t expert, from, rows; /* choices [from, from + rows) of the order */
};

struct state {
    struct experts_sizes sizes;
    int threads;
    bool widens;                           /* weights */
    struct cpu_gemm *product[PRODUCTS][2]; /* of TILE and of TAIL rows */
    size_t scratch_bytes;                  /* of a product */
    /* In the workspace: */
    size_t tiles, rows; /* rows: those that the tiles of a wave, or of all experts, give */
    size_t lanes, lane_bytes;
    /* In a lane, which is a thread's own: */
    size_t x, dy, g, u, h, dh, weight[B_UP + 1], gradient[GRADIENTS], scratch;
};

/* One call: operands, and the addresses of the state's workspace. */
struct call {
    const struct state *s;
    const struct ct_launch *l;
    int at; /* the input x */
    int64_t n, f;
    struct experts_choices choices;
    struct tile *tiles;
    int64_t tile_count, wave;      /* wave: the first tile of the one that runs */
    float *rows, *sums, *dweights; /* NULL: not wanted */
    bool weighted;                 /* rows of tokens are sums of weighted rows of tiles */
    int (*run_tile)(const struct call *c, int lane, const struct tile *t, float *rows);
    _Atomic int status;
    _Atomic int64_t next; /* expert */
};

/* ---- preparing ---- */

/* C[m, n] = A[m, k] B, A dense, or its transpose; B = w[n, k]^T or w[k, n]. Either m or k is the
   number of rows. */
static int product(struct state *s, int which, int64_t m, int64_t n, int64_t k, bool a_transposed,
                   bool w_transposed, bool accumulate)
{
    static const int64_t sizes[] = {TILE, TAIL};
    int rc = 0;

    for (int i = 0; rc >= 0 && i < 2; i++) {
        int64_t rows = a_transposed ? m : sizes[i], depth = a_transposed ? sizes[i] : k;
        struct cpu_gemm_spec spec = {.m = rows,
                                     .n = n,
                                     .k = depth,
                                     .a_type = CT_F32,
                                     .b_type = CT_F32,
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

static bool sums_experts(const struct ct_op *op)
{
    return cpu_experts_first_gradient(op) < op->outs;
}

static int prepare_products(struct state *s, const struct ct_op *op)
{
    int64_t n = s->sizes.n, f = s->sizes.f;
    int rc = product(s, GATE, 0, f, n, false, true, false);

    if (rc >= 0 && !cpu_experts_is_gradient(op))
        return product(s, DOWN, 0, n, f, false, true, false);
    if (rc >= 0)
        rc = product(s, DH, 0, f, n, false, false, false);
    for (int more = 0; more < 2; more++) {
        if (rc >= 0 && cpu_experts_sums_tokens(op))
            rc = product(s, DX + more, 0, n, f, false, false, more);
        if (rc >= 0 && sums_experts(op))
            rc = product(s, DW + more, f, n, 0, true, false, more);
        if (rc >= 0 && sums_experts(op))
            rc = product(s, DDOWN + more, n, f, 0, true, false, more);
    }
    return rc;
}

/* Elements of one expert's weight. */
static size_t weight_elements(const struct experts_sizes *s, int which)
{
    return (size_t)(which < WEIGHTS ? s->f * s->n : s->f);
}

static void plan_workspace(struct ct_prepare *p, struct state *s)
{
    const struct experts_sizes *sizes = &s->sizes;
    size_t *size = &p->workspace, lane = 0, choices = (size_t)(sizes->tokens * sizes->k);
    size_t wave = sums_experts(p->op) ? choices : (size_t)(WAVE * TILE * s->threads);
    size_t n = TILE * (size_t)sizes->n * sizeof(float), f = TILE * (size_t)sizes->f * sizeof(float);

    s->tiles = cpu_carve(size, (choices / TILE + (size_t)sizes->count) * sizeof(struct tile));
    s->rows = cpu_carve(
        size, cpu_experts_sums_tokens(p->op) ? wave * (size_t)sizes->n * sizeof(float) : 0);
    s->x = cpu_carve(&lane, n);
    s->dy = cpu_carve(&lane, n);
    s->g = cpu_carve(&lane, f);
    s->u = cpu_carve(&lane, f);
    s->h = cpu_carve(&lane, f);
    s->dh = cpu_carve(&lane, f);
    for (int i = W_GATE; i < p->ins - cpu_experts_x(p->op); i++)
        s->weight[i] = cpu_carve(&lane, s->widens ? weight_elements(sizes, i) * sizeof(float) : 0);
    for (int i = 0; i < GRADIENTS; i++)
        s->gradient[i] = cpu_carve(&lane, cpu_experts_buffer_bytes(p, i));
    s->scratch = cpu_carve(&lane, s->scratch_bytes);
    s->lane_bytes = lane;
    s->lanes = cpu_carve(size, lane * (size_t)s->threads);
}

static int prepare_experts(struct ct_prepare *p)
{
    struct state *s = ct_arena_new(p->arena, struct state);
    int rc;

    s->sizes = cpu_experts_sizes(p);
    s->threads = cpu_threads();
    s->widens = p->in[cpu_experts_x(p->op)].dtype == CT_BF16;
    rc = prepare_products(s, p->op);
    if (rc < 0)
        return rc;
    plan_workspace(p, s);
    p->state = s;
    return 0;
}

/* ---- tiles ---- */

static int begin(const struct ct_launch *l, struct call *c)
{
    const struct state *s = l->state;
    char *w = l->workspace;

    *c = (struct call){.s = s,
                       .l = l,
                       .at = cpu_experts_x(l->op),
                       .n = s->sizes.n,
                       .f = s->sizes.f,
                       .tiles = (struct tile *)(void *)(w + s->tiles),
                       .rows = (float *)(void *)(w + s->rows)};
    return cpu_experts_sort(l, &s->sizes, &c->choices);
}

static struct tile tile_at(const struct call *c, int64_t expert, int64_t from)
{
    int64_t left = c->choices.first[expert + 1] - from;

    return (struct tile){expert, from, left < TILE ? left : TILE};
}

static void split(struct call *c)
{
    const int64_t *first = c->choices.first;

    for (int64_t e = 0; e < c->s->sizes.count; e++)
        for (int64_t at = first[e]; at < first[e + 1]; at += TILE)
            c->tiles[c->tile_count++] = tile_at(c, e, at);
}

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
    size_t elements = weight_elements(&c->s->sizes, which);

    return (const char *)w->data + (size_t)expert * elements * ct_dtype_size(w->dtype);
}

/* Widen an expert's weights, unless the tile before was of the same expert. */
static void widen_weights(const struct call *c, int lane, int64_t expert)
{
    for (int i = W_GATE; c->s->widens && i < c->l->ins - c->at; i++) {
        int64_t n = (int64_t)weight_elements(&c->s->sizes, i);

        cpu_experts_copy(&c->l->in[c->at + i], expert * n, n, CT_F32,
                         floats(c, lane, c->s->weight[i]));
    }
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

/* A product over a tile's rows, which are of A and C, or of A^T and B: B moves by b_columns. */
static int multiply(const struct call *c, int lane, int which, int64_t rows, const float *a,
                    int64_t a_columns, const float *b, int64_t b_columns, float *to,
                    int64_t to_columns)
{
    int small = padded(rows) < TILE, rc = 0;
    int64_t step = small ? TAIL : TILE;

    for (int64_t at = 0; rc >= 0 && at < rows; at += step) {
        rc = cpu_gemm_run_alone(c->s->product[which][small], lane, a + at * a_columns,
                                b + at * b_columns, to + at * to_columns,
                                lane_of(c, lane) + c->s->scratch);
        if (which == DW || which == DDOWN)
            which++;
    }
    return rc;
}

static int multiply_rows(const struct call *c, int lane, int which, int64_t rows, const float *a,
                         int64_t a_columns, const float *w, float *to, int64_t to_columns)
{
    return multiply(c, lane, which, rows, a, a_columns, w, 0, to, to_columns);
}

static int add_product(const struct call *c, int lane, int which, int64_t rows, const float *a,
                       int64_t a_columns, const float *b, int64_t b_columns, float *to)
{
    return multiply(c, lane, which, rows, a, a_columns, b, b_columns, to, 0);
}

/* The rows of the tile's tokens in tensor `from`, in float32; then zeros. */
static void copy_rows(const struct call *c, const struct ct_tensor *from, const struct tile *t,
                      float *to)
{
    int64_t n = c->n;

    for (int64_t r = 0; r < t->rows; r++) {
        int64_t token = c->choices.order[t->from + r] / c->s->sizes.k;

        cpu_experts_copy(from, token * n, n, CT_F32, to + r * n);
    }
    memset(to + t->rows * n, 0, (size_t)((padded(t->rows) - t->rows) * n) * sizeof(*to));
}

/* to = the tile's rows of x times a weight, and the bias after it. */
static int half(const struct call *c, int lane, const struct tile *t, int weights, int biases,
                float *to)
{
    int rc = multiply_rows(c, lane, GATE, t->rows, floats(c, lane, c->s->x), c->n,
                           weight(c, lane, weights, t->expert), to, c->f);

    for (int64_t r = 0; rc >= 0 && c->s->sizes.biased && r < t->rows; r++)
        cpu_loops()->add_scaled(to + r * c->f, CT_F32, weight(c, lane, biases, t->expert), 1, c->f);
    return rc;
}

/* The tile's rows that were kept; then zeros. */
static void load_kept(const struct call *c, const struct tile *t, bool other, float *to)
{
    memcpy(to, cpu_experts_kept(c->l, &c->s->sizes, other, t->from),
           (size_t)(t->rows * c->f) * sizeof(*to));
    memset(to + t->rows * c->f, 0, (size_t)((padded(t->rows) - t->rows) * c->f) * sizeof(*to));
}

static void store_kept(const struct call *c, const struct tile *t, bool other, const float *from)
{
    memcpy(cpu_experts_kept(c->l, &c->s->sizes, other, t->from), from,
           (size_t)(t->rows * c->f) * sizeof(*from));
}

/* The tile's rows of x; g = x gate^T and u = x up^T, with their biases. */
static int gate_and_up(const struct call *c, int lane, const struct tile *t)
{
    float *g = floats(c, lane, c->s->g), *u = floats(c, lane, c->s->u);
    bool kept = cpu_experts_keeps(c->l->op);
    int rc = 0;

    copy_rows(c, &c->l->in[c->at], t, floats(c, lane, c->s->x));
    if (kept && cpu_experts_is_gradient(c->l->op)) {
        load_kept(c, t, false, g);
        load_kept(c, t, true, u);
        return 0;
    }
    rc = half(c, lane, t, W_GATE, B_GATE, g);
    if (rc >= 0)
        rc = half(c, lane, t, W_UP, B_UP, u);
    if (rc >= 0 && kept) {
        store_kept(c, t, false, g);
        store_kept(c, t, true, u);
    }
    return rc;
}

/* The hidden layer, times the choices' weights if `weighted`. */
static void hidden(const struct call *c, int lane, const struct tile *t, bool weighted)
{
    const struct state *s = c->s;
    float *g = floats(c, lane, s->g), *u = floats(c, lane, s->u), *h = floats(c, lane, s->h);

    for (int64_t r = 0; r < padded(t->rows); r++) {
        bool scaled = weighted && r < t->rows;

        cpu_loops()->gated(CT_F32, h + r * c->f, g + r * c->f, u + r * c->f, s->sizes.gate,
                           scaled ? c->choices.weights[c->choices.order[t->from + r]] : 1, c->f);
    }
}

/* The tile's rows of dy; dg over g and du over u; gradients of choices' weights if wanted. */
static int hidden_gradients(const struct call *c, int lane, const struct tile *t)
{
    const struct state *s = c->s;
    float *dy = floats(c, lane, s->dy), *dh = floats(c, lane, s->dh);
    float *g = floats(c, lane, s->g), *u = floats(c, lane, s->u);
    int rc;

    copy_rows(c, &c->l->in[c->at - 1], t, dy);
    rc =
        multiply_rows(c, lane, DH, t->rows, dy, c->n, weight(c, lane, W_DOWN, t->expert), dh, c->f);
    for (int64_t r = 0; rc >= 0 && r < t->rows; r++) {
        int64_t choice = c->choices.order[t->from + r], at = r * c->f;
        float dot = cpu_loops()->gated_grad(CT_F32, g + at, u + at, dh + at, g + at, u + at,
                                            s->sizes.gate, c->choices.weights[choice], c->f);

        if (c->dweights)
            c->dweights[choice] += dot;
    }
    return rc;
}

static int forward_tile(const struct call *c, int lane, const struct tile *t, float *rows)
{
    int rc = gate_and_up(c, lane, t);

    if (rc < 0)
        return rc;
    hidden(c, lane, t, false);
    return multiply_rows(c, lane, DOWN, t->rows, floats(c, lane, c->s->h), c->f,
                         weight(c, lane, W_DOWN, t->expert), rows, c->n);
}

/* rows = dg gate + du up */
static int dx_rows(const struct call *c, int lane, const struct tile *t, float *rows)
{
    const struct state *s = c->s;
    int rc = multiply_rows(c, lane, DX, t->rows, floats(c, lane, s->g), c->f,
                           weight(c, lane, W_GATE, t->expert), rows, c->n);

    return rc < 0 ? rc
                  : multiply_rows(c, lane, DX_MORE, t->rows, floats(c, lane, s->u), c->f,
                                  weight(c, lane, W_UP, t->expert), rows, c->n);
}

static int dx_tile(const struct call *c, int lane, const struct tile *t, float *rows)
{
    int rc = gate_and_up(c, lane, t);

    if (rc >= 0)
        rc = hidden_gradients(c, lane, t);
    return rc < 0 ? rc : dx_rows(c, lane, t, rows);
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
        rc = c->run_tile(c, thread, t, c->rows + i * TILE * c->n);
    }
    if (rc < 0)
        c->status = rc;
}

/* Add some columns of the wave's rows. */
static void add_wave(void *context, int thread, int threads)
{
    struct call *c = context;
    struct cpu_range mine = cpu_share(c->n, 16, thread, threads);

    for (int64_t i = c->wave; i < wave_end(c); i++)
        cpu_experts_add(&c->choices, c->tiles[i].from, c->tiles[i].rows,
                        c->rows + (i - c->wave) * TILE * c->n, c->weighted, mine, c->sums);
}

static int failure(const struct call *c)
{
    return c->status < 0 ? ct_fail(c->status, "oneDNN failed on a tile of experts") : 0;
}

static int run_waves(struct call *c)
{
    c->sums = cpu_experts_sums(c->l, &c->s->sizes);
    split(c);
    for (; c->wave < c->tile_count && c->status >= 0; c->wave = wave_end(c)) {
        cpu_parallel(run_wave, c);
        cpu_parallel(add_wave, c);
    }
    cpu_experts_store(c->l, &c->s->sizes);
    return failure(c);
}

static int run_forward(const struct ct_launch *l)
{
    struct call c;
    int rc = begin(l, &c);

    c.run_tile = forward_tile;
    c.weighted = true;
    return rc < 0 ? rc : run_waves(&c);
}

static int run_dx(const struct ct_launch *l)
{
    struct call c;
    int rc = begin(l, &c);

    c.run_tile = dx_tile;
    c.dweights = cpu_experts_dweights(l);
    return rc < 0 ? rc : run_waves(&c);
}

/* ---- gradients of weights ---- */

static float *buffer(const struct call *c, int lane, int i)
{
    return floats(c, lane, c->s->gradient[i]);
}

static float *gradient(const struct call *c, int lane, int i, int64_t expert)
{
    return cpu_experts_gradient(c->l, i, expert, buffer(c, lane, i));
}

/* to += the tile's rows */
static void add_tile(const struct call *c, const struct tile *t, const float *rows, float *to)
{
    for (int64_t r = 0; r < t->rows; r++)
        cpu_loops()->add_scaled(to, CT_F32, rows + r * c->f, 1, c->f);
}

/* A product over the tile's rows, to gradient i of its expert. */
static int add_gradient(const struct call *c, int lane, int i, int which, const struct tile *t,
                        const float *a, int64_t a_columns, const float *b, int64_t b_columns)
{
    bool add = t->from > c->choices.first[t->expert] || cpu_experts_continues(c->l, i);

    return add_product(c, lane, which + add, t->rows, a, a_columns, b, b_columns,
                       gradient(c, lane, i, t->expert));
}

/* The tile's rows for its tokens, in the place of its rows of dy. */
static int keep_rows(const struct call *c, int lane, const struct tile *t)
{
    float *rows = floats(c, lane, c->s->dy);
    int rc = dx_rows(c, lane, t, rows);

    memcpy(c->rows + t->from * c->n, rows, (size_t)(t->rows * c->n) * sizeof(*rows));
    return rc;
}

static int dw_tile(const struct call *c, int lane, const struct tile *t)
{
    const struct state *s = c->s;
    const float *x = floats(c, lane, s->x), *g = floats(c, lane, s->g), *u = floats(c, lane, s->u);
    int rc = gate_and_up(c, lane, t);

    if (rc < 0)
        return rc;
    hidden(c, lane, t, true);
    rc = hidden_gradients(c, lane, t);
    if (rc >= 0 && s->sizes.biased) {
        add_tile(c, t, g, gradient(c, lane, D_GATE_BIAS, t->expert));
        add_tile(c, t, u, gradient(c, lane, D_UP_BIAS, t->expert));
    }
    if (rc >= 0)
        rc = add_gradient(c, lane, D_DOWN, DDOWN, t, floats(c, lane, s->dy), c->n,
                          floats(c, lane, s->h), c->f);
    if (rc >= 0)
        rc = add_gradient(c, lane, D_GATE, DW, t, g, c->f, x, c->n);
    if (rc >= 0)
        rc = add_gradient(c, lane, D_UP, DW, t, u, c->f, x, c->n);
    return rc >= 0 && c->sums ? keep_rows(c, lane, t) : rc;
}

static int sum_expert(const struct call *c, int lane, int64_t e)
{
    int64_t from = c->choices.first[e], end = c->choices.first[e + 1];
    int gradients = c->s->sizes.biased ? GRADIENTS : D_GATE_BIAS, rc = 0;

    for (int i = D_GATE_BIAS; i < gradients; i++)
        cpu_experts_begin_sum(c->l, i, e, buffer(c, lane, i));
    widen_weights(c, lane, e);
    for (; rc >= 0 && from < end; from += TILE) {
        struct tile t = tile_at(c, e, from);

        rc = dw_tile(c, lane, &t);
    }
    for (int i = 0; rc >= 0 && i < gradients; i++)
        cpu_experts_end_sum(c->l, i, e, buffer(c, lane, i), false);
    return rc;
}

/* Threads take the next expert when they are ready. */
static void run_experts(void *context, int thread, int threads)
{
    struct call *c = context;
    int64_t e;

    (void)threads;
    while (c->status >= 0 && (e = c->next++) < c->s->sizes.count)
        if (c->choices.first[e] == c->choices.first[e + 1]) {
            cpu_experts_clear(c->l, e);
        } else {
            int rc = sum_expert(c, thread, e);

            if (rc < 0)
                c->status = rc;
        }
}

/* Add some columns of the rows of all choices. */
static void add_all(void *context, int thread, int threads)
{
    struct call *c = context;

    cpu_experts_add(&c->choices, 0, c->choices.first[c->s->sizes.count], c->rows, false,
                    cpu_share(c->n, 16, thread, threads), c->sums);
}

static int run_weights(const struct ct_launch *l)
{
    struct call c;
    int rc = begin(l, &c);

    if (rc < 0)
        return rc;
    if (cpu_experts_sums_tokens(l->op)) {
        c.dweights = cpu_experts_dweights(l);
        c.sums = cpu_experts_sums(l, &c.s->sizes);
    }
    cpu_parallel(run_experts, &c);
    if (c.sums && c.status >= 0) {
        cpu_parallel(add_all, &c);
        cpu_experts_store(l, &c.s->sizes);
    }
    return failure(&c);
}

/* ---- loads ---- */

static bool accepts_load(const struct ct_prepare *p)
{
    bool dense = ct_tensor_is_dense(&p->in[0]);

    for (int i = 0; i < p->outs; i++)
        dense = dense && ct_tensor_is_dense(&p->out[i]);
    return dense && p->in[0].dtype == CT_I32 && p->out[0].dtype == CT_F32;
}

static int run_load(const struct ct_launch *l)
{
    int64_t n = l->out[1].shape[0], sequences = l->in[0].shape[0];
    int64_t each = l->in[0].shape[1] * l->in[0].shape[2];
    const int32_t *ids = l->in[0].data;
    float *load = l->out[0].data, *total = l->out[1].data;
    int rc = cpu_experts_check(ids, sequences * each, n);

    memset(load, 0, sizeof(*load) * (size_t)(sequences * n));
    memset(total, 0, sizeof(*total) * (size_t)n);
    for (int64_t i = 0; rc >= 0 && i < sequences * each; i++) {
        load[i / each * n + ids[i]]++;
        total[ids[i]]++;
    }
    return rc;
}

static int run_excess(const struct ct_launch *l)
{
    int64_t n = l->out[0].shape[0], choices = ct_tensor_count(&l->in[0]);
    const int32_t *ids = l->in[0].data;
    float *excess = l->out[0].data;
    int rc = cpu_experts_check(ids, choices, n);

    memset(excess, 0, sizeof(*excess) * (size_t)n);
    for (int64_t i = 0; rc >= 0 && i < choices; i++)
        excess[ids[i]]++;
    for (int64_t e = 0; e < n; e++)
        excess[e] = (float)((double)excess[e] * (double)n - (double)choices);
    return rc;
}

const struct ct_kernel cpu_experts_kernels[] = {
    CT_KERNEL("expert_load", "plain", CT_KERNEL_STRIDED, accepts_load, NULL, run_load),
    CT_KERNEL("expert_excess", "plain", CT_KERNEL_STRIDED, accepts_load, NULL, run_excess),
    CT_KERNEL("experts", "unit", 0, cpu_experts_unit_accept, cpu_experts_unit_prepare,
              cpu_experts_unit_run),
    CT_KERNEL("experts_dx", "unit", 0, cpu_experts_unit_accept, cpu_experts_unit_prepare,
              cpu_experts_unit_run_dx),
    CT_KERNEL("experts_dw", "unit", CT_KERNEL_ACCUMULATES, cpu_experts_unit_accept,
              cpu_experts_unit_prepare, cpu_experts_unit_run_weights),
    CT_KERNEL("experts_grad", "unit", CT_KERNEL_ACCUMULATES, cpu_experts_unit_accept,
              cpu_experts_unit_prepare, cpu_experts_unit_run_weights),
    CT_KERNEL("experts_kept", "unit", 0, cpu_experts_unit_accept, cpu_experts_unit_prepare,
              cpu_experts_unit_run),
    CT_KERNEL("experts_kept_grad", "unit", CT_KERNEL_ACCUMULATES, cpu_experts_unit_accept,
              cpu_experts_unit_prepare, cpu_experts_unit_run_weights),
    CT_KERNEL("experts_kept", "onednn", 0, cpu_experts_accept, prepare_experts, run_forward),
    CT_KERNEL("experts_kept_grad", "onednn", CT_KERNEL_ACCUMULATES, cpu_experts_accept,
              prepare_experts, run_weights),
    CT_KERNEL("experts", "onednn", 0, cpu_experts_accept, prepare_experts, run_forward),
    CT_KERNEL("experts_dx", "onednn", 0, cpu_experts_accept, prepare_experts, run_dx),
    CT_KERNEL("experts_dw", "onednn", CT_KERNEL_ACCUMULATES, cpu_experts_accept, prepare_experts,
              run_weights),
    CT_KERNEL("experts_grad", "onednn", CT_KERNEL_ACCUMULATES, cpu_experts_accept, prepare_experts,
              run_weights),
    {0},
};
