/*
 * Whether a folder has all of its model: the model that its config.json describes is built, and
 * each tensor of its parameters looked up.
 */
#include <jansson.h>
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/plugin.h>
#include <ctitan/recipe.h>

#include "load.h"

#define TOKENS 1 /* of the sequence that it is built for: each model has as many positions */

static int load_model(struct ct_arena *arena, const char *folder, const char *ignore,
                      const struct ct_model_ops **ops)
{
    const struct ct_offer *offer;
    struct ct_recipe *recipe;
    json_t *root;
    const char *type;
    char name[64];
    int rc = ct_hf_read_root(folder, &root);

    if (rc < 0)
        return rc;
    type = ct_hf_model_type(root);
    rc = type ? ct_hf_plugin(type, name, sizeof(name))
              : ct_fail(CT_ECONFIG, "config.json has no model_type");
    json_decref(root);
    if (rc == 0)
        rc = ct_recipe_parse(arena, folder,
                             ct_arena_printf(arena,
                                             "[plugins]\nload = %s\n[model]\nname = %s\n"
                                             "init_from = %s\n[training]\nseq_len = %d\n",
                                             name, name, ct_recipe_quote(arena, folder), TOKENS),
                             &recipe);
    if (rc == 0)
        rc = ct_recipe_apply(recipe);
    ct_config.model_ignore = ignore;
    if (rc == 0)
        rc = ct_offer_find(CT_MODEL, name, &offer);
    *ops = rc < 0 ? NULL : offer->ops;
    return rc;
}

/* All of a parameter's tensors that are read. */
static int check_parameter(const struct ct_model_ops *ops, const struct ct_weights *weights,
                           const struct ct_value *v)
{
    const struct ct_stored_rule *rule = ct_stored_rule(ops->stored, v->name);
    struct ct_state param = {.name = v->name, .dtype = v->dtype, .ndim = v->ndim};
    struct ct_arena arena = {0};
    struct hf_tensor tensor;
    int64_t count;
    int rc = 0;

    memcpy(param.shape, v->shape, sizeof(param.shape));
    count = ct_stored_absent(rule) ? 0 : ct_stored_stacked(rule) ? param.shape[0] : 1;
    for (int64_t i = 0; rc == 0 && i < count; i++)
        rc = hf_find_tensor(&arena, weights, rule, &param, i, &tensor);
    ct_arena_finish(&arena);
    return rc;
}

static int check_model(const struct ct_model_ops *ops, struct ct_model *model,
                       const struct ct_weights *weights)
{
    const struct ct_model_request request = {.batch = 1, .seq_len = TOKENS, .logits = true};
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_create(&arena, "model");
    int rc = ops->build(model, graph, &request);

    for (size_t i = 0; rc == 0 && i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM)
            rc = check_parameter(ops, weights, graph->values[i]);
    ct_arena_finish(&arena);
    return rc;
}

int ct_hf_check_whole(const char *folder, const char *ignore, const struct ct_weights *weights)
{
    struct ct_run run = {.world = 1};
    struct ct_arena arena = {0};
    struct ct_model *model = NULL;
    int rc = load_model(&arena, folder, ignore, &run.model_ops);

    if (rc == 0)
        rc = run.model_ops->create(&run, &model);
    if (rc == 0)
        rc = check_model(run.model_ops, model, weights);
    if (model && run.model_ops->destroy)
        run.model_ops->destroy(model);
    ct_arena_finish(&run.arena);
    ct_arena_finish(&arena);
    return rc;
}
