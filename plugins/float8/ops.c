/*
 * Op types: largest magnitudes, scales, quantising, and products of quantised operands
 * (Micikevicius et al. 2022; blocks: OCP Microscaling Formats 1.0).
 *
 * Seen as a matrix, the cells of a grid are equal blocks. So every grid has all of the tensor's
 * leading dimensions, then one that may be in blocks, then only ones. A grid of one cell may have
 * any number of dimensions.
 *
 * Scales follow torchao: float64 division and one rounding for FLOAT8_EXACT, float32 throughout for
 * powers of two.
 */
#include <math.h>
#include <string.h>

#include <ctitan/lib/ops.h>
#include <ctitan/op_author.h>
#include <ctitan/rule.h>

#include "float8.h"

#define SMALLEST 1e-12 /* lower bound of a largest magnitude */

/* ---- grids ---- */

static int check_cells(const struct ct_value *x, int ndim, const int64_t *grid, const char *name)
{
    bool one = false;

    if (ct_shape_count(ndim, grid) == 1)
        return 0;
    if (ndim != x->ndim)
        return ct_fail(CT_EINVAL, "%s has %d dimensions, and %%%s has %d", name, ndim, x->name,
                       x->ndim);
    for (int d = 0; d < ndim; d++) {
        if (grid[d] < 1 || x->shape[d] % grid[d])
            return ct_fail(CT_EINVAL, "%s: %lld cells along dimension %d of %%%s, which has %lld",
                           name, (long long)grid[d], d, x->name, (long long)x->shape[d]);
        if (d + 1 < ndim && one && grid[d] > 1)
            return ct_fail(CT_EINVAL, "%s: the cells of %%%s are not blocks of rows", name,
                           x->name);
        one |= d + 1 < ndim && grid[d] < x->shape[d];
    }
    return 0;
}

int float8_check_grid(const struct ct_value *x, const struct ct_value *grid)
{
    return check_cells(x, grid->ndim, grid->shape, "its grid");
}

struct float8_cells_of float8_cells_over(const struct ct_tensor *x, const struct ct_tensor *grid)
{
    int64_t rows = ct_rows(x), columns = ct_columns(x), down = ct_rows(grid);
    int64_t across = ct_columns(grid);

    return (struct float8_cells_of){rows, columns, down ? (rows + down - 1) / down : 1,
                                    across ? (columns + across - 1) / across : 1, across};
}

int64_t float8_cell_of(const struct float8_cells_of *c, int64_t i)
{
    return i / c->columns / c->row_block * c->across + i % c->columns / c->column_block;
}

/* ---- factors ---- */

/* Operands are entered in order. A grid's dimension has the factor of its tensor's if the sizes are
   equal. Blocks have one of their own, which is tied to it. */
struct entering {
    const struct ct_op *op;
    struct ct_rule *rule;
};

static int add_factor(const struct entering *e, int operand, int64_t size, enum ct_factor_kind kind)
{
    e->rule->factor[e->rule->count] = (struct ct_factor){.letter = (char)('a' + e->rule->count),
                                                         .repetition = -1,
                                                         .kind = kind,
                                                         .size = size,
                                                         .operand = operand};
    return e->rule->count++;
}

static void enter_dim(const struct entering *e, int operand, int d, int factor)
{
    struct ct_rule_operand *o = &e->rule->operand[operand];

    o->ndim = o->ndim > d ? o->ndim : d + 1;
    o->factor[d] = factor;
    if (operand >= e->op->ins && e->rule->factor[factor].kind == CT_FACTOR_REDUCTION)
        e->rule->factor[factor].kind = CT_FACTOR_PARALLEL;
}

static void enter(const struct entering *e, int operand, const struct ct_value *v)
{
    for (int d = 0; d < v->ndim; d++)
        enter_dim(e, operand, d, add_factor(e, operand, v->shape[d], CT_FACTOR_REDUCTION));
}

