/*
 * From a recipe's settings to filled configurations: the core's sections, the list of plugins, and
 * the plugins' sections.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugins.h>
#include <ctitan/recipe.h>

#include "recipe/settings.h"

static bool is_core_section(const char *name)
{
    return ct_recipe_section_find(name) || !strcmp(name, "plugins");
}

static int load_plugin(const char *name, const char *source)
{
    const struct ct_plugin *plugin;
    char path[PATH_MAX];
    int rc = ct_plugin_path(name, path, sizeof(path));

    if (rc == 0)
        rc = ct_plugin_open(path, &plugin);
    if (rc == 0 && is_core_section(plugin->name))
        rc = ct_fail(CT_ECONFIG, "plugin %s has the name of one of the core's own sections", path);
    if (rc == 0)
        rc = ct_plugin_register(plugin);
    return rc < 0 ? ct_context(rc == CT_EINVAL ? CT_ECONFIG : rc, "%s", source) : 0;
}

static const char *default_of(const struct ct_option *options, const char *key)
{
    for (const struct ct_option *o = options; o && o->name; o++)
        if (!strcmp(o->name, key))
            return o->fallback ? o->fallback : "";
    return "";
}

static bool has_offer(const char *name, enum ct_kind kind)
{
    const struct ct_plugin *plugin;

    for (size_t i = 0; (plugin = ct_plugin_at(i)); i++)
        for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++)
            if (!strcmp(plugin->name, name) && o->kind == kind)
                return true;
    return false;
}

/* Load the plugin named by an option of another one. */
static int load_brought(const struct ct_recipe *recipe, const struct ct_plugin *by)
{
    const struct ct_setting *s = ct_recipe_find(recipe, by->name, by->brings);
    const char *name = s ? s->value : default_of(by->options, by->brings);
    const char *source =
        s ? s->source : ct_arena_printf(recipe->arena, "[%s] %s", by->name, by->brings);
    int rc = 0;

    if (!*name)
        return 0;
    if (!ct_plugin_is_registered(name))
        rc = load_plugin(name, source);
    if (rc == 0 && by->brings_kind && !has_offer(name, by->brings_kind))
        rc = ct_fail(CT_ECONFIG, "%s: [%s] %s = %s: plugin %s offers no %s", source, by->name,
                     by->brings, name, name, ct_kind_name(by->brings_kind));
    return rc;
}

static bool is_offered(const char *name, enum ct_kind kind)
{
    const struct ct_offer *offer;

    for (size_t i = 0; (offer = ct_offer_at(kind, i)); i++)
        if (!strcmp(offer->name, name))
            return true;
    return false;
}

/* [objective] name is the default, or what a loaded plugin offers, or a plugin. */
static int load_objective(const struct ct_recipe *recipe)
{
    const struct ct_setting *s = ct_recipe_find(recipe, "objective", "name");
    const char *fallback = default_of(ct_recipe_section_find("objective")->options, "name");
    const struct ct_offer *offer = ct_offer_at(CT_OBJECTIVE, 0);
    int rc;

    if (!s && offer)
        return ct_fail(
            CT_ECONFIG,
            "%s: a plugin offers the objective %s, but nothing says what is trained: set "
            "[objective] name = %s, or %s",
            recipe->path, offer->name, offer->name, fallback);
    if (!s || !strcmp(s->value, fallback) || is_offered(s->value, CT_OBJECTIVE))
        return 0;
    rc = load_plugin(s->value, s->source);
    if (rc == 0 && !is_offered(s->value, CT_OBJECTIVE))
        rc = ct_fail(CT_ECONFIG,
                     "%s: [objective] name = %s: plugin %s offers no objective of that "
                     "name",
                     s->source, s->value, s->value);
    return rc;
}

static int load_plugins(const struct ct_recipe *recipe)
{
    const struct ct_plugin *plugin;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < recipe->plugin_count; i++)
        rc = load_plugin(recipe->plugins[i], recipe->plugin_sources[i]);
    for (size_t i = 0; rc == 0 && (plugin = ct_plugin_at(i)); i++)
        rc = plugin->brings ? load_brought(recipe, plugin) : 0;
    if (rc == 0)
        rc = load_objective(recipe);
    if (rc < 0)
        return rc;
    rc = ct_plugin_check_all();
    return rc < 0 ? ct_context(rc, "%s", recipe->path) : 0;
}

bool ct_recipe_target_at(size_t index, struct ct_recipe_target *target)
{
    const struct ct_plugin *p;
    size_t cores = 0;

    for (; ct_recipe_section_at(cores)->name; cores++) {
        const struct ct_recipe_section *s = ct_recipe_section_at(cores);

        *target = (struct ct_recipe_target){s->name, s->options, s->config, NULL};
        if (cores == index)
            return true;
    }
    p = ct_plugin_at(index - cores);
    if (p)
        *target = (struct ct_recipe_target){p->name, p->options, p->config, p};
    return p;
}

