#include <math.h>

#include "mixture.h"

/* Shares by largest remainders, so that they add up to the cycle. */
static int divide(struct mixture *m, const double *weights, size_t count)
{
    double sum = 0, rest[MIXTURE_SOURCES];
    int32_t left = MIXTURE_CYCLE;

    for (size_t i = 0; i < count; i++)
        sum += weights[i];
    for (size_t i = 0; i < count; i++) {
        double exact = weights[i] / sum * MIXTURE_CYCLE;

        m->share[i] = (int32_t)floor(exact);
        rest[i] = exact - floor(exact);
        left -= m->share[i];
    }
    for (; left > 0; left--) {
        size_t most = 0;

        for (size_t i = 1; i < count; i++)
            if (rest[i] > rest[most])
                most = i;
        m->share[most]++;
        rest[most] = -1;
    }
    for (size_t i = 0; i < count; i++)
        if (!m->share[i])
            return -1;
    return 0;
}

/* Each sample comes from the source that lags most behind its share. */
int mixture_make(struct mixture *m, const double *weights, size_t count)
{
    int64_t lag[MIXTURE_SOURCES] = {0};
    uint16_t seen[MIXTURE_SOURCES] = {0};

    if (divide(m, weights, count) < 0)
        return -1;
    for (int n = 0; n < MIXTURE_CYCLE; n++) {
        size_t most = 0;

        for (size_t i = 0; i < count; i++) {
            lag[i] += m->share[i];
            if (lag[i] > lag[most])
                most = i;
        }
        lag[most] -= MIXTURE_CYCLE;
        m->source[n] = (uint16_t)most;
        m->before[n] = seen[most]++;
    }
    return 0;
}

int64_t mixture_end(const struct mixture *m, const int64_t *samples)
{
    int64_t end = INT64_MAX;

    for (int n = 0; n < MIXTURE_CYCLE; n++) {
        size_t i = m->source[n];
        int64_t cycle = samples[i] / m->share[i];

        if (m->before[n] == samples[i] % m->share[i] && cycle * MIXTURE_CYCLE + n < end)
            end = cycle * MIXTURE_CYCLE + n;
    }
    return end;
}

int64_t mixture_count(const struct mixture *m, int64_t samples, size_t source)
{
    int64_t at = samples % MIXTURE_CYCLE, in_cycle = 0;

    for (int64_t n = 0; n < at; n++)
        in_cycle += m->source[n] == source;
    return samples / MIXTURE_CYCLE * m->share[source] + in_cycle;
}
