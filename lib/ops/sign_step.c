/*
 * Descent by the sign alone (Bernstein et al. 2018), with no state.
 */
#include "list.h"

static int sign_step_reference(const struct ct_launch *l)
{
    double rate = ct_op_float(l->op, "rate"), clip = ct_tensor_load(&l->in[0], 0);

    for (int p = 1; clip >= 0 && p < l->ins; p += 2)
        for (int64_t i = 0; i < ct_tensor_count(&l->in[p]); i++) {
            double g = ct_tensor_load(&l->in[p + 1], i);

            ct_tensor_store(&l->in[p], i,
                            ct_tensor_load(&l->in[p], i) - rate * ((g > 0) - (g < 0)));
        }
    return 0;
}

const struct ct_op_type ct_op_sign_step = {
    .size = sizeof(struct ct_op_type),
    .name = "sign_step",
    .summary = "p - rate sign(g); nothing if clip is negative",
    .signature = "clip[] f, *(!p[.] F, g[.] F)",
    .attrs = (const struct ct_option[]){CT_OPT_FLOAT(struct ct_sign_step, rate, "rate", "0", 0,
                                                     1e30, "What p changes by"),
                                        {0}},
    .attrs_size = sizeof(struct ct_sign_step),
    .reference = sign_step_reference,
    .samples = "rate=0.25: factor[] real[2,4] real[2,4] real[3] real[3]",
};
