/*
 * Reading a machine's description.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/machine.h>
#include <ctitan/plugins.h>
#include <ctitan/recipe.h>

#include "calls.h"

/* ---- sections of fixed keys ---- */

static const struct ct_option device_options[] = {
    CT_OPT_STRING(struct ct_machine, name, "name", NULL, "The device's full name"),
    CT_OPT_STRING(struct ct_machine, plugin, "plugin", NULL, "The device plugin that plans for it"),
    CT_OPT_FLOAT(struct ct_machine, memory, "memory", NULL, 1, 1e18, "Bytes of its memory"),
    CT_OPT_FLOAT(struct ct_machine, beside, "beside", "0", 0, 1e18,
                 "Bytes that libraries use in addition to the plan"),
    CT_OPT_INT(struct ct_machine, units, "units", "0", 0, 1 << 20, "Multiprocessors"),
    CT_OPT_INT(struct ct_machine, capability, "capability", "0", 0, 1000,
               "Compute capability, 90 for 9.0"),
    CT_OPT_INT(struct ct_machine, shared_memory, "shared_memory", "0", 0, 1 << 30,
               "Bytes of shared memory that a block may have"),
    CT_OPT_INT(struct ct_machine, ranks_per_host, "ranks_per_host", "1", 1, 1 << 20,
               "Ranks on one host"),
    CT_OPT_FLOAT(struct ct_machine, launch, "launch", "0", 0, 1,
                 "Seconds that each instruction takes in addition to its work"),
    CT_OPT_BOOL(
        struct ct_machine, in_order, "in_order", "false",
        "All streams of a rank share its processors, so only pipeline transfers and what goes over "
        "the network overlap"),
    {0}};

static const struct ct_option peak_options[] = {
    CT_OPT_FLOAT(struct ct_machine, peak.float32, "float32", NULL, 1, 1e40,
                 "FLOPs per second of float32 products"),
    CT_OPT_FLOAT(struct ct_machine, peak.bfloat16, "bfloat16", NULL, 1, 1e40,
                 "FLOPs per second of bfloat16 products"),
    CT_OPT_FLOAT(struct ct_machine, peak.float8, "float8", "0", 0, 1e40,
                 "FLOPs per second of Float8 products; 0: as bfloat16"),
    CT_OPT_FLOAT(struct ct_machine, peak.bandwidth, "bandwidth", NULL, 1, 1e40,
                 "Bytes of memory per second"),
    {0}};

static const struct ct_option contention_options[] = {
    CT_OPT_FLOAT(struct ct_machine, contention.computing, "computing", "1", 1, 100,
                 "Times as long that computing takes while the rank communicates"),
    CT_OPT_FLOAT(struct ct_machine, contention.communicating, "communicating", "1", 1, 100,
                 "Times as long that communication takes while the rank computes"),
    CT_OPT_FLOAT(struct ct_machine, contention.alone, "alone", "1", 0.01, 1,
                 "Share of its time that computing takes while no other rank of the host computes"),
    {0}};

static const struct ct_option published_options[] = {
    CT_OPT_FLOAT(struct ct_machine, published.least, "least", NULL, 0.01, 1000,
                 "Times as long as predicted that published runs took, at least"),
    CT_OPT_FLOAT(struct ct_machine, published.most, "most", NULL, 0.01, 1000,
                 "Times as long as predicted that published runs took, at most"),
    CT_OPT_STRING(struct ct_machine, published.of, "of", NULL, "The published runs"),
    {0}};

struct link_text {
    double bandwidth, latency;
    const char *reach;
};

static const struct ct_option link_options[] = {
    CT_OPT_FLOAT(struct link_text, bandwidth, "bandwidth", NULL, 1, 1e40,
                 "Bytes per second that a rank sends"),
    CT_OPT_FLOAT(struct link_text, latency, "latency", "0", 0, 10, "Seconds of a message"),
    CT_OPT_STRING(struct link_text, reach, "reach", "1 1", "Share of the bandwidth, by bytes"),
    {0}};

struct rate_text {
    const char *ops, *reach;
    double peak;
    enum { WORK_ALL, WORK_OUTPUTS, WORK_FLOPS } work;
};