bool ct_recipe_target_find(const char *name, struct ct_recipe_target *target)
{
    for (size_t i = 0; ct_recipe_target_at(i, target); i++)
        if (!strcmp(target->name, name))
            return true;
    return false;
}

static int unknown_section(const struct ct_recipe *recipe, const char *name, const char *source)
{
    struct ct_arena scratch = {0};
    const char **available, **names = NULL, *near;
    size_t count = ct_plugin_names(&scratch, &available), known = 0, room = 0;
    struct ct_recipe_target target;

    if (ct_recipe_hint_section(recipe, source, name) < 0) {
        ct_arena_finish(&scratch);
        return CT_ECONFIG;
    }
    for (size_t i = 0; i < count; i++)
        if (!strcmp(available[i], name)) {
            ct_arena_finish(&scratch);
            return ct_fail(CT_ECONFIG,
                           "%s: section [%s], but plugin %s is not loaded: add it to [plugins] "
                           "load, or remove the section",
                           source, name, name);
        }
    for (; ct_recipe_target_at(known, &target); known++) {
        names = ct_arena_grow(&scratch, names, &room, known + 2, sizeof(*names));
        names[known] = target.name;
    }
    names[known++] = "plugins";
    near = ct_nearest(name, names, known);
    ct_fail(CT_ECONFIG,
            "%s: no section [%s]%s%s%s: neither the core nor any plugin that %s loads has a "
            "section of that name",
            source, name, near ? "; did you mean [" : "", near ? near : "", near ? "]?" : "",
            recipe->path);
    ct_arena_finish(&scratch);
    return CT_ECONFIG;
}

/* No value is read and ignored. */
static int check_effect(const struct ct_setting *s)
{
    const struct ct_plugin *by = ct_recipe_replaced_by(s->section, s->key);

    return by ? ct_fail(CT_ECONFIG,
                        "%s: [%s] %s has no effect, as plugin %s gives the learning rate: remove "
                        "the key, or take %s out of [plugins] load",
                        s->source, s->section, s->key, by->name, by->name)
              : 0;
}

/* Whether the key differs from one of the table's by a letter or two. */
static bool is_near(const struct ct_option *options, const char *key)
{
    const char *names[128];
    size_t count = 0;

    for (const struct ct_option *o = options; o->name && count < CT_COUNT(names); o++)
        names[count++] = o->name;
    return ct_nearest(key, names, count);
}

static int apply_setting(const struct ct_recipe *recipe, const struct ct_setting *s)
{
    struct ct_recipe_target target;
    char where[PATH_MAX + 128];
    int rc = 0;

    if (!strcmp(s->section, "plugins")) {
        if (strcmp(s->key, "load"))
            return ct_fail(CT_ECONFIG, "%s: [plugins] has one key, load, but not %s", s->source,
                           s->key);
        return 0;
    }
    if (ct_recipe_is_stage(s->section))
        return 0;
    if (!ct_recipe_target_find(s->section, &target))
        return unknown_section(recipe, s->section, s->source);
    if (s->was_default && !(target.options && ct_option_find(target.options, s->key)))
        return 0;
    if (!target.options)
        return ct_fail(CT_ECONFIG, "%s: plugin %s has no options", s->source, s->section);
    snprintf(where, sizeof(where), "%s: [%s]", s->source, s->section);
    if (!ct_option_find(target.options, s->key) &&
        (ct_recipe_is_habit(s->key) || !is_near(target.options, s->key)))
        rc = ct_recipe_hint_key(recipe, where, s->section, s->key);
    if (rc == 0)
        rc = ct_options_set(target.options, target.config, s->key, s->value, where);
    return rc == 0 ? check_effect(s) : rc;
}

/* Options without a default must be set by the user. */
static int check_set(const struct ct_recipe *recipe, const struct ct_recipe_target *target)
{
    for (const struct ct_option *o = target->options; o && o->name; o++)
        if (!o->fallback && !ct_recipe_find(recipe, target->name, o->name))
            return ct_fail(CT_ECONFIG, "%s: [%s] %s must be set (%s)", recipe->path, target->name,
                           o->name, o->doc);
    return 0;
}

static int check_batch(const struct ct_recipe *recipe)
{
    const struct ct_setting *s = ct_recipe_find(recipe, "training", "global_batch_size");

    if (ct_config.training.global_batch_size != 0)
        return 0;
    return ct_fail(CT_ECONFIG, "%s: [training] global_batch_size = 0: expected at least 1, or -1",
                   s ? s->source : recipe->path);
}

static int check_schedule(const struct ct_recipe *recipe)
{
    const struct ct_setting *s = ct_recipe_find(recipe, "lr_scheduler", "total_steps");
    int64_t total = ct_config.lr_total_steps, steps = ct_config.training.steps;

    if (!s || total == 0 || total >= steps || ct_config.training_epochs)
        return 0;
    return ct_fail(CT_ECONFIG,
                   "%s: [lr_scheduler] total_steps = %lld ends before the run, which has "
                   "[training] steps = %lld: expected at least as many, or 0",
                   s->source, (long long)total, (long long)steps);
}

