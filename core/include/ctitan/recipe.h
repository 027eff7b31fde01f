/*
 * Recipes: INI manifests.
 *
 *     [plugins]
 *     load = cpu, llama, tokens,
 *            adamw, metrics
 *     [training]
 *     steps = 100
 *
 * Parsing is strict: an unknown or repeated section or key, a bad value, or a line over 4,000
 * characters is an error. The message names the file, the line, what was expected and the nearest
 * valid name. A line that begins with white space continues the previous value, and is refused if
 * it reads as a setting or a section ("key =", "key:", "[section]"). ';' and '#' begin comments, at
 * the beginning of a line or after white space; in a value they stand in quotes, "/data/set #1",
 * around the whole value, where a quote itself is written twice. Other values have no quotes. Keys
 * are looked up in the option tables of the core and of the loaded plugins. Every value records its
 * source: built-in default, file:line, or the command line. The resolved recipe that each run saves
 * shows the sources.
 */
#ifndef CT_RECIPE_H
#define CT_RECIPE_H

#include <stdio.h>

#include <ctitan/arena.h>
#include <ctitan/config.h>
#include <ctitan/option.h>

CT_BEGIN_DECLS

struct ct_setting {
    const char *section, *key, *value;
    const char *source; /* "recipe.ini:12", "--set" */
    const char *former; /* the file's value, where the command line has replaced it; or NULL */
    bool was_default;   /* in the run that recorded the recipe: left out if the option is gone */
};

struct ct_recipe {
    struct ct_arena *arena;
    const char *path;
    struct ct_setting *settings;
    size_t count, room;
    struct ct_setting *sections; /* in order of appearance; key and value are NULL */
    size_t section_count, section_room;
    const char **plugins; /* names to load, in order, after --with and --without */
    const char **plugin_sources;
    size_t plugin_count, plugin_room;
    struct ct_setting *given; /* by ct_recipe_give: sections and keys */
    size_t given_count, given_room;
};

#define CT_RECIPE_FILE ((size_t)256 << 10) /* most bytes of a recipe */

/* Read the file. CT_ECONFIG with "path:line: ..."; CT_ENOENT. */
CT_API int ct_recipe_read(struct ct_arena *arena, const char *path, struct ct_recipe **recipe);
/* The same from text; path appears in messages. */
CT_API int ct_recipe_parse(struct ct_arena *arena, const char *path, const char *text,
                           struct ct_recipe **recipe);

/* A value as a recipe, or ct_recipe_set, takes it: in quotes, in arena, where it would otherwise
   have a comment; or else itself. */
CT_API const char *ct_recipe_quote(struct ct_arena *arena, const char *value);
/* "name=value" for ct_recipe_set and --set, in arena, with the value so quoted. name:
   "section.key". */
CT_API const char *ct_recipe_assign(struct ct_arena *arena, const char *name, const char *value);

/* "[training] or [validation]", in arena: the sections of the core that have the key, or else those
   of plugins in the folders; NULL: there are none. */
CT_API const char *ct_recipe_sections_of(struct ct_arena *arena, const char *key);

/* Apply "section.key=value" from the command line; it overrides the file. */
CT_API int ct_recipe_set(struct ct_recipe *recipe, const char *assignment);
/* Add plugins, "a" or "a,b", to [plugins] load unless they are listed. CT_ECONFIG: a name is
   empty. */
CT_API int ct_recipe_with(struct ct_recipe *recipe, const char *plugins);
/* Whether the plugin is in the list, by its name or its file. */
CT_API bool ct_recipe_loads(const struct ct_recipe *recipe, const char *plugin);
/* Drop plugins, "a" or "a,b", and their sections. CT_ECONFIG: one is not in the list. */
CT_API int ct_recipe_without(struct ct_recipe *recipe, const char *plugins);
/* Leave out a key, "section.key", or all keys of a section. CT_ECONFIG: the recipe does not set
   it. */
CT_API int ct_recipe_unset(struct ct_recipe *recipe, const char *name);

/* Changes to a recipe in the order of a command line. */
struct ct_recipe_change {
    const char *option, *value; /* "--with", "fsdp" */
};
struct ct_recipe_changes {
    struct ct_recipe_change *at;
    size_t count, room;
};
/* Rows of a table of struct ct_argument (verb.h). f: a struct ct_recipe_changes. */
#define CT_ARG_CHANGES(T, f)                                                                       \
    CT_ARG_TAKE(T, f, "set", 0, "SECTION.KEY=VALUE", "Set an option of the recipe",                \
                ct_recipe_take_change),                                                            \
        CT_ARG_TAKE(T, f, "unset", 0, "SECTION.KEY", "Leave out an option that the recipe sets",   \
                    ct_recipe_take_change),                                                        \
        CT_ARG_TAKE(T, f, "with", 0, "PLUGIN", "Load a plugin that the recipe does not list",      \
                    ct_recipe_take_change),                                                        \
        CT_ARG_TAKE(T, f, "without", 0, "PLUGIN",                                                  \
                    "Leave out a plugin of the recipe, and its section", ct_recipe_take_change)
