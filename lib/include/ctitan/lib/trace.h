/*
 * Timelines of steps: where the time of a program goes, and traces that Perfetto and
 * chrome://tracing open.
 *
 * A trace ("Trace Event Format", JSON) has processes, here ranks, their threads, here streams,
 * slices on them, and arrows between them. It is written as it goes, one event a line. Times are
 * seconds from any beginning, the same for all of a trace; they are printed in whole nanoseconds,
 * so that slices that follow each other do not overlap as printed: Perfetto drops a slice that
 * begins before the end of another. A time that is not finite, as a damaged record may have, is
 * printed as 0. Texts may be any bytes, as for ct_json_text. A failed write shows in ct_trace_end.
 */
#ifndef CT_TRACE_H
#define CT_TRACE_H

#include <stdio.h>

#include <ctitan/program.h>

CT_BEGIN_DECLS

/* ---- traces ---- */

struct ct_trace {
    FILE *out;
    bool comma; /* before the next event */
};

/* Threads from this number on are no streams; the first has the steps. */
#define CT_TRACE_STEPS 100

CT_API void ct_trace_begin(struct ct_trace *trace, FILE *out);
/* Name a thread of a process, or with thread -1 the process. */
CT_API void ct_trace_name(struct ct_trace *trace, int process, int thread, const char *name);
/* "rank 3": name a process after its rank. */
CT_API void ct_trace_rank(struct ct_trace *trace, int process, int64_t rank);
/* Open a slice. Its arguments follow, then ct_trace_close. An end before the start counts as the
   start. */
CT_API void ct_trace_slice(struct ct_trace *trace, int process, int thread, const char *name,
                           double start, double end);
CT_API void ct_trace_text(struct ct_trace *trace, const char *key, const char *value);
CT_API void ct_trace_integer(struct ct_trace *trace, const char *key, int64_t value);
CT_API void ct_trace_number(struct ct_trace *trace, const char *key, double value);
CT_API void ct_trace_flag(struct ct_trace *trace, const char *key, bool value);
CT_API void ct_trace_close(struct ct_trace *trace);
/* One end of the arrow with this id; the slice that the point is in is at that end. */
CT_API void ct_trace_arrow(struct ct_trace *trace, size_t id, bool begins, int process, int thread,
                           double at);
/* other: an object of JSON, which viewers show as the trace's description; NULL: none. CT_EIO. */
CT_API int ct_trace_end(struct ct_trace *trace, const char *other);

/* Slices of a step, and of its beginning in which data is read, on the thread of steps. */
CT_API void ct_trace_step(struct ct_trace *trace, int process, int64_t step, double start,
                          double data_end, double end);
/* "linear blk.0.q": an instruction's name in plans and traces. Prints as snprintf does. */
CT_API int ct_instruction_name(const struct ct_instruction *instruction, char *text, size_t room);
/* Open the slice of an instruction, on the thread of its stream, with its section, microbatch,
   layer and the bytes that it sends. */
CT_API void ct_trace_instruction(struct ct_trace *trace, int process,
                                 const struct ct_instruction *instruction, double start,
                                 double end);
/* Name the threads of the streams that a program's step uses. */
CT_API void ct_trace_streams(struct ct_trace *trace, int process, const struct ct_program *program);

/* ---- where the time of a step goes ---- */

/* Times of one rank, in seconds. hidden is within computing; where only one stream computes, the
   sum of the others is the step. */
struct ct_rank_times {
    double products, others; /* computing: ops with FLOPs, and all others */
    double exposed;          /* communication while nothing computes */
    double waiting;          /* nothing works: the pipeline's bubble, and waiting for others */
    double hidden;           /* communication while something computes */
    double *of_class; /* computing, by machine->rate; one more for ops in no class. NULL: unknown */
};

/* Neither a collective nor a transfer, between ranks or to host memory. */
CT_API bool ct_instruction_computes(const struct ct_instruction *instruction);
/* Times of a step of `seconds`, from the start and end of each instruction. */
CT_API void ct_rank_account(const struct ct_program *program, const double *start,
                            const double *end, double seconds, struct ct_rank_times *times);

CT_END_DECLS

#endif
