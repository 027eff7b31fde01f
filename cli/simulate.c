/*
 * simulate: one step of all ranks on a virtual clock, as text, trace and picture.
 */
#include <jansson.h>
#include <stdio.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>
#include <ctitan/run.h>

#include "cli.h"
#include "goodput.h"

typedef int writer(const struct ct_simulate_request *, const struct ct_simulated *, FILE *);

static int write_to(const char *path, writer *write, const struct ct_simulate_request *request,
                    const struct ct_simulated *result)
{
    struct ct_new_file file;
    int rc = ct_file_begin(&file, path);

    if (rc < 0)
        return ct_context(CT_ECONFIG, "--trace, --svg");
    rc = write(request, result, file.out);
    if (rc < 0)
        ct_context(rc, "%s", path);
    rc = ct_file_end(&file, rc);
    if (rc == 0)
        fprintf(stderr, "wrote %s\n", path);
    return rc;
}

static void print_ranks(const struct ct_simulate_request *r, const struct ct_simulated *result)
{
    printf("\n  %-8s %12s %12s %12s %12s\n", "rank", "computes", "exposed", "hidden", "waits");
    for (int n = 0; n < r->count && n < 64; n++) {
        const struct ct_rank_times *t = &result->times[n];

        printf("  %-8lld %9.3f ms %9.3f ms %9.3f ms %9.3f ms\n", (long long)r->rank[n],
               (t->products + t->others) * 1e3, t->exposed * 1e3, t->hidden * 1e3,
               t->waiting * 1e3);
    }
    if (r->count > 64)
        printf("  and %d more\n", r->count - 64);
}

/* ---- hosts that fail ---- */

struct simulate_args {
    struct args args;
    double mtbf, repair, restart, save, stall; /* hours, hours, seconds */
    int64_t hosts, spares, interval;
};

static struct json_t *goodput_json(int64_t interval, const struct goodput *g)
{
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o}", "interval", (json_int_t)interval, "trained",
                     ct_json_number(g->trained), "stalled", ct_json_number(g->stalled), "redone",
                     ct_json_number(g->redone), "restarted", ct_json_number(g->restarted), "waited",
                     ct_json_number(g->waited));
}

static void print_goodput(const char *what, int64_t interval, double step, const struct goodput *g)
{
    printf("  %-11s checkpoint every %lld step%s (%.1f min): %.2f %% training, %.2f %% done again, "
           "%.2f %% restarts",
           what, (long long)interval, ct_plural(interval), (double)interval * step / 60,
           100 * g->trained, 100 * g->redone, 100 * g->restarted);
    if (g->stalled > 0)
        printf(", %.2f %% saving", 100 * g->stalled);
    if (g->waited > 0)
        printf(", %.2f %% waiting for hosts", 100 * g->waited);
    printf("\n");
}

/* With JSON the results become members of `times`. */
static void simulate_failures(const struct simulate_args *args, double step, struct json_t *times)
{
    struct failing_run run = {.step = step,
                              .mtbf = 3600 * args->mtbf,
                              .repair = 3600 * args->repair,
                              .restart = args->restart,
                              .save = args->save,
                              .stall = args->stall,
                              .hosts = args->hosts,
                              .spares = args->spares};
    struct goodput best, asked;
    int64_t interval = goodput_best(&run, &best);

    if (args->interval)
        goodput_simulate(&run, args->interval, &asked);
    if (times) {
        json_object_set_new(times, "goodput_best", goodput_json(interval, &best));
        if (args->interval)
            json_object_set_new(times, "goodput", goodput_json(args->interval, &asked));
        return;
    }
    printf("\n  a host fails every %g h, so the job on %lld host%s every %.3g h\n", args->mtbf,
           (long long)args->hosts, ct_plural(args->hosts), args->mtbf / (double)args->hosts);
    if (args->interval)
        print_goodput("as asked:", args->interval, step, &asked);
    print_goodput("at best:", interval, step, &best);
}

static int check_failures(const struct simulate_args *args)
{
    if (args->mtbf && !args->hosts)
        return ct_fail(CT_ECONFIG, "--mtbf needs --hosts N, the hosts that train");
    if (!args->mtbf && (args->hosts || args->spares || args->interval))
        return ct_fail(CT_ECONFIG, "--hosts, --spares and --interval say how hosts fail: --mtbf "
                                   "HOURS is missing, the time between two failures of a host");
    return 0;
}

