/* The data and parts of a page about runs. */
#ifndef CT_REPORT_H
#define CT_REPORT_H

#include <stdio.h>

#include <jansson.h>

#include "chart/chart.h"
#include "profiles.h"
#include "runs.h"
#include "work.h"

#define REPORT_RUNS CT_CHART_COLOURS
#define REPORT_SETS 8 /* of validation, in the chart of a run */

/* A step of all ranks, drawn: two rows for each, computing and communicating. */
struct report_timeline {
    const char *source;  /* where the times are from, a sentence; NULL: there is none */
    const char *missing; /* why */
    bool seconds;        /* milliseconds; otherwise percent of the step */
    double end;
    struct ct_chart_span *span;
    size_t count;
    const char **row;
    int rows, ranks, all_ranks; /* drawn; in the trace */
    double (*busy)[WORK_KINDS]; /* by rank, in the unit of the axis */
};

struct report_run {
    const char *name, *folder;
    struct run_log log;
    struct run_status status;
    struct run_recipe recipe;
    json_t *plan; /* as `plan --json` prints; NULL: it could not be planned again */
    const char *plan_failure;
    struct profile_summary profile; /* the last one; step 0: there is none */
    struct report_timeline timeline;
};

struct report {
    struct ct_arena arena;
    struct report_run run[REPORT_RUNS];
    size_t count;
    const char *device, *out;         /* of --device, --out; NULL: not given */
    const struct ct_machine *machine; /* of --device */
    const char *scratch;              /* folder */
};

/* Run a verb that takes options of this run: `ctitan VERB FOLDER/recipe.ini [--world N] ...`, up to
   a NULL. Returns what it printed, to be closed; NULL: *failure says why. */
FILE *report_ask(struct report *r, const struct report_run *run, const char *verb,
                 const char *const *options, const char **failure);

/* Where the run's time went, a sentence in arena; "": it is not known. */
const char *report_time_text(struct ct_arena *arena, const struct report_run *run);

/* Find a step's timeline: recorded by the flight recorder, or else simulated. */
void report_take_timeline(struct report *r, struct report_run *run);

void report_print_page(const struct report *r, FILE *out);

#endif