static const struct ct_option rate_options[] = {
    CT_OPT_STRING(struct rate_text, ops, "ops", "", "Op types of this class; none: all others"),
    CT_OPT_STRING(struct rate_text, reach, "reach", NULL,
                  "Share of the peak, by seconds at the peak"),
    CT_OPT_FLOAT(struct rate_text, peak, "peak", "0", 0, 1e40,
                 "FLOPs per second of these products; 0: those of [peak], by their dtype"),
    CT_OPT_ENUM(struct rate_text, work, "work", "all", "all|outputs|flops",
                "The operands whose bytes count; flops: all, and without ops, the class is for "
                "those with FLOPs"),
    {0}};

static int read_section(const struct ct_recipe *file, const char *section,
                        const struct ct_option *table, void *into)
{
    int rc = ct_options_reset(table, into);

    for (size_t i = 0; rc == 0 && i < file->count; i++) {
        const struct ct_setting *s = &file->settings[i];

        if (!strcmp(s->section, section))
            rc = ct_options_set(table, into, s->key, s->value, s->source);
    }
    for (const struct ct_option *o = table; rc == 0 && o->name; o++)
        if (!o->fallback && !ct_recipe_get(file, section, o->name))
            rc = ct_fail(CT_ECONFIG, "%s: [%s] %s is missing: %s", file->path, section, o->name,
                         o->doc);
    return rc;
}

/* ---- lists ---- */

/* "5e-6 0.3, 1e-3 0.75" */
static int read_curve(struct ct_arena *arena, const char *where, const char *text,
                      struct ct_machine_curve *curve)
{
    size_t room = 0;

    *curve = (struct ct_machine_curve){0};
    for (const char *at = text; *at; at += strspn(at, ", ")) {
        struct ct_machine_point p;
        char *end, *end2;

        p.at = strtod(at, &end);
        p.value = strtod(end, &end2);
        if (end == at || end2 == end || !(p.at > 0) || !(p.value > 0) || strcspn(end2, ", ") ||
            (curve->count && p.at <= curve->point[curve->count - 1].at))
            return ct_fail(CT_ECONFIG,
                           "%s: reach = %s: expected pairs of numbers above 0, the first of them "
                           "rising, like \"5e-6 0.3, 1e-3 0.75\"",
                           where, text);
        curve->point =
            ct_arena_grow(arena, curve->point, &room, curve->count + 1, sizeof(*curve->point));
        curve->point[curve->count++] = p;
        at = end2;
    }
    return curve->count ? 0 : ct_fail(CT_ECONFIG, "%s: reach is empty", where);
}

static int read_link(struct ct_arena *arena, const struct ct_recipe *file, const char *section,
                     struct ct_machine_link *link)
{
    struct link_text text;
    int rc = read_section(file, section, link_options, &text);

    *link = (struct ct_machine_link){.bandwidth = text.bandwidth, .latency = text.latency};
    return rc < 0 ? rc
                  : read_curve(arena, ct_arena_printf(arena, "%s: [%s]", file->path, section),
                               text.reach, &link->reach);
}

static void read_ops(struct ct_arena *arena, const char *text, struct ct_machine_rate *rate)
{
    char *rest = ct_arena_strdup(arena, text), *op;
    size_t room = 0;

    while ((op = strsep(&rest, ", "))) {
        if (!*op)
            continue;
        rate->ops = ct_arena_grow(arena, rate->ops, &room, rate->op_count + 1, sizeof(*rate->ops));
        rate->ops[rate->op_count++] = op;
    }
}

static int read_rate(struct ct_arena *arena, const struct ct_recipe *file, const char *section,
                     struct ct_machine_rate *rate)
{
    struct rate_text text;
    int rc = read_section(file, section, rate_options, &text);

    *rate = (struct ct_machine_rate){.name = section + strlen("rate.")};
    if (rc < 0)
        return rc;
    read_ops(arena, text.ops, rate);
    rate->lookup = text.work == WORK_OUTPUTS;
    rate->flops = text.work == WORK_FLOPS;
    rate->peak = text.peak;
    return read_curve(arena, ct_arena_printf(arena, "%s: [%s]", file->path, section), text.reach,
                      &rate->reach);
}

int ct_machine_compare_calls(const void *a, const void *b)
{
    const struct ct_machine_call *x = a, *y = b;
    int order = strcmp(x->op, y->op);

    return order ? order : strcmp(x->shapes, y->shapes);
}

