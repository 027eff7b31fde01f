/*
 * The gradient of attention as in attention_grad.c, with bfloat16 products on a unit
 * (attention_bf16.h).
 *
 *     s[key][query] = K Q^T,  dp = V dO^T,  p = exp(s - lse),  ds = p (dp - d)
 *     dV = p dO,  dK = scale ds Q,  dQ^T = scale K^T ds
 *
 * Up to KEYS tiles of keys are taken against up to QUERIES tiles of queries, so that the last three
 * products are deep. For these, p and ds are stored as rows of A, and ds in pairs of keys as B.
 */
#include <omp.h>

#include "attention_bf16.h"
#include "kernels.h"
#include "scores.h"
#include "attention_softmax.h"

#define KEYS 4
#define QUERIES 4
#define ROW (QUERIES * TILE) /* elements of p and ds */

struct state {
    struct attention shape;
    const struct cpu_unit *unit;
    struct dealt dealt;
    int threads;
    size_t mask, buffers, buffer_bytes;
};

/* A thread's own memory. */
struct buffers {
    char *k, *v;             /* rows */
    char *k_across;          /* transposed */
    float *dk, *dv;          /* [tile][panel][TILE][CPU_PANEL] */
    char *q, *g;             /* of QUERIES tiles: B: q^T and do^T */
    char *q_pairs, *g_pairs; /* B: q and do */
    float *dq;               /* [QUERIES][width][TILE] */
    float *lse, *d, *scale;  /* by query */
    float *s, *dp;           /* of one tile */
    uint16_t *p, *ds;        /* [KEYS TILE][ROW] */
    char *ds_pairs;          /* B: [QUERIES][KEYS] steps */
    bool seen[KEYS][QUERIES];
};

struct backward {
    const struct state *state;
    struct attention a;
    struct attention_mask mask;
    struct change change;
    const struct ct_tensor *grad, *q, *k, *v, *o, *lse;
    const struct ct_tensor *dq, *dk, *dv;
};

/* Tiles of queries against tiles of keys. */
struct chunk {
    int64_t head;
    int64_t query, queries; /* tiles */
    int64_t key, keys;
};

static size_t lay_out(const struct attention *a, uintptr_t base, struct buffers *w)
{
    int64_t key = a->key.width, value = a->value.width;
    uintptr_t at = base;

    w->k = carve_bytes(&at, a->padded * key * 2);
    w->v = carve_bytes(&at, a->padded * value * 2);
    w->k_across = carve_bytes(&at, a->padded * key * 2);
    w->dk = carve_floats(&at, a->padded * key);
    w->dv = carve_floats(&at, a->padded * value);
    w->q = carve_bytes(&at, ROW * key * 2);
    w->g = carve_bytes(&at, ROW * value * 2);
    w->q_pairs = carve_bytes(&at, ROW * key * 2);
    w->g_pairs = carve_bytes(&at, ROW * value * 2);
    w->dq = carve_floats(&at, ROW * key);
    w->lse = carve_floats(&at, ROW);
    w->d = carve_floats(&at, ROW);
    w->scale = carve_floats(&at, ROW);
    w->s = carve_floats(&at, CPU_BLOCK);
    w->dp = carve_floats(&at, CPU_BLOCK);
    w->p = (uint16_t *)carve_bytes(&at, KEYS * TILE * ROW * 2);
    w->ds = (uint16_t *)carve_bytes(&at, KEYS * TILE * ROW * 2);
    w->ds_pairs = carve_bytes(&at, QUERIES * KEYS * CPU_STEP_BYTES);
    return at - base;
}

/* ---- queries ---- */

/* d[query] = sum over the head of do o. */
CPU_INLINE void row_sums_as(enum ct_dtype dtype, const struct cpu_packed_from *grad, const char *o,
                            int64_t step, float *d)
{
    const char *g = grad->at;

    for (int64_t r = 0; r < grad->rows; r++, o += step, g += grad->stride * 2) {
        vf sum = {0};

        for (int64_t i = 0; i < grad->columns; i += CPU_LANES)
            sum += v_get(dtype, o, i, grad->columns) * v_get(CT_BF16, g, i, grad->columns);
        d[r] = v_sum(sum);
    }
    for (int64_t r = grad->rows; r < TILE; r++)
        d[r] = 0;
}

