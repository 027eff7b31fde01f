/*
 * The gradient of causal attention. Weights are computed again from lse, tile by tile:
 *
 *     P = exp(s - lse),  dV = P^T dO,  dS = P (dO V^T - D) with D = rowsum(dO O),
 *     dQ = scale dS K,  dK = scale dS^T Q
 *
 * (Dao et al. 2022). One task owns a key/value head of one sequence: it walks the query tiles of
 * its query heads, holds dQ of a tile and dK, dV of all keys, and writes each once, so nothing is
 * shared and the order of sums is fixed. Of heads that do not fill the threads, tasks are halves of
 * that: some make dQ of their query tiles, others dK and dV of their key tiles, and both compute P.
 */
#include <omp.h>

#include "../cpu.h"
#include "kernels.h"
#include "scores.h"
#include "attention_softmax.h"
#include "tile.h"

struct state {
    struct attention shape;
    struct dealt dealt;
    int threads;
    size_t mask, buffers, buffer_bytes;
};

/* A thread's own memory. */
struct buffers {
    float *k, *v, *dk, *dv;       /* [padded][width of either] */
    float *q, *o;                 /* rows of q and of do: [TILE][width of either] */
    float *q_columns, *o_columns; /* the same, [width][TILE] */
    float *dq;                    /* [width][TILE] */
    float *p, *ds;                /* [TILE][TILE] */
    float *lse, *d, *scale;       /* by query */
};

struct backward {
    const struct state *state;
    struct attention a;
    struct attention_mask mask;
    struct change change;
    const struct ct_tensor *grad, *q, *k, *v, *o, *lse;
    const struct ct_tensor *dq, *dk, *dv;
};

static size_t lay_out(const struct attention *a, uintptr_t base, struct buffers *w)
{
    int64_t key = a->key.width, value = a->value.width;
    uintptr_t at = base;

    w->k = carve_floats(&at, a->padded * key);
    w->v = carve_floats(&at, a->padded * value);
    w->dk = carve_floats(&at, a->padded * key);
    w->dv = carve_floats(&at, a->padded * value);
    w->q = carve_floats(&at, TILE * key);
    w->o = carve_floats(&at, TILE * value);
    w->q_columns = carve_floats(&at, TILE * key);
    w->o_columns = carve_floats(&at, TILE * value);
    w->dq = carve_floats(&at, TILE * key);
    w->p = carve_floats(&at, TILE * TILE);
    w->ds = carve_floats(&at, TILE * TILE);
    w->lse = carve_floats(&at, TILE);
    w->d = carve_floats(&at, TILE);
    w->scale = carve_floats(&at, TILE);
    return at - base;
}

/*
 * d[query] = sum over the head of do o, in the order in which `multiply` sums do v: a query that
 * sees one key only gets a gradient of exactly 0. Rows of o that do not exist count as zeros.
 */
CPU_INLINE void row_sums_as(enum ct_dtype dtype, const struct head *h, const float *columns,
                            const char *o, int64_t step, int64_t n, float *d)
{
    for (int64_t q = 0; q < TILE; q += CPU_LANES) {
        vf sum = {0};

        for (int64_t i = 0; i < h->width; i += CPU_LANES) {
            vf block[CPU_LANES] = {{0}};
            for (int64_t r = 0; r < CPU_LANES && q + r < n; r++)
                block[r] = v_get(dtype, o + (q + r) * step, i, h->size);
            v_transpose(block);
            for (int64_t r = 0; r < CPU_LANES; r++)
                sum += block[r] * v_load(columns + (i + r) * TILE + q);
        }
        v_store(d + q, sum);
    }
}

static void row_sums(const struct backward *f, const struct buffers *w, int64_t b, int64_t head,
                     int64_t tile)
{
    const struct ct_tensor *o = f->o;
    const char *rows = token_of(o, b, tile * TILE, head);
    int64_t step = o->stride[1] * (int64_t)ct_dtype_size(o->dtype),
            n = tokens_in(o->shape[1], tile);

    if (o->dtype == CT_F32)
        row_sums_as(CT_F32, &f->a.value, w->o_columns, rows, step, n, w->d);
    else
        row_sums_as(CT_BF16, &f->a.value, w->o_columns, rows, step, n, w->d);
}

