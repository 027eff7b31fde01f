/*
 * Metrics: the console line, metrics.jsonl, status.json, and progress between two lines.
 *
 * Rates are means over the steps since the last line, using only the time spent in the steps. The
 * time that has elapsed, and what is left, include checkpoints, validation and all else between
 * steps: the recent mean of a step, and the mean of all that was between two.
 * Utilisation is relative to the device's peak for matrix products, which is measured once after
 * the first step unless the recipe gives it. "mfu" counts causal attention in full, like
 * TorchTitan; "mfu_halved" counts only the half that is needed.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/measure.h>
#include <ctitan/lib/rates.h>
#include <ctitan/lib/terminal.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

#include "goodput.h"
#include "lines.h"
#include "named.h"
#include "resume.h"
#include "status.h"

#define TIME_OF_DAY 9 /* columns of "12:34:56 " before a line on a terminal */
#define LONG 1.0   /* seconds over which the host's load is measured at least, once there are any */
#define RECENT 0.1 /* weight of the last step in the mean that progress goes by */

static struct config {
    int64_t log_freq;
    double peak_tflops, max_size;
    enum { COLOR_AUTO, COLOR_ALWAYS, COLOR_NEVER } color;
} config;

static const struct ct_option options[] = {
    CT_OPT_INT(
        struct config, log_freq, "log_freq", "10", 1, 1e15,
        "Steps between two logged steps; step 1 and the last one of each stage are always logged"),
    CT_OPT_FLOAT(struct config, peak_tflops, "peak_tflops", "0", 0, 1e9,
                 "Peak of the device in its compute dtype, in 1e12 FLOPs per second, for mfu; 0: "
                 "measure it"),
    CT_OPT_FLOAT(
        struct config, max_size, "max_size", "256", 0, 1e9,
        "MB of metrics.jsonl: a larger one becomes metrics-1.jsonl, metrics-2.jsonl and so "
        "on, which are read before it; 0: it grows"),
    CT_OPT_ENUM(struct config, color, "color", "auto", "auto|always|never",
                "Colours on the console; auto: on a terminal"),
    {0}};

static struct {
    FILE *out; /* metrics.jsonl */
    struct ct_rates rates;
    struct ct_load load; /* of the host, at the last line that is LONG ago, or at the first step */
    double began;        /* the first step, less all_seconds of an earlier process */
    double all_seconds;  /* since the first step began */
    double step_seconds, tokens; /* of a step, recent mean */
    double step_began, step_ended;
    double between; /* seconds between steps */
    int64_t gaps;   /* so many */
    int64_t told;   /* the step whose line was written last, if it is the last one; else 0 */
    bool ended;     /* the run */
} now;

/* ---- once ---- */

/* The file is opened once, which is no part of what is between all steps. */
static int begin(struct ct_run *run, int64_t step)
{
    double began = ct_now();
    int rc = lines_open(run, step == 1, &now.out);

    now.step_ended += ct_now() - began;
    return rc;
}

/* The same for measuring the peak. */
static int open_rates(struct ct_run *run)
{
    double began = ct_now();
    int rc = ct_rates_open(&now.rates, run, config.peak_tflops * 1e12);

    if (now.step_ended > 0)
        now.step_ended += ct_now() - began;
    return rc;
}

/* ---- the file ---- */

static void put(const char *key, double value, const char *end)
{
    if (isfinite(value))
        fprintf(now.out, "\"%s\": %.17g%s", key, value, end);
    else
        fprintf(now.out, "\"%s\": null%s", key, end);
}

/* Each line is one write, so that a reader never sees part of one. */
static int end_line(void)
{
    fputs("}\n", now.out);
    if (fflush(now.out))
        return ct_fail(CT_EIO, "cannot write metrics.jsonl: %s", strerror(errno));
    return 0;
}

/* ---- a logged step ---- */

