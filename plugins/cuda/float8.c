/*
 * Float8: factors, quantising, and products by cuBLASLt, which wants the rows of both operands
 * contiguous along what is summed over, in multiples of 16.
 */
#include <stdio.h>

#include <ctitan/lib/ops.h>

#include "blas.h"

#define THREADS 256
#define ADA 89    /* the first compute capability with such products */
#define HOPPER 90 /* the only one where cuBLASLt takes a factor for each row */

static int64_t rows_of(const struct ct_tensor *t)
{
    return ct_shape_count(t->ndim - 1, t->shape);
}

static int64_t columns_of(const struct ct_tensor *t)
{
    return t->shape[t->ndim - 1];
}

static int per_of(enum ct_float8_per per)
{
    return per == CT_PER_ROW ? GPU_PER_ROW : per == CT_PER_COLUMN ? GPU_PER_COLUMN : GPU_PER_TENSOR;
}

/* ---- factors ---- */

static bool accepts_scale(const struct ct_prepare *p)
{
    return gpu_is_compute_dtype(p->in[0].dtype);
}

static int64_t parts_of(const struct ct_tensor *x)
{
    return gpu_blocks(ct_tensor_count(x), GPU_GRAIN);
}

static int prepare_scale(struct ct_prepare *p)
{
    p->workspace = (size_t)parts_of(&p->in[0]) * sizeof(float);
    return 0;
}

static int launch_parts(const struct ct_launch *l, const struct gpu_float8_scale *a, int64_t blocks)
{
    enum ct_dtype dtype = l->in[0].dtype;
    bool vector = a->columns % gpu_lanes(dtype) == 0 && (uintptr_t)a->x % 16 == 0 &&
                  a->count % gpu_lanes(dtype) == 0;

    return gpu_launch_as(l, "float8_parts", dtype, vector,
                         (struct gpu_size){(unsigned)blocks, 1, 1},
                         (struct gpu_size){THREADS, 1, 1}, 0, a);
}

static int run_scale(const struct ct_launch *l)
{
    const struct ct_float8_scale *attrs = l->op->attrs;
    const struct ct_tensor *x = &l->in[0];
    struct gpu_float8_scale a = {.scale = l->out[0].data,
                                 .inverse = l->out[1].data,
                                 .x = x->data,
                                 .rows = rows_of(x),
                                 .columns = columns_of(x),
                                 .count = ct_tensor_count(x),
                                 .most = attrs->dtype == CT_E4M3 ? 448.0f : 57344.0f,
                                 .power_of_two = attrs->power_of_two};
    int rc;

    if (per_of(attrs->per) == GPU_PER_COLUMN)
        return gpu_launch_as(l, "float8_columns", x->dtype, false,
                             (struct gpu_size){(unsigned)gpu_blocks(a.columns, 32), 1, 1},
                             (struct gpu_size){32, 8, 1}, 0, &a);
    if (per_of(attrs->per) == GPU_PER_ROW)
        return launch_parts(l, &a, a.rows);
    a.partial = l->workspace;
    a.parts = parts_of(x);
    a.columns = GPU_GRAIN; /* of a part */
    rc = launch_parts(l, &a, a.parts);
    return rc < 0 ? rc
                  : gpu_launch(l, "float8_whole", (struct gpu_size){1, 1, 1},
                               (struct gpu_size){THREADS, 1, 1}, 0, &a);
}

/* ---- quantising ---- */

static bool accepts_quantise(const struct ct_prepare *p)
{
    return gpu_is_compute_dtype(p->in[0].dtype) && p->in[1].dtype == CT_F32 &&
           rows_of(&p->in[0]) <= (int64_t)65535 * 32;
}

static bool is_aligned(const struct gpu_float8_quantise *a, enum ct_dtype dtype, int64_t elements)
{
    return a->columns % elements == 0 && (uintptr_t)a->q % (size_t)elements == 0 &&
           (uintptr_t)a->x % ((size_t)elements * ct_dtype_size(dtype)) == 0;
}

