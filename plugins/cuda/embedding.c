/*
 * embedding and its gradient, on dense tensors.
 */
#include <stdio.h>

#include "gpu.h"

#define THREADS 256

static bool starts_at_vectors(const struct ct_tensor *t)
{
    return (uintptr_t)t->data % (GPU_EMBEDDING_VECTOR * ct_dtype_size(t->dtype)) == 0;
}

/* A block for each of `blocks` rows, from one dtype to the other. */
static int launch(const struct ct_launch *l, const char *what, const struct ct_tensor *from,
                  const struct ct_tensor *to, int64_t blocks, const void *arguments)
{
    int64_t columns = to->shape[to->ndim - 1];
    bool vector =
        columns % GPU_EMBEDDING_VECTOR == 0 && starts_at_vectors(from) && starts_at_vectors(to);
    char name[80];

    snprintf(name, sizeof(name), "%s_%s_to_%s%s", what, ct_dtype_name(from->dtype),
             ct_dtype_name(to->dtype), vector ? "_vector" : "");
    return gpu_launch(l, name, (struct gpu_size){(unsigned)blocks, 1, 1},
                      (struct gpu_size){THREADS, 1, 1}, 0, arguments);
}

static bool accepts(const struct ct_prepare *p)
{
    return gpu_is_compute_dtype(p->in[1].dtype) && gpu_is_compute_dtype(p->out[0].dtype);
}

static int run(const struct ct_launch *l)
{
    const struct ct_value *table = l->op->in[1];
    struct gpu_embedding a = {.y = l->out[0].data,
                              .table = l->in[1].data,
                              .tokens = l->in[0].data,
                              .count = ct_tensor_count(&l->in[0]),
                              .columns = l->in[1].shape[1],
                              .rows = l->in[1].shape[0],
                              .first = ct_launch_offset(l, table, 0),
                              .limit = table->shape[0],
                              .fault = (void *)(uintptr_t)gpu_of(l->device)->fault_address};

    return launch(l, "embedding", &l->in[1], &l->out[0], a.count, &a);
}

static bool accepts_grad(const struct ct_prepare *p)
{
    return gpu_is_compute_dtype(p->in[0].dtype) && gpu_is_compute_dtype(p->out[0].dtype) &&
           ct_tensor_count(&p->in[1]) < INT32_MAX;
}

static int prepare_grad(struct ct_prepare *p)
{
    p->workspace = (size_t)p->out[0].shape[0] * sizeof(int32_t);
    return 0;
}

static int run_grad(const struct ct_launch *l)
{
    const struct ct_value *table = l->op->out[0];
    struct gpu_embedding_grad a = {.dtable = l->out[0].data,
                                   .dy = l->in[0].data,
                                   .tokens = l->in[1].data,
                                   .head = l->workspace,
                                   .count = ct_tensor_count(&l->in[1]),
                                   .columns = l->out[0].shape[1],
                                   .rows = l->out[0].shape[0],
                                   .first = ct_launch_offset(l, table, 0),
                                   .limit = table->shape[0],
                                   .accumulate = l->accumulate & 1,
                                   .fault = (void *)(uintptr_t)gpu_of(l->device)->fault_address};
    int rc =
        gpu_launch(l, "embedding_clear", (struct gpu_size){(unsigned)gpu_blocks(a.rows, 256), 1, 1},
                   (struct gpu_size){256, 1, 1}, 0, &a);

    if (rc == 0)
        rc = gpu_launch(l, "embedding_heads",
                        (struct gpu_size){(unsigned)gpu_blocks(a.count, 256), 1, 1},
                        (struct gpu_size){256, 1, 1}, 0, &a);
    if (rc < 0)
        return rc;
    return launch(l, "embedding_grad", &l->in[0], &l->out[0], a.rows, &a);
}

const struct ct_kernel gpu_embedding_kernels[] = {
    CT_KERNEL("embedding", "rows", 0, accepts, NULL, run),
    CT_KERNEL("embedding_grad", "rows", CT_KERNEL_ACCUMULATES, accepts_grad, prepare_grad,
              run_grad),
    {0}};
