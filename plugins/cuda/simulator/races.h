/*
 * Races between threads of a launch: two accesses of the same byte, one of them a write, between
 * which there is no barrier of the block, nor one of the warp that both are of (a shuffle is none);
 * between blocks, always. And reads of dynamic shared memory that its block has not written. Of
 * static shared memory, only bytes that an earlier block has written are known to be shared: a read
 * of others is not found.
 *
 * Kernels tell their accesses if they are compiled with -fsanitize=thread, whose calls are made
 * here. Each race is told once for each kernel and place, and the process ends with status 1.
 */
#ifndef SIMULATOR_RACES_H
#define SIMULATOR_RACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A thread between two barriers. */
struct races_segment {
    uint32_t thread, of_block, of_warp; /* barriers so far */
};

#ifdef SIMULATED_RACES
/* stacks: of fibers. shared: the dynamic shared memory. */
void races_start(const void *stacks, size_t stack_bytes, const void *shared, size_t shared_bytes);
void races_begin_launch(void (*kernel)(const void *arguments));
void races_begin_block(void);
void races_end_launch(void);
/* caller: NULL: of this call */
void races_access(const void *p, size_t bytes, bool writes, void *caller);

/* The current thread, by fibers.c: its segment; the number of it, 0 after each barrier. */
struct races_segment races_segment_now(void);
uint32_t *races_segment_number(void);
/* By driver.c. */
bool simulated_is_memory(uintptr_t address);
#else
#define races_start(stacks, stack_bytes, shared, shared_bytes) ((void)0)
#define races_begin_launch(kernel) ((void)0)
#define races_begin_block() ((void)0)
#define races_end_launch() ((void)0)
#define races_access(p, bytes, writes, caller) ((void)0)
#endif

#endif
