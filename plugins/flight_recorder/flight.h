/*
 * The flight recorder's own structures.
 *
 * Each rank maps one file, DUMP_FOLDER/flight/rank-N.ring, and writes to it while it runs. The
 * kernel keeps what a killed process wrote, so nothing needs to be dumped. A file describes itself:
 * it holds the instructions of the rank's programs, so a reader needs neither the recipe nor the
 * plugins of the run. Offsets are bytes from the beginning of the file.
 *
 * A call of a group is one record, completed in place when the call starts and finishes. The thread
 * that drives the run enqueues calls; the thread of a stream may report the rest. Times are seconds
 * of the rank's CLOCK_MONOTONIC; 0: not yet.
 */
#ifndef FLIGHT_H
#define FLIGHT_H

#include <stdatomic.h>
#include <stdio.h>

#include <ctitan/arena.h>
#include <ctitan/file.h>
#include <ctitan/hook.h>
#include <ctitan/program.h>
#include <ctitan/recipe.h>

#define FLIGHT_MAGIC 0x544847494c46ull /* "FLIGHT" */
#define FLIGHT_LAYOUT 3
#define FLIGHT_PROGRAMS 2 /* training, validation */

/* ---- the file ---- */

/* Classes of instructions by what they spend time on. */
#define FLIGHT_CLASSES(X)                                                                          \
    X(PRODUCTS, "matrix products")                                                                 \
    X(MEMORY, "memory-bound kernels")                                                              \
    X(TRANSFERS, "copies from and to host memory")                                                 \
    X(CALLS, "communication")

enum flight_class {
#define X(id, text) FLIGHT_##id,
    FLIGHT_CLASSES(X)
#undef X
        FLIGHT_CLASS_COUNT
};

/* Forms of calls that the ranks of a group make together. */
enum flight_form {
    FLIGHT_OTHER,
    FLIGHT_ALIKE,   /* all the same, of the same size; none ends before all have begun */
    FLIGHT_UNEVEN,  /* the same, of sizes that depend on the rank */
    FLIGHT_SEND,    /* one of two sends */
    FLIGHT_RECEIVE, /* what the other receives */
};

/* An instruction as planned. Names are offsets into the strings. */
struct flight_instruction {
    uint32_t op, value, section, region, item, why;
    uint32_t sizes; /* "[4, 64] float32 -> [8, 64] float32", local */
    uint32_t dtype;
    int32_t microbatch, stream, class, form;
    uint32_t stream_name;
    int32_t group;              /* -1: it does not communicate */
    uint32_t waits, wait_count; /* indices of instructions, from there in the table of waits */
    int64_t bytes;              /* of the larger side, which is the same on all ranks */
};

struct flight_program {
    uint64_t instructions; /* offset; init comes first */
    int64_t init_count, step_count;
};

/* The last call of a group that got so far. */
struct flight_mark {
    int64_t sequence;
    int32_t program, index;
    int64_t step;
    _Atomic double time;
};

struct flight_group {
    const void *key; /* in the process that writes */
    uint32_t name;
    int32_t instance, size;
    uint32_t ranks;                                 /* first of `size` in the table of ranks */
    struct flight_mark enqueued, started, finished; /* live */
};

enum flight_kind {
    FLIGHT_CALL,      /* of a group, by a program */
    FLIGHT_HOST_CALL, /* of a group, by the run or a hook; index is the enum ct_call_kind */
    FLIGHT_OP,        /* only with [flight_recorder] record = all */
    FLIGHT_STEP,      /* started: the data has been read */
};

struct flight_record {
    _Atomic uint64_t id; /* 1-based; 0: being written */
    double enqueued, started, finished;
    int64_t sequence, step;
    int32_t index; /* as in struct ct_event_data */
    int16_t group, program;
    int32_t kind, unused;
};

/* Phases of the thread that drives the run. */
#define FLIGHT_PHASES(X)                                                                           \
    X(OPENING, "opening the run")                                                                  \
    X(DATA, "reading data")                                                                        \
    X(INSIDE, "in the instruction")                                                                \
    X(BETWEEN, "between two instructions")                                                         \
    X(HOOKS, "after the step, in hooks or validation")                                             \
    X(CALL, "in a call of the host")                                                               \
    X(OVER, "the run is over")

enum flight_phase {
#define X(id, text) FLIGHT_IN_##id,
    FLIGHT_PHASES(X)
#undef X
        FLIGHT_PHASE_COUNT
};

struct flight_position {
    int32_t phase, program, index; /* phase CALL: index into the groups */
    int64_t step;
    _Atomic double since;
};

/* TOLD: a signal asked it to end. */
enum flight_state { FLIGHT_RUNNING, FLIGHT_FAILED, FLIGHT_ENDED, FLIGHT_TOLD };

struct flight_header {
    uint64_t magic;
    uint32_t layout, header_bytes;
    uint64_t bytes;
    int32_t rank, world, pid, unused;
    char host[64], job[64];
    char start[64]; /* ct_identity's job: what started the ranks */
    double clock;   /* CLOCK_REALTIME - CLOCK_MONOTONIC */
    double begin;   /* of the process */
    double timeout; /* [comm] timeout */
    uint64_t waits, groups, ranks, strings, recipe,
        ring; /* recipe: "[section] key = value" lines */
    uint64_t group_count, ring_count;
    struct flight_program program[FLIGHT_PROGRAMS];