static void begin_tile(const struct backward *f, const struct buffers *w, const struct task *t,
                       const struct chunk *c, int64_t i)
{
    const struct attention *a = &f->a;
    const struct ct_tensor *lse = f->lse, *o = f->o;
    int64_t tile = c->query + i, n = tokens_in(a->queries, tile);
    struct cpu_packed_from q = tokens_of(f->q, t->b, c->head, tile),
                           g = tokens_of(f->grad, t->b, c->head, tile);
    const float *from =
        (const float *)lse->data + t->b * lse->stride[0] + c->head * lse->stride[1] + tile * TILE;
    struct cpu_lines lines = cpu_panel_lines(CT_BF16, step_of(1, ROW, 0));

    cpu_panels()->pack_columns(&lines, &q, w->q + i * TILE * a->key.width * 2);
    cpu_panels()->pack_columns(&lines, &g, w->g + i * TILE * a->value.width * 2);
    if (t->keys) {
        cpu_panels()->pack_rows(&lines, &q, w->q_pairs + step_of(0, ROW, i));
        cpu_panels()->pack_rows(&lines, &g, w->g_pairs + step_of(0, ROW, i));
    }
    row_sums_as(CT_BF16, &g, token_of(o, t->b, tile * TILE, c->head), o->stride[1] * 2,
                w->d + i * TILE);
    for (int64_t k = 0; k < TILE; k += CPU_LANES) {
        vf lse_q = k < n ? v_get(CT_F32, from, k, n) : v_set(0);

        /* -inf, of a query that saw no key, is to give weights of 0 */
        v_store(w->lse + i * TILE + k, v_select(lse_q <= MASKED, v_set(-MASKED), lse_q));
    }
}

/* ---- a chunk ---- */

/* s and dp of a tile -> p, ds in rows, and ds in pairs of keys. */
CPU_INLINE void weights_as(bool capped, const struct backward *f, const struct buffers *w,
                           int64_t i, int64_t j)
{
    float per = per_cap(&f->change);
    char *pairs = w->ds_pairs + (j * KEYS + i) * CPU_STEP_BYTES;

    for (int64_t q = 0; q < TILE; q += CPU_LANES) {
        vf lse = v_load(w->lse + j * TILE + q) * LOG2_E, d = v_load(w->d + j * TILE + q);
        uint16_t *p = w->p + i * TILE * ROW + j * TILE + q,
                 *ds = w->ds + i * TILE * ROW + j * TILE + q;
        float unit = f->a.scale * LOG2_E;

        for (int64_t k = 0; k < TILE; k += 2, p += 2 * ROW, ds += 2 * ROW) {
            vf s_even = v_load(w->s + k * TILE + q), s_odd = v_load(w->s + (k + 1) * TILE + q);
            vf even = v_exp2(s_even * unit - lse), odd = v_exp2(s_odd * unit - lse);
            vf d_even = even * (v_load(w->dp + k * TILE + q) - d);
            vf d_odd = odd * (v_load(w->dp + (k + 1) * TILE + q) - d);

            d_even = capped ? through_change(per, s_even, d_even) : d_even;
            d_odd = capped ? through_change(per, s_odd, d_odd) : d_odd;
            v_store_bf16(p, even);
            v_store_bf16(p + ROW, odd);
            v_store_bf16(ds, d_even);
            v_store_bf16(ds + ROW, d_odd);
            store_pairs(pair_at(pairs, k, q), d_even, d_odd);
        }
    }
}

static void weights(const struct backward *f, const struct buffers *w, int64_t i, int64_t j)
{
    if (f->change.cap > 0)
        weights_as(true, f, w, i, j);
    else
        weights_as(false, f, w, i, j);
}