/* Percent of the host's processors that other processes took of late. */
static double others(const struct ct_run *run)
{
    struct ct_load load = ct_load_now(ct_load_job(run->world > 1));
    double share = ct_load_others(&now.load, &load);

    if (load.at - now.load.at >= LONG)
        now.load = load;
    return 100 * share;
}

static int write_step(const struct ct_run *run, const struct ct_step_result *s,
                      const struct ct_rate *r)
{
    int rc;

    fprintf(now.out, "{\"step\": %lld, ", (long long)s->step);
    put("loss", s->loss, ", ");
    put("grad_norm", s->grad_norm, ", ");
    put("lr", s->lr, ", ");
    fprintf(now.out, "\"tokens\": %lld, ", (long long)s->tokens_seen);
    put("tokens_per_second", r->tokens_per_second, ", ");
    put("tflops", r->tflops, ", ");
    put("mfu", r->mfu, ", ");
    put("mfu_halved", r->mfu_halved, ", ");
    fprintf(now.out, "\"memory_peak_bytes\": %.0f, ", r->memory_bytes);
    put("elapsed_s", now.all_seconds, ", ");
    put("step_time_s", r->step_time, ", ");
    put("data_time_s", r->data_time, ", ");
    put("others_percent", others(run), ", ");
    put("goodput_percent", goodput_percent(), "");
    if (s->skipped)
        fputs(", \"skipped\": true", now.out);
    rc = named_write(run, now.out);
    if (rc == 0)
        rc = resume_write(run, now.out);
    if (rc == 0)
        rc = end_line();
    return rc < 0 ? rc : lines_turn(run, config.max_size * 1e6, &now.out);
}

static bool colored(void)
{
    return config.color == COLOR_ALWAYS ||
           (config.color == COLOR_AUTO && ct_terminal_takes_colours(STDERR_FILENO));
}

/* "12,345", of one rank; of several: "12,345 on 8 ranks" */
static const char *speed(const struct ct_run *run, double tokens_per_second, char text[64])
{
    char number[32];
    int length = snprintf(text, 64, "%s", ct_grouped(llround(tokens_per_second), number));

    if (run->world > 1)
        snprintf(text + length, 64 - (size_t)length, " on %lld ranks", (long long)run->world);
    return text;
}

/* A part of the console line. */
struct field {
    const char *colour;
    int drop; /* order in which parts are left out of a narrow terminal; 0: never */
    char text[96];
};

enum { FIELDS = 7 };

static size_t width_of(const struct field *field)
{
    size_t width = TIME_OF_DAY;

    for (int i = 0; i < FIELDS; i++)
        width += *field[i].text ? strlen(field[i].text) + 2 : 0;
    return width - 2;
}

static void drop_fields(struct field *field, size_t columns)
{
    for (int next = 1; next < FIELDS && width_of(field) > columns; next++)
        for (int i = 0; i < FIELDS; i++)
            if (field[i].drop == next)
                *field[i].text = '\0';
}

static void log_step(const struct ct_run *run, const struct ct_step_result *s,
                     const struct ct_rate *r)
{
    struct field field[FIELDS] = {{"\033[31m", 0, ""},       {"\033[32m", 0, ""},
                                  {"\033[38;5;208m", 4, ""}, {"\033[38;5;80m", 2, ""},
                                  {"\033[34m", 0, ""},       {"\033[36m", 1, ""},
                                  {"\033[35m", 3, ""}};
    int columns = ct_terminal_columns(STDERR_FILENO), less = columns > 0, used = 0;
    bool colours = colored();
    char line[1024], tps[64];

    snprintf(field[0].text, sizeof(field->text), "step: %2lld", (long long)s->step);
    snprintf(field[1].text, sizeof(field->text), "loss: %*.5f", 8 - less, s->loss);
    snprintf(field[2].text, sizeof(field->text), "grad_norm: %*.4f", 7 - less, s->grad_norm);
    snprintf(field[3].text, sizeof(field->text), "memory: %5.2fGiB(%.2f%%)",
             r->memory_bytes / 0x1p30, r->memory_share);
    snprintf(field[4].text, sizeof(field->text), "tps: %s", speed(run, r->tokens_per_second, tps));
    snprintf(field[5].text, sizeof(field->text), "tflops: %.2f", r->tflops);
    snprintf(field[6].text, sizeof(field->text), "mfu: %.2f%%", r->mfu);
    if (columns)
        drop_fields(field, (size_t)columns);
    for (int i = 0; i < FIELDS; i++)
        if (*field[i].text)
            used += snprintf(line + used, sizeof(line) - (size_t)used, "%s%s%s", i ? "  " : "",
                             colours ? field[i].colour : "", field[i].text);
    ct_info("%s%s", line, colours ? "\033[0m" : "");
}

