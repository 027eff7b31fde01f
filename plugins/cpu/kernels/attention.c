/*
 * Causal attention: o = softmax(q k^T / sqrt(d)) v, tile by tile with a running maximum and sum
 * (Milakov and Gimelshein 2018; Dao et al. 2022). Scores are plain dot products; 1/sqrt(d) and
 * log2(e) enter in the fused multiply-add in front of 2^x, where they cost nothing and round once.
 *
 *     s[key][query] = K Q^T,  p = exp(s),  o[..][query] = V^T p
 *
 * A tile of queries is taken against up to TILES tiles of keys at a time, so that the second
 * product is deep: those that follow each other without a hidden one between them.
 *
 * A task is a key/value head of one sequence, whose keys and values are packed once and used by all
 * its query heads; where there are fewer heads than threads, its query tiles are dealt out to
 * several tasks. Every output is made by one task, so the result does not depend on the threads.
 */
#include <omp.h>

#include "kernels.h"
#include "scores.h"
#include "attention_softmax.h"

struct state {
    struct attention shape;
    int64_t parts; /* tasks per key/value head */
    int threads;
    size_t mask, buffers, buffer_bytes;
};

/* A thread's own memory. */
struct buffers {
    char *k, *v;   /* A: rows of k, and v^T; in float32, rows of both */
    char *rows;    /* of a tile of queries, in float32 */
    char *q;       /* B: q^T */
    float *scores; /* [TILES][TILE][TILE] */
    char *p;       /* B: weights; in float32, the scores */
    float *o;      /* [width][TILE] */
    struct running running;
};

struct forward {
    const struct state *state;
    struct attention a;
    struct attention_mask mask;
    struct change change;
    const struct ct_tensor *q, *k, *v, *o, *lse;
};

static size_t lay_out(const struct attention *a, uintptr_t base, struct buffers *w)
{
    uintptr_t at = base;

    w->k = carve_bytes(&at, rows_before(&a->key, a->key_tiles));
    w->v = carve_bytes(&at, rows_before(&a->value, a->key_tiles));
    w->rows = carve_bytes(&at, ON_UNIT ? 0 : rows_before(&a->key, 1));
    w->q = carve_bytes(&at, rows_before(&a->key, 1));
    w->scores = carve_floats(&at, TILES * TILE * TILE);
    w->p = ON_UNIT ? carve_bytes(&at, TILES * TILE * TILE * BYTES) : (char *)w->scores;
    w->o = carve_floats(&at, TILE * a->value.width);
    carve_running(&at, &w->running);
    return at - base;
}

/* The scores of the key tiles [begin, end) are there: add their values to o. */
static void gather(const struct forward *f, const struct buffers *w, int64_t begin, int64_t end,
                   bool diagonal)
{
    const struct attention *a = &f->a;

    softmax(a, &w->running, w->scores, (end - begin) * TILE, diagonal, w->p);
    rescale(&a->value, &w->running, w->o);
    add_across(a, &a->value, diagonal, w->v + panel_before(&a->value, 0, 0, begin), w->p,
               depth_of(a->keys, begin, end), w->o);
}

static void begin_queries(const struct forward *f, const struct buffers *w, int64_t b, int64_t head,
                          int64_t tile)
{
    struct cpu_packed_from q = tokens_of(f->q, b, head, tile);

    if (!ON_UNIT)
        q = copy_rows(&q, &f->a.key, w->rows);
    pack_columns(&q, w->q);
    memset(w->o, 0, (size_t)(TILE * f->a.value.width) * sizeof(float));
    begin_running(&w->running);
}

static void end_queries(const struct forward *f, const struct buffers *w, int64_t b, int64_t head,
                        int64_t tile)
{
    end_running(&f->a, &w->running, f->lse, b, head, tile);
    unpack(f->o, &f->a.value, b, head, tile, w->o, w->running.rescale);
}

