/*
 * linear, linear_dx and linear_dw as matrix products.
 *
 * All three may have several weights (q, k, v of one x). Where the shards lie side by side in
 * memory, and the weights one after the other, they are one product, else one each. The plan tries:
 * see ct_op_type.join and ct_kernel.stack.
 */
#include "blas.h"

static bool accepts_shards(const struct ct_tensor *narrow, const struct ct_tensor *wide,
                           const struct ct_tensor *weight, int count)
{
    struct ct_matrix rows;

    if (!ct_cuda_computes(narrow->dtype) || !ct_tensor_as_matrix(narrow, &rows))
        return false;
    for (int i = 0; i < count; i++)
        if (wide[i].dtype != narrow->dtype || !ct_cuda_computes(weight[i].dtype) ||
            weight[i].dtype != weight[0].dtype || !ct_tensor_as_matrix(&wide[i], &rows) ||
            !ct_tensor_as_matrix(&weight[i], &rows))
            return false;
    return true;
}

static bool accepts_linear(const struct ct_prepare *p)
{
    return p->in[1].dtype == p->in[0].dtype &&
           accepts_shards(&p->in[0], p->out, p->in + 1, p->outs);
}

static bool accepts_dx(const struct ct_prepare *p)
{
    int count = p->ins / 2;

    return p->in[count].dtype == p->out[0].dtype &&
           accepts_shards(&p->out[0], p->in, p->in + count, count);
}

static bool accepts_dw(const struct ct_prepare *p)
{
    return accepts_shards(&p->in[0], p->in + 1, p->out, p->outs);
}

/* How many shards from the first on lie side by side: columns of one matrix, weights in a row; bits
   of accumulate must be the same. Weights that no op makes may have buffers of their own that the
   plan puts one after the other: only addresses tell. */
static int joined(const struct ct_tensor *wide, const struct ct_tensor *weight, int count,
                  uint32_t accumulate)
{
    struct ct_matrix w, n;
    int together = 1;

    for (; together < count; together++) {
        const struct ct_tensor *before = &wide[together - 1], *above = &weight[together - 1];

        ct_tensor_as_matrix(before, &n);
        ct_tensor_as_matrix(above, &w);
        if ((char *)before->data + (size_t)n.columns * ct_dtype_size(before->dtype) !=
                wide[together].data ||
            (char *)above->data + (size_t)(w.rows * w.stride) * ct_dtype_size(above->dtype) !=
                weight[together].data ||
            n.stride == n.columns || (accumulate >> together & 1) != (accumulate & 1))
            break;
    }
    return together;
}

static int prepare_linear(struct ct_prepare *p)
{
    p->workspace = GPU_BLAS_WORKSPACE;
    return 0;
}

/* Do all calls find dx's shards and weights joined? */
static bool always_joined(const struct ct_prepare *p, int count)
{
    struct ct_matrix w, n;
    ptrdiff_t right, down;

    for (int i = 1; i < count; i++) {
        const struct ct_tensor *before = &p->in[i - 1], *above = &p->in[count + i - 1];

        ct_tensor_as_matrix(before, &n);
        ct_tensor_as_matrix(above, &w);
        if (!ct_prepare_distance(p, i - 1, i, &right) ||
            !ct_prepare_distance(p, count + i - 1, count + i, &down) || n.stride == n.columns ||
            right != n.columns * (int64_t)ct_dtype_size(before->dtype) ||
            down != w.rows * w.stride * (int64_t)ct_dtype_size(above->dtype))
            return false;
    }
    return true;
}

/* Casts of dx to the sum and back. */
struct casts {
    struct gpu_widths in, out;
};

/* Several products are summed in float32, and rounded once. */
static int prepare_dx(struct ct_prepare *p)
{
    struct casts *casts;
    int rc;

    p->workspace = GPU_BLAS_WORKSPACE;
    if (p->out[0].dtype != CT_BF16 || always_joined(p, p->ins / 2))
        return 0;
    p->workspace += (size_t)ct_tensor_count(&p->out[0]) * sizeof(float);
    p->state = casts = ct_arena_new(p->arena, struct casts);
    rc = gpu_find_cast(p, CT_BF16, CT_F32, &casts->in);
    return rc < 0 ? rc : gpu_find_cast(p, CT_F32, CT_BF16, &casts->out);
}

/* Columns that shards have together. */
static int64_t width(const struct ct_tensor *wide, int count)
{
    int64_t n = 0;

    for (int i = 0; i < count; i++)
        n += wide[i].shape[wide[i].ndim - 1];
    return n;
}

