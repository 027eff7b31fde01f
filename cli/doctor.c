#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/lib/measure.h>
#include <ctitan/lib/numa.h>
#include <ctitan/lib/plugin.h>

#include "cli.h"

#define MOST_SECONDS 60 /* that loading a plugin takes */

#define LOOK 0.3 /* seconds, at the load of the machine */

/* The value of the first "key : value" line of /proc/cpuinfo, in the arena; "" if there is none. */
static const char *cpuinfo(struct ct_arena *arena, const char *key)
{
    FILE *in = fopen("/proc/cpuinfo", "r");
    const char *found = "";
    char *line = NULL;
    size_t room = 0;

    while (in && !*found && getline(&line, &room, in) > 0) {
        char *colon = strchr(line, ':');

        if (!colon || strncmp(line, key, strlen(key)) || !strchr("\t :", line[strlen(key)]))
            continue;
        line[strcspn(line, "\n")] = '\0';
        found = ct_arena_strdup(arena, colon[1] ? colon + 2 : "");
    }
    free(line);
    if (in)
        fclose(in);
    return found;
}

static bool has_word(const char *text, const char *word)
{
    size_t length = strlen(word);

    for (; *text; text += strcspn(text, " ") + strspn(text + strcspn(text, " "), " "))
        if (strcspn(text, " ") == length && !strncmp(text, word, length))
            return true;
    return false;
}

static void print_features(struct ct_arena *arena)
{
    static const char *const wanted[] = {"avx2",        "fma",      "avx512f",  "avx512_bf16",
                                         "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8",
                                         "asimd",       "asimdhp",  "bf16",     "sve"};
    const char *flags = cpuinfo(arena, "flags");
    bool any = false;

    if (!*flags)
        flags = cpuinfo(arena, "Features");
    printf("  features    ");
    for (size_t i = 0; i < CT_COUNT(wanted); i++)
        if (has_word(flags, wanted[i])) {
            printf("%s%s", any ? ", " : "", wanted[i]);
            any = true;
        }
    printf("%s\n", any ? "" : "none that ctitan uses");
}

static void print_huge_pages(void)
{
    FILE *in = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    char line[128] = "", *chosen = NULL, *end = NULL;

    if (in && fgets(line, sizeof(line), in)) {
        chosen = strchr(line, '[');
        end = chosen ? strchr(chosen, ']') : NULL;
    }
    if (end)
        *end = '\0';
    printf("  huge pages  %s%s\n", end ? chosen + 1 : "unknown",
           end && !strcmp(chosen + 1, "never") ? ": slower; set it to madvise or always" : "");
    if (in)
        fclose(in);
}

static void print_nodes(struct ct_arena *arena)
{
    const char *before = "  nodes       ";
    struct ct_numa numa;

    ct_numa_read(NULL, arena, &numa);
    for (int node = 0; node < 64; node++) {
        int threads = 0;

        for (int i = 0; i < numa.count; i++)
            threads += numa.processor[i].node == node;
        if (!(numa.nodes >> node & 1))
            continue;
        printf("%s%d: %d thread%s%s", before, node, threads, threads == 1 ? "" : "s",
               numa.memory >> node & 1 ? "" : " without memory");
        before = ", ";
    }
    if (numa.nodes)
        printf("\n  placement   %s\n",
               ct_numa_memory(&numa)
                   ? "a rank's threads node by node, its memory from their node, or from each of "
                     "their nodes in turn"
                   : "left to the system");
}

/* How busy other processes keep the processors just now. */
static void print_load(void)
{
    struct ct_load before = ct_load_now(ct_load_job(false)), after;
    double others;

    ct_nap(LOOK);
    after = ct_load_now(ct_load_job(false));
    others = ct_load_others(&before, &after);
    printf("  busy        ");
    if (isfinite(others))
        printf("%.0f %%, by other processes just now%s\n", 100 * others,
               others > CT_LOAD_NOTABLE ? ": rates below are too low" : "");
    else
        printf("unknown: /proc/stat does not say\n");
}

static void print_machine(struct ct_arena *arena)
{
    double page = (double)sysconf(_SC_PAGESIZE);
    char total[32], available[32];
    const char *model = cpuinfo(arena, "model name");
    cpu_set_t set;

    CPU_ZERO(&set);
    printf("machine\n  processor   %s\n", *model ? model : "unknown");
    printf("  threads     %ld online", sysconf(_SC_NPROCESSORS_ONLN));
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        printf(", %d for this process", CPU_COUNT(&set));
    printf("\n");
    print_features(arena);
    printf("  memory      %s, %s free\n",
           human_bytes((double)sysconf(_SC_PHYS_PAGES) * page, total),
           human_bytes((double)sysconf(_SC_AVPHYS_PAGES) * page, available));
    print_load();
    print_nodes(arena);
    print_huge_pages();
}