static void enter_grid(const struct entering *e, int operand, const struct ct_value *grid,
                       int tensor, const struct ct_value *v)
{
    for (int d = 0; d < grid->ndim; d++) {
        int of = d < v->ndim ? e->rule->operand[tensor].factor[d] : -1;
        int *tie = e->rule->tie, factor = of;

        if (grid->ndim != v->ndim || (grid->shape[d] == 1 && v->shape[d] != 1)) {
            factor = add_factor(e, operand, grid->shape[d], CT_FACTOR_WHOLE);
        } else if (grid->shape[d] != v->shape[d]) {
            if (tie[0] != of)
                tie[1] = add_factor(e, operand, grid->shape[d], CT_FACTOR_REDUCTION);
            tie[0] = of;
            factor = tie[1];
        }
        enter_dim(e, operand, d, factor);
    }
}

static struct entering begin(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    rule->factor = ct_arena_array(arena, struct ct_factor, (op->ins + op->outs) * CT_MAX_DIMS);
    return (struct entering){op, rule};
}

int float8_grid_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    struct entering e = begin(op, arena, rule);

    enter(&e, 0, op->in[0]);
    enter_grid(&e, 1, op->ins > 1 ? op->in[1] : op->out[0], 0, op->in[0]);
    for (int i = 2; op->ins > 1 && i <= op->ins; i++)
        for (int d = 0; d < op->in[0]->ndim - (i < op->ins); d++)
            enter_dim(&e, i, d, rule->operand[0].factor[d]);
    if (op->ins > 1)
        return 0;
    rule->operand[1].maximum = true;
    if (rule->tie[0] >= 0)
        rule->factor[rule->tie[0]].kind = CT_FACTOR_PARALLEL;
    return 0;
}

int float8_maxima_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    struct entering e = begin(op, arena, rule);

    enter(&e, 0, op->in[0]);
    for (int i = 1; i <= op->outs; i++) {
        enter_grid(&e, i, op->out[i - 1], 0, op->in[0]);
        rule->operand[i].maximum = true;
    }
    return 0;
}

int float8_same_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    struct entering e = begin(op, arena, rule);

    enter(&e, 0, op->in[0]);
    if (op->ins > 1)
        enter_grid(&e, 1, op->in[1], 0, op->in[0]);
    for (int i = 0; i < op->outs; i++)
        for (int d = 0; d < op->in[0]->ndim; d++)
            enter_dim(&e, op->ins + i, d, rule->operand[0].factor[d]);
    return 0;
}

/* ---- transposes ---- */

void float8_transpose_shape(int ndim, int64_t *shape)
{
    int64_t last = shape[ndim - 1];

    memmove(shape + 1, shape, sizeof(*shape) * (size_t)(ndim - 1));
    shape[0] = last;
}

/* The shape of a tensor whose transpose has this one. */
static void straighten(int ndim, int64_t *shape)
{
    int64_t first = shape[0];

    memmove(shape, shape + 1, sizeof(*shape) * (size_t)(ndim - 1));
    shape[ndim - 1] = first;
}

double *float8_transposed(struct ct_arena *arena, const double *x, int64_t rows, int64_t columns)
{
    int64_t count = rows * columns;
    double *to = ct_arena_array(arena, double, count);

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            to[j * rows + i] = x[i * columns + j];
    return to;
}

/* The factors of an operand that is stored transposed were entered as if it were not. */
static void transpose_factors(struct ct_rule_operand *operand)
{
    int last = operand->factor[operand->ndim - 1];

    memmove(operand->factor + 1, operand->factor, sizeof(int) * (size_t)(operand->ndim - 1));
    operand->factor[0] = last;
}

int float8_layout_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    struct entering e = begin(op, arena, rule);
    int ndim = op->in[0]->ndim;

    enter(&e, 0, op->in[0]);
    for (int i = 1; i < op->ins; i++)
        if (op->in[i])
            enter_grid(&e, i, op->in[i], 0, op->in[0]);
    for (int i = op->ins; i < op->ins + op->outs; i++)
        for (int d = 0; d < ndim; d++)
            enter_dim(&e, i, d, rule->operand[0].factor[d]);
    transpose_factors(&rule->operand[op->ins + op->outs - 1]);
    return 0;
}

