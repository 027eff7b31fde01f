/*
 * `ctitan check`: schedules are generated, verified, given communication, verified again, and
 * simulated, over a grid of ranks, stages and microbatches.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/pipeline.h>

#include "check.h"

#define MOST_RANKS 8
#define MOST_LOOPS 4
#define MOST_MICROBATCHES 24
#define WHY 256

struct row {
    int passed, refused;
    double least_bubble, most_bubble; /* in units of F + B of a rank's layers */
    double peak;   /* most of any rank, freed at W, in microbatches of all its layers */
    char why[WHY]; /* the last refusal */
};

static int verify(struct ct_schedule *s)
{
    static const struct ct_communicate_options everything = {true, 3, true, NULL};
    int rc = ct_schedule_verify(s, NULL, NULL);

    if (rc == 0)
        rc = ct_schedule_communicate(s, &everything);
    if (rc == 0)
        rc = ct_schedule_verify(s, NULL, NULL);
    if (rc == 0)
        rc = ct_schedule_prefetch(s);
    return rc == 0 ? ct_schedule_verify(s, NULL, NULL) : rc;
}

static int measure(const struct ct_schedule *s, struct row *row)
{
    double share = (double)s->ranks / s->stages;
    struct ct_costs costs = {.forward = share, .input = share, .weight = share};
    struct ct_simulation x;
    int rc = ct_schedule_simulate(s, &costs, s->arena, &x);

    if (rc < 0)
        return rc;
    if (!row->passed || x.bubble / 3 < row->least_bubble)
        row->least_bubble = x.bubble / 3;
    if (x.bubble / 3 > row->most_bubble)
        row->most_bubble = x.bubble / 3;
    for (int r = 0; r < s->ranks; r++)
        if (x.peak_freed_at_w[r] * share > row->peak)
            row->peak = x.peak_freed_at_w[r] * share;
    return 0;
}

static int check_case(const struct ct_offer *offer, int ranks, int stages, int microbatches,
                      struct row *row)
{
    struct ct_arena arena = {0};
    struct ct_schedule_request request = {ranks, stages, microbatches, &arena};
    const struct ct_schedule_ops *ops;
    struct ct_schedule *schedule;
    int rc = ct_schedule_offered(offer, &ops);
    bool refused;

    if (rc == 0)
        rc = ct_schedule_generate(ops, offer->name, &request, &schedule);
    refused = rc == CT_ECONFIG;
    if (refused)
        snprintf(row->why, sizeof(row->why), "%s", ct_error_message());
    if (rc == 0)
        rc = verify(schedule);
    if (rc == 0)
        rc = measure(schedule, row);
    ct_arena_finish(&arena);
    row->passed += rc == 0;
    row->refused += refused;
    return rc == 0 || refused ? 0
                              : ct_context(CT_EINVAL, "%d ranks, %d stages, %d microbatches", ranks,
                                           stages, microbatches);
}

/* Print a row, or count it as refused, with the first reason. */
static int check_row(const struct ct_offer *offer, int ranks, int loops, int *passed, int *refused,
                     char why[WHY])
{
    struct row row = {0};
    int rc = 0;

    for (int m = 1; rc == 0 && m <= MOST_MICROBATCHES; m++)
        rc = check_case(offer, ranks, loops * ranks, m, &row);
    if (rc < 0)
        return rc;
    *passed += row.passed;
    if (!row.passed) {
        if (!(*refused)++)
            snprintf(why, WHY, "%s", row.why);
        return 0;
    }
    if (check_says_json())
        return 0;
    printf("%5d %6d %7d %8d", ranks, loops * ranks, row.passed, row.refused);
    if (row.least_bubble < row.most_bubble)
        printf("  %6.3g to %-6.3g %6.3g\n", row.least_bubble, row.most_bubble, row.peak);
    else
        printf("  %6.3g %9s %6.3g\n", row.most_bubble, "", row.peak);
    return 0;
}

static void print_heading(const struct ct_offer *offer)
{
    printf("schedule %s, 1 to %d microbatches; F, I and W take the same time\n\n", offer->name,
           MOST_MICROBATCHES);
    printf("%5s %6s %7s %8s  %-16s %s\n", "ranks", "stages", "passed", "refused", "bubble / (F+B)",
           "most alive until W");
}

int check_schedule(struct check *c, const struct ct_offer *offer)
{
    int rc = 0, passed = 0, refused = 0;
    char why[WHY];

    if (!check_says_json())
        print_heading(offer);
    for (int ranks = 1; rc == 0 && ranks <= MOST_RANKS; ranks++)
        for (int loops = 1; rc == 0 && loops <= MOST_LOOPS; loops++)
            rc = check_row(offer, ranks, loops, &passed, &refused, why);
    if (rc < 0)
        return rc;
    if (!passed)
        return ct_fail(CT_EINVAL, "schedule %s refuses every case", offer->name);
    if (refused)
        check_note(offer->name, ct_arena_printf(&c->arena,
                                                "%d of %d numbers of ranks and stages are "
                                                "refused: %s",
                                                refused, MOST_RANKS * MOST_LOOPS, why));
    check_result(c, 0, "schedule %s: %d cases verified", offer->name, passed);
    return 0;
}
