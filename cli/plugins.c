#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/plugin.h>

#include "cli.h"

/* "op, optimizer": each kind once */
static void kinds(const struct ct_plugin *plugin, char *text, size_t room)
{
    struct ct_line line = {text, room, 0};

    *text = '\0';
    for (int kind = 1; kind < CT_KIND_COUNT; kind++)
        for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++) {
            if ((int)o->kind != kind)
                continue;
            ct_line_add(&line, "%s%s", line.used ? ", " : "", ct_kind_name(o->kind));
            break;
        }
}

static void print_plugin(const char *name, const struct ct_plugin *plugin)
{
    char offered[160];

    kinds(plugin, offered, sizeof(offered));
    printf("%-14s %-8s %-28s %s\n", name, plugin->version, offered, plugin->summary);
}

static const struct ct_argument arguments[] = {{0}};

static int plugins(int argc, char **argv)
{
    struct ct_arena arena = {0};
    const struct ct_plugin *plugin;
    const char **names, *folder;
    size_t count;
    int rc = ct_arguments_parse(arguments, argc, argv, &arena, &arena);

    if (rc < 0)
        return rc;
    count = ct_plugin_names(&arena, &names);
    for (size_t i = 0; i < count; i++) {
        if (ct_plugin_describe(names[i], &plugin) == 0)
            print_plugin(names[i], plugin);
        else
            printf("%-14s %-8s %s\n", names[i], "unusable", ct_error_message());
    }
    if (!count)
        printf("no plugins found\n");
    for (size_t i = 0; (folder = ct_plugin_folder(i)); i++)
        printf("%s%s%s", i ? ", " : "\nsearched: ", folder, ct_plugin_folder(i + 1) ? "" : "\n");
    ct_arena_finish(&arena);
    return 0;
}

const struct verb verb_plugins = {
    .name = "plugins",
    .summary = "list all plugins, and what each offers",
    .run = plugins,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan plugins", "CTITAN_PLUGIN_PATH=$PWD ctitan plugins"),
    .details = "No plugin is loaded. `ctitan doctor` loads each, and says which cannot be.\n"};
