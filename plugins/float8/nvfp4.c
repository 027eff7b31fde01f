/*
 * NVFP4 (NVIDIA, "Pretraining Large Language Models with NVFP4", 2025; Transformer Engine's
 * NVFP4BlockScaling): numbers of 4 bits, e2m1, in blocks of 16 along the sum. With the largest
 * magnitudes A of a tensor and a of a block, in float32:
 *
 *   g = 2688 / A                    2688 = 6 * 448: the largest e2m1 times the largest e4m3
 *   s = e4m3(a / 6 * g)             the block's stored scale
 *   scale = 1 / (s * (1 / g))       by which its numbers are multiplied
 *   q = e2m1(x * scale)             to nearest even, or stochastically; saturated
 *
 * Quotients by zero are the largest float32. If A is not finite, scales are NaN. A code is stored
 * as the float8_e4m3 of the same value, so products are those of Float8: e4m3 has all numbers of
 * e2m1.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include <ctitan/op_author.h>
#include <ctitan/rng.h>
#include <ctitan/rule.h>

#include "float8.h"

#define LARGEST_E2M1 6.0f
#define LARGEST_E4M3 448.0f

/* ---- numbers ---- */

/* At most the largest float32; NaN stays. */
static float at_most_finite(float x)
{
    return x > FLT_MAX ? FLT_MAX : x;
}

float float8_nvfp4_scale(float amax, float amax_of_tensor)
{
    float g = at_most_finite(LARGEST_E4M3 * LARGEST_E2M1 / amax_of_tensor), s;

    if (!isfinite(amax) || !isfinite(amax_of_tensor))
        return NAN;
    g = g == 0 ? 1 : g;
    s = ct_e4m3_to_f32(ct_f32_to_e4m3(at_most_finite(amax / LARGEST_E2M1 * g)));
    return at_most_finite(1 / (s * (1 / g)));
}

static float nearest(float magnitude)
{
    static const float middle[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
    static const float number[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    int code = 0;

    while (code < 7 && (code % 2 ? magnitude >= middle[code] : magnitude > middle[code]))
        code++;
    return number[code];
}

/* One of the two neighbours; the upper one if u, uniform in (0, 1), is below the distance from the
   lower one, as a share of theirs. */
static float stochastic(float magnitude, float u)
{
    float step = magnitude < 2 ? 0.5f : magnitude < 4 ? 1 : 2;
    float lower = magnitude >= LARGEST_E2M1 ? LARGEST_E2M1 : floorf(magnitude / step) * step;

    return u < (magnitude - lower) / step && lower < LARGEST_E2M1 ? lower + step : lower;
}

/* u < 0: to nearest even. */
static float rounded(float x, float u)
{
    float magnitude = fabsf(x);

    if (isnan(x))
        return x;
    return copysignf(u < 0 ? nearest(magnitude) : stochastic(magnitude, u), x);
}

/* ---- scales ---- */

static int scale_infer(struct ct_op *op)
{
    const struct float8_nvfp4_scale *attrs = op->attrs;
    const struct ct_value *amax = op->in[0];
    int shared = amax->ndim - 2 + (attrs->share == FLOAT8_SHARE_COLUMNS);

    op->out[0]->ndim = amax->ndim;
    memcpy(op->out[0]->shape, amax->shape, sizeof(amax->shape));
    if (attrs->share != FLOAT8_SHARE_NONE && (amax->ndim < 2 || amax->shape[shared] % FLOAT8_NVFP4))
        return ct_fail(CT_EINVAL, "%%%s has %lld cells along dimension %d: no multiple of %d",
                       amax->name, (long long)(shared < 0 ? 0 : amax->shape[shared]), shared,
                       FLOAT8_NVFP4);
    return 0;
}

static int scale_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    const struct float8_nvfp4_scale *attrs = op->attrs;
    int shared = op->in[0]->ndim - 2 + (attrs->share == FLOAT8_SHARE_COLUMNS);

    float8_same_factors(op, arena, rule);
    if (attrs->share != FLOAT8_SHARE_NONE)
        rule->factor[rule->operand[0].factor[shared]].multiple = FLOAT8_NVFP4;
    return 0;
}

/* The largest of the cells that share a scale with cell i: a group of 16 neighbours. */
static float largest_of_group(const struct ct_tensor *amax, int64_t i, enum float8_share share)
{
    int64_t columns = ct_columns(amax), step = share == FLOAT8_SHARE_ROWS ? columns : 1;
    int64_t place = share == FLOAT8_SHARE_ROWS ? i / columns : i % columns;
    int64_t first = i - place % FLOAT8_NVFP4 * step;
    float most = (float)ct_tensor_load(amax, i);

    for (int k = 0; share != FLOAT8_SHARE_NONE && k < FLOAT8_NVFP4; k++) {
        float a = (float)ct_tensor_load(amax, first + k * step);

        most = a > most || isnan(a) ? a : most;
    }
    return most;
}

static int scale_run(const struct ct_launch *l)
{
    const struct float8_nvfp4_scale *attrs = l->op->attrs;
    float whole = (float)ct_tensor_load(&l->in[1], 0);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        float scale = float8_nvfp4_scale(largest_of_group(&l->in[0], i, attrs->share), whole);
        double before = l->accumulate & 1 ? ct_tensor_load(&l->out[0], i) : 0;

        ct_tensor_store(&l->out[0], i, before + (double)scale);
    }
    return 0;
}

