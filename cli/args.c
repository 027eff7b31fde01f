#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/recipe.h>
#include <ctitan/lib/plugin.h>

#include "child.h"
#include "cli.h"

#define MOST (1 << 20) /* ranks, restarts */

struct change {
    int (*apply)(struct ct_recipe *recipe, const char *value);
    const char *value;
};

enum {
    SET = 256,
    WITH,
    WITHOUT,
    UNSET,
    DUMP_AFTER,
    DUMP_KERNELS,
    JSON,
    PROGRAM,
    WORLD,
    RANK,
    RESTARTS,
    ELASTIC,
    DEVICE,
    TRACE,
    SVG,
    SLOW,
    MEMORY,
    OUT,
    VARY,
    DESCRIBE
};

static const struct option long_options[] = {{"set", required_argument, NULL, SET},
                                             {"with", required_argument, NULL, WITH},
                                             {"without", required_argument, NULL, WITHOUT},
                                             {"unset", required_argument, NULL, UNSET},
                                             {"dump-after", required_argument, NULL, DUMP_AFTER},
                                             {"dump-kernels", no_argument, NULL, DUMP_KERNELS},
                                             {"json", no_argument, NULL, JSON},
                                             {"program", no_argument, NULL, PROGRAM},
                                             {"world", required_argument, NULL, WORLD},
                                             {"rank", required_argument, NULL, RANK},
                                             {"max-restarts", required_argument, NULL, RESTARTS},
                                             {"elastic", no_argument, NULL, ELASTIC},
                                             {"device", required_argument, NULL, DEVICE},
                                             {"trace", required_argument, NULL, TRACE},
                                             {"svg", required_argument, NULL, SVG},
                                             {"slow", required_argument, NULL, SLOW},
                                             {"memory", required_argument, NULL, MEMORY},
                                             {"out", required_argument, NULL, OUT},
                                             {"vary", required_argument, NULL, VARY},
                                             {"describe", required_argument, NULL, DESCRIBE},
                                             {0}};

/* The ARG_ flag that a verb must accept for this option; 0: every verb has it. */
static unsigned needed(int option)
{
    switch (option) {
    case 'n':
        return ARG_RANKS;
    case DUMP_AFTER:
    case DUMP_KERNELS:
        return ARG_DUMP_AFTER;
    case JSON:
        return ARG_JSON;
    case PROGRAM:
        return ARG_PROGRAM;
    case WORLD:
    case RANK:
        return ARG_WORLD;
    case RESTARTS:
    case ELASTIC:
        return ARG_RESTARTS;
    case DEVICE:
        return ARG_DEVICE;
    case TRACE:
    case SVG:
    case SLOW:
        return ARG_PICTURES;
    case MEMORY:
    case OUT:
    case VARY:
        return ARG_TUNE;
    case DESCRIBE:
        return ARG_DESCRIBE;
    default:
        return 0;
    }
}

static void add_change(struct args *args, int (*apply)(struct ct_recipe *, const char *),
                       const char *value)
{
    args->changes = ct_arena_grow(&args->arena, args->changes, &args->room, args->count + 1,
                                  sizeof(*args->changes));
    args->changes[args->count++] = (struct change){apply, value};
}

static int parse_number(const char *option, int64_t least, int64_t *number)
{
    char *end;

    *number = strtoll(optarg, &end, 10);
    if (end == optarg || *end || *number < least)
        return ct_fail(CT_ECONFIG, "%s %s: expected a number, at least %lld", option, optarg,
                       (long long)least);
    if (*number > MOST)
        return ct_fail(CT_ECONFIG, "%s %s: expected a number, at most %d", option, optarg, MOST);
    return 0;
}

/* "80G", "1.5e9" */
static int parse_bytes(const char *option, double *bytes)
{
    static const char units[] = "KMGT";
    char *end;
    const char *unit;

    *bytes = strtod(optarg, &end);
    unit = *end ? strchr(units, *end) : NULL;
    for (const char *u = units; unit && u <= unit; u++)
        *bytes *= 1024;
    end += unit ? 1 + 2 * !strcmp(end + 1, "iB") : 0;
    if (end == optarg || *end || !(*bytes > 0))
        return ct_fail(CT_ECONFIG, "%s %s: expected bytes, like 80G", option, optarg);
    return 0;
}

