/*
 * Profiles of a run: what the plugin profile writes to its dump folder, profile/step-N/, a trace of
 * each rank (rank-R.json) and a summary of rank 0.
 */
#ifndef CT_PROFILES_H
#define CT_PROFILES_H

#include <stdio.h>

#include <ctitan/arena.h>

#define PROFILE_LARGEST 10

struct profile_summary {
    int64_t step, world; /* step 0: there is no profile */
    double began;        /* seconds of CLOCK_REALTIME */
    double seconds;      /* of the step */
    double instructions; /* of these, from the first one's begin to the last one's end */
    double products, others, exposed, waiting; /* as in struct ct_rank_times */
    double planned_bytes, beside_bytes, used_bytes;
    struct {
        const char *op;
        int64_t calls;
        double seconds;
    } largest[PROFILE_LARGEST];
    size_t count;
};

/* step 0: of the steps that were profiled, the one of median length. CT_ECONFIG: there is none. */
int profile_find(struct ct_arena *arena, const char *folder, int64_t step,
                 struct profile_summary *summary);
/* The last step that was profiled, unless it is `known`; its step is 0 if there is none. */
struct profile_summary profile_last(struct ct_arena *arena, const char *folder, int64_t known);
/* "137 MiB", or where the device does not tell "unknown". */
const char *profile_used(const struct profile_summary *summary, char text[32]);
/* Seconds of the step in which rank 0 computed and communicated nothing: data, the host's work, and
   waiting for other ranks outside of calls. */
double profile_idle(const struct profile_summary *summary);
/* The trace of a rank. */
const char *profile_path(struct ct_arena *arena, const char *folder, int64_t step, int64_t rank);
struct slices;
/* Add the slices of all ranks (slices.h), on the clock of rank 0. A failure: one is missing. */
int profile_slices(struct ct_arena *arena, const char *folder,
                   const struct profile_summary *summary, struct slices *slices);
/* Print where the time went, and the table. */
void profile_print(struct ct_arena *arena, const char *folder,
                   const struct profile_summary *summary, FILE *out);

#endif