/* ---- largest magnitudes ---- */

/* The attributes of both types that find magnitudes begin with the grid. */
static int amax_infer(struct ct_op *op)
{
    const struct ct_shape *grid = &((const struct float8_amax *)op->attrs)->grid;

    for (int i = 0; i < op->outs; i++) {
        op->out[i]->ndim = grid->ndim;
        memcpy(op->out[i]->shape, grid->size, sizeof(grid->size));
    }
    return check_cells(op->in[0], grid->ndim, grid->size, "grid");
}

/* amax: by cell of the first output, which has the grid's shape; it is zeroed. */
static void find_maxima(const struct ct_reference *r, double *amax)
{
    const struct ct_launch *l = r->launch;
    struct float8_cells_of cells = float8_cells_over(&l->in[0], &l->out[0]);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        double *most = &amax[float8_cell_of(&cells, i)];

        *most = fmax(*most, fabs(r->in[0][i]));
    }
}

static int amax_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    find_maxima(&r, r.out[0]);
    return ct_reference_end(&r, 0);
}

#define GRID_ATTR(T) CT_OPT_SHAPE(T, grid, "grid", "1", "Cells along each dimension of x")

const struct ct_op_type float8_op_amax = {
    .size = sizeof(struct ct_op_type),
    .name = "float8_amax",
    .summary = "largest magnitude in each cell of a grid over x",
    .signature = "x F -> amax f",
    .samples = "grid=1,1,1: real[2,4,6]; grid=2,4,1: real[2,4,6]; grid=2,2,6: real[2,4,6]",
    .attrs = (const struct ct_option[]){GRID_ATTR(struct float8_amax), {0}},
    .attrs_size = sizeof(struct float8_amax),
    .infer = amax_infer,
    .factors = float8_grid_factors,
    .reference = amax_reference,
};

/* ---- scales ---- */

/* The exponent byte of an E8M0 scale; 255 is NaN. */
static uint32_t mx_exponent(float amax, float largest, bool rceil)
{
    float descale = rceil ? amax * (1 / largest) : amax;
    uint32_t u = ct_float_bits(descale), mantissa = u & 0x7fffff, exponent = u >> 23 & 255;
    int steps = (int)(ct_float_bits(largest) >> 23) - 127;

    if ((ct_float_bits(amax) & 0x7fffffff) >= 0x7f800000)
        return 255;
    if (rceil)
        return exponent + (exponent ? mantissa > 0 : mantissa > 0x400000);
    return exponent > (uint32_t)steps ? exponent - (uint32_t)steps : 0;
}

float float8_scale_of(float amax, float largest, enum float8_rule rule)
{
    float scale = (float)((double)largest / fmax((double)amax, SMALLEST));
    uint32_t exponent;

    if (rule == FLOAT8_EXACT)
        return scale;
    if (rule == FLOAT8_POWER_OF_TWO)
        return exp2f(floorf(log2f(scale)));
    exponent = mx_exponent(amax, largest, rule == FLOAT8_MX_RCEIL);
    if (exponent == 255)
        return NAN;
    return exponent == 254 ? ct_float_of(0x400000) : ct_float_of((254 - exponent) << 23);
}

void float8_put_scales(struct ct_reference *r, const struct float8_scale *how, const double *amax,
                       int output)
{
    for (int64_t i = 0; i < ct_tensor_count(&r->launch->out[output]); i++) {
        float scale = float8_scale_of((float)amax[i], (float)how->largest, how->rule);

        r->out[output][i] = (double)scale;
        if (r->launch->outs > output + 1)
            r->out[output + 1][i] = (double)(1 / scale);
    }
}

static int scale_infer(struct ct_op *op)
{
    for (int i = 0; i < op->outs; i++) {
        op->out[i]->ndim = op->in[0]->ndim;
        memcpy(op->out[i]->shape, op->in[0]->shape, sizeof(op->in[0]->shape));
    }
    return 0;
}

static int scale_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    float8_put_scales(&r, l->op->attrs, r.in[0], 0);
    return ct_reference_end(&r, 0);
}

