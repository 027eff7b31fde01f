/*
 * Withholding an update: the factor of the gradients becomes negative, by which optimizers know.
 */
#include <ctitan/op_author.h>

#include "withhold.h"

enum { COEFFICIENT, NORM, NORM_LIMIT, LOSS, COUNT, LOSS_LIMIT };

static int withhold_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    bool beyond = *r.in[NORM] > *r.in[NORM_LIMIT] || *r.in[LOSS] / *r.in[COUNT] > *r.in[LOSS_LIMIT];

    *r.out[0] = beyond ? -1 : *r.in[COEFFICIENT];
    return ct_reference_end(&r, 0);
}

const struct ct_op_type spikes_withhold = {
    .size = sizeof(struct ct_op_type),
    .name = "withhold",
    .summary = "the coefficient; -1 if the norm or the mean loss is beyond its limit",
    .signature = "coefficient[] f, norm[] f, norm_limit[] d, loss[] F, count[] f, loss_limit[] d "
                 "-> y[] f",
    .reference = withhold_reference,
    .samples = "factor[] factor[] square[] square[] factor[] square[]",
};
