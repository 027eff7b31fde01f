/*
 * `ctitan schedule`: draws, times and verifies a pipeline schedule, from a plugin or from torch's
 * CSV.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/pipeline.h>
#include <ctitan/plugins.h>

#include "cli.h"

/* ---- arguments ---- */

struct request {
    struct ct_arena arena;
    const char *name, *csv, *svg, *write_csv;
    struct ct_texts set;                 /* "PLUGIN.KEY=VALUE" */
    int64_t ranks, stages, microbatches; /* -1: not given */
    double costs[4];                     /* F, I, W of all layers of a rank; one transfer */
    bool comm, json;
};

static int take_costs(void *into, struct ct_arena *arena, const char *option, const char *text)
{
    double *costs = into;
    const char *at = text;
    int count = 0;

    (void)arena;
    for (; count < 4; count++) {
        char *end;

        costs[count] = strtod(at, &end);
        if (end == at || !(costs[count] >= 0 && costs[count] <= 1e9) || (*end && *end != ','))
            break;
        at = end + 1;
        if (!*end)
            return count >= 2 && costs[0] + costs[1] + costs[2] > 0
                       ? 0
                       : ct_fail(CT_ECONFIG, "%s %s: expected times F,I,W, not all 0", option,
                                 text);
    }
    return ct_fail(CT_ECONFIG, "%s %s: expected times F,I,W or F,I,W,SEND", option, text);
}

static const struct ct_argument arguments[] = {
    CT_ARG_OPTIONAL(struct request, name, "NAME", "The schedule: a plugin, like 1f1b"),
    CT_ARG_INT(struct request, ranks, "ranks", 'n', "P", 1, MOST_RANKS,
               "Ranks of the pipeline; required with NAME"),
    CT_ARG_INT(struct request, microbatches, "microbatches", 0, "M", 1, MOST_RANKS,
               "Microbatches of a step; required with NAME"),
    CT_ARG_INT(struct request, stages, "stages", 0, "S", 1, MOST_RANKS,
               "Stages of all ranks; by default as few as the schedule allows"),
    CT_ARG_TEXTS(struct request, set, "set", 0, "PLUGIN.KEY=VALUE",
                 "Set an option of the schedule"),
    CT_ARG_TEXT(struct request, csv, "csv", 0, "FILE", "Read the schedule from torch's CSV"),
    CT_ARG_TAKE(struct request, costs, "costs", 0, "F,I,W[,SEND]",
                "Times of forward, input and weight gradients, and of a transfer; 1,1,1 by default",
                take_costs),
    CT_ARG_FLAG(struct request, comm, "comm", 0, "Show transfers, too"),
    CT_ARG_TEXT(struct request, svg, "svg", 0, "FILE", "Write a picture"),
    CT_ARG_TEXT(struct request, write_csv, "write-csv", 0, "FILE",
                "Write the schedule as torch's CSV"),
    CT_ARG_FLAG(struct request, json, "json", 0, "Print JSON"),
    {0}};

static int check_request(const struct request *r)
{
    if (r->csv && r->name)
        return ct_fail(CT_ECONFIG, "schedule: give --csv or the name %s, not both", r->name);
    if (r->csv && r->set.count)
        return ct_fail(CT_ECONFIG, "schedule: --set %s: a schedule from a CSV file has no options",
                       r->set.at[0]);
    if (!r->csv && !r->name)
        return ct_fail(CT_ECONFIG, "schedule: expected the name of a schedule, or --csv FILE");
    if (!r->csv && access(r->name, F_OK) == 0 && strchr(r->name, '.'))
        return ct_fail(CT_ECONFIG, "schedule: %s is a file: --csv %s", r->name, r->name);
    if (!r->csv && (r->ranks < 0 || r->microbatches < 0))
        return ct_fail(CT_ECONFIG, "schedule %s: %s is missing", r->name,
                       r->ranks < 0 ? "--ranks" : "--microbatches");
    return 0;
}

static int parse(int argc, char **argv, struct request *r)
{
    int rc;

    *r = (struct request){.ranks = -1, .stages = -1, .microbatches = -1, .costs = {1, 1, 1}};
    rc = ct_arguments_parse(arguments, argc, argv, &r->arena, r);
    return rc < 0 ? rc : check_request(r);
}

