/*
 * Adapters of a run, added to its weights: each rank adds to its own shards, for which it needs all
 * of A and B. Weights that are codes stay as they are: the product is added when they are decoded.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>

#include "lora.h"

static const struct ct_state *state_of(struct ct_arena *arena, const struct ct_run *run,
                                       const char *module, const char *suffix)
{
    return ct_run_state(run, ct_arena_printf(arena, "%s%s", module, suffix));
}

int lora_layers(struct ct_arena *arena, const struct ct_run *run, struct lora_layer **layers,
                size_t *count)
{
    size_t end = strlen(LORA_A);

    *count = 0;
    *layers = ct_arena_array(arena, struct lora_layer, run->state_count + 1);
    for (size_t i = 0; i < run->state_count; i++) {
        const struct ct_state *a = &run->states[i];
        size_t size = strlen(a->name);
        struct lora_layer l = {.a = a};

        if (a->role != CT_ROLE_PARAM || size < end || strcmp(a->name + size - end, LORA_A) != 0)
            continue;
        l.module = ct_arena_printf(arena, "%.*s", (int)(size - end), a->name);
        l.b = state_of(arena, run, l.module, LORA_B);
        l.w = state_of(arena, run, l.module, LORA_WEIGHT);
        l.w = l.w ? l.w : state_of(arena, run, l.module, "");
        if (!l.b || !l.w)
            return ct_fail(CT_EINVAL, "the run lacks %s of %s", l.b ? "the weight" : "B", l.module);
        (*layers)[(*count)++] = l;
    }
    return 0;
}

/* ---- whole adapters ---- */

/* Put a dense box of a state's elements into the whole. */
static void place(const struct ct_state *state, const struct ct_tensor *box, const int64_t *offset,
                  float *whole)
{
    for (int64_t i = 0; i < box->shape[0]; i++)
        for (int64_t j = 0; j < box->shape[1]; j++)
            whole[(offset[0] + i) * state->shape[1] + offset[1] + j] =
                (float)ct_tensor_load(box, i * box->shape[1] + j);
}

/* The shard of one rank, on all ranks. */
static int spread(struct ct_run *run, const struct ct_state *state, int rank, void *data,
                  float *whole)
{
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS];
    struct ct_tensor box;
    int rc = 0;

    if (!ct_run_shard(run, state, rank, shape, offset) || !ct_run_shard_first(run, state, rank) ||
        !ct_shape_count(2, shape))
        return 0;
    box = ct_tensor_dense(data, state->dtype, 2, shape);
    if (rank == run->rank)
        rc = ct_run_read(run, state, NULL, NULL, data);
    if (rc == 0)
        rc = ct_group_broadcast(ct_run_world(run), data, (size_t)ct_shape_count(2, shape),
                                state->dtype, rank);
    if (rc == 0)
        place(state, &box, offset, whole);
    return rc;
}

float *lora_whole(struct ct_run *run, const struct ct_state *state)
{
    size_t count = (size_t)ct_shape_count(2, state->shape);
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

/* ---- merging ---- */

/* The dtype of a weight holds a sum; CT_ECONFIG: as infinity. */
static int put_sum(const struct ct_tensor *w, int64_t at, double sum)
{
    ct_tensor_store(w, at, sum);
    if (!isfinite(sum) || isfinite(ct_tensor_load(w, at)))
        return 0;
    return ct_fail(CT_ECONFIG, "a value of %g is beyond %s%s", sum, ct_dtype_name(w->dtype),
                   w->dtype == CT_F32 ? "" : ": set [training] dtype = float32");
}

/* w += scale b a, for a shard of the weight that begins at offset. */
static int add_product(const struct ct_tensor *w, const int64_t *offset, const float *a,
                       int64_t columns, const float *b, double *row)
{
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < w->shape[0]; i++) {
        memset(row, 0, sizeof(*row) * (size_t)w->shape[1]);
        for (int64_t r = 0; r < lora_config.rank; r++) {
            double factor = lora_scale() * b[(offset[0] + i) * lora_config.rank + r];

            for (int64_t j = 0; j < w->shape[1]; j++)
                row[j] += factor * a[r * columns + offset[1] + j];
        }
        for (int64_t j = 0; rc == 0 && j < w->shape[1]; j++) {
            int64_t at = i * w->shape[1] + j;

            rc = put_sum(w, at, ct_tensor_load(w, at) + row[j]);
        }
    }
    return rc;
}

