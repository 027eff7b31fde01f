/*
 * Which source a sample comes from, by weights and without state: a cycle of MIXTURE_CYCLE samples
 * holds each source in proportion to its weight, as evenly spread as possible, and repeats.
 */
#ifndef MIXTURE_H
#define MIXTURE_H

#include <stddef.h>
#include <stdint.h>

#define MIXTURE_CYCLE 16384
#define MIXTURE_SOURCES 256

struct mixture {
    uint16_t source[MIXTURE_CYCLE]; /* of each sample in the cycle */
    uint16_t before[MIXTURE_CYCLE]; /* samples of the same source before it in the cycle */
    int32_t share[MIXTURE_SOURCES]; /* samples of each source in a cycle */
};

/* weights are positive; 1 <= count <= MIXTURE_SOURCES. -1: a source's share is less than half a
   sample in a cycle. */
int mixture_make(struct mixture *mixture, const double *weights, size_t count);

/* The first sample whose source, which has samples[source], lacks it. */
int64_t mixture_end(const struct mixture *mixture, const int64_t *samples);

/* How many of the first `samples` samples are of a source. */
int64_t mixture_count(const struct mixture *mixture, int64_t samples, size_t source);

/* The source of sample `index`, and the sample's index in it. */
static inline size_t mixture_at(const struct mixture *m, int64_t index, int64_t *in_source)
{
    int64_t cycle = index / MIXTURE_CYCLE, at = index % MIXTURE_CYCLE;

    *in_source = cycle * m->share[m->source[at]] + m->before[at];
    return m->source[at];
}

#endif
