/*
 * From a recipe's settings to filled configurations: the core's sections, the list of plugins, and
 * the plugins' sections.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>

#include "plugin/recipe_internal.h"

struct ct_config ct_config;

static const struct ct_option job_options[] = {
    CT_OPT_STRING(struct ct_job_config, name, "name", "", "Name of the run, for people"),
    CT_OPT_STRING(struct ct_job_config, dump_folder, "dump_folder", "./outputs",
                  "Folder for everything that the run writes"),
    CT_OPT_STRING(struct ct_job_config, description, "description", "", "What the run is for"),
    {0}};

static const struct ct_option training_options[] = {
    CT_OPT_INT(struct ct_training_config, seq_len, "seq_len", "2048", 1, 1 << 30,
               "Tokens in a sequence"),
    CT_OPT_INT(struct ct_training_config, local_batch_size, "local_batch_size", "8", 1, 1 << 30,
               "Sequences per data-parallel rank and accumulation step"),
    CT_OPT_INT(struct ct_training_config, global_batch_size, "global_batch_size", "-1", -1, 1 << 30,
               "Sequences in a step; -1: local_batch_size times the data-parallel degree"),
    CT_OPT_INT(struct ct_training_config, steps, "steps", "10000", 1, 1e15,
               "Steps to train for, unless the data ends before"),
    CT_OPT_INT(struct ct_training_config, seed, "seed", "0", 0, 9e15,
               "Seed of the initial weights and of the order of the data"),
    CT_OPT_FLOAT(struct ct_training_config, max_norm, "max_norm", "1.0", 0, INFINITY,
                 "Gradients are scaled down to this norm; 0: never"),
    CT_OPT_CHOICE(struct ct_training_config, dtype, "dtype", "float32", "float32|bfloat16",
                  "Type of weights, gradients and optimizer state"),
    CT_OPT_CHOICE(struct ct_training_config, mixed_precision_param, "mixed_precision_param",
                  "bfloat16", "float32|bfloat16",
                  "Type that float32 weights are used in, forward and backward"),
    CT_OPT_CHOICE(struct ct_training_config, mixed_precision_reduce, "mixed_precision_reduce",
                  "float32", "float32", "Type that gradients are summed in"),
    CT_OPT_CHOICE(struct ct_training_config, non_finite, "non_finite", "stop", "stop|skip",
                  "What a non-finite loss or gradient norm does: end the run, or skip the update"),
    {0}};

static const struct ct_option model_options[] = {
    CT_OPT_STRING(struct ct_model_config, name, "name", NULL, "The model, as its plugin is called"),
    CT_OPT_STRING(struct ct_model_config, flavor, "flavor", "debug", "Its size, by name"),
    CT_OPT_STRING(struct ct_model_config, init_from, "init_from", "",
                  "Hugging Face folder to take shape and weights from; overrides flavor"),
    CT_OPT_STRING(struct ct_model_config, save_to, "save_to", "",
                  "Folder to write the trained weights to, as init_from reads them"),
    {0}};

static const struct ct_option lr_options[] = {
    CT_OPT_INT(struct ct_lr_config, warmup_steps, "warmup_steps", "200", 0, 1e15,
               "Steps of linear warm-up"),
    CT_OPT_FLOAT(struct ct_lr_config, decay_ratio, "decay_ratio", "-1", -1, 1,
                 "Share of the steps that decays; negative: all after the warm-up"),
    CT_OPT_ENUM(struct ct_lr_config, decay_type, "decay_type", "linear", "linear|sqrt|cosine",
                "Shape of the decay"),
    CT_OPT_FLOAT(struct ct_lr_config, min_lr_factor, "min_lr_factor", "0", 0, 1,
                 "Learning rate at the end, as a share of the peak"),
    {0}};

static const struct ct_option comm_options[] = {
    CT_OPT_FLOAT(struct ct_comm_config, timeout, "timeout", "300", 0.1, 1e6,
                 "Seconds that a rank waits in any call before it names those who are missing"),
    {0}};

static const struct ct_option validation_options[] = {
    CT_OPT_INT(struct ct_validation_config, freq, "freq", "0", 0, 1e15,
               "Validate every so many steps; 0: never"),
    CT_OPT_INT(struct ct_validation_config, steps, "steps", "10", 1, 1e15,
               "Batches in one validation"),
    {0}};

static const struct ct_recipe_section sections[] = {
    {"job", "The run as a whole", job_options, &ct_config.job},
    {"training", "Batch, length, precision", training_options, &ct_config.training},
    {"model", "What is trained", model_options, &ct_config.model},
    {"lr_scheduler", "Learning rate over the steps: warm-up, stable, decay", lr_options,
     &ct_config.lr_scheduler},
    {"validation", "Loss on held-out data", validation_options, &ct_config.validation},
    {"comm", "Communication between ranks", comm_options, &ct_config.comm},
    {NULL, NULL, NULL, NULL}};

const struct ct_recipe_section *ct_recipe_section_at(size_t index)
{
    return &sections[index < CT_COUNT(sections) ? index : CT_COUNT(sections) - 1];
}

/* ---- settings ---- */

