/*
 * `ctitan check PLUGIN`: tests everything that a plugin offers, and explains failures.
 *
 * The plugin is loaded as in a run, so structs, signatures and names of offers are checked. Each
 * kind of offer has a row in `kinds`: what is tried in this process. Then small models are trained
 * with the plugin on several meshes, and compared with one rank (check_runs.c).
 */
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/app/check.h>
#include <ctitan/model.h>
#include <ctitan/plugins.h>
#include <ctitan/recipe.h>
#include <ctitan/run.h>

#include "check.h"
#include "cli.h"

void check_result(struct check *c, int rc, const char *format, ...)
{
    char *what = NULL;
    va_list list;

    *(rc < 0 ? &c->failed : &c->passed) += 1;
    va_start(list, format);
    if (vasprintf(&what, format, list) < 0)
        what = NULL;
    va_end(list);
    check_say(rc < 0 ? CHECK_FAILED : CHECK_OK, what ? what : "",
              rc < 0 ? ct_error_message() : NULL);
    free(what);
}

void check_untried(struct check *c, const char *what, const char *why)
{
    c->untried++;
    check_say(CHECK_UNTRIED, what, why);
}

void check_note(const char *what, const char *why)
{
    check_say(CHECK_NOTE, what, why);
}

bool check_offers(const struct ct_plugin *plugin, enum ct_kind kind)
{
    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++)
        if (o->kind == kind)
            return true;
    return false;
}

/* ---- ops and kernels ---- */

static int check_op(struct check *c, const struct ct_offer *offer)
{
    const struct ct_op_type *type = ct_op_find(((const struct ct_op_type *)offer->ops)->name);
    struct ct_sample *samples;
    int rc, tried = 0;

    if (!type)
        return CT_EINVAL;
    if (type->flags & CT_OP_COLLECTIVE || type->collective) {
        if (check_has_runs(c->plugin))
            check_note(offer->name, "a collective needs several ranks: runs try it");
        else
            check_untried(c, offer->name,
                          "a collective needs several ranks, and nothing of this plugin is tried "
                          "in runs: offer the transform that emits it, too");
        return 0;
    }
    if (!type->reference && type->flags & CT_OP_VIEW) {
        check_note(offer->name, "a view of its input runs nothing");
        return 0;
    }
    if (!type->reference && check_offers(c->plugin, CT_DEVICE)) {
        check_untried(c, offer->name,
                      "the op exists on this device only and has no reference kernel: give it "
                      "one, or compare it in a test of your own");
        return 0;
    }
    if (!type->reference)
        return ct_fail(CT_EINVAL,
                       "op %s has no reference kernel, so no kernel can be compared with it",
                       type->name);
    rc = ct_samples_of(type, &c->arena, &samples);
    for (const struct ct_op_check *check = ct_op_checks; rc >= 0 && check->name; check++)
        for (const struct ct_sample *s = samples; rc >= 0 && s->type; s++) {
            check_calling("op %s, %s: %s(%s)", type->name, check->name, s->type, s->inputs);
            rc = check->check(s);
            tried += rc > 0 ? rc : 0;
        }
    check_result(c, rc, "op %s: %s%s: %d cases", type->name, type->signature,
                 type->vjp ? "; has a gradient" : "", tried);
    return 0;
}

struct ct_device *check_open_device(const char *name)
{
    const struct ct_device_request request = {.local_ranks = 1};
    const struct ct_offer *offer;
    const struct ct_plugin *plugin;
    const struct ct_device_ops *ops;
    struct ct_device *device = NULL;

    if (ct_offer_find(CT_DEVICE, name, &offer) < 0) {
        if (ct_plugin_find(name, &plugin) < 0 ||
            (plugin->options && ct_options_reset(plugin->options, plugin->config) < 0) ||
            ct_plugin_register(plugin) < 0 || ct_offer_find(CT_DEVICE, name, &offer) < 0)
            return NULL;
    }
    ops = offer->ops;
    return ops->open(&request, &device) < 0 ? NULL : device;
}

