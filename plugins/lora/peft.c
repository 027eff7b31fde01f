/*
 * The adapters as peft keeps them: its files, and the tensors that hold those of a layer.
 *
 * Of stacked weights whose files have a tensor for each expert, each expert has tensors of its own,
 * as in peft before the weights were stacked; later versions read these, too.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/comm.h>
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/patterns.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>

#include "lora.h"

#define PREFIX "base_model.model." /* in the place of the model's name */

/* ---- tensors ---- */

static const struct ct_stored_rule *rule_of(const struct ct_run *run, const struct lora_layer *l)
{
    return ct_stored_rule(run->model_ops->stored, l->w->name);
}

static bool is_stack(const struct lora_layer *l)
{
    return l->w->ndim == 3;
}

/* The module of one matrix of a stack, in the model's files: "model.layers.0.mlp.experts.3.up_proj"
 */
static const char *module_of(struct ct_arena *arena, const struct ct_run *run,
                             const struct lora_layer *l, int64_t matrix)
{
    const char *name = ct_stored_tensor(arena, rule_of(run, l), l->w, matrix).name;
    size_t size = strlen(name);

    size -= ct_ends_in(name, LORA_WEIGHT) ? strlen(LORA_WEIGHT) : 0;
    return ct_arena_printf(arena, "%.*s", (int)size, name);
}

static void add_state(struct ct_arena *arena, const struct ct_run *run, const struct lora_layer *l,
                      const struct ct_state *state, struct lora_tensors *t)
{
    bool stack = is_stack(l) && state->ndim == 3;
    const char *suffix = state->name + strlen(l->module);

    for (int64_t i = 0; i < (stack ? state->shape[0] : 1); i++) {
        struct lora_tensor *to = &t->item[t->count++];
        const char *module = stack ? module_of(arena, run, l, i) : l->module;

        *to = (struct lora_tensor){.state = state, .matrix = i};
        to->name = ct_arena_printf(arena, PREFIX "%s%s", module, suffix);
        to->ndim = state->ndim - stack;
        memcpy(to->shape, state->shape + stack, sizeof(*to->shape) * (size_t)to->ndim);
        to->transposed = l->embedding && state == l->a;
        to->tokens = l->tokens ? l : NULL;
        if (to->transposed) {
            to->shape[0] = state->shape[1];
            to->shape[1] = state->shape[0];
        }
    }
}

struct lora_tensors lora_tensors_of(struct ct_arena *arena, const struct ct_run *run,
                                    const struct lora_layer *layers, size_t count)
{
    struct lora_tensors t = {0};
    size_t room = 1;

    for (size_t i = 0; i < count; i++)
        room += is_stack(&layers[i]) ? 2 * (size_t)layers[i].w->shape[0] : 3;
    t.item = ct_arena_array(arena, struct lora_tensor, room);
    for (size_t i = 0; i < count; i++) {
        const struct lora_layer *l = &layers[i];

        add_state(arena, run, l, l->a, &t);
        if (!l->tokens)
            add_state(arena, run, l, l->b, &t);
        if (l->m)
            add_state(arena, run, l, l->m, &t);
    }
    return t;
}

/* ---- layers that peft has no adapters for ---- */

#define INSTEAD "merge the adapters instead ([model] save_to, or `ctitan lora merge`)"

static bool has_experts(const struct ct_run *run)
{
    for (size_t i = 0; i < run->state_count; i++)
        if (ct_stored_stacked(ct_stored_rule(run->model_ops->stored, run->states[i].name)))
            return true;
    return false;
}

static const char *last_of(const char *module)
{
    const char *last = strrchr(module, '.');

    return last ? last + 1 : module;
}

/* In models with experts, peft takes adapters of these names for those of the experts. */
static bool is_named_as_of_experts(const char *module)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};

    for (size_t i = 0; i < CT_COUNT(names); i++)
        if (!strcmp(last_of(module), names[i]))
            return true;
    return false;
}

/* The layer of the same experts with another name; NULL: it has no adapter. */
static const struct lora_layer *beside(const struct lora_layer *l, const struct lora_layer *layers,
                                       size_t count, const char *name)
{
    size_t size = (size_t)(last_of(l->module) - l->module);

    for (size_t i = 0; i < count; i++)
        if (!strncmp(layers[i].module, l->module, size) && !strcmp(layers[i].module + size, name))
            return &layers[i];
    return NULL;
}