void ct_recipe_add_section(struct ct_recipe *recipe, const char *name, const char *source)
{
    recipe->sections = ct_arena_grow(recipe->arena, recipe->sections, &recipe->section_room,
                                     recipe->section_count + 1, sizeof(*recipe->sections));
    recipe->sections[recipe->section_count++] = (struct ct_setting){name, NULL, NULL, source};
}

void ct_recipe_add(struct ct_recipe *recipe, const char *section, const char *key,
                   const char *value, const char *source)
{
    recipe->settings = ct_arena_grow(recipe->arena, recipe->settings, &recipe->room,
                                     recipe->count + 1, sizeof(*recipe->settings));
    recipe->settings[recipe->count++] =
        (struct ct_setting){ct_arena_strdup(recipe->arena, section),
                            ct_arena_strdup(recipe->arena, key), value, source};
}

const struct ct_setting *ct_recipe_section(const struct ct_recipe *recipe, const char *name)
{
    for (size_t i = 0; i < recipe->section_count; i++)
        if (!strcmp(recipe->sections[i].section, name))
            return &recipe->sections[i];
    return NULL;
}

struct ct_setting *ct_recipe_find(const struct ct_recipe *recipe, const char *section,
                                  const char *key)
{
    for (size_t i = 0; i < recipe->count; i++)
        if (!strcmp(recipe->settings[i].section, section) && !strcmp(recipe->settings[i].key, key))
            return &recipe->settings[i];
    return NULL;
}

const char *ct_recipe_get(const struct ct_recipe *recipe, const char *section, const char *key)
{
    const struct ct_setting *setting = ct_recipe_find(recipe, section, key);

    return setting ? setting->value : NULL;
}

int ct_recipe_set(struct ct_recipe *recipe, const char *assignment)
{
    size_t section = strcspn(assignment, ".="), key;
    struct ct_arena *arena = recipe->arena;
    struct ct_setting *old;
    const char *name, *value;
    char *copy;

    if (assignment[section] != '.')
        return ct_fail(CT_ECONFIG, "--set %.80s: expected section.key=value", assignment);
    key = strcspn(assignment + section + 1, "=");
    if (!section || !key || !assignment[section + 1 + key])
        return ct_fail(CT_ECONFIG, "--set %.80s: expected section.key=value", assignment);
    value = assignment + section + key + 2;
    if (strlen(assignment) > 3900 || strpbrk(value, "\n\r") || strstr(value, " ;") ||
        strstr(value, " #") || *value == ';' || *value == '#')
        return ct_fail(CT_ECONFIG,
                       "--set %.80s: a value has one line of at most 3900 characters, and no "
                       "comment",
                       assignment);
    copy = ct_arena_strdup(arena, assignment);
    copy[section] = copy[section + 1 + key] = '\0';
    name = copy + section + 1;
    value = copy + section + key + 2;
    old = ct_recipe_find(recipe, copy, name);
    if (old) {
        old->value = value;
        old->source = "--set";
    } else {
        ct_recipe_add(recipe, copy, name, value, "--set");
    }
    if (!strcmp(copy, "plugins"))
        return ct_recipe_list_plugins(recipe);
    return 0;
}

/* ---- plugins ---- */

static size_t plugin_index(const struct ct_recipe *recipe, const char *plugin)
{
    size_t i = 0;

    while (i < recipe->plugin_count && strcmp(recipe->plugins[i], plugin))
        i++;
    return i;
}

