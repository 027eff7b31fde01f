/*
 * TensorBoard: what metrics logs, as an event file in the run's dump folder, under TorchTitan's
 * names and with their meanings: throughput is that of one device, and end_to_end is the time from
 * one written step to the next, over their number, with all that is between steps. A run that is
 * resumed adds a file that says with which step it goes on, so that TensorBoard drops the steps
 * that were trained again. The plugin metrics need not be there; if the recipe has options of it,
 * they count here, too, unless this plugin's own say otherwise.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/hook.h>
#include <ctitan/lib/rates.h>
#include <ctitan/plugin.h>
#include <ctitan/recipe.h>

#include "events.h"

static struct config {
    int64_t log_freq;
    double peak_tflops, max_size;
    const char *folder;
} config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct config, log_freq, "log_freq", "0", 0, 1e15,
               "Steps between two written steps; step 1 and the last are always written; 0: as "
               "[metrics] log_freq, or 10"),
    CT_OPT_FLOAT(struct config, peak_tflops, "peak_tflops", "0", 0, 1e9,
                 "Peak of the device in its compute dtype, in 1e12 FLOPs per second, for mfu; 0: "
                 "as [metrics] peak_tflops, or measured"),
    CT_OPT_FLOAT(struct config, max_size, "max_size", "256", 0, 1e9,
                 "MB of an event file: a new one follows a larger one; 0: it grows"),
    CT_OPT_STRING(struct config, folder, "folder", "tensorboard",
                  "Folder of the event files, in [job] dump_folder"),
    {0}};

#define LOG_FREQ 10

static FILE *out;
static int files; /* of this process */
static struct ct_rates rates;
static int64_t log_freq; /* 0: not known yet */
static int64_t trained;  /* the last step */
static int64_t restart;  /* the run went on with this step, which is to be written; 0: it did not */

static struct {
    double at;     /* when the last step was written, or the first one began; 0: not yet */
    int64_t steps; /* since then */
} last;

