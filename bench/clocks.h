/* The clock, power and temperature of an NVIDIA GPU while something runs on it, by NVML, if that is
   there. */
#ifndef BENCH_CLOCKS_H
#define BENCH_CLOCKS_H

#include <stddef.h>

/* Look at the GPU every CLOCKS_EVERY seconds, from now on, on a thread of its own. */
#define CLOCKS_EVERY 0.02
void clocks_begin(void);
/* End that. Prints the means of the looks in the last `seconds` until now (INFINITY: all),
   " | 1755 MHz, 698 W, 66 C, power cap in 100 % of looks", or nothing where there is no NVML. */
void clocks_end(double seconds, char *text, size_t room);

#endif