static int run_linear(const struct ct_launch *l)
{
    struct ct_matrix x, w, y;
    int rc = 0;

    ct_tensor_as_matrix(&l->in[0], &x);
    for (int i = 0, count; rc == 0 && i < l->outs; i += count) {
        count = joined(l->out + i, l->in + 1 + i, l->outs - i, l->accumulate >> i);
        ct_tensor_as_matrix(&l->in[1 + i], &w);
        ct_tensor_as_matrix(&l->out[i], &y);
        rc = gpu_multiply(l,
                          &(struct gpu_product){.m = x.rows,
                                                .n = width(l->out + i, count),
                                                .k = x.columns,
                                                .a = l->in[0].data,
                                                .b = l->in[1 + i].data,
                                                .c = l->out[i].data,
                                                .a_stride = x.stride,
                                                .b_stride = w.stride,
                                                .c_stride = y.stride,
                                                .a_dtype = l->in[0].dtype,
                                                .b_dtype = l->in[1 + i].dtype,
                                                .c_dtype = l->out[i].dtype,
                                                .accumulate = l->accumulate >> i & 1},
                          l->workspace);
    }
    return rc;
}

/* dx = sum of products, or sum + them; dx may be a float32 matrix other than l's output. */
static int sum_dx(const struct ct_launch *l, const struct ct_tensor *dx, bool accumulate)
{
    const struct ct_tensor *weight = l->in + l->ins / 2;
    struct ct_matrix dy, w, to;
    int rc = 0;

    ct_tensor_as_matrix(dx, &to);
    for (int i = 0, count; rc == 0 && i < l->ins / 2; i += count, accumulate = true) {
        count = joined(l->in + i, weight + i, l->ins / 2 - i, 0);
        ct_tensor_as_matrix(&l->in[i], &dy);
        ct_tensor_as_matrix(&weight[i], &w);
        rc = gpu_multiply(l,
                          &(struct gpu_product){.m = dy.rows,
                                                .n = to.columns,
                                                .k = width(l->in + i, count),
                                                .a = l->in[i].data,
                                                .b = weight[i].data,
                                                .c = dx->data,
                                                .a_stride = dy.stride,
                                                .b_stride = w.stride,
                                                .c_stride = to.stride,
                                                .b_by_k = true,
                                                .a_dtype = l->in[i].dtype,
                                                .b_dtype = weight[i].dtype,
                                                .c_dtype = dx->dtype,
                                                .accumulate = accumulate},
                          l->workspace);
    }
    return rc;
}

static int run_dx(const struct ct_launch *l)
{
    const struct ct_tensor *dx = &l->out[0];
    const struct casts *casts = l->state;
    int count = l->ins / 2, rc;
    bool add = l->accumulate & 1;
    struct ct_tensor sum;

    if (dx->dtype != CT_BF16 || (joined(l->in, l->in + count, count, 0) == count))
        return sum_dx(l, dx, add);
    sum = ct_tensor_dense((char *)l->workspace + GPU_BLAS_WORKSPACE, CT_F32, dx->ndim, dx->shape);
    rc = add ? gpu_cast(l, &casts->in, dx, &sum) : 0;
    if (rc == 0)
        rc = sum_dx(l, &sum, add);
    return rc < 0 ? rc : gpu_cast(l, &casts->out, &sum, dx);
}

static int run_dw(const struct ct_launch *l)
{
    struct ct_matrix x, dy, dw;
    int rc = 0;

    ct_tensor_as_matrix(&l->in[0], &x);
    for (int i = 0, count; rc == 0 && i < l->outs; i += count) {
        count = joined(l->in + 1 + i, l->out + i, l->outs - i, l->accumulate >> i);
        ct_tensor_as_matrix(&l->in[1 + i], &dy);
        ct_tensor_as_matrix(&l->out[i], &dw);
        rc = gpu_multiply(l,
                          &(struct gpu_product){.m = width(l->in + 1 + i, count),
                                                .n = x.columns,
                                                .k = x.rows,
                                                .a = l->in[1 + i].data,
                                                .b = l->in[0].data,
                                                .c = l->out[i].data,
                                                .a_stride = dy.stride,
                                                .b_stride = x.stride,
                                                .c_stride = dw.stride,
                                                .a_by_k = true,
                                                .b_by_k = true,
                                                .a_dtype = l->in[1 + i].dtype,
                                                .b_dtype = l->in[0].dtype,
                                                .c_dtype = l->out[i].dtype,
                                                .accumulate = l->accumulate >> i & 1},
                          l->workspace);
    }
    return rc;
}

/* The weights, or their gradients. */
static int stack_weights(const struct ct_op *op, struct ct_value ***values)
{
    *values = op->in + 1;
    return op->outs;
}

static int stack_dx(const struct ct_op *op, struct ct_value ***values)
{
    *values = op->in + op->ins / 2;
    return op->ins / 2;
}

static int stack_dw(const struct ct_op *op, struct ct_value ***values)
{
    *values = op->out;
    return op->outs;
}

#define FLAGS (CT_KERNEL_ACCUMULATES | CT_KERNEL_STRIDED)

const struct ct_kernel gpu_linear_kernels[] = {
    CT_KERNEL("linear", "cublaslt", FLAGS, accepts_linear, prepare_linear, run_linear,
              .stack = stack_weights),
    CT_KERNEL("linear_dx", "cublaslt", FLAGS, accepts_dx, prepare_dx, run_dx, .stack = stack_dx),
    CT_KERNEL("linear_dw", "cublaslt", FLAGS, accepts_dw, prepare_linear, run_dw,
              .stack = stack_dw),
    {0}};
