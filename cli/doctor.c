/*
 * `ctitan doctor`: the machine, which plugins can be loaded, and how fast devices are.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>
#include <ctitan/plugins.h>

#include "cli.h"
#include "doctor.h"

#define MOST_SECONDS 60 /* that loading a plugin takes */

/* Open and load the plugin with default options, like a recipe without its section. */
static int load(const char *name, const struct ct_plugin **plugin)
{
    int rc = ct_plugin_find(name, plugin);

    if (rc == 0 && (*plugin)->options)
        rc = ct_options_reset((*plugin)->options, (*plugin)->config);
    return rc;
}

/* Load it in a process of its own, which a fault in the plugin's or its libraries' code may end.
   The failure's message is recorded. */
static int try_to_load(struct ct_arena *arena, const char *name)
{
    char *words = ct_arena_alloc(arena, 1024);
    const struct ct_plugin *plugin;
    int ends[2], status = 0;
    ssize_t n;
    pid_t child;

    if (pipe(ends) < 0)
        return ct_fail(CT_EIO, "%s", strerror(errno));
    fflush(stdout);
    child = fork();
    if (child == 0) {
        alarm(MOST_SECONDS);
        if (load(name, &plugin) == 0)
            _exit(0);
        n = write(ends[1], ct_error_message(), strlen(ct_error_message()));
        _exit(n < 0 ? 2 : 1);
    }
    close(ends[1]);
    n = child < 0 ? -1 : read(ends[0], words, 1023);
    close(ends[0]);
    if (child < 0 || waitpid(child, &status, 0) < 0)
        return ct_fail(CT_EIO, "%s", strerror(errno));
    if (WIFSIGNALED(status))
        return ct_fail(CT_EABI, "loading it ends the process by signal %d (%s)", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
    return status ? ct_fail(CT_EABI, "%.*s", n > 0 ? (int)n : 0, words) : 0;
}

/* Try a plugin, and register one with a device. */
static int try_plugin(struct ct_arena *arena, const char *name)
{
    const struct ct_plugin *plugin;
    int rc = ct_plugin_describe(name, &plugin);
    bool device = rc == 0 && ct_plugin_has(plugin, "device:*");

    if (rc == 0)
        rc = try_to_load(arena, name);
    if (rc == 0 && device)
        rc = load(name, &plugin);
    return rc == 0 && device ? ct_plugin_register(plugin) : rc;
}

/* Plugins that are not installed are no failure. */
static void print_absent(struct ct_arena *arena)
{
    const struct ct_absent *absent;
    size_t count = ct_plugin_absent(arena, &absent);

    for (size_t i = 0; i < count; i++)
        printf("  %-12s not installed: %s\n", absent[i].name, absent[i].why);
}

/* Print a line for each plugin, or add it to the list. Returns how many cannot be loaded. */
static int check_plugins(struct ct_arena *arena, json_t *list)
{
    const char **names;
    size_t count = ct_plugin_names(arena, &names);
    int broken = 0;

    if (!list)
        printf("\nplugins\n");
    for (size_t i = 0; i < count; i++) {
        const char *failure = try_plugin(arena, names[i]) < 0 ? ct_error_message() : NULL;

        broken += failure != NULL;
        if (list)
            json_array_append_new(list, json_pack("{s:o, s:o}", "name", ct_json_text(names[i]),
                                                  "failure", ct_json_text(failure)));
        else
            printf("  %-12s %s\n", names[i], failure ? failure : "loads");
    }
    if (!list)
        print_absent(arena);
    if (!count && !list)
        printf("  none found: build them, or set CTITAN_PLUGIN_PATH\n");
    return broken;
}

static void check_devices(struct ct_arena *arena, json_t *list)
{
    const struct ct_offer *offer;
    struct device_facts device;

    if (!list)
        printf("\ndevices\n");
    for (size_t i = 0; (offer = ct_offer_at(CT_DEVICE, i)); i++) {
        fflush(stdout);
        device_look(arena, offer->name, offer->ops, &device);
        if (list)
            json_array_append_new(list, device_json(&device));
        else
            device_print(&device);
    }
    if (!ct_offer_at(CT_DEVICE, 0) && !list)
        printf("  none: no plugin that can be loaded has a device\n");
}

static int look(struct ct_arena *arena, bool json)
{
    json_t *plugins = json ? json_array() : NULL, *devices = json ? json_array() : NULL;
    struct machine_facts machine;
    int broken, rc = 0;

    machine_look(arena, &machine);
    if (!json)
        machine_print(&machine);
    broken = check_plugins(arena, plugins);
    check_devices(arena, devices);
    if (json)
        rc = ct_json_print(json_pack("{s:o, s:o, s:o, s:o}", "machine", machine_json(&machine),
                                     "plugins", plugins, "absent", plugins_absent_json(arena),
                                     "devices", devices),
                           stdout);
    if (rc == 0 && broken)
        return ct_fail(CT_EABI, "%d plugin%s cannot be loaded", broken, ct_plural(broken));
    return rc;
}

struct arguments {
    struct args args; /* first */
    const char *describe;
};

static const struct ct_argument arguments[] = {
    CT_ARG_OPTIONAL(struct args, path, "RECIPE",
                    "For --describe: the recipe, trained for 12 steps; else the debug model"),
    CT_ARG_TEXT(struct arguments, describe, "describe", 0, "NAME|FILE",
                "Measure this machine, and write its description for --device of other verbs"),
    ARG_LOCAL,
    ARG_CHANGES,
    ARG_JSON,
    {0}};

static int doctor(int argc, char **argv)
{
    struct arguments given = {0};
    struct args *args = &given.args;
    int rc = args_parse(arguments, argc, argv, args);

    if (rc < 0)
        return rc;
    if (given.describe && args->json)
        rc = ct_fail(CT_ECONFIG, "doctor: --describe writes an INI file; leave --json out");
    else if (given.describe)
        rc = describe_machine(args, given.describe);
    else if (args->path || args->ranks || args->changes.count)
        rc = ct_fail(CT_ECONFIG,
                     "doctor: a recipe and its options are for --describe NAME, which is missing");
    else
        rc = look(&args->arena, args->json);
    return args_finish(args, rc);
}

const struct verb verb_doctor = {
    .name = "doctor",
    .summary = "examine this machine: what it has, what works, and how fast it is",
    .run = doctor,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan doctor", "ctitan doctor --describe this -n 2")};
