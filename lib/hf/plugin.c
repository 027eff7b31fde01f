/*
 * The plugin that builds the models of a model_type.
 */
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/option.h>
#include <ctitan/plugins.h>
#include <ctitan/recipe.h>

/* ---- descriptions of families ---- */

/* Visit the descriptions called name ("*": all), in the folders of plugins, of plugins of the
   build, and beside them, until visit returns true. */
static bool visit_families(const char *name, bool (*visit)(const char *path, void *context),
                           void *context)
{
    static const char *const at[] = {"%s/families/%s.ini", "%s/*/families/%s.ini",
                                     "%s/../families/%s.ini"};
    const char *folder;
    bool done = false;

    for (size_t i = 0; !done && (folder = ct_plugin_folder(i)); i++)
        for (size_t k = 0; !done && k < CT_COUNT(at); k++) {
            char pattern[PATH_MAX];
            glob_t found = {0};

            snprintf(pattern, sizeof(pattern), at[k], folder, name);
            glob(pattern, 0, NULL, &found);
            for (size_t f = 0; !done && f < found.gl_pathc; f++)
                done = visit(found.gl_pathv[f], context);
            globfree(&found);
        }
    return done;
}

struct path {
    char *text;
    size_t room;
};

static bool take_path(const char *found, void *context)
{
    struct path *path = context;

    return snprintf(path->text, path->room, "%s", found) < (int)path->room;
}

static bool is_name(const char *name)
{
    return *name && !name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                       "0123456789_-.")];
}

struct names {
    struct ct_arena *arena;
    const char **at;
    size_t count, room;
};

static bool add_name(const char *found, void *context)
{
    struct names *names = context;
    const char *name = strrchr(found, '/') + 1;

    names->at =
        ct_arena_grow(names->arena, names->at, &names->room, names->count + 1, sizeof(*names->at));
    names->at[names->count++] = ct_arena_printf(names->arena, "%.*s", (int)strlen(name) - 4, name);
    return false;
}

static int no_family(const char *name)
{
    struct ct_arena scratch = {0};
    struct names names = {.arena = &scratch};
    const char *known = "";

    visit_families("*", add_name, &names);
    for (size_t i = 0; i < names.count; i++)
        known = ct_arena_printf(&scratch, "%s%s%s", known, i ? ", " : "", names.at[i]);
    ct_fail(CT_ECONFIG, "there is no description of a family %s%s; there are %s", name,
            ct_did_you_mean(name, names.at, names.count), names.count ? known : "none");
    ct_arena_finish(&scratch);
    return CT_ECONFIG;
}

int ct_hf_family(const char *name, char *path, size_t room)
{
    return is_name(name) && visit_families(name, take_path, &(struct path){path, room})
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

static bool find(const char *type, size_t size, char *name, size_t room)
{
    char path[PATH_MAX];

    snprintf(name, room, "%.*s", (int)size, type);
    return ct_plugin_path(name, path, sizeof(path)) == 0;
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
        if (size > 5 && !strcmp(type + size - 5, "_text") && find(type, size - 5, name, room))
            return 0;
    }
    return ct_fail(CT_ECONFIG,
                   "model_type = %s: there is no plugin for this model, and no description of its "
                   "family",
                   type);
}