static unsigned split(int64_t whole, int64_t shard)
{
    return (unsigned)gpu_blocks(whole, shard);
}

static int run_quantise(const struct ct_launch *l)
{
    const struct ct_float8_quantise *attrs = l->op->attrs;
    const struct ct_tensor *x = &l->in[0];
    struct gpu_float8_quantise a = {.q = l->out[0].data,
                                    .x = x->data,
                                    .scale = l->in[1].data,
                                    .rows = rows_of(x),
                                    .columns = columns_of(x),
                                    .per = per_of(attrs->per),
                                    .transposed = attrs->transposed};
    struct gpu_size grid = {split(a.columns, 32), split(a.rows, 32), 1}, block = {32, 8, 1};
    const char *how = "";
    char name[80];

    if (a.transposed && is_aligned(&a, x->dtype, 4) && a.rows % 4 == 0) {
        how = "_transposed";
        grid = (struct gpu_size){split(a.columns, GPU_FLOAT8_COLUMNS),
                                 split(a.rows, GPU_FLOAT8_ROWS), 1};
        block = (struct gpu_size){THREADS, 1, 1};
    } else if (!a.transposed && is_aligned(&a, x->dtype, GPU_FLOAT8_VECTOR) &&
               a.rows <= (int64_t)65535 * 8) {
        how = "_vector";
        grid = (struct gpu_size){split(a.columns, 32 * GPU_FLOAT8_VECTOR), split(a.rows, 8), 1};
    }
    snprintf(name, sizeof(name), "%s_%s%s", ct_dtype_name(l->out[0].dtype), ct_dtype_name(x->dtype),
             how);
    return gpu_launch(l, name, grid, block, 0, &a);
}

/* ---- products ---- */

static bool is_float8(enum ct_dtype dtype)
{
    return dtype == CT_E4M3 || dtype == CT_E5M2;
}

static bool accepts_linear(const struct ct_prepare *p)
{
    const struct ct_float8_linear *attrs = p->op->attrs;
    const struct ct_tensor *x = &p->in[0], *w = &p->in[1];
    int capability = gpu_of(p->device)->capability;

    return is_float8(x->dtype) && is_float8(w->dtype) &&
           (x->dtype == CT_E4M3 || w->dtype == CT_E4M3) && gpu_is_compute_dtype(p->out[0].dtype) &&
           columns_of(x) % 16 == 0 && w->shape[0] % 16 == 0 && capability >= ADA &&
           (!attrs->by_row || capability == HOPPER);
}

static int prepare_linear(struct ct_prepare *p)
{
    p->workspace = GPU_BLAS_WORKSPACE;
    return 0;
}

static int run_linear(const struct ct_launch *l)
{
    const struct ct_float8_linear *attrs = l->op->attrs;
    const struct ct_tensor *x = &l->in[0], *w = &l->in[1], *y = &l->out[0];

    return gpu_multiply(l,
                        &(struct gpu_product){.m = rows_of(x),
                                              .n = w->shape[0],
                                              .k = columns_of(x),
                                              .a = x->data,
                                              .b = w->data,
                                              .c = y->data,
                                              .a_stride = columns_of(x),
                                              .b_stride = columns_of(w),
                                              .c_stride = columns_of(y),
                                              .accumulate = l->accumulate & 1,
                                              .a_dtype = x->dtype,
                                              .b_dtype = w->dtype,
                                              .c_dtype = y->dtype,
                                              .a_scale = l->in[2].data,
                                              .b_scale = l->in[3].data,
                                              .by_row = attrs->by_row,
                                              .fast_accumulation = attrs->fast_accumulation},
                        l->workspace);
}

const struct ct_kernel gpu_float8_kernels[] = {
    CT_KERNEL("float8_scale", "vector", 0, accepts_scale, prepare_scale, run_scale),
    CT_KERNEL("float8_quantise", "tile", 0, accepts_quantise, NULL, run_quantise),
    CT_KERNEL("float8_linear", "cublaslt", CT_KERNEL_ACCUMULATES, accepts_linear, prepare_linear,
              run_linear),
    {0}};
