/*
 * layer_norm, its gradient, and the gradient of a bias.
 */
#include <ctitan/lib/ops.h>

#include "gpu.h"

#define THREADS 256
#define SHARES 64 /* of the rows, for sums over them */

static int64_t columns_of(const struct ct_tensor *t)
{
    return t->shape[t->ndim - 1];
}

static int64_t rows_of(const struct ct_tensor *t)
{
    return ct_shape_count(t->ndim - 1, t->shape);
}

static bool accepts_layer_norm(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return ct_cuda_computes(dtype) && p->out[0].dtype == dtype && p->out[1].dtype == CT_F32 &&
           p->out[2].dtype == CT_F32;
}

static int prepare_layer_norm(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->in[0].dtype, "layer_norm_*");
}

static int run_layer_norm(const struct ct_launch *l)
{
    struct gpu_layer_norm a = {.y = l->out[0].data,
                               .mean = l->out[1].data,
                               .rstd = l->out[2].data,
                               .x = l->in[0].data,
                               .w = l->in[1].data,
                               .bias = l->ins > 2 ? l->in[2].data : NULL,
                               .columns = columns_of(&l->in[0]),
                               .eps = (float)((const struct ct_layer_norm *)l->op->attrs)->eps};

    return gpu_launch(l, 0, (struct ct_cuda_size){(unsigned)rows_of(&l->in[0]), 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

/* ---- gradients ---- */

static int64_t shares_of(int64_t rows)
{
    int64_t shares = ct_cuda_blocks(rows, 8);

    return shares < SHARES ? shares : SHARES;
}

int gpu_find_sum_columns(const struct ct_prepare *p, enum ct_dtype dtype,
                         struct gpu_sum_columns *found)
{
    int rc = gpu_find_as(p, dtype, &found->shares, "column_shares_*");

    return rc < 0 ? rc : gpu_find(p, &found->sum, GPU_COLUMN_SUM);
}

static int sum_shares(const struct ct_launch *l, const struct gpu_sum_columns *by, int out,
                      const float *shares, int64_t count)
{
    const struct ct_tensor *t = &l->out[out];
    struct gpu_column_sum a = {.out = t->data,
                               .in = shares,
                               .rows = count,
                               .columns = columns_of(t),
                               .kind = ct_cuda_float_of(t->dtype),
                               .accumulate = l->accumulate >> out & 1};

    return ct_cuda_launch(l, by->sum,
                          (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.columns, 32), 1, 1},
                          (struct ct_cuda_size){32, 8, 1}, 0, &a);
}

static int launch_shares(const struct ct_launch *l, const struct gpu_sum_columns *by,
                         const struct gpu_column_shares *a)
{
    return ct_cuda_launch(l, by->shares,
                          (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a->columns, 32),
                                                (unsigned)shares_of(a->rows), 1},
                          (struct ct_cuda_size){32, 8, 1}, 0, a);
}

size_t gpu_column_shares(int64_t rows, int64_t columns)
{
    return (size_t)(shares_of(rows) * columns) * sizeof(float);
}

int gpu_sum_columns(const struct ct_launch *l, const struct gpu_sum_columns *by, int out,
                    const float *x, int64_t rows, int64_t columns, float *shares)
{
    struct gpu_column_shares s = {
        .of_y = shares, .dy = x, .rows = rows, .columns = columns, .dy_stride = columns};
    int rc = launch_shares(l, by, &s);

    return rc < 0 ? rc : sum_shares(l, by, out, shares, shares_of(rows));
}

static bool accepts_grad(const struct ct_prepare *p)
{
    for (int i = 0; i < 3; i++)
        if (p->in[i].dtype != p->in[0].dtype || !ct_cuda_computes(p->out[i].dtype))
            return false;
    return ct_cuda_computes(p->in[0].dtype) && p->in[3].dtype == CT_F32 && p->in[4].dtype == CT_F32;
}

struct grad_functions {
    struct ct_cuda_function *dx;
    struct gpu_sum_columns sum;
};

static int prepare_grad(struct ct_prepare *p)
{
    struct grad_functions *f = ct_arena_new(p->arena, struct grad_functions);
    int rc = gpu_find_as(p, p->in[0].dtype, &f->dx, "layer_norm_grad_*");

    p->state = f;
    p->workspace = 2 * gpu_column_shares(rows_of(&p->in[0]), columns_of(&p->in[0]));
    return rc < 0 ? rc : gpu_find_sum_columns(p, p->in[0].dtype, &f->sum);
}

static int run_grad(const struct ct_launch *l)
{
    const struct grad_functions *f = l->state;
    const struct ct_tensor *dy = &l->in[0];
    int64_t rows = rows_of(dy), columns = columns_of(dy), shares = shares_of(rows);
    struct gpu_layer_norm_grad a = {.dx = l->out[0].data,
                                    .dy = dy->data,
                                    .x = l->in[1].data,
                                    .w = l->in[2].data,
                                    .mean = l->in[3].data,
                                    .rstd = l->in[4].data,
                                    .columns = columns,
                                    .kind = ct_cuda_float_of(l->out[0].dtype),
                                    .accumulate = l->accumulate & 1};
    struct gpu_column_shares s = {.of_z = l->workspace,
                                  .of_y = (float *)l->workspace + shares * columns,
                                  .dy = a.dy,
                                  .x = a.x,
                                  .mean = a.mean,
                                  .rstd = a.rstd,
                                  .rows = rows,
                                  .columns = columns,
                                  .dy_stride = columns};
    int rc = ct_cuda_launch(l, f->dx, (struct ct_cuda_size){(unsigned)rows, 1, 1},
                            (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);

    if (rc == 0)
        rc = launch_shares(l, &f->sum, &s);
    if (rc == 0)
        rc = sum_shares(l, &f->sum, 1, s.of_z, shares);
    return rc < 0 ? rc : sum_shares(l, &f->sum, 2, s.of_y, shares);
}

static bool accepts_bias(const struct ct_prepare *p)
{
    struct ct_matrix rows;

    return ct_cuda_computes(p->in[0].dtype) && ct_cuda_computes(p->out[0].dtype) &&
           ct_tensor_as_matrix(&p->in[0], &rows);
}

static int prepare_bias(struct ct_prepare *p)
{
    p->workspace = gpu_column_shares(rows_of(&p->in[0]), columns_of(&p->in[0]));
    p->state = ct_arena_new(p->arena, struct gpu_sum_columns);
    return gpu_find_sum_columns(p, p->in[0].dtype, p->state);
}

static int run_bias(const struct ct_launch *l)
{
    struct gpu_column_shares s = {.of_y = l->workspace, .dy = l->in[0].data};
    struct ct_matrix rows;
    int rc;

    ct_tensor_as_matrix(&l->in[0], &rows);
    s.rows = rows.rows;
    s.columns = rows.columns;
    s.dy_stride = rows.stride;
    rc = launch_shares(l, l->state, &s);
    return rc < 0 ? rc : sum_shares(l, l->state, 0, s.of_y, shares_of(s.rows));
}

const struct ct_kernel gpu_layer_norm_kernels[] = {
    CT_KERNEL("layer_norm", "rows", 0, accepts_layer_norm, prepare_layer_norm, run_layer_norm),
    CT_KERNEL("layer_norm_grad", "rows", CT_KERNEL_ACCUMULATES, accepts_grad, prepare_grad,
              run_grad),
    CT_KERNEL("bias_grad", "columns", CT_KERNEL_ACCUMULATES | CT_KERNEL_STRIDED, accepts_bias,
              prepare_bias, run_bias),
    {0}};