/* The op type called name, of the plugins here or of another one in the folders. */
static const struct ct_op_type *find_op(struct check *c, const char *name)
{
    const struct ct_op_type *type = ct_op_find(name);
    const struct ct_plugin *plugin;
    const char **names, *what = ct_arena_printf(&c->arena, "op:%s", name);
    size_t count = type ? 0 : ct_plugin_names(&c->arena, &names);

    for (size_t i = 0; !type && i < count; i++) {
        if (ct_plugin_describe(names[i], &plugin) < 0 || !ct_plugin_has(plugin, what) ||
            ct_plugin_find(names[i], &plugin) < 0)
            continue;
        for (const struct ct_offer *o = plugin->offers; !type && o->kind != CT_NOTHING; o++)
            if (o->kind == CT_OP && !strcmp(o->name, name) && ct_op_need(o->ops) == 0)
                type = ct_op_find(name);
    }
    return type ? type : ct_op_find(name);
}

static void check_kernel(struct check *c, struct ct_checker *checker,
                         const struct ct_kernel *kernel)
{
    const struct ct_op_type *type = ct_op_find(kernel->op);
    const char *what = ct_arena_printf(&c->arena, "kernel %s of %s", kernel->name, kernel->op);
    struct ct_sample *samples;
    int rc = 0, tried = 0;

    if (!type->reference || ct_samples_of(type, &c->arena, &samples) < 0) {
        check_untried(c, what,
                      type->reference ? ct_error_message()
                                      : "the op has no reference kernel: give it one, or compare "
                                        "it in a test of your own");
        return;
    }
    for (const struct ct_sample *s = samples; rc >= 0 && s->type; s++) {
        struct ct_trial call;
        bool fits;

        check_calling("%s: %s(%s)", what, s->type, s->inputs);
        /* Made up from the signature, a call may be refused by the type. */
        fits = ct_trial_create(&call, s, CT_F32) == 0;
        ct_trial_finish(&call);
        rc = fits ? ct_check_kernel(checker, kernel, s) : 0;
        tried += rc > 0 ? rc : 0;
    }
    if (rc >= 0 && !tried)
        check_untried(c, what,
                      "it accepts none of the samples: add one that it takes to .samples of the "
                      "op");
    else
        check_result(c, rc, "%s on %s: %d calls", what, checker->device->name, tried);
}

static int check_kernels(struct check *c, const struct ct_offer *offer)
{
    const struct ct_kernel *first = offer->ops, *k;
    struct ct_checker checker = {0};

    for (k = first; k->op; k = (const void *)((const char *)k + k->size))
        if (!find_op(c, k->op))
            return ct_context(CT_EINVAL, "kernel %s on %s", k->name, offer->name);
    checker.device = check_open_device(offer->name);
    if (!checker.device)
        check_untried(c, ct_arena_printf(&c->arena, "kernels of %s", offer->name),
                      ct_error_message());
    else
        for (k = first; k->op; k = (const void *)((const char *)k + k->size))
            check_kernel(c, &checker, k);
    ct_checker_finish(&checker);
    if (checker.device)
        checker.device->ops->close(checker.device);
    return 0;
}

/* ---- models ---- */

static int check_model(struct check *c, const struct ct_offer *offer)
{
    const struct ct_model_ops *ops = offer->ops;
    struct ct_model *model = NULL;
    struct ct_run run = {.world = 1, .model_ops = ops};
    int rc = ops->create(&run, &model);

    if (rc == 0)
        rc = ct_check_model(ops, model);
    if (model && ops->destroy)
        ops->destroy(model);
    if (rc < 0)
        return rc;
    check_result(c, 0, "model %s: the gradient of each of %d parameters, by differences",
                 offer->name, rc);
    return 0;
}

/* ---- optimizers ---- */

