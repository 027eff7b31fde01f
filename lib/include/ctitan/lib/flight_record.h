/*
 * The record of a rank: a file that the plugin flight_recorder writes, and flight.h reads.
 *
 * Each rank maps one file, DUMP_FOLDER/flight/rank-N.ring, and writes to it while it runs. The
 * kernel keeps what a killed process wrote, so nothing needs to be dumped. A file describes itself:
 * it holds the instructions of the rank's programs, so a reader needs neither the recipe nor the
 * plugins of the run. Offsets are bytes from the beginning of the file.
 *
 * Files have a version of their own, and these structs are not in the ABI of plugins: a change of
 * one is a new CT_FLIGHT_LAYOUT, and a file of another layout is refused.
 *
 * A call of a group is one record, completed in place when the call starts and finishes. The thread
 * that drives the run enqueues calls; the thread of a stream may report the rest. Times are seconds
 * of the rank's CLOCK_MONOTONIC; 0: not yet.
 */
#ifndef CT_FLIGHT_RECORD_H
#define CT_FLIGHT_RECORD_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

#define CT_FLIGHT_MAGIC 0x544847494c46ull /* "FLIGHT" */
#define CT_FLIGHT_LAYOUT 3
#define CT_FLIGHT_PROGRAMS 2 /* training, validation */

/* The table or string at an offset. */
#define CT_FLIGHT_AT(header, offset) ((void *)((char *)(header) + (offset)))

/* A field that is written while other threads and processes read it. In C++ it is a plain one of
   the same size. */
#ifdef __cplusplus
#define CT_FLIGHT_LIVE(type) type
#else
#define CT_FLIGHT_LIVE(type) _Atomic(type)
#endif

/* Instructions by what they spend time on. */
#define CT_FLIGHT_WORKS(X)                                                                         \
    X(PRODUCTS, "matrix products")                                                                 \
    X(MEMORY, "memory-bound kernels")                                                              \
    X(TRANSFERS, "copies from and to host memory")                                                 \
    X(CALLS, "communication")

enum ct_flight_work {
#define X(id, text) CT_FLIGHT_##id,
    CT_FLIGHT_WORKS(X)
#undef X
        CT_FLIGHT_WORK_COUNT
};

/* Forms of calls that the ranks of a group make together. */
enum ct_flight_form {
    CT_FLIGHT_OTHER,
    CT_FLIGHT_ALIKE,   /* all the same, of the same size; none ends before all have begun */
    CT_FLIGHT_UNEVEN,  /* the same, of sizes that depend on the rank */
    CT_FLIGHT_SEND,    /* one of two sends */
    CT_FLIGHT_RECEIVE, /* what the other receives */
};

/* An instruction as planned. Names are offsets into the strings. */
struct ct_flight_instruction {
    uint32_t op, value, section, region, item, why;
    uint32_t sizes; /* "[4, 64] float32 -> [8, 64] float32", local */
    uint32_t dtype;
    int32_t microbatch, stream;
    int32_t work, form; /* enum ct_flight_work, enum ct_flight_form */
    uint32_t stream_name;
    int32_t group;              /* -1: it does not communicate */
    uint32_t waits, wait_count; /* indices of instructions, from there in the table of waits */
    int64_t bytes;              /* of the larger side, which is the same on all ranks */
};

struct ct_flight_program {
    uint64_t instructions; /* offset; init comes first */
    int64_t init_count, step_count;
};

/* The last call of a group that got so far. */
struct ct_flight_mark {
    int64_t sequence;
    int32_t program, index;
    int64_t step;
    CT_FLIGHT_LIVE(double) time;
};

struct ct_flight_group {
    const void *key; /* in the process that writes */
    uint32_t name;
    int32_t instance, size;
    uint32_t ranks;                                    /* first of `size` in the table of ranks */
    struct ct_flight_mark enqueued, started, finished; /* live */
};

enum ct_flight_kind {
    CT_FLIGHT_CALL,      /* of a group, by a program */
    CT_FLIGHT_HOST_CALL, /* of a group, by the run or a hook; index is the enum ct_call_kind */
    CT_FLIGHT_OP,        /* only with [flight_recorder] record = all */
    CT_FLIGHT_STEP,      /* started: the data has been read */
};

struct ct_flight_record {
    CT_FLIGHT_LIVE(uint64_t) id; /* 1-based; 0: being written */
    double enqueued, started, finished;
    int64_t sequence, step;
    int32_t index; /* as in struct ct_event_data */
    int16_t group, program;
    int32_t kind, unused;
};

/* Phases of the thread that drives the run. */
#define CT_FLIGHT_PHASES(X)                                                                        \
    X(OPENING, "opening the run")                                                                  \
    X(DATA, "reading data")                                                                        \
    X(INSIDE, "in the instruction")                                                                \
    X(BETWEEN, "between two instructions")                                                         \
    X(HOOKS, "after the step, in hooks or validation")                                             \
    X(CALL, "in a call of the host")                                                               \
    X(OVER, "the run is over")

enum ct_flight_phase {
#define X(id, text) CT_FLIGHT_IN_##id,
    CT_FLIGHT_PHASES(X)
#undef X
        CT_FLIGHT_PHASE_COUNT
};

struct ct_flight_position {
    int32_t phase, program, index; /* phase CALL: index into the groups */
    int64_t step;
    CT_FLIGHT_LIVE(double) since;
};

/* TOLD: a signal asked it to end. */
enum ct_flight_state {
    CT_FLIGHT_RUNNING,
    CT_FLIGHT_FAILED,
    CT_FLIGHT_ENDED,
    CT_FLIGHT_TOLD,
};

struct ct_flight_header {
    uint64_t magic; /* written last: the file is whole */
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
    struct ct_flight_program program[CT_FLIGHT_PROGRAMS];

    /* ---- live: the times are read by the watching thread while others write ---- */
    /* Records so far. */
    __attribute__((aligned(64))) CT_FLIGHT_LIVE(uint64_t) written;
    CT_FLIGHT_LIVE(double) beat;   /* of the watching thread, ten times a second */
    CT_FLIGHT_LIVE(double) broken; /* the first call failed; nothing is recorded after it */
    struct ct_flight_position position;
    int32_t state, code; /* enum ct_flight_state; CT_E* of the failure */
    CT_FLIGHT_LIVE(double) ended;
    char message[1024];
    char slow[256], diverged[512]; /* what was found last; empty: nothing */
    /* The process's state, as seen by others: a letter of proc(5), or 'X' if it is gone. */
    CT_FLIGHT_LIVE(int32_t) seen;
    /* From the launcher: how the process ended, as of waitpid. */
    int32_t exit_known, exit_status, exit_first; /* exit_first: it was the first to fail */
};

CT_END_DECLS

#endif