#define SCALE_ATTRS(T, at)                                                                         \
    CT_OPT_FLOAT(T, at largest, "largest", "448", 1, 1e6, "The dtype's largest number"),           \
        CT_OPT_ENUM(T, at rule, "rule", "exact", "exact|power_of_two|mx_floor|mx_rceil",           \
                    "How scales are rounded")

const struct ct_option float8_scale_attrs[] = {SCALE_ATTRS(struct float8_scale, ), {0}};

#define SCALE                                                                                      \
    .size = sizeof(struct ct_op_type), .attrs = float8_scale_attrs,                                \
    .attrs_size = sizeof(struct float8_scale), .infer = scale_infer,                               \
    .factors = float8_same_factors, .reference = scale_reference

const struct ct_op_type float8_op_scale = {
    SCALE,
    .name = "float8_scale",
    .summary = "scales that make largest magnitudes the largest number of a dtype",
    .signature = "amax f -> scale f",
    .samples = "rule=power_of_two: factor[4,6]; rule=mx_rceil: factor[4,6]",
};

const struct ct_op_type float8_op_scale_both = {
    SCALE,
    .name = "float8_scale_both",
    .summary = "the same, and the inverses of the scales",
    .signature = "amax f -> scale f, inverse f",
    .samples = "rule=power_of_two: factor[4,6]; factor[1,1]",
};

/* Cells are whole: a scale does not follow from scales of parts. */
static int amax_scale_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    int rc = float8_maxima_factors(op, arena, rule);

    for (int i = 0; i < rule->count; i++)
        if (rule->factor[i].kind == CT_FACTOR_REDUCTION)
            rule->factor[i].kind = CT_FACTOR_WHOLE;
    return rc;
}

static int amax_scale_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    double *amax = ct_arena_array(&r.arena, double, ct_tensor_count(&l->out[0]));

    find_maxima(&r, amax);
    float8_put_scales(&r, &((const struct float8_amax_scale *)l->op->attrs)->how, amax, 0);
    return ct_reference_end(&r, 0);
}

const struct ct_op_type float8_op_amax_scale = {
    .size = sizeof(struct ct_op_type),
    .name = "float8_amax_scale",
    .summary = "scales by the largest magnitude in each cell of a grid over x, and their inverses",
    .signature = "x F -> scale f, inverse f",
    .samples = "grid=1,1,1: real[2,4,6]; grid=2,4,1 rule=power_of_two: real[2,4,6]",
    .attrs = (const struct ct_option[]){GRID_ATTR(struct float8_amax_scale),
                                        SCALE_ATTRS(struct float8_amax_scale, how.),
                                        {0}},
    .attrs_size = sizeof(struct float8_amax_scale),
    .infer = amax_infer,
    .factors = amax_scale_factors,
    .reference = amax_scale_reference,
};

/* ---- quantising ---- */

static bool is_float8(enum ct_dtype dtype)
{
    return dtype == CT_E4M3 || dtype == CT_E5M2;
}

int float8_infer_codes(const struct ct_op *op, int output, bool transposed)
{
    enum ct_dtype dtype = ((const struct float8_quantise *)op->attrs)->dtype;
    const struct ct_value *x = op->in[0];
    struct ct_value *q = op->out[output];

    if (!is_float8(dtype))
        return ct_fail(CT_EINVAL, "%s is not an 8-bit floating-point dtype", ct_dtype_name(dtype));
    q->dtype = dtype;
    q->ndim = x->ndim;
    memcpy(q->shape, x->shape, sizeof(x->shape));
    if (transposed)
        float8_transpose_shape(q->ndim, q->shape);
    for (int i = 1; i < op->ins; i++) {
        int rc = op->in[i] ? check_cells(x, op->in[i]->ndim, op->in[i]->shape, "its grid") : 0;

        if (rc < 0)
            return rc;
    }
    return 0;
}

static int quantise_infer(struct ct_op *op)
{
    return float8_infer_codes(op, 0, false);
}