static void query_tile(const struct forward *f, const struct buffers *w, int64_t b, int64_t head,
                       int64_t tile)
{
    const struct attention *a = &f->a;
    int64_t tiles = 0; /* whose scores are there */

    begin_queries(f, w, b, head, tile);
    for (int64_t j = 0; j < a->key_tiles; j++) {
        unsigned how = mask_between(&f->mask, b, tile, j);
        float *scores = w->scores + tiles * TILE * TILE;

        if (!(how & HIDDEN)) {
            score(a, &a->key, how & DIAGONAL, w->k + rows_before(&a->key, j), w->q, scores);
            change_scores(&f->change, &f->mask, b, head, tile, j, how, scores);
            mask_scores(&f->mask, b, tile, j, how, scores);
            tiles++;
        }
        if (tiles && (how & HIDDEN || tiles == TILES || j == a->key_tiles - 1)) {
            int64_t end = how & HIDDEN ? j : j + 1;

            gather(f, w, end - tiles, end, how & DIAGONAL);
            tiles = 0;
        }
    }
    end_queries(f, w, b, head, tile);
}

static void pack_keys(const struct forward *f, const struct buffers *w, int64_t b, int64_t group,
                      int64_t tile)
{
    const struct attention *a = &f->a;
    struct cpu_packed_from k = tokens_of(f->k, b, group, tile), v = tokens_of(f->v, b, group, tile);

    copy_rows(&k, &a->key, w->k + rows_before(&a->key, tile));
    pack_across(a, &v, &a->value, tile, w->v);
}

/* Query tiles part, part + parts, .. of the heads that share one key/value head. */
static void run_task(const struct forward *f, const struct buffers *w, int64_t task)
{
    const struct attention *a = &f->a;
    int64_t parts = f->state->parts, part = parts - 1 - task % parts;
    int64_t group = task / parts % a->groups, b = task / parts / a->groups;
    int64_t share = a->heads / a->groups;

    for (int64_t j = 0; j < a->key_tiles; j++)
        if (is_seen(&f->mask, b, part, parts, j))
            pack_keys(f, w, b, group, j);
    for (int64_t head = group * share; head < (group + 1) * share; head++)
        for (int64_t tile = part; tile < a->query_tiles; tile += parts)
            query_tile(f, w, b, head, tile);
}

bool KERNEL(attention, accepts)(const struct ct_prepare *prepare)
{
    const struct ct_tensor *in = prepare->in;
    enum ct_dtype dtype = in[0].dtype;
    bool can = ON_UNIT ? dtype == DTYPE && cpu_attention_unit() : cpu_is_compute_dtype(dtype);

    return can && can_mask(prepare->op) && in[1].dtype == dtype && in[2].dtype == dtype &&
           cpu_is_compute_dtype(prepare->out[0].dtype) && prepare->out[1].dtype == CT_F32;
}

int KERNEL(attention, prepare)(struct ct_prepare *prepare)
{
    struct state *s = ct_arena_new(prepare->arena, struct state);
    struct buffers w;
    int64_t tasks;

    s->shape = attention_of(prepare->op, prepare->in);
    s->threads = cpu_threads();
    tasks = s->shape.batch * s->shape.groups;
    s->parts = tasks % s->threads ? (4 * s->threads + tasks - 1) / tasks : 1;
    s->parts = least(s->parts, s->shape.query_tiles);
    s->mask = cpu_carve(&prepare->workspace, mask_bytes(&s->shape));
    s->buffers = prepare->workspace;
    s->buffer_bytes = lay_out(&s->shape, 0, &w);
    prepare->workspace += s->buffer_bytes * (size_t)s->threads;
    prepare->state = s;
    return 0;
}

int KERNEL(attention, run)(const struct ct_launch *launch)
{
    const struct state *s = launch->state;
    const struct ct_tensor *in = launch->in, *out = launch->out;
    char *memory = launch->workspace;
    struct forward f = {s, s->shape, .q = in, .k = in + 1, .v = in + 2, .o = out, .lse = out + 1};
    int64_t tasks = s->shape.batch * s->shape.groups * s->parts;
    int together = tasks_together(&s->shape, f.q, s->parts, tasks, s->threads);

    f.mask = mask_of(launch, 0, 3, &f.a, memory + s->mask);
    f.change = change_of(launch, 0, &f.a);
#pragma omp parallel num_threads(s->threads)
    {
        struct buffers w;

        lay_out(&f.a,
                (uintptr_t)memory + s->buffers + s->buffer_bytes * (size_t)omp_get_thread_num(),
                &w);
        if (ON_UNIT)
            f.a.unit->begin();
#pragma omp for schedule(dynamic, together)
        for (int64_t task = 0; task < tasks; task++)
            run_task(&f, &w, task);
        if (ON_UNIT)
            f.a.unit->end();
    }
    return 0;
}
