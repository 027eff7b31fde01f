/*
 * The causal convolution, its gradient, and its segments.
 */
#include <ctitan/lib/ops.h>

#include "sequences.h"

#define THREADS 256

/* x [.., tokens, channels] and w [channels, size] */
static struct gpu_conv conv_of(const struct ct_launch *l, const struct ct_tensor *x,
                               const struct ct_tensor *w, int64_t size)
{
    return (struct gpu_conv){.w = w ? w->data : NULL,
                             .w_stride = w ? w->stride[0] : 0,
                             .inner = gpu_inner(x, 2),
                             .sequences = gpu_sequences(x, 2),
                             .tokens = x->shape[x->ndim - 2],
                             .channels = x->shape[x->ndim - 1],
                             .size = (int32_t)size,
                             .kind = ct_cuda_float_of(x->dtype),
                             .accumulate = l->accumulate};
}

enum { STATE = 4, BEFORE = 6 }; /* inputs of causal_conv */

static bool accepts_causal_conv(const struct ct_prepare *p)
{
    for (int i = 0; i < p->ins; i++)
        if (p->present[i] && p->in[i].dtype != CT_I32 && !ct_cuda_computes(p->in[i].dtype))
            return false;
    for (int i = 0; i < p->outs; i++)
        if (!ct_cuda_computes(p->out[i].dtype))
            return false;
    return gpu_is_batch(&p->in[0], 2);
}

static int prepare_conv(struct ct_prepare *p)
{
    return gpu_prepare(p, "@");
}

/* A thread for each channel of so many rows of each sequence. */
static int launch(const struct ct_launch *l, const struct gpu_conv *a, int64_t rows)
{
    int64_t count = a->sequences * rows * a->channels;

    return gpu_launch(l, 0, (struct ct_cuda_size){(unsigned)ct_cuda_blocks(count, THREADS), 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, a);
}

static bool accepts_whole(const struct ct_prepare *p)
{
    if (p->ins > STATE && p->present[STATE])
        return gpu_refuse("causal_conv of parts of sequences has no kernel");
    return accepts_causal_conv(p);
}

static int run_causal_conv(const struct ct_launch *l)
{
    struct gpu_conv a = conv_of(l, &l->in[0], &l->in[1], l->in[1].shape[1]);

    a.x = gpu_sequence_of(&l->in[0], 2);
    a.bias = l->ins > 2 ? l->in[2].data : NULL;
    a.documents = gpu_sequence_of_input(l, 3, 1);
    a.state = gpu_sequence_of_input(l, BEFORE, 3);
    a.y = gpu_sequence_of(&l->out[0], 2);
    return launch(l, &a, a.tokens);
}

static int prepare_grad(struct ct_prepare *p)
{
    return gpu_prepare(p, "@", "causal_conv_weights");
}

static int run_grad(const struct ct_launch *l)
{
    struct gpu_conv a = conv_of(l, &l->in[1], &l->in[2], l->in[2].shape[1]);
    int rc;

    a.dy = gpu_sequence_of(&l->in[0], 2);
    a.x = gpu_sequence_of(&l->in[1], 2);
    a.documents = gpu_sequence_of_input(l, 3, 1);
    a.state = gpu_sequence_of_input(l, 4, 3);
    a.after = gpu_sequence_of_input(l, 5, 3);
    a.dx = gpu_sequence_of(&l->out[0], 2);
    a.dw = l->out[1].data;
    a.dw_stride = l->out[1].stride[0];
    a.dbias = l->out[2].data;
    a.dw_kind = ct_cuda_float_of(l->out[1].dtype);
    a.dbias_kind = ct_cuda_float_of(l->out[2].dtype);
    rc = launch(l, &a, a.tokens);
    return rc < 0 ? rc
                  : gpu_launch(l, 1,
                               (struct ct_cuda_size){(unsigned)a.channels, (unsigned)a.size + 1, 1},
                               (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

static int run_carry(const struct ct_launch *l)
{
    struct gpu_conv a =
        conv_of(l, &l->in[0], NULL, ((const struct ct_conv_carry *)l->op->attrs)->tokens + 1);

    a.x = gpu_sequence_of(&l->in[0], 2);
    a.documents = gpu_sequence_of_input(l, 1, 1);
    a.y = gpu_sequence_of(&l->out[0], 3);
    return launch(l, &a, a.size - 1);
}

static int run_dstate(const struct ct_launch *l)
{
    struct gpu_conv a = conv_of(l, &l->in[0], &l->in[1], l->in[1].shape[1]);

    a.dy = gpu_sequence_of(&l->in[0], 2);
    a.documents = gpu_sequence_of_input(l, 2, 1);
    a.dstate = gpu_sequence_of(&l->out[0], 3);
    return launch(l, &a, a.size - 1);
}

const struct ct_kernel gpu_causal_conv_kernels[] = {
    CT_KERNEL("causal_conv", "plain", CT_KERNEL_STRIDED, accepts_whole, prepare_conv,
              run_causal_conv),
    CT_KERNEL("causal_conv_grad", "plain", CT_KERNEL_STRIDED | CT_KERNEL_ACCUMULATES,
              accepts_causal_conv, prepare_grad, run_grad),
    CT_KERNEL("causal_conv_carry", "plain", CT_KERNEL_STRIDED, accepts_causal_conv, prepare_conv,
              run_carry),
    CT_KERNEL("causal_conv_dstate", "plain", CT_KERNEL_STRIDED, accepts_causal_conv, prepare_conv,
              run_dstate),
    {0}};
