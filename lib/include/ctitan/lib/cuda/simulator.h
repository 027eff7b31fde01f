/*
 * A GPU in the host's memory, for tests on machines without one: libraries under the names of
 * NVIDIA's, with as much of their interface as the plugins call, put in front of them by
 * LD_LIBRARY_PATH. Kernels are the plugin's own sources, compiled for the host; the threads of a
 * block are fibers of one thread, the blocks of a launch run one after the other. Streams go on by
 * themselves where they wait for other ranks, and for each other.
 *
 * What it shows: indices, strides, masks, barriers and shuffles that every thread must reach, sizes
 * of grids and shared memory, matrix layouts, the order of calls, and a host that touches the
 * device's memory. What it cannot show: speed, most races between blocks or kernels, limits of
 * registers, and whether NVIDIA's libraries do as theirs do.
 *
 * Fibers take turns forwards, as blocks do; with SIMULATOR_ORDER=backwards in the environment, both
 * backwards. Results that differ between the two have a barrier missing, or depend on the order of
 * blocks.
 */
#ifndef SIMULATOR_H
#define SIMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
/* Copies into shared memory that happen when they are awaited, and not before. */
void simulated_copy_async(void *to, const void *from, size_t bytes);
void simulated_commit_copies(void);
void simulated_await_copies(int pending);
uint16_t simulated_bfloat16(float x);
#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
