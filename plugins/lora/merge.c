/*
 * Adapters of a run, added to its weights: each rank adds to its own shards. Weights that are codes
 * stay as they are: the adapters are added when they are decoded.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>

#include "lora.h"

/* *before: the shard as it was; NULL: this rank has none of it. */
static int merge_shard(struct ct_run *run, const struct ct_state *w, const struct lora_factors *f,
                       void **before)
{
    size_t bytes;
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS];
    struct ct_tensor t;
    void *data;
    int rc;

    if (!w->value || !ct_run_shard(run, w, run->rank, shape, offset) ||
        !ct_shape_count(w->ndim, shape))
        return 0;
    bytes = ct_run_shard_bytes(run, w);
    data = malloc(bytes);
    *before = malloc(bytes);
    rc = data && *before ? ct_run_read(run, w, NULL, NULL, data)
                         : ct_fail(CT_ENOMEM, "%zu bytes of %s", bytes, w->name);
    if (rc == 0)
        memcpy(*before, data, bytes);
    if (rc < 0) {
        free(*before);
        *before = NULL;
    }
    if (rc == 0) {
        t = ct_tensor_dense(data, w->dtype, w->ndim, shape);
        rc = lora_factors_apply(f, &t, offset);
    }
    if (rc == 0)
        rc = ct_run_write(run, w, NULL, NULL, data);
    free(data);
    return rc;
}

/* ---- weights that are codes ---- */

/* In the place of a weight's coding, while its adapter is merged. */
struct merged_coding {
    struct ct_coding coding; /* first */
    const struct ct_coding *codes;
    struct lora_factors factors;
};

static int decode_merged(struct ct_run *run, const struct ct_state *w, const int64_t *offset,
                         const int64_t *shape, float *to)
{
    const struct merged_coding *m = (const void *)w->coding;
    struct ct_tensor t = ct_tensor_dense(to, CT_F32, 2, shape);
    struct ct_state codes = *w;
    int64_t begin[CT_MAX_DIMS];
    int rc;

    codes.coding = m->codes;
    rc = m->codes->decode(run, &codes, offset, shape, to);
    ct_run_shard(run, w, run->rank, NULL, begin);
    return rc < 0 ? rc
                  : lora_factors_apply(&m->factors, &t,
                                       (int64_t[]){begin[0] + offset[0], begin[1] + offset[1]});
}

/* The run's own entry. */
static struct ct_state *entry(struct ct_run *run, const struct ct_state *state)
{
    return &run->states[state - run->states];
}

/* Takes the factors. */
static int merge_codes(struct ct_run *run, const struct ct_state *w, struct lora_factors *f)
{
    struct merged_coding *m = malloc(sizeof(*m));

    if (!m)
        return ct_fail(CT_ENOMEM, "merging %s", w->name);
    *m = (struct merged_coding){*w->coding, w->coding, *f};
    *f = (struct lora_factors){0};
    m->coding.decode = decode_merged;
    entry(run, w)->coding = &m->coding;
    return 0;
}

static void put_codes_back(struct ct_run *run, const struct ct_state *w)
{
    struct merged_coding *m = (void *)(uintptr_t)w->coding;

    if (!m || m->coding.decode != decode_merged)
        return;
    entry(run, w)->coding = m->codes;
    lora_factors_free(&m->factors);
    free(m);
}

/* ---- all layers ---- */

static int merge_layer(struct ct_run *run, const struct lora_layer *l, void **before)
{
    struct lora_factors f;
    int rc = lora_factors_read(run, l, &f);

    if (rc == 0)
        rc = l->w->coding ? merge_codes(run, l->w, &f) : merge_shard(run, l->w, &f, before);
    lora_factors_free(&f);
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