/* peft holds gate and up in one weight, whose adapters have twice the rank and twice alpha. */
static int check_stack(const struct ct_run *run, const struct lora_layer *l,
                       const struct lora_layer *layers, size_t count)
{
    const struct ct_stored_rule *rule = rule_of(run, l);
    bool gate = !strcmp(last_of(l->module), "gate_proj");
    const char *other = gate ? "up_proj" : "gate_proj";

    if (!ct_stored_stacked(rule) || rule->transposed || rule->parts)
        return ct_fail(CT_ECONFIG,
                       "peft has no adapters for single experts of %s, which are no tensors of "
                       "their own in the model's files: " INSTEAD,
                       l->module);
    if (!gate && strcmp(last_of(l->module), "up_proj") != 0)
        return 0;
    if (!beside(l, layers, count, other))
        return ct_fail(CT_ECONFIG,
                       "peft has adapters for gate_proj and up_proj of experts together, and %s "
                       "has one without %s: add that ([lora] modules), or " INSTEAD,
                       l->module, other);
    if (lora_config.scaling == LORA_RSLORA)
        return ct_fail(CT_ECONFIG,
                       "peft scales the adapters of %s by another factor with use_rslora: set "
                       "[lora] scaling = lora and alpha = %g, or " INSTEAD,
                       l->module, lora_scale() * (double)lora_config.rank);
    return 0;
}

static int check_layer(const struct ct_run *run, const struct lora_layer *l, bool experts)
{
    if (rule_of(run, l))
        return ct_fail(CT_ECONFIG,
                       "peft has no adapter for %s, which is not a tensor of its own in the "
                       "model's files: " INSTEAD,
                       l->w->name);
    /* transformers has gpt-oss's router as a module that peft does not know */
    if (!strcmp(last_of(l->module), "router"))
        return ct_fail(CT_ECONFIG,
                       "peft has no adapters for routers such as %s: leave it out ([lora] "
                       "modules), or " INSTEAD,
                       l->module);
    if (experts && is_named_as_of_experts(l->module))
        return ct_fail(CT_ECONFIG,
                       "peft takes adapters of %s for those of experts, as the model has experts: "
                       "leave these layers out ([lora] modules), or " INSTEAD,
                       l->module);
    return 0;
}

int lora_check_peft(const struct ct_run *run, const struct lora_layer *layers, size_t count)
{
    bool experts = has_experts(run);
    int rc = ct_hf_is_part(run)
                 ? ct_fail(CT_ECONFIG, "folders of peft for a model of several kinds of input, as "
                                       "that of [model] init_from, are not supported: " INSTEAD)
                 : 0;

    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = is_stack(&layers[i]) ? check_stack(run, &layers[i], layers, count)
                                  : check_layer(run, &layers[i], experts);
    return rc;
}

/* ---- saving ---- */

struct saving {
    struct ct_run *run;
    struct ct_arena arena;
    struct lora_layer *layers;
    size_t count;
    struct lora_tensors tensors;
    struct ct_weight *weights; /* by tensor */
    float **whole;             /* the states, to be freed */
    size_t wholes;
};

/* Adds a layer's module; all experts have one name. */
static void add_module(json_t *modules, const struct lora_layer *l, const char *stored)
{
    const char *name = is_stack(l) ? last_of(stored) : l->module;
    const json_t *item;
    size_t i;

    json_array_foreach(modules, i, item)
    {
        if (!strcmp(json_string_value(item), name))
            return;
    }
    json_array_append_new(modules, json_string(name));
}

static int write_config(struct saving *s, const char *path)
{
    const char *base = ct_config.model.init_from;
    json_t *modules = json_array(), *tokens = json_array(), *root;
    struct lora_ids ids;
    char *text;
    int rc = lora_ids_read(&s->arena, &ids);

    for (size_t i = 0; i < ids.count; i++)
        json_array_append_new(tokens, json_integer((json_int_t)ids.id[i]));
    for (size_t i = 0; i < s->count; i++) {
        const struct lora_layer *l = &s->layers[i];

        if (!l->tokens)
            add_module(modules, l, is_stack(l) ? module_of(&s->arena, s->run, l, 0) : l->module);
    }
    root = json_pack("{s:s, s:s, s:o, s:I, s:f, s:f, s:s, s:b, s:b, s:b, s:b, s:o}", "peft_type",
                     "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path",
                     *base ? json_string(base) : json_null(), "r", (json_int_t)lora_config.rank,
                     "lora_alpha", lora_config.alpha, "lora_dropout", 0.0, "bias", "none",
                     "fan_in_fan_out", 0, "inference_mode", 1, "use_rslora",
                     lora_config.scaling == LORA_RSLORA, "use_dora", lora_config.dora,
                     "target_modules", modules);
    if (root && ids.count)
        json_object_set_new(root, "trainable_token_indices", tokens);
    text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    rc = text ? ct_file_write(path, text, strlen(text)) : ct_fail(CT_ENOMEM, "%s", path);
    free(text);
    json_decref(root);
    return rc;
}

