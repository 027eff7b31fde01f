#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>
#include <ctitan/log.h>

#include "runs.h"

#define LARGEST ((size_t)1 << 20) /* of a small file */

bool run_is(const char *folder)
{
    char path[CT_PATH_ROOM];
    struct stat st;

    snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    return stat(path, &st) == 0;
}

/* ---- metrics.jsonl ---- */

static double number(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);

    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const char *describe_metrics(struct ct_arena *arena, const json_t *line)
{
    const char *name, *text = "";
    json_t *metric;

    json_object_foreach(json_object_get(line, "metrics"), name, metric)
    {
        text = ct_arena_printf(arena, "%s  %s %.5g", text, name,
                               json_is_number(metric) ? json_number_value(metric) : NAN);
    }
    return text;
}

/* Whether the set was validated after this step before: the step was trained again. */
static bool has_set(const struct run_log *log, int64_t step, const char *set)
{
    for (size_t i = log->validations; i > 0 && log->validation[i - 1].step == step; i--)
        if (!strcmp(log->validation[i - 1].set, set ? set : ""))
            return true;
    return false;
}

static bool is_first_of_set(const struct run_log *log, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (!strcmp(log->validation[i].set, log->validation[at].set))
            return false;
    return true;
}

const struct run_validation *run_last_validation(const struct run_log *log, size_t index)
{
    const struct run_validation *last = NULL;
    size_t first = 0;

    for (; first < log->validations; first++)
        if (is_first_of_set(log, first) && index-- == 0)
            break;
    for (size_t i = first; i < log->validations; i++)
        if (!strcmp(log->validation[i].set, log->validation[first].set))
            last = &log->validation[i];
    return last;
}

static void add_validation(struct ct_arena *arena, struct run_log *log, const json_t *line,
                           int64_t step)
{
    const char *set = json_string_value(json_object_get(line, "validation_set"));

    while (log->validations &&
           (log->validation[log->validations - 1].step > step ||
            (log->validation[log->validations - 1].step == step && has_set(log, step, set))))
        log->validations--;
    log->validation = ct_arena_grow(arena, log->validation, &log->validation_room,
                                    log->validations + 1, sizeof(*log->validation));
    log->validation[log->validations++] =
        (struct run_validation){step, ct_arena_strdup(arena, set ? set : ""),
                                number(line, "validation_loss"), describe_metrics(arena, line)};
}

/* "adamw.lr 0.1, now 0.2; plugin tp loaded" */
static const char *describe_changes(struct ct_arena *arena, json_t *changed)
{
    const char *name, *text = "";
    json_t *pair;

    json_object_foreach(changed, name, pair)
    {
        const char *before = json_string_value(json_array_get(pair, 0));
        const char *after = json_string_value(json_array_get(pair, 1));
        bool plugin = !strncmp(name, "plugin ", 7);

        if (before && after)
            text = ct_arena_printf(arena, "%s%s%s %s%s%s", text, *text ? "; " : "", name,
                                   plugin ? "" : before, plugin ? "" : ", now ", after);
    }
    return text;
}

static void add_resume(struct ct_arena *arena, struct run_log *log, const json_t *line,
                       int64_t after)
{
    while (log->resumes && log->resume[log->resumes - 1].after >= after)
        log->resumes--;
    log->resume = ct_arena_grow(arena, log->resume, &log->resume_room, log->resumes + 1,
                                sizeof(*log->resume));
    log->resume[log->resumes++] =
        (struct run_resume){.after = after,
                            .ranks = json_integer_value(json_object_get(line, "ranks")),
                            .changed = describe_changes(arena, json_object_get(line, "changed"))};
}

static void add_step(struct ct_arena *arena, struct run_log *log, const json_t *line, int64_t step)
{
    const json_t *after = json_object_get(line, "resumed_after");

    if (after)
        add_resume(arena, log, line, json_integer_value(after));
    while (log->count && log->step[log->count - 1].step >= step)
        log->count--;
    log->step = ct_arena_grow(arena, log->step, &log->room, log->count + 1, sizeof(*log->step));
    log->step[log->count++] =
        (struct run_step){.step = step,
                          .loss = number(line, "loss"),
                          .grad_norm = number(line, "grad_norm"),
                          .lr = number(line, "lr"),
                          .tokens = number(line, "tokens"),
                          .tokens_per_second = number(line, "tokens_per_second"),
                          .mfu = number(line, "mfu"),
                          .memory = number(line, "memory_peak_bytes"),
                          .seconds = number(line, "step_time_s"),
                          .elapsed = number(line, "elapsed_s"),
                          .data_seconds = number(line, "data_time_s"),
                          .others = number(line, "others_percent"),
                          .metrics = describe_metrics(arena, line)};
}

static void add_note(struct ct_arena *arena, struct run_log *log, const json_t *line, int64_t step)
{
    const char *kind = json_string_value(json_object_get(line, "note"));
    const char *text = json_string_value(json_object_get(line, "text"));

    log->note =
        ct_arena_grow(arena, log->note, &log->note_room, log->notes + 1, sizeof(*log->note));
    log->note[log->notes++] = (struct run_note){.step = step,
                                                .kind = ct_arena_strdup(arena, kind ? kind : ""),
                                                .text = ct_arena_strdup(arena, text ? text : "")};
}