/* The best of several measurements counts, because other processes only make a machine slower. */
#define LOOKS 5

static void print_gemm(struct ct_device *device, enum ct_dtype dtype)
{
    double best = 0, rate;
    char text[32];
    int rc = 0;

    for (int i = 0; rc == 0 && i < LOOKS; i++) {
        rc = ct_measure_gemm(device, dtype, &rate);
        best = rc == 0 && rate > best ? rate : best;
    }
    if (rc < 0)
        printf("    matrix product, %-9s %s\n", ct_dtype_name(dtype), ct_error_message());
    else
        printf("    matrix product, %-9s %sFLOP/s\n", ct_dtype_name(dtype),
               human_count(best, text));
}

static void print_bandwidth(struct ct_device *device)
{
    double best = 0, rate;
    char text[32];
    int rc = 0;

    for (int i = 0; rc == 0 && i < LOOKS; i++) {
        rc = ct_measure_bandwidth(device, &rate);
        best = rc == 0 && rate > best ? rate : best;
    }
    if (rc < 0)
        printf("    memory bandwidth          %s\n", ct_error_message());
    else
        printf("    memory bandwidth          %sB/s\n", human_count(best, text));
}

static void measure(struct ct_device *device)
{
    print_gemm(device, CT_F32);
    print_gemm(device, CT_BF16);
    print_bandwidth(device);
}

static void say(const char *line)
{
    printf("    %s\n", line);
}

static void try_device(const char *name, const struct ct_device_ops *ops)
{
    struct ct_device_request request = {.local_ranks = 1};
    struct ct_device_info info = {0};
    struct ct_device *device;
    char memory[32];

    if (ops->open(&request, &device) < 0) {
        printf("  %s: %s\n", name, ct_error_message());
        if (ops->diagnose)
            ops->diagnose(say);
        return;
    }
    device->ops = ops;
    ops->info(device, CT_F32, &info);
    printf("  %s: %s, %s\n", name, info.name, human_bytes((double)info.memory, memory));
    fflush(stdout);
    if (ops->diagnose)
        ops->diagnose(say);
    measure(device);
    ops->close(device);
}

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

static int check_plugins(struct ct_arena *arena)
{
    const struct ct_plugin *plugin;
    const char **names;
    size_t count = ct_plugin_names(arena, &names), broken = 0;

    printf("\nplugins\n");
    for (size_t i = 0; i < count; i++) {
        int rc = ct_plugin_describe(names[i], &plugin);
        bool device = rc == 0 && ct_plugin_has(plugin, "device:*");

        if (rc == 0)
            rc = try_to_load(arena, names[i]);
        if (rc == 0 && device)
            rc = load(names[i], &plugin);
        if (rc == 0 && device)
            rc = ct_plugin_register(plugin);
        printf("  %-12s %s\n", names[i], rc < 0 ? ct_error_message() : "loads");
        broken += rc < 0;
    }
    if (!count)
        printf("  none found: build them, or set CTITAN_PLUGIN_PATH\n");
    return (int)broken;
}

static int look(struct ct_arena *arena)
{
    const struct ct_offer *offer;
    int broken;

    print_machine(arena);
    broken = check_plugins(arena);
    printf("\ndevices\n");
    for (size_t i = 0; (offer = ct_offer_at(CT_DEVICE, i)); i++)
        try_device(offer->name, offer->ops);
    if (!ct_offer_at(CT_DEVICE, 0))
        printf("  none: no plugin that can be loaded has a device\n");
    if (broken)
        return ct_fail(CT_EABI, "%d plugin%s cannot be loaded", broken, broken > 1 ? "s" : "");
    return 0;
}

struct arguments {
    struct args args; /* first */
    const char *describe;
};

static const struct ct_argument arguments[] = {
    CT_ARG_OPTIONAL(struct args, path, "RECIPE",
                    "For --describe: the recipe that trains meanwhile; else the debug model"),
    CT_ARG_TEXT(struct arguments, describe, "describe", 0, "NAME|FILE",
                "Measure this machine, and write its description for --device of other verbs"),
    ARG_LOCAL,
    ARG_CHANGES,
    {0}};

static int doctor(int argc, char **argv)
{
    struct arguments given = {0};
    struct args *args = &given.args;
    int rc = args_parse(arguments, argc, argv, args);

    if (rc < 0)
        return rc;
    if (given.describe)
        rc = describe_machine(args, given.describe);
    else if (args->path || args->ranks || args->changes.count)
        rc = ct_fail(CT_ECONFIG,
                     "doctor: a recipe and its options are for --describe NAME, which is missing");
    else
        rc = look(&args->arena);
    return args_finish(args, rc);
}

const struct verb verb_doctor = {
    .name = "doctor",
    .summary = "examine this machine: what it has, what works, and how fast it is",
    .run = doctor,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan doctor", "ctitan doctor --describe this -n 2")};
