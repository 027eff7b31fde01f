/*
 * Losses of pairs and answers, and their derivatives, of one number each: the same for C and CUDA.
 */
#ifndef DPO_LOSSES_H
#define DPO_LOSSES_H

#include <math.h>

#ifndef DPO_FUNCTION
#define DPO_FUNCTION static inline
#endif

enum dpo_loss {
    DPO_SIGMOID,
    DPO_ROBUST,
    DPO_IPO,
    DPO_IPO_SUM,
    DPO_HINGE,
    DPO_SIMPO,
    DPO_KTO,
    DPO_ORPO
};

/* Attributes of the loss. */
struct dpo_preference {
    double beta, label_smoothing, gamma;
    unsigned loss;
};

struct dpo_kto {
    double beta, desirable, undesirable, answers;
};

struct dpo_orpo {
    double beta;
};

/* -log sigmoid(x) */
DPO_FUNCTION double dpo_softplus(double x)
{
    return x > 0 ? log1p(exp(-x)) : log1p(exp(x)) - x;
}

DPO_FUNCTION double dpo_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* ---- pairs (loss.c) ---- */

DPO_FUNCTION double dpo_loss_of(const struct dpo_preference *a, double x)
{
    double m = a->beta * x, e = a->label_smoothing, off = x - 0.5 / a->beta;

    switch (a->loss) {
    case DPO_ROBUST:
        return ((1 - e) * dpo_softplus(m) - e * dpo_softplus(-m)) / (1 - 2 * e);
    case DPO_IPO:
    case DPO_IPO_SUM:
        return off * off;
    case DPO_HINGE:
        return m < 1 ? 1 - m : 0;
    case DPO_SIMPO:
        return dpo_softplus(m - a->gamma);
    default:
        return (1 - e) * dpo_softplus(m) + e * dpo_softplus(-m);
    }
}

/* The derivative of dpo_loss_of. */
DPO_FUNCTION double dpo_slope_of(const struct dpo_preference *a, double x)
{
    double m = a->beta * x, e = a->label_smoothing;

    switch (a->loss) {
    case DPO_ROBUST:
        return -a->beta * ((1 - e) * dpo_sigmoid(-m) + e * dpo_sigmoid(m)) / (1 - 2 * e);
    case DPO_IPO:
    case DPO_IPO_SUM:
        return 2 * (x - 0.5 / a->beta);
    case DPO_HINGE:
        return m < 1 ? -a->beta : 0;
    case DPO_SIMPO:
        return -a->beta * dpo_sigmoid(a->gamma - m);
    default:
        return -a->beta * ((1 - e) * dpo_sigmoid(-m) - e * dpo_sigmoid(m));
    }
}

/* ---- orpo ---- */

#define DPO_LEAST 1e-12 /* of 1 - exp(p): an answer that is certain has odds that end there */

/* 1 - exp(p) */
DPO_FUNCTION double dpo_rest(double p)
{
    return fmax(DPO_LEAST, -expm1(p));
}

/* The derivative of p - log(dpo_rest(p)). */
DPO_FUNCTION double dpo_odds_slope(double p)
{
    return dpo_rest(p) > DPO_LEAST ? 1 / dpo_rest(p) : 1;
}

#endif