/* *before: the shard as it was; NULL: this rank has none of it. */
static int merge_shard(struct ct_run *run, const struct ct_state *w, const float *a, const float *b,
                       void **before)
{
    size_t bytes;
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS];
    struct ct_tensor t;
    double *row;
    void *data;
    int rc;

    if (!w->value || !ct_run_shard(run, w, run->rank, shape, offset) || !ct_shape_count(2, shape))
        return 0;
    bytes = ct_run_shard_bytes(run, w);
    data = malloc(bytes);
    row = malloc(sizeof(*row) * (size_t)shape[1]);
    *before = malloc(bytes);
    rc = data && row && *before ? ct_run_read(run, w, NULL, NULL, data)
                                : ct_fail(CT_ENOMEM, "%zu bytes of %s", bytes, w->name);
    if (rc == 0)
        memcpy(*before, data, bytes);
    if (rc < 0) {
        free(*before);
        *before = NULL;
    }
    if (rc == 0) {
        t = ct_tensor_dense(data, w->dtype, 2, shape);
        rc = add_product(&t, offset, a, w->shape[1], b, row);
    }
    if (rc == 0)
        rc = ct_run_write(run, w, NULL, NULL, data);
    free(row);
    free(data);
    return rc;
}

/* ---- weights that are codes ---- */

/* In the place of a weight's coding, while its adapter is merged. */
struct merged_coding {
    struct ct_coding coding; /* first */
    const struct ct_coding *codes;
    float *a, *b;
};

static int decode_merged(struct ct_run *run, const struct ct_state *w, const int64_t *offset,
                         const int64_t *shape, float *to)
{
    const struct merged_coding *m = (const void *)w->coding;
    struct ct_tensor t = ct_tensor_dense(to, CT_F32, 2, shape);
    double *row = malloc(sizeof(*row) * (size_t)(shape[1] + 1));
    struct ct_state codes = *w;
    int64_t begin[CT_MAX_DIMS];
    int rc = row ? 0 : ct_fail(CT_ENOMEM, "a row of %s", w->name);

    codes.coding = m->codes;
    if (rc == 0)
        rc = m->codes->decode(run, &codes, offset, shape, to);
    ct_run_shard(run, w, run->rank, NULL, begin);
    if (rc == 0)
        rc = add_product(&t, (int64_t[]){begin[0] + offset[0], begin[1] + offset[1]}, m->a,
                         w->shape[1], m->b, row);
    free(row);
    return rc;
}

/* The run's own entry. */
static struct ct_state *entry(struct ct_run *run, const struct ct_state *state)
{
    return &run->states[state - run->states];
}

/* Takes a and b. */
static int merge_codes(struct ct_run *run, const struct ct_state *w, float *a, float *b)
{
    struct merged_coding *m = malloc(sizeof(*m));

    if (!m) {
        free(a);
        free(b);
        return ct_fail(CT_ENOMEM, "merging %s", w->name);
    }
    *m = (struct merged_coding){*w->coding, w->coding, a, b};
    m->coding.decode = decode_merged;
    entry(run, w)->coding = &m->coding;
    return 0;
}

static void put_codes_back(struct ct_run *run, const struct ct_state *w)
{
    const struct merged_coding *m = (const void *)w->coding;

    if (!m || m->coding.decode != decode_merged)
        return;
    entry(run, w)->coding = m->codes;
    free(m->a);
    free(m->b);
    free((void *)(uintptr_t)m);
}

/* ---- all layers ---- */

static int merge_layer(struct ct_run *run, const struct lora_layer *l, void **before)
{
    float *a = lora_whole(run, l->a), *b = a ? lora_whole(run, l->b) : NULL;
    int rc = a && b ? 0 : CT_EINVAL;

    if (rc == 0 && l->w->coding) {
        rc = merge_codes(run, l->w, a, b);
    } else {
        rc = rc == 0 ? merge_shard(run, l->w, a, b, before) : rc;
        free(a);
        free(b);
    }
    rc = ct_group_agree(ct_run_world(run), rc);
    return rc < 0 ? ct_context(rc, "merging the adapter of %s", l->module) : 0;
}

int lora_merge(struct ct_run *run, struct lora_merged *merged)
{
    int rc = lora_layers(&merged->arena, run, &merged->layers, &merged->count);

    if (rc == 0)
        merged->before = ct_arena_array(&merged->arena, void *, merged->count + 1);
    for (size_t i = 0; rc == 0 && i < merged->count; i++)
        rc = merge_layer(run, &merged->layers[i], &merged->before[i]);
    return rc;
}

int lora_unmerge(struct ct_run *run, struct lora_merged *merged)
{
    int rc = 0;

    for (size_t i = 0; merged->before && i < merged->count; i++) {
        void *before = merged->before[i];
        int back = before ? ct_run_write(run, merged->layers[i].w, NULL, NULL, before) : 0;

        rc = rc < 0 ? rc : back;
        free(before);
        put_codes_back(run, merged->layers[i].w);
    }
    ct_arena_finish(&merged->arena);
    *merged = (struct lora_merged){0};
    return rc;
}

int lora_is_trained(struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct lora_layer *layers;
    size_t count;
    int rc = lora_layers(&scratch, run, &layers, &count);

    for (size_t i = 0; rc == 0 && i < count; i++) {
        float *b = lora_whole(run, layers[i].b);

        if (!b)
            rc = CT_EINVAL;
        for (int64_t k = 0; rc == 0 && k < ct_shape_count(2, layers[i].b->shape); k++)
            rc = b[k] != 0;
        free(b);
    }
    ct_arena_finish(&scratch);
    return rc;
}
