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
    static const char *const others[] = {"use_dora", "use_qalora", "use_bdlora", "lora_bias"};

    if (rank != lora_config.rank)
        return ct_fail(CT_ECONFIG, "%s: its adapters have rank %lld: set [lora] rank = %lld", path,
                       (long long)rank, (long long)rank);
    if (alpha != lora_config.alpha)
        return ct_fail(CT_ECONFIG, "%s: lora_alpha is %g: set [lora] alpha = %g", path, alpha,
                       alpha);
    if (rslora != (lora_config.scaling == LORA_RSLORA))
        return ct_fail(CT_ECONFIG, "%s: use_rslora is %s: set [lora] scaling = %s", path,
                       rslora ? "true" : "false", rslora ? "rslora" : "lora");
    for (size_t i = 0; i < CT_COUNT(others); i++)
        if (json_is_true(json_object_get(config, others[i])))
            return ct_fail(CT_ECONFIG, "%s: %s = true is not supported", path, others[i]);
    if (json_object_size(json_object_get(config, "rank_pattern")) ||
        json_object_size(json_object_get(config, "alpha_pattern")))
        return ct_fail(CT_ECONFIG, "%s: adapters of different ranks or alphas are not supported",
                       path);
    return 0;
}

static int read_config(struct ct_arena *arena, const char *folder)
{
    const char *path = ct_arena_printf(arena, "%s/adapter_config.json", folder);
    json_t *config;
    int rc = ct_json_read_file(path, 0, &config);

    if (rc < 0)
        return rc == CT_ENOENT ? ct_fail(CT_ECONFIG, "%s: there is no such file", path) : rc;
    rc = check_config(path, config);
    json_decref(config);
    return rc;
}

/* Fill this rank's shard. */
static int fill(struct ct_run *run, const struct ct_weight *w, const struct ct_state *state)
{
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS];
    void *host;
    int rc;

    if (w->ndim != 2 || w->shape[0] != state->shape[0] || w->shape[1] != state->shape[1])
        return ct_fail(CT_ECONFIG, "%s has another shape than [%lld, %lld], which this model needs",
                       w->name, (long long)state->shape[0], (long long)state->shape[1]);
    if (!state->value || !ct_run_shard(run, state, run->rank, shape, offset))
        return 0;
    host = malloc(ct_run_shard_bytes(run, state) + 1);
    rc = host ? ct_weights_read(w, offset, shape, state->dtype, host)
              : ct_fail(CT_ENOMEM, "%s", state->name);
    if (rc == 0)
        rc = ct_run_write(run, state, NULL, NULL, host);
    free(host);
    return rc;
}

static int fill_named(struct ct_arena *arena, struct ct_run *run, const struct ct_weights *weights,
                      const struct ct_state *state)
{
    const char *name = ct_arena_printf(arena, LORA_PREFIX "%s", state->name);
    const struct ct_weight *w = ct_weights_find(weights, name);

    if (!w)
        return ct_fail(CT_ECONFIG,
                       "it has no %s: leave the layer out ([lora] modules), or take other adapters",
                       name);
    return fill(run, w, state);
}

static int fill_all(struct ct_arena *arena, struct ct_run *run, const struct ct_weights *weights)
{
    struct lora_layer *layers;
    size_t count;
    int rc = lora_layers(arena, run, &layers, &count);

    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = fill_named(arena, run, weights, layers[i].a);
        if (rc == 0)
            rc = fill_named(arena, run, weights, layers[i].b);
    }
    if (rc == 0 && ct_weights_count(weights) != 2 * count)
        rc = ct_fail(CT_ECONFIG,
                     "it has %zu tensors, and the adapters of this run are %zu: [lora] modules "
                     "must name the layers that it has adapters of",
                     ct_weights_count(weights), 2 * count);
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