static int check_optimizer(struct check *c, const struct ct_offer *offer)
{
    const struct ct_optimizer_ops *ops = offer->ops;
    int rc = ct_check_optimizer(ops);

    if (rc < 0)
        return rc;
    if (rc == 0) {
        check_note(ct_arena_printf(&c->arena, "optimizer %s", offer->name),
                   "it takes no parameter of the trial: runs try it");
        return 0;
    }
    check_result(c, 0,
                 "optimizer %s: a step moves all elements of %d parameters; one that is skipped "
                 "leaves no trace",
                 offer->name, rc);
    return 0;
}

/* ---- all kinds ---- */

/* NULL: runs try it, or nothing does. */
static int (*const kinds[CT_KIND_COUNT])(struct check *c, const struct ct_offer *offer) = {
    [CT_OP] = check_op,
    [CT_KERNELS] = check_kernels,
    [CT_MODEL] = check_model,
    [CT_OPTIMIZER] = check_optimizer,
    [CT_TRANSFORM] = check_transform,
    [CT_HOOK] = check_hook,
    [CT_SCHEDULE] = check_schedule,
    [CT_DATA] = check_data,
    [CT_TOKENIZER] = check_tokenizer,
    [CT_LR_SCHEDULE] = check_lr_schedule,
    [CT_DEVICE] = check_device,
    [CT_COMPILER] = check_compiler,
    [CT_AXIS] = check_axis,
    [CT_VERB] = check_verb,
};

static void add_set(struct check *c, const char *set)
{
    const char **sets = (const char **)(uintptr_t)c->sets;

    sets = ct_arena_grow(&c->arena, sets, &c->set_room, c->set_count + 2, sizeof(*sets));
    sets[c->set_count++] = set;
    sets[c->set_count] = NULL;
    c->sets = sets;
}

static int take_set(void *at, struct ct_arena *arena, const char *option, const char *set)
{
    (void)arena;
    (void)option;
    add_set(at, set);
    return 0;
}

static const struct ct_argument arguments[] = {
    CT_ARG_WORD(struct check, name, "PLUGIN", "Its name, or its file: my/my.so"),
    CT_ARG_TAKE(struct check, arena, "set", 0, "SECTION.KEY=VALUE",
                "Set an option of the plugin, or of the runs", take_set),
    CT_ARG_TEXTS(struct check, with, "with", 0, "PLUGIN", "Load a plugin that this one needs, too"),
    CT_ARG_FLOAT(struct check, tolerance, "tolerance", 0, "T", 0, INFINITY,
                 "Relative difference allowed between runs with and without it, 1e-5 by default"),
    CT_ARG_FLOAT(struct check, mesh_tolerance, "mesh-tolerance", 0, "T", 0, INFINITY,
                 "The same between one rank and several"),
    CT_ARG_FLAG(struct check, quick, "quick", 0, "Leave out runs"),
    CT_ARG_FLAG(struct check, allow_untried, "allow-untried", 0,
                "Accept that some checks cannot be made"),
    CT_ARG_FLAG(struct check, json, "json", 0, "Print JSON"),
    {0}};

/* Set "section.key=value" in this process, if the section is the plugin's or the core's. */
static int apply(const struct ct_plugin *plugin, const char *set, struct ct_arena *arena)
{
    const struct ct_recipe_section *core;
    const struct ct_setting *s;
    struct ct_recipe *recipe;
    int rc = ct_recipe_parse(arena, "--set", "", &recipe);

    if (rc == 0)
        rc = ct_recipe_set(recipe, set);
    if (rc < 0)
        return rc;
    s = &recipe->settings[0];
    if (!strcmp(s->section, plugin->name))
        return plugin->options
                   ? ct_options_set(plugin->options, plugin->config, s->key, s->value, "--set")
                   : ct_fail(CT_ECONFIG, "--set %s: plugin %s has no options", set, s->section);
    core = ct_recipe_section_find(s->section);
    return core ? ct_options_set(core->options, core->config, s->key, s->value, "--set") : 0;
}