/* Weights of a hidden tile between visible ones. */
static void clear(const struct buffers *w, int64_t i, int64_t j)
{
    for (int64_t k = 0; k < TILE; k++) {
        memset(w->p + (i * TILE + k) * ROW + j * TILE, 0, TILE * 2);
        memset(w->ds + (i * TILE + k) * ROW + j * TILE, 0, TILE * 2);
    }
    memset(w->ds_pairs + (j * KEYS + i) * CPU_STEP_BYTES, 0, CPU_STEP_BYTES);
}

static void weigh(const struct backward *f, struct buffers *w, const struct task *t,
                  const struct chunk *c, int64_t i, int64_t j)
{
    const struct head *key = &f->a.key, *value = &f->a.value;
    const struct cpu_unit *unit = f->state->unit;
    unsigned how = mask_between(&f->mask, t->b, c->query + j, c->key + i);
    int64_t keys = (c->key + i) * TILE * 2, queries = j * TILE * 2; /* bytes a column */

    w->seen[i][j] = !(how & HIDDEN);
    if (how & HIDDEN) {
        clear(w, i, j);
        return;
    }
    cpu_multiply(unit, rows_at(key, w->k + keys * key->width), w->q + queries * key->width,
                 tile_extent(key), w->s, false);
    cpu_multiply(unit, rows_at(value, w->v + keys * value->width), w->g + queries * value->width,
                 tile_extent(value), w->dp, false);
    change_scores(&f->change, &f->mask, t->b, c->head, c->query + j, c->key + i, how, w->s);
    mask_scores(&f->mask, t->b, c->query + j, c->key + i, how, w->s);
    weights(f, w, i, j);
}

/* The visible tiles [begin, end) of a row or a column of a chunk. */
static struct cpu_range seen_range(const bool *seen, int64_t step, int64_t count)
{
    struct cpu_range r = {0, count};

    while (r.begin < r.end && !seen[r.begin * step])
        r.begin++;
    while (r.end > r.begin && !seen[(r.end - 1) * step])
        r.end--;
    return r;
}

/* Sums of a tile, panel by panel, += rows times what is in pairs of the queries of a range. */
static void add_rows(const struct cpu_unit *unit, const struct head *h, struct cpu_panel rows,
                     const char *pairs, struct cpu_range r, float *sums)
{
    for (int64_t panel = 0; panel < panels_of(h); panel++)
        cpu_multiply(unit, rows, pairs + step_of(panel, ROW, r.begin),
                     (struct cpu_extent){TILE, elements_in(h, panel), (r.end - r.begin) * TILE},
                     sums + panel * CPU_BLOCK, true);
}

/* dv and dk of key tile i */
static void add_keys(const struct backward *f, const struct buffers *w, const struct chunk *c,
                     int64_t i)
{
    const struct attention *a = &f->a;
    struct cpu_range r = seen_range(w->seen[i], 1, c->queries);
    int64_t at = i * TILE * ROW + r.begin * TILE, row = (c->key + i) * TILE;
    struct cpu_panel p = {(const char *)(w->p + at), ROW * 2, 4, 2 * CPU_PANEL},
                     ds = {(const char *)(w->ds + at), ROW * 2, 4, 2 * CPU_PANEL};

    if (r.begin == r.end)
        return;
    add_rows(f->state->unit, &a->value, p, w->g_pairs, r, w->dv + row * a->value.width);
    add_rows(f->state->unit, &a->key, ds, w->q_pairs, r, w->dk + row * a->key.width);
}

/* dq of query tile j */
static void add_queries(const struct backward *f, const struct buffers *w, const struct chunk *c,
                        int64_t j)
{
    const struct attention *a = &f->a;
    struct cpu_range r = seen_range(&w->seen[0][j], QUERIES, c->keys);

    for (int64_t panel = 0; panel < panels_of(&a->key) && r.begin < r.end; panel++)
        cpu_multiply(
            f->state->unit,
            across_at(f->state->unit, w->k_across + step_of(panel, a->padded, c->key + r.begin)),
            w->ds_pairs + (j * KEYS + r.begin) * CPU_STEP_BYTES,
            (struct cpu_extent){elements_in(&a->key, panel), TILE, (r.end - r.begin) * TILE},
            w->dq + (j * panels_of(&a->key) + panel) * CPU_BLOCK, true);
}

