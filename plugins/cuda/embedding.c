/*
 * embedding and its gradient, on dense tensors.
 */
#include <stdio.h>

#include "gpu.h"

static void name_of(char *name, size_t room, const char *what, enum ct_dtype from, enum ct_dtype to)
{
    snprintf(name, room, "%s_%s_to_%s", what, ct_dtype_name(from), ct_dtype_name(to));
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
    char name[64];

    name_of(name, sizeof(name), "embedding", l->in[1].dtype, l->out[0].dtype);
    return gpu_launch(l, name, (struct gpu_size){(unsigned)a.count, 1, 1},
                      (struct gpu_size){256, 1, 1}, 0, &a);
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
    char name[64];
    int rc =
        gpu_launch(l, "embedding_clear", (struct gpu_size){(unsigned)gpu_blocks(a.rows, 256), 1, 1},
                   (struct gpu_size){256, 1, 1}, 0, &a);

    if (rc == 0)
        rc = gpu_launch(l, "embedding_heads",
                        (struct gpu_size){(unsigned)gpu_blocks(a.count, 256), 1, 1},
                        (struct gpu_size){256, 1, 1}, 0, &a);
    if (rc < 0)
        return rc;
    name_of(name, sizeof(name), "embedding_grad", l->in[0].dtype, l->out[0].dtype);
    return gpu_launch(l, name, (struct gpu_size){(unsigned)a.rows, 1, 1},
                      (struct gpu_size){128, 1, 1}, 0, &a);
}

const struct ct_kernel gpu_embedding_kernels[] = {
    {"embedding", "rows", 0, accepts, NULL, run},
    {"embedding_grad", "rows", CT_KERNEL_ACCUMULATES, accepts_grad, prepare_grad, run_grad},
    {0}};
