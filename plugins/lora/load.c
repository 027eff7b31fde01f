/*
 * Adapters that training begins with, from a folder of peft.
 */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/safetensors.h>

#include "lora.h"

/* Rank and scaling of adapters must be those of the recipe, as they are trained on. */
static int check_config(const char *path, const json_t *config)
{
    json_int_t rank = json_integer_value(json_object_get(config, "r"));
    double alpha = json_number_value(json_object_get(config, "lora_alpha"));
    bool rslora = json_is_true(json_object_get(config, "use_rslora"));
    bool dora = json_is_true(json_object_get(config, "use_dora"));
    static const char *const others[] = {"use_qalora", "use_bdlora", "lora_bias"};

    if (rank != lora_config.rank)
        return ct_fail(CT_ECONFIG, "%s: its adapters have rank %lld: set [lora] rank = %lld", path,
                       (long long)rank, (long long)rank);
    if (alpha != lora_config.alpha)
        return ct_fail(CT_ECONFIG, "%s: lora_alpha is %g: set [lora] alpha = %g", path, alpha,
                       alpha);
    if (rslora != (lora_config.scaling == LORA_RSLORA))
        return ct_fail(CT_ECONFIG, "%s: use_rslora is %s: set [lora] scaling = %s", path,
                       rslora ? "true" : "false", rslora ? "rslora" : "lora");
    if (dora != lora_config.dora)
        return ct_fail(CT_ECONFIG, "%s: use_dora is %s: set [lora] dora = %s", path,
                       dora ? "true" : "false", dora ? "true" : "false");
    for (size_t i = 0; i < CT_COUNT(others); i++)
        if (json_is_true(json_object_get(config, others[i])))
            return ct_fail(CT_ECONFIG, "%s: %s = true is not supported", path, others[i]);
    if (json_object_size(json_object_get(config, "rank_pattern")) ||
        json_object_size(json_object_get(config, "alpha_pattern")))
        return ct_fail(CT_ECONFIG, "%s: adapters of different ranks or alphas are not supported",
                       path);
    return 0;
}

/* The list of the file must be that of the recipe. */
static int check_tokens(struct ct_arena *arena, const char *path, const json_t *config)
{
    const json_t *list = json_object_get(config, "trainable_token_indices");
    struct lora_ids ids;
    int rc = lora_ids_read(arena, &ids);
    bool same;

    if (json_is_object(list) && json_object_size(list) == 1)
        list = json_object_iter_value(json_object_iter((json_t *)(uintptr_t)list));
    same = rc == 0 && json_array_size(list) == ids.count;
    for (size_t i = 0; same && i < ids.count; i++)
        same = json_integer_value(json_array_get(list, i)) == ids.id[i];
    if (rc < 0 || same)
        return rc;
    return ct_fail(CT_ECONFIG,
                   "%s: trainable_token_indices are not those of [lora] trainable_tokens, in this "
                   "order",
                   path);
}

static int read_config(struct ct_arena *arena, const char *folder)
{
    const char *path = ct_arena_printf(arena, "%s/" CT_PEFT_CONFIG, folder);
    json_t *config;
    int rc = ct_json_read_file(path, 0, &config);

    if (rc < 0)
        return rc == CT_ENOENT ? ct_fail(CT_ECONFIG, "%s: there is no such file", path) : rc;
    rc = check_config(path, config);
    if (rc == 0)
        rc = check_tokens(arena, path, config);
    json_decref(config);
    return rc;
}

/* ---- tensors ---- */

static int check_shape(const struct ct_weight *w, const struct lora_tensor *t)
{
    struct ct_shape is = ct_shape_of(w->ndim, w->shape), want = ct_shape_of(t->ndim, t->shape);
    char text[2][64];

    if (w->ndim == t->ndim && !memcmp(w->shape, t->shape, sizeof(*t->shape) * (size_t)t->ndim))
        return 0;
    ct_shape_print(&is, text[0], sizeof(text[0]));
    ct_shape_print(&want, text[1], sizeof(text[1]));
    return ct_fail(CT_ECONFIG, "%s is [%s], and this model needs [%s]", w->name, text[0], text[1]);
}

