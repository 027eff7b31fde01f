/* Chunks of documents, and ones: so little that no thread is woken for it. */
#include <ctitan/lib/ops.h>

#include "cpu.h"

static int64_t number_at(const struct ct_tensor *t, int64_t b, int64_t i)
{
    return ((const int32_t *)t->data)[b * t->stride[0] + i * t->stride[1]];
}

static bool accepts_chunks(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_I32 && p->out[0].dtype == CT_I32;
}

static int run_chunks(const struct ct_launch *l)
{
    const struct ct_document_chunks *how = l->op->attrs;
    const struct ct_tensor *positions = l->ins > 1 && l->in[1].data ? l->in + 1 : NULL;
    const struct ct_tensor *documents = l->ins > 2 && l->in[2].data ? l->in + 2 : NULL;
    const struct ct_tensor *out = l->out;
    int64_t first = ct_launch_offset(l, l->op->in[0], 1);

    for (int64_t b = 0; b < out->shape[0]; b++)
        for (int64_t t = 0; t < out->shape[1]; t++) {
            int64_t document = documents ? number_at(documents, b, t) : 0;
            int64_t chunk = (positions ? number_at(positions, b, t) : first + t) / how->tokens;

            ((int32_t *)out->data)[b * out->stride[0] + t * out->stride[1]] =
                (int32_t)(uint32_t)(document * how->most + chunk);
        }
    return 0;
}

static bool accepts_ones(const struct ct_prepare *p)
{
    return p->out[0].dtype == CT_F32 && ct_tensor_is_dense(&p->out[0]);
}

static int run_ones(const struct ct_launch *l)
{
    float *ones = l->out[0].data;

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        ones[i] = 1;
    return 0;
}

const struct ct_kernel cpu_chunks_kernels[] = {
    CT_KERNEL("document_chunks", "plain", CT_KERNEL_STRIDED, accepts_chunks, NULL, run_chunks),
    CT_KERNEL("ones", "plain", CT_KERNEL_STRIDED, accepts_ones, NULL, run_ones),
    {0}};