static void run_chunk(const struct backward *f, struct buffers *w, const struct task *t,
                      const struct chunk *c)
{
    for (int64_t i = 0; i < c->keys; i++)
        for (int64_t j = 0; j < c->queries; j++)
            weigh(f, w, t, c, i, j);
    for (int64_t i = 0; t->keys && i < c->keys; i++)
        add_keys(f, w, c, i);
    for (int64_t j = 0; t->queries && j < c->queries; j++)
        add_queries(f, w, c, j);
}

static bool sees_chunk(const struct backward *f, const struct task *t, const struct chunk *c)
{
    for (int64_t j = c->query; j < c->query + c->queries; j++)
        if (sees_any(&f->mask, t->b, j, c->key, c->key + c->keys))
            return true;
    return false;
}

/* ---- a task ---- */

/* The tokens of a tile that exist, each times a factor. */
CPU_INLINE void store_rows_as(enum ct_dtype dtype, const struct head *h, const float *sums,
                              float factor, int64_t n, char *to, int64_t step)
{
    for (int64_t r = 0; r < n; r++, to += step)
        for (int64_t i = 0; i < h->size; i += CPU_LANES)
            v_put(dtype, to, i, h->size,
                  v_load(sums + i / CPU_PANEL * CPU_BLOCK + r * CPU_PANEL + i % CPU_PANEL) *
                      factor);
}

static void store_rows(const struct ct_tensor *t, const struct head *h, int64_t b, int64_t group,
                       int64_t tile, const float *sums, float factor)
{
    char *to = token_of(t, b, tile * TILE, group);
    int64_t n = tokens_in(t->shape[1], tile),
            step = t->stride[1] * (int64_t)ct_dtype_size(t->dtype);

    sums += tile * TILE * h->width;
    if (t->dtype == CT_F32)
        store_rows_as(CT_F32, h, sums, factor, n, to, step);
    else
        store_rows_as(CT_BF16, h, sums, factor, n, to, step);
}

static void begin_keys(const struct backward *f, const struct buffers *w, const struct task *t)
{
    const struct attention *a = &f->a;
    int64_t at = t->begin * TILE, n = (t->end - t->begin) * TILE;

    for (int64_t j = t->begin; j < t->end; j++) {
        struct cpu_packed_from k = tokens_of(f->k, t->b, t->group, j),
                               v = tokens_of(f->v, t->b, t->group, j);

        copy_rows(&k, &a->key, w->k + j * TILE * a->key.width * 2);
        copy_rows(&v, &a->value, w->v + j * TILE * a->value.width * 2);
        if (t->queries)
            f->state->unit->pack_transposed(&k, w->k_across + step_of(0, a->padded, j),
                                            step_of(1, a->padded, 0));
    }
    if (!t->keys)
        return;
    memset(w->dk + at * a->key.width, 0, (size_t)(n * a->key.width) * sizeof(float));
    memset(w->dv + at * a->value.width, 0, (size_t)(n * a->value.width) * sizeof(float));
}

static void end_keys(const struct backward *f, const struct buffers *w, const struct task *t)
{
    const struct attention *a = &f->a;

    for (int64_t j = t->begin; t->keys && j < t->end; j++) {
        store_rows(f->dk, &a->key, t->b, t->group, j, w->dk, a->scale);
        store_rows(f->dv, &a->value, t->b, t->group, j, w->dv, 1);
    }
}

/* The chunk's queries against all keys of the task. */
static void run_queries(const struct backward *f, struct buffers *w, const struct task *t,
                        struct chunk c)
{
    const struct attention *a = &f->a;