double *float8_quantised(struct ct_reference *r, int scale)
{
    const struct ct_launch *l = r->launch;
    const struct ct_tensor *x = &l->in[0];
    struct float8_cells_of cells = float8_cells_over(x, &l->in[scale]);
    double *q = ct_arena_array(&r->arena, double, ct_tensor_count(x));

    for (int64_t i = 0; i < ct_tensor_count(x); i++)
        q[i] = ct_rounded(CT_F32, r->in[0][i] * r->in[scale][float8_cell_of(&cells, i)]);
    return q;
}

static int quantise_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const double *q = float8_quantised(&r, 1);

    memcpy(r.out[0], q, sizeof(*q) * (size_t)ct_tensor_count(&l->in[0]));
    return ct_reference_end(&r, 0);
}

const struct ct_option float8_quantise_attrs[] = {CT_OPT_DTYPE(struct float8_quantise, dtype,
                                                               "dtype", "float8_e4m3",
                                                               "float8_e4m3 or float8_e5m2"),
                                                  {0}};

const struct ct_op_type float8_op_quantise = {
    .size = sizeof(struct ct_op_type),
    .name = "float8_quantise",
    .summary = "x times the scales of a grid over it, in an 8-bit dtype",
    .signature = "x F, scale f -> q F",
    .samples = "real[2,4,6] factor[1,1,6];"
               "dtype=float8_e5m2: real[2,4,6] factor[2,4,2]",
    .attrs = float8_quantise_attrs,
    .attrs_size = sizeof(struct float8_quantise),
    .infer = quantise_infer,
    .factors = float8_grid_factors,
    .reference = quantise_reference,
};

/* ---- products ---- */

/* The sums of a product: along the last dimensions of x and w, of dy and the first of w, or along
   all rows. */
enum product { PRODUCT_Y, PRODUCT_DX, PRODUCT_DW };

/* True: an operand of dx or dw that is summed over along its rows, and stored transposed. */
static bool is_transposed(const struct ct_op *op, enum product product, int operand)
{
    return ((const struct float8_product *)op->attrs)->transposed &&
           (product == PRODUCT_DW || (product == PRODUCT_DX && operand == 1));
}

/* Operand i, with the shape that it has where it is not stored transposed. */
static struct ct_value straight(const struct ct_op *op, enum product product, int i)
{
    struct ct_value v = *op->in[i];

    if (is_transposed(op, product, i))
        straighten(v.ndim, v.shape);
    return v;
}

static int check_operands(const struct ct_op *op, enum product product)
{
    const struct ct_value of[] = {straight(op, product, 0), straight(op, product, 1)};
    const struct ct_value *a = &of[0], *b = &of[1];
    bool fits;

    if (a->ndim < 2 || b->ndim != (product == PRODUCT_DW ? a->ndim : 2))
        return ct_fail(CT_EINVAL, "%%%s and %%%s have %d and %d dimensions", a->name, b->name,
                       a->ndim, b->ndim);
    if (product == PRODUCT_DW)
        fits = !memcmp(a->shape, b->shape, sizeof(*a->shape) * (size_t)(a->ndim - 1));
    else
        fits = a->shape[a->ndim - 1] == b->shape[product == PRODUCT_Y];
    if (!fits)
        return ct_fail(CT_EINVAL, "%%%s and %%%s do not fit", a->name, b->name);
    for (int i = 2; i < op->ins; i++)
        if (op->in[i]) {
            int rc = check_cells(&of[i % 2], op->in[i]->ndim, op->in[i]->shape, "its grid");

            if (rc < 0)
                return rc;
        }
    return 0;
}

static int infer(struct ct_op *op, enum product product)
{
    const struct ct_value of[] = {straight(op, product, 0), straight(op, product, 1)};
    const struct ct_value *a = &of[0], *b = &of[1];
    struct ct_value *c = op->out[0];
    int rc = check_operands(op, product);

    if (rc < 0)
        return rc;
    if (product == PRODUCT_Y && ((const struct float8_product *)op->attrs)->transposed)
        return ct_fail(CT_EINVAL, "both operands are summed over along their rows already");
    c->dtype = ((const struct float8_product *)op->attrs)->dtype;
    c->ndim = product == PRODUCT_DW ? 2 : a->ndim;
    memcpy(c->shape, a->shape, sizeof(a->shape));
    c->shape[c->ndim - 1] =
        product == PRODUCT_DW ? a->shape[a->ndim - 1] : b->shape[product == PRODUCT_DX];
    if (product == PRODUCT_DW)
        c->shape[0] = b->shape[b->ndim - 1];
    return 0;
}

