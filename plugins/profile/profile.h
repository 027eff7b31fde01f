/*
 * The profile plugin's own header: times of one step as files, kernels by NVIDIA's CUPTI, and
 * ranges for its tools.
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
    const struct profiled_kernel *kernel; /* of a GPU, in no order */
    size_t kernels;
};

/* A kernel, copy or filling of memory that ran on a GPU; seconds of CLOCK_MONOTONIC. */
struct profiled_kernel {
    const char *name;
    double start, end;
    uint32_t stream; /* CUDA's number */
    int64_t bytes;   /* copied or filled; 0: a kernel */
};

/* write.c: DUMP_FOLDER/profile/step-N/rank-R.json, and summary.json beside it of rank 0. */
int profile_write(const struct profiled *p);

/* kernels.c: the kernels between begin and end, until they are forgotten. There are none without
   CUPTI, or while another tool uses it; a warning says so once. */
void profile_kernels_begin(void);
size_t profile_kernels_end(const struct profiled_kernel **list);
void profile_kernels_forget(void);

/* ranges.c: [profile] nvtx. CT_ECONFIG: this build lacks the header of NVTX. */
int profile_ranges_begin(const struct ct_run *run);

#endif
