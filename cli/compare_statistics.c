#include <math.h>

#include "compare_statistics.h"

#define LEAST 0.005 /* a smaller difference is not called one */

/* Quantiles of Student's distribution for two-sided intervals of 95 and 99 %, by degrees of
   freedom from 2 on; beyond the table, those of the normal distribution with a correction. */
static double quantile(size_t freedom, bool wide)
{
    static const double q95[] = {4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093};
    static const double q99[] = {9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169,
                                 3.106, 3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861};
    const double *table = wide ? q99 : q95;
    double normal = wide ? 2.576 : 1.960;

    if (freedom < 2 + sizeof(q95) / sizeof(*q95))
        return table[freedom - 2];
    return normal * (1 + (normal * normal + 1) / (4 * (double)freedom));
}

struct ratio ratio_of(const double *ratio, size_t count)
{
    double mean = 0, square = 0, error;
    struct ratio r;

    for (size_t i = 0; i < count; i++)
        mean += log(ratio[i]) / (double)count;
    for (size_t i = 0; i < count; i++)
        square += (log(ratio[i]) - mean) * (log(ratio[i]) - mean);
    error = sqrt(square / (double)(count - 1) / (double)count);
    r.value = exp(mean);
    r.low = exp(mean - quantile(count - 1, false) * error);
    r.high = exp(mean + quantile(count - 1, false) * error);
    r.differs = fabs(mean) > quantile(count - 1, true) * error && fabs(r.value - 1) >= LEAST;
    return r;
}
