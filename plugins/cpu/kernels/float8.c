/*
 * Float8: largest magnitudes, scales, and quantising. A grid has one number for each block of rows
 * and columns of a matrix.
 *
 * Magnitudes are compared by their bits, as integers: NaN is larger than all numbers, so it is not
 * lost. A maximum is exact, so results do not depend on the number of threads.
 */
#include <omp.h>

#include <ctitan/op_author.h>

#include "../cpu.h"
#include "../loops.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

#define STRIP 512 /* columns with a cell each that a thread takes at once */

struct blocks {
    struct ct_matrix x;
    int64_t row_block, column_block, down, across; /* cells: down * across */
};

static bool as_blocks(const struct ct_tensor *x, const struct ct_tensor *grid, struct blocks *b)
{
    b->down = ct_rows(grid);
    b->across = ct_columns(grid);
    if (!ct_tensor_as_matrix(x, &b->x) || !ct_tensor_is_dense(grid))
        return false;
    b->row_block = b->down ? b->x.rows / b->down : 0;
    b->column_block = b->across ? b->x.columns / b->across : 0;
    return true;
}

/* ---- largest magnitudes ---- */

CPU_INLINE uint32_t bits_at(enum ct_dtype dtype, const void *x, int64_t i)
{
    return (dtype == CT_F32 ? ((const uint32_t *)x)[i] : (uint32_t)((const uint16_t *)x)[i] << 16) &
           0x7fffffff;
}

CPU_INLINE uint32_t largest_of(enum ct_dtype dtype, const void *x, int64_t n)
{
    uint32_t largest = 0;

    for (int64_t i = 0; i < n; i++) {
        uint32_t u = bits_at(dtype, x, i);

        largest = u > largest ? u : largest;
    }
    return largest;
}

static uint32_t largest(enum ct_dtype dtype, const void *x, int64_t n)
{
    return dtype == CT_F32 ? largest_of(CT_F32, x, n) : largest_of(CT_BF16, x, n);
}

CPU_INLINE void raise_each(enum ct_dtype dtype, uint32_t *to, const void *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = bits_at(dtype, x, i);

        to[i] = u > to[i] ? u : to[i];
    }
}

/* Raise the cells of columns begin .. end by a row. */
static void raise_row(const struct blocks *b, enum ct_dtype dtype, uint32_t *cells, const char *row,
                      int64_t begin, int64_t end)
{
    int64_t block = b->column_block, size = (int64_t)ct_dtype_size(dtype);

    if (block == 1 && dtype == CT_F32)
        raise_each(CT_F32, cells + begin, row + begin * size, end - begin);
    else if (block == 1)
        raise_each(CT_BF16, cells + begin, row + begin * size, end - begin);
    else
        for (int64_t i = begin; i < end; i += block) {
            uint32_t u = largest(dtype, row + i * size, block), *cell = &cells[i / block];

            *cell = u > *cell ? u : *cell;
        }
}

/* One cell: threads share the rows. */
static uint32_t largest_of_all(const struct blocks *b, const struct ct_tensor *x)
{
    int64_t pitch = b->x.stride * (int64_t)ct_dtype_size(x->dtype);
    uint32_t most = 0;

#pragma omp parallel for reduction(max : most) if (cpu_worth_threads(b->x.rows * b->x.columns))
    for (int64_t r = 0; r < b->x.rows; r++) {
        uint32_t u = largest(x->dtype, (const char *)x->data + r * pitch, b->x.columns);

        most = u > most ? u : most;
    }
    return most;
}

/* Threads share groups of rows with cells of their own, and strips of their columns. */
static void raise_all(const struct blocks *b, const struct ct_tensor *x, uint32_t *cells)
{
    int64_t pitch = b->x.stride * (int64_t)ct_dtype_size(x->dtype);
    int64_t width = b->down > 1 || b->column_block > 1 ? b->x.columns : STRIP;
    int64_t strips = width ? (b->x.columns + width - 1) / width : 0;

#pragma omp parallel for if (cpu_worth_threads(b->x.rows * b->x.columns))
    for (int64_t n = 0; n < b->down * strips; n++) {
        int64_t group = n / strips, begin = n % strips * width;
        int64_t end = begin + width < b->x.columns ? begin + width : b->x.columns;

        for (int64_t r = group * b->row_block; r < (group + 1) * b->row_block; r++)
            raise_row(b, x->dtype, cells + group * b->across, (const char *)x->data + r * pitch,
                      begin, end);
    }
}

bool CPU_ISA(cpu_float8_amax_accepts)(const struct ct_prepare *p)
{
    struct blocks b;

    return cpu_is_compute_dtype(p->in[0].dtype) && as_blocks(&p->in[0], &p->out[0], &b);
}

int CPU_ISA(cpu_float8_amax_run)(const struct ct_launch *l)
{
    struct blocks b;
    uint32_t *cells = l->out[0].data;

    as_blocks(&l->in[0], &l->out[0], &b);
    if (b.down * b.across == 1) {
        *cells = largest_of_all(&b, &l->in[0]);
        return 0;
    }
    memset(cells, 0, sizeof(*cells) * (size_t)(b.down * b.across));
    raise_all(&b, &l->in[0], cells);
    return 0;
}

