/*
 * Arguments of verbs that take a recipe. Their rows are in cli.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/hf_recipe.h>
#include <ctitan/plugins.h>
#include <ctitan/recipe.h>

#include "child.h"
#include "cli.h"

int args_take_slow(void *at, struct ct_arena *arena, const char *option, const char *value)
{
    struct slow_ranks *list = at;
    struct ct_slow slow;
    char *end, *end2 = NULL;

    slow.rank = strtoll(value, &end, 10);
    slow.factor = *end == ':' ? strtod(end + 1, &end2) : 0;
    if (end == value || !end2 || *end2 || slow.rank < 0 || !(slow.factor > 0))
        return ct_fail(CT_ECONFIG, "%s %s: expected RANK:FACTOR, like 3:1.5", option, value);
    list->at =
        ct_arena_grow(arena, list->at, &list->room, (size_t)list->count + 1, sizeof(*list->at));
    list->at[list->count++] = slow;
    return 0;
}

/* A recipe that can be read once only, "-" or a pipe: a copy in memory takes its place, which ranks
   and other processes that this one starts can open again. */
static int copy_stream(struct args *args, char **path)
{
    bool standard = !strcmp(*path, "-");
    struct stat st;
    char block[4096];
    size_t total = 0;
    ssize_t got;
    int in, copy;

    if (!standard && (stat(*path, &st) < 0 || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)))
        return 0;
    in = standard ? STDIN_FILENO : open(*path, O_RDONLY);
    copy = memfd_create("recipe", 0);
    if (in < 0 || copy < 0)
        return ct_fail(CT_ECONFIG, "%s: %s", *path, strerror(errno));
    while ((got = read(in, block, sizeof(block))) > 0) {
        total += (size_t)got;
        if (total > CT_RECIPE_FILE || write(copy, block, (size_t)got) != got)
            break;
    }
    if (!standard)
        close(in);
    if (got != 0 || !total)
        return ct_fail(CT_ECONFIG, "%s: %s", *path,
                       got > 0   ? "a recipe has at most 256 KiB"
                       : got < 0 ? strerror(errno)
                                 : "the recipe is empty");
    *path = ct_arena_printf(&args->arena, "/dev/fd/%d", copy);
    return 0;
}

/* The command line of ranks has the copy, too. */
static int take_path(struct args *args, int argc, char **argv)
{
    int rc = 0;

    for (int i = 1; rc == 0 && args->path && i < argc; i++)
        if (argv[i] == args->path) {
            rc = copy_stream(args, &argv[i]);
            args->path = argv[i];
            break;
        }
    return rc;
}

static bool takes_changes(const struct ct_argument *table)
{
    for (const struct ct_argument *a = table; a->name; a++)
        if (!strcmp(a->name, "set"))
            return true;
    return false;
}

int args_explain_unknown(const struct ct_argument *table, int argc, char **argv)
{
    int at = takes_changes(table) ? ct_arguments_unknown(table, argc, argv) : 0;

    return at ? ct_recipe_hint_argument(argv[0], argv[at], at + 1 < argc ? argv[at + 1] : NULL) : 0;
}

int args_parse(const struct ct_argument *table, int argc, char **argv, struct args *args)
{
    int rc;

    args->recipe = NULL;
    rc = args_explain_unknown(table, argc, argv);
    if (rc == 0)
        rc = ct_arguments_parse(table, argc, argv, &args->arena, args);
    if (rc == 0 && args->local && args->world)
        rc = ct_fail(CT_ECONFIG, "-n and --world: give one of them");
    args->ranks = args->local ? args->local : args->world;
    if (rc == 0 && args->dump_kernels)
        args_add_set(args, "fuse.dump=-");
    if (rc == 0)
        rc = take_path(args, argc, argv);
    if (rc < 0)
        args_finish(args, rc);
    return rc;
}

