/*
 * Elementwise ops on tensors that are matrices of one shape.
 */
#include <stdio.h>

#include <ctitan/core_ops.h>
#include <ctitan/lib/ops.h>

#include "gpu.h"

#define THREADS 256
#define OPERANDS 5

static int launch_map(const struct ct_launch *l, const struct gpu_widths *by,
                      const struct ct_matrix *rows, bool vector, int64_t lanes, struct gpu_map *a)
{
    struct ct_cuda_size block, grid = ct_cuda_cover(rows, vector ? lanes : 1, THREADS, &block);

    a->rows = rows->rows;
    a->columns = rows->columns;
    return ct_cuda_launch(l, by->f[vector], grid, block, 0, a);
}

static int map(const struct ct_launch *l, const struct gpu_widths *by,
               const struct ct_tensor *const *out, int outs, const struct ct_tensor *const *in,
               int ins, int64_t lanes)
{
    const struct ct_tensor *all[OPERANDS];
    struct ct_matrix rows[OPERANDS];
    struct gpu_map a = {0};

    memcpy(all, out, (size_t)outs * sizeof(*all));
    memcpy(all + outs, in, (size_t)ins * sizeof(*all));
    if (!ct_cuda_matrices(all, outs + ins, rows))
        return ct_fail(CT_EINVAL, "%s: the operands are not matrices", l->op->type->name);
    for (int i = 0; i < outs; i++) {
        a.out[i] = out[i]->data;
        a.out_stride[i] = rows[i].stride;
    }
    for (int i = 0; i < ins; i++) {
        a.in[i] = in[i]->data;
        a.in_stride[i] = rows[outs + i].stride;
    }
    return launch_map(l, by, rows, ct_cuda_vectors(all, rows, outs + ins, lanes), lanes, &a);
}

static bool accepts_elementwise(const struct ct_prepare *p)
{
    const struct ct_tensor *all[OPERANDS];
    struct ct_matrix rows[OPERANDS];

    for (int i = 0; i < p->outs; i++)
        all[i] = &p->out[i];
    for (int i = 0; i < p->ins; i++)
        all[p->outs + i] = &p->in[i];
    for (int i = 0; i < p->outs + p->ins; i++)
        if (!ct_cuda_computes(all[i]->dtype))
            return false;
    return ct_cuda_matrices(all, p->outs + p->ins, rows);
}

/* Kernels take the dtype of the first input: that of a gradient may be another. */
static int prepare_elementwise(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->in[0].dtype, "@_*", "@_*_vector");
}

static int run_elementwise(const struct ct_launch *l)
{
    const struct ct_tensor *out[2], *in[3];

    for (int i = 0; i < l->outs; i++)
        out[i] = &l->out[i];
    for (int i = 0; i < l->ins; i++)
        in[i] = &l->in[i];
    return map(l, l->state, out, l->outs, in, l->ins, ct_cuda_lanes(l->in[0].dtype));
}

/* ---- with the largest magnitudes of rows: a block takes a row ---- */

/* Outputs are numbers, then for each the largest magnitudes of its rows. */
static bool accepts_largest(const struct ct_prepare *p)
{
    struct ct_prepare numbers = *p;

    numbers.outs = p->outs / 2;
    for (int i = numbers.outs; i < p->outs; i++)
        if (p->out[i].dtype != CT_F32 || !ct_tensor_is_dense(&p->out[i]))
            return false;
    for (int i = 0; i < numbers.outs; i++)
        if (p->out[i].dtype != p->in[0].dtype)
            return false;
    return accepts_elementwise(&numbers);
}

static int prepare_swiglu_largest(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->in[0].dtype, "swiglu_largest_*", "swiglu_largest_*_vector");
}

static int prepare_swiglu_grad_largest(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->in[0].dtype, "swiglu_grad_largest_*",
                          "swiglu_grad_largest_*_vector");
}

