/*
 * watch: follow a run from another terminal, by the files in its dump folder.
 *
 * Each logged step is a line; on a terminal a progress line is redrawn below. It ends when the run
 * does: status.json says so, or its process is gone, and no launcher is left that may start it
 * again. If a run logs nothing for much longer than its steps take, it is reported once as stalled.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/rates.h>
#include <ctitan/lib/terminal.h>

#include "cli.h"
#include "profiles.h"
#include "runs.h"

#define POLL 0.2     /* seconds between two looks */
#define LEAST 30.0   /* seconds without news before a run may stall */
#define SILENCE 10.0 /* times that the last lines were apart */
#define RECENT 5     /* lines that the pace is taken from */

struct watch {
    struct ct_arena arena;
    const char *folder, *path;
    double stall; /* seconds; 0: by the pace of the run */
    bool once;
    int columns; /* of the terminal; 0: it is none */
    FILE *in;
    off_t read;
    int parts; /* of metrics.jsonl that were read */
    struct run_log log;
    struct run_status status;
    double news;         /* when the last line came */
    bool stalled, waits; /* reported */
    int64_t profiled;    /* step of the profile that was shown last; 0: none */
};

/* ---- what is new ---- */

/* Erases the progress line. */
static const char *erased(const struct watch *w)
{
    return w->columns ? "\r\033[K" : "";
}

static void print_resume(const struct run_resume *r)
{
    printf("resumed after step %lld", (long long)r->after);
    if (r->ranks > 1)
        printf(" on %lld ranks", (long long)r->ranks);
    printf("%s%s\n", *r->changed ? ": " : "", r->changed);
}

static void print_step(const struct run_log *log)
{
    const struct run_step *s = &log->step[log->count - 1];
    const struct run_resume *r = log->resumes ? &log->resume[log->resumes - 1] : NULL;
    char speed[32] = "?";

    if (r && r->after < s->step && (log->count < 2 || s[-1].step <= r->after))
        print_resume(r);
    if (isfinite(s->tokens_per_second))
        ct_grouped((int64_t)s->tokens_per_second, speed);
    printf("step %lld  loss %.5f  grad_norm %.4f%s  %s tokens/s  mfu %.1f %%%s\n",
           (long long)s->step, s->loss, s->grad_norm, s->metrics, speed, s->mfu,
           s->mfu > 100 ? " (the peak is taken too low)" : "");
}

static void print_validation(const struct run_validation *v)
{
    printf("step %lld  validation%s%s loss %.5f  perplexity %.4g%s\n", (long long)v->step,
           *v->set ? " " : "", v->set, v->loss, exp(v->loss), v->metrics);
}

static void print_line(const struct watch *w, enum run_line is)
{
    if (w->once)
        return;
    fputs(erased(w), stdout);
    if (is == RUN_STEP)
        print_step(&w->log);
    else if (is == RUN_NOTE)
        printf("%s\n", w->log.note[w->log.notes - 1].text);
    else
        print_validation(&w->log.validation[w->log.validations - 1]);
}

/* A file that grew too large got the name of the next part. */
static bool became_part(struct watch *w, ino_t file)
{
    const char *path = run_log_part(&w->arena, w->folder, w->parts + 1);
    struct stat st;
    bool became = path && stat(path, &st) == 0 && st.st_ino == file;

    w->parts += became;
    return became;
}

/* Take the lines that are complete. Returns how many say something. */
static size_t read_lines(struct watch *w)
{
    char *line = NULL;
    size_t room = 0, count = 0;
    ssize_t length;
    enum run_line is;

    if (!w->in)
        return 0;
    fseeko(w->in, w->read, SEEK_SET);
    while ((length = getline(&line, &room, w->in)) > 0 && line[length - 1] == '\n') {
        w->read += length;
        is = run_log_add(&w->arena, &w->log, line);
        if (is == RUN_NOTHING)
            continue;
        count++;
        print_line(w, is);
    }
    free(line);
    return count;
}

/* Parts that were not read yet. */
static size_t read_parts(struct watch *w)
{
    const char *part;
    size_t count = 0;

    for (; !w->in && (part = run_log_part(&w->arena, w->folder, w->parts + 1)); w->parts++) {
        w->read = 0;
        ct_file_open_stream(part, &w->in);
        count += read_lines(w);
        if (w->in)
            fclose(w->in);
        w->in = NULL;
    }
    return count;
}

/* The parts, then the file itself. Again if it became a part meanwhile. */
static size_t open_file(struct watch *w)
{
    size_t count = 0;

    do {
        if (w->in)
            fclose(w->in);
        w->in = NULL;
        count += read_parts(w);
        ct_file_open_stream(w->path, &w->in);
        w->read = 0;
    } while (w->in && run_log_part(&w->arena, w->folder, w->parts + 1));
    return count;
}

static void forget_lines(struct watch *w)
{
    w->parts = 0;
    w->log.count = w->log.validations = w->log.resumes = w->log.notes = 0;
    if (!w->once)
        printf("the run began anew\n");
}