static void add_plugin(struct ct_recipe *recipe, const char *plugin, const char *source)
{
    size_t room = recipe->plugin_room;

    recipe->plugins = ct_arena_grow(recipe->arena, recipe->plugins, &recipe->plugin_room,
                                    recipe->plugin_count + 1, sizeof(*recipe->plugins));
    recipe->plugin_sources = ct_arena_grow(recipe->arena, recipe->plugin_sources, &room,
                                           recipe->plugin_count + 1, sizeof(*recipe->plugins));
    recipe->plugins[recipe->plugin_count] = plugin;
    recipe->plugin_sources[recipe->plugin_count++] = source;
}

int ct_recipe_with(struct ct_recipe *recipe, const char *plugin)
{
    if (!*plugin)
        return ct_fail(CT_ECONFIG, "--with: expected the name of a plugin");
    if (plugin_index(recipe, plugin) == recipe->plugin_count)
        add_plugin(recipe, ct_arena_strdup(recipe->arena, plugin), "--with");
    return 0;
}

static void drop_section(struct ct_recipe *recipe, const char *section)
{
    size_t kept = 0;

    for (size_t i = 0; i < recipe->count; i++)
        if (strcmp(recipe->settings[i].section, section))
            recipe->settings[kept++] = recipe->settings[i];
    recipe->count = kept;
    kept = 0;
    for (size_t i = 0; i < recipe->section_count; i++)
        if (strcmp(recipe->sections[i].section, section))
            recipe->sections[kept++] = recipe->sections[i];
    recipe->section_count = kept;
}