/* ---- scales ---- */

bool CPU_ISA(cpu_float8_scale_accepts)(const struct ct_prepare *p)
{
    return ct_tensor_is_dense(&p->in[0]) && ct_tensor_is_dense(&p->out[0]);
}

/* The exponent byte of an E8M0 scale (OCP MX); 255 is NaN. */
static uint32_t mx_exponent(float amax, float most, bool rceil)
{
    uint32_t u = ct_float_bits(rceil ? amax * (1 / most) : amax), exponent = u >> 23 & 255;
    uint32_t mantissa = u & 0x7fffff, steps = (ct_float_bits(most) >> 23) - 127;

    if ((ct_float_bits(amax) & 0x7fffffff) >= 0x7f800000)
        return 255;
    if (rceil)
        return exponent + (exponent ? mantissa > 0 : mantissa > 0x400000);
    return exponent > steps ? exponent - steps : 0;
}

static float mx_scale(float amax, float most, bool rceil)
{
    uint32_t exponent = mx_exponent(amax, most, rceil);

    if (exponent == 255)
        return NAN;
    return exponent == 254 ? ct_float_of(0x400000) : ct_float_of((254 - exponent) << 23);
}

static float exact_scale(float amax, float most)
{
    return (float)((double)most / (amax > 1e-12 ? (double)amax : 1e-12));
}

int CPU_ISA(cpu_float8_scale_run)(const struct ct_launch *l)
{
    enum { EXACT, POWER_OF_TWO, MX_FLOOR, MX_RCEIL } rule = (unsigned)ct_op_enum(l->op, "rule");
    float most = (float)ct_op_float(l->op, "largest");
    const float *amax = l->in[0].data;
    float *scale = l->out[0].data;

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        if (rule == EXACT)
            scale[i] = exact_scale(amax[i], most);
        else if (rule == POWER_OF_TWO)
            scale[i] = exp2f(floorf(log2f(exact_scale(amax[i], most))));
        else
            scale[i] = mx_scale(amax[i], most, rule == MX_RCEIL);
    }
    return 0;
}

/* ---- quantising ---- */

CPU_INLINE float element(enum ct_dtype dtype, const void *x, int64_t i)
{
    return dtype == CT_F32 ? ((const float *)x)[i] : ct_bf16_to_f32(((const uint16_t *)x)[i]);
}

/* A run of n elements with a scale for all (each = 0) or for each (1). */
CPU_INLINE void quantise_run(enum ct_dtype from, enum ct_dtype to, uint8_t *q, const void *x,
                             const float *scale, int each, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float y = element(from, x, i) * scale[each * i];

        q[i] = to == CT_E4M3 ? ct_f32_to_e4m3(y) : ct_f32_to_e5m2(y);
    }
}

typedef void quantise_loop(uint8_t *q, const void *x, const float *scale, int64_t n);

#define LOOPS(from, to)                                                                            \
    static void from##_##to##_one(uint8_t *q, const void *x, const float *scale, int64_t n)        \
    {                                                                                              \
        quantise_run(CT_##from, CT_##to, q, x, scale, 0, n);                                       \
    }                                                                                              \
    static void from##_##to##_each(uint8_t *q, const void *x, const float *scale, int64_t n)       \
    {                                                                                              \
        quantise_run(CT_##from, CT_##to, q, x, scale, 1, n);                                       \
    }
LOOPS(F32, E4M3)
LOOPS(F32, E5M2)
LOOPS(BF16, E4M3)
LOOPS(BF16, E5M2)

/* By dtype of x, dtype of q, and whether each column has a scale. */
static quantise_loop *const loops[2][2][2] = {
    {{F32_E4M3_one, F32_E4M3_each}, {F32_E5M2_one, F32_E5M2_each}},
    {{BF16_E4M3_one, BF16_E4M3_each}, {BF16_E5M2_one, BF16_E5M2_each}},
};

bool CPU_ISA(cpu_float8_quantise_accepts)(const struct ct_prepare *p)
{
    struct blocks b;

    return cpu_is_compute_dtype(p->in[0].dtype) && as_blocks(&p->in[0], &p->in[1], &b) &&
           ct_tensor_is_dense(&p->out[0]);
}

int CPU_ISA(cpu_float8_quantise_run)(const struct ct_launch *l)
{
    const struct ct_tensor *x = &l->in[0];
    int64_t size = (int64_t)ct_dtype_size(x->dtype), step;
    quantise_loop *loop;
    struct blocks b;

    as_blocks(x, &l->in[1], &b);
    step = b.column_block > 1 ? b.column_block : b.x.columns;
    loop = loops[x->dtype == CT_BF16][l->out[0].dtype == CT_E5M2][b.column_block == 1];
#pragma omp parallel for if (cpu_worth_threads(b.x.rows * b.x.columns))
    for (int64_t r = 0; r < b.x.rows; r++) {
        const char *row = (const char *)x->data + r * b.x.stride * size;
        const float *scale = (const float *)l->in[1].data + r / b.row_block * b.across;
        uint8_t *q = (uint8_t *)l->out[0].data + r * b.x.columns;

        for (int64_t i = 0; i < b.x.columns; i += step, scale++)
            loop(q + i, row + i * size, scale, step);
    }
    return 0;
}
