/*
 * Recipes: INI manifests.
 *
 *     [plugins]
 *     load = cpu, llama, tokens,
 *            adamw, metrics
 *     [training]
 *     steps = 100
 *
 * Read strictly: an unknown or repeated section or key, a bad value, a line over 4,000 characters
 * are errors that name file and line, what was expected and the nearest valid name. A line that
 * begins with white space continues the value before it. ';' and '#' begin comments, at the
 * beginning of a line or after white space. Keys are looked up in the option tables of the core and
 * of the loaded plugins. Every value remembers its source: built-in default, file:line, or the
 * command line; the resolved recipe that each run saves shows it.
 */
#ifndef CT_RECIPE_H
#define CT_RECIPE_H

#include <stdio.h>

#include <ctitan/arena.h>
#include <ctitan/option.h>

CT_BEGIN_DECLS

struct ct_setting {
    const char *section, *key, *value;
    const char *source; /* "recipe.ini:12", "--set" */
};

struct ct_recipe {
    struct ct_arena *arena;
    const char *path;
    struct ct_setting *settings;
    size_t count, room;
    struct ct_setting *sections; /* as they were opened; key and value are NULL */
    size_t section_count, section_room;
    const char **plugins; /* names to load, in order, --with and --without applied */
    const char **plugin_sources;
    size_t plugin_count, plugin_room;
};

/* Read the file. CT_ECONFIG with "path:line: ..."; CT_ENOENT. */
CT_API int ct_recipe_read(struct ct_arena *arena, const char *path, struct ct_recipe **recipe);
/* The same from text; path is used in messages. */
CT_API int ct_recipe_parse(struct ct_arena *arena, const char *path, const char *text,
                           struct ct_recipe **recipe);

/* "section.key=value" from the command line; replaces what the file says. */
CT_API int ct_recipe_set(struct ct_recipe *recipe, const char *assignment);
CT_API int ct_recipe_with(struct ct_recipe *recipe, const char *plugin);
/* Drops the plugin and its section. CT_ECONFIG if it is not in the list. */
CT_API int ct_recipe_without(struct ct_recipe *recipe, const char *plugin);

/* The value of a key, or NULL: for the few that are needed before plugins are loaded. */
CT_API const char *ct_recipe_get(const struct ct_recipe *recipe, const char *section,
                                 const char *key);

/*
 * Load the plugins listed, then fill the core's and every plugin's config: defaults first, then the
 * recipe's values. All faults of exit status 2 are found here, before anything runs. May be called
 * once per process.
 */
CT_API int ct_recipe_apply(struct ct_recipe *recipe);

/* The resolved recipe: every option of every section, with its source as a comment. Reads back. */
CT_API void ct_recipe_print_resolved(const struct ct_recipe *recipe, FILE *out);
/* The same into a file, complete or absent. */
CT_API int ct_recipe_save(const struct ct_recipe *recipe, const char *path);

/* The sections that the core itself reads, filled by ct_recipe_apply. */
struct ct_job_config {
    const char *name, *dump_folder, *description;
};
struct ct_training_config {
    int64_t seq_len, local_batch_size, global_batch_size, steps, seed;
    double max_norm;
    const char *dtype, *mixed_precision_param, *mixed_precision_reduce;
    const char *non_finite; /* stop, skip */
};
struct ct_model_config {
    const char *name, *flavor, *init_from, *save_to;
};
enum ct_decay { CT_DECAY_LINEAR, CT_DECAY_SQRT, CT_DECAY_COSINE };
struct ct_lr_config {
    int64_t warmup_steps;
    double decay_ratio; /* negative: not set */
    enum ct_decay decay_type;
    double min_lr_factor;
};
struct ct_validation_config {
    int64_t freq, steps;
};
struct ct_comm_config {
    double timeout; /* seconds */
};
struct ct_config {
    struct ct_job_config job;
    struct ct_training_config training;
    struct ct_model_config model;
    struct ct_lr_config lr_scheduler;
    struct ct_validation_config validation;
    struct ct_comm_config comm;
};
CT_API extern struct ct_config ct_config;

/* The core's sections and their option tables, for `ctitan help`; NULL section after the last. */
struct ct_recipe_section {
    const char *name, *summary;
    const struct ct_option *options;
    void *config;
};
CT_API const struct ct_recipe_section *ct_recipe_section_at(size_t index);

CT_END_DECLS

#endif