/* --slow RANK:FACTOR */
static int add_slow(struct args *args)
{
    struct ct_slow slow;
    char *end, *end2 = NULL;

    slow.rank = strtoll(optarg, &end, 10);
    slow.factor = *end == ':' ? strtod(end + 1, &end2) : 0;
    if (end == optarg || !end2 || *end2 || slow.rank < 0 || !(slow.factor > 0))
        return ct_fail(CT_ECONFIG, "--slow %s: expected RANK:FACTOR, like 3:1.5", optarg);
    args->slow = ct_arena_grow(&args->arena, args->slow, &args->slow_room,
                               (size_t)args->slow_count + 1, sizeof(*args->slow));
    args->slow[args->slow_count++] = slow;
    return 0;
}

static int take(struct args *args, int option)
{
    switch (option) {
    case SET:
        add_change(args, ct_recipe_set, optarg);
        break;
    case WITH:
        add_change(args, ct_recipe_with, optarg);
        break;
    case WITHOUT:
        add_change(args, ct_recipe_without, optarg);
        break;
    case UNSET:
        add_change(args, ct_recipe_unset, optarg);
        break;
    case DUMP_AFTER:
        args->dump_after = optarg;
        break;
    case DUMP_KERNELS:
        args->dump_kernels = true;
        add_change(args, ct_recipe_set, "fuse.dump=-");
        break;
    case JSON:
        args->json = true;
        break;
    case PROGRAM:
        args->program = true;
        break;
    case 'n':
    case WORLD:
        if (args->ranks)
            return ct_fail(CT_ECONFIG, "-n and --world: give one of them, once");
        args->here = option == 'n';
        return parse_number(args->here ? "-n" : "--world", 1, &args->ranks);
    case RANK:
        return parse_number("--rank", 0, &args->rank);
    case RESTARTS:
        return parse_number("--max-restarts", 0, &args->restarts);
    case ELASTIC:
        args->elastic = true;
        break;
    case DEVICE:
        args->device = optarg;
        break;
    case TRACE:
        args->trace = optarg;
        break;
    case SVG:
        args->svg = optarg;
        break;
    case SLOW:
        return add_slow(args);
    case MEMORY:
        return parse_bytes("--memory", &args->memory);
    case OUT:
        args->out = optarg;
        break;
    case DESCRIBE:
        args->describe = optarg;
        break;
    case VARY:
        args->vary = ct_arena_grow(&args->arena, args->vary, &args->vary_room, args->vary_count + 1,
                                   sizeof(*args->vary));
        args->vary[args->vary_count++] = optarg;
        break;
    }
    return 0;
}

/* The option that getopt stopped at, in the form that the user would write. */
static const char *option_name(int option, char **argv, char text[32])
{
    for (const struct option *o = long_options; o->name; o++)
        if (o->val == option) {
            snprintf(text, 32, "--%s", o->name);
            return text;
        }
    if (option == '?' && !optopt)
        return argv[optind - 1];
    snprintf(text, 32, "-%c", option == '?' ? optopt : option);
    return text;
}