static size_t count_kind(const struct run_log *log, const char *kind, size_t end)
{
    size_t count = 0;

    for (size_t i = 0; i < end; i++)
        count += !strcmp(log->note[i].kind, kind);
    return count;
}

const char *run_count_notes(struct ct_arena *arena, const struct run_log *log)
{
    const char *text = "";

    for (size_t i = 0; i < log->notes; i++) {
        const char *kind = log->note[i].kind;
        size_t count = count_kind(log, kind, log->notes);

        if (count_kind(log, kind, i) == 0)
            text = ct_arena_printf(arena, "%s%s%zu %s%s", text, *text ? ", " : "", count, kind,
                                   ct_plural(count));
    }
    return text;
}

/* NULL: it is incomplete, as the last line of a run that writes, or was killed, may be. */
static json_t *read_object(const char *text)
{
    json_t *object;

    return ct_json_read(text, strlen(text), NULL, 0, &object) < 0 ? NULL : object;
}

enum run_line run_log_add(struct ct_arena *arena, struct run_log *log, const char *line)
{
    json_t *object = read_object(line), *step = json_object_get(object, "step");
    enum run_line is = RUN_NOTHING;

    if (json_is_integer(step) && json_object_get(object, "step_time_s"))
        is = RUN_STEP;
    else if (json_is_integer(step) && json_object_get(object, "validation_loss"))
        is = RUN_VALIDATION;
    else if (json_is_integer(step) && json_object_get(object, "note"))
        is = RUN_NOTE;
    if (is == RUN_STEP)
        add_step(arena, log, object, json_integer_value(step));
    else if (is == RUN_VALIDATION)
        add_validation(arena, log, object, json_integer_value(step));
    else if (is == RUN_NOTE)
        add_note(arena, log, object, json_integer_value(step));
    json_decref(object);
    return is;
}

double run_others(const struct run_log *log)
{
    double sum = 0;
    size_t count = 0;

    for (size_t i = 1; i < log->count; i++)
        if (isfinite(log->step[i].others)) {
            sum += log->step[i].others;
            count++;
        }
    return count ? sum / (double)count : NAN;
}

int64_t run_last_step(const struct run_log *log, const struct run_status *status)
{
    int64_t logged = log->count ? log->step[log->count - 1].step : 0;

    return status->step > logged ? status->step : logged;
}

const char *run_log_part(struct ct_arena *arena, const char *folder, int number)
{
    const char *path = ct_arena_printf(arena, "%s/metrics-%d.jsonl", folder, number);
    struct stat st;

    return stat(path, &st) == 0 ? path : NULL;
}

static int read_lines(struct ct_arena *arena, const char *path, struct run_log *log)
{
    char *line = NULL;
    size_t room = 0;
    FILE *in;
    int rc = ct_file_open_stream(path, &in);

    if (rc < 0)
        return rc;
    while (getline(&line, &room, in) > 0)
        run_log_add(arena, log, line);
    free(line);
    fclose(in);
    return 0;
}

int run_read_log(struct ct_arena *arena, const char *folder, struct run_log *log)
{
    const char *part;
    int rc = 0;

    *log = (struct run_log){0};
    for (int i = 1; rc == 0 && (part = run_log_part(arena, folder, i)); i++)
        rc = read_lines(arena, part, log);
    return rc < 0 ? rc : read_lines(arena, ct_arena_printf(arena, "%s/metrics.jsonl", folder), log);
}

/* ---- recipe.ini and status.json ---- */

static const char *read_small(struct ct_arena *arena, const char *folder, const char *name)
{
    char *text;
    size_t size;

    if (ct_file_read(arena, ct_arena_printf(arena, "%s/%s", folder, name), LARGEST, &text, &size) <
        0)
        return "";
    return text;
}

static const char *word(struct ct_arena *arena, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return ct_arena_strdup(arena, text ? text : "");
}