static int check_epochs(const struct ct_recipe *recipe)
{
    const struct ct_setting *epochs = ct_recipe_find(recipe, "training", "epochs");
    const struct ct_setting *steps = ct_recipe_find(recipe, "training", "steps");

    if (!ct_config.training_epochs || !steps)
        return 0;
    return ct_fail(CT_ECONFIG,
                   "%s: [training] epochs, and %s: steps, which it takes the place of: take one of "
                   "them out (--unset training.steps)",
                   epochs->source, steps->source);
}

/* ---- folders in the dump folder ---- */

/* The rest of a path behind a folder that it is in, or is; NULL: it is elsewhere. By their names
   alone. */
static const char *rest_of(const char *path, const char *folder)
{
    size_t size;

    for (;; path += size, folder += size) {
        while (!strncmp(path, "./", 2) || *path == '/')
            path += *path == '/' ? 1 : 2;
        while (!strncmp(folder, "./", 2) || *folder == '/')
            folder += *folder == '/' ? 1 : 2;
        if (!*folder || !strcmp(folder, "."))
            return path;
        size = strcspn(folder, "/");
        if (strcspn(path, "/") != size || memcmp(path, folder, size) != 0)
            return NULL;
    }
}

/* A save_to of the file that lies in the file's dump folder goes with it when the command line
   gives another one. Otherwise the run would write to the folder of another. */
static void follow_dump_folder(struct ct_recipe *recipe)
{
    const struct ct_setting *dump = ct_recipe_find(recipe, "job", "dump_folder");
    const char *former;

    if (!dump || !ct_recipe_overrides(recipe, "job", "dump_folder"))
        return;
    former = dump->former ? dump->former
                          : default_of(ct_recipe_section_find("job")->options, "dump_folder");
    for (size_t i = 0; i < recipe->count; i++) {
        struct ct_setting *s = &recipe->settings[i];
        bool same_root = (*s->value == '/') == (*former == '/');
        const char *rest = same_root ? rest_of(s->value, former) : NULL;

        if (strcmp(s->key, "save_to") != 0 || !*s->value || !rest ||
            ct_recipe_overrides(recipe, s->section, s->key))
            continue;
        s->value = ct_arena_printf(recipe->arena, "%s/%s", dump->value, rest);
        s->source = ct_arena_printf(recipe->arena, "%s, in --set job.dump_folder", s->source);
    }
}

int ct_recipe_give(struct ct_recipe *recipe, const char *section, const char *key,
                   const char *value, const char *source)
{
    const char *copy = ct_arena_strdup(recipe->arena, value);
    struct ct_setting *s = ct_recipe_find(recipe, section, key);

    if (!s) {
        ct_recipe_add(recipe, section, key, copy, NULL);
        s = ct_recipe_find(recipe, section, key);
    }
    s->value = copy;
    s->source = ct_arena_strdup(recipe->arena, source);
    recipe->given = ct_arena_grow(recipe->arena, recipe->given, &recipe->given_room,
                                  recipe->given_count + 1, sizeof(*recipe->given));
    recipe->given[recipe->given_count++] = *s;
    ct_recipe_note_given(section, key, copy);
    return apply_setting(recipe, s);
}

bool ct_recipe_given(const struct ct_recipe *recipe, const char *section, const char *key)
{
    for (size_t i = 0; recipe && i < recipe->given_count; i++)
        if (!strcmp(recipe->given[i].section, section) && !strcmp(recipe->given[i].key, key))
            return true;
    return false;
}

int ct_recipe_apply(struct ct_recipe *recipe)
{
    struct ct_recipe_target target;
    int rc = ct_recipe_check_values(recipe);

    if (rc == 0)
        rc = ct_recipe_find_sets(recipe);
    if (rc == 0)
        rc = load_plugins(recipe);
    follow_dump_folder(recipe);

    for (size_t i = 0; rc == 0 && ct_recipe_target_at(i, &target); i++)
        if (target.options)
            rc = ct_options_reset(target.options, target.config);
    for (size_t i = 0; rc == 0 && i < recipe->section_count; i++) {
        const struct ct_setting *s = &recipe->sections[i];

        if (strcmp(s->section, "plugins") && !ct_recipe_is_stage(s->section) &&
            !ct_recipe_target_find(s->section, &target))
            rc = unknown_section(recipe, s->section, s->source);
    }
    for (size_t i = 0; rc == 0 && i < recipe->count; i++)
        rc = apply_setting(recipe, &recipe->settings[i]);
    for (size_t i = 0; rc == 0 && ct_recipe_target_at(i, &target); i++)
        rc = check_set(recipe, &target);
    if (rc == 0)
        rc = check_batch(recipe);
    if (rc == 0)
        rc = check_epochs(recipe);
    if (rc == 0)
        rc = check_schedule(recipe);
    if (rc == 0)
        rc = ct_context(ct_recipe_check_use(), "%s", recipe->path);
    return rc == 0 ? ct_recipe_find_stages(recipe) : rc;
}
