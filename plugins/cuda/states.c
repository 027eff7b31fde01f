/*
 * States of the segments of sequences, and the ends of their documents.
 */
#include <ctitan/lib/ops.h>

#include "sequences.h"

#define THREADS 128
#define ENDS_THREADS 256

static bool accepts_fold(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[1].dtype) && (!p->present[0] || p->in[1].dtype == CT_F32) &&
           p->in[1].shape[1] <= (int64_t)CT_COUNT(((struct gpu_fold *)NULL)->at);
}

static int prepare_states(struct ct_prepare *p)
{
    return gpu_prepare(p, "@");
}

static int run_fold(const struct ct_launch *l)
{
    const struct ct_tensor *keeps = &l->in[0], *gain = &l->in[1], *state = &l->out[0];
    struct gpu_fold a = {.keeps = keeps->data,
                         .gain = gain->data,
                         .state = state->data,
                         .segments = gain->shape[1],
                         .heads = gain->shape[2],
                         .k = gain->shape[3],
                         .v = gain->shape[4],
                         .factor = keeps->data ? keeps->shape[4] : 0,
                         .kind = ct_cuda_float_of(gain->dtype),
                         .back = ((const struct ct_fold *)l->op->attrs)->back,
                         .count = (int32_t)(gain->shape[0] * gain->shape[2])};

    if (keeps->data)
        memcpy(a.keeps_stride, keeps->stride, sizeof(a.keeps_stride));
    memcpy(a.gain_stride, gain->stride, sizeof(a.gain_stride));
    memcpy(a.state_stride, state->stride, sizeof(a.state_stride));
    if (ct_op_input(l->op, 2)) {
        a.ends = l->in[2].data;
        memcpy(a.ends_stride, l->in[2].stride, sizeof(a.ends_stride));
    }
    ct_launch_order(l, l->op->in[1], 1, a.at);
    return gpu_launch(
        l, 0, (struct ct_cuda_size){(unsigned)a.count, (unsigned)ct_cuda_blocks(a.v, THREADS), 1},
        (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

static bool accepts_ends(const struct ct_prepare *p)
{
    return gpu_is_batch(&p->in[0], 1);
}

static int run_ends(const struct ct_launch *l)
{
    const struct ct_tensor *documents = &l->in[0];
    struct gpu_ends a = {.documents = gpu_sequence_of(documents, 1),
                         .ends = gpu_sequence_of(&l->out[0], 1),
                         .inner = gpu_inner(documents, 1),
                         .sequences = gpu_sequences(documents, 1),
                         .tokens = documents->shape[documents->ndim - 1]};

    return gpu_launch(
        l, 0, (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.sequences, ENDS_THREADS), 1, 1},
        (struct ct_cuda_size){ENDS_THREADS, 1, 1}, 0, &a);
}

const struct ct_kernel gpu_states_kernels[] = {
    CT_KERNEL("fold_states", "plain", CT_KERNEL_STRIDED, accepts_fold, prepare_states, run_fold),
    CT_KERNEL("document_ends", "plain", CT_KERNEL_STRIDED, accepts_ends, prepare_states, run_ends),
    {0}};
