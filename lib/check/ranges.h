/* Ranges of ct_parallel that run at the same time, without a race between threads. */
#ifndef CHECK_RANGES_H
#define CHECK_RANGES_H

#include "machine.h"
#include "memory.h"

/*
 * Run the kernel on the device, with calls of ct_parallel in two ranges. Each range starts from the
 * memory that the call found, so neither sees what the other writes, as with two threads at once.
 * CT_EINVAL: both write the same byte, or the kernel fails.
 */
int run_in_ranges(struct ct_device *device, const struct ct_kernel *kernel,
                  const struct ct_launch *launch, const struct memory *memory);

#endif
