/* Ops of the positions of tokens, beside rope. */
#include <ctitan/lib/ops.h>

#include "gpu.h"

#define THREADS 256

static bool accepts_temper(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return ct_cuda_computes(dtype) && p->out[0].dtype == dtype && p->in[0].stride[3] == 1 &&
           p->out[0].stride[3] == 1;
}

static int prepare_temper(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->in[0].dtype, "temper_*", "temper_*_vector");
}

static int run_temper(const struct ct_launch *l)
{
    const struct ct_temper *how = l->op->attrs;
    const struct ct_tensor *x = &l->in[0], *y = &l->out[0];
    int64_t lanes = ct_cuda_lanes(x->dtype);
    struct gpu_temper a = {.y = y->data,
                           .x = x->data,
                           .rows = x->shape[0] * x->shape[1] * x->shape[2],
                           .tokens = x->shape[1],
                           .heads = x->shape[2],
                           .first = ct_launch_offset(l, l->op->in[0], 1),
                           .every = how->every,
                           .added = how->added,
                           .size = (int32_t)x->shape[3],
                           .scale = (float)how->scale};
    bool vector = a.size % lanes == 0 && ct_cuda_starts_vectors(x->data, x->stride, 3, lanes) &&
                  ct_cuda_starts_vectors(y->data, y->stride, 3, lanes);

    memcpy(a.x_stride, x->stride, sizeof(a.x_stride));
    memcpy(a.y_stride, y->stride, sizeof(a.y_stride));
    if (ct_op_input(l->op, 1)) {
        a.positions = l->in[1].data;
        memcpy(a.position_stride, l->in[1].stride, sizeof(a.position_stride));
    }
    a.lanes = ct_cuda_threads_of_row(a.size, vector ? lanes : 1);
    return gpu_launch(
        l, vector, (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.rows, THREADS / a.lanes), 1, 1},
        (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

static int prepare_chunks(struct ct_prepare *p)
{
    return gpu_prepare(p, "document_chunks");
}

static int run_chunks(const struct ct_launch *l)
{
    const struct ct_document_chunks *how = l->op->attrs;
    const struct ct_tensor *out = &l->out[0];
    struct gpu_document_chunks a = {.out = out->data,
                                    .out_stride = {out->stride[0], out->stride[1]},
                                    .count = ct_tensor_count(out),
                                    .tokens = out->shape[1],
                                    .first = ct_launch_offset(l, l->op->in[0], 1),
                                    .of_chunk = how->tokens,
                                    .most = how->most};

    if (ct_op_input(l->op, 1)) {
        a.positions = l->in[1].data;
        memcpy(a.position_stride, l->in[1].stride, sizeof(a.position_stride));
    }
    if (ct_op_input(l->op, 2)) {
        a.documents = l->in[2].data;
        memcpy(a.document_stride, l->in[2].stride, sizeof(a.document_stride));
    }
    return gpu_launch(l, 0, (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.count, THREADS), 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

const struct ct_kernel gpu_position_kernels[] = {
    CT_KERNEL("temper", "rows", CT_KERNEL_STRIDED, accepts_temper, prepare_temper, run_temper),
    CT_KERNEL("document_chunks", "plain", CT_KERNEL_STRIDED, NULL, prepare_chunks, run_chunks),
    {0}};
