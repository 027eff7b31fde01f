/*
 * Causal attention: o = softmax(q k^T / sqrt(d)) v, tile by tile with a running maximum and sum
 * (Milakov and Gimelshein 2018; Dao et al. 2022). Scores are plain dot products; 1/sqrt(d) and
 * log2(e) enter in the fused multiply-add in front of 2^x, where they cost nothing and round once.
 *
 * A task is a key/value head of one sequence, whose keys and values are packed once and used by all
 * its query heads; where there are fewer heads than threads, its query tiles are dealt out to
 * several tasks. Every output is made by one task, so the result does not depend on the threads.
 */
#include <omp.h>

#include "../cpu.h"
#include "kernels.h"
#include "scores.h"
#include "attention_softmax.h"
#include "tile.h"

struct state {
    struct attention shape;
    int64_t parts; /* tasks per key/value head */
    int threads;
    size_t mask, buffers, buffer_bytes;
};

/* A thread's own memory. */
struct buffers {
    float *k, *v;        /* [padded][width of either] */
    float *rows, *q, *o; /* q: rows [TILE][width], columns [width][TILE]; o: columns */
    float *scores;       /* [TILE][TILE] */
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

    w->k = carve_floats(&at, a->padded * a->key.width);
    w->v = carve_floats(&at, a->padded * a->value.width);
    w->rows = carve_floats(&at, TILE * a->key.width);
    w->q = carve_floats(&at, TILE * a->key.width);
    w->o = carve_floats(&at, TILE * a->value.width);
    w->scores = carve_floats(&at, TILE * TILE);
    carve_running(&at, &w->running);
    return at - base;
}

/* New maxima, weights instead of scores, new sums. */
static void softmax(const struct attention *a, const struct buffers *w, bool diagonal)
{
    float unit = a->scale * LOG2_E;

    for (int64_t q = 0; q < TILE; q += CPU_LANES) {
        float *s = w->scores + q;
        int64_t keys = keys_of(diagonal, q);
        vf old = v_load(w->running.top + q), top[4] = {old, old, old, old}, factor, sum, shift;

        for (int64_t k = 0; k < keys; k += 4)
            for (int i = 0; i < 4; i++)
                top[i] = v_max(top[i], v_load(s + (k + i) * TILE));
        top[0] = v_max(v_max(top[0], top[1]), v_max(top[2], top[3]));
        factor = v_exp2((old - top[0]) * unit);
        sum = v_load(w->running.sum + q) * factor;
        shift = v_max(v_set(LOWEST), top[0] * unit);
        for (int64_t k = 0; k < keys; k++) {
            vf p = v_exp2(v_load(s + k * TILE) * unit - shift);
            v_store(s + k * TILE, p);
            sum += p;
        }
        v_store(w->running.top + q, top[0]);
        v_store(w->running.sum + q, sum);
        v_store(w->running.rescale + q, factor);
    }
}

static void begin_queries(const struct forward *f, const struct buffers *w, int64_t b, int64_t head,
                          int64_t tile)
{
    const struct attention *a = &f->a;

    pack(f->q, &a->key, b, head, tile, w->rows);
    pack_columns(&a->key, w->rows, w->q);
    memset(w->o, 0, (size_t)(TILE * a->value.width) * sizeof(float));
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

    begin_queries(f, w, b, head, tile);
    for (int64_t j = 0; j < a->key_tiles; j++) {
        unsigned how = mask_between(&f->mask, b, tile, j);
        bool diagonal = how & DIAGONAL;

        if (how & HIDDEN)
            continue;
        score(&a->key, diagonal, w->k + j * TILE * a->key.width, w->q, w->scores);
        change_scores(&f->change, &f->mask, b, head, tile, j, how, w->scores);
        mask_scores(&f->mask, b, tile, j, how, w->scores);
        softmax(a, w, diagonal);
        rescale(&a->value, &w->running, w->o);
        gather(&a->value, diagonal, w->v + j * TILE * a->value.width, w->scores, w->o);
    }
    end_queries(f, w, b, head, tile);
}

/* Query tiles part, part + parts, .. of the heads that share one key/value head. */
static void run_task(const struct forward *f, const struct buffers *w, int64_t task)
{
    const struct attention *a = &f->a;
    int64_t parts = f->state->parts, part = parts - 1 - task % parts;
    int64_t group = task / parts % a->groups, b = task / parts / a->groups;
    int64_t share = a->heads / a->groups;

    for (int64_t j = 0; j < a->key_tiles; j++) {
        if (!is_seen(&f->mask, b, part, parts, j))
            continue;
        pack(f->k, &a->key, b, group, j, w->k + j * TILE * a->key.width);
        pack(f->v, &a->value, b, group, j, w->v + j * TILE * a->value.width);
    }
    for (int64_t head = group * share; head < (group + 1) * share; head++)
        for (int64_t tile = part; tile < a->query_tiles; tile += parts)
            query_tile(f, w, b, head, tile);
}

bool CPU_ISA(cpu_attention_accepts)(const struct ct_prepare *prepare)
{
    const struct ct_tensor *in = prepare->in;
    enum ct_dtype dtype = in[0].dtype;

    return can_mask(prepare->op) && cpu_is_compute_dtype(dtype) && in[1].dtype == dtype &&
           in[2].dtype == dtype && cpu_is_compute_dtype(prepare->out[0].dtype) &&
           prepare->out[1].dtype == CT_F32;
}

int CPU_ISA(cpu_attention_prepare)(struct ct_prepare *prepare)
{
    struct state *s = ct_arena_new(prepare->arena, struct state);
    struct buffers w;
    int64_t tasks;

    s->shape = attention_of(prepare->op, prepare->in, CPU_LANES);
    s->threads = cpu_threads();
    tasks = s->shape.batch * s->shape.groups;
    s->parts = tasks % s->threads ? (4 * s->threads + tasks - 1) / tasks : 1;
    s->parts = s->parts < s->shape.query_tiles ? s->parts : s->shape.query_tiles;
    s->mask = cpu_carve(&prepare->workspace, mask_bytes(&s->shape));
    s->buffers = prepare->workspace;
    s->buffer_bytes = lay_out(&s->shape, 0, &w);
    prepare->workspace += s->buffer_bytes * (size_t)s->threads;
    prepare->state = s;
    return 0;
}

int CPU_ISA(cpu_attention_run)(const struct ct_launch *launch)
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
#pragma omp for schedule(dynamic, together)
        for (int64_t task = 0; task < tasks; task++)
            run_task(&f, &w, task);
    }
    return 0;
}
