/*
 * Describes this machine while a recipe trains on it: a file for `ctitan plan --device` and
 * `ctitan simulate` (lib/machine.h).
 *
 * From the third step on, each instruction that computes is timed where it runs, with its caches
 * and its neighbours, from the end of the collectives that it waits for, and each collective from
 * its start to its end on its stream. Calls of the same op, shapes and dtype count together, by
 * their median; of a collective the shortest counts, as the others wait for ranks that come late.
 * What is added to a description takes the shorter time where both have it, and of the machine all
 * that the description says.
 * The file lists all calls that were seen, and for each op a curve, from which other sizes are
 * interpolated; other ops with FLOPs follow the mean of those, and other ones that of the rest.
 *
 * Only for devices whose kernels run on the host's threads.
 */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/measure.h>
#include <ctitan/plugin.h>
#include <ctitan/stage.h>
#include <ctitan/train.h>

#include "describe.h"

#define WARM 2   /* steps that are not counted */
#define NAP 0.03 /* seconds that a measurement takes */

struct describe describe;

static struct config {
    const char *file;
    bool add;
    int64_t steps;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, file, "file", NULL, "The description to write"),
    CT_OPT_BOOL(
        struct config, add, "add", "false",
        "Keep what the file says, if it is there; of calls that both have, the shorter time"),
    CT_OPT_INT(struct config, steps, "steps", "0", 0, DESCRIBE_SAMPLES,
               "Steps to measure, from the third on, after which the run ends; 0: it goes on"),
    {0}};

/* ---- timing ---- */

static bool counts(const struct ct_event_data *d)
{
    return describe.sample && d->run && d->program == d->run->program && d->index >= 0 &&
           d->step > WARM;
}

static int begin(const struct ct_event_data *d)
{
    if (counts(d))
        describe.sample[d->index].began = d->time;
    return 0;
}

/* OP_BEGIN comes before the instruction waits for collectives on other streams. */
static double began(const struct ct_event_data *d)
{
    double time = describe.sample[d->index].began;

    for (const int32_t *w = d->instruction->waits; w && *w >= 0; w++)
        if (describe.signaller[*w] >= 0)
            time = fmax(time, describe.sample[describe.signaller[*w]].ended);
    return time;
}

static int end(const struct ct_event_data *d)
{
    struct describe_sample *s = counts(d) ? &describe.sample[d->index] : NULL;

    if (!s)
        return 0;
    if (describe_communicates(d->instruction))
        s->ended = d->time;
    if (s->count < DESCRIBE_SAMPLES)
        s->seconds[s->count++] = d->time - began(d);
    return 0;
}

static void find_signallers(const struct ct_program *program)
{
    describe.signaller = ct_arena_array(&describe.arena, int32_t, program->events + 1);
    memset(describe.signaller, -1, sizeof(*describe.signaller) * ((size_t)program->events + 1));
    for (size_t n = 0; n < program->step_count; n++)
        if (program->step[n].signal >= 0 && describe_communicates(&program->step[n]))
            describe.signaller[program->step[n].signal] = (int32_t)n;
}

/* ---- before the first step ---- */

/* The speed of GEMMs of rank 0 while the other ranks multiply, too, over their speed alone:
   ranks may share processors, even where each has a core in name. */
static int measure_alone(struct ct_run *run, double *alone)
{
    struct ct_group *world = ct_run_world(run);
    double speed[2] = {1, 1}, ignored;
    int rc = 0;

    for (int together = 0; rc == 0 && run->world > 1 && together < 2; together++) {
        rc = ct_group_barrier(world);
        if (rc == 0 && run->rank == 0) {
            ct_nap(together * NAP);
            rc = ct_measure_gemm(run->device, CT_BF16, &speed[together]);
        }
        for (int i = 0; rc == 0 && run->rank != 0 && together && i < 4; i++)
            rc = ct_measure_gemm(run->device, CT_BF16, &ignored);
    }
    *alone = fmin(1, speed[1] / speed[0]);
    return rc < 0 ? rc : ct_group_barrier(world);
}

/* Shares of peaks are comparable only with the same peaks, and times with the same sharing of
   processors. */