const struct ct_op_type float8_op_nvfp4_scale = {
    .size = sizeof(struct ct_op_type),
    .name = "nvfp4_scale",
    .summary = "scales of blocks from their largest magnitudes and that of the tensor",
    .signature = "amax f, amax_of_tensor f -> scale f",
    .samples = "factor[4,6] factor[1,1]; share=rows: factor[32,2] factor[1,1];"
               "share=columns: factor[2,32] factor[1,1]",
    .attrs = (const struct ct_option[]){CT_OPT_ENUM(struct float8_nvfp4_scale, share, "share",
                                                    "none", "none|rows|columns",
                                                    "Which 16 neighbouring cells share a scale"),
                                        {0}},
    .attrs_size = sizeof(struct float8_nvfp4_scale),
    .infer = scale_infer,
    .factors = scale_factors,
    .reference = scale_run,
};

/* ---- quantising ---- */

static int quantise_infer(struct ct_op *op)
{
    const struct ct_value *x = op->in[0], *ordinals = ct_op_input(op, 2);

    op->out[0]->dtype = CT_E4M3;
    op->out[0]->ndim = x->ndim;
    memcpy(op->out[0]->shape, x->shape, sizeof(x->shape));
    if (ordinals &&
        (ordinals->ndim != x->ndim - 1 ||
         memcmp(ordinals->shape, x->shape, sizeof(*x->shape) * (size_t)ordinals->ndim) != 0))
        return ct_fail(CT_EINVAL, "%%%s does not number the rows of %%%s", ordinals->name, x->name);
    return float8_check_grid(x, op->in[1]);
}

/* A row, whose codes are written as float8_e4m3. */
static void quantise_row(const struct ct_launch *l, const struct float8_cells_of *cells,
                         int64_t row)
{
    const struct float8_nvfp4_quantise *attrs = l->op->attrs;
    const struct ct_tensor *x = &l->in[0];
    bool random = l->ins > 2 && l->in[2].data;
    int64_t columns = cells->columns,
            first = random ? ct_launch_offset(l, l->op->in[0], x->ndim - 1) : 0;
    uint64_t ordinal = random ? (uint32_t)(int32_t)ct_tensor_load(&l->in[2], row) : 0, have = 0;
    struct ct_philox numbers = {{0}};

    for (int64_t j = 0; j < columns; j++) {
        int64_t i = row * columns + j;
        float scale = (float)ct_tensor_load(&l->in[1], float8_cell_of(cells, i)), u = -1;
        uint64_t at = ordinal << 32 | (uint64_t)(first + j);
        double before = l->accumulate & 1 ? ct_tensor_load(&l->out[0], i) : 0;

        if (random && (j == 0 || at / 4 != have)) {
            numbers = ct_philox((uint64_t)attrs->seed, (uint64_t)attrs->stream, at / 4);
            have = at / 4;
        }
        if (random)
            u = ct_uniform(numbers.v[at % 4]);
        ct_tensor_store(&l->out[0], i,
                        before + (double)rounded((float)ct_tensor_load(x, i) * scale, u));
    }
}

struct quantising_rows {
    const struct ct_launch *l;
    struct float8_cells_of cells;
};

static void quantise_rows(void *context, int64_t begin, int64_t end)
{
    const struct quantising_rows *q = context;

    for (int64_t r = begin; r < end; r++)
        quantise_row(q->l, &q->cells, r);
}

static int quantise_run(const struct ct_launch *l)
{
    struct quantising_rows q = {l, float8_cells_over(&l->in[0], &l->in[1])};

    ct_parallel(l, q.cells.rows, quantise_rows, &q);
    return 0;
}

static int quantise_reference(const struct ct_launch *l)
{
    struct quantising_rows q = {l, float8_cells_over(&l->in[0], &l->in[1])};

    quantise_rows(&q, 0, q.cells.rows);
    return 0;
}