static void begin_queries(const struct backward *f, const struct buffers *w, int64_t b,
                          int64_t head, int64_t tile)
{
    const struct attention *a = &f->a;
    const struct ct_tensor *lse = f->lse;
    int64_t n = tokens_in(a->queries, tile);
    const float *from =
        (const float *)lse->data + b * lse->stride[0] + head * lse->stride[1] + tile * TILE;

    pack(f->q, &a->key, b, head, tile, w->q);
    pack(f->grad, &a->value, b, head, tile, w->o);
    pack_columns(&a->key, w->q, w->q_columns);
    pack_columns(&a->value, w->o, w->o_columns);
    row_sums(f, w, b, head, tile);
    memset(w->dq, 0, (size_t)(TILE * a->key.width) * sizeof(float));
    for (int64_t q = 0; q < TILE; q += CPU_LANES) {
        vf lse_q = q < n ? v_get(CT_F32, from, q, n) : v_set(0);

        /* -inf, of a query that saw no key, is to give weights of 0 */
        v_store(w->lse + q, v_select(lse_q <= MASKED, v_set(-MASKED), lse_q));
        v_store(w->scale + q, v_set(a->scale));
    }
}

/* p: scores -> weights; ds: do v^T -> gradients of the scores */
CPU_INLINE void weights_as(bool capped, const struct backward *f, const struct buffers *w,
                           bool diagonal)
{
    const struct attention *a = &f->a;
    float per = per_cap(&f->change);

    for (int64_t q = 0; q < TILE; q += CPU_LANES) {
        int64_t keys = keys_of(diagonal, q);
        vf lse = v_load(w->lse + q), d = v_load(w->d + q);
        float *p = w->p + q, *ds = w->ds + q;

        for (int64_t k = 0; k < keys; k++, p += TILE, ds += TILE) {
            vf score = v_load(p), weight = v_exp2((score * a->scale - lse) * LOG2_E);
            vf slope = weight * (v_load(ds) - d);

            v_store(p, weight);
            v_store(ds, capped ? through_change(per, score, slope) : slope);
        }
    }
}

static void weights(const struct backward *f, const struct buffers *w, bool diagonal)
{
    if (f->change.cap > 0)
        weights_as(true, f, w, diagonal);
    else
        weights_as(false, f, w, diagonal);
}

/* out[key][..] += sum over queries of weights[key][query] rows[query][..] */
static void scatter(const struct head *h, bool diagonal, const float *weights, const float *rows,
                    float *out)
{
    struct span spans[TILE / GRAIN];
    int count = spans_of(diagonal, spans);

    for (int i = 0; i < count; i++) {
        int64_t key = spans[i].key, query = spans[i].query;

        multiply((struct product){.c = out + key * h->width,
                                  .c_row = h->width,
                                  .a = weights + key * TILE + query,
                                  .row = TILE,
                                  .step = 1,
                                  .b = rows + query * h->width,
                                  .b_row = h->width,
                                  .m = spans[i].keys,
                                  .n = h->width,
                                  .k = TILE - query,
                                  .add = true});
    }
}

static void key_tile(const struct backward *f, const struct buffers *w, const struct task *t,
                     int64_t head, int64_t tile, int64_t j)
{
    const struct attention *a = &f->a;
    unsigned how = mask_between(&f->mask, t->b, tile, j);
    int64_t key = j * TILE * a->key.width, value = j * TILE * a->value.width;
    bool diagonal = how & DIAGONAL;

    if (how & HIDDEN)
        return;
    score(&a->key, diagonal, w->k + key, w->q_columns, w->p);
    score(&a->value, diagonal, w->v + value, w->o_columns, w->ds);
    change_scores(&f->change, &f->mask, t->b, head, tile, j, how, w->p);
    mask_scores(&f->mask, t->b, tile, j, how, w->p);
    weights(f, w, diagonal);
    if (t->keys) {
        scatter(&a->value, diagonal, w->p, w->o, w->dv + value);
        scatter(&a->key, diagonal, w->ds, w->q, w->dk + key);
    }
    if (t->queries)
        gather(&a->key, diagonal, w->k + key, w->ds, w->dq);
}

