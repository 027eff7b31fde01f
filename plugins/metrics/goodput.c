/*
 * A step counts as trained if the run still has it: those behind the checkpoint with which a later
 * attempt went on, or to which the run went back, were trained again. Their time is taken to be the
 * mean of the attempt's steps.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/arena.h>
#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/launch.h>
#include <ctitan/log.h>
#include <ctitan/state.h>

#include "goodput.h"

#define AT_LEAST 1.0      /* seconds between two writings */
#define SHARE 0.005       /* of the time, that they take at most */
#define LARGEST (1 << 20) /* bytes of the file */

/* Times are seconds since 1970; the rest are sums of seconds. */
struct attempt {
    double began, trained, until; /* the process, its first step, the last that is known */
    double steps, data, held, save, validation; /* data and held are within steps */
    int64_t first, last, kept; /* steps; kept: the last one that the run still has */
    int64_t count, ranks;      /* steps that were done, also again */
    bool done;                 /* it ended with the last step of its recipe */
};

static struct {
    struct ct_arena arena;
    struct attempt *attempt;
    size_t count, room;
    double next; /* when the file is due to be written */
    bool begun;
} now;

/* Uses of the time from the first attempt on. */
struct sums {
    double all, trained, redone, data, save, validation, start, idle;
};

/* ---- sums ---- */

static void add(struct sums *s, const struct attempt *a, double former)
{
    double computed = a->steps - a->data - a->held;
    int64_t useful = a->kept - a->first + 1;
    double share = a->count > 0 && useful > 0 ? (double)useful / (double)a->count : 0;

    s->trained += computed * fmin(share, 1);
    s->redone += computed * (1 - fmin(share, 1));
    s->data += a->data;
    s->save += a->save + a->held;
    s->validation += a->validation;
    s->start += (a->trained > 0 ? a->trained : a->until) - a->began;
    s->idle += former > 0 ? fmax(a->began - former, 0) : 0;
    s->all = a->until - now.attempt[0].began;
}

static struct sums add_up(void)
{
    struct sums s = {0};

    for (size_t i = 0; i < now.count; i++)
        add(&s, &now.attempt[i], i ? now.attempt[i - 1].until : 0);
    return s;
}

double goodput_percent(void)
{
    struct sums s = add_up();

    return s.all > 0 && s.trained > 0 ? 100 * s.trained / s.all : NAN;
}

/* ---- the file ---- */

static void path_of(char path[CT_PATH_ROOM])
{
    snprintf(path, CT_PATH_ROOM, "%s/attempts.json", ct_config.job.dump_folder);
}

static json_t *attempt_json(const struct attempt *a)
{
    return json_pack("{sI sI sI sI sI sf sf sf sf sf sf sf sf sb}", "first", (json_int_t)a->first,
                     "last", (json_int_t)a->last, "kept", (json_int_t)a->kept, "steps",
                     (json_int_t)a->count, "ranks", (json_int_t)a->ranks, "began", a->began,
                     "trained", a->trained, "until", a->until, "step_seconds", a->steps,
                     "data_seconds", a->data, "held_seconds", a->held, "save_seconds", a->save,
                     "validation_seconds", a->validation, "done", a->done);
}

static json_t *sums_json(const struct sums *s)
{
    return json_pack("{sf sf sf sf sf sf sf sf}", "all", s->all, "trained", s->trained, "redone",
                     s->redone, "data", s->data, "save", s->save, "validation", s->validation,
                     "start", s->start, "idle", s->idle);
}