const struct ct_op_type float8_op_nvfp4_quantise = {
    .size = sizeof(struct ct_op_type),
    .name = "nvfp4_quantise",
    .summary = "x times the scales of a grid over it, as a number of e2m1; with ordinals of rows, "
               "rounded stochastically",
    .signature = "x F, scale f, ?ordinals i -> q F",
    .samples = "real[2,4,6] factor[2,4,2]; real[2,4,6] factor[2,2,6]",
    .attrs =
        (const struct ct_option[]){
            CT_OPT_INT(struct float8_nvfp4_quantise, seed, "seed", "0", -0x1p63, 0x1p63,
                       "Of the run"),
            CT_OPT_INT(struct float8_nvfp4_quantise, stream, "stream", "0", -0x1p63, 0x1p63,
                       "Of random numbers: one for each gradient of a product that is rounded"),
            {0}},
    .attrs_size = sizeof(struct float8_nvfp4_quantise),
    .infer = quantise_infer,
    .factors = float8_grid_factors,
    .reference = quantise_reference,
};

/* ---- the random Hadamard transform ---- */

/* The sign vector: bit i is set if element i is negative. The run's seed gives all 16. */
static uint32_t negative_signs(int64_t seed)
{
    return ct_philox((uint64_t)seed, ct_rng_stream("float8.hadamard"), 0).v[0];
}

/* x H / 4 with signs before: butterflies of 16 numbers, in float32. */
static void transform(float *x, uint32_t negative)
{
    for (int i = 0; i < FLOAT8_NVFP4; i++)
        x[i] = negative >> i & 1 ? -x[i] : x[i];
    for (int step = 1; step < FLOAT8_NVFP4; step *= 2)
        for (int i = 0; i < FLOAT8_NVFP4; i++)
            if (!(i & step)) {
                float a = x[i], b = x[i + step];

                x[i] = a + b;
                x[i + step] = a - b;
            }
    for (int i = 0; i < FLOAT8_NVFP4; i++)
        x[i] *= 0.25f;
}

static void transform_blocks(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    const struct float8_hadamard *attrs = l->op->attrs;
    int64_t columns = ct_columns(&l->in[0]);
    uint32_t negative = negative_signs(attrs->seed);

    for (int64_t block = begin; block < end; block++)
        for (int64_t j = 0; j < columns; j++) {
            int64_t at = block * FLOAT8_NVFP4 * columns + j;
            float x[FLOAT8_NVFP4];

            for (int i = 0; i < FLOAT8_NVFP4; i++)
                x[i] = (float)ct_tensor_load(&l->in[0], at + i * columns);
            transform(x, negative);
            for (int i = 0; i < FLOAT8_NVFP4; i++)
                ct_tensor_store(&l->out[0], at + i * columns,
                                (double)x[i] + (l->accumulate & 1
                                                    ? ct_tensor_load(&l->out[0], at + i * columns)
                                                    : 0));
        }
}

static int transform_run(const struct ct_launch *l)
{
    ct_parallel(l, ct_rows(&l->in[0]) / FLOAT8_NVFP4, transform_blocks, (void *)(uintptr_t)l);
    return 0;
}

static int transform_reference(const struct ct_launch *l)
{
    transform_blocks((void *)(uintptr_t)l, 0, ct_rows(&l->in[0]) / FLOAT8_NVFP4);
    return 0;
}

static int transform_infer(struct ct_op *op)
{
    const struct float8_hadamard *attrs = op->attrs;

    if (attrs->size != FLOAT8_NVFP4 || op->in[0]->shape[op->in[0]->ndim - 2] % FLOAT8_NVFP4)
        return ct_fail(CT_EINVAL, "%%%s: tokens are transformed in blocks of %d", op->in[0]->name,
                       FLOAT8_NVFP4);
    return 0;
}

const struct ct_op_type float8_op_hadamard = {
    .size = sizeof(struct ct_op_type),
    .name = "float8.hadamard",
    .summary = "16 neighbouring tokens, with random signs, times an orthogonal matrix",
    .signature = "x[.tk] T -> y[.tk] T | t%size",
    .samples = "real[2,32,3]",
    .attrs =
        (const struct ct_option[]){
            CT_OPT_INT(struct float8_hadamard, size, "size", "16", 16, 16, "Tokens of a block"),
            CT_OPT_INT(struct float8_hadamard, seed, "seed", "0", -0x1p63, 0x1p63, "Of the signs"),
            {0}},
    .attrs_size = sizeof(struct float8_hadamard),
    .infer = transform_infer,
    .reference = transform_reference,
};

const struct ct_kernel float8_nvfp4_kernels[] = {
    CT_KERNEL("nvfp4_scale", "plain", CT_KERNEL_STRIDED, NULL, NULL, scale_run),
    CT_KERNEL("nvfp4_quantise", "rows", CT_KERNEL_STRIDED, NULL, NULL, quantise_run),
    CT_KERNEL("float8.hadamard", "blocks", CT_KERNEL_STRIDED, NULL, NULL, transform_run),
    {0}};
