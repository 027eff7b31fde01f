/* How many choices each expert has: expert_load and expert_excess. */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "experts.h"

static bool accepts_load(const struct ct_prepare *p)
{
    bool dense = ct_tensor_is_dense(&p->in[0]);

    for (int i = 0; i < p->outs; i++)
        dense = dense && ct_tensor_is_dense(&p->out[i]);
    return dense && p->in[0].dtype == CT_I32 && p->out[0].dtype == CT_F32;
}

static int run_load(const struct ct_launch *l)
{
    int64_t n = l->out[1].shape[0], sequences = l->in[0].shape[0];
    int64_t each = l->in[0].shape[1] * l->in[0].shape[2];
    const int32_t *ids = l->in[0].data;
    float *load = l->out[0].data, *total = l->out[1].data;
    int rc = cpu_experts_check(ids, sequences * each, n);

    memset(load, 0, sizeof(*load) * (size_t)(sequences * n));
    memset(total, 0, sizeof(*total) * (size_t)n);
    for (int64_t i = 0; rc >= 0 && i < sequences * each; i++) {
        load[i / each * n + ids[i]]++;
        total[ids[i]]++;
    }
    return rc;
}

static int run_excess(const struct ct_launch *l)
{
    int64_t n = l->out[0].shape[0], choices = ct_tensor_count(&l->in[0]);
    const int32_t *ids = l->in[0].data;
    float *excess = l->out[0].data;
    int rc = cpu_experts_check(ids, choices, n);

    memset(excess, 0, sizeof(*excess) * (size_t)n);
    for (int64_t i = 0; rc >= 0 && i < choices; i++)
        excess[ids[i]]++;
    for (int64_t e = 0; e < n; e++)
        excess[e] = (float)((double)excess[e] * (double)n - (double)choices);
    return rc;
}

const struct ct_kernel cpu_expert_load_kernels[] = {
    CT_KERNEL("expert_load", "plain", CT_KERNEL_STRIDED, accepts_load, NULL, run_load),
    CT_KERNEL("expert_excess", "plain", CT_KERNEL_STRIDED, accepts_load, NULL, run_excess),
    {0},
};
