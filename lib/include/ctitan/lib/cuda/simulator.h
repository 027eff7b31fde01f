/*
 * A GPU in the host's memory, for tests on machines without one: libraries under the names of
 * NVIDIA's, with as much of their interface as the plugins call, put in front of them by
 * LD_LIBRARY_PATH. Kernels are the plugin's own sources, compiled for the host; the threads of a
 * block are fibers of one thread, the blocks of a launch run one after the other. Streams go on by
 * themselves where they wait for other ranks, and for each other.
 *
 * What it shows: indices, strides, masks, barriers and shuffles that every thread must reach, sizes
 * of grids and shared memory, matrix layouts, the order of calls, and a host that touches the
 * device's memory. What it cannot show: speed, races between kernels, limits of registers, and
 * whether NVIDIA's libraries do as theirs do. Races of a launch: simulator/races.h.
 *
 * Fibers take turns forwards, as blocks do; with SIMULATOR_ORDER=backwards in the environment, both
 * backwards. Results that differ between the two have a barrier missing, or depend on the order of
 * blocks. Asynchronous copies into shared memory arrive when they are awaited; backwards, at once.
 * SIMULATOR_SUMS=exact: wgmma adds products of 8 bits in float32, and truncates nothing.
 */
#ifndef SIMULATOR_H
#define SIMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

struct simulated_index {
    unsigned x, y, z;
};

struct simulated_launch {
    struct simulated_index grid, block;
    size_t shared;
    void (*kernel)(const void *arguments);
    const void *arguments;
};

/* Runs all blocks. Ends the process where a real device would hang: at a barrier that a thread does
   not reach. */
void simulated_run(const struct simulated_launch *launch);

#ifndef __cplusplus
/* Count a call of this name. With SIMULATOR_COUNTS=FILE in the environment, the process writes at
   its end the number of calls of each name, a line each, into FILE.RANK (RANK, or 0). */
__attribute__((visibility("default"), format(printf, 1, 2))) void simulated_count(const char *name,
                                                                                  ...);
/* Have every launch told, once it has run, by name and in nanoseconds of simulated_clock; NULL: no
   longer. */
typedef void simulated_watcher(const char *kernel, uint64_t begin, uint64_t end);
__attribute__((visibility("default"))) void simulated_watch(simulated_watcher *watcher);
__attribute__((visibility("default"))) uint64_t simulated_clock(void);
/* For all libraries: do a call when the stream gets to it, with a copy of its arguments, or note it
   if the step is being captured. Returns what the call does if it was done at once, else 0. The
   second kind waits for other ranks, and never blocks the host; *holders is the number of queues
   and graphs that hold such calls. */
__attribute__((visibility("default"))) int simulated_submit(void *stream,
                                                            int (*call)(const void *arguments),
                                                            const void *arguments, size_t bytes);
__attribute__((visibility("default"))) int
simulated_submit_waiting(void *stream, int (*call)(const void *arguments), const void *arguments,
                         size_t bytes, _Atomic int *holders);
#endif

#define SIMULATED_FRACTION 13 /* bits after the point that a sum of Float8 products keeps */

/* sum + the products of an instruction, the exponents of whose factors add up to `most` at most, as
   Hopper's tensor cores add Float8: each is truncated to SIMULATED_FRACTION bits, relative to the
   largest, and so is the result (MMA-Sim, arXiv 2511.10909). */
static inline float simulated_add_products(float sum, const float *product, int count, int most)
{
    uint32_t bits, unit_bits, size;
    int32_t total = 0, bad = 0, excess = 0;
    float units, unit;

    memcpy(&bits, &sum, sizeof(bits));
    if ((int)(bits >> 23 & 255) - 127 > most)
        most = (int)(bits >> 23 & 255) - 127;
    if (most < -100) /* nothing to add */
        return sum;
    if (most > 100) /* no numbers of Float8 */
        return __builtin_nanf("");
    bits = (uint32_t)(127 + SIMULATED_FRACTION - most) << 23;
    unit_bits = (uint32_t)(127 - SIMULATED_FRACTION + most) << 23;
    memcpy(&units, &bits, sizeof(units));
    memcpy(&unit, &unit_bits, sizeof(unit));
    for (int i = 0; i < count; i++) {
        bad |= product[i] - product[i] != 0;
        total += (int32_t)(product[i] * units);
    }
    total += (int32_t)(sum * units);
    size = total < 0 ? -(uint32_t)total : (uint32_t)total;
    while (size >> excess >> (SIMULATED_FRACTION + 1))
        excess++;
    size = size >> excess << excess;
    if (bad)
        return __builtin_nanf("");
    return total < 0 ? -((float)size * unit) : (float)size * unit;
}

/* Head of an image by the simulated NVRTC: a shared object of so many bytes follows. */
#define SIMULATED_OBJECT "compiled"
struct simulated_object {
    char magic[8];
    uint64_t bytes;
};

/* ---- for the kernels, about the fiber that calls; also for those of other libraries ---- */

#pragma GCC visibility push(default)
extern struct simulated_index simulated_thread, simulated_block, simulated_blocks,
    simulated_threads;
extern unsigned char *simulated_shared; /* dynamic */
extern bool simulated_exact;            /* wgmma adds products of 8 bits in float32 */

void simulated_barrier(void);
int simulated_barrier_or(int value);
void simulated_warp_barrier(void);
/* value of the lane that differs from this one by the bits of mask */
uint64_t simulated_shuffle_xor(uint64_t value, int mask);
/* Bit i: what lane i said; all 32 are there. */
uint32_t simulated_ballot(bool value);
#define SIMULATED_WORDS 6
/* The words of the warp's 32 lanes, each up to SIMULATED_WORDS of them. */
const uint32_t (*simulated_exchange(const void *mine, size_t bytes))[SIMULATED_WORDS];
/* Copies into shared memory that happen when they are awaited, and not before; in reverse order at
   once. */
void simulated_copy_async(void *to, const void *from, size_t bytes);
void simulated_commit_copies(void);
void simulated_await_copies(int pending);
/* This thread's part of a product by wgmma, which happens when it is awaited, and not before. a, b:
   descriptors of operands. */
struct simulated_product {
    void (*multiply)(const struct simulated_product *product);
    float *sums;
    uint64_t a, b;
    bool a_turned, b_turned, adds;
};
void simulated_begin_product(const struct simulated_product *product);
void simulated_commit_products(void);
void simulated_await_products(int pending);
uint16_t simulated_bfloat16(float x);
#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
