#include <stdio.h>
#include <time.h>

#include "bench.h"

#define SAMPLE 0.004 /* seconds a sample should take */
#define SAMPLES 3

double bench_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds per call, of the slowest rank, over `calls` calls in a row. */
static double sample(const struct subject *s, enum kind kind, size_t bytes, int calls)
{
    double begin;

    s->slowest(s->context, 0);
    begin = bench_now();
    for (int i = 0; i < calls; i++)
        s->call(s->context, kind, bytes);
    return s->slowest(s->context, (bench_now() - begin) / calls);
}

static void measure(const struct subject *s, enum kind kind, size_t bytes)
{
    double best, t = sample(s, kind, bytes, 2);
    int calls = t > SAMPLE ? 1 : t < SAMPLE / 2000 ? 2000 : (int)(SAMPLE / t);

    best = t;
    for (int i = 0; i < SAMPLES; i++) {
        t = sample(s, kind, bytes, calls);
        best = t < best ? t : best;
    }
    if (s->rank == 0)
        printf("%s%s %zu %.3f\n", kind_names[kind], s->suffix, bytes, best * 1e6);
}

void bench_round(const struct subject *s)
{
    if (!*s->suffix || s->limit)
        measure(s, BARRIER, 0);
    for (int kind = ALL_REDUCE; kind < KINDS; kind++)
        for (int i = 0; i < SIZES; i++)
            if (!s->limit || sizes[i] <= s->limit)
                measure(s, (enum kind)kind, sizes[i]);
    fflush(stdout);
}
