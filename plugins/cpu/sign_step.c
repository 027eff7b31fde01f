/* Descent by the sign, for parameters too small to wake threads for. */
#include <ctitan/tensor.h>

#include "cpu.h"

static bool accepts_sign_step(const struct ct_prepare *p)
{
    for (int i = 0; i < p->ins; i++)
        if (p->in[i].dtype != CT_F32)
            return false;
    return true;
}

static int run_sign_step(const struct ct_launch *l)
{
    float rate = (float)ct_op_float(l->op, "rate"), clip = *(const float *)l->in[0].data;

    for (int at = 1; clip >= 0 && at < l->ins; at += 2) {
        float *p = l->in[at].data;
        const float *g = l->in[at + 1].data;

        for (int64_t i = 0; i < ct_tensor_count(&l->in[at]); i++)
            p[i] -= rate * (float)((g[i] > 0) - (g[i] < 0));
    }
    return 0;
}

const struct ct_kernel cpu_sign_step_kernels[] = {
    CT_KERNEL("sign_step", "plain", 0, accepts_sign_step, NULL, run_sign_step), {0}};
