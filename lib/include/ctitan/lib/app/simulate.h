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
#include <ctitan/lib/trace.h>

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

struct ct_simulated {
    double seconds;              /* of a step */
    struct ct_rank_times *times; /* by index */
    double **start, **end;       /* by index, by instruction */
};

/* CT_EINVAL: the programs deadlock; the message names the ranks and what each waits for. */
CT_API int ct_simulate(const struct ct_simulate_request *request, struct ct_simulated *result);

/* The same for a step that was measured: `start` and `end` are given, in seconds of one clock. A
   call that waits for other ranks begins when the last of them has begun, so what it waited before
   is no time of its own; and all times are moved, so that the first instruction begins at 0.
   CT_EINVAL as above. */
CT_API int ct_simulated_measured(const struct ct_simulate_request *request,
                                 struct ct_simulated *result);

/* Write a trace (lib/trace.h) of the step: a process for each rank. Returns CT_EIO if `out` cannot
   be written. */
CT_API int ct_simulated_trace(const struct ct_simulate_request *request,
                              const struct ct_simulated *result, FILE *out);

CT_END_DECLS

#endif
