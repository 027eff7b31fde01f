/*
 * Between the sources of the recorder.
 *
 *   record.c      events become records of the rank's file; the plugin's descriptor
 *   plan.c        the programs as tables of the file
 *   straggler.c   ranks that are slow
 *   divergence.c  values that differ between ranks
 *   watch.c       the watching thread, and reports
 *   digest.c      a line for the launcher of several hosts
 */
#ifndef FLIGHT_RECORDER_FLIGHT_H
#define FLIGHT_RECORDER_FLIGHT_H

#include <stdatomic.h>

#include <ctitan/hook.h>
#include <ctitan/lib/flight_record.h>
#include <ctitan/program.h>

/* ---- plan.c: a program as tables ---- */

struct flight_table {
    char *data;
    size_t used, room;
};

struct flight_plan {
    struct ct_flight_program program[CT_FLIGHT_PROGRAMS]; /* offsets into `instructions` */
    struct flight_table instructions, waits, groups, ranks, strings, recipe;
    uint32_t *index; /* of strings, by hash */
    size_t index_size, string_count;
};

/* Append a program; its groups get their numbers. */
void flight_plan_add(struct flight_plan *plan, int which, const struct ct_program *program);
uint32_t flight_plan_string(struct flight_plan *plan, const char *text);
/* The group's number; appended if it is new. */
int flight_plan_group(struct flight_plan *plan, const struct ct_group *group);
void flight_plan_recipe(struct flight_plan *plan);
void flight_plan_finish(struct flight_plan *plan);

/* ---- record.c ---- */

struct flight_config {
    int64_t records;
    enum { FLIGHT_RECORD_CALLS, FLIGHT_RECORD_ALL } record;
    double hang_timeout;
    int64_t straggler_freq, divergence_freq;
    double straggler_ratio;
};
extern struct flight_config flight_config;

/* This rank's file; NULL: not open. */
extern struct ct_flight_header *_Atomic flight_own;

/* ---- straggler.c, with [flight_recorder] straggler_freq: on the main thread ---- */

/* An instruction of stream 0 has run, or another was enqueued. The last call that it waits for
   ended at `awaited`. */
void flight_straggler_op(const struct ct_flight_instruction *f, double begin, double awaited,
                         double end);
/* A call ran on a device that only enqueues. */
void flight_straggler_call(double begin, double end);
int flight_straggler_step(const struct ct_run *run, const struct ct_step_result *result);
void flight_straggler_end(void);

/* ---- divergence.c, with [flight_recorder] divergence_freq ---- */

int flight_divergence_begin(const struct ct_run *run);
int flight_divergence_step_begin(struct ct_run *run, int64_t step);
/* The results of an instruction are there. From any thread. */
void flight_divergence_op(const struct ct_event_data *d);
int flight_divergence_step_end(const struct ct_run *run, int64_t step);

/* ---- watch.c: a thread that shows that the process is alive, and looks after it ---- */

int flight_watch_begin(void);
void flight_watch_end(void);
/* In the process that supervises ranks: note how they ended; explain it if none of them could. */
void flight_job_end(const struct ct_job_end *job, bool failed);
/* After a failure: look at all ranks and say why. One rank does so; the others return. */
void flight_explain(void);

/* ---- digest.c: on the watching thread ---- */

/* Tell the launcher of several hosts what this rank does, once a second. */
void flight_digest(int rank);
void flight_digest_end(void);

#endif
