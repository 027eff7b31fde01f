/*
 * The gradient of causal attention. Weights are computed again from lse, tile by tile:
 *
 *     s[key][query] = K Q^T,  dp = V dO^T,  p = exp(s - lse),  ds = p (dp - d)
 *     dV = p dO,  dK = scale ds Q,  dQ^T = scale K^T ds,  d = diagonal of O dO^T
 *
 * (Dao et al. 2022). d is summed as dp is: a query that sees one key only gets a gradient close to
 * 0. Up to TILES tiles of keys are taken against as many tiles of queries, so that the last
 * products are deep. On a unit p and ds are stored as rows of A, and ds as B, too; in float32 they
 * lie where s and dp did.
 *
 * One task owns a key/value head of one sequence: it walks the query tiles of its query heads,
 * holds dK and dV of all keys, and writes each gradient once, so nothing is shared and the order of
 * sums is fixed. Of heads that do not fill the threads, tasks are halves of that: some make dQ of
 * their query tiles, others dK and dV of their key tiles, and both compute p.
 */
#include <omp.h>

#include "kernels.h"
#include "scores.h"
#include "attention_tasks.h"

struct state {
    struct attention shape;
    struct dealt dealt;
    int threads;
    size_t mask, buffers, buffer_bytes;
};

/* A thread's own memory. */
struct buffers {
    char *k, *v;             /* rows */
    char *k_across;          /* A = k^T; in float32, k */
    float *dk, *dv;          /* [tile][panel][TILE][panel's elements] */
    char *q, *g;             /* of TILES tiles: B = q^T and do^T */
    char *q_rows, *g_rows;   /* B = q and do */
    float *dq;               /* [TILES][width][TILE] */
    float *lse, *d, *scale;  /* by query */
    char *o;                 /* of one tile: B = o^T */
    float *s, *dp;           /* of one tile */
    char *p, *ds;            /* [queries][keys] tiles of [TILE][TILE]: A; in float32, s and dp */
    char *ds_columns;        /* ds as B; in float32, ds */
    bool seen[TILES][TILES]; /* by keys and queries */
    bool diagonal;           /* the newest tile */
};

struct backward {
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
    const struct head *key = &a->key, *value = &a->value;
    int64_t weights = TILES * TILES * TILE * TILE * BYTES;
    uintptr_t at = base;

    w->k = carve_bytes(&at, rows_before(key, a->key_tiles));
    w->v = carve_bytes(&at, rows_before(value, a->key_tiles));
    w->k_across = ON_UNIT ? carve_bytes(&at, rows_before(key, a->key_tiles)) : w->k;
    w->dk = carve_floats(&at, a->padded * key->width);
    w->dv = carve_floats(&at, a->padded * value->width);
    w->q = carve_bytes(&at, rows_before(key, TILES));
    w->g = carve_bytes(&at, rows_before(value, TILES));
    w->q_rows = carve_bytes(&at, rows_before(key, TILES));
    w->g_rows = carve_bytes(&at, rows_before(value, TILES));
    w->dq = carve_floats(&at, TILES * TILE * key->width);
    w->lse = carve_floats(&at, TILES * TILE);
    w->d = carve_floats(&at, TILES * TILE);
    w->scale = carve_floats(&at, TILE);
    w->o = carve_bytes(&at, rows_before(value, 1));
    w->s = carve_floats(&at, TILE * TILE);
    w->dp = carve_floats(&at, TILE * TILE);
    w->p = ON_UNIT ? carve_bytes(&at, weights) : (char *)w->s;
    w->ds = ON_UNIT ? carve_bytes(&at, weights) : (char *)w->dp;
    w->ds_columns = ON_UNIT ? carve_bytes(&at, weights) : w->ds;
    return at - base;
}

/* ---- queries ---- */