/* Numbers along the sum with one scale; 0: those of a row, or all. */
static int64_t block_of(const struct ct_op *op)
{
    bool nvfp4 = op->type == &float8_op_nvfp4_linear || op->type == &float8_op_nvfp4_dx ||
                 op->type == &float8_op_nvfp4_dw;

    return nvfp4 ? FLOAT8_NVFP4 : ((const struct float8_product *)op->attrs)->block;
}

/* Ranks do not share a block: where it is a whole dimension, that is gathered, as others are whose
   shards are no whole blocks. */
static void keep_block(const struct ct_op *op, struct ct_rule *rule, int operand,
                       const struct ct_value *v)
{
    const struct ct_value *grid = op->in[operand + 2];

    for (int d = 0; grid->ndim == v->ndim && d < v->ndim; d++)
        if (grid->shape[d] == 1 && v->shape[d] == block_of(op))
            rule->factor[rule->operand[operand].factor[d]].kind = CT_FACTOR_WHOLE;
}

static int factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule,
                   enum product product)
{
    const struct ct_value of[] = {straight(op, product, 0), straight(op, product, 1)};
    struct entering e = begin(op, arena, rule);
    int last = op->in[0]->ndim - 1, *of_a = rule->operand[0].factor,
        *of_b = rule->operand[1].factor;

    enter(&e, 0, &of[0]);
    for (int d = 0; d < op->in[1]->ndim; d++) {
        bool shared = product == PRODUCT_DW ? d < last : d == (product == PRODUCT_Y);

        enter_dim(&e, 1, d,
                  !shared                 ? add_factor(&e, 1, of[1].shape[d], CT_FACTOR_REDUCTION)
                  : product == PRODUCT_DW ? of_a[d]
                                          : of_a[last]);
    }
    for (int i = 2; i < op->ins; i++)
        if (op->in[i])
            enter_grid(&e, i, op->in[i], i % 2, &of[i % 2]);
    for (int i = 0; i < 2; i++)
        if (op->ins > i + 2 && op->in[i + 2])
            keep_block(op, rule, i, &of[i]);
    for (int d = 0; product != PRODUCT_DW && d < last; d++)
        enter_dim(&e, op->ins, d, of_a[d]);
    if (product == PRODUCT_DW)
        enter_dim(&e, op->ins, 0, of_b[last]);
    enter_dim(&e, op->ins, product == PRODUCT_DW ? 1 : last,
              product == PRODUCT_DW ? of_a[last] : of_b[product == PRODUCT_DX]);
    for (int k = 0; rule->tie[0] >= 0 && k < 2; k++)
        rule->factor[rule->tie[1]].kind = rule->factor[rule->tie[0]].kind;
    for (int i = 0; i < 2; i++)
        if (is_transposed(op, product, i))
            transpose_factors(&rule->operand[i]);
    return 0;
}

/* Element (i, p) of a and (p, j) of b in c = a b, by their indices in memory. */
static int64_t index_in_a(enum product product, int64_t i, int64_t p, int64_t m, int64_t k)
{
    return product == PRODUCT_DW ? p * m + i : i * k + p;
}

static int64_t index_in_b(enum product product, int64_t p, int64_t j, int64_t n, int64_t k)
{
    return product == PRODUCT_Y ? j * k + p : p * n + j;
}

static void divide(const struct ct_tensor *x, double *values, const struct ct_tensor *grid,
                   const double *scales)
{
    struct float8_cells_of cells;

    if (!scales)
        return;
    cells = float8_cells_over(x, grid);
    for (int64_t at = 0; at < ct_tensor_count(x); at++)
        values[at] = ct_rounded(CT_F32, values[at] / scales[float8_cell_of(&cells, at)]);
}

