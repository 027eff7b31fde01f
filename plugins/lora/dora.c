/*
 * DoRA (Liu et al. 2024): y = m (W x + scale B A x) / |W + scale B A|, with a magnitude m for each
 * output. |..| is the norm of a row. As in the paper (4.3) and in peft, it counts as constant in
 * the backward: gradients flow to A, B and m, and none through the norm.
 *
 * The ops' kernels for CPUs are here, too. Sums of squares are of each row by itself; where columns
 * are split over ranks, they are unreduced, and the square root is taken of the reduced ones.
 */
#include <math.h>
#include <string.h>

#include <ctitan/op_author.h>

#include "floats.h"
#include "lora.h"

#define BLOCK 8 /* rows whose sums are made together: a part of A is read once for them */

static const struct ct_option attrs[] = {
    CT_OPT_FLOAT(struct lora_scaled, scale, "scale", "1", -HUGE_VAL, HUGE_VAL, "Factor of B A"),
    {0}};

/* ---- the norms ---- */

enum { W, A, B };

static int squares_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t columns = l->in[W].shape[1], rank = l->in[A].shape[0];
    double scale = ((const struct lora_scaled *)l->op->attrs)->scale;

    for (int64_t i = 0; i < l->in[W].shape[0]; i++)
        for (int64_t j = 0; j < columns; j++) {
            double sum = r.in[W][i * columns + j];

            for (int64_t k = 0; k < rank; k++)
                sum += scale * r.in[B][i * rank + k] * r.in[A][k * columns + j];
            r.out[0][i] += sum * sum;
        }
    return ct_reference_end(&r, 0);
}

static double squares_flops(const struct ct_op *op, const struct ct_tensor *in,
                            const struct ct_tensor *out)
{
    (void)op, (void)out;
    return 2 * (double)ct_tensor_count(&in[W]) * (double)in[A].shape[0];
}

const struct ct_op_type lora_op_squares = {
    .size = sizeof(struct ct_op_type),
    .name = "lora.squares",
    .summary = "the sum of squares of each row of w + scale b a",
    .signature = "w[nk] T, a[Rk] T, b[nR] T -> squares[n] W",
    .flags = CT_OP_STOPS,
    .samples = "@flops=384: real[6,8] real[4,8] real[6,4]; scale=0.5 @flops=384: real[6,8] "
               "real[4,8] real[6,4]",
    .attrs = attrs,
    .attrs_size = sizeof(struct lora_scaled),
    .flops = squares_flops,
    .reference = squares_reference,
};

static void squares_rows(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    int64_t columns = l->in[W].shape[1];
    float sum[BLOCK][LORA_CHUNK], *to = l->out[0].data;

    for (int64_t row = begin; row < end; row += BLOCK) {
        int64_t rows = end - row < BLOCK ? end - row : BLOCK;
        double total[BLOCK] = {0};

        for (int64_t at = 0; at < columns; at += LORA_CHUNK) {
            int64_t n = columns - at < LORA_CHUNK ? columns - at : LORA_CHUNK;

            lora_sum_rows(l, 0, row, rows, at, n, sum);
            for (int64_t i = 0; i < rows; i++)
                total[i] += lora_floats_dot(sum[i], sum[i], n);
        }
        for (int64_t i = 0; i < rows; i++)
            to[(row + i) * l->out[0].stride[0]] = (float)total[i];
    }
}

static int squares_run(const struct ct_launch *l)
{
    ct_parallel(l, l->in[W].shape[0], squares_rows, (void *)(uintptr_t)l);
    return 0;
}

/* ---- the magnitudes ---- */

enum { X, M, SQUARES };

/* A row of zeros stays one. */
static double factor_of(double magnitude, double squares)
{
    return squares > 0 ? magnitude / sqrt(squares) : 0;
}

static int magnify_vjp(struct ct_vjp *v)
{
    struct ct_value **in = v->op->in;
    int rc = ct_emit_gradients(v, &lora_op_magnify,
                               (struct ct_value *[]){v->dout[0], in[M], in[SQUARES]}, 3, NULL,
                               (int[]){X}, 1);

    return rc < 0 ? rc
                  : ct_emit_gradients(v, &lora_op_magnify_dm,
                                      (struct ct_value *[]){v->dout[0], in[X], in[SQUARES]}, 3,
                                      NULL, (int[]){M}, 1);
}

static int magnify_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[X]);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[X]); i++)
        r.out[0][i] = r.in[X][i] * factor_of(r.in[M][i % n], r.in[SQUARES][i % n]);
    return ct_reference_end(&r, 0);
}

const struct ct_op_type lora_op_magnify = {
    .size = sizeof(struct ct_op_type),
    .name = "lora.magnify",
    .summary = "columns of x with magnitudes m, where their weights have these sums of squares",
    .signature = "x[.n] T, m[n] W, squares[n] W -> y[.n] T",
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .samples = "real[2,4,6] statistic[6] given[6]",
    .vjp = magnify_vjp,
    .reference = magnify_reference,
    .pointwise = "y = squares > 0 ? x * (m / sqrt(squares)) : 0",
};

