/*
 * Products of adapters, which are added to the weights of a run row by row. A rank needs all of A
 * and B for its shards, and, with magnitudes, the norms of whole rows.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>

#include "floats.h"
#include "lora.h"

/* ---- layers ---- */

static const struct ct_state *state_of(struct ct_arena *arena, const struct ct_run *run,
                                       const char *module, const char *suffix)
{
    return ct_run_state(run, ct_arena_printf(arena, "%s%s", module, suffix));
}

/* Whether name ends with suffix; *size: what is in front of that. */
static bool ends_with(const char *name, const char *suffix, size_t *size)
{
    size_t end = strlen(suffix), all = strlen(name);

    *size = all > end ? all - end : 0;
    return all > end && !strcmp(name + *size, suffix);
}

/* Whether a parameter is the A of a layer. */
static bool find_layer(struct ct_arena *arena, const struct ct_run *run, const struct ct_state *a,
                       struct lora_layer *l)
{
    size_t size;

    *l = (struct lora_layer){.a = a};
    if (a->role != CT_ROLE_PARAM)
        return false;
    l->embedding = ends_with(a->name, LORA_EMBEDDING_A, &size);
    l->tokens = !l->embedding && ends_with(a->name, LORA_TOKENS, &size);
    if (!l->embedding && !l->tokens && !ends_with(a->name, LORA_A, &size))
        return false;
    l->module = ct_arena_printf(arena, "%.*s", (int)size, a->name);
    l->b = state_of(arena, run, l->module,
                    l->embedding ? LORA_EMBEDDING_B
                    : l->tokens  ? LORA_SELECTION
                                 : LORA_B);
    l->m = state_of(arena, run, l->module, LORA_MAGNITUDE);
    l->w = state_of(arena, run, l->module, LORA_WEIGHT);
    l->w = l->w ? l->w : state_of(arena, run, l->module, "");
    return true;
}

int lora_layers(struct ct_arena *arena, const struct ct_run *run, struct lora_layer **layers,
                size_t *count)
{
    *count = 0;
    *layers = ct_arena_array(arena, struct lora_layer, run->state_count + 1);
    for (size_t i = 0; i < run->state_count; i++) {
        struct lora_layer *l = &(*layers)[*count];

        if (!find_layer(arena, run, &run->states[i], l))
            continue;
        if (!l->b || !l->w)
            return ct_fail(CT_EINVAL, "the run lacks %s of %s", l->b ? "the weight" : "B",
                           l->module);
        ++*count;
    }
    return 0;
}

/* ---- whole states ---- */

/* Numbers of up to three dimensions as those of a stack of matrices: [1, rows, columns] of two. */
static void as_stack(int ndim, const int64_t *from, int64_t rest, int64_t to[3])
{
    for (int d = 0; d < 3; d++)
        to[d] = d < 3 - ndim ? rest : from[d - (3 - ndim)];
}

/* Put a dense box of a state's elements into the whole. */
static void place(const struct ct_state *state, const struct ct_tensor *box, const int64_t *offset,
                  float *whole)
{
    int64_t size[3], all[3], at[3];

    as_stack(box->ndim, box->shape, 1, size);
    as_stack(box->ndim, state->shape, 1, all);
    as_stack(box->ndim, offset, 0, at);
    for (int64_t e = 0; e < size[0]; e++)
        for (int64_t i = 0; i < size[1]; i++)
            for (int64_t j = 0; j < size[2]; j++)
                whole[((at[0] + e) * all[1] + at[1] + i) * all[2] + at[2] + j] =
                    (float)ct_tensor_load(box, (e * size[1] + i) * size[2] + j);
}

/* The shard of one rank, on all ranks. */
static int spread(struct ct_run *run, const struct ct_state *state, int rank, void *data,
                  float *whole)
{
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS];
    struct ct_tensor box;
    int rc = 0;

    if (!ct_run_shard(run, state, rank, shape, offset) || !ct_run_shard_first(run, state, rank) ||
        !ct_shape_count(state->ndim, shape))
        return 0;
    box = ct_tensor_dense(data, state->dtype, state->ndim, shape);
    if (rank == run->rank)
        rc = ct_run_read(run, state, NULL, NULL, data);
    if (rc == 0)
        rc = ct_group_broadcast(ct_run_world(run), data, (size_t)ct_tensor_count(&box),
                                state->dtype, rank);
    if (rc == 0)
        place(state, &box, offset, whole);
    return rc;
}

