/*
 * The rules by which the files of a model store its parameters, by its config.json.
 */
#include <jansson.h>
#include <limits.h>
#include <string.h>

#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/json.h>
#include <ctitan/model.h>
#include <ctitan/plugins.h>

static int rules_of(const char *model, const char *config, struct ct_arena *arena,
                    const struct ct_stored_rule **rules)
{
    const struct ct_plugin *plugin;
    const struct ct_model_ops *model_ops;
    const void *ops = NULL;
    char name[64], path[PATH_MAX];
    int rc = ct_hf_plugin(model, name, sizeof(name));

    if (rc == 0)
        rc = ct_plugin_path(name, path, sizeof(path));
    if (rc == 0)
        rc = ct_plugin_open(path, &plugin);
    for (const struct ct_offer *o = rc == 0 ? plugin->offers : NULL; o && o->kind; o++)
        if (o->kind == CT_MODEL)
            ops = o->ops;
    if (rc == 0 && !ops)
        rc = ct_fail(CT_ECONFIG, "plugin %s has no model", model);
    if (rc == 0)
        rc = ct_struct_widen(ops, sizeof(size_t), sizeof(struct ct_model_ops), &ops);
    model_ops = ops;
    if (rc == 0)
        *rules = model_ops->stored;
    if (rc == 0 && model_ops->stored_for)
        rc = model_ops->stored_for(config, arena, rules);
    return rc < 0 ? ct_context(rc, "how files of a %s store its parameters", model) : 0;
}

int ct_hf_rules(const char *config, struct ct_arena *arena, const struct ct_stored_rule **rules)
{
    json_t *root = NULL;
    int rc = config ? ct_json_read(config, strlen(config), "config.json", 0, &root) : 0;
    const char *model = json_string_value(json_object_get(root, "model_type"));

    *rules = NULL;
    if (rc < 0)
        return rc;
    if (config && !model)
        rc = ct_fail(CT_ECONFIG, "config.json has no model_type");
    else if (json_is_object(json_object_get(root, "text_config")))
        rc = ct_fail(CT_ECONFIG, "config.json has a text_config: such a model is read by [model] "
                                 "init_from, and not imported");
    else if (model)
        rc = rules_of(model, config, arena, rules);
    json_decref(root);
    return rc;
}