/* Packed rows of one head, times factor -> the tokens of a tile that exist. */
CPU_INLINE void store_rows_as(enum ct_dtype dtype, const struct head *h, const float *rows,
                              float factor, int64_t n, char *to, int64_t step)
{
    for (int64_t r = 0; r < n; r++, to += step)
        for (int64_t i = 0; i < h->size; i += CPU_LANES)
            v_put(dtype, to, i, h->size, v_load(rows + r * h->width + i) * factor);
}

static void store_rows(const struct ct_tensor *t, const struct head *h, int64_t b, int64_t head,
                       int64_t tile, const float *rows, float factor)
{
    char *to = token_of(t, b, tile * TILE, head);
    int64_t step = t->stride[1] * (int64_t)ct_dtype_size(t->dtype),
            n = tokens_in(t->shape[1], tile);

    if (t->dtype == CT_F32)
        store_rows_as(CT_F32, h, rows, factor, n, to, step);
    else
        store_rows_as(CT_BF16, h, rows, factor, n, to, step);
}

static void begin_keys(const struct backward *f, const struct buffers *w, const struct task *t)
{
    const struct attention *a = &f->a;
    int64_t at = t->begin * TILE, n = (t->end - t->begin) * TILE;

    for (int64_t j = t->begin; j < t->end; j++) {
        if (!is_seen(&f->mask, t->b, t->first, t->step, j))
            continue;
        pack(f->k, &a->key, t->b, t->group, j, w->k + j * TILE * a->key.width);
        pack(f->v, &a->value, t->b, t->group, j, w->v + j * TILE * a->value.width);
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
        store_rows(f->dk, &a->key, t->b, t->group, j, w->dk + j * TILE * a->key.width, a->scale);
        store_rows(f->dv, &a->value, t->b, t->group, j, w->dv + j * TILE * a->value.width, 1);
    }
}

static void run_task(const struct backward *f, const struct buffers *w, const struct task *t)
{
    const struct attention *a = &f->a;
    int64_t share = a->heads / a->groups;

    begin_keys(f, w, t);
    for (int64_t head = t->group * share; head < (t->group + 1) * share; head++)
        for (int64_t tile = t->first; tile < a->query_tiles; tile += t->step) {
            if (!t->queries && !sees_any(&f->mask, t->b, tile, t->begin, t->end))
                continue;
            begin_queries(f, w, t->b, head, tile);
            for (int64_t j = t->begin; j < t->end; j++)
                key_tile(f, w, t, head, tile, j);
            if (t->queries)
                unpack(f->dq, &a->key, t->b, head, tile, w->dq, w->scale);
        }
    end_keys(f, w, t);
}

bool CPU_ISA(cpu_attention_grad_accepts)(const struct ct_prepare *prepare)
{
    const struct ct_tensor *in = prepare->in, *out = prepare->out;
    bool same = can_mask(prepare->op) && cpu_is_compute_dtype(in[0].dtype) && in[5].dtype == CT_F32;

    for (int i = 0; i < 5; i++)
        same &= in[i].dtype == in[0].dtype;
    for (int i = 0; i < 3; i++)
        same &= cpu_is_compute_dtype(out[i].dtype);
    return same;
}

int CPU_ISA(cpu_attention_grad_prepare)(struct ct_prepare *prepare)
{
    struct state *s = ct_arena_new(prepare->arena, struct state);
    struct buffers w;

    s->shape = attention_of(prepare->op, prepare->in + 1, CPU_LANES);
    s->threads = cpu_threads();
    s->dealt = deal_out(&s->shape, s->threads, s->shape.query_tiles);
    s->mask = cpu_carve(&prepare->workspace, mask_bytes(&s->shape));
    s->buffers = prepare->workspace;
    s->buffer_bytes = lay_out(&s->shape, 0, &w);
    prepare->workspace += s->buffer_bytes * (size_t)s->threads;
    prepare->state = s;
    return 0;
}

int CPU_ISA(cpu_attention_grad_run)(const struct ct_launch *launch)
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
#pragma omp for schedule(dynamic, together)
        for (int64_t i = 0; i < tasks; i++) {
            struct task t = task_at(&s->shape, &s->dealt, i);
            run_task(&f, &w, &t);
        }
    }
    return 0;
}
