/*
 * The simulator's prediction for a schedule, from measured times.
 *
 *     predict SCHEDULE.so RANKS STAGES MICROBATCHES TIMES...
 *
 * TIMES: files of pipeline_times, one for each rank. Prints the schedule's makespan and the longest
 * time of a rank before and after the microbatches, in seconds, and the share of the makespan that
 * is bubble.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugin.h>
#include <ctitan/lib/pipeline.h>

#define MOST 64

struct times {
    double of[3][MOST]; /* F, I, W by stage, of one microbatch */
    double outside;
};

static int read_times(const char *path, struct times *t)
{
    static const char parts[] = "FIW";
    FILE *in = fopen(path, "r");
    double seconds, outside = 0;
    char part[16];
    int stage;

    if (!in)
        return ct_fail(CT_ENOENT, "%s cannot be read", path);
    while (fscanf(in, "%15s %d %lf", part, &stage, &seconds) == 3) {
        const char *which = strlen(part) == 1 ? strchr(parts, *part) : NULL;

        if (!which)
            outside += seconds;
        else if (stage >= 0 && stage < MOST)
            t->of[which - parts][stage] += seconds;
    }
    fclose(in);
    if (outside > t->outside)
        t->outside = outside;
    return 0;
}

static int simulate(const struct ct_schedule_ops *ops, const struct ct_schedule_request *request,
                    const struct times *t, struct ct_simulation *result)
{
    struct ct_costs costs = {.forward_of = t->of[0], .input_of = t->of[1], .weight_of = t->of[2]};
    struct ct_communicate_options options = {0};
    struct ct_schedule *schedule;
    int rc = ct_schedule_generate(ops, "schedule", request, &schedule);

    if (rc == 0)
        rc = ct_schedule_communicate(schedule, &options);
    if (rc == 0)
        rc = ct_schedule_prefetch(schedule);
    return rc == 0 ? ct_schedule_simulate(schedule, &costs, request->arena, result) : rc;
}

int main(int argc, char **argv)
{
    struct ct_arena arena = {0};
    struct ct_schedule_request request = {.arena = &arena};
    const struct ct_plugin *plugin = NULL;
    struct ct_simulation result;
    struct times times = {0};
    int rc;

    if (argc < 6) {
        fprintf(stderr, "usage: predict SCHEDULE.so RANKS STAGES MICROBATCHES TIMES...\n");
        return 2;
    }
    request.ranks = atoi(argv[2]);
    request.stages = atoi(argv[3]);
    request.microbatches = atoi(argv[4]);
    rc = ct_plugin_open(argv[1], &plugin);
    for (int i = 5; rc == 0 && i < argc; i++)
        rc = read_times(argv[i], &times);
    if (rc == 0)
        rc = simulate(plugin->offers[0].ops, &request, &times, &result);
    if (rc < 0) {
        fprintf(stderr, "predict: %s\n", ct_error_message());
        return 1;
    }
    printf("%.6f %.6f %.3f\n", result.makespan, times.outside, result.fraction);
    ct_arena_finish(&arena);
    return 0;
}
