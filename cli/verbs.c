/*
 * Verbs offered by plugins: those of all plugins in the folders, not only of those that a recipe
 * loads. Their descriptors are read; only a plugin whose verb runs is loaded.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/plugins.h>

#include "cli.h"

static void collect_of(struct ct_arena *arena, const char *name, struct plugin_verbs *found,
                       size_t *room)
{
    const struct ct_plugin *plugin;

    if (ct_plugin_describe(name, &plugin) < 0) {
        found->unreadable++;
        return;
    }
    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++) {
        if (o->kind != CT_VERB)
            continue;
        found->verb =
            ct_arena_grow(arena, found->verb, room, found->count + 1, sizeof(*found->verb));
        found->verb[found->count++] = (struct plugin_verb){o->name, plugin->name, o->ops};
    }
}

void find_plugin_verbs(struct ct_arena *arena, struct plugin_verbs *found)
{
    const char **names;
    size_t count = ct_plugin_names(arena, &names), room = 0;

    *found = (struct plugin_verbs){0};
    for (size_t i = 0; i < count; i++)
        collect_of(arena, names[i], found, &room);
}

int find_plugin_verb(const struct plugin_verbs *all, const char *name,
                     const struct plugin_verb **verb)
{
    *verb = NULL;
    for (size_t i = 0; i < all->count; i++) {
        const struct plugin_verb *one = &all->verb[i];

        if (strcmp(one->name, name) != 0)
            continue;
        if (*verb)
            return ct_fail(CT_ECONFIG, "plugins %s and %s both have a verb %s", (*verb)->plugin,
                           one->plugin, name);
        *verb = one;
    }
    return 0;
}

int run_plugin_verb(const struct plugin_verb *verb, int argc, char **argv)
{
    const struct ct_plugin *plugin;
    int rc = ct_plugin_find(verb->plugin, &plugin);

    if (rc < 0)
        return rc;
    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++) {
        const struct ct_verb_ops *ops = o->ops;

        if (o->kind == CT_VERB && !strcmp(o->name, verb->name))
            return ops->run(argc, argv);
    }
    return ct_fail(CT_EABI, "plugin %s has lost its verb %s", verb->plugin, verb->name);
}
