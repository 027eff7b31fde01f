/*
 * split, expand_latent and their gradients: copies of columns.
 */
#include <ctitan/lib/ops.h>

#include "gpu.h"

#define THREADS 256

static int prepare_copies(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->out[0].dtype, "@_*", "@_*_vector");
}

/* ---- split: parts of a matrix ---- */

static bool are_matrices(const struct ct_tensor *t, int count, const bool *present)
{
    struct ct_matrix rows;

    for (int i = 0; i < count; i++)
        if ((!present || present[i]) && !ct_tensor_as_matrix(&t[i], &rows))
            return false;
    return true;
}

static bool accepts_split(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->out[0].dtype) && are_matrices(p->in, p->ins, p->present) &&
           are_matrices(p->out, p->outs, NULL);
}

static int run_parts(const struct ct_launch *l, const struct ct_tensor *whole,
                     const struct ct_tensor *part)
{
    const struct ct_shape *widths = &((const struct ct_split *)l->op->attrs)->widths;
    int64_t lanes = ct_cuda_lanes(whole->dtype), end = 0;
    struct gpu_parts a = {.whole = whole->data};
    struct ct_matrix rows, own;
    struct ct_cuda_size block, grid;
    bool vector;

    ct_tensor_as_matrix(whole, &rows);
    a.whole_stride = rows.stride;
    a.rows = rows.rows;
    a.columns = rows.columns;
    vector = ct_cuda_starts_vectors(a.whole, &a.whole_stride, 1, lanes);
    for (int i = 0; i < widths->ndim; i++) {
        a.end[i] = end += widths->size[i];
        if (part[i].data && ct_tensor_as_matrix(&part[i], &own)) {
            a.part[i] = part[i].data;
            a.part_stride[i] = own.stride;
        }
        vector = vector && widths->size[i] % lanes == 0 &&
                 ct_cuda_starts_vectors(a.part[i], &a.part_stride[i], 1, lanes);
    }
    grid = ct_cuda_cover(&rows, vector ? lanes : 1, THREADS, &block);
    return gpu_launch(l, vector, grid, block, 0, &a);
}

static int run_split(const struct ct_launch *l)
{
    return run_parts(l, &l->in[0], l->out);
}

static int run_split_grad(const struct ct_launch *l)
{
    return run_parts(l, &l->out[0], l->in);
}

/* ---- expand_latent ---- */

static bool accepts_latent(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->out[0].dtype);
}

/* One operand's address and strides; whether vectors of it can be loaded. */
static bool take(const struct ct_tensor *t, int64_t lanes, void **data, int64_t *stride, int count)
{
    *data = t->data;
    if (t->data)
        memcpy(stride, t->stride, (size_t)count * sizeof(*stride));
    return ct_cuda_starts_vectors(t->data, stride, count, lanes);
}

static int run_latent(const struct ct_launch *l, const struct ct_tensor *kv,
                      const struct ct_tensor *shared, const struct ct_tensor *k,
                      const struct ct_tensor *v, int64_t keys)
{
    int64_t lanes = ct_cuda_lanes(kv->dtype), values = kv->shape[3] - keys;
    struct gpu_latent a = {.batch = kv->shape[0],
                           .tokens = kv->shape[1],
                           .heads = (int32_t)kv->shape[2],
                           .keys = (int32_t)keys,
                           .values = (int32_t)values,
                           .columns = (int32_t)(kv->shape[3] + shared->shape[2])};
    struct ct_matrix tokens = {.rows = a.batch * a.tokens, .columns = a.columns};
    bool vector = keys % lanes == 0 && values % lanes == 0 && shared->shape[2] % lanes == 0;
    struct ct_cuda_size block, grid;

    vector = take(kv, lanes, &a.kv, a.kv_stride, 3) && vector;
    vector = take(shared, lanes, &a.shared, a.shared_stride, 2) && vector;
    vector = take(k, lanes, &a.k, a.k_stride, 3) && vector;
    vector = take(v, lanes, &a.v, a.v_stride, 3) && vector;
    grid = ct_cuda_cover(&tokens, vector ? lanes : 1, THREADS, &block);
    return gpu_launch(l, vector, grid, block, 0, &a);
}

static int run_expand_latent(const struct ct_launch *l)
{
    return run_latent(l, &l->in[0], &l->in[1], &l->out[0], &l->out[1],
                      ((const struct ct_expand_latent *)l->op->attrs)->keys);
}

static int run_expand_latent_grad(const struct ct_launch *l)
{
    static const struct ct_tensor absent;

    return run_latent(l, &l->out[0], &l->out[1], &l->in[0], l->ins > 1 ? &l->in[1] : &absent,
                      ((const struct ct_expand_latent_grad *)l->op->attrs)->keys);
}

const struct ct_kernel gpu_latent_kernels[] = {
    CT_KERNEL("split", "vector", CT_KERNEL_STRIDED, accepts_split, prepare_copies, run_split),
    CT_KERNEL("split_grad", "vector", CT_KERNEL_STRIDED, accepts_split, prepare_copies,
              run_split_grad),
    CT_KERNEL("expand_latent", "vector", CT_KERNEL_STRIDED, accepts_latent, prepare_copies,
              run_expand_latent),
    CT_KERNEL("expand_latent_grad", "vector", CT_KERNEL_STRIDED, accepts_latent, prepare_copies,
              run_expand_latent_grad),
    {0}};
