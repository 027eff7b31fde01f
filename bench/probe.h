/*
 * A probe of the state that a core is in: 5 us of the fastest multiplications that it has.
 *
 * Cores of virtual machines slow down and recover within seconds, each by itself: by other tenants,
 * by frequency, or by other processes here. What is timed between two probes that ran at the full
 * rate was timed on a quiet core.
 */
#ifndef BENCH_PROBE_H
#define BENCH_PROBE_H

#include <stdbool.h>

#include <ctitan/tensor.h>

/* FLOPs per second of the calling thread, for products of this dtype: multiply-adds, or for
   bfloat16 AVX512_BF16 or AMX where they are faster. 0: not an x86-64 processor with AVX2. */
double probe_rate(enum ct_dtype dtype);
/* The lowest rate over the threads of the OpenMP team, all at once. */
double probe_team(enum ct_dtype dtype);
/* The name of what is probed. */
const char *probe_name(enum ct_dtype dtype);

#endif