    /* ---- live: the times are read by the watching thread while others write ---- */
    _Alignas(64) _Atomic uint64_t written; /* records so far */
    _Atomic double beat;                   /* of the watching thread, ten times a second */
    _Atomic double broken;                 /* the first call failed; nothing is recorded after it */
    struct flight_position position;
    int32_t state, code; /* enum flight_state; CT_E* of the failure */
    _Atomic double ended;
    char message[1024];
    char slow[256], diverged[512]; /* what was found last; empty: nothing */
    /* The process's state, as seen by others: a letter of proc(5), or 'X' if it is gone. */
    _Atomic int32_t seen;
    /* From the launcher: how the process ended, as of waitpid. */
    int32_t exit_known, exit_status, exit_first; /* exit_first: it was the first to fail */
};

/* ---- plan.c: a program as tables ---- */

struct flight_table {
    char *data;
    size_t used, room;
};

struct flight_plan {
    struct flight_program program[FLIGHT_PROGRAMS]; /* offsets into `instructions` */
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
    const char *record;
    double hang_timeout;
    int64_t straggler_freq, divergence_freq;
    double straggler_ratio;
};
extern struct flight_config flight_config;

/* This rank's file; NULL: not open. */
extern struct flight_header *_Atomic flight_own;
#define FLIGHT_AT(header, offset) ((void *)((char *)(header) + (offset)))

/* ---- straggler.c, with [flight_recorder] straggler_freq: on the main thread ---- */

/* An instruction of stream 0 has run, or another was enqueued. The last call that it waits for
   ended at `awaited`. */
void flight_straggler_op(const struct flight_instruction *f, double begin, double awaited,
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

/* ---- read.c: the files of a run ---- */

struct flight_rank {
    struct flight_header *h; /* NULL: no file, or a stale one */
    size_t bytes;
    int *group;   /* by the rank's group: number in flight_run.group */
    char process; /* letter of proc(5) now; 'X': gone, '?': another host */
    bool copied;  /* from another host, at the end of a job */
};

struct flight_members {
    const char *name;
    int instance, size;
    const int32_t *ranks;
    int *own; /* by position: the member's number of the group, -1: it has none */
};

struct flight_run {
    struct ct_arena arena;
    const char *folder;
    int world;
    struct flight_rank *rank;
    struct flight_members *group;
    int group_count;
    double now;    /* latest time that any rank showed */
    double failed; /* when the first rank failed, in seconds of CLOCK_REALTIME; 0: none did */
    const struct ct_job_end *job; /* in the process that supervises ranks; NULL: this is another */
};

/* Map the files of a dump folder. CT_ENOENT: there are none; CT_EINVAL: of another layout. */
int flight_run_open(const char *folder, bool writable, struct flight_run *run);
/* Map the file of one rank; those below it have none. */
int flight_run_open_rank(const char *path, struct flight_run *run);
void flight_run_close(struct flight_run *run);
/* Text that a rank without a file has sent, and how many seconds ago; NULL: none. */
const char *flight_told(const struct flight_run *run, int rank, double *ago);

const char *flight_string(const struct flight_header *h, uint32_t at);
/* The planned instruction, or NULL. */
const struct flight_instruction *flight_instruction(const struct flight_header *h, int program,
                                                    int64_t index);
bool flight_is_group(const struct flight_header *h, int64_t group);
struct flight_group *flight_group(const struct flight_header *h, int group);
/* The record with this id, NULL if it was overwritten; the first that may still be there. */
const struct flight_record *flight_at(const struct flight_header *h, uint64_t id);
uint64_t flight_first(const struct flight_header *h);

/* A call of a group by its sequence, or, if that is 0, by instruction and step. */
struct flight_query {
    int kind, group, program;
    int64_t sequence, index, step;
};
/* The latest such record; NULL: overwritten, or never made. */
const struct flight_record *flight_find(const struct flight_header *h,
                                        const struct flight_query *query);
/* When the rank last did something, of its own clock. */
double flight_progress(const struct flight_header *h);
/* Seconds of CLOCK_REALTIME. */
double flight_time(const struct flight_header *h, double monotonic);

/* ---- analyse.c ---- */

/* The rule that decided; order of the tests. */
enum flight_rule { FLIGHT_NOTHING, R1 = 1, R2, R3, R4, R5, R6, R7, R8 };

struct flight_verdict {
    enum flight_rule rule;
    uint64_t guilty;  /* ranks below 64, as bits */
    int rank;         /* first of them; -1: none */
    char text[16384]; /* one sentence, then a line for each further fact */
};

void flight_analyse(const struct flight_run *run, struct flight_verdict *verdict);
bool flight_is_dead(const struct flight_run *run, int rank);
/* By a signal, now or when the first rank failed. */
bool flight_is_stopped(const struct flight_run *run, int rank);
/* No rank has done anything for longer than steps took. */
bool flight_is_stuck(const struct flight_run *run);

/* ---- page.c, json.c, trace.c ---- */

void flight_page(const struct flight_run *run, const struct flight_verdict *verdict, FILE *out);
/* The same for programs. CT_ENOMEM; CT_EIO. */
int flight_json(const struct flight_run *run, const struct flight_verdict *verdict, FILE *out);
/* "dead", "running" */
const char *flight_state_of(const struct flight_run *run, int rank);
/* The least and the most calls of a group that ended, of all members. */
void flight_calls_ended(const struct flight_run *run, const struct flight_members *m,
                        int64_t *least, int64_t *most);
int flight_trace(const struct flight_run *run, const char *path);

/* In words: "all_gather of %w (F, microbatch 0, ..), call 12 of group 'tp' [0 1]", "group 'tp'
   [0 1]", "step 3, reading data, since 1.50 s". */
void flight_describe_call(const struct flight_run *run, int rank, int group, int64_t sequence,
                          char *text, size_t room);
void flight_describe_group(const struct flight_members *m, char *text, size_t room);
void flight_describe_position(const struct flight_run *run, int rank, char *text, size_t room);

#endif
