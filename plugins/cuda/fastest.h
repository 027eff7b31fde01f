/*
 * Which of several ways to do the same is the fastest on the device.
 */
#ifndef GPU_FASTEST_H
#define GPU_FASTEST_H

#include "gpu.h"

/* Ways by number. run enqueues one on the stream; negative: it does not run. */
struct gpu_ways {
    int count;
    int (*run)(const void *context, int way);
    const void *context;
    CUstream stream;
};

/* Whether the device is as warm as a training makes it. {0}: it is not. */
struct gpu_warm {
    bool settled;
};

/*
 * Time all ways, each several times and in both orders, and wait for the device meanwhile. *way:
 * the fastest, -1 if none runs. Before the first search of a process, a way is run until its time
 * settles, or for [cuda] warm seconds: clocks of a cool device are higher than they last.
 */
int gpu_find_fastest(struct gpu_warm *warm, const struct gpu_ways *ways, int *way);

#endif
