/*
 * Attention as in attention.c, with bfloat16 products on a unit (attention_bf16.h).
 *
 *     s[key][query] = K Q^T,  p = exp(s),  o[..][query] = V^T p
 *
 * A tile of queries is taken against up to GROUP tiles of keys at a time, so that the second
 * product is deep: those that follow each other without a hidden one between them.
 */
#include <omp.h>

#include "attention_bf16.h"
#include "kernels.h"
#include "scores.h"
#include "attention_softmax.h"

#define GROUP 4

struct state {
    struct attention shape;
    const struct cpu_unit *unit;
    int64_t parts; /* tasks per key/value head */
    int threads;
    size_t mask, buffers, buffer_bytes;
};

/* A thread's own memory. */
struct buffers {
    char *k, *v;   /* rows; transposed */
    char *q;       /* B: q^T */
    float *scores; /* [GROUP TILE][TILE] */
    char *p;       /* B: steps of keys */
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

    w->k = carve_bytes(&at, a->padded * a->key.width * 2);
    w->v = carve_bytes(&at, a->padded * a->value.width * 2);
    w->q = carve_bytes(&at, TILE * a->key.width * 2);
    w->scores = carve_floats(&at, GROUP * TILE * TILE);
    w->p = carve_bytes(&at, GROUP * CPU_STEP_BYTES);
    w->o = carve_floats(&at, TILE * a->value.width);
    carve_running(&at, &w->running);
    return at - base;
}

/* New maxima, weights from scores, new sums. */
static void softmax(const struct attention *a, const struct buffers *w, int64_t keys)
{
    float unit = a->scale * LOG2_E;

    for (int64_t q = 0; q < TILE; q += CPU_LANES) {
        const float *s = w->scores + q;
        vf old = v_load(w->running.top + q), top[4] = {old, old, old, old}, factor, sum[2], shift;

        for (int64_t k = 0; k < keys; k += 4)
            for (int i = 0; i < 4; i++)
                top[i] = v_max(top[i], v_load(s + (k + i) * TILE));
        top[0] = v_max(v_max(top[0], top[1]), v_max(top[2], top[3]));
        factor = v_exp2((old - top[0]) * unit);
        sum[0] = v_load(w->running.sum + q) * factor;
        sum[1] = (vf){0};
        shift = v_max(v_set(LOWEST), top[0] * unit);
        for (int64_t k = 0; k < keys; k += 2) {
            vf even = v_exp2(v_load(s + k * TILE) * unit - shift);
            vf odd = v_exp2(v_load(s + (k + 1) * TILE) * unit - shift);

            store_pairs(pair_at(w->p + k / TILE * CPU_STEP_BYTES, k % TILE, q), even, odd);
            sum[0] += even;
            sum[1] += odd;
        }
        v_store(w->running.top + q, top[0]);
        v_store(w->running.sum + q, sum[0] + sum[1]);
        v_store(w->running.rescale + q, factor);
    }
}

/* The scores of `tiles` tiles of keys from `first` on are there: add their values to o. */
static void gather(const struct forward *f, const struct buffers *w, int64_t first, int64_t tiles)
{
    const struct attention *a = &f->a;

    softmax(a, w, tiles * TILE);
    rescale(&a->value, &w->running, w->o);
    for (int64_t panel = 0; panel < panels_of(&a->value); panel++)
        cpu_multiply(f->state->unit,
                     across_at(f->state->unit, w->v + step_of(panel, a->padded, first)), w->p,
                     (struct cpu_extent){elements_in(&a->value, panel), TILE, tiles * TILE},
                     w->o + panel * CPU_BLOCK, true);
}

static void begin_queries(const struct forward *f, const struct buffers *w, int64_t b, int64_t head,
                          int64_t tile)
{
    struct cpu_packed_from q = tokens_of(f->q, b, head, tile);
    struct cpu_lines lines = cpu_panel_lines(CT_BF16, 0);

    cpu_panels()->pack_columns(&lines, &q, w->q);
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
        float *scores = w->scores + tiles * CPU_BLOCK;

        if (tiles && (how & HIDDEN || tiles == GROUP)) {
            gather(f, w, j - tiles, tiles);
            tiles = 0;
            scores = w->scores;
        }
        if (how & HIDDEN)
            continue;
        cpu_multiply(f->state->unit, rows_at(&a->key, w->k + j * TILE * a->key.width * 2), w->q,
                     tile_extent(&a->key), scores, false);
        change_scores(&f->change, &f->mask, b, head, tile, j, how, scores);
        mask_scores(&f->mask, b, tile, j, how, scores);
        tiles++;
        if (j == a->key_tiles - 1)
            gather(f, w, j + 1 - tiles, tiles);
    }
    end_queries(f, w, b, head, tile);
}

static void pack_keys(const struct forward *f, const struct buffers *w, int64_t b, int64_t group,
                      int64_t tile)
{
    const struct attention *a = &f->a;
    struct cpu_packed_from k = tokens_of(f->k, b, group, tile), v = tokens_of(f->v, b, group, tile);

    copy_rows(&k, &a->key, w->k + tile * TILE * a->key.width * 2);
    f->state->unit->pack_transposed(&v, w->v + step_of(0, a->padded, tile),
                                    step_of(1, a->padded, 0));
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

bool CPU_ISA(cpu_attention_bf16_accepts)(const struct ct_prepare *prepare)
{
    const struct ct_tensor *in = prepare->in;

    return can_mask(prepare->op) && cpu_attention_unit() && in[0].dtype == CT_BF16 &&
           in[1].dtype == CT_BF16 && in[2].dtype == CT_BF16 &&
           cpu_is_compute_dtype(prepare->out[0].dtype) && prepare->out[1].dtype == CT_F32;
}

int CPU_ISA(cpu_attention_bf16_prepare)(struct ct_prepare *prepare)
{
    struct state *s = ct_arena_new(prepare->arena, struct state);
    struct buffers w;
    int64_t tasks;

    s->shape = attention_of(prepare->op, prepare->in, CPU_PANEL);
    s->unit = cpu_attention_unit();
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

int CPU_ISA(cpu_attention_bf16_run)(const struct ct_launch *launch)
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
        s->unit->begin();
#pragma omp for schedule(dynamic, together)
        for (int64_t task = 0; task < tasks; task++)
            run_task(&f, &w, task);
        s->unit->end();
    }
    return 0;
}