/* sum + a b, of words: numbers, or pairs. */
CPU_INLINE vf add_words(vf sum, vu a, vu b)
{
    vu odd = (vu)v_seti((int32_t)0xffff0000);

    if (!ON_UNIT)
        return (vf)a * (vf)b + sum;
    sum = (vf)(a << 16) * (vf)(b << 16) + sum;
    return (vf)(a & odd) * (vf)(b & odd) + sum;
}

/* d of tile i of the chunk, whose do^T is packed. */
static void sum_rows(const struct backward *f, const struct buffers *w, const struct task *t,
                     const struct chunk *c, int64_t i)
{
    const struct head *h = &f->a.value;
    struct cpu_packed_from o = tokens_of(f->o, t->b, c->head, c->query + i);
    const char *g = w->g + rows_before(h, i);

    pack_columns(&o, w->o);
    for (int64_t q = 0; q < TILE; q += CPU_LANES) {
        vf sum = {0};

        for (int64_t word = 0; word * 4 < h->size * BYTES; word++) {
            vu a, b;

            memcpy(&a, w->o + word_before(word, q), sizeof(a));
            memcpy(&b, g + word_before(word, q), sizeof(b));
            sum = add_words(sum, a, b);
        }
        v_store(w->d + i * TILE + q, sum);
    }
}

/* Tile i of the chunk's queries: B = tokens, where `rows` or float32, and B = tokens^T. */
static void pack_queries(struct cpu_packed_from from, const struct head *h, int64_t i, bool rows,
                         char *to, char *columns)
{
    struct cpu_lines lines = cpu_panel_lines(DTYPE, panel_before(h, 1, TILES * TILE, 0));

    to += panel_before(h, 0, 0, i);
    if (!ON_UNIT)
        from = copy_rows(&from, h, to);
    else if (rows)
        CPU_ISA(cpu_pack_rows)(&lines, &from, to);
    pack_columns(&from, columns + rows_before(h, i));
}

static void begin_tile(const struct backward *f, const struct buffers *w, const struct task *t,
                       const struct chunk *c, int64_t i)
{
    const struct attention *a = &f->a;
    const struct ct_tensor *lse = f->lse;
    int64_t tile = c->query + i, n = tokens_in(a->queries, tile);
    const float *from =
        (const float *)lse->data + t->b * lse->stride[0] + c->head * lse->stride[1] + tile * TILE;

    pack_queries(tokens_of(f->q, t->b, c->head, tile), &a->key, i, t->keys, w->q_rows, w->q);
    pack_queries(tokens_of(f->grad, t->b, c->head, tile), &a->value, i, t->keys, w->g_rows, w->g);
    sum_rows(f, w, t, c, i);
    for (int64_t k = 0; k < TILE; k += CPU_LANES) {
        vf lse_q = k < n ? v_get(CT_F32, from, k, n) : v_set(0);

        /* -inf, of a query that saw no key, is to give weights of 0 */
        v_store(w->lse + i * TILE + k, v_select(lse_q <= MASKED, v_set(-MASKED), lse_q));
    }
}

/* ---- a chunk ---- */

/* Bytes in front of tile (i, j) of p or ds. */
static inline int64_t weights_before(int64_t i, int64_t j)
{
    return (j * TILES + i) * TILE * TILE * BYTES;
}

