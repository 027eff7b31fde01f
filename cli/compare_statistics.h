/* Conclusions from pairs of measurements. */
#ifndef CT_COMPARE_STATISTICS_H
#define CT_COMPARE_STATISTICS_H

#include <stdbool.h>
#include <stddef.h>

struct ratio {
    double value, low, high; /* geometric mean of ratios, and its 95 % confidence interval */
    bool differs;            /* 1 is outside the 99 % interval, and the difference at least 0.5 % */
};

/* By Student's distribution, from the logarithms of ratios; count is 3 at least. */
struct ratio ratio_of(const double *ratio, size_t count);

#endif
