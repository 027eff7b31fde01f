/*
 * Cost of the flight recorder: nanoseconds of an event and of a record, and its share of a step
 * of the debug model.
 *
 *     build/bench/flight/flight [ROUNDS]
 *
 * Run in the root of the sources. A record is a call's beginning and end, with the dispatch to the
 * hook and both readings of the clock. The share is the number of events in a step times their
 * cost; steps with and without the recorder, of processes that take turns, are for comparison.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/lib/measure.h>
#include <ctitan/lib/ops.h>
#include <ctitan/recipe.h>
#include <ctitan/run.h>
#include <ctitan/train.h>

#define EVENTS 200000
#define STEPS 6

enum mode { NONE, CALLS, ALL, MODES };

struct result {
    double step, op, record; /* seconds */
    double ops;              /* instructions of a step */
};

static double steps[STEPS];
static size_t count;

static int remember(const struct ct_event_data *data, void *context)
{
    (void)context;
    steps[count++ % STEPS] = data->result->seconds;
    return 0;
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook), .events = 1u << CT_EVENT_STEP_END, .call = remember};

static void check(int rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "flight: %s\n", ct_error_message());
    exit(1);
}

/* Seconds of one pair of events. */
static double time_pairs(const struct ct_event_data *given, enum ct_event begin, enum ct_event end)
{
    struct ct_event_data a = *given, b = *given;
    double start = ct_now();

    a.event = begin;
    b.event = end;
    for (int i = 0; i < EVENTS; i++) {
        ct_hook_fire(&a);
        ct_hook_fire(&b);
    }
    return (ct_now() - start) / EVENTS;
}

static void time_events(struct ct_run *run, struct result *r)
{
    const struct ct_instruction *i = &run->program->step[0];
    struct ct_call call = {.kind = CT_CALL_BARRIER, .group = ct_run_world(run)};

    r->record = time_pairs(&(struct ct_event_data){.group = call.group, .call = &call},
                           CT_EVENT_CALL_BEGIN, CT_EVENT_CALL_END);
    r->op = time_pairs(&(struct ct_event_data){.run = run,
                                               .program = run->program,
                                               .instruction = i,
                                               .launch = &i->lowered->launch,
                                               .section = i->op->section->name,
                                               .microbatch = i->microbatch},
                       CT_EVENT_OP_BEGIN, CT_EVENT_OP_END);
}

static void measure(enum mode mode, const char *folder, struct result *r)
{
    struct ct_run_options options = {.depth = CT_RUN_READY};
    struct ct_arena arena = {0};
    struct ct_recipe *recipe;
    struct ct_run *run;
    char text[256];

    check(ct_ops_register());
    check(ct_recipe_read(&arena, "recipes/debug.ini", &recipe));
    check(ct_recipe_without(recipe, "metrics"));
    if (mode != NONE)
        check(ct_recipe_with(recipe, "flight_recorder"));
    if (mode != NONE)
        check(ct_recipe_set(recipe, mode == ALL ? "flight_recorder.record=all"
                                                : "flight_recorder.record=calls"));
    snprintf(text, sizeof(text), "training.steps=%d", STEPS);
    check(ct_recipe_set(recipe, text));
    snprintf(text, sizeof(text), "job.dump_folder=%s", folder);
    check(ct_recipe_set(recipe, text));
    check(ct_recipe_apply(recipe));
    check(ct_hook_register(&hook, NULL));
    check(ct_run_open(recipe, &options, &run));
    check(ct_run_train(run));
    r->step = ct_median(steps, count < STEPS ? count : STEPS);
    r->ops = (double)run->program->step_count;
    ct_run_close(run);
    if (mode == NONE)
        return;
    check(ct_run_open(recipe, &options, &run));
    time_events(run, r);
}

/* Measure in a process of its own: hooks stay registered. */
static struct result measure_apart(enum mode mode, const char *folder)
{
    struct result r = {0};
    int ends[2], status;
    pid_t child;

    if (pipe(ends) < 0 || (child = fork()) < 0)
        exit(1);
    if (child == 0) {
        measure(mode, folder, &r);
        _exit(write(ends[1], &r, sizeof(r)) != sizeof(r));
    }
    close(ends[1]);
    if (read(ends[0], &r, sizeof(r)) != sizeof(r) || waitpid(child, &status, 0) != child || status)
        exit(1);
    close(ends[0]);
    return r;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"without", "record = calls", "record = all"};
    char folder[] = "/tmp/ctitan-flight-XXXXXX";
    int rounds = argc > 1 ? atoi(argv[1]) : 3;
    double step[MODES][99], op[MODES][99], record[MODES][99], ops = 0;

    if (rounds < 1 || rounds > 99 || !mkdtemp(folder))
        return 2;
    for (int n = 0; n < rounds; n++)
        for (int m = 0; m < MODES; m++) {
            struct result r = measure_apart((enum mode)m, folder);

            step[m][n] = r.step;
            op[m][n] = r.op;
            record[m][n] = r.record;
            ops = r.ops;
        }
    printf("%-16s %10s %14s %12s %10s\n", "", "step, ms", "instruction, ns", "record, ns", "share");
    for (int m = 0; m < MODES; m++) {
        double s = ct_median(step[m], (size_t)rounds), o = ct_median(op[m], (size_t)rounds);

        printf("%-16s %10.2f %14.0f %12.0f %9.3f%%\n", names[m], s * 1e3, o * 1e9,
               ct_median(record[m], (size_t)rounds) * 1e9, 100 * ops * o / s);
    }
    return 0;
}