float *lora_whole(struct ct_run *run, const struct ct_state *state)
{
    size_t count = (size_t)ct_shape_count(state->ndim, state->shape);
    float *whole = calloc(count, sizeof(*whole));
    void *data = malloc(count * ct_dtype_size(state->dtype));
    int rc = whole && data ? 0 : ct_fail(CT_ENOMEM, "%zu elements of %s", count, state->name);

    for (int rank = 0; rc == 0 && rank < (int)run->world; rank++)
        rc = spread(run, state, rank, data, whole);
    free(data);
    if (rc == 0)
        return whole;
    free(whole);
    return NULL;
}

/* ---- what is added ---- */

float *lora_transposed(const float *x, int64_t rows, int64_t columns)
{
    float *t = malloc(sizeof(*t) * (size_t)(rows * columns));

    if (!t)
        ct_fail(CT_ENOMEM, "a matrix of %lld x %lld", (long long)rows, (long long)columns);
    for (int64_t i = 0; t && i < rows * columns; i++)
        t[i % columns * rows + i / columns] = x[i];
    return t;
}

/* Row `row` of matrix e, columns [column, column + n), of scale B A. */
static void add_delta(const struct lora_factors *f, int64_t e, int64_t row, int64_t column,
                      int64_t n, double *to)
{
    const float *up = f->up + (e * f->rows + row) * f->rank;
    const float *down = f->down + e * f->rank * f->columns + column;

    for (int64_t r = 0; r < f->rank; r++) {
        double factor = f->scale * up[r];

        for (int64_t j = 0; factor != 0 && j < n; j++)
            to[j] += factor * down[r * f->columns + j];
    }
}

/* A part of a weight that is read: which rows it has. */
struct part {
    const struct lora_factors *f;
    const struct ct_tensor *t; /* dense */
    int64_t size[3], at[3];
    double *row; /* of one row: the sum of weight and adapter */
};

static int part_init(struct part *p, const struct lora_factors *f, const struct ct_tensor *t,
                     const int64_t *offset)
{
    *p = (struct part){.f = f, .t = t};
    as_stack(t->ndim, t->shape, 1, p->size);
    as_stack(t->ndim, offset, 0, p->at);
    p->row = malloc(sizeof(*p->row) * (size_t)(p->size[2] + 1));
    return p->row ? 0 : ct_fail(CT_ENOMEM, "a row of %lld numbers", (long long)p->size[2]);
}

/* Sum up row i of the part; returns its number in its matrix. */
static int64_t sum_row(struct part *p, int64_t i)
{
    int64_t number = p->at[1] + i % p->size[1];
    float room[LORA_CHUNK];

    for (int64_t j = 0, n; j < p->size[2]; j += n) {
        const float *x;

        n = p->size[2] - j < LORA_CHUNK ? p->size[2] - j : LORA_CHUNK;
        x = lora_floats_get(p->t, i * p->size[2] + j, n, room);
        for (int64_t k = 0; k < n; k++)
            p->row[j + k] = x[k];
    }
    add_delta(p->f, p->at[0] + i / p->size[1], number, p->at[2], p->size[2], p->row);
    return number;
}

/* The dtype of a weight holds a sum; CT_ECONFIG: as infinity. */
static int put_sum(const struct ct_tensor *w, int64_t at, double sum)
{
    ct_tensor_store(w, at, sum);
    if (!isfinite(sum) || isfinite(ct_tensor_load(w, at)))
        return 0;
    return ct_fail(CT_ECONFIG, "a value of %g is beyond %s%s", sum, ct_dtype_name(w->dtype),
                   w->dtype == CT_F32 ? "" : ": set [training] dtype = float32");
}