/* ---- events ---- */

static int step_begin(const struct ct_run *run)
{
    int rc;

    now.step_began = ct_now();
    if (now.began == 0) {
        now.began = now.step_began - now.all_seconds;
        now.load = ct_load_now(ct_load_job(run->world > 1));
    }
    if (now.step_ended > 0) {
        now.between += now.step_began - now.step_ended;
        now.gaps++;
    }
    rc = status_begin(run);
    return rc < 0 ? rc : goodput_begin(run);
}

static void count_recent(const struct ct_step_result *s)
{
    double weight = now.step_seconds > 0 ? RECENT : 1;
    bool first = !(now.step_ended > 0); /* it warms up */

    now.step_ended = now.step_began + s->seconds;
    now.all_seconds = ct_now() - now.began;
    if (first)
        return;
    now.step_seconds += weight * (s->seconds - now.step_seconds);
    now.tokens += weight * ((double)s->tokens - now.tokens);
}

static void show_progress(const struct ct_step_result *s)
{
    struct ct_pace pace = {
        .step = s->step,
        .steps = ct_config.training.steps,
        .loss = s->loss,
        .tokens_per_second =
            now.step_seconds > 0 ? now.tokens / now.step_seconds : (double)s->tokens / s->seconds,
        .elapsed = now.all_seconds,
        .seconds_per_step = now.gaps ? now.step_seconds + now.between / (double)now.gaps : 0,
    };
    char line[160];

    ct_pace_print(&pace, line, sizeof(line));
    ct_status("%s", line);
}

/* Log and record the step; its line is written once. */
static int tell_step(struct ct_run *run, const struct ct_step_result *s)
{
    struct ct_rate r;
    int rc = now.out ? 0 : begin(run, s->step);

    if (rc < 0)
        return rc;
    now.told = s->step;
    r = ct_rates_take(&now.rates, run);
    log_step(run, s, &r);
    named_log(run);
    return write_step(run, s, &r);
}

/* The last step of the run, or of a stage, whose rates end with it. */
static int tell_last(struct ct_run *run, const struct ct_step_result *s)
{
    return !s || now.told == s->step ? 0 : tell_step(run, s);
}

static int step_end(struct ct_run *run, const struct ct_step_result *s)
{
    int rc = status_step(s);

    if (rc == 0)
        rc = goodput_step(run, s);
    resume_step(s->step);
    count_recent(s);
    if (rc == 0 && !(now.rates.peak > 0))
        rc = open_rates(run);
    ct_rates_add(&now.rates, s);
    if (rc < 0)
        return rc;
    now.told = 0;
    if (s->step == 1 || s->step % config.log_freq == 0)
        rc = tell_step(run, s);
    if (s->step < ct_config.training.steps)
        show_progress(s);
    return rc;
}

/* The unit that the loss is a mean over: labels that are not masked are tokens. */
static const char *counted(const struct ct_run *run)
{
    const char *over = ct_graph_fetched_over(run->graph, "loss");

    return strcmp(over, ct_default_counts[0].name) ? over : "tokens";
}

