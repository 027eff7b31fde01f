/*
 * Programs of all ranks on a virtual clock.
 *
 * Ranks that differ only outside the pipeline's axis run the same program in the same time, so the
 * ranks of one pipeline stand for all. With slow ranks, all ranks are simulated.
 */
#ifndef CT_SIMULATE_H
#define CT_SIMULATE_H

#include <stdio.h>

#include <ctitan/lib/machine.h>

CT_BEGIN_DECLS

/* A rank whose instructions take `factor` times as long. */
struct ct_slow {
    int64_t rank;
    double factor;
};

struct ct_simulate_request {
    const struct ct_machine *machine;
    const struct ct_program *const *program; /* by index */
    const int64_t *rank;                     /* by index: its number in the mesh */
    int count;
    const struct ct_slow *slow; /* slow_count of them */
    int slow_count;
    bool in_order, host_waits; /* of the device (device.h) */
    struct ct_arena *arena;    /* for the result */
};

/* Where the time of one rank goes, in seconds; the sum is the step. */
struct ct_rank_times {
    double products, others; /* computing: ops with FLOPs, and all others */
    double exposed;          /* communication while nothing computes */
    double waiting;          /* nothing works: the pipeline's bubble, and waiting for others */
    double hidden;           /* communication while something computes; not in the sum */
    double *of_class;        /* computing, by machine->rate; one more for ops in no class */
};

struct ct_simulated {
    double seconds;              /* of a step */
    struct ct_rank_times *times; /* by index */
    double **start, **end;       /* by index, by instruction */
};

/* CT_EINVAL: the programs deadlock; the message names the ranks and what each waits for. */
CT_API int ct_simulate(const struct ct_simulate_request *request, struct ct_simulated *result);

/* Write a Chrome trace ("Trace Event Format"; Perfetto opens it): a process for each rank, a thread
   for each stream. Returns CT_EIO if `out` cannot be written. */
CT_API int ct_simulated_trace(const struct ct_simulate_request *request,
                              const struct ct_simulated *result, FILE *out);

CT_END_DECLS

#endif