/* Lines since the last look. Returns how many say something. */
static size_t read_new(struct watch *w)
{
    struct stat now, old;
    size_t count = read_lines(w);

    if (stat(w->path, &now) < 0)
        return count;
    if (w->in) {
        if (fstat(fileno(w->in), &old) == 0 && old.st_ino == now.st_ino && now.st_size >= w->read)
            return count;
        count += read_lines(w); /* lines before it got another name */
        if (!became_part(w, old.st_ino))
            forget_lines(w);
    }
    count += open_file(w);
    return count + read_lines(w);
}

/* Show a profile that is new since the last look. */
static void show_profile(struct watch *w, struct ct_arena *scratch)
{
    struct profile_summary last = profile_last(scratch, w->folder, w->profiled);

    if (!last.step)
        return;
    w->profiled = last.step;
    fputs(erased(w), stdout);
    profile_print(scratch, w->folder, &last, stdout);
}

/* ---- how it goes ---- */

/* Seconds from step to step, by the last lines; 0: not known. */
static double step_seconds(const struct watch *w)
{
    const struct run_step *last = &w->log.step[w->log.count - 1], *first;

    if (w->log.count < 2)
        return 0;
    first = last - (w->log.count > RECENT ? RECENT : w->log.count - 1);
    return (last->elapsed - first->elapsed) / (double)(last->step - first->step);
}

/* Seconds between two lines. */
static double line_seconds(const struct watch *w)
{
    const struct run_step *last = &w->log.step[w->log.count - 1];

    return w->log.count > 1 ? step_seconds(w) * (double)(last->step - last[-1].step) : 0;
}

static void print_pace(const struct watch *w)
{
    const struct run_step *last = &w->log.step[w->log.count - 1];
    int64_t step = run_last_step(&w->log, &w->status);
    struct ct_pace pace = {.step = step,
                           .steps = w->status.steps,
                           .loss = last->loss,
                           .tokens_per_second = last->tokens_per_second,
                           .elapsed = last->elapsed + (double)(step - last->step) * step_seconds(w),
                           .seconds_per_step = step_seconds(w)};
    const struct run_validation *v;
    char line[160];

    ct_pace_print(&pace, line, sizeof(line));
    if (w->columns) /* a line that wraps could not be redrawn */
        printf("\r\033[K%.*s", w->columns - 1, line);
    else
        printf("%s\n", line);
    for (size_t i = 0; w->once && (v = run_last_validation(&w->log, i)); i++)
        print_validation(v);
    fflush(stdout);
}

/* The whole run: what happened, and its time. */
static void print_whole(struct watch *w)
{
    struct run_time time = run_read_time(&w->arena, w->folder);

    if (time.attempts)
        printf("%s\n", run_time_text(&w->arena, &time));
    if (w->log.notes)
        printf("%s; the last: %s\n", run_count_notes(&w->arena, &w->log),
               w->log.note[w->log.notes - 1].text);
}

static bool on_this_host(const struct run_status *s)
{
    char host[256] = "";

    gethostname(host, sizeof(host) - 1);
    return !strcmp(host, s->host);
}

/* Ran on this host, and is not there any more. */
static bool is_gone(const struct run_status *s, pid_t process)
{
    return process > 0 && on_this_host(s) && kill(process, 0) < 0 && errno == ESRCH;
}

static void look_for_stall(struct watch *w)
{
    double silent = ct_now() - w->news,
           limit =
               w->stall > 0 ? w->stall : fmax(LEAST, w->log.count ? SILENCE * line_seconds(w) : 0);

    if (w->stalled || w->waits || silent < limit)
        return;
    w->stalled = true;
    if (!w->log.count && !*w->status.state) {
        printf("no run has begun in %s: a run that loads metrics writes status.json when it begins "
               "and metrics.jsonl after each step; waiting for them\n",
               w->folder);
        fflush(stdout);
        return;
    }
    printf("%sno step was logged for %.0f s", erased(w), silent);
    if (w->log.count)
        printf(" after step %lld, and steps took %.2f s",
               (long long)w->log.step[w->log.count - 1].step, step_seconds(w));
    printf(": the run may hang; `ctitan flight %s` says who waits for whom, if the recipe has "
           "flight_recorder\n",
           w->folder);
    fflush(stdout);
}

/* ---- the end ---- */

static int say_end(const struct watch *w)
{
    const struct run_status *s = &w->status;
    int64_t step = run_last_step(&w->log, s);
    const char *why = *s->message ? ": " : "";

    fputs(erased(w), stdout);
    if (!strcmp(s->state, "failed"))
        return ct_fail(CT_EPEER, "the run failed after step %lld%s%s", (long long)step, why,
                       s->message);
    if (!strcmp(s->state, "running"))
        return ct_fail(CT_EPEER,
                       "the run ended after step %lld without saying why: its process %d is gone",
                       (long long)step, (int)s->process);
    printf("%s after step %lld of %lld%s%s, loss %.5f\n", s->state, (long long)step,
           (long long)s->steps, why, s->message,
           w->log.count ? w->log.step[w->log.count - 1].loss : NAN);
    return 0;
}

