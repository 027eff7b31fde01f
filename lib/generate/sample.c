/*
 * Choosing a token from logits.
 */
#include <math.h>
#include <stdlib.h>

#include <ctitan/lib/app/generate.h>

static int by_logit(const void *a, const void *b)
{
    const struct ct_candidate *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return (x->token > y->token) - (x->token < y->token);
}

static int32_t most_likely(const float *logits, int64_t count)
{
    int64_t best = 0;

    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

int32_t ct_sample(const float *logits, int64_t count, const struct ct_sampling *how, double uniform,
                  struct ct_candidate *c)
{
    int64_t kept = how->top_k && how->top_k < count ? how->top_k : count;
    double sum = 0, enough = 0;

    if (how->temperature == 0)
        return most_likely(logits, count);
    for (int64_t i = 0; i < count; i++)
        c[i] = (struct ct_candidate){.token = (int32_t)i, .logit = logits[i]};
    qsort(c, (size_t)count, sizeof(*c), by_logit);
    for (int64_t i = 0; i < kept; i++)
        sum += c[i].weight = exp((c[i].logit - c[0].logit) / how->temperature);
    for (int64_t i = 0; i < kept; i++)
        if ((enough += c[i].weight) >= how->top_p * sum) {
            kept = i + 1;
            sum = enough;
        }
    uniform *= sum;
    for (int64_t i = 0; i < kept; i++)
        if ((uniform -= c[i].weight) < 0)
            return c[i].token;
    return c[0].token;
}
