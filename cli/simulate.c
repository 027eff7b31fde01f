/*
 * simulate: one step of all ranks on a virtual clock, as text, trace and picture.
 */
#include <stdio.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>
#include <ctitan/run.h>

#include "cli.h"

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

static int simulate(struct ct_recipe *recipe, struct args *args)
{
    struct ct_simulate_request request;
    struct ct_simulated result;
    struct planned planned;
    int rc = plan_open(recipe, args, &planned);

    if (rc < 0)
        return rc;
    rc = plan_simulate(&planned, args, &request, &result);
    if (rc == 0 && args->json) {
        rc = ct_json_print(times_json(&planned, args, &result), stdout);
    } else if (rc == 0) {
        print_times(&planned, args, &result);
        print_ranks(&request, &result);
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
    ARG_DEVICE("The described machine that is simulated: NAME or a file; required"),
    CT_ARG_TAKE(struct args, slow, "slow", 0, "RANK:FACTOR",
                "Let a rank compute FACTOR times as long, like 3:1.5", args_take_slow),
    CT_ARG_TEXT(struct args, trace, "trace", 0, "FILE", "Write a trace for Perfetto"),
    CT_ARG_TEXT(struct args, svg, "svg", 0, "FILE", "Write a picture of the step"),
    ARG_JSON,
    {0}};

static int simulate_verb(int argc, char **argv)
{
    struct ct_recipe *recipe = NULL;
    struct args args = {0};
    int rc = args_parse(arguments, argc, argv, &args);

    if (rc < 0)
        return rc;
    if (!args.device)
        rc = ct_fail(CT_ECONFIG, "simulate: --device is missing: the description of a machine; "
                                 "`ctitan doctor --describe FILE` writes this machine's");
    if (rc == 0)
        rc = args_recipe(&args, &recipe);
    if (rc == 0)
        rc = simulate(recipe, &args);
    return args_finish(&args, rc);
}

const struct verb verb_simulate = {
    .name = "simulate",
    .summary = "simulate one step of all ranks on a virtual clock",
    .run = simulate_verb,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan simulate recipes/debug.ini --device this --world 2 --with fsdp",
                         "ctitan simulate recipes/debug.ini --device this --svg step.svg"),
    .details = "`ctitan doctor --describe NAME` describes this machine for --device NAME.\n"};