int lora_factors_apply(const struct lora_factors *f, const struct ct_tensor *w,
                       const int64_t *offset)
{
    struct part p;
    int rc = part_init(&p, f, w, offset);

    for (int64_t i = 0; rc == 0 && i < p.size[0] * p.size[1]; i++) {
        int64_t row = sum_row(&p, i);

        for (int64_t j = 0; rc == 0 && j < p.size[2]; j++)
            rc = put_sum(w, i * p.size[2] + j, (f->times ? f->times[row] : 1) * p.row[j]);
    }
    free(p.row);
    return rc;
}

/* ---- magnitudes ---- */

static int add_squared_norms(const struct lora_factors *f, const struct ct_tensor *w,
                             const int64_t *offset, double *squared_norms)
{
    struct part p;
    int rc = part_init(&p, f, w, offset);

    for (int64_t i = 0; rc == 0 && i < p.size[1]; i++) {
        int64_t row = sum_row(&p, i);

        for (int64_t j = 0; j < p.size[2]; j++)
            squared_norms[row] += p.row[j] * p.row[j];
    }
    free(p.row);
    return rc;
}

#define AT_ONCE ((int64_t)1 << 20) /* numbers in memory */

/* Squared norms of the rows of this rank's shard of a matrix, some rows at a time. */
static int add_shard(struct ct_run *run, const struct ct_state *w, const struct lora_factors *f,
                     double *squared_norms)
{
    int64_t shape[CT_MAX_DIMS], begin[CT_MAX_DIMS], at[CT_MAX_DIMS] = {0}, step;
    enum ct_dtype dtype = w->coding ? CT_F32 : w->dtype;
    void *data;
    int rc = 0;

    if (!w->value || !ct_run_shard(run, w, run->rank, shape, begin) || !ct_shape_count(2, shape) ||
        !ct_run_shard_first(run, w, run->rank))
        return 0;
    step = shape[1] < AT_ONCE ? AT_ONCE / shape[1] : 1;
    data = malloc((size_t)(step * shape[1]) * ct_dtype_size(dtype));
    if (!data)
        return ct_fail(CT_ENOMEM, "rows of %s", w->name);
    for (; rc == 0 && at[0] < shape[0]; at[0] += step) {
        int64_t left = shape[0] - at[0], some[CT_MAX_DIMS] = {left < step ? left : step, shape[1]};
        struct ct_tensor t = ct_tensor_dense(data, dtype, 2, some);

        rc = w->coding ? w->coding->decode(run, w, at, some, data)
                       : ct_run_read(run, w, at, some, data);
        if (rc == 0)
            rc = add_squared_norms(f, &t, (int64_t[]){begin[0] + at[0], begin[1]}, squared_norms);
    }
    free(data);
    return rc;
}

/* The norm of each row of W + scale B A, on all ranks. NULL: a failure. */
static double *norms_of(struct ct_run *run, const struct lora_layer *l,
                        const struct lora_factors *f)
{
    double *norms = calloc((size_t)f->rows, sizeof(*norms));
    int rc = norms ? add_shard(run, l->w, f, norms)
                   : ct_fail(CT_ENOMEM, "%lld norms", (long long)f->rows);

    rc = ct_group_agree(ct_run_world(run), rc);
    if (rc == 0)
        rc = ct_group_all_reduce(ct_run_world(run), norms, norms, (size_t)f->rows, CT_F64,
                                 CT_REDUCE_SUM);
    for (int64_t i = 0; rc == 0 && i < f->rows; i++)
        norms[i] = sqrt(norms[i]);
    if (rc == 0)
        return norms;
    free(norms);
    return NULL;
}

/* f->times: magnitude by norm. A row of zeros stays one, as in lora.magnify. */
static int read_times(struct ct_run *run, const struct lora_layer *l, struct lora_factors *f)
{
    float *m = lora_whole(run, l->m);

    f->times = m ? norms_of(run, l, f) : NULL;
    for (int64_t i = 0; f->times && i < f->rows; i++)
        f->times[i] = f->times[i] > 0 ? m[i] / f->times[i] : 0;
    free(m);
    return f->times ? 0 : CT_EINVAL;
}

