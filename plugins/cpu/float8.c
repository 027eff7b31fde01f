/*
 * Float8 products, emulated exactly: operands are divided by their scales in float32, and the
 * products summed in float32 by oneDNN.
 */
#include <ctitan/error.h>
#include <ctitan/op_author.h>

#include "gemm.h"
#include "loops.h"

/* An operand as a matrix, with a grid of scales, and where it lies in float32. */
struct operand {
    struct ct_matrix rows;
    int64_t row_block, column_block, across;
    size_t at;
};

struct product {
    struct operand operand[2]; /* inputs 0 and 1 */
    bool reversed;             /* input 1 is the left factor */
    struct cpu_gemm *gemm[2];  /* [accumulate] */
};

static bool accepts_operand(const struct ct_prepare *p, int i)
{
    struct ct_matrix rows;

    return p->ins > i + 2 && p->present[i + 2] &&
           (p->in[i].dtype == CT_E4M3 || p->in[i].dtype == CT_E5M2) &&
           ct_tensor_as_matrix(&p->in[i], &rows) && ct_tensor_is_dense(&p->in[i + 2]);
}

static bool accepts_float8(const struct ct_prepare *p)
{
    struct ct_matrix rows;

    return !ct_op_bool(p->op, "transposed") && accepts_operand(p, 0) && accepts_operand(p, 1) &&
           cpu_is_compute_dtype(p->out[0].dtype) && ct_tensor_as_matrix(&p->out[0], &rows);
}

static void prepare_operand(struct ct_prepare *p, int i, struct operand *o)
{
    const struct ct_tensor *scale = &p->in[i + 2];
    int64_t down = ct_rows(scale);

    ct_tensor_as_matrix(&p->in[i], &o->rows);
    o->across = ct_columns(scale);
    o->row_block = down ? o->rows.rows / down : 0;
    o->column_block = o->across ? o->rows.columns / o->across : 0;
    o->at = cpu_carve(&p->workspace, (size_t)(o->rows.rows * o->rows.columns) * sizeof(float));
}

/* c = a b; a is turned if it is stored [k, m], b if it is stored [n, k]. */
static int prepare_float8(struct ct_prepare *p, bool reversed, bool turn_a, bool turn_b)
{
    struct product *state = ct_arena_new(p->arena, struct product);
    const struct ct_matrix *a = &state->operand[reversed].rows,
                           *b = &state->operand[!reversed].rows;
    struct ct_matrix c;
    struct cpu_gemm_spec spec;
    size_t inner = 0;
    int rc = 0;

    *state = (struct product){.reversed = reversed};
    for (int i = 0; i < 2; i++)
        prepare_operand(p, i, &state->operand[i]);
    ct_tensor_as_matrix(&p->out[0], &c);
    spec = (struct cpu_gemm_spec){.m = c.rows,
                                  .n = c.columns,
                                  .k = turn_a ? a->rows : a->columns,
                                  .a_type = CT_F32,
                                  .b_type = CT_F32,
                                  .c_type = p->out[0].dtype,
                                  .a_row = turn_a ? 1 : a->columns,
                                  .a_col = turn_a ? a->columns : 1,
                                  .b_row = turn_b ? 1 : b->columns,
                                  .b_col = turn_b ? b->columns : 1,
                                  .c_row = c.stride};
    for (int accumulate = 0; rc >= 0 && accumulate < (p->accumulate ? 2 : 1); accumulate++) {
        spec.accumulate = accumulate;
        rc = cpu_gemm_prepare(&spec, &state->gemm[accumulate]);
        if (rc >= 0 && cpu_gemm_workspace(state->gemm[accumulate]) > inner)
            inner = cpu_gemm_workspace(state->gemm[accumulate]);
    }
    p->workspace += inner;
    p->state = state;
    return rc;
}

struct dequantising {
    const struct operand *operand;
    const struct ct_tensor *q;
    const float *scale;
    float *to;
};

static void dequantise_rows(void *context, int thread, int threads)
{
    const struct dequantising *d = context;
    const struct operand *o = d->operand;
    struct cpu_range mine = cpu_share(o->rows.rows, 1, thread, threads);
    int64_t columns = o->rows.columns, step = o->column_block > 1 ? o->column_block : columns;

    for (int64_t r = mine.begin; r < mine.end; r++) {
        const float *scale = d->scale + r / o->row_block * o->across;
        const uint8_t *q = (const uint8_t *)d->q->data + r * o->rows.stride;

        for (int64_t i = 0; i < columns; i += step, scale++)
            cpu_loops()->dequantise(d->q->dtype, d->to + r * columns + i, q + i, scale,
                                    o->column_block == 1, step);
    }
}

static int run_float8(const struct ct_launch *l)
{
    struct product *state = l->state;
    float *operand[2];
    char *inner = l->workspace;

    for (int i = 0; i < 2; i++) {
        const struct operand *o = &state->operand[i];
        struct dequantising d = {o, &l->in[i], l->in[i + 2].data, NULL};
        size_t bytes = (size_t)(o->rows.rows * o->rows.columns) * sizeof(float);

        operand[i] = d.to = (float *)((char *)l->workspace + o->at);
        inner = (char *)l->workspace + o->at + ((bytes + 63) & ~(size_t)63);
        cpu_parallel(dequantise_rows, &d);
    }
    return cpu_gemm_run(state->gemm[l->accumulate & 1], operand[state->reversed],
                        operand[!state->reversed], l->out[0].data, inner);
}

/* y = x w^T */
static int prepare_linear(struct ct_prepare *p)
{
    return prepare_float8(p, false, false, true);
}

/* dx = dy w */
static int prepare_dx(struct ct_prepare *p)
{
    return prepare_float8(p, false, false, false);
}

/* dw = dy^T x */
static int prepare_dw(struct ct_prepare *p)
{
    return prepare_float8(p, true, true, false);
}

#define FLAGS (CT_KERNEL_ACCUMULATES | CT_KERNEL_STRIDED)

const struct ct_kernel cpu_float8_kernels[] = {
    CT_KERNEL("linear_float8", "gemm", FLAGS, accepts_float8, prepare_linear, run_float8),
    CT_KERNEL("linear_float8_dx", "gemm", FLAGS, accepts_float8, prepare_dx, run_float8),
    CT_KERNEL("linear_float8_dw", "gemm", FLAGS, accepts_float8, prepare_dw, run_float8),
    CT_KERNEL("linear_nvfp4", "gemm", FLAGS, accepts_float8, prepare_linear, run_float8),
    CT_KERNEL("linear_nvfp4_dx", "gemm", FLAGS, accepts_float8, prepare_dx, run_float8),
    CT_KERNEL("linear_nvfp4_dw", "gemm", FLAGS, accepts_float8, prepare_dw, run_float8),
    {0}};