/* The recipe, with all its values, indented as Markdown's code. */
static int write_recipe(const struct ct_run *run)
{
    char *recipe = NULL, *text = NULL, *line, *rest;
    size_t size;
    FILE *in = open_memstream(&recipe, &size), *indented = open_memstream(&text, &size);
    int rc;

    ct_recipe_print_resolved(run->recipe, in);
    fclose(in);
    for (line = strtok_r(recipe, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        fprintf(indented, "    %s\n", line);
    fclose(indented);
    rc = events_text(out, "recipe", text, size);
    free(recipe);
    free(text);
    return rc;
}

/* Before the first step: one that cannot be written would end the run after it. */
static int try_folder(const struct ct_run *run)
{
    char path[CT_PATH_ROOM];
    int rc = ct_run_path(run, path, "%s", config.folder);

    if (rc == 0)
        rc = ct_file_try_folder(path);
    return rc < 0 ? ct_context(CT_ECONFIG, "[tensorboard] folder = %s", config.folder) : 0;
}

static int open_file(const struct ct_run *run)
{
    char path[CT_PATH_ROOM], host[256] = "";
    int rc = ct_run_path(run, path, "%s", config.folder);

    if (rc == 0)
        rc = ct_file_make_folder(path);
    gethostname(host, sizeof(host) - 1);
    if (rc == 0)
        rc = ct_run_path(run, path, "%s/events.out.tfevents.%010lld.%s.%ld.%d", config.folder,
                         (long long)time(NULL), host, (long)getpid(), files++);
    if (rc < 0)
        return rc;
    out = fopen(path, "wb");
    return out ? 0 : ct_fail(CT_EIO, "cannot write %s: %s", path, strerror(errno));
}

/* A number of [metrics], which was read as its options say; 0: the recipe has none. */
static double of_metrics(const struct ct_run *run, const char *key)
{
    const char *text = ct_recipe_get(run->recipe, "metrics", key);

    return text ? strtod(text, NULL) : 0;
}

static void find_log_freq(const struct ct_run *run)
{
    log_freq = config.log_freq ? config.log_freq : (int64_t)of_metrics(run, "log_freq");
    if (log_freq < 1)
        log_freq = LOG_FREQ;
}

static int open_rates(struct ct_run *run)
{
    double peak = config.peak_tflops > 0 ? config.peak_tflops : of_metrics(run, "peak_tflops");

    return ct_rates_open(&rates, run, peak * 1e12);
}

static int begin(struct ct_run *run)
{
    int rc = open_file(run);

    if (rc == 0)
        rc = events_begin(out);
    if (rc == 0)
        rc = write_recipe(run);
    return rc;
}

/* A file that has grown too large is followed by another one. */
static int turn(const struct ct_run *run)
{
    int rc;

    if (!(config.max_size > 0) || (double)ftell(out) <= config.max_size * 1e6)
        return 0;
    if (fclose(out))
        return ct_fail(CT_EIO, "cannot write TensorBoard's events: %s", strerror(errno));
    out = NULL;
    rc = open_file(run);
    return rc < 0 ? rc : events_begin(out);
}

static int write_restart(void)
{
    int rc = restart ? events_restart(out, restart) : 0;

    restart = 0;
    return rc;
}

static double per_device(const struct ct_run *run, double tokens_per_second)
{
    return tokens_per_second / (double)run->world;
}

/* Writes the metrics that a model, an objective or a transform names. */
static int write_metrics(const struct ct_run *run, int64_t step, const char *group)
{
    struct ct_arena scratch = {0};
    struct events_scalar *scalars =
        ct_arena_array(&scratch, struct events_scalar, run->metric_count + 1);
    int rc;

    for (size_t i = 0; i < run->metric_count; i++)
        scalars[i] = (struct events_scalar){
            ct_arena_printf(&scratch, "%s/%s", group, run->metrics[i].name), run->metrics[i].value};
    rc = run->metric_count ? events_scalars(out, step, scalars, run->metric_count) : 0;
    ct_arena_finish(&scratch);
    return rc;
}

static int write_step(const struct ct_run *run, const struct ct_step_result *s,
                      const struct ct_rate *r, double end_to_end)
{
    const struct events_scalar scalars[] = {
        {"loss_metrics/global_avg_loss", s->loss},
        {"grad_norm", s->grad_norm},
        {"lr", s->lr},
        {"n_tokens_seen", (double)s->tokens_seen},
        {"throughput(tps)", per_device(run, r->tokens_per_second)},
        {"tflops", r->tflops},
        {"mfu(%)", r->mfu},
        {"time_metrics/end_to_end(s)", end_to_end},
        {"time_metrics/data_loading(s)", r->data_time},
        {"memory/max_reserved(GiB)", r->memory_bytes / 0x1p30},
        {"memory/max_reserved(%)", r->memory_share},
    };

    int rc = events_scalars(out, s->step, scalars, CT_COUNT(scalars));

    if (rc == 0)
        rc = write_metrics(run, s->step, "metrics");
    return rc < 0 ? rc : turn(run);
}

/* Write the values of a step, once. */
static int tell_step(struct ct_run *run, const struct ct_step_result *s)
{
    double seconds = (ct_now() - last.at) / (double)last.steps;
    struct ct_rate r;
    int rc = out ? 0 : begin(run);

    if (rc == 0)
        rc = write_restart();
    if (rc < 0)
        return rc;
    r = ct_rates_take(&rates, run);
    rc = write_step(run, s, &r, seconds);
    last.at = ct_now();
    last.steps = 0;
    return rc;
}

static int step_end(struct ct_run *run, const struct ct_step_result *s)
{
    int rc = rates.peak > 0 ? 0 : open_rates(run);

    if (rc < 0)
        return rc;
    if (s->step != trained + 1)
        restart = s->step;
    trained = s->step;
    if (last.at == 0)
        last.at = ct_now() - s->seconds;
    last.steps++;
    ct_rates_add(&rates, s);
    if (!log_freq)
        find_log_freq(run);
    return s->step == 1 || s->step % log_freq == 0 ? tell_step(run, s) : 0;
}

static int validated(struct ct_run *run, const struct ct_step_result *s, const char *set)
{
    struct ct_arena scratch = {0};
    const char *group =
        set ? ct_arena_printf(&scratch, "validation_metrics/%s", set) : "validation_metrics";
    const struct events_scalar scalars[] = {{ct_arena_printf(&scratch, "%s/loss", group), s->loss},
                                            {ct_arena_printf(&scratch, "%s/throughput(tps)", group),
                                             per_device(run, (double)s->tokens / s->seconds)}};
    int rc = out ? 0 : begin(run);

    if (rc == 0)
        rc = write_restart();
    if (rc == 0)
        rc = events_scalars(out, s->step, scalars, CT_COUNT(scalars));
    if (rc == 0)
        rc = write_metrics(run, s->step, group);
    ct_arena_finish(&scratch);
    return rc;
}

static int on_event(const struct ct_event_data *data, void *context)
{
    int rc = 0;

    (void)context;
    if (data->run->rank != 0)
        return 0;
    if (data->event == CT_EVENT_RUN_OPEN)
        return try_folder(data->run);
    if (data->event == CT_EVENT_STEP_END)
        return step_end(data->run, data->result);
    if (data->event == CT_EVENT_STEPS_END || data->event == CT_EVENT_STAGE_END)
        return last.steps && data->result ? tell_step(data->run, data->result) : 0;
    if (data->event == CT_EVENT_VALIDATED)
        return validated(data->run, data->result, data->set);
    if (data->event == CT_EVENT_STAGE_BEGIN)
        return open_rates(data->run);
    if (out && fclose(out) && data->event == CT_EVENT_RUN_END)
        rc = ct_fail(CT_EIO, "cannot write TensorBoard's events: %s", strerror(errno));
    out = NULL;
    rates = (struct ct_rates){0};
    log_freq = 0;
    return rc;
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_RUN_OPEN | 1u << CT_EVENT_STEP_END |
                                              1u << CT_EVENT_VALIDATED | 1u << CT_EVENT_FAILURE |
                                              1u << CT_EVENT_RUN_END | 1u << CT_EVENT_STAGE_BEGIN |
                                              1u << CT_EVENT_STAGE_END | 1u << CT_EVENT_STEPS_END,
                                    .call = on_event};

CT_PLUGIN(.name = "tensorboard", .version = "1.0",
          .summary = "Event files for `tensorboard --logdir`", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_HOOK, "tensorboard", &hook}));
