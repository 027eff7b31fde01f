/*
 * What the simulator says of a schedule, for measured times.
 *
 *     predict SCHEDULE.so RANKS STAGES MICROBATCHES TIMES STAGES_FILE
 *
 * TIMES: seconds by region of a run in which each rank has the whole model (pipeline_times),
 * STAGES_FILE: the stages that the regions have, one "region stage" a line. Prints the seconds that
 * a step takes: the schedule's makespan, and what comes before and after the microbatches.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugin.h>
#include <ctitan/schedule.h>

#define MOST 64

struct times {
    double of[3][MOST]; /* F, I, W by stage, of one microbatch */
    double outside;     /* of the whole model, in the parts before and after */
};

static int stage_of(const char *path, const char *region)
{
    FILE *in = fopen(path, "r");
    char name[64];
    int stage, found = -1;

    if (!in)
        return -1;
    while (found < 0 && fscanf(in, "%63s %d", name, &stage) == 2)
        if (!strcmp(name, region))
            found = stage;
    fclose(in);
    return found;
}

static int read_times(const char *path, const char *stages, int microbatches, struct times *t)
{
    static const char parts[] = "FIW";
    FILE *in = fopen(path, "r");
    char part[16], region[64];
    double seconds;
    int stage;

    if (!in)
        return ct_fail(CT_ENOENT, "%s cannot be read", path);
    while (fscanf(in, "%15s %63s %d %lf", part, region, &stage, &seconds) == 4) {
        const char *which = strlen(part) == 1 ? strchr(parts, *part) : NULL;

        stage = stage_of(stages, region);
        if (!which)
            t->outside += seconds;
        else if (stage >= 0 && stage < MOST)
            t->of[which - parts][stage] += seconds / microbatches;
    }
    fclose(in);
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
    const struct ct_plugin *plugin;
    struct ct_simulation result;
    struct times times = {0};
    int rc;

    if (argc != 7) {
        fprintf(stderr, "usage: predict SCHEDULE.so RANKS STAGES MICROBATCHES TIMES STAGES_FILE\n");
        return 2;
    }
    request.ranks = atoi(argv[2]);
    request.stages = atoi(argv[3]);
    request.microbatches = atoi(argv[4]);
    rc = ct_plugin_open(argv[1], &plugin);
    if (rc == 0)
        rc = read_times(argv[5], argv[6], request.microbatches, &times);
    if (rc == 0)
        rc = simulate(plugin->offers[0].ops, &request, &times, &result);
    if (rc < 0) {
        fprintf(stderr, "predict: %s\n", ct_error_message());
        return 1;
    }
    printf("%.6f %.6f %.3f\n", result.makespan, times.outside / request.ranks, result.fraction);
    ct_arena_finish(&arena);
    return 0;
}