/* Names of sizes that models have; a plugin with such an option is tried in these sizes. */
static const char *const small[] = {"dim=32",       "n_layers=2",       "n_heads=4",
                                    "n_kv_heads=2", "ffn_dim=48",       "vocab_size=96",
                                    "n_experts=4",  "n_chosen=2",       "expert_dim=16",
                                    "n_groups=2",   "n_groups_chosen=1"};

static void choose_sizes(struct check *c, const struct ct_plugin *plugin)
{
    size_t given = c->set_count;

    for (size_t i = 0; i < CT_COUNT(small) && check_offers(plugin, CT_MODEL); i++) {
        char *set = ct_arena_printf(&c->arena, "%s.%s", plugin->name, small[i]);
        size_t key = (size_t)(strchr(set, '=') - set) + 1;
        char *name = ct_arena_strdup(&c->arena, small[i]);
        bool is_given = false;

        *strchr(name, '=') = '\0';
        for (size_t k = 0; k < given; k++)
            is_given |= !strncmp(c->sets[k], set, key);
        if (!is_given && plugin->options && ct_option_find(plugin->options, name))
            add_set(c, set);
    }
}

/* The option that must be set before code of the plugin can be called; NULL: none. */
static const char *missing_option(struct check *c, const struct ct_plugin *plugin)
{
    for (const struct ct_option *o = plugin->options; o && o->name; o++) {
        const char *start = ct_arena_printf(&c->arena, "%s.%s=", plugin->name, o->name);
        bool is_set = o->fallback;

        for (size_t i = 0; !is_set && i < c->set_count; i++)
            is_set = !strncmp(c->sets[i], start, strlen(start));
        if (!is_set)
            return ct_arena_printf(&c->arena, "set %s.%s (%s): --set %sVALUE", plugin->name,
                                   o->name, o->doc, start);
    }
    return NULL;
}

static int load(struct check *c, const char *name)
{
    char path[PATH_MAX], whole[PATH_MAX];
    int rc = 0;

    for (size_t i = 0; rc == 0 && ct_recipe_section_at(i)->name; i++)
        rc = ct_options_reset(ct_recipe_section_at(i)->options, ct_recipe_section_at(i)->config);
    if (rc == 0)
        rc = ct_plugin_path(name, path, sizeof(path));
    if (rc == 0)
        rc = ct_plugin_open(path, &c->plugin);
    if (rc == 0 && c->plugin->options)
        rc = ct_options_reset(c->plugin->options, c->plugin->config);
    if (rc < 0)
        return rc;
    c->path = ct_arena_strdup(&c->arena, realpath(path, whole) ? whole : path);
    c->set_given = c->set_count;
    choose_sizes(c, c->plugin);
    for (size_t i = 0; rc == 0 && i < c->set_count; i++)
        rc = apply(c->plugin, c->sets[i], &c->arena);
    return rc == 0 ? ct_plugin_register(c->plugin) : rc;
}

/* With a plugin of --with as well: what the plugin needs, a tokenizer, a model to try it on. */
static int load_with(struct check *c)
{
    const struct ct_plugin *plugin;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < c->with.count; i++) {
        rc = ct_plugin_find(c->with.at[i], &plugin);
        if (rc == 0 && plugin->options)
            rc = ct_options_reset(plugin->options, plugin->config);
        if (rc == 0)
            choose_sizes(c, plugin);
        for (size_t k = 0; rc == 0 && k < c->set_count; k++)
            rc = apply(plugin, c->sets[k], &c->arena);
        if (rc == 0 && check_offers(plugin, CT_TOKENIZER) && missing_option(c, plugin))
            rc = ct_fail(CT_ECONFIG, "--with %s: %s", c->with.at[i], missing_option(c, plugin));
        if (rc == 0)
            rc = ct_plugin_register(plugin);
    }
    return rc;
}