/* linear = 512,256:768,256:float32 1.2e-3; .. separated by spaces */
static int read_calls(struct ct_arena *arena, const struct ct_setting *s, struct ct_machine *m,
                      size_t *room)
{
    char *rest = ct_arena_strdup(arena, s->value), *shapes, *seconds, *end;

    while ((shapes = strsep(&rest, " "))) {
        if (!*shapes)
            continue;
        seconds = strsep(&rest, " ");
        m->call = ct_arena_grow(arena, m->call, room, m->call_count + 1, sizeof(*m->call));
        m->call[m->call_count] = (struct ct_machine_call){
            .op = s->key, .shapes = shapes, .seconds = seconds ? strtod(seconds, &end) : 0};
        if (!seconds || end == seconds || *end || !(m->call[m->call_count].seconds > 0))
            return ct_fail(CT_ECONFIG,
                           "%s: %s: expected shapes and seconds, in turn, not '%s' and '%s'",
                           s->source, s->key, shapes, seconds ? seconds : "");
        m->call_count++;
    }
    return 0;
}

/* ---- the whole ---- */

static bool is_rate(const char *section)
{
    return !strncmp(section, "rate.", 5);
}

static int check_sections(const struct ct_recipe *file)
{
    static const char *const known[] = {"device",     "peak",      "link.host", "link.network",
                                        "contention", "published", "calls"};
    size_t k;

    for (size_t i = 0; i < file->section_count; i++) {
        const struct ct_setting *s = &file->sections[i];

        for (k = 0; k < CT_COUNT(known) && strcmp(s->section, known[k]); k++)
            ;
        if (k == CT_COUNT(known) && !is_rate(s->section))
            return ct_fail(CT_ECONFIG,
                           "%s: there is no section [%s]: expected device, peak, link.host, "
                           "link.network, contention, published, rate.NAME or calls",
                           s->source, s->section);
    }
    return 0;
}

static int read_lists(struct ct_arena *arena, const struct ct_recipe *file, struct ct_machine *m)
{
    size_t rates = 0, calls = 0;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < file->section_count; i++) {
        const struct ct_setting *s = &file->sections[i];

        if (!is_rate(s->section))
            continue;
        m->rate = ct_arena_grow(arena, m->rate, &rates, m->rate_count + 1, sizeof(*m->rate));
        rc = read_rate(arena, file, s->section, &m->rate[m->rate_count++]);
    }
    for (size_t i = 0; rc == 0 && i < file->count; i++)
        if (!strcmp(file->settings[i].section, "calls"))
            rc = read_calls(arena, &file->settings[i], m, &calls);
    if (m->call_count)
        qsort(m->call, m->call_count, sizeof(*m->call), ct_machine_compare_calls);
    return rc;
}

static bool has_section(const struct ct_recipe *file, const char *section)
{
    for (size_t i = 0; i < file->section_count; i++)
        if (!strcmp(file->sections[i].section, section))
            return true;
    return false;
}

static int parse(struct ct_arena *arena, const char *path, struct ct_machine *m)
{
    struct ct_recipe *file;
    int rc = ct_recipe_read(arena, path, &file);

    if (rc == 0)
        rc = check_sections(file);
    if (rc == 0)
        rc = read_section(file, "device", device_options, m);
    if (rc == 0)
        rc = read_section(file, "peak", peak_options, m);
    if (rc == 0)
        rc = read_section(file, "contention", contention_options, m);
    if (rc == 0)
        rc = read_link(arena, file, "link.host", &m->host);
    if (rc == 0 && has_section(file, "link.network"))
        rc = read_link(arena, file, "link.network", &m->network);
    if (rc == 0 && has_section(file, "published"))
        rc = read_section(file, "published", published_options, m);
    if (rc == 0)
        rc = read_lists(arena, file, m);
    m->path = path;
    return rc;
}

bool ct_machine_is_measured(const struct ct_machine *machine)
{
    return machine->call_count > 0;
}

int ct_machine_check_ranks(const struct ct_machine *machine, int64_t ranks)
{
    if (ranks <= machine->ranks_per_host || machine->network.bandwidth > 0)
        return 0;
    return ct_fail(CT_ECONFIG,
                   "%s: %lld ranks are on several hosts of ranks_per_host = %lld, and it has no "
                   "[link.network] between them: add its bandwidth and latency, or describe a host "
                   "that has so many ranks",
                   machine->path, (long long)ranks, (long long)machine->ranks_per_host);
}