static int unknown_option(const char *verb, const char *option, unsigned accepts)
{
    const char *names[CT_COUNT(long_options)], *near = NULL;
    size_t count = 0;

    for (const struct option *o = long_options; o->name; o++)
        if (!(needed(o->val) & ~accepts))
            names[count++] = o->name;
    if (!strncmp(option, "--", 2))
        near = ct_nearest(option + 2, names, count);
    return ct_fail(CT_ECONFIG, "%s has no option %s; %s%s%s`ctitan help %s` lists them", verb,
                   option, near ? "did you mean --" : "", near ? near : "", near ? "? " : "", verb);
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

int args_parse(int argc, char **argv, unsigned accepts, struct args *args)
{
    int option, rc = 0;

    *args = (struct args){0};
    opterr = 0;
    optind = 1;
    while (rc == 0 && (option = getopt_long(argc, argv, ":n:", long_options, NULL)) != -1) {
        char text[32];

        if (option == ':')
            rc = ct_fail(CT_ECONFIG, "%s: %s needs a value", argv[0], argv[optind - 1]);
        else if (option == '?' || needed(option) & ~accepts)
            rc = unknown_option(argv[0], option_name(option, argv, text), accepts);
        else
            rc = take(args, option);
    }
    if (rc == 0 && optind + 1 != argc && !(optind == argc && accepts & ARG_DESCRIBE))
        rc =
            ct_fail(CT_ECONFIG, "%s: expected one recipe%s%s; `ctitan help %s` shows the arguments",
                    argv[0], optind < argc ? ", but there is also " : "",
                    optind < argc ? argv[optind + 1] : "", argv[0]);
    if (rc == 0 && optind < argc)
        rc = copy_stream(args, &argv[optind]);
    if (rc == 0)
        args->path = argv[optind]; /* NULL after the last */
    else
        args_finish(args, rc);
    return rc;
}

void args_changes(struct args *args, struct argv *argv)
{
    for (size_t i = 0; i < args->count; i++) {
        const struct change *c = &args->changes[i];

        argv_add(&args->arena, argv,
                 c->apply == ct_recipe_set     ? "--set"
                 : c->apply == ct_recipe_with  ? "--with"
                 : c->apply == ct_recipe_unset ? "--unset"
                                               : "--without",
                 c->value);
    }
}

void args_add_set(struct args *args, const char *assignment)
{
    add_change(args, ct_recipe_set, assignment);
}

/* --set plugins.load makes the list that --with and --without change, and other --set may be for a
   plugin that --with adds. */
static int round_of(const struct change *c)
{
    if (c->apply != ct_recipe_set)
        return 1;
    return strncmp(c->value, "plugins.", 8) ? 2 : 0;
}

static int change(const struct args *args, struct ct_recipe *recipe)
{
    int rc = 0;

    for (int round = 0; round < 3; round++)
        for (size_t i = 0; rc == 0 && i < args->count; i++)
            if (round_of(&args->changes[i]) == round)
                rc = args->changes[i].apply(recipe, args->changes[i].value);
    return rc;
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

static int replace_device(struct args *args, struct ct_recipe *recipe)
{
    bool is_device, describes, there = false;
    int rc = ct_machine_read(&args->arena, args->device, &args->machine);

    for (size_t i = 0; rc == 0 && i < recipe->plugin_count; i++) {
        const char *name = recipe->plugins[i];

        rc = look_at_plugin(name, &is_device, &describes);
        if (rc < 0 || !is_device)
            continue;
        if (!strcmp(name, args->machine->plugin)) {
            there = true;
            continue;
        }
        rc = ct_recipe_without(recipe, name);
        i--;
    }
    if (rc == 0 && !there)
        rc = ct_recipe_with(recipe, args->machine->plugin);
    if (rc == 0)
        rc = look_at_plugin(args->machine->plugin, &is_device, &describes);
    if (rc == 0 && !is_device)
        rc = ct_fail(CT_ECONFIG, "%s: [device] plugin = %s: this plugin has no device",
                     args->machine->path, args->machine->plugin);
    if (rc == 0 && describes)
        rc = ct_recipe_set(recipe, ct_arena_printf(&args->arena, "%s.describe=%s",
                                                   args->machine->plugin, args->machine->path));
    if (rc == 0)
        ct_machine_assume(args->machine->path);
    return rc < 0 ? ct_context(rc, "--device %s", args->device) : 0;
}

int args_read(struct args *args, struct ct_recipe **recipe)
{
    int rc = args_read_path(&args->arena, args->path, recipe);

    if (rc < 0)
        return rc;
    args->recipe = *recipe;
    rc = change(args, *recipe);
    return rc < 0 ? rc : args_choose_model(&args->arena, *recipe);
}

int args_recipe(struct args *args, struct ct_recipe **recipe)
{
    int rc = args_read(args, recipe);

    if (rc == 0 && args->dump_kernels && !ct_recipe_loads(*recipe, "fuse"))
        rc = ct_fail(CT_ECONFIG, "--dump-kernels shows the kernels of plugin fuse, which the "
                                 "recipe does not load: add --with fuse");
    if (rc == 0 && args->device)
        rc = replace_device(args, *recipe);
    return rc == 0 ? ct_recipe_apply(*recipe) : rc;
}

int args_finish(struct args *args, int rc)
{
    rc = ct_recipe_locate(args->recipe, rc);
    ct_arena_finish(&args->arena);
    return rc;
}
