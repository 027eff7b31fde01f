#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>
#include <ctitan/plugins.h>

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

/* The last words of a line. */
static void print_plugin(const struct ct_plugin *plugin)
{
    char offered[160];

    kinds(plugin, offered, sizeof(offered));
    printf("%-8s %s (%s)\n", plugin->version, plugin->summary, offered);
}

/* ---- JSON ---- */

static json_t *offers_json(const struct ct_plugin *plugin)
{
    json_t *list = json_array();

    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++)
        json_array_append_new(list, json_pack("{s:s, s:o}", "kind", ct_kind_name(o->kind), "name",
                                              ct_json_text(o->name)));
    return list;
}

static json_t *plugin_json(const char *name)
{
    const struct ct_plugin *plugin;
    char path[PATH_MAX];
    int rc = ct_plugin_path(name, path, sizeof(path));
    json_t *file = rc < 0 ? json_null() : ct_json_text(path);

    if (rc == 0)
        rc = ct_plugin_describe(name, &plugin);
    if (rc < 0)
        return json_pack("{s:o, s:o, s:o}", "name", ct_json_text(name), "file", file, "failure",
                         ct_json_text(ct_error_message()));
    return json_pack("{s:o, s:o, s:n, s:o, s:o, s:o, s:o, s:o}", "name", ct_json_text(name), "file",
                     file, "failure", "version", ct_json_text(plugin->version), "summary",
                     ct_json_text(plugin->summary), "offers", offers_json(plugin), "needs",
                     ct_json_texts(plugin->needs, SIZE_MAX), "conflicts",
                     ct_json_texts(plugin->conflicts, SIZE_MAX));
}

json_t *plugins_absent_json(struct ct_arena *arena)
{
    const struct ct_absent *absent;
    size_t count = ct_plugin_absent(arena, &absent);
    json_t *list = json_array();

    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:o, s:o}", "name", ct_json_text(absent[i].name),
                                              "why", ct_json_text(absent[i].why)));
    return list;
}

static int print_json(struct ct_arena *arena, const char *const *names, size_t count)
{
    json_t *list = json_array(), *folders = json_array();
    const char *folder;

    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, plugin_json(names[i]));
    for (size_t i = 0; (folder = ct_plugin_folder(i)); i++)
        json_array_append_new(folders, ct_json_text(folder));
    return ct_json_print(json_pack("{s:o, s:o, s:o}", "plugins", list, "absent",
                                   plugins_absent_json(arena), "folders", folders),
                         stdout);
}

/* ---- the verb ---- */

static void print_people(struct ct_arena *arena, const char *const *names, size_t count)
{
    const struct ct_plugin *plugin;
    const struct ct_absent *absent;
    size_t missing = ct_plugin_absent(arena, &absent);
    const char *folder;
    int width = 0;

    for (size_t i = 0; i < count + missing; i++) {
        int length = (int)strlen(i < count ? names[i] : absent[i - count].name);

        width = length > width ? length : width;
    }
    for (size_t i = 0; i < count; i++) {
        printf("%-*s ", width, names[i]);
        if (ct_plugin_describe(names[i], &plugin) == 0)
            print_plugin(plugin);
        else
            printf("%-8s %s\n", "unusable", ct_error_message());
    }
    for (size_t i = 0; i < missing; i++)
        printf("%-*s %-8s %s\n", width, absent[i].name, "absent", absent[i].why);
    if (!count)
        printf("no plugins found\n");
    for (size_t i = 0; (folder = ct_plugin_folder(i)); i++)
        printf("%s%s%s", i ? ", " : "\nsearched: ", folder, ct_plugin_folder(i + 1) ? "" : "\n");
}

struct request {
    bool json;
};

static const struct ct_argument arguments[] = {
    CT_ARG_FLAG(struct request, json, "json", 0, "Print JSON"), {0}};

static int plugins(int argc, char **argv)
{
    struct ct_arena arena = {0};
    struct request r = {0};
    const char **names;
    size_t count;
    int rc = ct_arguments_parse(arguments, argc, argv, &arena, &r);

    if (rc == 0) {
        count = ct_plugin_names(&arena, &names);
        if (r.json)
            rc = print_json(&arena, names, count);
        else
            print_people(&arena, names, count);
    }
    ct_arena_finish(&arena);
    return rc;
}

const struct verb verb_plugins = {
    .name = "plugins",
    .summary = "list all plugins, and what each offers",
    .run = plugins,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan plugins --json", "CTITAN_PLUGIN_PATH=$PWD ctitan plugins"),
    .details = "No plugin is loaded. `ctitan doctor` loads each, and says which cannot be.\n"};