/* ---- finding it ---- */

bool ct_machine_is_name(const char *text)
{
    return !strchr(text, '/') && !strstr(text, ".ini");
}

const char *ct_machine_kept(struct ct_arena *arena, const char *name)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    if (base && *base)
        return ct_arena_printf(arena, "%s/ctitan/devices/%s.ini", base, name);
    return home ? ct_arena_printf(arena, "%s/.cache/ctitan/devices/%s.ini", home, name) : NULL;
}

#define DEVICES "devices" /* folder of descriptions: here, or beside plugins */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names in all folders, in order, each once. Returns their number. */
static size_t list_known(struct ct_arena *arena, const char ***names)
{
    const struct ct_plugin_file *files;
    size_t count = ct_plugin_files(arena, DEVICES, ".ini", &files), room = 0, once = 0;
    const char **all = ct_arena_grow(arena, NULL, &room, count + 1, sizeof(*all));
    DIR *here = opendir(DEVICES);

    for (size_t i = 0; i < count; i++)
        all[i] = files[i].name;
    for (struct dirent *entry; here && (entry = readdir(here));) {
        size_t length = strlen(entry->d_name);

        if (length <= 4 || strcmp(entry->d_name + length - 4, ".ini"))
            continue;
        all = ct_arena_grow(arena, all, &room, count + 1, sizeof(*all));
        all[count++] = ct_arena_printf(arena, "%.*s", (int)length - 4, entry->d_name);
    }
    if (here)
        closedir(here);
    if (count)
        qsort(all, count, sizeof(*all), by_name);
    for (size_t i = 0; i < count; i++)
        if (!once || strcmp(all[once - 1], all[i]))
            all[once++] = all[i];
    *names = all;
    return once;
}

/* The first that begins with name ("h100": "h100-80g"), which ct_nearest finds too far. */
static const char *nearest(const char *name, const char **names, size_t count)
{
    for (size_t i = 0; *name && i < count; i++)
        if (!strncmp(names[i], name, strlen(name)))
            return names[i];
    return ct_nearest(name, names, count);
}

static int unknown(struct ct_arena *arena, const char *name)
{
    const char **names, *near, *list = "";
    size_t count = list_known(arena, &names);

    near = nearest(name, names, count);
    for (size_t i = 0; i < count; i++)
        list = ct_arena_printf(arena, "%s%s%s", list, i ? ", " : "", names[i]);
    return ct_fail(CT_ECONFIG,
                   "there is no description of a machine called %s: expected the path of a file%s%s"
                   "%s%s%s",
                   name, count ? ", or one of " : "", list, near ? "; did you mean " : "",
                   near ? near : "", near ? "?" : "");
}

int ct_machine_read(struct ct_arena *arena, const char *name, const struct ct_machine **machine)
{
    struct ct_machine *m = ct_arena_new(arena, struct ct_machine);
    const char *path = ct_machine_is_name(name) ? ct_machine_kept(arena, name) : name;
    char file[CT_PATH_ROOM];
    int rc;

    if (path != name && path && access(path, R_OK) != 0)
        path = NULL;
    if (!path && access(path = ct_arena_printf(arena, DEVICES "/%s.ini", name), R_OK) != 0)
        path = ct_plugin_file(DEVICES, ct_arena_printf(arena, "%s.ini", name), file, sizeof(file))
                   ? ct_arena_strdup(arena, file)
                   : NULL;
    if (!path)
        return unknown(arena, name);
    rc = parse(arena, path, m);
    *machine = m;
    return rc < 0 ? ct_context(rc, "the description of a machine") : 0;
}

static const char *assumed;

void ct_machine_assume(const char *name)
{
    assumed = name;
}

int ct_machine_assumed(struct ct_arena *arena, const struct ct_machine **machine)
{
    const char *path = assumed ? assumed : ct_machine_kept(arena, CT_MACHINE_THIS);

    *machine = NULL;
    return assumed || (path && access(path, R_OK) == 0) ? ct_machine_read(arena, path, machine) : 0;
}
