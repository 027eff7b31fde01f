/*
 * Verbs that plugins bring: those of all plugins in the folders, whatever a recipe loads.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>

#include "cli.h"

/* The offers of verbs called name (NULL: any) of all plugins: {plugin, offer}, in arena. */
struct brought {
    const struct ct_plugin *plugin;
    const struct ct_offer *offer;
};

static size_t collect(struct ct_arena *arena, const char *name, struct brought **list)
{
    const struct ct_plugin *plugin;
    const char **names;
    size_t count = ct_plugin_names(arena, &names), found = 0, room = 0;
    char path[PATH_MAX];

    *list = NULL;
    for (size_t i = 0; i < count; i++) {
        if (ct_plugin_path(names[i], path, sizeof(path)) < 0 || ct_plugin_open(path, &plugin) < 0)
            continue;
        for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++) {
            if (o->kind != CT_VERB || (name && strcmp(o->name, name)))
                continue;
            *list = ct_arena_grow(arena, *list, &room, found + 1, sizeof(**list));
            (*list)[found++] = (struct brought){plugin, o};
        }
    }
    return found;
}

int find_plugin_verb(const char *name, const struct ct_verb_ops **ops)
{
    struct ct_arena scratch = {0};
    struct brought *list;
    size_t count = collect(&scratch, name, &list);
    int rc = 0;

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
    size_t count = collect(&scratch, NULL, &list);

    for (size_t i = 0; i < count; i++) {
        const struct ct_verb_ops *ops = list[i].offer->ops;

        fprintf(out, "  %-9s %s (plugin %s)\n", list[i].offer->name, ops->summary,
                list[i].plugin->name);
    }
    ct_arena_finish(&scratch);
}