static int64_t integer(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

struct run_status run_read_status(struct ct_arena *arena, const char *folder)
{
    json_t *o = read_object(read_small(arena, folder, "status.json"));
    struct run_status s = {
        .state = word(arena, o, "state"),
        .host = word(arena, o, "host"),
        .message = word(arena, o, "message"),
        .ranks = integer(o, "ranks"),
        .steps = integer(o, "steps"),
        .step = integer(o, "step"),
        .process = (pid_t)integer(o, "process"),
        .launcher = (pid_t)integer(o, "launcher"),
        .began = json_number_value(json_object_get(o, "began")),
        .ended = json_number_value(json_object_get(o, "ended")),
    };

    json_decref(o);
    return s;
}

/* Tell failures from starts of a run that was done, which was to train more. */
static void count_failures(const json_t *attempts, struct run_time *t)
{
    t->attempts = (int64_t)json_array_size(attempts);
    for (size_t i = 1; i < json_array_size(attempts); i++) {
        const json_t *former = json_array_get(attempts, i - 1), *next = json_array_get(attempts, i);

        if (json_is_true(json_object_get(former, "done")))
            t->paused += fmax(number(next, "began") - number(former, "until"), 0);
        else
            t->failures++;
    }
}

struct run_time run_read_time(struct ct_arena *arena, const char *folder)
{
    json_t *o = read_object(read_small(arena, folder, "attempts.json"));
    const json_t *seconds = json_object_get(o, "seconds");
    struct run_time t = {
        .all = number(seconds, "all"),
        .trained = number(seconds, "trained"),
        .redone = number(seconds, "redone"),
        .data = number(seconds, "data"),
        .save = number(seconds, "save"),
        .validation = number(seconds, "validation"),
        .start = number(seconds, "start"),
        .idle = number(seconds, "idle"),
    };

    count_failures(json_object_get(o, "attempts"), &t);
    json_decref(o);
    if (!(t.all > 0))
        t.attempts = 0;
    return t;
}

const char *run_long_text(struct ct_arena *arena, double seconds)
{
    return seconds >= 3600 ? ct_arena_printf(arena, "%.1f h", seconds / 3600)
           : seconds >= 60 ? ct_arena_printf(arena, "%.1f min", seconds / 60)
                           : ct_arena_printf(arena, "%.1f s", seconds);
}

const char *run_time_text(struct ct_arena *arena, const struct run_time *t)
{
    const struct {
        const char *name;
        double seconds;
    } lost[] = {{"trained again", t->redone},
                {"saves", t->save},
                {"data", t->data},
                {"validation", t->validation},
                {"starts", t->start},
                {"between attempts", t->idle},
                {"other", t->all - t->trained - t->redone - t->save - t->data - t->validation -
                              t->start - t->idle}};
    const char *text;

    if (!t->attempts)
        return "";
    text = ct_arena_printf(arena, "goodput %.1f %% of %s in %lld attempt%s",
                           100 * t->trained / t->all, run_long_text(arena, t->all),
                           (long long)t->attempts, ct_plural(t->attempts));
    for (size_t i = 0; i < CT_COUNT(lost); i++)
        text = ct_arena_printf(arena, "%s%s %s %.1f %%", text, i ? "," : ":", lost[i].name,
                               100 * lost[i].seconds / t->all);
    return text;
}

/* ---- resolved recipes ---- */

int run_read_recipe(struct ct_arena *arena, const char *folder, struct run_recipe *recipe)
{
    const char *path = ct_arena_printf(arena, "%s/recipe.ini", folder);
    int rc = 0;

    *recipe = (struct run_recipe){.text = read_small(arena, folder, "recipe.ini")};
    if (*recipe->text)
        rc = ct_recipe_parse(arena, path, recipe->text, &recipe->parsed);
    return rc;
}

void run_take_recipe(struct ct_arena *arena, const char *folder, struct run_recipe *recipe)
{
    if (run_read_recipe(arena, folder, recipe) == 0)
        return;
    ct_warn("%s: this recipe of an earlier run is damaged, and not read", ct_error_message());
    *recipe = (struct run_recipe){.text = ""};
}

/* The comment of a line of the text: where the run had its value from. source: of the setting,
   "PATH:LINE". after: so many lines later. */
static const char *comment_at(const struct run_recipe *recipe, const char *source, size_t after)
{
    const char *at = recipe->text, *end, *comment = NULL;

    for (long line = atol(strrchr(source, ':') + 1) + (long)after; line > 1 && *at; line--)
        at += strcspn(at, "\n") + 1;
    end = at + strcspn(at, "\n");
    for (const char *next = at; (next = strstr(next, " ; ")) && next < end; next++)
        comment = next + 3;
    return comment ? ct_arena_printf(recipe->parsed->arena, "%.*s", (int)(end - comment), comment)
                   : "";
}

bool run_option_next(const struct run_recipe *recipe, size_t *at, struct run_option *option)
{
    const struct ct_recipe *r = recipe->parsed;
    size_t i = *at;
    const struct ct_setting *s;

    if (!r)
        return false;
    if (i < r->plugin_count) {
        *option = (struct run_option){
            .name = ct_arena_printf(r->arena, "plugin %s", r->plugins[i]),
            .value = "loaded",
            .source = comment_at(recipe, r->plugin_sources[i], i),
        };
        *at = i + 1;
        return true;
    }
    while (i < r->plugin_count + r->count &&
           !strcmp(r->settings[i - r->plugin_count].section, "plugins"))
        i++;
    if (i == r->plugin_count + r->count)
        return false;
    s = &r->settings[i - r->plugin_count];
    *option = (struct run_option){
        .name = ct_arena_printf(r->arena, "%s.%s", s->section, s->key),
        .value = s->value,
        .source = comment_at(recipe, s->source, 0),
    };
    *at = i + 1;
    return true;
}

bool run_option_find(const struct run_recipe *recipe, const char *name, struct run_option *option)
{
    for (size_t at = 0; run_option_next(recipe, &at, option);)
        if (!strcmp(option->name, name))
            return true;
    return false;
}
