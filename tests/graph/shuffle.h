/*
 * A device that runs streams in any order that their events allow.
 *
 * Work is only queued until `synchronize`, which then picks streams at random. What depends on more
 * than the events, or on memory that nothing wrote in this step, comes out wrong: all memory is
 * poisoned but for what the host or the init part wrote.
 */
#ifndef SHUFFLE_H
#define SHUFFLE_H

#include <ctitan/program.h>

/* One at a time; seed decides the order. */
struct ct_device *shuffle_device(uint64_t seed);

/* Fill [from, to) of the arena with NaN. */
void shuffle_poison(size_t from, size_t to);

#endif
