#include <math.h>
#include <stdlib.h>

#include <ctitan/lib/measure.h>

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

double ct_median(double *value, size_t count)
{
    if (count == 0)
        return NAN;
    qsort(value, count, sizeof(*value), compare);
    return count % 2 ? value[count / 2] : (value[count / 2 - 1] + value[count / 2]) / 2;
}
