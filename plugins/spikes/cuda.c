/*
 * The kernel for CUDA.
 */
#include <ctitan/lib/cuda.h>
#include <ctitan/op_author.h>

#include "spikes_cuda.h"
#include "withhold.h"

CT_CUDA_CODE(spikes_cuda_code);

static bool is_scalar(const struct ct_tensor *t)
{
    return t->dtype == CT_F64 || ct_cuda_computes(t->dtype);
}

static bool accepts(const struct ct_prepare *p)
{
    bool all = is_scalar(&p->out[0]);

    for (int i = 0; i < p->ins; i++)
        all &= is_scalar(&p->in[i]);
    return all;
}

static int prepare_withhold(struct ct_prepare *p)
{
    return ct_cuda_prepare(p, &spikes_cuda_code, CT_F32, CT_CUDA_NAMES("withhold"));
}

static int run_withhold(const struct ct_launch *l)
{
    struct spikes_call a = {.y = l->out[0].data, .y_kind = ct_cuda_float_of(l->out[0].dtype)};

    for (int i = 0; i < l->ins; i++) {
        a.in[i] = l->in[i].data;
        a.kind[i] = ct_cuda_float_of(l->in[i].dtype);
    }
    return ct_cuda_launch(l, ct_cuda_function(l, 0), (struct ct_cuda_size){1, 1, 1},
                          (struct ct_cuda_size){32, 1, 1}, 0, &a);
}

const struct ct_kernel spikes_cuda_kernels[] = {
    CT_KERNEL("withhold", "plain", 0, accepts, prepare_withhold, run_withhold), {0}};
