/* Rows times a number each, norms without a weight, ones, and all numbers times one, on dense
   tensors. */
#include <ctitan/lib/ops.h>

#include "gpu.h"

#define THREADS 256

/* All operands with columns are of one dtype; those by row are float32. */
static bool accepts_scale_rows(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;
    int ndim = p->in[0].ndim;

    for (int i = 0; i < p->ins; i++)
        if (p->in[i].dtype != (p->in[i].ndim == ndim ? dtype : CT_F32))
            return false;
    for (int i = 0; i < p->outs; i++)
        if (p->out[i].dtype != (p->out[i].ndim == ndim ? dtype : CT_F32))
            return false;
    return ct_cuda_computes(dtype);
}

static int prepare_rows(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->in[0].dtype, "@_*", "@_*_vector");
}

static int launch(const struct ct_launch *l, struct gpu_scale_rows *a)
{
    const struct ct_tensor *x = &l->in[0];
    int64_t lanes = ct_cuda_lanes(x->dtype);
    bool vector;

    a->columns = x->shape[x->ndim - 1];
    a->rows = ct_shape_count(x->ndim - 1, x->shape);
    a->out = l->out[0].data;
    a->of_row = l->outs > 1 ? l->out[1].data : NULL;
    a->accumulate = l->accumulate;
    vector = a->columns % lanes == 0 && ct_cuda_starts_vectors(a->x, NULL, 0, lanes) &&
             ct_cuda_starts_vectors(a->dy, NULL, 0, lanes) &&
             ct_cuda_starts_vectors(a->out, NULL, 0, lanes);
    a->lanes = ct_cuda_threads_of_row(a->columns, vector ? lanes : 1);
    return gpu_launch(
        l, vector,
        (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a->rows, THREADS / a->lanes), 1, 1},
        (struct ct_cuda_size){THREADS, 1, 1}, 0, a);
}

static int run_scale(const struct ct_launch *l)
{
    return launch(l, &(struct gpu_scale_rows){.x = l->in[0].data, .w = l->in[1].data});
}

static int run_norm(const struct ct_launch *l)
{
    const struct ct_rms_norm *norm = l->op->attrs;

    return launch(l, &(struct gpu_scale_rows){.x = l->in[0].data, .eps = (float)norm->eps});
}

/* Gradient of both forms: dy, x, and a number of each row. */
static int run_grad(const struct ct_launch *l)
{
    return launch(
        l, &(struct gpu_scale_rows){.dy = l->in[0].data, .x = l->in[1].data, .w = l->in[2].data});
}

static bool accepts_ones(const struct ct_prepare *p)
{
    return p->out[0].dtype == CT_F32;
}

static int prepare_ones(struct ct_prepare *p)
{
    return gpu_prepare(p, "ones");
}

static int run_ones(const struct ct_launch *l)
{
    struct gpu_ones a = {.out = l->out[0].data, .count = ct_tensor_count(&l->out[0])};

    return gpu_launch(l, 0, (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.count, THREADS), 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

static bool accepts_all(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && p->out[0].dtype == p->in[0].dtype;
}

static int prepare_all(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->in[0].dtype, "scale_*");
}

static int run_all(const struct ct_launch *l)
{
    struct gpu_scale a = {.out = l->out[0].data,
                          .x = l->in[0].data,
                          .count = ct_tensor_count(&l->in[0]),
                          .factor = (float)((const struct ct_scale *)l->op->attrs)->factor};

    return gpu_launch(l, 0, (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.count, THREADS), 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

const struct ct_kernel gpu_scale_rows_kernels[] = {
    CT_KERNEL("scale_rows", "rows", 0, accepts_scale_rows, prepare_rows, run_scale),
    CT_KERNEL("scale_rows_grad", "rows", CT_KERNEL_ACCUMULATES, accepts_scale_rows, prepare_rows,
              run_grad),
    CT_KERNEL("rms_norm_plain", "rows", 0, accepts_scale_rows, prepare_rows, run_norm),
    CT_KERNEL("rms_norm_plain_grad", "rows", CT_KERNEL_ACCUMULATES, accepts_scale_rows,
              prepare_rows, run_grad),
    CT_KERNEL("ones", "plain", 0, accepts_ones, prepare_ones, run_ones),
    CT_KERNEL("scale", "plain", 0, accepts_all, prepare_all, run_all),
    {0}};