    for (int64_t i = 0; i < c.queries; i++)
        begin_tile(f, w, t, &c, i);
    memset(w->dq, 0, (size_t)(c.queries * TILE * a->key.width) * sizeof(float));
    for (c.key = t->begin; c.key < t->end; c.key += KEYS) {
        c.keys = least(KEYS, t->end - c.key);
        if (sees_chunk(f, t, &c))
            run_chunk(f, w, t, &c);
    }
    for (int64_t i = 0; t->queries && i < c.queries; i++)
        unpack(f->dq, &a->key, t->b, c.head, c.query + i, w->dq + i * TILE * a->key.width,
               w->scale);
}

static void run_task(const struct backward *f, struct buffers *w, const struct task *t)
{
    const struct attention *a = &f->a;
    int64_t share = a->heads / a->groups;

    begin_keys(f, w, t);
    for (int64_t i = 0; i < TILE; i += CPU_LANES)
        v_store(w->scale + i, v_set(a->scale));
    for (int64_t head = t->group * share; head < (t->group + 1) * share; head++)
        for (int64_t tile = t->first * QUERIES; tile < a->query_tiles; tile += t->step * QUERIES) {
            struct chunk c = {head, tile, least(QUERIES, a->query_tiles - tile), t->begin,
                              t->end - t->begin};

            if (t->queries || sees_chunk(f, t, &c))
                run_queries(f, w, t, c);
        }
    end_keys(f, w, t);
}

bool CPU_ISA(cpu_attention_grad_bf16_accepts)(const struct ct_prepare *prepare)
{
    const struct ct_tensor *in = prepare->in, *out = prepare->out;
    bool fits = can_mask(prepare->op) && cpu_attention_unit() && in[5].dtype == CT_F32;

    for (int i = 0; i < 5; i++)
        fits &= in[i].dtype == CT_BF16;
    for (int i = 0; i < 3; i++)
        fits &= cpu_is_compute_dtype(out[i].dtype);
    return fits;
}

int CPU_ISA(cpu_attention_grad_bf16_prepare)(struct ct_prepare *prepare)
{
    struct state *s = ct_arena_new(prepare->arena, struct state);
    struct buffers w;

    s->shape = attention_of(prepare->op, prepare->in + 1, CPU_PANEL);
    s->unit = cpu_attention_unit();
    s->threads = cpu_threads();
    s->dealt = deal_out(&s->shape, s->threads, (s->shape.query_tiles + QUERIES - 1) / QUERIES);
    s->mask = cpu_carve(&prepare->workspace, mask_bytes(&s->shape));
    s->buffers = prepare->workspace;
    s->buffer_bytes = lay_out(&s->shape, 0, &w);
    prepare->workspace += s->buffer_bytes * (size_t)s->threads;
    prepare->state = s;
    return 0;
}

int CPU_ISA(cpu_attention_grad_bf16_run)(const struct ct_launch *launch)
{
    const struct state *s = launch->state;
    const struct ct_tensor *in = launch->in, *out = launch->out;
    uintptr_t memory = (uintptr_t)launch->workspace;
    struct backward f = {s,           s->shape,      .grad = in,   .q = in + 1,
                         .k = in + 2, .v = in + 3,   .o = in + 4,  .lse = in + 5,
                         .dq = out,   .dk = out + 1, .dv = out + 2};
    int64_t tasks = count_tasks(&s->shape, &s->dealt);
    int together = tasks_together(&s->shape, f.q, 1, tasks, s->threads);

    f.mask = mask_of(launch, 1, 6, &f.a, (char *)launch->workspace + s->mask);
    f.change = change_of(launch, 1, &f.a);
#pragma omp parallel num_threads(s->threads)
    {
        struct buffers w;

        lay_out(&f.a, memory + s->buffers + s->buffer_bytes * (size_t)omp_get_thread_num(), &w);
        s->unit->begin();
#pragma omp for schedule(dynamic, together)
        for (int64_t i = 0; i < tasks; i++) {
            struct task t = task_at(&s->shape, &s->dealt, i);
            run_task(&f, &w, &t);
        }
        s->unit->end();
    }
    return 0;
}
