/*
 * rms_norm, add_rms_norm and their gradient, on dense tensors; NAME.largest gives the largest
 * magnitudes of the rows of its first output, too.
 */
#include <ctitan/lib/ops.h>

#include "gpu.h"

#define THREADS 1024

static int64_t rows_of(const struct ct_tensor *t)
{
    return ct_shape_count(t->ndim - 1, t->shape);
}

static int64_t columns_of(const struct ct_tensor *t)
{
    return t->shape[t->ndim - 1];
}

/* All operands start at vectors, rows too. */
static bool vectors(const void *const *data, int count, const struct ct_tensor *x)
{
    if (columns_of(x) % ct_cuda_lanes(x->dtype))
        return false;
    for (int i = 0; i < count; i++)
        if ((uintptr_t)data[i] % 16)
            return false;
    return true;
}

/* Whole warps, no more than there are vectors in a row. */
static unsigned threads_for(int64_t columns, int64_t lanes)
{
    int64_t warps = ct_cuda_blocks(ct_cuda_blocks(columns, lanes), 32);

    return (unsigned)(warps < THREADS / 32 ? warps * 32 : THREADS);
}

/* Rows that a block of narrow rows has: a group of lanes, a power of two, for each. 0: they are not
   narrow, or not in vectors. */
static int64_t narrow_rows(bool vector, const struct ct_tensor *x)
{
    int64_t vectors = columns_of(x) / ct_cuda_lanes(x->dtype), lanes = 1;

    while (lanes < vectors)
        lanes *= 2;
    return vector && lanes <= 32 ? GPU_NARROW_THREADS / lanes : 0;
}

/* Statistics follow `count` outputs in the dtype of x. */
static bool accepts_outputs(const struct ct_prepare *p, int count)
{
    enum ct_dtype dtype = p->in[0].dtype;

    for (int i = 0; i < p->outs; i++)
        if (p->out[i].dtype != (i < count ? dtype : CT_F32))
            return false;
    return ct_cuda_computes(dtype);
}

static bool accepts_norm(const struct ct_prepare *p)
{
    return accepts_outputs(p, p->outs - 1);
}

static bool accepts_norm_largest(const struct ct_prepare *p)
{
    return accepts_outputs(p, p->outs - 2);
}

enum { NARROW = 2, SUM }; /* functions beside those of other rows: [0], and for vectors [1] */

static int prepare_norm(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->in[0].dtype, "norm_*", "norm_*_vector", "norm_narrow_*_vector");
}

static int launch_norm(const struct ct_launch *l, const struct ct_tensor *largest)
{
    const struct ct_tensor *x = &l->in[0];
    bool adds = l->ins == 3;
    struct gpu_norm a = {.y = l->out[0].data,
                         .sum = adds ? l->out[1].data : NULL,
                         .rstd = l->out[1 + adds].data,
                         .largest = largest ? largest->data : NULL,
                         .x = x->data,
                         .r = adds ? l->in[1].data : NULL,
                         .w = l->in[l->ins - 1].data,
                         .rows = rows_of(x),
                         .columns = columns_of(x),
                         .eps = (float)((const struct ct_rms_norm *)l->op->attrs)->eps,
                         .offset = (float)((const struct ct_rms_norm *)l->op->attrs)->offset};
    bool vector = vectors((const void *[]){a.y, a.sum, a.x, a.r, a.w}, 5, x);
    unsigned threads = threads_for(a.columns, vector ? ct_cuda_lanes(x->dtype) : 1);
    int64_t narrow = narrow_rows(vector, x);

    if (narrow)
        return gpu_launch(l, NARROW,
                          (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.rows, narrow), 1, 1},
                          (struct ct_cuda_size){GPU_NARROW_THREADS, 1, 1}, 0, &a);
    return gpu_launch(l, vector, (struct ct_cuda_size){(unsigned)a.rows, 1, 1},
                      (struct ct_cuda_size){threads, 1, 1}, 0, &a);
}

static int run_norm(const struct ct_launch *l)
{
    return launch_norm(l, NULL);
}

static int run_norm_largest(const struct ct_launch *l)
{
    return launch_norm(l, &l->out[l->outs - 1]);
}

/* ---- the gradient ---- */

/* Blocks that share the rows: 1024 threads on each multiprocessor, however wide x is. */
static int64_t sharers(const struct gpu *gpu, const struct ct_tensor *x)
{
    int64_t vectors = ct_cuda_blocks(columns_of(x), ct_cuda_lanes(x->dtype)), rows = rows_of(x),
            each = 4;

    while (each > 1 && each * vectors > THREADS)
        each /= 2;
    return rows < each * gpu->cuda.multiprocessors ? rows : each * gpu->cuda.multiprocessors;
}