/* Without f->times. */
static int read_product(struct ct_run *run, const struct lora_layer *l, struct lora_factors *f)
{
    float *a = lora_whole(run, l->a), *b = a ? lora_whole(run, l->b) : NULL;

    *f = (struct lora_factors){.up = b,
                               .down = a,
                               .rank = l->b->shape[l->b->ndim - 1],
                               .scale = l->tokens ? 1 : lora_scale(),
                               .rows = l->w->shape[l->w->ndim - 2],
                               .columns = l->w->shape[l->w->ndim - 1]};
    if (!b || !l->embedding)
        return b ? 0 : CT_EINVAL;
    f->up = a;
    f->down = lora_transposed(b, l->b->shape[0], l->b->shape[1]);
    free(b);
    return f->down ? 0 : CT_ENOMEM;
}

int lora_factors_read(struct ct_run *run, const struct lora_layer *l, struct lora_factors *f)
{
    int rc = read_product(run, l, f);

    if (rc == 0 && l->m)
        rc = read_times(run, l, f);
    if (rc < 0)
        lora_factors_free(f);
    return rc;
}

void lora_factors_free(struct lora_factors *f)
{
    free(f->up);
    free(f->down);
    free(f->times);
    *f = (struct lora_factors){0};
}

/* ---- the beginning ---- */

/* 1: some element is not zero; 0: all are; negative: a failure. */
static int has_numbers(struct ct_run *run, const struct ct_state *state)
{
    float *whole = lora_whole(run, state);
    int rc = whole ? 0 : CT_EINVAL;

    for (int64_t i = 0; rc == 0 && i < ct_shape_count(state->ndim, state->shape); i++)
        rc = whole[i] != 0;
    free(whole);
    return rc;
}

int lora_is_trained(struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct lora_layer *layers;
    size_t count;
    int rc = lora_layers(&scratch, run, &layers, &count);

    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = has_numbers(run, layers[i].embedding || layers[i].tokens ? layers[i].a : layers[i].b);
    ct_arena_finish(&scratch);
    return rc;
}

/* Write this rank's shard of m. */
static int write_norms(struct ct_run *run, const struct ct_state *m, const double *norms)
{
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS];
    struct ct_tensor t;
    float *data;
    int rc;

    if (!m->value || !ct_run_shard(run, m, run->rank, shape, offset))
        return 0;
    data = malloc(sizeof(*data) * (size_t)(shape[0] + 1));
    if (!data)
        return ct_fail(CT_ENOMEM, "%s", m->name);
    t = ct_tensor_dense(data, CT_F32, 1, shape);
    for (int64_t i = 0; i < shape[0]; i++)
        ct_tensor_store(&t, i, norms[offset[0] + i]);
    rc = ct_run_write(run, m, NULL, NULL, data);
    free(data);
    return rc;
}

static int start_magnitudes(struct ct_run *run, const struct lora_layer *l)
{
    struct lora_factors f = {0};
    double *norms = NULL;
    int rc = read_product(run, l, &f);

    if (rc == 0)
        norms = norms_of(run, l, &f);
    if (rc == 0)
        rc = norms ? write_norms(run, l->m, norms) : CT_EINVAL;
    free(norms);
    lora_factors_free(&f);
    return ct_group_agree(ct_run_world(run), rc);
}

int lora_start(struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct lora_layer *layers;
    size_t count;
    int rc = lora_layers(&scratch, run, &layers, &count);

    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (layers[i].tokens) {
            rc = lora_select(run, &layers[i], true);
            continue;
        }
        rc = layers[i].m ? has_numbers(run, layers[i].m) : 1;
        rc = rc == 0 ? start_magnitudes(run, &layers[i]) : rc < 0 ? rc : 0;
        if (rc < 0)
            ct_context(rc, "the magnitudes of %s", layers[i].module);
    }
    ct_arena_finish(&scratch);
    return rc;
}
