#include <math.h>

#include <ctitan/clock.h>

#include "fastest.h"

#define MOST 16     /* ways */
#define ENOUGH 5e-3 /* seconds of calls to time */
#define LONG 50e-3  /* the same while the device becomes warm */
#define CALLS 1000  /* at most */
#define SAME 4      /* times in a row */
#define NEAR 1.01   /* their largest ratio */

struct timer {
    const struct gpu_ways *ways;
    CUevent begin, end;
};

static void close_timer(struct timer *t)
{
    if (t->begin)
        gpu_driver.cuEventDestroy(t->begin);
    if (t->end)
        gpu_driver.cuEventDestroy(t->end);
}

static int open_timer(struct timer *t, const struct gpu_ways *ways)
{
    int rc;

    *t = (struct timer){.ways = ways};
    rc = gpu_check(gpu_driver.cuEventCreate(&t->begin, 0), "an event");
    return rc < 0 ? rc : gpu_check(gpu_driver.cuEventCreate(&t->end, 0), "an event");
}

/* Seconds of so many calls; infinite: the way does not run. */
static int time_calls(const struct timer *t, int way, int calls, double *seconds)
{
    CUstream stream = t->ways->stream;
    float milliseconds = 0;
    int runs = 0, rc = gpu_check(gpu_driver.cuEventRecord(t->begin, stream), "timing");

    *seconds = INFINITY;
    for (int k = 0; rc == 0 && runs == 0 && k < calls; k++)
        runs = t->ways->run(t->ways->context, way);
    if (rc == 0)
        rc = gpu_check(gpu_driver.cuEventRecord(t->end, stream), "timing");
    if (rc == 0)
        rc = gpu_check(gpu_driver.cuEventSynchronize(t->end), "timing");
    if (rc == 0 && runs == 0)
        rc = gpu_check(gpu_driver.cuEventElapsedTime(&milliseconds, t->begin, t->end), "timing");
    if (rc == 0 && runs == 0)
        *seconds = (double)milliseconds * 1e-3;
    return rc;
}

/* Seconds of a call, from as many as take `enough`. */
static int time_way(const struct timer *t, int way, double enough, double *seconds)
{
    int calls = 1, rc = time_calls(t, way, 1, seconds); /* it may load code */

    if (rc == 0 && isfinite(*seconds))
        rc = time_calls(t, way, 1, seconds);
    if (rc < 0 || !isfinite(*seconds))
        return rc;
    if (*seconds * CALLS > enough)
        calls = 1 + (int)(enough / *seconds);
    else
        calls = CALLS;
    rc = time_calls(t, way, calls, seconds);
    *seconds /= calls;
    return rc;
}

static bool are_near(const double *seconds, int count)
{
    double least = INFINITY, most = 0;

    for (int i = 0; i < count; i++) {
        least = fmin(least, seconds[i]);
        most = fmax(most, seconds[i]);
    }
    return most <= NEAR * least;
}

/* A way that does not run warms nothing, and its time stays infinite. */
static int become_warm(const struct timer *t, int way)
{
    double until = ct_now() + gpu_config.warm, last[SAME];
    int rc = 0, n = 0;

    while (rc == 0 && ct_now() < until) {
        rc = time_way(t, way, LONG, &last[n++ % SAME]);
        if (rc == 0 && n >= SAME && are_near(last, SAME))
            break;
    }
    return rc;
}

static int time_all(const struct timer *t, double best[MOST])
{
    int count = t->ways->count, rc = 0;
    double seconds;

    for (int i = 0; i < count; i++)
        best[i] = INFINITY;
    for (int i = 0; rc == 0 && i < 2 * count; i++) {
        int way = i < count ? i : 2 * count - 1 - i;

        rc = time_way(t, way, ENOUGH, &seconds);
        best[way] = fmin(best[way], seconds);
    }
    return rc;
}

/* -1: none has a finite time. */
static int least_of(const double *seconds, int count)
{
    int least = -1;

    for (int i = 0; i < count; i++)
        if (isfinite(seconds[i]) && (least < 0 || seconds[i] < seconds[least]))
            least = i;
    return least;
}

int gpu_find_fastest(struct gpu_warm *warm, const struct gpu_ways *ways, int *way)
{
    struct gpu_ways some = *ways;
    double seconds[MOST];
    struct timer t;
    int rc;

    if (some.count > MOST)
        some.count = MOST;
    *way = -1;
    rc = open_timer(&t, &some);
    if (rc == 0 && !warm->settled) {
        rc = time_all(&t, seconds);
        *way = least_of(seconds, some.count);
        if (rc == 0 && *way >= 0)
            rc = become_warm(&t, *way);
        warm->settled = true;
    }
    if (rc == 0)
        rc = time_all(&t, seconds);
    if (rc == 0)
        *way = least_of(seconds, some.count);
    close_timer(&t);
    return rc;
}