static int run_largest(const struct ct_launch *l)
{
    const struct ct_tensor *all[OPERANDS];
    struct ct_matrix rows[OPERANDS];
    struct gpu_map_rows a = {{{0}}};
    int outs = l->outs / 2;
    int64_t lanes = ct_cuda_lanes(l->in[0].dtype), threads;
    bool vector;

    for (int i = 0; i < outs + l->ins; i++) {
        all[i] = i < outs ? &l->out[i] : &l->in[i - outs];
        ct_tensor_as_matrix(all[i], &rows[i]);
    }
    for (int i = 0; i < outs; i++) {
        a.map.out[i] = all[i]->data;
        a.map.out_stride[i] = rows[i].stride;
        a.largest[i] = l->out[outs + i].data;
    }
    for (int i = 0; i < l->ins; i++) {
        a.map.in[i] = l->in[i].data;
        a.map.in_stride[i] = rows[outs + i].stride;
    }
    a.map.rows = rows->rows;
    a.map.columns = rows->columns;
    vector = ct_cuda_vectors(all, rows, outs + l->ins, lanes);
    threads = 32 * ct_cuda_blocks(rows->columns, 32 * (vector ? lanes : 1));
    return gpu_launch(l, vector, (struct ct_cuda_size){(unsigned)rows->rows, 1, 1},
                      (struct ct_cuda_size){threads < THREADS ? (unsigned)threads : THREADS, 1, 1},
                      0, &a);
}

static bool accepts_one_dtype(const struct ct_prepare *p)
{
    for (int i = 0; i < p->ins; i++)
        if (p->in[i].dtype != p->out[0].dtype)
            return false;
    return accepts_elementwise(p);
}

static int prepare_gelu(struct ct_prepare *p)
{
    if (((const struct ct_gelu *)p->op->attrs)->approximate != CT_GELU_TANH)
        return prepare_elementwise(p);
    if (p->ins > 1)
        return gpu_prepare_as(p, p->in[0].dtype, "gelu_tanh_grad_*", "gelu_tanh_grad_*_vector");
    return gpu_prepare_as(p, p->in[0].dtype, "gelu_tanh_*", "gelu_tanh_*_vector");
}

/* ---- bias: an addition of rows at a distance of 0 ---- */

static bool accepts_bias(const struct ct_prepare *p)
{
    struct ct_matrix rows;

    return ct_cuda_computes(p->in[0].dtype) && p->in[1].dtype == p->in[0].dtype &&
           p->out[0].dtype == p->in[0].dtype && ct_tensor_as_matrix(&p->in[0], &rows) &&
           ct_tensor_as_matrix(&p->out[0], &rows);
}

static int prepare_bias(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->in[0].dtype, "add_*", "add_*_vector");
}

static int run_bias(const struct ct_launch *l)
{
    const struct ct_tensor *all[3] = {&l->out[0], &l->in[0], &l->in[1]};
    int64_t lanes = ct_cuda_lanes(l->in[0].dtype);
    struct ct_matrix rows[3];
    struct gpu_map a = {.out = {l->out[0].data}, .in = {l->in[0].data, l->in[1].data}};

    ct_tensor_as_matrix(all[0], &rows[0]);
    ct_tensor_as_matrix(all[1], &rows[1]);
    rows[2] = (struct ct_matrix){.rows = rows[0].rows, .columns = rows[0].columns};
    a.out_stride[0] = rows[0].stride;
    a.in_stride[0] = rows[1].stride;
    return launch_map(l, l->state, rows, ct_cuda_vectors(all, rows, 3, lanes), lanes, &a);
}

/* ---- casts ---- */

int gpu_find_conversion(const struct ct_prepare *p, const char *name, enum ct_dtype from,
                        enum ct_dtype to, struct gpu_widths *found)
{
    char plain[64], vector[80];

    snprintf(plain, sizeof(plain), "%s_%s_to_*", name, ct_dtype_name(from));
    snprintf(vector, sizeof(vector), "%s_vector", plain);
    return gpu_find_as(p, to, found->f, plain, vector);
}

int gpu_find_cast(const struct ct_prepare *p, enum ct_dtype from, enum ct_dtype to,
                  struct gpu_widths *found)
{
    return gpu_find_conversion(p, "cast", from, to, found);
}

int gpu_cast(const struct ct_launch *l, const struct gpu_widths *by, const struct ct_tensor *from,
             const struct ct_tensor *to)
{
    return map(l, by, &to, 1, &from, 1, 4);
}

int gpu_prepare_cast(struct ct_prepare *p, enum ct_dtype from, enum ct_dtype to)
{
    p->state = ct_arena_new(p->arena, struct gpu_widths);
    return gpu_find_cast(p, from, to, p->state);
}

static int prepare_cast(struct ct_prepare *p)
{
    return gpu_prepare_cast(p, p->in[0].dtype, p->out[0].dtype);
}

static int run_cast(const struct ct_launch *l)
{
    return gpu_cast(l, l->state, &l->in[0], &l->out[0]);
}

/* ---- numbers ---- */

/* Sums of squares, from several stages of a pipeline. */
static bool accepts_numbers(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_F64 && ct_tensor_count(&p->in[0]) == 1;
}

