/*
 * DoRA (Liu et al. 2024): y = m (W x + scale B A x) / |W + scale B A|, with a magnitude m for each
 * output. |..| is the norm of a row. As in the paper (4.3) and in peft, it counts as constant in
 * the backward: gradients flow to A, B and m, and none through the norm.
 *
 * Each row has its own squared norm. Where columns are split over ranks it is unreduced, and the
 * square root is taken of the reduced one. The kernel for CPUs is here; what is done with the
 * magnitudes is formulas.
 */
#include <math.h>

#include <ctitan/op_author.h>
#include <ctitan/pointwise.h>

#include "floats.h"
#include "lora.h"

#define BLOCK 8 /* rows whose sums are made together: a part of A is read once for them */

static const struct ct_option attrs[] = {
    CT_OPT_FLOAT(struct lora_scaled, scale, "scale", "1", -HUGE_VAL, HUGE_VAL, "Factor of B A"),
    {0}};

/* ---- the norms ---- */

enum { W, A, B };

static int squared_norms_reference(const struct ct_launch *l)
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

static double squared_norms_flops(const struct ct_op *op, const struct ct_tensor *in,
                                  const struct ct_tensor *out)
{
    (void)op, (void)out;
    return 2 * (double)ct_tensor_count(&in[W]) * (double)in[A].shape[0];
}

const struct ct_op_type lora_op_squared_norms = {
    .size = sizeof(struct ct_op_type),
    .name = "lora.squared_norms",
    .summary = "squared norm of each row of w + scale b a",
    .signature = "w[nk] T, a[Rk] T, b[nR] T -> squared_norms[n] W",
    .flags = CT_OP_STOPS,
    .samples = "@flops=384: real[6,8] real[4,8] real[6,4]; scale=0.5 @flops=384: real[6,8] "
               "real[4,8] real[6,4]",
    .attrs = attrs,
    .attrs_size = sizeof(struct lora_scaled),
    .flops = squared_norms_flops,
    .reference = squared_norms_reference,
};

static void squared_norms_rows(void *context, int64_t begin, int64_t end)
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

static int squared_norms_run(const struct ct_launch *l)
{
    ct_parallel(l, l->in[W].shape[0], squared_norms_rows, (void *)(uintptr_t)l);
    return 0;
}

static bool squared_norms_accepts(const struct ct_prepare *p)
{
    const struct ct_tensor *to = &p->out[0];

    return lora_floats_taken(&p->in[W]) && lora_floats_taken(&p->in[A]) &&
           lora_floats_taken(&p->in[B]) && to->dtype == CT_F32 && to->stride[0] == 1;
}

const struct ct_kernel lora_dora_kernels[] = {CT_KERNEL("lora.squared_norms", "rows",
                                                        CT_KERNEL_STRIDED, squared_norms_accepts,
                                                        NULL, squared_norms_run),
                                              {0}};

/* ---- the magnitudes: a row of zeros stays one ---- */

enum { X, M, SQUARED_NORMS };

static int magnify_vjp(struct ct_vjp *v)
{
    struct ct_value **in = v->op->in;
    int rc = ct_emit_gradients(v, &lora_op_magnify,
                               (struct ct_value *[]){v->dout[0], in[M], in[SQUARED_NORMS]}, 3, NULL,
                               (int[]){X}, 1);

    return rc < 0 ? rc
                  : ct_emit_gradients(v, &lora_op_magnify_dm,
                                      (struct ct_value *[]){v->dout[0], in[X], in[SQUARED_NORMS]},
                                      3, NULL, (int[]){M}, 1);
}

const struct ct_op_type lora_op_magnify = {
    .size = sizeof(struct ct_op_type),
    .name = "lora.magnify",
    .summary = "columns of x with magnitudes m, where their weights have these squared norms",
    .signature = "x[.n] T, m[n] W, squared_norms[n] W -> y[.n] T",
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .samples = "real[2,4,6] statistic[6] given[6]",
    .vjp = magnify_vjp,
    .reference = ct_pointwise_reference,
    .pointwise = "y = x * (squared_norms > 0 ? m / sqrt(squared_norms) : 0)",
};

const struct ct_op_type lora_op_magnify_dm = {
    .size = sizeof(struct ct_op_type),
    .name = "lora.magnify_dm",
    .summary = "gradient of lora.magnify towards the magnitudes",
    .signature = "dy[.n] T, x[.n] T, squared_norms[n] W -> dm[n] W",
    .samples = "real[2,4,6] real[2,4,6] given[6]",
    .reference = ct_pointwise_reference,
    .pointwise = "dm = column_sum(dy * x * (squared_norms > 0 ? 1 / sqrt(squared_norms) : 0))",
};