static bool has_failed(const struct run_status *s)
{
    return !strcmp(s->state, "failed") || (!strcmp(s->state, "running") && is_gone(s, s->process));
}

static bool may_restart(const struct run_status *s)
{
    return has_failed(s) && s->launcher > 0 && on_this_host(s) && !is_gone(s, s->launcher);
}

static bool has_ended(const struct run_status *s)
{
    return *s->state && (strcmp(s->state, "running") != 0 || has_failed(s)) && !may_restart(s);
}

/* Once for each failure. */
static void tell_failure(struct watch *w)
{
    const struct run_status *s = &w->status;
    bool waits = !strcmp(s->state, "failed") && may_restart(s);

    if (waits && !w->waits)
        printf("%sfailed after step %lld%s%s; waiting for a restart\n", erased(w),
               (long long)run_last_step(&w->log, s), *s->message ? ": " : "", s->message);
    w->waits = waits;
}

static int follow(struct watch *w)
{
    struct ct_arena scratch = {0};
    int64_t trained = 0;
    bool fresh, ended;
    int rc;

    w->news = ct_now();
    for (;;) {
        w->status = run_read_status(&scratch, w->folder);
        ended = has_ended(&w->status);
        /* after the status: what an ended run has logged is all there */
        fresh = read_new(w) || w->status.step != trained;
        if (fresh) {
            w->news = ct_now();
            w->stalled = false;
        }
        if (fresh || ended)
            show_profile(w, &scratch);
        trained = w->status.step;
        tell_failure(w);
        if (w->log.count && (w->columns || w->once))
            print_pace(w);
        if (w->once)
            print_whole(w);
        fflush(stdout);
        if (ended || w->once)
            break;
        look_for_stall(w);
        ct_nap(POLL);
        ct_arena_finish(&scratch);
        scratch = (struct ct_arena){0};
    }
    if (!w->log.count && !ended)
        printf("the run has logged no step yet\n");
    rc = ended ? say_end(w) : 0;
    ct_arena_finish(&scratch);
    return rc;
}

static const struct ct_argument arguments[] = {
    CT_ARG_WORD(struct watch, folder, "RUN", "Dump folder of a run, [job] dump_folder"),
    CT_ARG_FLAG(struct watch, once, "once", 0, "Print the state of the run, and end"),
    CT_ARG_FLOAT(struct watch, stall, "stall", 0, "SECONDS", 1e-9, 1e9,
                 "Report a stall after so long without a step; by default, its pace decides"),
    {0}};

static int parse(struct watch *w, int argc, char **argv)
{
    *w = (struct watch){.columns = ct_terminal_columns(STDOUT_FILENO)};
    return ct_arguments_parse(arguments, argc, argv, &w->arena, w);
}

/* A run makes its lock and its recipe before it logs a step. */
static bool has_run(struct watch *w)
{
    static const char *const files[] = {"lock", "recipe.ini", "status.json", "metrics.jsonl"};
    struct stat st;
    bool found = false;

    for (size_t i = 0; i < CT_COUNT(files); i++)
        found |= !stat(ct_arena_printf(&w->arena, "%s/%s", w->folder, files[i]), &st);
    return found;
}

static int check_folder(struct watch *w)
{
    struct run_recipe recipe;
    struct run_option plugin;
    struct stat st;

    if (stat(w->folder, &st) == 0 ? !S_ISDIR(st.st_mode) : errno == ENOENT)
        return ct_fail(CT_ENOENT, "%s: expected the dump folder of a run ([job] dump_folder)",
                       w->folder);
    if (access(w->folder, X_OK) < 0)
        return ct_fail(CT_ECONFIG, "%s: %s", w->folder, strerror(errno));
    if (access(w->path, R_OK) < 0 && errno != ENOENT)
        return ct_fail(CT_ECONFIG, "%s: %s", w->path, strerror(errno));
    if (!has_run(w))
        return ct_fail(CT_ECONFIG,
                       "%s: expected the dump folder of a run: it has no lock, recipe.ini, "
                       "status.json or metrics.jsonl",
                       w->folder);
    run_take_recipe(&w->arena, w->folder, &recipe);
    if (recipe.parsed && !run_option_find(&recipe, "plugin metrics", &plugin))
        return ct_fail(CT_ECONFIG,
                       "%s: the run does not load the plugin metrics, whose files watch reads",
                       w->folder);
    return 0;
}

static int watch(int argc, char **argv)
{
    struct watch w;
    int rc = parse(&w, argc, argv);

    if (rc < 0)
        return rc;
    w.path = ct_arena_printf(&w.arena, "%s/metrics.jsonl", w.folder);
    if (w.once)
        w.columns = 0;
    rc = check_folder(&w);
    if (rc == 0)
        rc = follow(&w);
    if (w.in)
        fclose(w.in);
    ct_arena_finish(&w.arena);
    return rc;
}

const struct verb verb_watch = {
    .name = "watch",
    .summary = "follow a run from another terminal: steps, pace, whether it stalls",
    .run = watch,
    .arguments = arguments,
    .examples =
        CT_NAMES("ctitan watch outputs/quickstart", "ctitan watch outputs/quickstart --stall 600")};
