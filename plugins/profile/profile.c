/*
 * Profiles: when each instruction of a step began and ended on the device, and the memory in use.
 *
 * A step that is profiled is timed by the device itself: on CPUs by the clock around each call, on
 * GPUs by events around each launch. Other steps run as without this plugin, and no instruction is
 * added to any. Each rank writes a trace of the step (write.c); `ctitan compare RUN --plan` puts
 * the planned step beside it.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/log.h>
#include <ctitan/option_use.h>
#include <ctitan/plugin.h>

#include "profile.h"

static struct config {
    const char *steps;
    int64_t freq;
    bool nvtx, kernels;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, steps, "steps", "5",
                  "The steps to profile, from the first to the last: 5:8, or one: 5; empty: none"),
    CT_OPT_INT(struct config, freq, "freq", "0", 0, 1e15,
               "Also profile every step whose number is a multiple of this; 0: none"),
    CT_OPT_BOOL(struct config, nvtx, "nvtx", "false",
                "Name steps, sections and instructions for Nsight Systems (NVTX), in all steps"),
    CT_OPT_BOOL(struct config, kernels, "kernels", "true",
                "On GPUs, have the names and times of kernels in traces, where CUPTI is installed"),
    {0}};

static struct {
    int64_t first, last; /* first > last: none */
    int64_t step;        /* that is being profiled; 0: none */
    double began;
    bool any, begun;
} now;

static int parse_steps(void)
{
    const char *text = config.steps;
    long long first, last;
    int used = 0;

    now.first = 1;
    now.last = 0;
    if (!*text)
        return 0;
    if (sscanf(text, "%lld:%lld%n", &first, &last, &used) != 2 || text[used]) {
        used = 0;
        if (sscanf(text, "%lld%n", &first, &used) != 1 || text[used])
            return ct_fail(CT_ECONFIG,
                           "[profile] steps = %s: expected FIRST:LAST, like 5:8, or one step",
                           text);
        last = first;
    }
    if (first < 1 || last < first)
        return ct_fail(
            CT_ECONFIG,
            "[profile] steps = %s: expected steps from 1 on, the first one before the last", text);
    now.first = first;
    now.last = last;
    return 0;
}

static bool wanted(int64_t step)
{
    return (step >= now.first && step <= now.last) || (config.freq && step % config.freq == 0);
}

/* Only a warning: short trials of a recipe, as by `ctitan compare`, set fewer steps. */
static void warn_of_unused(void)
{
    const struct ct_option_use uses[] = {
        {"steps", now.first <= ct_config.training.steps, "the run ends before"}, {0}};

    if (ct_options_check_use(options, &config, "profile", uses) < 0)
        ct_warn("%s", ct_error_message());
}

static int prepare(const struct ct_run *run)
{
    int rc = parse_steps();

    if (rc == 0 && run->data && run->rank == 0)
        warn_of_unused();
    if (rc == 0 && !run->device_ops->stamps)
        rc = ct_fail(CT_ECONFIG,
                     "plugin profile: device %s does not time instructions; go --without profile",
                     run->device->name);
    return rc;
}

/* Profiles of another run in this dump folder get another name. */
static int leave_former(const struct ct_run *run)
{
    char path[CT_PATH_ROOM], kept[CT_PATH_ROOM];
    int rc = ct_run_path(run, path, "profile");

    return rc < 0 || access(path, F_OK) < 0 ? rc : ct_file_keep_former(path, "", kept);
}

static bool has_kernels(const struct ct_run *run)
{
    return config.kernels && !strcmp(run->device->name, "cuda");
}

static int step_begin(const struct ct_event_data *d)
{
    bool first = !now.begun && d->step == 1 && d->run->rank == 0;
    int rc = first ? leave_former(d->run) : 0;

    now.begun = true;
    if (rc < 0)
        return rc;
    now.step = wanted(d->step) ? d->step : 0;
    now.began = d->time;
    if (now.step && has_kernels(d->run))
        profile_kernels_begin();
    return now.step ? ct_executor_time_next(d->run->executor) : 0;
}

static int step_end(const struct ct_event_data *d)
{
    struct profiled p = {.run = d->run,
                         .result = d->result,
                         .began = now.began,
                         .times = ct_executor_times(d->run->executor)};
    int rc = 0;

    if (!now.step)
        return 0;
    if (has_kernels(d->run))
        p.kernels = profile_kernels_end(&p.kernel);
    now.any |= p.times != NULL;
    if (p.times)
        rc = profile_write(&p);
    profile_kernels_forget();
    return rc;
}

static void say_nothing(const struct ct_run *run)
{
    if (now.any || run->rank != 0 || !run->began || (now.first > now.last && !config.freq))
        return;
    ct_warn("profile: no step was profiled: the run trained steps %lld to %lld, and [profile] "
            "steps = %s, freq = %lld",
            (long long)run->began, (long long)run->progress.step - 1, config.steps,
            (long long)config.freq);
}

static int on_event(const struct ct_event_data *d, void *context)
{
    (void)context;
    switch (d->event) {
    case CT_EVENT_PLAN_READY:
        return prepare(d->run);
    case CT_EVENT_RUN_READY:
    case CT_EVENT_STAGE_BEGIN:
        return config.nvtx ? profile_ranges_begin(d->run) : 0;
    case CT_EVENT_STEP_BEGIN:
        return step_begin(d);
    case CT_EVENT_STEP_END:
        return step_end(d);
    default:
        say_nothing(d->run);
        return 0;
    }
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook),
    .events = 1u << CT_EVENT_PLAN_READY | 1u << CT_EVENT_RUN_READY | 1u << CT_EVENT_STAGE_BEGIN |
              1u << CT_EVENT_STEP_BEGIN | 1u << CT_EVENT_STEP_END | 1u << CT_EVENT_RUN_END,
    .call = on_event};

CT_PLUGIN(.name = "profile", .version = "1.0",
          .summary = "Times every instruction of chosen steps, as traces for Perfetto",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_HOOK, "profile", &hook}));