static int prepare_add_numbers(struct ct_prepare *p)
{
    return gpu_prepare(p, "add_numbers");
}

static int run_add_numbers(const struct ct_launch *l)
{
    struct gpu_add_numbers a = {l->out[0].data, l->in[0].data, l->in[1].data};

    return gpu_launch(l, 0, (struct ct_cuda_size){1, 1, 1}, (struct ct_cuda_size){1, 1, 1}, 0, &a);
}

static bool accepts_reciprocal(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_F32 || p->in[0].dtype == CT_F64;
}

static int prepare_reciprocal(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->in[0].dtype, "reciprocal_*");
}

static int run_reciprocal(const struct ct_launch *l)
{
    struct gpu_scalar a = {l->out[0].data, l->in[0].data, ct_tensor_count(&l->in[0]),
                           ((const struct ct_reciprocal *)l->op->attrs)->numerator};

    return gpu_launch(l, 0, (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.count, THREADS), 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

/* ---- the sum of the ranks' values, which come in the order of a ring ---- */

static bool accepts_sum(const struct ct_prepare *p)
{
    return p->ins <= GPU_TERMS && ct_cuda_computes(p->out[0].dtype);
}

static int prepare_sum(struct ct_prepare *p)
{
    return gpu_prepare_as(p, p->out[0].dtype, "sum_*", "sum_*_vector");
}

static int run_sum(const struct ct_launch *l)
{
    ct_axes axes = ct_op_axes(l->op, "axes");
    int64_t place = axes ? ct_mesh_coordinate(l->mesh, l->rank, __builtin_ctz(axes)) : 0;
    int64_t lanes = ct_cuda_lanes(l->out[0].dtype);
    struct gpu_sum a = {l->out[0].data, .count = ct_tensor_count(&l->out[0]), .terms = l->ins};
    bool vector = a.count % lanes == 0 && (uintptr_t)a.out % 16 == 0;

    for (int i = 0; i < l->ins; i++) {
        a.in[(place + i) % l->ins] = l->in[i].data;
        vector = vector && (uintptr_t)l->in[i].data % 16 == 0;
    }
    return gpu_launch(l, vector,
                      (struct ct_cuda_size){
                          (unsigned)ct_cuda_blocks(a.count, THREADS * (vector ? lanes : 1)), 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

const struct ct_kernel gpu_elementwise_kernels[] = {
    CT_KERNEL("add", "vector", CT_KERNEL_STRIDED, accepts_elementwise, prepare_elementwise,
              run_elementwise),
    CT_KERNEL("add", "numbers", 0, accepts_numbers, prepare_add_numbers, run_add_numbers),
    CT_KERNEL("mul", "vector", CT_KERNEL_STRIDED, accepts_one_dtype, prepare_elementwise,
              run_elementwise),
    CT_KERNEL("bias", "vector", CT_KERNEL_STRIDED, accepts_bias, prepare_bias, run_bias),
    CT_KERNEL("silu", "vector", CT_KERNEL_STRIDED, accepts_one_dtype, prepare_elementwise,
              run_elementwise),
    CT_KERNEL("silu_grad", "vector", CT_KERNEL_STRIDED, accepts_one_dtype, prepare_elementwise,
              run_elementwise),
    CT_KERNEL("gelu", "vector", CT_KERNEL_STRIDED, accepts_one_dtype, prepare_gelu,
              run_elementwise),
    CT_KERNEL("gelu_grad", "vector", CT_KERNEL_STRIDED, accepts_one_dtype, prepare_gelu,
              run_elementwise),
    CT_KERNEL("swiglu", "vector", CT_KERNEL_STRIDED, accepts_elementwise, prepare_elementwise,
              run_elementwise),
    CT_KERNEL("swiglu_grad", "vector", CT_KERNEL_STRIDED, accepts_elementwise, prepare_elementwise,
              run_elementwise),
    CT_KERNEL("swiglu.largest", "rows", CT_KERNEL_STRIDED, accepts_largest, prepare_swiglu_largest,
              run_largest),
    CT_KERNEL("swiglu_grad.largest", "rows", CT_KERNEL_STRIDED, accepts_largest,
              prepare_swiglu_grad_largest, run_largest),
    CT_KERNEL("cast", "vector", CT_KERNEL_STRIDED, accepts_elementwise, prepare_cast, run_cast),
    CT_KERNEL("reciprocal", "scalar", 0, accepts_reciprocal, prepare_reciprocal, run_reciprocal),
    CT_KERNEL("tp_async.ring_sum", "vector", 0, accepts_sum, prepare_sum, run_sum),
    {0}};
