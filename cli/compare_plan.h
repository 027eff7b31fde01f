/* compare RUN --plan: a profiled step of a run beside the plan of it. */
#ifndef CT_COMPARE_PLAN_H
#define CT_COMPARE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

struct compare_plan {
    const char *run;    /* dump folder */
    const char *device; /* description; NULL: this machine's */
    int64_t step;       /* 0: the one of median length */
    int64_t rank;
    const char *trace; /* file to write; NULL: none */
    bool json;
};

int compare_with_plan(const struct compare_plan *request);

#endif