/* No section that the check has: of the core, of the plugin, or of one that its runs load. */
static int unknown_section(struct check *c, const char *set, const char *section)
{
    const char **names;
    size_t count = ct_plugin_names(&c->arena, &names), room = count;

    for (size_t i = 0; i < count; i++)
        if (!strcmp(names[i], section))
            return ct_fail(CT_ECONFIG, "--set %s: the check does not load plugin %s; add --with %s",
                           set, section, section);
    for (size_t i = 0; ct_recipe_section_at(i)->name; i++) {
        names = ct_arena_grow(&c->arena, names, &room, count + 1, sizeof(*names));
        names[count++] = ct_recipe_section_at(i)->name;
    }
    return ct_fail(CT_ECONFIG, "--set %s: no section %s%s", set, section,
                   ct_did_you_mean(section, names, count));
}

/* A --set option that `apply` left alone must belong to a plugin that the runs load. */
static int check_set(struct check *c, const char *set)
{
    const char *section = ct_arena_printf(&c->arena, "%.*s", (int)strcspn(set, "."), set);
    const struct ct_plugin *plugin;
    int rc;

    if (ct_recipe_section_find(section) || ct_plugin_is_registered(section))
        return 0;
    if (!check_runs_load(c, section))
        return unknown_section(c, set, section);
    rc = ct_plugin_find(section, &plugin);
    return rc == 0 ? apply(plugin, set, &c->arena) : rc;
}

static int check_sets(struct check *c)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < c->set_count; i++)
        rc = check_set(c, c->sets[i]);
    return rc;
}

static void check_offer(struct check *c, const struct ct_offer *o)
{
    const char *what = ct_arena_printf(&c->arena, "%s %s", ct_kind_name(o->kind), o->name);
    bool configured = o->kind != CT_OP && o->kind != CT_KERNELS && o->kind != CT_CODE;
    const char *missing = configured ? missing_option(c, c->plugin) : NULL;
    int rc;

    if (missing) {
        check_untried(c, what, missing);
        return;
    }
    check_calling("%s", what);
    rc = kinds[o->kind] ? kinds[o->kind](c, o) : 0;
    if (rc < 0)
        check_result(c, rc, "%s", what);
}

static int check_all(struct check *c)
{
    int rc = check_needs(c);

    if (rc < 0)
        check_result(c, rc, "plugin %s", c->plugin->name);
    for (const struct ct_offer *o = c->plugin->offers; o->kind != CT_NOTHING; o++)
        check_offer(c, o);
    check_calling("runs of %s", c->plugin->name);
    rc = c->quick ? 0 : check_runs(c);
    if (rc < 0)
        return rc;
    if (!c->json)
        printf("%s: %d checks passed, %d failed, %d could not run here\n", c->plugin->name,
               c->passed, c->failed, c->untried);
    if (c->failed)
        return ct_fail(CT_EINVAL, "%s: %d of %d checks failed", c->plugin->name, c->failed,
                       c->passed + c->failed);
    return c->untried && !c->allow_untried
               ? ct_fail(CT_EINVAL,
                         "%s: %d check%s could not be made, for the reasons in the lines "
                         "\"untried\": give what is missing, or accept that with "
                         "--allow-untried",
                         c->plugin->name, c->untried, ct_plural(c->untried))
               : 0;
}

static int run_check(int argc, char **argv)
{
    struct check c = {.tolerance = 1e-5, .mesh_tolerance = 1e-5};
    int rc = ct_arguments_parse(arguments, argc, argv, &c.arena, &c);

    if (rc == 0) {
        check_say_begin(&c);
        check_catch_crashes();
        check_calling("loading %s", c.name);
        rc = load(&c, c.name);
    }
    if (rc == 0)
        rc = load_with(&c);
    if (rc == 0)
        rc = check_sets(&c);
    if (rc == 0)
        rc = check_all(&c);
    check_say_end();
    check_runs_finish(&c);
    ct_arena_finish(&c.arena);
    return rc;
}

const struct verb verb_check = {
    .name = "check",
    .summary = "test everything that a plugin offers, and explain failures",
    .run = run_check,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan check my_plugin/my_plugin.so", "ctitan check adamw --quick")};
