#include <math.h>

#include <ctitan/lib/measure.h>
#include <ctitan/lib/rates.h>
#include <ctitan/log.h>

enum ct_dtype ct_compute_dtype(void)
{
    return ct_config.training.mixed_precision_param;
}

#define AGAIN 5 /* measurements of a peak that turns out to be too low */

static double measured; /* once per process */

int ct_rates_open(struct ct_rates *rates, struct ct_run *run, double peak)
{
    struct ct_device_info info = {0};
    int rc = 0;

    *rates = (struct ct_rates){.warnings = rates->warnings};
    run->model_ops->flops_per_token(run->model, ct_config.training.seq_len, &rates->whole,
                                    &rates->halved);
    run->device->ops->info(run->device, ct_compute_dtype(), &info);
    rates->memory = (double)info.memory;
    rates->peak = peak > 0 ? peak : info.peak_flops;
    if (rates->peak > 0)
        return 0;
    if (measured <= 0)
        rc = ct_measure_gemm(run->device, ct_compute_dtype(), &measured);
    rates->peak = measured;
    rates->measured = true;
    return rc;
}

/* Other processes only make a peak lower: the highest counts. */
static void measure_again(struct ct_rates *rates, const struct ct_run *run, double reached)
{
    double peak;

    for (int i = 0; i < AGAIN && rates->peak < reached; i++) {
        if (ct_measure_gemm(run->device, ct_compute_dtype(), &peak) < 0)
            return;
        rates->peak = measured = fmax(peak, rates->peak);
    }
}

static void warn(struct ct_rates *rates, double reached)
{
    if (rates->warnings++)
        return;
    if (rates->measured)
        ct_warn("mfu is above 100 %%: the run reaches %.3g TFLOP/s, but matrix products measured "
                "%.3g at most, as other processes computed then; peak_tflops sets the peak",
                reached / 1e12, rates->peak / 1e12);
    else
        ct_warn("mfu is above 100 %%: the run reaches %.3g TFLOP/s, but the peak is said to be "
                "%.3g: set peak_tflops to the device's, or to 0 to measure it",
                reached / 1e12, rates->peak / 1e12);
}

void ct_rates_add(struct ct_rates *rates, const struct ct_step_result *result)
{
    rates->steps++;
    rates->tokens += result->tokens;
    rates->seconds += result->seconds;
    rates->data_seconds += result->data_seconds;
}

struct ct_rate ct_rates_take(struct ct_rates *rates, const struct ct_run *run)
{
    struct ct_rate r = {.memory_bytes = (double)run->arena_bytes};

    r.memory_share = rates->memory > 0 ? 100 * r.memory_bytes / rates->memory : 0;
    if (!rates->steps)
        return r;
    r.tokens_per_second = (double)rates->tokens / rates->seconds;
    r.step_time = rates->seconds / (double)rates->steps;
    r.data_time = rates->data_seconds / (double)rates->steps;
    r.tflops = rates->whole * r.tokens_per_second / (double)run->world / 1e12;
    if (rates->measured)
        measure_again(rates, run, 1e12 * r.tflops);
    if (1e12 * r.tflops > rates->peak)
        warn(rates, 1e12 * r.tflops);
    r.mfu = 100 * r.tflops * 1e12 / rates->peak;
    r.mfu_halved = r.mfu * rates->halved / rates->whole;
    rates->steps = rates->tokens = 0;
    rates->seconds = rates->data_seconds = 0;
    return r;
}