/* ---- finding the schedule ---- */

static const struct ct_schedule_ops *offered(const struct ct_plugin *plugin, const char *name)
{
    const struct ct_schedule_ops *ops = NULL;

    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++)
        if (o->kind == CT_SCHEDULE && !strcmp(o->name, name) && ct_schedule_offered(o, &ops) == 0)
            return ops;
    return NULL;
}

/* The names of all schedules in the folders. */
static size_t schedule_names(struct ct_arena *arena, const char ***names)
{
    const struct ct_plugin *plugin;
    const char **plugins, **found = NULL;
    size_t count = ct_plugin_names(arena, &plugins), schedules = 0, room = 0;

    for (size_t i = 0; i < count; i++) {
        if (ct_plugin_describe(plugins[i], &plugin) < 0)
            continue;
        for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++) {
            if (o->kind != CT_SCHEDULE)
                continue;
            found = ct_arena_grow(arena, found, &room, schedules + 1, sizeof(*found));
            found[schedules++] = o->name;
        }
    }
    *names = found;
    return schedules;
}

static int no_schedule(const char *name)
{
    struct ct_arena arena = {0};
    const char **names, *near, *list = "";
    size_t count = schedule_names(&arena, &names);

    near = ct_nearest(name, names, count);
    for (size_t i = 0; i < count; i++)
        list = ct_arena_printf(&arena, "%s%s%s", list, i ? ", " : "", names[i]);
    if (near)
        ct_fail(CT_ENOENT, "no schedule %s; did you mean %s?", name, near);
    else
        ct_fail(CT_ENOENT, "no schedule %s; there are: %s", name, count ? list : "none");
    ct_arena_finish(&arena);
    return CT_ENOENT;
}

/* The schedule called name of any plugin in the folders, with default options. CT_ENOENT: none; the
   message has the nearest name. */
static int find_schedule(const char *name, const struct ct_schedule_ops **ops)
{
    struct ct_arena arena = {0};
    const struct ct_plugin *plugin = NULL;
    const char **plugins, *what = ct_arena_printf(&arena, "schedule:%s", name);
    size_t count;
    int rc;

    *ops = ct_plugin_find(name, &plugin) == 0 ? offered(plugin, name) : NULL;
    count = *ops ? 0 : ct_plugin_names(&arena, &plugins);
    for (size_t i = 0; i < count && !*ops; i++)
        if (ct_plugin_describe(plugins[i], &plugin) == 0 && ct_plugin_has(plugin, what) &&
            ct_plugin_find(plugins[i], &plugin) == 0)
            *ops = offered(plugin, name);
    ct_arena_finish(&arena);
    if (!*ops)
        return no_schedule(name);
    rc = plugin->options ? ct_options_reset(plugin->options, plugin->config) : 0;
    return rc < 0 ? ct_context(rc, "%s", plugin->name) : 0;
}

/* "eager_1f1b.extra=3": an option of the plugin that offers the schedule. */
static int set_option(const char *schedule, const char *setting)
{
    int section = (int)strcspn(setting, ".="), key = (int)strcspn(setting, "=");
    const struct ct_plugin *plugin;
    struct ct_arena scratch = {0};
    int rc = setting[section] == '.' && setting[key]
                 ? ct_plugin_find(ct_arena_printf(&scratch, "%.*s", section, setting), &plugin)
                 : ct_fail(CT_ECONFIG, "expected PLUGIN.KEY=VALUE");

    if (rc == 0 && !offered(plugin, schedule))
        rc = ct_fail(CT_ECONFIG, "schedule %s is not of plugin %s", schedule, plugin->name);
    if (rc == 0)
        rc = ct_options_set(
            plugin->options, plugin->config,
            ct_arena_printf(&scratch, "%.*s", key - section - 1, setting + section + 1),
            setting + key + 1, plugin->name);
    ct_arena_finish(&scratch);
    return rc < 0 ? ct_context(rc, "--set %s", setting) : 0;
}