/* Operand i, its numbers in the order that they have where it is not stored transposed. */
static struct ct_tensor read_straight(struct ct_reference *r, enum product product, int i)
{
    struct ct_tensor x = r->launch->in[i];

    if (!is_transposed(r->launch->op, product, i))
        return x;
    straighten(x.ndim, x.shape);
    r->in[i] = float8_transposed(&r->arena, r->in[i], ct_columns(&x), ct_rows(&x));
    return x;
}

static int reference(const struct ct_launch *l, enum product product)
{
    struct ct_reference r = ct_reference_begin(l);
    struct ct_tensor of[] = {read_straight(&r, product, 0), read_straight(&r, product, 1)};
    int64_t m = ct_rows(&l->out[0]), n = ct_columns(&l->out[0]);
    int64_t k = product == PRODUCT_DW ? ct_rows(&of[0]) : ct_columns(&of[0]);
    int a = product == PRODUCT_DW, b = 1 - a; /* dw = dy^T x, and x comes first */

    for (int i = 0; i < 2; i++)
        divide(&of[i], r.in[i], &l->in[i + 2], l->ins > i + 2 ? r.in[i + 2] : NULL);
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = 0; p < k; p++)
            for (int64_t j = 0; j < n; j++)
                r.out[0][i * n + j] += r.in[a][index_in_a(product, i, p, m, k)] *
                                       r.in[b][index_in_b(product, p, j, n, k)];
    return ct_reference_end(&r, 0);
}

static double flops(const struct ct_tensor *in, const struct ct_tensor *out, enum product product)
{
    return 2.0 * (double)ct_tensor_count(&in[0]) *
           (double)(product == PRODUCT_DW ? out[0].shape[0] : ct_columns(&out[0]));
}

/* dx = dy w and dw = dy^T x, in the dtype of y */
static int vjp(struct ct_vjp *v)
{
    struct ct_value **in = v->op->in, *dy = v->dout[0];
    const struct float8_product *forward = v->op->attrs;
    struct float8_product attrs = {
        .dtype = in[0]->dtype, .stream = forward->stream, .block = forward->block};
    struct ct_value *of_w[] = {in[0], dy};
    bool nvfp4 = v->op->type == &float8_op_nvfp4_linear;

    if (v->op->ins > 2)
        return ct_fail(CT_EINVAL, "the operands of %%%s are quantised already",
                       v->op->out[0]->name);
    ct_emit_gradients(v, nvfp4 ? &float8_op_nvfp4_dx : &float8_op_dx,
                      (struct ct_value *[]){dy, in[1]}, 2, &attrs, (int[]){0}, 1);
    if (forward->plain_dw)
        return ct_emit_gradients(v, &ct_op_linear_dw, of_w, 2, NULL, (int[]){1}, 1);
    return ct_emit_gradients(v, nvfp4 ? &float8_op_nvfp4_dw : &float8_op_dw, of_w, 2, &attrs,
                             (int[]){1}, 1);
}

#define PRODUCT(which, product)                                                                    \
    static int which##_infer(struct ct_op *op)                                                     \
    {                                                                                              \
        return infer(op, product);                                                                 \
    }                                                                                              \
    static int which##_factors(const struct ct_op *op, struct ct_arena *arena,                     \
                               struct ct_rule *rule)                                               \
    {                                                                                              \
        return factors(op, arena, rule, product);                                                  \
    }                                                                                              \
    static int which##_reference(const struct ct_launch *l)                                        \
    {                                                                                              \
        return reference(l, product);                                                              \
    }                                                                                              \
    static double which##_flops(const struct ct_op *op, const struct ct_tensor *in,                \
                                const struct ct_tensor *out)                                       \
    {                                                                                              \
        (void)op;                                                                                  \
        return flops(in, out, product);                                                            \
    }

PRODUCT(linear, PRODUCT_Y)
PRODUCT(dx, PRODUCT_DX)
PRODUCT(dw, PRODUCT_DW)

