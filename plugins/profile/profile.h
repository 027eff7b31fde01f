/*
 * The profile plugin's own header: times of one step as files, and ranges for NVIDIA's tools.
 */
#ifndef PROFILE_H
#define PROFILE_H

#include <ctitan/run.h>

/* A step that was timed. */
struct profiled {
    const struct ct_run *run;
    const struct ct_step_result *result;
    double began; /* the step, seconds of CLOCK_MONOTONIC */
    const struct ct_instruction_time *times;
};

/* write.c: DUMP_FOLDER/profile/step-N/rank-R.json, and summary.json beside it of rank 0. */
int profile_write(const struct profiled *p);

/* ranges.c: [profile] nvtx. CT_ECONFIG: this build lacks the header of NVTX. */
int profile_ranges_begin(const struct ct_run *run);

#endif