static int write_file(void)
{
    struct sums s = add_up();
    json_t *list = json_array(), *all;
    char path[CT_PATH_ROOM], *text;
    double began = ct_now();
    int rc;

    for (size_t i = 0; i < now.count; i++)
        json_array_append_new(list, attempt_json(&now.attempt[i]));
    all = json_pack("{so so}", "seconds", sums_json(&s), "attempts", list);
    text = json_dumps(all, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
    json_decref(all);
    if (!text)
        return ct_fail(CT_ENOMEM, "attempts.json");
    path_of(path);
    rc = ct_file_write(path, text, strlen(text));
    free(text);
    now.next = ct_now() + fmax(AT_LEAST, (ct_now() - began) / SHARE);
    return rc;
}

static void append(const struct attempt *a)
{
    now.attempt =
        ct_arena_grow(&now.arena, now.attempt, &now.room, now.count + 1, sizeof(*now.attempt));
    now.attempt[now.count++] = *a;
}

static bool read_attempt(json_t *o, struct attempt *a)
{
    json_int_t first, last, kept, count, ranks;
    int done = false;

    if (json_unpack(o, "{sI sI sI sI sI sF sF sF sF sF sF sF sF s?b}", "first", &first, "last",
                    &last, "kept", &kept, "steps", &count, "ranks", &ranks, "began", &a->began,
                    "trained", &a->trained, "until", &a->until, "step_seconds", &a->steps,
                    "data_seconds", &a->data, "held_seconds", &a->held, "save_seconds", &a->save,
                    "validation_seconds", &a->validation, "done", &done) < 0)
        return false;
    a->first = first;
    a->last = last;
    a->kept = kept;
    a->count = count;
    a->ranks = ranks;
    a->done = done;
    return true;
}

/* Former attempts; a file that cannot be read has none. */
static void read_file(void)
{
    char path[CT_PATH_ROOM];
    json_t *all, *o;
    size_t i;
    int rc;

    path_of(path);
    rc = ct_json_read_file(path, LARGEST, &all);
    if (rc < 0 && rc != CT_ENOENT)
        ct_warn("the time of former attempts is not known: %s", ct_error_message());
    if (rc < 0)
        return;
    json_array_foreach(json_object_get(all, "attempts"), i, o)
    {
        struct attempt a;

        if (read_attempt(o, &a))
            append(&a);
    }
    json_decref(all);
}

/* ---- events ---- */

/* The run goes on with this step: later ones are trained again. */
static void take_back(int64_t step)
{
    for (size_t i = 0; i < now.count; i++)
        if (now.attempt[i].kept >= step)
            now.attempt[i].kept = step - 1;
}

int goodput_begin(const struct ct_run *run)
{
    double wall = ct_wall_clock();
    int64_t first = run->progress.step;

    if (now.begun)
        return 0;
    now.begun = true;
    now.count = 0;
    if (first > 1 || ct_launch_is_restarted())
        read_file();
    take_back(first);
    append(&(struct attempt){.began = wall - (ct_now() - run->start_time),
                             .trained = wall,
                             .until = wall,
                             .first = first,
                             .last = first - 1,
                             .kept = first - 1,
                             .ranks = run->world});
    return write_file();
}

static void take_times(const struct ct_run *run)
{
    struct attempt *a = &now.attempt[now.count - 1];

    a->until = ct_wall_clock();
    a->data = run->lost[CT_LOST_DATA];
    a->validation = run->lost[CT_LOST_VALIDATION];
    a->save = run->lost[CT_LOST_SAVE];
    a->held = ct_run_waited(run);
}

int goodput_step(const struct ct_run *run, const struct ct_step_result *step)
{
    struct attempt *a = &now.attempt[now.count - 1];

    if (step->step <= a->last)
        take_back(step->step);
    if (step->step < a->first)
        a->first = step->step;
    a->last = a->kept = step->step;
    a->count++;
    a->steps += step->seconds;
    take_times(run);
    return ct_now() < now.next ? 0 : write_file();
}

int goodput_end(const struct ct_run *run, bool failed)
{
    struct attempt *a = now.begun ? &now.attempt[now.count - 1] : NULL;
    int rc;

    if (!a)
        return 0;
    a->done = !failed && a->last >= ct_config.training.steps;
    if (run->executor)
        take_times(run);
    now.begun = false;
    rc = write_file();
    ct_arena_finish(&now.arena);
    now.attempt = NULL;
    now.count = now.room = 0;
    return rc;
}
