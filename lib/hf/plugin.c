/*
 * The plugin that builds the models of a model_type.
 */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/option.h>
#include <ctitan/plugins.h>
#include <ctitan/recipe.h>

/* ---- descriptions of families ---- */

/* What is done with the descriptions that are found, until `visit` returns true. */
struct visitor {
    const char *name; /* of the descriptions; NULL: all */
    bool (*visit)(const char *path, void *context);
    void *context;
};

static int is_shown(const struct dirent *entry)
{
    return *entry->d_name != '.';
}

static int is_description(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');

    return is_shown(entry) && dot && !strcmp(dot, ".ini");
}

static bool visit_file(const struct visitor *v, const char *folder, const char *name)
{
    char path[PATH_MAX];

    return snprintf(path, sizeof(path), "%s/%s", folder, name) < (int)sizeof(path) &&
           access(path, F_OK) == 0 && v->visit(path, v->context);
}

/* Call visit for FOLDER/BELOW/families. */
static bool visit_below(const struct visitor *v, const char *folder, const char *below)
{
    char families[PATH_MAX], file[PATH_MAX];
    struct dirent **entries = NULL;
    bool done = false;
    int count;

    snprintf(families, sizeof(families), "%s/%s/families", folder, below);
    if (v->name) {
        snprintf(file, sizeof(file), "%s.ini", v->name);
        return visit_file(v, families, file);
    }
    count = scandir(families, &entries, is_description, alphasort);
    for (int i = 0; i < count; i++) {
        done = done || visit_file(v, families, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return done;
}

/* Visit descriptions in the folders of plugins, of plugins of the build, and beside them. */
static bool visit_families(const struct visitor *v)
{
    const char *folder;
    bool done = false;

    for (size_t i = 0; !done && (folder = ct_plugin_folder(i)); i++) {
        struct dirent **entries = NULL;
        int count;

        done = visit_below(v, folder, ".");
        count = done ? 0 : scandir(folder, &entries, is_shown, alphasort);
        for (int k = 0; k < count; k++) {
            done = done || visit_below(v, folder, entries[k]->d_name);
            free(entries[k]);
        }
        free(entries);
        done = done || visit_below(v, folder, "..");
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

    visit_families(&(struct visitor){NULL, add_name, &names});
    for (size_t i = 0; i < names.count; i++)
        known = ct_arena_printf(&scratch, "%s%s%s", known, i ? ", " : "", names.at[i]);
    ct_fail(CT_ECONFIG, "there is no description of a family %s%s; there are %s", name,
            ct_did_you_mean(name, names.at, names.count), names.count ? known : "none");
    ct_arena_finish(&scratch);
    return CT_ECONFIG;
}

struct outer {
    const char *name;
    struct path path;
};

/* Take the description of the part for text of a model of several kinds of input. */
static bool take_outer(const char *found, void *context)
{
    struct outer *outer = context;
    struct ct_arena arena = {0};
    struct ct_recipe *file;
    const char *name =
        ct_recipe_read(&arena, found, &file) == 0 ? ct_recipe_get(file, "family", "outer") : NULL;
    bool is = name && !strcmp(name, outer->name);

    ct_arena_finish(&arena);
    return is && take_path(found, &outer->path);
}

int ct_hf_family(const char *name, char *path, size_t room)
{
    struct outer outer = {name, {path, room}};

    return is_name(name) && (visit_families(&(struct visitor){name, take_path, &outer.path}) ||
                             visit_families(&(struct visitor){NULL, take_outer, &outer}))
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

struct families {
    struct names names;
    const char *plugin;
};

/* The first description of a name counts. */
static bool add_family(const char *path, void *context)
{
    struct families *f = context;
    struct names *names = &f->names;
    char plugin[64] = "";
    size_t count = names->count;

    add_name(path, names);
    for (size_t i = 0; i < count; i++)
        if (!strcmp(names->at[i], names->at[count]))
            names->count = count;
    if (read_description(path, plugin, sizeof(plugin)) < 0 || strcmp(plugin, f->plugin) != 0)
        names->count = count;
    return false;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

size_t ct_hf_families(struct ct_arena *arena, const char *plugin, const char ***names)
{
    struct families f = {{.arena = arena}, plugin};

    visit_families(&(struct visitor){NULL, add_family, &f});
    if (f.names.count)
        qsort(f.names.at, f.names.count, sizeof(*f.names.at), by_name);
    *names = f.names.at;
    return f.names.count;
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
