/*
 * Rates of training, for hooks that report them: means over the steps since they were last taken,
 * using only the time spent in the steps. Utilisation is relative to the device's peak for matrix
 * products.
 */
#ifndef CT_RATES_H
#define CT_RATES_H

#include <ctitan/run.h>

CT_BEGIN_DECLS

struct ct_rates {
    double peak;                  /* FLOP/s of the device */
    double whole, halved;         /* FLOPs per token, with attention in full and halved */
    double memory;                /* bytes of the device */
    int64_t steps, tokens;        /* since the last time */
    double seconds, data_seconds; /* spent in those steps; waiting for data */
    bool measured;                /* peak was; it may be measured again */
    int warnings;                 /* of an mfu above 100 % */
};

struct ct_rate {
    double tokens_per_second;          /* over all ranks */
    double tflops, mfu, mfu_halved;    /* 1e12 FLOP/s of a rank; percent of the peak */
    double step_time, data_time;       /* seconds, means */
    double memory_bytes, memory_share; /* of the device, that the run takes; of all, percent */
};

/* The forward and the backward compute in it, whatever [training] dtype the parameters have. */
CT_API enum ct_dtype ct_compute_dtype(void);

/* Begin with no step. Rates are those of one stage, whose tokens have other FLOPs than the next
   one's; its warnings count as given: they stay from stage to stage, and all is zero before the
   first. peak: FLOP/s; 0: what the device says of itself, or else what ct_measure_gemm (measure.h)
   finds, once per process. Between two steps only. */
CT_API int ct_rates_open(struct ct_rates *rates, struct ct_run *run, double peak);
/* Count a step. */
CT_API void ct_rates_add(struct ct_rates *rates, const struct ct_step_result *result);
/* The means since the last time; 0 if no step has been added. Between two steps only: if mfu
   comes out above 100 %, a peak that was measured, maybe while other processes computed, is
   measured again; if that does not help, a warning says so, once. */
CT_API struct ct_rate ct_rates_take(struct ct_rates *rates, const struct ct_run *run);

/* Where a run is, for progress lines. */
struct ct_pace {
    int64_t step, steps; /* done; all; steps 0: not known */
    double loss, tokens_per_second;
    double elapsed;          /* seconds since the first step began */
    double seconds_per_step; /* with what happens between steps; 0: not known */
};

/* "12,345" */
CT_API const char *ct_grouped(int64_t value, char text[32]);
/* "step 12/100  loss 5.12345  12,345 tokens/s  00:12 elapsed, 01:10 left". Prints as
   snprintf does. */
CT_API int ct_pace_print(const struct ct_pace *pace, char *text, size_t room);

CT_END_DECLS

#endif
