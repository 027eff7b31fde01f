/*
 * Verbs offered by plugins: those of all plugins in the folders, not only of those that a recipe
 * loads.
 *
 * Loading a plugin runs code of the plugin and of its libraries. Therefore only plugins that may
 * have the verb are loaded: those whose file contains its name as a string.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/file.h>
#include <ctitan/model.h>
#include <ctitan/lib/plugin.h>

#include "cli.h"

/* The verbs called name (NULL: any) of all plugins, as {plugin, offer}, in arena. */
struct brought {
    const struct ct_plugin *plugin;
    const struct ct_offer *offer;
};

bool file_contains(const char *path, const char *name)
{
    const void *data;
    size_t size;
    bool found = ct_file_map(path, &data, &size) == 0 && size &&
                 memmem(data, size, name, strlen(name) + 1) != NULL;

    ct_file_unmap(data, size);
    return found;
}

/* name NULL: any name. unusable: why a plugin that may have it cannot be loaded; NULL: none. */
static size_t collect(struct ct_arena *arena, const char *name, struct brought **list,
                      const char **unusable)
{
    const struct ct_plugin *plugin;
    const char **names;
    size_t count = ct_plugin_names(arena, &names), found = 0, room = 0;
    char path[PATH_MAX];

    *list = NULL;
    *unusable = NULL;
    for (size_t i = 0; i < count; i++) {
        if (ct_plugin_path(names[i], path, sizeof(path)) < 0 ||
            (name && !file_contains(path, name)))
            continue;
        if (ct_plugin_open(path, &plugin) < 0) {
            *unusable = ct_arena_strdup(arena, ct_error_message());
            continue;
        }
        for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++) {
            if (o->kind != CT_VERB || (name && strcmp(o->name, name)))
                continue;
            *list = ct_arena_grow(arena, *list, &room, found + 1, sizeof(**list));
            (*list)[found++] = (struct brought){plugin, o};
        }
    }
    return found;
}

int find_plugin_verb(const char *name, const struct ct_verb_ops **ops, char *unusable, size_t room)
{
    struct ct_arena scratch = {0};
    struct brought *list;
    const char *why;
    size_t count = collect(&scratch, name, &list, &why);
    int rc = 0;

    snprintf(unusable, room, "%s", why ? why : "");

    *ops = count ? list[0].offer->ops : NULL;
    if (count > 1)
        rc = ct_fail(CT_ECONFIG, "plugins %s and %s both have a verb %s", list[0].plugin->name,
                     list[1].plugin->name, name);
    ct_arena_finish(&scratch);
    return rc;
}

void print_plugin_verbs(FILE *out)
{
    struct ct_arena scratch = {0};
    struct brought *list;
    const char *unusable;
    size_t count = collect(&scratch, NULL, &list, &unusable);

    for (size_t i = 0; i < count; i++) {
        const struct ct_verb_ops *ops = list[i].offer->ops;

        fprintf(out, "  %-9s %s (plugin %s)\n", list[i].offer->name, ops->summary,
                list[i].plugin->name);
    }
    ct_arena_finish(&scratch);
}