/* s and dp of a tile -> p and ds */
CPU_INLINE void weights_as(bool capped, const struct backward *f, const struct buffers *w,
                           int64_t i, int64_t j)
{
    float per = per_cap(&f->change), unit = f->a.scale * LOG2_E;
    char *columns = w->ds_columns + weights_before(i, j);

    for (int64_t q = 0; q < TILE; q += CPU_LANES) {
        vf lse = v_load(w->lse + j * TILE + q) * LOG2_E, d = v_load(w->d + j * TILE + q);
        char *p = w->p + weights_before(i, j), *ds = w->ds + weights_before(i, j);

        for (int64_t k = 0; k < keys_of(w->diagonal, q); k += 2) {
            vf slope[2];

            for (int r = 0; r < 2; r++, p += TILE * BYTES, ds += TILE * BYTES) {
                vf s = v_load(w->s + (k + r) * TILE + q), weight = v_exp2(s * unit - lse);

                slope[r] = weight * (v_load(w->dp + (k + r) * TILE + q) - d);
                slope[r] = capped ? through_change(per, s, slope[r]) : slope[r];
                v_put(DTYPE, p, q, TILE, weight);
                v_put(DTYPE, ds, q, TILE, slope[r]);
            }
            if (ON_UNIT)
                put_pair(columns, k, q, slope[0], slope[1]);
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
    memset(w->p + weights_before(i, j), 0, TILE * TILE * BYTES);
    memset(w->ds + weights_before(i, j), 0, TILE * TILE * BYTES);
    memset(w->ds_columns + weights_before(i, j), 0, TILE * TILE * BYTES);
}

static void weigh(const struct backward *f, struct buffers *w, const struct task *t,
                  const struct chunk *c, int64_t i, int64_t j)
{
    const struct attention *a = &f->a;
    const struct head *key = &a->key, *value = &a->value;
    unsigned how = mask_between(&f->mask, t->b, c->query + j, c->key + i);

    w->seen[i][j] = !(how & HIDDEN);
    w->diagonal = how & DIAGONAL;
    if (how & HIDDEN) {
        clear(w, i, j);
        return;
    }
    score(a, key, w->diagonal, w->k + rows_before(key, c->key + i), w->q + rows_before(key, j),
          w->s);
    score(a, value, w->diagonal, w->v + rows_before(value, c->key + i),
          w->g + rows_before(value, j), w->dp);
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

/* Sums of a tile of keys, panel by panel, += weights times `depth` rows of queries. */
static void add_rows(const struct attention *a, const struct head *h, bool diagonal,
                     const char *weights, const char *queries, int64_t depth, float *sums)
{
    struct span spans[TILE / GRAIN];
    int count = spans_of(diagonal, TILE, spans);

    for (int64_t panel = 0; panel < panels_of(h); panel++)
        for (int i = 0; i < count && spans[i].query < depth; i++) {
            int64_t key = spans[i].key, query = spans[i].query;
            struct cpu_panel rows = {weights + (key * TILE + query) * BYTES, TILE * BYTES, 4,
                                     weights_before(0, 1)};

            times(a, rows,
                  queries + panel_before(h, panel, TILES * TILE, 0) + query * h->width * BYTES,
                  h->width,
                  (struct cpu_extent){(int)spans[i].keys, elements_in(h, panel), depth - query},
                  sums + (panel * TILE + key) * panel_of(h), panel_of(h), true);
        }
}

/* dv and dk of key tile i */
static void add_keys(const struct backward *f, const struct buffers *w, const struct chunk *c,
                     int64_t i)
{
    const struct attention *a = &f->a;
    const struct head *key = &a->key, *value = &a->value;
    struct cpu_range r = seen_range(w->seen[i], 1, c->queries);
    int64_t row = (c->key + i) * TILE, at = weights_before(i, r.begin),
            depth = depth_of(a->queries, c->query + r.begin, c->query + r.end);

    if (r.begin == r.end)
        return;
    add_rows(a, value, w->diagonal, w->p + at, w->g_rows + panel_before(value, 0, 0, r.begin),
             depth, w->dv + row * value->width);
    add_rows(a, key, w->diagonal, w->ds + at, w->q_rows + panel_before(key, 0, 0, r.begin), depth,
             w->dk + row * key->width);
}

/* dq of query tile j */
static void add_queries(const struct backward *f, const struct buffers *w, const struct chunk *c,
                        int64_t j)
{
    const struct attention *a = &f->a;
    struct cpu_range r = seen_range(&w->seen[0][j], TILES, c->keys);

    if (r.begin < r.end)
        add_across(
            a, &a->key, w->diagonal, w->k_across + panel_before(&a->key, 0, 0, c->key + r.begin),
            w->ds_columns + weights_before(r.begin, j),
            depth_of(a->keys, c->key + r.begin, c->key + r.end), w->dq + j * TILE * a->key.width);
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
    int64_t width = panel_of(h);

    for (int64_t r = 0; r < n; r++, to += step)
        for (int64_t i = 0; i < h->size; i += width)
            for (int64_t j = i; j < i + width && j < h->size; j += CPU_LANES)
                v_put(dtype, to, j, h->size, v_load(sums + i * TILE + r * width + j - i) * factor);
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

        copy_rows(&k, &a->key, w->k + rows_before(&a->key, j));
        copy_rows(&v, &a->value, w->v + rows_before(&a->value, j));
        if (ON_UNIT && t->queries)
            pack_across(a, &k, &a->key, j, w->k_across);
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
    for (c.key = t->begin; c.key < t->end; c.key += TILES) {
        c.keys = least(TILES, t->end - c.key);
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
        for (int64_t tile = t->first * TILES; tile < a->query_tiles; tile += t->step * TILES) {
            struct chunk c = {head, tile, least(TILES, a->query_tiles - tile), t->begin,
                              t->end - t->begin};

            if (t->queries || sees_chunk(f, t, &c))
                run_queries(f, w, t, c);
        }
    end_keys(f, w, t);
}

bool KERNEL(attention_grad, accepts)(const struct ct_prepare *prepare)
{
    const struct ct_tensor *in = prepare->in, *out = prepare->out;
    enum ct_dtype dtype = in[0].dtype;
    bool can = ON_UNIT ? dtype == DTYPE && cpu_attention_unit() : cpu_is_compute_dtype(dtype);

    can &= can_mask(prepare->op) && in[5].dtype == CT_F32;
    for (int i = 1; i < 5; i++)
        can &= in[i].dtype == dtype;
    for (int i = 0; i < 3; i++)
        can &= cpu_is_compute_dtype(out[i].dtype);
    return can;
}

int KERNEL(attention_grad, prepare)(struct ct_prepare *prepare)
{
    struct state *s = ct_arena_new(prepare->arena, struct state);
    struct buffers w;

    s->shape = attention_of(prepare->op, prepare->in + 1);
    s->threads = cpu_threads();
    s->dealt = deal_out(&s->shape, s->threads, (s->shape.query_tiles + TILES - 1) / TILES);
    s->mask = cpu_carve(&prepare->workspace, mask_bytes(&s->shape));
    s->buffers = prepare->workspace;
    s->buffer_bytes = lay_out(&s->shape, 0, &w);
    prepare->workspace += s->buffer_bytes * (size_t)s->threads;
    prepare->state = s;
    return 0;
}

int KERNEL(attention_grad, run)(const struct ct_launch *launch)
{
    const struct state *s = launch->state;
    const struct ct_tensor *in = launch->in, *out = launch->out;
    uintptr_t memory = (uintptr_t)launch->workspace;
    struct backward f = {s->shape,    .grad = in,    .q = in + 1, .k = in + 2,   .v = in + 3,
                         .o = in + 4, .lse = in + 5, .dq = out,   .dk = out + 1, .dv = out + 2};
    int64_t tasks = count_tasks(&s->shape, &s->dealt);
    int together = tasks_together(&s->shape, f.q, 1, tasks, s->threads);

    f.mask = mask_of(launch, 1, 6, &f.a, (char *)launch->workspace + s->mask);
    f.change = change_of(launch, 1, &f.a);
#pragma omp parallel num_threads(s->threads)
    {
        struct buffers w;

        lay_out(&f.a, memory + s->buffers + s->buffer_bytes * (size_t)omp_get_thread_num(), &w);
        if (ON_UNIT)
            f.a.unit->begin();
#pragma omp for schedule(dynamic, together)
        for (int64_t i = 0; i < tasks; i++) {
            struct task t = task_at(&s->shape, &s->dealt, i);
            run_task(&f, &w, &t);
        }
        if (ON_UNIT)
            f.a.unit->end();
    }
    return 0;
}