static int simulate(struct ct_recipe *recipe, struct simulate_args *all)
{
    struct args *args = &all->args;
    struct ct_simulate_request request;
    struct ct_simulated result;
    struct planned planned;
    int rc = plan_open(recipe, args, &planned);

    if (rc < 0)
        return rc;
    rc = plan_simulate(&planned, args, &request, &result);
    if (rc == 0 && args->json) {
        struct json_t *times = times_json(&planned, args, &result);

        if (all->mtbf)
            simulate_failures(all, result.seconds, times);
        rc = ct_json_print(times, stdout);
    } else if (rc == 0) {
        print_times(&planned, args, &result);
        print_ranks(&request, &result);
        if (all->mtbf)
            simulate_failures(all, result.seconds, NULL);
    }
    if (rc == 0 && args->trace)
        rc = write_to(args->trace, ct_simulated_trace, &request, &result);
    if (rc == 0 && args->svg)
        rc = write_to(args->svg, simulate_draw, &request, &result);
    plan_close(&planned);
    return rc;
}

static const struct ct_argument arguments[] = {
    ARG_RECIPE,
    ARG_CHANGES,
    ARG_LOCAL,
    ARG_WORLD,
    ARG_STAGE,
    ARG_DEVICE("The described machine that is simulated: NAME or a file; required"),
    CT_ARG_TAKE(struct args, slow, "slow", 0, "RANK:FACTOR",
                "Let a rank compute FACTOR times as long, like 3:1.5", args_take_slow),
    CT_ARG_TEXT(struct args, trace, "trace", 0, "FILE", "Write a trace for Perfetto"),
    CT_ARG_TEXT(struct args, svg, "svg", 0, "FILE", "Write a picture of the step"),
    CT_ARG_FLOAT(struct simulate_args, mtbf, "mtbf", 0, "HOURS", 1e-3, 1e9,
                 "Let hosts fail: the mean time between two failures of one of them"),
    CT_ARG_INT(struct simulate_args, hosts, "hosts", 0, "N", 1, 1e6,
               "With --mtbf: hosts that train"),
    CT_ARG_INT(struct simulate_args, spares, "spares", 0, "N", 0, 1000,
               "With --mtbf: hosts that wait to take the place of a broken one; 0 if left out"),
    CT_ARG_FLOAT(struct simulate_args, repair, "repair", 0, "HOURS", 0, 1e6,
                 "With --mtbf: until a broken host is back; 0 if left out"),
    CT_ARG_FLOAT(struct simulate_args, restart, "restart", 0, "SECONDS", 0, 1e6,
                 "With --mtbf: from a failure until the job trains again; 60 if left out"),
    CT_ARG_FLOAT(struct simulate_args, save, "save", 0, "SECONDS", 0, 1e6,
                 "With --mtbf: until a checkpoint is whole; 30 if left out"),
    CT_ARG_FLOAT(struct simulate_args, stall, "stall", 0, "SECONDS", 0, 1e6,
                 "With --mtbf: training stands still for a checkpoint; 1 if left out"),
    CT_ARG_INT(struct simulate_args, interval, "interval", 0, "STEPS", 1, 1e9,
               "With --mtbf: look at a checkpoint after every STEPS steps, too"),
    ARG_JSON,
    {0}};

static int simulate_verb(int argc, char **argv)
{
    struct ct_recipe *recipe = NULL;
    struct simulate_args all = {.restart = 60, .save = 30, .stall = 1};
    struct args *args = &all.args;
    int rc = args_parse(arguments, argc, argv, args);

    if (rc < 0)
        return rc;
    if (!args->device)
        rc = ct_fail(CT_ECONFIG, "simulate: --device is missing: the description of a machine; "
                                 "`ctitan doctor --describe FILE` writes this machine's");
    if (rc == 0)
        rc = check_failures(&all);
    if (rc == 0)
        rc = args_recipe(args, &recipe);
    if (rc == 0)
        rc = simulate(recipe, &all);
    return args_finish(args, rc);
}

const struct verb verb_simulate = {
    .name = "simulate",
    .summary = "simulate one step of all ranks on a virtual clock",
    .run = simulate_verb,
    .arguments = arguments,
    .examples =
        CT_NAMES("ctitan simulate recipes/debug.ini --device this --world 2 --with fsdp",
                 "ctitan simulate recipes/debug.ini --device this --svg step.svg",
                 "ctitan simulate R.ini --device h100-80g --world 512 --mtbf 5e4 --hosts 64"),
    .details = "`ctitan doctor --describe NAME` describes this machine for --device NAME.\n"};