static int validated(const struct ct_event_data *data)
{
    struct ct_run *run = data->run;
    const struct ct_step_result *s = data->result;
    char tps[64];
    int rc = now.out ? 0 : begin(run, s->step);

    if (rc < 0)
        return rc;
    ct_info("validate step: %2lld  %s%sloss: %7.4f  tps: %s", (long long)s->step,
            data->set ? data->set : "", data->set ? "  " : "", s->loss,
            speed(run, (double)s->tokens / s->seconds, tps));
    named_log(run);
    fprintf(now.out, "{\"step\": %lld, ", (long long)s->step);
    if (data->set)
        fprintf(now.out, "\"validation_set\": \"%s\", ", data->set);
    put("validation_loss", s->loss, ", ");
    fprintf(now.out, "\"validation_%s\": %lld", counted(run), (long long)data->labels);
    rc = named_write(run, now.out);
    return rc < 0 ? rc : end_line();
}

/* Something that happened between two steps, or while a run ends, after its own last line. */
static int write_note(const struct ct_event_data *data)
{
    bool late = now.ended && !now.out;
    int rc = now.out ? 0
             : late  ? lines_open(data->run, false, &now.out)
                     : begin(data->run, data->step);
    json_t *line;
    char *text;

    if (rc < 0)
        return rc;
    line = json_pack("{sI ss so}", "step", (json_int_t)data->step, "note", data->kind, "text",
                     ct_json_text(data->message));
    text = json_dumps(line, 0);
    json_decref(line);
    if (!text)
        return ct_fail(CT_ENOMEM, "a note in metrics.jsonl");
    fprintf(now.out, "%.*s", (int)strlen(text) - 1, text);
    free(text);
    rc = end_line();
    if (late) {
        fclose(now.out);
        now.out = NULL;
    }
    return rc;
}

static int on_event(const struct ct_event_data *data, void *context)
{
    int rc = 0;

    (void)context;
    if (data->event == CT_EVENT_JOB_END)
        return status_job_end(data);
    if (data->run->rank != 0)
        return 0;
    switch (data->event) {
    case CT_EVENT_RUN_OPEN:
        resume_open();
        return 0;
    case CT_EVENT_PLAN_READY:
        ct_run_keep(data->run, "metrics.seconds", &now.all_seconds, sizeof(now.all_seconds));
        return 0;
    case CT_EVENT_STEP_BEGIN:
        return step_begin(data->run);
    case CT_EVENT_STEP_END:
        return step_end(data->run, data->result);
    case CT_EVENT_STAGE_END:
    case CT_EVENT_STEPS_END:
        return tell_last(data->run, data->result);
    case CT_EVENT_VALIDATED:
        return validated(data);
    case CT_EVENT_NOTE:
        return write_note(data);
    case CT_EVENT_STAGE_BEGIN:
        return open_rates(data->run);
    default: /* the end, or a failure */
        rc = status_end(data);
        if (rc == 0)
            rc = goodput_end(data->run, data->event == CT_EVENT_FAILURE);
        resume_close();
        now.rates = (struct ct_rates){0};
        now.ended = true;
    }
    if (now.out && fclose(now.out) && data->event == CT_EVENT_RUN_END)
        rc = ct_fail(CT_EIO, "cannot write metrics.jsonl: %s", strerror(errno));
    now.out = NULL;
    return rc;
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook),
    .events = 1u << CT_EVENT_RUN_OPEN | 1u << CT_EVENT_PLAN_READY | 1u << CT_EVENT_STEP_BEGIN |
              1u << CT_EVENT_STEP_END | 1u << CT_EVENT_VALIDATED | 1u << CT_EVENT_FAILURE |
              1u << CT_EVENT_RUN_END | 1u << CT_EVENT_JOB_END | 1u << CT_EVENT_NOTE |
              1u << CT_EVENT_STAGE_BEGIN | 1u << CT_EVENT_STAGE_END | 1u << CT_EVENT_STEPS_END,
    .call = on_event};

CT_PLUGIN(.name = "metrics", .version = "1.0",
          .summary = "Console line, metrics.jsonl, status.json and progress", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_HOOK, "metrics", &hook}));
