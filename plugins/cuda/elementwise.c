/*
 * Elementwise ops on tensors that are matrices of one shape.
 */
#include <stdio.h>

#include "gpu.h"

#define THREADS 256
#define OPERANDS 5

static struct gpu_size blocks_for(const struct ct_matrix *rows, int64_t lanes,
                                  struct gpu_size *block)
{
    int64_t vectors = gpu_blocks(rows->columns, lanes), across = 1, y;

    while (across < THREADS && across < vectors)
        across *= 2;
    *block = (struct gpu_size){(unsigned)across, (unsigned)(THREADS / across), 1};
    y = gpu_blocks(rows->rows, block->y);
    return (struct gpu_size){(unsigned)gpu_blocks(vectors, across),
                             (unsigned)(y < 65535 ? y : 65535), 1};
}

static int map(const struct ct_launch *l, const char *name, const struct ct_tensor *const *out,
               int outs, const struct ct_tensor *const *in, int ins, int64_t lanes)
{
    const struct ct_tensor *all[OPERANDS];
    struct ct_matrix rows[OPERANDS];
    struct gpu_map a = {0};
    struct gpu_size block, grid;
    char full[80];
    bool vector;

    memcpy(all, out, (size_t)outs * sizeof(*all));
    memcpy(all + outs, in, (size_t)ins * sizeof(*all));
    if (!gpu_matrices(all, outs + ins, rows))
        return ct_fail(CT_EINVAL, "%s: operands that are no matrices", name);
    for (int i = 0; i < outs; i++) {
        a.out[i] = out[i]->data;
        a.out_stride[i] = rows[i].stride;
    }
    for (int i = 0; i < ins; i++) {
        a.in[i] = in[i]->data;
        a.in_stride[i] = rows[outs + i].stride;
    }
    a.rows = rows->rows;
    a.columns = rows->columns;
    vector = gpu_vectors(all, rows, outs + ins, lanes);
    grid = blocks_for(rows, vector ? lanes : 1, &block);
    snprintf(full, sizeof(full), "%s%s", name, vector ? "_vector" : "");
    return gpu_launch(l, full, grid, block, 0, &a);
}

static bool accepts(const struct ct_prepare *p)
{
    const struct ct_tensor *all[OPERANDS];
    struct ct_matrix rows[OPERANDS];

    for (int i = 0; i < p->outs; i++)
        all[i] = &p->out[i];
    for (int i = 0; i < p->ins; i++)
        all[p->outs + i] = &p->in[i];
    for (int i = 0; i < p->outs + p->ins; i++)
        if (!gpu_is_compute_dtype(all[i]->dtype))
            return false;
    return gpu_matrices(all, p->outs + p->ins, rows);
}

static int run(const struct ct_launch *l)
{
    const struct ct_tensor *out[2], *in[3];
    enum ct_dtype dtype = l->in[0].dtype;
    char name[64];

    for (int i = 0; i < l->outs; i++)
        out[i] = &l->out[i];
    for (int i = 0; i < l->ins; i++)
        in[i] = &l->in[i];
    snprintf(name, sizeof(name), "%s_%s", l->op->type->name, ct_dtype_name(dtype));
    return map(l, name, out, l->outs, in, l->ins, gpu_lanes(dtype));
}

int gpu_cast(const struct ct_launch *l, const struct ct_tensor *from, const struct ct_tensor *to)
{
    char name[64];

    snprintf(name, sizeof(name), "cast_%s_to_%s", ct_dtype_name(from->dtype),
             ct_dtype_name(to->dtype));
    return map(l, name, &to, 1, &from, 1, 4);
}

static int run_cast(const struct ct_launch *l)
{
    return gpu_cast(l, &l->in[0], &l->out[0]);
}

/* Sums of squares, from several stages of a pipeline. */
static bool accepts_numbers(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_F64 && ct_tensor_count(&p->in[0]) == 1;
}

static int run_add_numbers(const struct ct_launch *l)
{
    struct gpu_add_numbers a = {l->out[0].data, l->in[0].data, l->in[1].data};

    return gpu_launch(l, "add_numbers", (struct gpu_size){1, 1, 1}, (struct gpu_size){1, 1, 1}, 0,
                      &a);
}

static bool accepts_reciprocal(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_F32 || p->in[0].dtype == CT_F64;
}

static int run_reciprocal(const struct ct_launch *l)
{
    struct gpu_scalar a = {l->out[0].data, l->in[0].data, ct_tensor_count(&l->in[0])};

    return gpu_launch_as(l, "reciprocal", l->in[0].dtype, false,
                         (struct gpu_size){(unsigned)gpu_blocks(a.count, THREADS), 1, 1},
                         (struct gpu_size){THREADS, 1, 1}, 0, &a);
}

const struct ct_kernel gpu_elementwise_kernels[] = {
    CT_KERNEL("add", "vector", CT_KERNEL_STRIDED, accepts, NULL, run),
    CT_KERNEL("add", "numbers", 0, accepts_numbers, NULL, run_add_numbers),
    CT_KERNEL("swiglu", "vector", CT_KERNEL_STRIDED, accepts, NULL, run),
    CT_KERNEL("swiglu_grad", "vector", CT_KERNEL_STRIDED, accepts, NULL, run),
    CT_KERNEL("cast", "vector", CT_KERNEL_STRIDED, accepts, NULL, run_cast),
    CT_KERNEL("reciprocal", "scalar", 0, accepts_reciprocal, NULL, run_reciprocal),
    {0}};
