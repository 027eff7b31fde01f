/*
 * Files that runs leave in their dump folders: the steps they logged (metrics.jsonl), the options
 * they ran with (recipe.ini) and how they ended (status.json). For verbs that look at runs.
 */
#ifndef CT_RUNS_H
#define CT_RUNS_H

#include <stdio.h>
#include <sys/types.h>

#include <ctitan/arena.h>
#include <ctitan/recipe.h>

/* A line of metrics.jsonl. NAN: it does not say. */
struct run_step {
    int64_t step;
    double loss, grad_norm, lr, tokens, tokens_per_second, mfu, memory, seconds, data_seconds;
    double others;       /* percent of the host's processors that other processes took */
    double elapsed;      /* seconds since the first step began */
    const char *metrics; /* those that the run names: "  margin 0.25  accuracy 0.5"; "": none */
};

struct run_validation {
    int64_t step;
    const char *set; /* its name; "": the data source's own held-out data */
    double loss;
    const char *metrics; /* as in run_step */
};

/* Where the run went on after it was started again, or went back to a checkpoint. */
struct run_resume {
    int64_t after;       /* step */
    int64_t ranks;       /* 0: it does not say */
    const char *changed; /* "adamw.lr 0.1, now 0.2; plugin tp loaded"; "": nothing */
};

/* Something that happened in or after a step: a spike, a step back. */
struct run_note {
    int64_t step;
    const char *kind, *text;
};

/* By rising step: of a step that was trained again, the last line counts. Notes are as
   they came. */
struct run_log {
    struct run_step *step;
    size_t count, room;
    struct run_validation *validation;
    size_t validations, validation_room;
    struct run_resume *resume;
    size_t resumes, resume_room;
    struct run_note *note;
    size_t notes, note_room;
};

/* Uses of a run's time since its first start, in seconds (attempts.json). */
struct run_time {
    double all, trained, redone, data, save, validation, start, idle;
    double paused;    /* from the end of a run that was done to its next start; within idle */
    int64_t attempts; /* 0: nothing says it */
    int64_t failures; /* attempts but the first and those that follow a run that was done */
};

/* "running", "done", "stopped" (before its last step), "failed"; "" where nothing says it. */
struct run_status {
    const char *state, *host, *message;
    int64_t ranks, steps, step; /* all to do; the last one done */
    pid_t process;              /* of rank 0, on that host */
    pid_t launcher;             /* may start the ranks again; 0: none */
    double began, ended;        /* seconds since 1970; 0: it has not */
};

bool run_is(const char *folder); /* whether it has metrics.jsonl */
/* Path of part `number`, from 1, of a metrics.jsonl that grew too large: they come before it. NULL:
   there are fewer. */
const char *run_log_part(struct ct_arena *arena, const char *folder, int number);
/* CT_ENOENT, CT_EIO. Lines that are no JSON do not count. */
int run_read_log(struct ct_arena *arena, const char *folder, struct run_log *log);
enum run_line { RUN_NOTHING, RUN_STEP, RUN_VALIDATION, RUN_NOTE };
/* Add a line of metrics.jsonl. Returns what it is. */
enum run_line run_log_add(struct ct_arena *arena, struct run_log *log, const char *line);
/* The last validation of set number `index`, in the order of their first lines; NULL: there are
   fewer sets. */
const struct run_validation *run_last_validation(const struct run_log *log, size_t index);
/* How often each kind of note came, "2 spikes, 1 rewind", in arena; "": there are none. */
const char *run_count_notes(struct ct_arena *arena, const struct run_log *log);
/* The mean of `others`, without the first line; NAN: nothing says it. */
double run_others(const struct run_log *log);
/* The last step trained; status may know of more than was logged. */
int64_t run_last_step(const struct run_log *log, const struct run_status *status);
struct run_time run_read_time(struct ct_arena *arena, const char *folder);
/* "3.1 h", in arena. */
const char *run_long_text(struct ct_arena *arena, double seconds);
/* "goodput 91.2 % of 3.1 h in 4 attempts: trained again 2.0 %, ..", in arena; "": not known. */
const char *run_time_text(struct ct_arena *arena, const struct run_time *time);
struct run_status run_read_status(struct ct_arena *arena, const char *folder);

/* ---- resolved recipes ---- */

struct run_recipe {
    const char *text;         /* "": there is none */
    struct ct_recipe *parsed; /* NULL: there is none */
};

/* An option: "section.key", value, source. A plugin of the list: "plugin NAME", "loaded". In the
   recipe's arena. */
struct run_option {
    const char *name, *value, *source;
};

/* Read the recipe that a run saved, if there is one. CT_ECONFIG: it is damaged. */
int run_read_recipe(struct ct_arena *arena, const char *folder, struct run_recipe *recipe);
/* The same for who can do without: a damaged one is warned of, and taken as none. */
void run_take_recipe(struct ct_arena *arena, const char *folder, struct run_recipe *recipe);
/* The next plugin or option, from *at on, at first 0; false: there are no more. */
bool run_option_next(const struct run_recipe *recipe, size_t *at, struct run_option *option);
bool run_option_find(const struct run_recipe *recipe, const char *name, struct run_option *option);

#endif
