#include <math.h>

#include "window.h"

static int64_t filled(const struct window *w)
{
    return *w->count < w->size ? *w->count : w->size;
}

bool window_statistics(const struct window *w, double *mean, double *deviation)
{
    int64_t count = filled(w);
    double sum = 0, squares = 0;

    if (count < 2 || 2 * count < w->size)
        return false;
    for (int64_t i = 0; i < count; i++)
        sum += w->value[i];
    *mean = sum / (double)count;
    for (int64_t i = 0; i < count; i++)
        squares += (w->value[i] - *mean) * (w->value[i] - *mean);
    *deviation = sqrt(squares / (double)(count - 1));
    return true;
}

void window_add(struct window *w, double value, double limit)
{
    w->value[(*w->count)++ % w->size] = fmin(value, limit);
}
