/* The last values of a number, and how far a value may be above them. */
#ifndef SPIKES_WINDOW_H
#define SPIKES_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

struct window {
    double *value; /* room for `size` */
    int64_t size;
    int64_t *count; /* values that were added since the beginning */
};

/* Mean and standard deviation of what is in it. False: it is not half full yet. */
bool window_statistics(const struct window *w, double *mean, double *deviation);
/* value is finite. It counts as no more than limit, so that one spike does not hide the next, and
   a level that stays is soon none. */
void window_add(struct window *w, double value, double limit);

#endif