static const struct ct_option product_attrs[] = {
    CT_OPT_DTYPE(struct float8_product, dtype, "dtype", "bfloat16", "Dtype of the result"),
    CT_OPT_BOOL(struct float8_product, fast_accumulation, "fast_accumulation", "false",
                "Allow accumulation in fewer bits, where that is faster"),
    CT_OPT_BOOL(struct float8_product, plain_dw, "plain_dw", "false",
                "linear_float8: the gradient of w is not a Float8 product"),
    CT_OPT_INT(struct float8_product, stream, "stream", "0", -0x1p63, 0x1p63,
               "Of random numbers that round the gradient of the output"),
    CT_OPT_INT(struct float8_product, block, "block", "0", 0, FLOAT8_BLOCK,
               "MX: numbers along the sum with one scale, a power of two"),
    CT_OPT_BOOL(struct float8_product, transposed, "transposed", "false",
                "Gradients: operands that are summed over along their rows are stored transposed, "
                "the last dimension first: w of dx, x and dy of dw"),
    {0}};

#define TYPE(which)                                                                                \
    .size = sizeof(struct ct_op_type), .attrs = product_attrs,                                     \
    .attrs_size = sizeof(struct float8_product), .infer = which##_infer,                           \
    .factors = which##_factors, .flops = which##_flops, .reference = which##_reference

/* The three types of a product. third: the last word of the third input of each operand. */
#define PRODUCT_TYPES(prefix, kind, numbers, third, of_dx, of_dw)                                  \
    const struct ct_op_type prefix##linear = {                                                     \
        TYPE(linear),                                                                              \
        .name = kind,                                                                              \
        .summary = "y = x w^T of " numbers,                                                        \
        .signature = "x F, w F, ?x_scale f, ?w_scale f, ?x_" third " f, ?w_" third " f -> y F",    \
        .samples = "dtype=float64: real[2,3,4] real[5,4]",                                         \
        .vjp = vjp,                                                                                \
    };                                                                                             \
    const struct ct_op_type prefix##dx = {                                                         \
        TYPE(dx),                                                                                  \
        .name = kind "_dx",                                                                        \
        .summary = "gradient of " kind " for its input: dy w",                                     \
        .signature =                                                                               \
            "dy F, w F, ?dy_scale f, ?w_scale f, ?dy_" third " f, ?w_" third " f -> dx F",         \
        .samples = of_dx,                                                                          \
    };                                                                                             \
    const struct ct_op_type prefix##dw = {                                                         \
        TYPE(dw),                                                                                  \
        .name = kind "_dw",                                                                        \
        .summary = "gradient of " kind " for its weight: dy^T x",                                  \
        .signature =                                                                               \
            "x F, dy F, ?x_scale f, ?dy_scale f, ?x_" third " f, ?dy_" third " f -> dw F",         \
        .samples = of_dw,                                                                          \
        .flags = CT_OP_ANY_DTYPE,                                                                  \
    }

PRODUCT_TYPES(float8_op_, "linear_float8", "quantised x and w", "inverse",
              "dtype=float64: real[2,3,6] real[6,4] factor[2,3,2] factor[2,4];"
              "dtype=float64: real[2,3,6] real[6,4] factor[2,3,1] factor[1,1];"
              "dtype=float64 transposed=true: real[2,3,6] real[4,6] factor[2,3,1] factor[1,4]",
              "dtype=float64: real[2,4,6] real[2,4,3] factor[1,1,6] factor[1,1,3];"
              "dtype=float64 transposed=true: real[6,2,4] real[3,2,4] factor[1,1,6] "
              "factor[1,1,3]");

/* The same of numbers of e2m1. Their result does not depend on the largest magnitudes of tensors:
   a kernel finds the stored scales of blocks by them. */
PRODUCT_TYPES(float8_op_nvfp4_, "linear_nvfp4", "x and w in NVFP4", "amax",
              "dtype=float64: real[2,3,6] real[6,4] factor[2,3,2] factor[2,4] factor[1,1,1] "
              "factor[1,1]",
              "dtype=float64: real[2,4,6] real[2,4,3] factor[2,2,6] factor[2,2,3] factor[1,1,1] "
              "factor[1,1,1]");
