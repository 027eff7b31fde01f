/*
 * The recipe that a user names. A folder may be in its place: that of a run, which has its recipe,
 * or that of a Hugging Face model, for which a recipe is made.
 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/hf_recipe.h>
#include <ctitan/lib/json.h>
#include <ctitan/model.h>
#include <ctitan/option.h>
#include <ctitan/plugins.h>

#define POSITIONS 2048 /* of a context, at most, unless the command line says more */

static bool exists(struct ct_arena *arena, const char *folder, const char *name)
{
    return !access(ct_arena_printf(arena, "%s/%s", folder, name), R_OK);
}

/* The run's files are those of this folder, wherever it was when it was written. */
static int read_run(struct ct_arena *arena, const char *folder, struct ct_recipe **recipe)
{
    const char *named;
    int rc = ct_recipe_read(arena, ct_arena_printf(arena, "%s/recipe.ini", folder), recipe);

    if (rc < 0)
        return rc;
    named = ct_recipe_get(*recipe, "job", "dump_folder");
    if (named && ct_file_is_same(named, folder))
        return 0;
    return ct_recipe_set(*recipe, ct_recipe_assign(arena, "job.dump_folder", folder));
}

/* The plugin for the model of a config.json. */
static int choose_model(struct ct_arena *arena, const char *path, const json_t *config,
                        const char **name)
{
    const char *type = ct_hf_model_type(config);
    char plugin[64];
    int rc = type ? ct_hf_plugin(type, plugin, sizeof(plugin))
                  : ct_fail(CT_ECONFIG, "model_type is missing");

    if (rc < 0)
        return ct_context(rc, "%s", path);
    *name = ct_arena_strdup(arena, plugin);
    return 0;
}

/* The value of a key in config.json, or in its part for text. */
static const json_t *said(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);

    return value ? value : json_object_get(json_object_get(config, "text_config"), key);
}

static json_int_t positions_of(const json_t *config)
{
    const json_t *n = said(config, "max_position_embeddings");
    json_int_t most;

    if (!n)
        n = said(config, "n_positions");
    most = json_integer_value(n);
    return most > 0 && most < POSITIONS ? most : POSITIONS;
}

static bool is_wide(const json_t *config)
{
    const char *dtype = json_string_value(said(config, "dtype"));

    if (!dtype)
        dtype = json_string_value(said(config, "torch_dtype"));
    return !dtype || !strcmp(dtype, "float32");
}

static int read_model(struct ct_arena *arena, const char *folder, struct ct_recipe **recipe)
{
    const char *path = ct_arena_printf(arena, "%s/config.json", folder), *name = NULL;
    const char *tokenizer = ct_hf_tokenizer(arena, folder);
    json_t *config = NULL;
    int rc = ct_hf_read_root(folder, &config);

    if (rc == 0)
        rc = choose_model(arena, path, config, &name);
    if (rc == 0)
        rc = ct_recipe_parse(
            arena, folder,
            ct_arena_printf(arena,
                            "[plugins]\nload = cpu, %s%s%s\n[model]\nname = %s\n"
                            "init_from = %s\n[training]\nseq_len = %lld\n"
                            "mixed_precision_param = %s\n",
                            name, tokenizer ? ", " : "", tokenizer ? tokenizer : "", name,
                            ct_recipe_quote(arena, folder), (long long)positions_of(config),
                            is_wide(config) ? "float32" : "bfloat16"),
            recipe);
    json_decref(config);
    return rc;
}

/* There is no file of this name; another one beside it may be meant. */
static int nearest_file(struct ct_arena *arena, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *near;
    const char *folder = slash ? ct_arena_printf(arena, "%.*s/", (int)(slash - path), path) : "";
    const char *names[256];
    size_t count = 0;
    struct dirent *entry;
    DIR *dir = opendir(*folder ? folder : ".");

    while (dir && (entry = readdir(dir)) && count < CT_COUNT(names))
        if (*entry->d_name != '.')
            names[count++] = ct_arena_strdup(arena, entry->d_name);
    if (dir)
        closedir(dir);
    near = ct_nearest(name, names, count);
    return near ? ct_fail(CT_ENOENT, "%s: No such file or directory; did you mean %s%s?", path,
                          folder, near)
                : CT_ENOENT;
}

static int read_path(struct ct_arena *arena, const char *path, struct ct_recipe **recipe)
{
    struct stat s;
    int rc;

    if (stat(path, &s) < 0 || !S_ISDIR(s.st_mode)) {
        rc = ct_recipe_read(arena, path, recipe);
        return rc == CT_ENOENT ? nearest_file(arena, path) : rc;
    }
    if (exists(arena, path, "recipe.ini"))
        return read_run(arena, path, recipe);
    if (exists(arena, path, "config.json"))
        return read_model(arena, path, recipe);
    return ct_fail(CT_ECONFIG,
                   "%s is a folder, but neither of a run, with a recipe.ini, nor of a model, with "
                   "a config.json",
                   path);
}

/* Whether a plugin of the recipe offers this kind, and `has` of it, unless that is NULL. A plugin
   that cannot be described is refused when it is loaded. */
static bool loads(const struct ct_recipe *recipe, enum ct_kind kind, bool (*has)(const void *ops))
{
    const struct ct_plugin *plugin;

    for (size_t i = 0; i < recipe->plugin_count; i++) {
        if (ct_plugin_describe(recipe->plugins[i], &plugin) < 0)
            continue;
        for (const struct ct_offer *o = plugin->offers; o && o->kind != CT_NOTHING; o++)
            if (o->kind == kind && (!has || has(o->ops)))
                return true;
    }
    return false;
}

/* The model that config.json in [model] init_from is of, where the recipe lists none. */
static int add_model(struct ct_arena *arena, struct ct_recipe *recipe)
{
    const char *folder = ct_recipe_get(recipe, "model", "init_from"), *path, *name = NULL;
    json_t *config;
    int rc;

    if (!folder || !*folder || loads(recipe, CT_MODEL, NULL))
        return 0;
    path = ct_arena_printf(arena, "%s/config.json", folder);
    rc = ct_hf_read_root(folder, &config);
    if (rc == 0) {
        rc = choose_model(arena, path, config, &name);
        json_decref(config);
    }
    if (rc < 0)
        return ct_context(CT_ECONFIG, "%s: [model] init_from",
                          ct_recipe_source(recipe, "model", "init_from"));
    return ct_recipe_with(recipe, name);
}

static bool tokenizes(const void *data)
{
    return ((const struct ct_data_ops *)data)->tokenizes;
}

/* The tokenizer of [model] init_from, where the data needs one and the recipe lists none. */
static int add_tokenizer(struct ct_arena *arena, struct ct_recipe *recipe)
{
    const char *folder = ct_recipe_get(recipe, "model", "init_from"), *name;

    if (!folder || !*folder || loads(recipe, CT_TOKENIZER, NULL) ||
        !loads(recipe, CT_DATA, tokenizes))
        return 0;
    name = ct_hf_tokenizer(arena, folder);
    return name ? ct_recipe_with(recipe, name) : 0;
}

int ct_hf_recipe(struct ct_arena *arena, const char *path, const struct ct_recipe_changes *changes,
                 struct ct_recipe **recipe)
{
    int rc = read_path(arena, path, recipe);

    if (rc == 0)
        rc = ct_recipe_change(*recipe, changes);
    if (rc == 0)
        rc = add_model(arena, *recipe);
    return rc < 0 ? rc : add_tokenizer(arena, *recipe);
}
