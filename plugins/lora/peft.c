/*
 * The adapters as peft keeps them: adapter_config.json and adapter_model.safetensors.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/comm.h>
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>

#include "lora.h"

struct saving {
    struct ct_run *run;
    struct ct_arena arena;
    struct lora_layer *layers;
    size_t count;
    struct ct_weight *weights; /* two of each layer */
};

static bool has_experts(const struct ct_run *run)
{
    for (size_t i = 0; i < run->state_count; i++)
        if (ct_stored_stacked(ct_stored_rule(run->model_ops->stored, run->states[i].name)))
            return true;
    return false;
}

/* In models with experts, peft takes adapters of these names for those of the experts. */
static bool is_named_as_of_experts(const char *module)
{
    static const char *const names[] = {".gate_proj", ".up_proj", ".down_proj"};
    const char *last = strrchr(module, '.');

    for (size_t i = 0; last && i < CT_COUNT(names); i++)
        if (!strcmp(last, names[i]))
            return true;
    return false;
}

/* transformers has gpt-oss's router as a module that peft does not know. */
static bool is_router(const char *module)
{
    const char *last = strrchr(module, '.');

    return last && !strcmp(last, ".router");
}

int lora_check_save(const struct ct_run *run)
{
    bool experts = has_experts(run);
    struct ct_arena scratch = {0};
    struct lora_layer *layers;
    size_t count;
    int rc = lora_layers(&scratch, run, &layers, &count);

    for (size_t i = 0; rc == 0 && i < count; i++)
        if (ct_stored_rule(run->model_ops->stored, layers[i].w->name))
            rc = ct_fail(CT_ECONFIG,
                         "peft has no adapter for %s, which is not a tensor of its own in the "
                         "model's files: merge the adapters instead ([model] save_to, or `ctitan "
                         "lora merge`)",
                         layers[i].w->name);
        else if (is_router(layers[i].module))
            rc = ct_fail(CT_ECONFIG,
                         "peft has no adapters for routers such as %s: leave it out ([lora] "
                         "modules), or merge the adapters instead ([model] save_to, or `ctitan "
                         "lora merge`)",
                         layers[i].module);
        else if (experts && is_named_as_of_experts(layers[i].module))
            rc = ct_fail(CT_ECONFIG,
                         "peft takes adapters of %s for those of experts, as the model has "
                         "experts: leave these layers out ([lora] modules), or merge the adapters "
                         "instead ([model] save_to, or `ctitan lora merge`)",
                         layers[i].module);
    ct_arena_finish(&scratch);
    return rc;
}

static int write_config(const struct saving *s, const char *path)
{
    const char *base = ct_config.model.init_from;
    json_t *modules = json_array(), *root;
    char *text;
    int rc;

    for (size_t i = 0; i < s->count; i++)
        json_array_append_new(modules, json_string(s->layers[i].module));
    root = json_pack("{s:s, s:s, s:o, s:I, s:f, s:f, s:s, s:b, s:b, s:b, s:b, s:o}", "peft_type",
                     "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path",
                     *base ? json_string(base) : json_null(), "r", (json_int_t)lora_config.rank,
                     "lora_alpha", lora_config.alpha, "lora_dropout", 0.0, "bias", "none",
                     "fan_in_fan_out", 0, "inference_mode", 1, "use_rslora",
                     lora_config.scaling == LORA_RSLORA, "use_dora", 0, "target_modules", modules);
    text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    rc = text ? ct_file_write(path, text, strlen(text)) : ct_fail(CT_ENOMEM, "%s", path);
    free(text);
    json_decref(root);
    return rc;
}

static int add_weight(struct saving *s, const struct ct_state *state)
{
    float *data = lora_whole(s->run, state);

    if (!data)
        return CT_EINVAL;
    *s->weights++ = (struct ct_weight){ct_arena_printf(&s->arena, LORA_PREFIX "%s", state->name),
                                       CT_F32,
                                       2,
                                       {state->shape[0], state->shape[1]},
                                       data};
    return 0;
}

static int write(const struct saving *s, const char *folder)
{
    const char *format = "%s/adapter_%s";
    struct ct_arena scratch = {0};
    int rc = ct_hf_take_target(s->run, folder);

    if (rc == 0)
        rc = ct_safetensors_write(ct_arena_printf(&scratch, format, folder, "model.safetensors"),
                                  s->weights, 2 * s->count);
    if (rc == 0)
        rc = write_config(s, ct_arena_printf(&scratch, format, folder, "config.json"));
    if (rc == 0)
        rc = ct_hf_note_target(s->run, folder);
    ct_arena_finish(&scratch);
    return rc;
}

int lora_save(struct ct_run *run, const char *folder)
{
    struct saving s = {.run = run};
    struct ct_weight *weights = NULL;
    int rc = lora_layers(&s.arena, run, &s.layers, &s.count);

    if (rc == 0)
        rc = lora_check_save(run);
    if (rc == 0)
        s.weights = weights = ct_arena_array(&s.arena, struct ct_weight, 2 * s.count + 1);
    for (size_t i = 0; rc == 0 && i < s.count; i++) {
        rc = add_weight(&s, s.layers[i].a);
        if (rc == 0)
            rc = add_weight(&s, s.layers[i].b);
    }
    if (rc == 0) {
        s.weights = weights;
        rc = ct_group_agree(ct_run_world(run), run->rank == 0 ? write(&s, folder) : 0);
    }
    for (size_t i = 0; weights && i < 2 * s.count; i++)
        free((void *)(uintptr_t)weights[i].data);
    ct_arena_finish(&s.arena);
    return rc < 0 ? ct_context(rc, "saving the adapters in %s", folder) : 0;
}