static int make(const struct request *r, struct ct_arena *arena, struct ct_schedule **schedule)
{
    const struct ct_schedule_ops *ops;
    struct ct_schedule_request request = {(int)r->ranks, (int)r->stages, (int)r->microbatches,
                                          arena};
    int rc;

    if (r->csv)
        return ct_schedule_read_csv(arena, r->csv, (int)r->ranks, (int)r->stages,
                                    (int)r->microbatches, schedule);
    rc = find_schedule(r->name, &ops);
    for (size_t i = 0; rc >= 0 && i < r->set.count; i++)
        rc = set_option(r->name, r->set.at[i]);
    if (rc < 0)
        return rc;
    if (request.stages < 0)
        request.stages = (int)r->ranks * (ops->stages_per_rank_min ? ops->stages_per_rank_min : 1);
    return ct_schedule_generate(ops, r->name, &request, schedule);
}

/* ---- facts about the schedule ---- */

static struct ct_costs costs_of(const struct request *r, const struct ct_schedule *s)
{
    double share = (double)s->ranks / s->stages;

    return (struct ct_costs){.forward = r->costs[0] * share,
                             .input = r->costs[1] * share,
                             .weight = r->costs[2] * share,
                             .send = r->costs[3]};
}

/* A copy with communication added, or the schedule itself if it has communication. */
static int with_communication(const struct request *r, struct ct_schedule *schedule,
                              struct ct_schedule **full)
{
    struct ct_costs costs = costs_of(r, schedule);
    struct ct_communicate_options everything = {true, 3, true, &costs};

    *full = schedule;
    if (schedule->communicates)
        return 0;
    *full = ct_arena_copy(schedule->arena, schedule, sizeof(*schedule));
    (*full)->lists = ct_arena_copy(schedule->arena, schedule->lists,
                                   sizeof(*schedule->lists) * (size_t)schedule->ranks);
    return ct_schedule_communicate(*full, &everything);
}

/* Verify both and write the proof. A CSV that deadlocks with one stream is valid, with a note. */
static int prove(struct ct_schedule *schedule, struct ct_schedule *full, FILE *proof)
{
    char *deadlock;
    int rc = ct_schedule_verify(full, NULL, proof);

    if (rc == 0 || full != schedule)
        return rc;
    deadlock = ct_arena_strdup(schedule->arena, ct_error_message());
    full->own_streams = true;
    if (ct_schedule_verify(full, NULL, proof) < 0)
        return CT_EINVAL;
    fprintf(proof, "but it deadlocks with one stream: %s\n", deadlock);
    return 0;
}

/* At most this many ranks are listed. */
#define LISTED 32

static void print_ranks(const struct ct_schedule *s, const struct ct_simulation *x)
{
    int step = (s->ranks + LISTED - 1) / LISTED;
    double whole = (double)s->ranks / s->stages;

    printf("\n%-6s %10s %10s  %s\n", "rank", "busy", "idle",
           "most activations in memory, if freed at I, at W (in microbatches of all its layers)");
    for (int r = 0; r < s->ranks; r += step)
        printf("%-6d %10.4g %10.4g  %.4g, %.4g\n", r, x->busy[r], x->makespan - x->busy[r],
               x->peak_freed_at_i[r] * whole, x->peak_freed_at_w[r] * whole);
    if (step > 1)
        printf("(one in %d ranks is listed)\n", step);
}

static void print_summary(const struct request *r, const struct ct_schedule *s,
                          const struct ct_simulation *x)
{
    printf("%s: %d rank%s, %d stage%s, %d microbatch%s\n", s->name, s->ranks, ct_plural(s->ranks),
           s->stages, ct_plural(s->stages), s->microbatches, s->microbatches == 1 ? "" : "es");
    printf("a rank's layers take F %g, I %g, W %g for one microbatch; a transfer %g\n\n",
           r->costs[0], r->costs[1], r->costs[2], r->costs[3]);
    draw_timeline(s, x);
    printf("\n%g time, of which %g (%.1f%%) is bubble\n", x->makespan, x->bubble,
           100 * x->fraction);
    print_ranks(s, x);
}

/* ---- JSON ---- */

static json_t *actions_json(const struct ct_schedule *s, const struct ct_simulation *x, int rank)
{
    const struct ct_action_list *list = &s->lists[rank];
    json_t *all = json_array();
    char text[96];

    for (size_t i = 0; i < list->count; i++) {
        ct_action_print(&list->item[i], text, sizeof(text));
        json_array_append_new(all, json_pack("{s:s, s:o, s:o}", "action", text, "start",
                                             ct_json_number(x->start[rank][i]), "end",
                                             ct_json_number(x->end[rank][i])));
    }
    return all;
}

