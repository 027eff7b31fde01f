/*
 * The plugin that builds the models of a model_type.
 */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/patterns.h>
#include <ctitan/option.h>
#include <ctitan/plugins.h>
#include <ctitan/recipe.h>

#include "config.h"

/* ---- descriptions of families ---- */

static bool is_name(const char *name)
{
    return *name && !name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                       "0123456789_-.")];
}

#define FAMILIES "families" /* folder */

static bool find_family(const char *name, char *path, size_t room)
{
    struct ct_arena scratch = {0};
    bool found = ct_plugin_file(FAMILIES, ct_arena_printf(&scratch, "%s.ini", name), path, room);

    ct_arena_finish(&scratch);
    return found;
}

static size_t list_families(struct ct_arena *arena, const struct ct_plugin_file **files)
{
    return ct_plugin_files(arena, FAMILIES, ".ini", files);
}

static int no_family(const char *name)
{
    struct ct_arena scratch = {0};
    const struct ct_plugin_file *files;
    size_t count = list_families(&scratch, &files);
    const char **names = ct_arena_array(&scratch, const char *, count + 1), *known = "";

    for (size_t i = 0; i < count; i++) {
        names[i] = files[i].name;
        known = ct_arena_printf(&scratch, "%s%s%s", known, i ? ", " : "", names[i]);
    }
    ct_fail(CT_ECONFIG, "there is no description of a family %s%s; there are %s", name,
            ct_did_you_mean(name, names, count), count ? known : "none");
    ct_arena_finish(&scratch);
    return CT_ECONFIG;
}

/* Whether it describes the part for text of a model of several kinds of input. */
static bool has_outer(const char *path, const char *outer)
{
    struct ct_arena arena = {0};
    struct ct_recipe *file;
    const char *name =
        ct_recipe_read(&arena, path, &file) == 0 ? ct_recipe_get(file, "family", "outer") : NULL;
    bool is = name && hf_is_name_of(name, outer);

    ct_arena_finish(&arena);
    return is;
}

static bool find_outer(const char *outer, char *path, size_t room)
{
    struct ct_arena scratch = {0};
    const struct ct_plugin_file *files;
    size_t count = list_families(&scratch, &files);
    int found = 0;

    for (size_t i = 0; i < count; i++)
        found += has_outer(files[i].path, outer) &&
                 (size_t)snprintf(path, room, "%s", files[i].path) < room;
    ct_arena_finish(&scratch);
    return found == 1; /* of several, text_config says which */
}

int ct_hf_family(const char *name, char *path, size_t room)
{
    return is_name(name) && (find_family(name, path, room) || find_outer(name, path, room))
               ? 0
               : no_family(name);
}

/* ---- plugins ---- */

/* The plugin that a description names. */
static int read_description(const char *path, char *name, size_t room)
{
    struct ct_arena arena = {0};
    struct ct_recipe *file;
    const char *plugin;
    int rc = ct_recipe_read(&arena, path, &file);

    if (rc == 0) {
        plugin = ct_recipe_get(file, "family", "plugin");
        if (plugin)
            snprintf(name, room, "%s", plugin);
        else
            rc = ct_fail(CT_ECONFIG, "%s: [family] plugin is missing", path);
    }
    ct_arena_finish(&arena);
    return rc;
}

size_t ct_hf_families(struct ct_arena *arena, const char *plugin, const char ***names)
{
    const struct ct_plugin_file *files;
    size_t count = list_families(arena, &files), own = 0;
    char builder[64];

    *names = ct_arena_array(arena, const char *, count + 1);
    for (size_t i = 0; i < count; i++)
        if (read_description(files[i].path, builder, sizeof(builder)) == 0 &&
            !strcmp(builder, plugin))
            (*names)[own++] = files[i].name;
    return own;
}

static bool find(const char *type, size_t size, char *name, size_t room)
{
    char path[PATH_MAX];

    snprintf(name, room, "%.*s", (int)size, type);
    return ct_plugin_path(name, path, sizeof(path)) == 0;
}

const char *ct_hf_model_type(const json_t *root)
{
    const char *text =
        json_string_value(json_object_get(json_object_get(root, "text_config"), "model_type"));

    return text ? text : json_string_value(json_object_get(root, "model_type"));
}

int ct_hf_plugin(const char *type, char *name, size_t room)
{
    size_t size = strlen(type);
    char path[PATH_MAX];

    if (is_name(type)) {
        if (find(type, size, name, room))
            return 0;
        if (ct_hf_family(type, path, sizeof(path)) == 0)
            return read_description(path, name, room);
        if (ct_ends_in(type, "_text") && find(type, size - 5, name, room))
            return 0;
    }
    return ct_fail(CT_ECONFIG,
                   "model_type = %s: there is no plugin for this model, and no description of its "
                   "family",
                   type);
}
