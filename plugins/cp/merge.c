/* Combine attention on two sets of keys: each result is weighted by its softmax statistic. */
#include <math.h>

#include <ctitan/op_author.h>

#include "cp.h"

static double weight(double lse, double largest)
{
    return lse == -INFINITY ? 0 : exp(lse - largest);
}

/* Weights of two results with statistics a and b; returns the statistic of the merged result. */
static double merged(double a, double b, double *of_a, double *of_b)
{
    double largest = fmax(a, b);

    *of_a = weight(a, largest);
    *of_b = weight(b, largest);
    return *of_a + *of_b == 0 ? -INFINITY : largest + log(*of_a + *of_b);
}

static int reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t t = l->in[0].shape[1], heads = l->in[0].shape[2], size = l->in[0].shape[3];

    for (int64_t row = 0; row < l->in[0].shape[0] * t * heads; row++) {
        int64_t at = (row / heads / t * heads + row % heads) * t + row / heads % t;
        double a, b, sum;

        r.out[1][at] = merged(r.in[1][at], r.in[3][at], &a, &b);
        sum = a + b;
        for (int64_t i = row * size; sum != 0 && i < (row + 1) * size; i++)
            r.out[0][i] = (a * r.in[0][i] + b * r.in[2][i]) / sum;
    }
    return ct_reference_end(&r, 0);
}

const struct ct_op_type cp_attention_merge = {
    .size = sizeof(struct ct_op_type),
    .name = "attention_merge",
    .summary = "attention over two sets of keys, from that over each",
    .signature = "o[bthV] T, o_lse[bht] W, other[bthV] T, other_lse[bht] W "
                 "-> merged[bthV] T, lse[bht] W",
    .flags = CT_OP_ANY_DTYPE,
    .inplace = (const int8_t[][2]){{0, 0}, {1, 1}, {-1, -1}},
    .reference = reference,
    .samples = "real[2,4,2,4] statistic[2,2,4] real[2,4,2,4] statistic[2,2,4]",
};