static int read_old(const struct ct_run *run)
{
    int rc = ct_machine_read(&describe.arena, config.file, &describe.old);

    if (rc < 0)
        return ct_context(rc, "[describe] add");
    if (describe.old->ranks_per_host != run->world || describe.old->in_order != (run->world > 1))
        return ct_fail(
            CT_ECONFIG,
            "[describe] add: %s describes a host of %lld ranks%s, and this run has %lld: "
            "describe it in another file",
            config.file, (long long)describe.old->ranks_per_host,
            describe.old->in_order ? ", whose streams share processors" : "",
            (long long)run->world);
    describe.machine = *describe.old;
    return 0;
}

static int too_few_steps(void)
{
    return ct_fail(CT_ECONFIG, "plugin describe needs more than %d steps", WARM);
}

static int ready(struct ct_run *run)
{
    double f32 = 0, bf16 = 0, bandwidth = 0;
    int rc = 0;

    if (!run->device->host_memory)
        return ct_fail(CT_ECONFIG,
                       "plugin describe can only measure devices whose kernels run on the host's "
                       "threads, not %s: write its description by hand",
                       run->device->name);
    if (ct_stage_count() > 1)
        return ct_fail(CT_ECONFIG, "plugin describe measures the steps of one program: leave out "
                                   "[stage.N] and [training] batch_ramp");
    if (ct_config.training.steps <= WARM)
        return too_few_steps();
    if (run->rank == 0 && ct_file_try(config.file) < 0)
        return ct_context(CT_ECONFIG, "[describe] file = %s", config.file);
    describe.sample =
        ct_arena_array(&describe.arena, struct describe_sample, run->program->step_count);
    find_signallers(run->program);
    if (config.add && access(config.file, F_OK) == 0)
        return read_old(run);
    rc = ct_measure_gemm(run->device, CT_F32, &f32);
    if (rc == 0)
        rc = ct_measure_gemm(run->device, CT_BF16, &bf16);
    if (rc == 0)
        rc = ct_measure_bandwidth(run->device, &bandwidth);
    if (rc == 0)
        rc = measure_alone(run, &describe.machine.contention.alone);
    describe.machine.peak.float32 = f32;
    describe.machine.peak.bfloat16 = bf16;
    describe.machine.peak.bandwidth = bandwidth;
    return rc;
}

/* ---- events ---- */

static int step_end(const struct ct_event_data *d)
{
    if (d->step > WARM && describe.steps < DESCRIBE_SAMPLES)
        describe.step[describe.steps++] = d->result->seconds - d->result->data_seconds;
    if (config.steps && describe.steps >= config.steps)
        ct_run_stop(d->run, "[describe] steps");
    return 0;
}

static int on_event(const struct ct_event_data *d, void *context)
{
    (void)context;
    switch (d->event) {
    case CT_EVENT_RUN_READY:
        return ready(d->run);
    case CT_EVENT_OP_BEGIN:
        return describe_communicates(d->instruction) ? 0 : begin(d);
    case CT_EVENT_OP_END:
        return describe_communicates(d->instruction) ? 0 : end(d);
    case CT_EVENT_COLLECTIVE_STARTED:
        return begin(d);
    case CT_EVENT_COLLECTIVE_FINISHED:
        return end(d);
    case CT_EVENT_STEP_END:
        return step_end(d);
    case CT_EVENT_RUN_END:
        if (d->run->rank != 0)
            return 0;
        if (!describe.steps)
            return too_few_steps();
        return describe_write(d->run, config.file);
    default:
        return 0;
    }
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook),
    .events = 1u << CT_EVENT_RUN_READY | 1u << CT_EVENT_OP_BEGIN | 1u << CT_EVENT_OP_END |
              1u << CT_EVENT_COLLECTIVE_STARTED | 1u << CT_EVENT_COLLECTIVE_FINISHED |
              1u << CT_EVENT_STEP_END | 1u << CT_EVENT_RUN_END,
    .call = on_event};

CT_PLUGIN(.name = "describe", .version = "1.0",
          .summary = "Measures this machine while a recipe trains, for plans and simulations",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_HOOK, "describe", &hook}));