static int find_all(const struct ct_weights *weights, const struct lora_tensors *t)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < t->count; i++) {
        const struct ct_weight *w = ct_weights_find(weights, t->item[i].name);

        rc = w ? check_shape(w, &t->item[i])
               : ct_fail(CT_ECONFIG,
                         "it has no %s: leave the layer out ([lora] modules), or take other "
                         "adapters",
                         t->item[i].name);
    }
    if (rc == 0 && ct_weights_count(weights) != t->count)
        rc = ct_fail(CT_ECONFIG,
                     "it has %zu tensors, and the adapters of this run are %zu: [lora] modules "
                     "must name the layers that it has adapters of",
                     ct_weights_count(weights), t->count);
    return rc;
}

/* A tensor's box [offset, offset + shape), of two dimensions, with these swapped. */
static int read_transposed(const struct ct_weight *w, const int64_t *offset, const int64_t *shape,
                           enum ct_dtype dtype, void *to)
{
    int64_t from[] = {offset[1], offset[0]}, size[] = {shape[1], shape[0]};
    size_t item = ct_dtype_size(dtype);
    char *box = malloc((size_t)ct_shape_count(2, size) * item + 1);
    int rc = box ? ct_weights_read(w, from, size, dtype, box) : ct_fail(CT_ENOMEM, "%s", w->name);

    for (int64_t i = 0; rc == 0 && i < shape[0] * shape[1]; i++)
        memcpy((char *)to + (size_t)i * item,
               box + (size_t)(i % shape[1] * shape[0] + i / shape[1]) * item, item);
    free(box);
    return rc;
}

/* Fill the part of a tensor that this rank's shard has. */
static int fill(struct ct_run *run, const struct ct_weights *weights, const struct lora_tensor *t,
                const float *table)
{
    const struct ct_state *state = t->state;
    const struct ct_weight *w = ct_weights_find(weights, t->name);
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS], at[CT_MAX_DIMS] = {0};
    int stack = state->ndim - t->ndim; /* leading dimensions that the tensor lacks */
    void *host;
    int rc;

    if (!state->value || !ct_run_shard(run, state, run->rank, shape, offset))
        return 0;
    at[0] = stack ? t->matrix - offset[0] : 0;
    if (stack && (at[0] < 0 || at[0] >= shape[0]))
        return 0;
    shape[0] = stack ? 1 : shape[0];
    host = malloc((size_t)ct_shape_count(state->ndim, shape) * ct_dtype_size(state->dtype) + 1);
    rc = !host           ? ct_fail(CT_ENOMEM, "%s", state->name)
         : t->transposed ? read_transposed(w, offset, shape, state->dtype, host)
                         : ct_weights_read(w, offset + stack, shape + stack, state->dtype, host);
    for (int64_t i = 0; rc == 0 && table && i < shape[0] * shape[1]; i++)
        ((float *)host)[i] -=
            table[(offset[0] + i / shape[1]) * t->shape[1] + offset[1] + i % shape[1]];
    if (rc == 0)
        rc = ct_run_write(run, state, at, shape, host);
    free(host);
    return rc;
}

static int fill_all(struct ct_arena *arena, struct ct_run *run, const struct ct_weights *weights)
{
    struct lora_layer *layers;
    struct lora_tensors t = {0};
    size_t count;
    int rc = lora_layers(arena, run, &layers, &count);

    if (rc == 0)
        rc = lora_check_peft(run, layers, count);
    if (rc == 0) {
        t = lora_tensors_of(arena, run, layers, count);
        rc = find_all(weights, &t);
    }
    rc = ct_group_agree(ct_run_world(run), rc);
    for (size_t i = 0; rc == 0 && i < t.count; i++) {
        float *table = t.item[i].tokens ? lora_table_rows(run, t.item[i].tokens) : NULL;

        rc = t.item[i].tokens && !table ? CT_EINVAL : fill(run, weights, &t.item[i], table);
        free(table);
    }
    return rc;
}

int lora_load(struct ct_run *run, const char *folder)
{
    struct ct_arena arena = {0};
    struct ct_weights *weights = NULL;
    int rc = read_config(&arena, folder);

    if (rc == 0)
        rc = ct_weights_open(folder, &weights);
    if (rc == CT_ENOENT || rc == CT_EIO)
        rc = CT_ECONFIG;
    if (rc == 0)
        rc = fill_all(&arena, run, weights);
    ct_weights_close(weights);
    ct_arena_finish(&arena);
    rc = ct_group_agree(ct_run_world(run), rc);
    return rc < 0 ? ct_context(rc, "[lora] init_from = %s", folder) : 0;
}
