/*
 * Rows that travel in 8 bits ([ep] dispatch = float8), as DeepSeek-V3 (2024, 3.3.3) sends them:
 * each EP_BLOCK numbers of a token have a factor of their own, their largest magnitude over that of
 * float8_e4m3. Zeros have the factor 0, and a smaller magnitude than SMALLEST counts as that.
 */
#include <math.h>
#include <string.h>

#include <ctitan/number.h>
#include <ctitan/op_author.h>

#include "ep.h"

#define LARGEST 448.0f  /* of float8_e4m3 */
#define SMALLEST 1e-12f /* LARGEST over it is finite */

static int64_t blocks_of(int64_t columns)
{
    return (columns + EP_BLOCK - 1) / EP_BLOCK;
}

static double clamped(double amax)
{
    return amax > 0 ? fmax(amax, (double)SMALLEST) : amax;
}

/* Codes of a block; returns its factor. */
static float quantise(const float *x, int64_t count, uint8_t *codes)
{
    float amax = 0;

    for (int64_t i = 0; i < count; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    amax = (float)clamped((double)amax);
    for (int64_t i = 0; i < count; i++)
        codes[i] = ct_f32_to_e4m3(amax > 0 ? x[i] * (LARGEST / amax) : x[i]);
    return amax / LARGEST;
}

/* ---- ep.quantise ---- */

static void copy_shape(struct ct_value *to, const struct ct_value *from, int64_t columns)
{
    to->ndim = from->ndim;
    memcpy(to->shape, from->shape, sizeof(from->shape));
    to->shape[to->ndim - 1] = columns;
}

static int quantise_infer(struct ct_op *op)
{
    const struct ct_value *x = op->in[0];
    int64_t columns = x->shape[x->ndim - 1];

    op->out[0]->dtype = CT_E4M3;
    copy_shape(op->out[0], x, columns);
    copy_shape(op->out[1], x, blocks_of(columns));
    return 0;
}

static void read_block(const struct ct_tensor *x, int64_t at, int64_t count, float *to)
{
    if (x->dtype == CT_F32)
        memcpy(to, (const float *)x->data + at, sizeof(*to) * (size_t)count);
    else if (x->dtype == CT_BF16)
        for (int64_t i = 0; i < count; i++)
            to[i] = ct_bf16_to_f32(((const uint16_t *)x->data)[at + i]);
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = (float)ct_tensor_load(x, at + i);
}

static void quantise_rows(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    int64_t n = ct_columns(&l->in[0]), blocks = blocks_of(n);
    uint8_t *codes = l->out[0].data;
    float *factors = l->out[1].data, x[EP_BLOCK];

    for (int64_t row = begin; row < end; row++)
        for (int64_t b = 0; b < blocks; b++) {
            int64_t at = row * n + b * EP_BLOCK, left = n - b * EP_BLOCK;
            int64_t count = left < EP_BLOCK ? left : EP_BLOCK;

            read_block(&l->in[0], at, count, x);
            factors[row * blocks + b] = quantise(x, count, codes + at);
        }
}

static bool is_dense(const struct ct_tensor *t, enum ct_dtype dtype)
{
    return t->dtype == dtype && ct_tensor_is_dense(t);
}

static bool quantise_accepts(const struct ct_prepare *p)
{
    return ct_tensor_is_dense(&p->in[0]) && is_dense(&p->out[0], CT_E4M3) &&
           is_dense(&p->out[1], CT_F32);
}

static int quantise_run(const struct ct_launch *l)
{
    ct_parallel(l, ct_rows(&l->in[0]), quantise_rows, (void *)(uintptr_t)l);
    return 0;
}

static int quantise_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[0]), blocks = blocks_of(n);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        double *factor = &r.out[1][i / n * blocks + i % n / EP_BLOCK];

        *factor = fmax(*factor, clamped(fabs(r.in[0][i])) / (double)LARGEST);
    }
    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        double factor = r.out[1][i / n * blocks + i % n / EP_BLOCK];

        r.out[0][i] = factor > 0 ? r.in[0][i] / factor : r.in[0][i];
    }
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ep_quantise = {
    .size = sizeof(struct ct_op_type),
    .name = "ep.quantise",
    .summary = "x in 8 bits, and the factors of its blocks",
    .signature = "x F -> q F, factor f",
    .samples = "real[3,4]; real[2,3,130]",
    .infer = quantise_infer,
    .reference = quantise_reference,
};

/* ---- ep.dequantise ---- */

static const struct ct_option dequantise_attrs[] = {
    CT_OPT_DTYPE(struct ep_dequantise, dtype, "dtype", "float32", "Of the result"), {0}};

static int dequantise_infer(struct ct_op *op)
{
    op->out[0]->dtype = ((const struct ep_dequantise *)op->attrs)->dtype;
    copy_shape(op->out[0], op->in[0], op->in[0]->shape[op->in[0]->ndim - 1]);
    return 0;
}

static void write_at(const struct ct_tensor *y, int64_t at, float value)
{
    if (y->dtype == CT_F32)
        ((float *)y->data)[at] = value;
    else if (y->dtype == CT_BF16)
        ((uint16_t *)y->data)[at] = ct_f32_to_bf16(value);
    else
        ct_tensor_store(y, at, (double)value);
}

static void dequantise_rows(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    int64_t n = ct_columns(&l->in[0]), blocks = ct_columns(&l->in[1]);
    const uint8_t *codes = l->in[0].data;
    const float *factors = l->in[1].data;

    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < n; i++)
            write_at(&l->out[0], row * n + i,
                     ct_e4m3_to_f32(codes[row * n + i]) * factors[row * blocks + i / EP_BLOCK]);
}

static bool dequantise_accepts(const struct ct_prepare *p)
{
    return is_dense(&p->in[0], CT_E4M3) && is_dense(&p->in[1], CT_F32) &&
           ct_tensor_is_dense(&p->out[0]);
}

static int dequantise_run(const struct ct_launch *l)
{
    ct_parallel(l, ct_rows(&l->in[0]), dequantise_rows, (void *)(uintptr_t)l);
    return 0;
}

static int dequantise_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[0]), blocks = ct_columns(&l->in[1]);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        r.out[0][i] = r.in[0][i] * r.in[1][i / n * blocks + i % n / EP_BLOCK];
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ep_dequantise = {
    .size = sizeof(struct ct_op_type),
    .name = "ep.dequantise",
    .summary = "numbers of 8 bits times the factors of their blocks",
    .signature = "q F, factor f -> y F",
    .samples = "quantised[3,4] factor[3,1]; quantised[2,3,130] factor[2,3,2]",
    .attrs = dequantise_attrs,
    .attrs_size = sizeof(struct ep_dequantise),
    .infer = dequantise_infer,
    .reference = dequantise_reference,
};

const struct ct_kernel ep_dispatch_kernels[] = {
    CT_KERNEL("ep.quantise", "rows", 0, quantise_accepts, NULL, quantise_run),
    CT_KERNEL("ep.dequantise", "rows", 0, dequantise_accepts, NULL, dequantise_run),
    {0}};