/* Add a change. at: the struct ct_recipe_changes; option: "--set", "--unset", "--with" or
   "--without". */
CT_API int ct_recipe_take_change(void *at, struct ct_arena *arena, const char *option,
                                 const char *value);
/* For an argument that a verb with --set does not have: CT_ECONFIG with words about what
   to write instead of "--lr 1e-3" or "training.steps=3"; 0: there are none. next: the argument
   after it, or NULL. */
CT_API int ct_recipe_hint_argument(const char *verb, const char *word, const char *next);
/* Make the changes: first --set plugins.load, then those of plugins, then other options. */
CT_API int ct_recipe_change(struct ct_recipe *recipe, const struct ct_recipe_changes *changes);

/* The value of a key, or NULL. For the few keys that are needed before plugins are loaded. */
CT_API const char *ct_recipe_get(const struct ct_recipe *recipe, const char *section,
                                 const char *key);

/* Where the key was set: "recipe.ini:12", or "--set". NULL: it has its default, or recipe is
   NULL, as in a run without one. */
CT_API const char *ct_recipe_source(const struct ct_recipe *recipe, const char *section,
                                    const char *key);
/* Whether the command line set it. */
CT_API bool ct_recipe_overrides(const struct ct_recipe *recipe, const char *section,
                                const char *key);

/* Put the source of the setting that this thread's failure names, as "[section] key", before the
   message; rc says what kind of failure it is, and is returned. recipe may be NULL. */
CT_API int ct_recipe_locate(const struct ct_recipe *recipe, int rc);

/*
 * Load the listed plugins, then fill the core's and every plugin's config: first the defaults, then
 * the recipe's values. Every error that leads to exit status 2 is found here, before anything runs.
 * May be called once per process.
 */
CT_API int ct_recipe_apply(struct ct_recipe *recipe);

/*
 * For hooks on RUN_OPEN: set an option that the recipe leaves open, after it was applied. source
 * says where the value is from; both texts are copied. CT_ECONFIG: as a user's value.
 */
CT_API int ct_recipe_give(struct ct_recipe *recipe, const char *section, const char *key,
                          const char *value, const char *source);
/* Whether ct_recipe_give set it. recipe may be NULL. */
CT_API bool ct_recipe_given(const struct ct_recipe *recipe, const char *section, const char *key);

/* Print every option of every section, with its source as a comment. Parses back as a recipe. */
CT_API void ct_recipe_print_resolved(const struct ct_recipe *recipe, FILE *out);
/* Write the same to a file, which is complete or absent. */
CT_API int ct_recipe_save(const struct ct_recipe *recipe, const char *path);

typedef void ct_recipe_difference(const char *section, const char *key, const char *before,
                                  const char *now, void *context);
/* Call tell for every plugin (section "plugins") that one of two resolved recipes lacks, and for
   every option of both whose values differ. path names the former one in failures. CT_ECONFIG: a
   text is no recipe. */
CT_API int ct_recipe_differences(const char *path, const char *before, const char *now,
                                 ct_recipe_difference *tell, void *context);

struct ct_run;
/*
 * Check that all ranks run the same; ct_run_open does, as soon as they can talk. Collective.
 * CT_ECONFIG on all ranks if the plugins, options, tokenizer or data of one differ from rank 0's;
 * the message has the plugins that either lacks, or else the first difference. files: more lines,
 * as ct_run_compare takes them; NULL: none.
 */
CT_API int ct_recipe_compare(struct ct_run *run, const char *files);
/* The plugins and options of it: lines "plugin NAME VERSION" and "[SECTION] NAME = VALUE". To be
   freed; NULL: no memory. */
CT_API char *ct_recipe_setup(struct ct_arena *arena);
/* Write the plugins of another such text that `setup` lacks, "tp, ckpt". Returns their number. */
CT_API int ct_recipe_lacks(const char *setup, const char *other, char *text, size_t room);

/* The i-th section that every recipe has, in struct ct_config; name NULL after the last. */
struct ct_recipe_section {
    const char *name, *summary;
    const struct ct_option *options;
    void *config;
};
/* Section number index; its `name` is NULL after the last. */
CT_API const struct ct_recipe_section *ct_recipe_section_at(size_t index);
/* The section called name; NULL: there is none. */
CT_API const struct ct_recipe_section *ct_recipe_section_find(const char *name);

CT_END_DECLS

#endif