static json_t *ranks_json(const struct ct_schedule *s, const struct ct_simulation *x)
{
    double whole = (double)s->ranks / s->stages;
    json_t *all = json_array();

    for (int r = 0; r < s->ranks; r++)
        json_array_append_new(
            all,
            json_pack("{s:i, s:o, s:o, s:o, s:o, s:o}", "rank", r, "busy",
                      ct_json_number(x->busy[r]), "idle", ct_json_number(x->makespan - x->busy[r]),
                      "most_alive_until_i", ct_json_number(x->peak_freed_at_i[r] * whole),
                      "most_alive_until_w", ct_json_number(x->peak_freed_at_w[r] * whole),
                      "actions", actions_json(s, x, r)));
    return all;
}

/* proof: lines. */
static json_t *proof_json(const char *proof)
{
    json_t *lines = json_array();

    while (*proof) {
        size_t length = strcspn(proof, "\n");

        json_array_append_new(lines, json_stringn(proof, length));
        proof += length + (proof[length] == '\n');
    }
    return lines;
}

static int print_json(const struct request *r, const struct ct_schedule *s,
                      const struct ct_simulation *x, const char *proof)
{
    return ct_json_print(json_pack("{s:o, s:i, s:i, s:[o, o, o, o], s:o, s:o, s:o, s:o, s:o}",
                                   "name", ct_json_text(s->name), "stages", s->stages,
                                   "microbatches", s->microbatches, "costs",
                                   ct_json_number(r->costs[0]), ct_json_number(r->costs[1]),
                                   ct_json_number(r->costs[2]), ct_json_number(r->costs[3]), "time",
                                   ct_json_number(x->makespan), "bubble", ct_json_number(x->bubble),
                                   "bubble_percent", ct_json_number(100 * x->fraction), "ranks",
                                   ranks_json(s, x), "valid", proof_json(proof)),
                         stdout);
}

/* ---- files ---- */

static void print_csv(const void *schedule, FILE *out)
{
    ct_schedule_write_csv(schedule, out);
}

/* ---- the verb ---- */

static int show(const struct request *r, struct ct_schedule *schedule, FILE *proof, char **text)
{
    struct ct_schedule *full = schedule, *shown;
    struct ct_simulation simulation;
    struct ct_costs costs;
    int rc = schedule->communicates ? 0 : ct_schedule_verify(schedule, NULL, NULL);

    if (rc == 0)
        rc = with_communication(r, schedule, &full);
    if (rc == 0)
        rc = prove(schedule, full, proof);
    if (rc < 0)
        return rc;
    shown = r->comm ? full : schedule;
    costs = costs_of(r, schedule);
    rc = ct_schedule_simulate(shown, &costs, schedule->arena, &simulation);
    if (rc < 0)
        return rc;
    if (r->svg)
        rc = write_svg(shown, &simulation, r->svg);
    if (rc == 0 && r->write_csv)
        rc = ct_file_print(r->write_csv, print_csv, shown);
    if (rc < 0)
        return rc;
    fflush(proof);
    if (r->json)
        return print_json(r, shown, &simulation, *text);
    print_summary(r, shown, &simulation);
    printf("\nvalid:\n%s", *text);
    return 0;
}

static int schedule_verb(int argc, char **argv)
{
    struct ct_arena arena = {0};
    struct ct_schedule *schedule;
    struct request request;
    char *text = NULL;
    size_t size;
    FILE *proof = NULL;
    int rc = parse(argc, argv, &request);

    if (rc == 0)
        rc = make(&request, &arena, &schedule);
    if (rc < 0)
        goto out;
    proof = open_memstream(&text, &size);
    rc = proof ? show(&request, schedule, proof, &text) : ct_fail(CT_ENOMEM, "no memory");
out:
    if (proof)
        fclose(proof);
    free(text);
    ct_arena_finish(&arena);
    ct_arena_finish(&request.arena);
    return rc;
}

const struct verb verb_schedule = {
    .name = "schedule",
    .summary = "draw, time and verify a pipeline schedule",
    .run = schedule_verb,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan schedule 1f1b --ranks 4 --microbatches 8",
                         "ctitan schedule zbv --ranks 4 --microbatches 8 --svg zbv.svg")};