void args_changes(struct args *args, struct argv *argv)
{
    for (size_t i = 0; i < args->changes.count; i++)
        argv_add(&args->arena, argv, args->changes.at[i].option, args->changes.at[i].value);
}

void args_add_set(struct args *args, const char *assignment)
{
    ct_recipe_take_change(&args->changes, &args->arena, "--set", assignment);
}

/* ---- a described device in the place of the recipe's ---- */

/* Open the plugin that is to be replaced or put in, and find what it offers. */
static int look_at_plugin(const char *name, bool *is_device, bool *describes)
{
    const struct ct_plugin *plugin;
    int rc = ct_plugin_find(name, &plugin);

    if (rc < 0)
        return rc;
    *is_device = false;
    for (const struct ct_offer *o = plugin->offers; o && o->kind != CT_NOTHING; o++)
        *is_device |= o->kind == CT_DEVICE;
    *describes = plugin->options && ct_option_find(plugin->options, "describe");
    return 0;
}

int args_use_device(struct ct_recipe *recipe, const char *plugin)
{
    bool is_device, describes, there = false;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < recipe->plugin_count; i++) {
        const char *name = recipe->plugins[i];

        rc = look_at_plugin(name, &is_device, &describes);
        if (rc < 0 || !is_device)
            continue;
        if (!strcmp(name, plugin)) {
            there = true;
            continue;
        }
        rc = ct_recipe_without(recipe, name);
        i--;
    }
    return rc == 0 && !there ? ct_recipe_with(recipe, plugin) : rc;
}

static int replace_device(struct args *args, struct ct_recipe *recipe)
{
    bool is_device, describes;
    int rc = ct_machine_read(&args->arena, args->device, &args->machine);

    if (rc == 0)
        rc = args_use_device(recipe, args->machine->plugin);
    if (rc == 0)
        rc = look_at_plugin(args->machine->plugin, &is_device, &describes);
    if (rc == 0 && !is_device)
        rc = ct_fail(CT_ECONFIG, "%s: [device] plugin = %s: this plugin has no device",
                     args->machine->path, args->machine->plugin);
    if (rc == 0 && describes)
        rc = ct_recipe_set(recipe, ct_recipe_assign(&args->arena,
                                                    ct_arena_printf(&args->arena, "%s.describe",
                                                                    args->machine->plugin),
                                                    args->machine->path));
    if (rc == 0)
        ct_machine_assume(args->machine->path);
    return rc < 0 ? ct_context(rc, "--device %s", args->device) : 0;
}

int args_read(struct args *args, struct ct_recipe **recipe)
{
    int rc;

    *recipe = NULL;
    rc = ct_hf_recipe(&args->arena, args->path, &args->changes, recipe);
    args->recipe = *recipe; /* a failure is located in it, too */
    return rc;
}

static int choose_stage(const struct args *args)
{
    size_t count = ct_stage_count();

    if ((size_t)args->stage <= count)
        return ct_stage_alone((size_t)args->stage - 1);
    return ct_fail(CT_ECONFIG, "--stage %lld: the recipe has %zu stage%s", (long long)args->stage,
                   count, ct_plural(count));
}

int args_recipe(struct args *args, struct ct_recipe **recipe)
{
    int rc = args_read(args, recipe);

    if (rc == 0 && args->dump_kernels && !ct_recipe_loads(*recipe, "fuse"))
        rc = ct_fail(CT_ECONFIG, "--dump-kernels shows the kernels of plugin fuse, which the "
                                 "recipe does not load: add --with fuse");
    if (rc == 0 && args->device)
        rc = replace_device(args, *recipe);
    if (rc == 0)
        rc = ct_recipe_apply(*recipe);
    return rc == 0 && args->stage ? choose_stage(args) : rc;
}

int args_finish(struct args *args, int rc)
{
    rc = ct_recipe_locate(args->recipe, rc);
    ct_arena_finish(&args->arena);
    return rc;
}