/* peft keeps the rows themselves. */
static int add_table(struct ct_run *run, const struct lora_tensor *t, float *whole)
{
    float *rows = lora_table_rows(run, t->tokens);

    for (int64_t i = 0; rows && i < ct_shape_count(t->ndim, t->shape); i++)
        whole[i] += rows[i];
    free(rows);
    return rows ? 0 : CT_EINVAL;
}

/* Tensor i, whose state is gathered with its first tensor. */
static int add_weight(struct saving *s, size_t i)
{
    const struct lora_tensor *t = &s->tensors.item[i];
    struct ct_weight *w = &s->weights[i];

    if (t->matrix == 0) {
        float *whole = lora_whole(s->run, t->state), *as_is = whole;

        if (whole && t->tokens && add_table(s->run, t, whole) < 0) {
            free(whole);
            return CT_EINVAL;
        }
        if (whole && t->transposed) {
            whole = lora_transposed(as_is, t->state->shape[0], t->state->shape[1]);
            free(as_is);
        }
        if (!whole)
            return CT_EINVAL;
        s->whole[s->wholes++] = whole;
    }
    *w = (struct ct_weight){.name = t->name, .dtype = CT_F32, .ndim = t->ndim};
    memcpy(w->shape, t->shape, sizeof(*w->shape) * (size_t)t->ndim);
    w->data = s->whole[s->wholes - 1] + t->matrix * ct_shape_count(t->ndim, t->shape);
    return 0;
}

static int write(struct saving *s, const char *folder)
{
    struct ct_arena scratch = {0};
    int rc = ct_hf_take_target(s->run, folder);

    if (rc == 0)
        rc = ct_safetensors_write(ct_arena_printf(&scratch, "%s/" CT_PEFT_WEIGHTS, folder),
                                  s->weights, s->tensors.count);
    if (rc == 0)
        rc = write_config(s, ct_arena_printf(&scratch, "%s/" CT_PEFT_CONFIG, folder));
    if (rc == 0)
        ct_hf_note_target(s->run, folder);
    ct_arena_finish(&scratch);
    return rc;
}

static int save(struct saving *s, const char *folder)
{
    int rc = lora_check_peft(s->run, s->layers, s->count);

    if (rc < 0)
        return rc;
    s->tensors = lora_tensors_of(&s->arena, s->run, s->layers, s->count);
    s->weights = ct_arena_array(&s->arena, struct ct_weight, s->tensors.count + 1);
    s->whole = ct_arena_array(&s->arena, float *, s->tensors.count + 1);
    for (size_t i = 0; rc == 0 && i < s->tensors.count; i++)
        rc = add_weight(s, i);
    if (rc == 0)
        rc = ct_group_agree(ct_run_world(s->run), s->run->rank == 0 ? write(s, folder) : 0);
    for (size_t i = 0; i < s->wholes; i++)
        free(s->whole[i]);
    return rc;
}

int lora_save(struct ct_run *run, const char *folder)
{
    struct saving s = {.run = run};
    int rc = lora_layers(&s.arena, run, &s.layers, &s.count);

    if (rc == 0)
        rc = lora_check_tokens(run);
    if (rc == 0)
        rc = save(&s, folder);
    ct_arena_finish(&s.arena);
    return rc < 0 ? ct_context(rc, "saving the adapters in %s", folder) : 0;
}

int lora_check_save(const struct ct_run *run, double *bytes)
{
    struct ct_arena scratch = {0};
    struct lora_layer *layers;
    struct lora_tensors tensors;
    size_t count;
    int rc = lora_layers(&scratch, run, &layers, &count);

    if (rc == 0)
        rc = lora_check_peft(run, layers, count);
    *bytes = 0;
    if (rc == 0) {
        tensors = lora_tensors_of(&scratch, run, layers, count);
        for (size_t i = 0; i < tensors.count; i++)
            *bytes += (double)sizeof(float) *
                      (double)ct_shape_count(tensors.item[i].ndim, tensors.item[i].shape);
    }
    ct_arena_finish(&scratch);
    return rc;
}