int ct_recipe_without(struct ct_recipe *recipe, const char *plugin)
{
    size_t at = plugin_index(recipe, plugin);

    if (at == recipe->plugin_count) {
        const char *near = ct_nearest(plugin, recipe->plugins, recipe->plugin_count);

        return ct_fail(CT_ECONFIG, "--without %s: the recipe does not load it%s%s%s", plugin,
                       near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    for (size_t i = at + 1; i < recipe->plugin_count; i++) {
        recipe->plugins[i - 1] = recipe->plugins[i];
        recipe->plugin_sources[i - 1] = recipe->plugin_sources[i];
    }
    recipe->plugin_count--;
    drop_section(recipe, plugin);
    return 0;
}

int ct_recipe_list_plugins(struct ct_recipe *recipe)
{
    const struct ct_setting *load = ct_recipe_find(recipe, "plugins", "load");
    char *rest;

    recipe->plugin_count = 0;
    if (!load || !*load->value)
        return 0;
    rest = ct_arena_strdup(recipe->arena, load->value);
    while (rest) {
        char *name = strsep(&rest, ",");
        size_t length = strlen(name += strspn(name, " \t"));

        while (length && strchr(" \t", name[length - 1]))
            name[--length] = '\0';
        if (!length)
            return ct_fail(CT_ECONFIG, "%s: load: expected a plugin's name %s a comma",
                           load->source, rest ? "before" : "after");
        if (strpbrk(name, " \t"))
            return ct_fail(CT_ECONFIG, "%s: load: expected a comma in '%s'", load->source, name);
        if (plugin_index(recipe, name) < recipe->plugin_count)
            return ct_fail(CT_ECONFIG, "%s: load: %s is there twice", load->source, name);
        add_plugin(recipe, name, load->source);
    }
    return 0;
}

/* ---- applying ---- */

static bool is_core_section(const char *name)
{
    for (const struct ct_recipe_section *s = sections; s->name; s++)
        if (!strcmp(s->name, name))
            return true;
    return !strcmp(name, "plugins");
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

static const char *default_of(const struct ct_plugin *plugin, const char *key)
{
    for (const struct ct_option *o = plugin->options; o && o->name; o++)
        if (!strcmp(o->name, key))
            return o->fallback ? o->fallback : "";
    return "";
}

static bool is_loaded(const char *name)
{
    const struct ct_plugin *plugin;

    for (size_t i = 0; (plugin = ct_plugin_at(i)); i++)
        if (!strcmp(plugin->name, name))
            return true;
    return false;
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
    const char *name = s ? s->value : default_of(by, by->brings);
    const char *source =
        s ? s->source : ct_arena_printf(recipe->arena, "[%s] %s", by->name, by->brings);
    int rc = 0;

    if (!*name)
        return 0;
    if (!is_loaded(name))
        rc = load_plugin(name, source);
    if (rc == 0 && by->brings_kind && !has_offer(name, by->brings_kind))
        rc = ct_fail(CT_ECONFIG, "%s: [%s] %s = %s: plugin %s offers no %s", source, by->name,
                     by->brings, name, name, ct_kind_name(by->brings_kind));
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
    if (rc < 0)
        return rc;
    rc = ct_plugin_check_all();
    return rc < 0 ? ct_context(rc, "%s", recipe->path) : 0;
}

/* A table of options and the destination of its values: a section of the core or of a plugin. */
struct target {
    const char *name;
    const struct ct_option *options;
    void *config;
};

static bool target_at(size_t index, struct target *target)
{
    size_t cores = CT_COUNT(sections) - 1;
    const struct ct_plugin *p;

    if (index < cores) {
        *target =
            (struct target){sections[index].name, sections[index].options, sections[index].config};
        return true;
    }
    p = ct_plugin_at(index - cores);
    if (p)
        *target = (struct target){p->name, p->options, p->config};
    return p;
}

static int unknown_section(const struct ct_recipe *recipe, const char *name, const char *source)
{
    struct ct_arena scratch = {0};
    const char **available, **names = NULL, *near;
    size_t count = ct_plugin_names(&scratch, &available), known = 0, room = 0;
    struct target target;

    for (size_t i = 0; i < count; i++)
        if (!strcmp(available[i], name)) {
            ct_arena_finish(&scratch);
            return ct_fail(CT_ECONFIG,
                           "%s: section [%s], but plugin %s is not loaded: add it to [plugins] "
                           "load, or drop the section",
                           source, name, name);
        }
    for (; target_at(known, &target); known++) {
        names = ct_arena_grow(&scratch, names, &room, known + 2, sizeof(*names));
        names[known] = target.name;
    }
    names[known++] = "plugins";
    near = ct_nearest(name, names, known);
    ct_fail(CT_ECONFIG,
            "%s: no section [%s]%s%s%s: the core has none of that name, nor has any plugin that %s "
            "loads",
            source, name, near ? "; did you mean [" : "", near ? near : "", near ? "]?" : "",
            recipe->path);
    ct_arena_finish(&scratch);
    return CT_ECONFIG;
}

static bool target_find(const char *name, struct target *target)
{
    for (size_t i = 0; target_at(i, target); i++)
        if (!strcmp(target->name, name))
            return true;
    return false;
}

static int apply_setting(const struct ct_recipe *recipe, const struct ct_setting *s)
{
    struct target target;
    char where[PATH_MAX + 128];

    if (!strcmp(s->section, "plugins")) {
        if (strcmp(s->key, "load"))
            return ct_fail(CT_ECONFIG, "%s: [plugins] has one key, load, and not %s", s->source,
                           s->key);
        return 0;
    }
    if (!target_find(s->section, &target))
        return unknown_section(recipe, s->section, s->source);
    if (!target.options)
        return ct_fail(CT_ECONFIG, "%s: plugin %s has no options", s->source, s->section);
    snprintf(where, sizeof(where), "%s: [%s]", s->source, s->section);
    return ct_options_set(target.options, target.config, s->key, s->value, where);
}

/* Options without a default must be set by the user. */
static int check_set(const struct ct_recipe *recipe, const struct target *target)
{
    for (const struct ct_option *o = target->options; o && o->name; o++)
        if (!o->fallback && !ct_recipe_find(recipe, target->name, o->name))
            return ct_fail(CT_ECONFIG, "%s: [%s] %s must be set (%s)", recipe->path, target->name,
                           o->name, o->doc);
    return 0;
}

int ct_recipe_apply(struct ct_recipe *recipe)
{
    struct target target;
    int rc = load_plugins(recipe);

    for (size_t i = 0; rc == 0 && target_at(i, &target); i++)
        if (target.options)
            rc = ct_options_reset(target.options, target.config);
    for (size_t i = 0; rc == 0 && i < recipe->section_count; i++) {
        const struct ct_setting *s = &recipe->sections[i];

        if (strcmp(s->section, "plugins") && !target_find(s->section, &target))
            rc = unknown_section(recipe, s->section, s->source);
    }
    for (size_t i = 0; rc == 0 && i < recipe->count; i++)
        rc = apply_setting(recipe, &recipe->settings[i]);
    for (size_t i = 0; rc == 0 && target_at(i, &target); i++)
        rc = check_set(recipe, &target);
    return rc;
}