/* Sharers of narrow rows: as many blocks as multiprocessors have registers for; never more than
   sharers. */
static int64_t narrow_sharers(const struct gpu *gpu, int64_t most)
{
    int64_t fit = 3 * (int64_t)gpu->cuda.multiprocessors;

    return most < fit ? most : fit;
}

static bool accepts_grad(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return ct_cuda_computes(dtype) && p->out[0].dtype == dtype && p->in[3].dtype == CT_F32 &&
           ct_cuda_computes(p->out[1].dtype) &&
           columns_of(&p->in[0]) * (int64_t)sizeof(float) <=
               gpu_of(p->device)->cuda.shared_memory - 512;
}

/* A magnitude is that of what is written, which a sum would not be. */
static bool accepts_grad_largest(const struct ct_prepare *p)
{
    return !(p->accumulate & ~2u) && p->out[2].dtype == CT_F32 && accepts_grad(p);
}

static int prepare_grad(struct ct_prepare *p)
{
    p->workspace =
        (size_t)(sharers(gpu_of(p->device), &p->in[1]) * columns_of(&p->in[1])) * sizeof(float);
    return gpu_prepare_as(p, p->in[1].dtype, "norm_grad_*", "norm_grad_*_vector",
                          "norm_narrow_grad_*_vector", GPU_COLUMN_SUM);
}

/* dx, and the shares of dw of so many blocks. */
static int launch_grad(const struct ct_launch *l, const struct gpu_norm_grad *a, bool vector,
                       int64_t *blocks)
{
    const struct ct_tensor *x = &l->in[1];
    int64_t lanes = vector ? ct_cuda_lanes(x->dtype) : 1, narrow = narrow_rows(vector, x);
    unsigned threads = narrow ? GPU_NARROW_THREADS : threads_for(a->columns, lanes);
    int64_t far = a->columns > threads * lanes ? a->columns - threads * lanes : 0;

    *blocks = narrow ? narrow_sharers(gpu_of(l->device), ct_cuda_blocks(a->rows, narrow))
                     : sharers(gpu_of(l->device), x);
    return gpu_launch(l, narrow ? NARROW : vector, (struct ct_cuda_size){(unsigned)*blocks, 1, 1},
                      (struct ct_cuda_size){threads, 1, 1}, (size_t)far * sizeof(float), a);
}

static int run_grad(const struct ct_launch *l)
{
    const struct ct_tensor *x = &l->in[1];
    struct gpu_norm_grad a = {.dx = l->out[0].data,
                              .partial = l->workspace,
                              .largest = l->outs > 2 ? l->out[2].data : NULL,
                              .dy = l->in[0].data,
                              .x = x->data,
                              .w = l->in[2].data,
                              .dres = l->ins > 4 ? l->in[4].data : NULL,
                              .rstd = l->in[3].data,
                              .rows = rows_of(x),
                              .columns = columns_of(x),
                              .accumulate = l->accumulate,
                              .offset =
                                  (float)((const struct ct_rms_norm_grad *)l->op->attrs)->offset};
    bool vector = vectors((const void *[]){a.dx, a.dy, a.x, a.w, a.dres}, 5, x);
    int64_t blocks;
    int rc = launch_grad(l, &a, vector, &blocks);
    struct gpu_column_sum sum = {.out = l->out[1].data,
                                 .in = a.partial,
                                 .rows = blocks,
                                 .columns = a.columns,
                                 .kind = ct_cuda_float_of(l->out[1].dtype),
                                 .accumulate = l->accumulate >> 1 & 1};

    if (rc < 0)
        return rc;
    return gpu_launch(l, SUM, (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.columns, 32), 1, 1},
                      (struct ct_cuda_size){32, 8, 1}, 0, &sum);
}

const struct ct_kernel gpu_norm_kernels[] = {
    CT_KERNEL("rms_norm", "vector", 0, accepts_norm, prepare_norm, run_norm),
    CT_KERNEL("add_rms_norm", "vector", 0, accepts_norm, prepare_norm, run_norm),
    CT_KERNEL("rms_norm_grad", "vector", CT_KERNEL_ACCUMULATES, accepts_grad, prepare_grad,
              run_grad),
    CT_KERNEL("rms_norm.largest", "vector", 0, accepts_norm_largest, prepare_norm,
              run_norm_largest),
    CT_KERNEL("add_rms_norm.largest", "vector", 0, accepts_norm_largest, prepare_norm,
              run_norm_largest),
    CT_KERNEL("rms_norm_grad.largest", "vector", CT_KERNEL_ACCUMULATES, accepts_grad_largest,
              prepare_grad, run_grad),
    {0}};