static int magnify_dm_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        r.out[0][i % n] += r.in[0][i] * r.in[1][i] * factor_of(1, r.in[2][i % n]);
    return ct_reference_end(&r, 0);
}

const struct ct_op_type lora_op_magnify_dm = {
    .size = sizeof(struct ct_op_type),
    .name = "lora.magnify_dm",
    .summary = "gradient of lora.magnify towards the magnitudes",
    .signature = "dy[.n] T, x[.n] T, squares[n] W -> dm[n] W",
    .samples = "real[2,4,6] real[2,4,6] given[6]",
    .reference = magnify_dm_reference,
    .pointwise = "dm = column_sum(squares > 0 ? dy * x / sqrt(squares) : 0)",
};

static void magnify_rows(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    struct ct_matrix x = lora_floats_matrix(&l->in[X]), y = lora_floats_matrix(&l->out[0]);
    float room[LORA_CHUNK], to[LORA_CHUNK];
    const float *factor = l->workspace;

    for (int64_t row = begin; row < end; row++)
        for (int64_t at = 0; at < x.columns; at += LORA_CHUNK) {
            int64_t n = x.columns - at < LORA_CHUNK ? x.columns - at : LORA_CHUNK;
            const float *from = lora_floats_get(&l->in[X], row * x.stride + at, n, room);

            for (int64_t i = 0; i < n; i++)
                to[i] = from[i] * factor[at + i];
            lora_floats_put(&l->out[0], row * y.stride + at, n, l->accumulate & 1, to);
        }
}

static int magnify_run(const struct ct_launch *l)
{
    const float *m = l->in[M].data, *squares = l->in[SQUARES].data;
    float *factor = l->workspace;

    for (int64_t i = 0; i < l->in[M].shape[0]; i++)
        factor[i] = (float)factor_of(m[i], squares[i]);
    ct_parallel(l, lora_floats_matrix(&l->in[X]).rows, magnify_rows, (void *)(uintptr_t)l);
    return 0;
}

static int magnify_prepare(struct ct_prepare *p)
{
    p->workspace = sizeof(float) * (size_t)p->in[M].shape[0];
    return 0;
}

#define STRIP 64 /* columns whose sums are made together */

static void magnify_dm_strips(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    struct ct_matrix dy = lora_floats_matrix(&l->in[0]), x = lora_floats_matrix(&l->in[1]);
    const float *squares = l->in[2].data;
    float rooms[2][STRIP], *to = l->out[0].data;

    for (int64_t strip = begin; strip < end; strip++) {
        int64_t at = strip * STRIP, n = dy.columns - at < STRIP ? dy.columns - at : STRIP;
        float sum[STRIP] = {0};

        for (int64_t row = 0; row < dy.rows; row++) {
            const float *d = lora_floats_get(&l->in[0], row * dy.stride + at, n, rooms[0]);
            const float *v = lora_floats_get(&l->in[1], row * x.stride + at, n, rooms[1]);

            for (int64_t i = 0; i < n; i++)
                sum[i] += d[i] * v[i];
        }
        for (int64_t i = 0; i < n; i++)
            to[at + i] = sum[i] * (float)factor_of(1, squares[at + i]) +
                         (l->accumulate & 1 ? to[at + i] : 0);
    }
}

static int magnify_dm_run(const struct ct_launch *l)
{
    int64_t columns = ct_columns(&l->in[0]);

    ct_parallel(l, (columns + STRIP - 1) / STRIP, magnify_dm_strips, (void *)(uintptr_t)l);
    return 0;
}

/* ---- which calls they take ---- */

static bool is_row(const struct ct_tensor *t)
{
    return t->dtype == CT_F32 && t->stride[0] == 1;
}

static bool squares_accepts(const struct ct_prepare *p)
{
    return lora_floats_taken(&p->in[W]) && lora_floats_taken(&p->in[A]) &&
           lora_floats_taken(&p->in[B]) && is_row(&p->out[0]);
}

static bool magnify_accepts(const struct ct_prepare *p)
{
    return lora_floats_taken(&p->in[X]) && is_row(&p->in[M]) && is_row(&p->in[SQUARES]) &&
           lora_floats_taken(&p->out[0]);
}

static bool magnify_dm_accepts(const struct ct_prepare *p)
{
    return lora_floats_taken(&p->in[0]) && lora_floats_taken(&p->in[1]) && is_row(&p->in[2]) &&
           is_row(&p->out[0]);
}

#define ANY (CT_KERNEL_STRIDED | CT_KERNEL_ACCUMULATES)

const struct ct_kernel lora_dora_kernels[] = {
    CT_KERNEL("lora.squares", "rows", CT_KERNEL_STRIDED, squares_accepts, NULL, squares_run),
    CT_KERNEL("lora.magnify", "rows", ANY, magnify_accepts, magnify_prepare, magnify_run),
    CT_KERNEL("lora.magnify_dm", "strips", ANY, magnify_dm_accepts, NULL, magnify_dm_run),
    {0}};
