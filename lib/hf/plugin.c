/*
 * The plugin that builds the models of a model_type.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/plugin.h>
#include <ctitan/lib/recipe.h>

/* The description of a family: "families/NAME.ini" in the folders of plugins, in that of a plugin
   of the build, or beside them. */
bool ct_hf_family_path(size_t index, const char *name, char *path, size_t room)
{
    static const char *const at[] = {"%s/families/%s.ini", "%s/decoder/families/%s.ini",
                                     "%s/../families/%s.ini"};
    const char *folder = ct_plugin_folder(index / CT_COUNT(at));

    if (folder)
        snprintf(path, room, at[index % CT_COUNT(at)], folder, name);
    return folder;
}

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

    if (strspn(type, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == size) {
        if (find(type, size, name, room))
            return 0;
        for (size_t i = 0; ct_hf_family_path(i, type, path, sizeof(path)); i++)
            if (!access(path, R_OK))
                return read_description(path, name, room);
        if (size > 5 && !strcmp(type + size - 5, "_text") && find(type, size - 5, name, room))
            return 0;
    }
    return ct_fail(CT_ECONFIG,
                   "model_type = %s: there is no plugin for this model, and no description of its "
                   "family",
                   type);
}
