/*
 * Float8 training: declarations shared by its sources.
 *
 * Scales belong to the cells of a grid over a tensor. A grid has as many dimensions as the tensor;
 * each is 1 (one cell along the dimension), the tensor's own size, or a divisor of it (blocks). For
 * x[b, t, k]: [1, 1, 1] is one scale for the tensor, [b, t, 1] one for each row, [1, 1, k] one for
 * each column, and [b, t, k / 32] one for 32 neighbours in a row.
 */
#ifndef FLOAT8_H
#define FLOAT8_H

#include <ctitan/lib/ops.h>
#include <ctitan/run.h>

enum float8_recipe_name {
    FLOAT8_TENSORWISE,
    FLOAT8_ROWWISE,
    FLOAT8_ROWWISE_WITH_GW_HP,
    FLOAT8_MXFP8,
    FLOAT8_MXFP8_FLOOR,
    FLOAT8_RECIPE_NVFP4,
    FLOAT8_NONE
};

enum float8_experts_recipe {
    FLOAT8_EXPERTS_NONE,
    FLOAT8_EXPERTS_ROWWISE,   /* rows and columns that are summed over */
    FLOAT8_EXPERTS_BLOCKWISE, /* 128 numbers of a row, 128 x 128 of a weight (DeepSeek-V3) */
    FLOAT8_EXPERTS_MXFP8      /* 32 numbers along each sum (OCP MX) */
};
#define FLOAT8_EXPERTS_RECIPES "none|rowwise|blockwise|mxfp8"

struct float8_config {
    enum float8_recipe_name recipe;
    enum float8_experts_recipe experts;
    const char *filter;
    bool all_gather;
};
extern struct float8_config float8_config;
/* The value of an option, as recipes write it. */
const char *float8_word(const char *option, struct ct_arena *arena);

#define FLOAT8_BLOCK 32 /* elements with one scale (OCP MX) */

/* ---- ops.c ---- */

struct float8_amax {
    struct ct_shape grid;
};

/* How a scale follows from the largest magnitude of its cell. */
enum float8_rule {
    FLOAT8_EXACT,        /* largest of the dtype / amax */
    FLOAT8_POWER_OF_TWO, /* the same, rounded down */
    FLOAT8_MX_FLOOR,     /* inverse of an E8M0 scale: OCP MX, exponents only */
    FLOAT8_MX_RCEIL,     /* the same, rounded such that nothing saturates */
};
struct float8_scale {
    double largest; /* finite number of the dtype: 448 for E4M3, 57344 for E5M2 */
    enum float8_rule rule;
};

struct float8_amax_scale {
    struct ct_shape grid; /* first, as in struct float8_amax */
    struct float8_scale how;
};

struct float8_quantise { /* likewise float8_quantise_transposed and float8_quantise_both */
    enum ct_dtype dtype;
};

struct float8_product { /* of the three products */
    enum ct_dtype dtype;
    bool fast_accumulation; /* sums of fewer bits are allowed */
    bool plain_dw;          /* linear_float8: the gradient of w is no Float8 product */
    int64_t stream;         /* of random numbers: from the weight's name, the same on any mesh */
    int64_t block;          /* of MX: numbers along the sum with one scale, a power of two; 0:
                               scales are any numbers */
    bool transposed;        /* gradients: operands that are summed over along their rows are stored
                               transposed */
};

/*
 *     float8_amax(x) -> amax            largest magnitudes; over shards, pending maxima
 *     float8_scale(amax) -> scale
 *     float8_scale_both(amax) -> scale, inverse
 *     float8_amax_scale(x) -> scale, inverse    float8_scale_both of float8_amax
 *     float8_quantise(x, scale) -> q    x * scale, saturated
 *     linear_float8(x, w, x_scale, w_scale) -> y = (x / x_scale) (w / w_scale)^T
 *
 * Between precision and quantising, the products have operands in full precision and no scales.
 * Inverses of scales may follow these: kernels that multiply need not make them.
 *
 * The transpose of x[b, t, k] is [k, b, t]: its matrix, of rows of k, transposed.
 */
extern const struct ct_op_type float8_op_amax, float8_op_scale, float8_op_scale_both,
    float8_op_amax_scale, float8_op_quantise, float8_op_linear, float8_op_dx, float8_op_dw;

/* A scale by which a cell of this largest magnitude is multiplied. */
float float8_scale_of(float amax, float largest, enum float8_rule rule);
/* Attributes of the ops that make scales: struct float8_scale. */
extern const struct ct_option float8_scale_attrs[];
/* Scales by these magnitudes to an output, and their inverses to the one behind it, if there is
   one. */
struct ct_reference;
void float8_put_scales(struct ct_reference *r, const struct float8_scale *how, const double *amax,
                       int output);

/* Cells of a grid over a tensor, both as matrices. */
struct float8_cells_of {
    int64_t rows, columns, row_block, column_block, across;
};
struct float8_cells_of float8_cells_over(const struct ct_tensor *x, const struct ct_tensor *grid);
/* The cell of element i. */
int64_t float8_cell_of(const struct float8_cells_of *cells, int64_t i);
int float8_check_grid(const struct ct_value *x, const struct ct_value *grid);
/* Attributes of the ops that quantise: struct float8_quantise. */
extern const struct ct_option float8_quantise_attrs[];
/* The first input times the scales in another, as float32: a store rounds it to codes. */
double *float8_quantised(struct ct_reference *r, int scale);
/* For `infer`: an output is x quantised to attrs->dtype, which has 8 bits; `transposed`: or the
   transpose of that. */
int float8_infer_codes(const struct ct_op *op, int output, bool transposed);

/* Factors of x and a grid over it, one of which is the output; ordinals of x's rows may follow. */
int float8_grid_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule);
/* Factors of x and of grids over it, all outputs. */
int float8_maxima_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule);
/* Factors of outputs of the shape of the first input, over which the second may be a grid. */
int float8_same_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule);

void float8_transpose_shape(int ndim, int64_t *shape);
/* x[rows, columns] as [columns, rows], in the arena. */
double *float8_transposed(struct ct_arena *arena, const double *x, int64_t rows, int64_t columns);
/* Factors of the first input, over which the others are grids, and of outputs of its shape, of
   which the last one is transposed. */
int float8_layout_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule);

/* ---- layouts.c ---- */

/*
 *     float8_amax_both(x) -> rows, columns           as float8_amax, of each row and column
 *     float8_line_scales(x) -> rows, rows_inverse, columns, columns_inverse
 *                                                    float8_scale_both of these
 *     float8_transpose(q) -> transposed
 *     float8_quantise_transposed(x, scale) -> transposed
 *     float8_quantise_both(x, scale, ?transposed_scale) -> q, transposed
 *
 * Bits are those of float8_quantise, and of float8_transpose behind it. No transposed_scale: both
 * have the same scales.
 */
extern const struct ct_op_type float8_op_amax_both, float8_op_line_scales, float8_op_transpose,
    float8_op_quantise_transposed, float8_op_quantise_both;

/* ---- largest.c ---- */

/*
 *     NAME.largest(..) -> .., largest       what NAME gives, then float32 of the rows of its first
 *                                           outputs: their largest magnitudes, as stored
 */
extern const struct ct_op_type float8_op_writers[];

/* The ops that write tensors find their largest magnitudes, on devices with kernels for it. Results
   keep all bits. After fuse, and before float8_lay_out. */
int float8_find_where_written(struct ct_graph *graph, struct ct_run *run);

/* ---- transposes.c: layouts that the device's products read ---- */

/* Casts write transposed codes for the gradients' products, which read them (`transposed`), and
   scales come with inverses. Results keep all bits. Without kernels for it on the run's device, the
   graph stays as it is. When all else is decided: values that are added have their shardings. */
int float8_lay_out(struct ct_graph *graph, struct ct_run *run);

/* ---- nvfp4.c ---- */

#define FLOAT8_NVFP4 16 /* elements with one scale; rows and columns of a weight's tile */

/* Which neighbouring cells of a weight are one tile of 16 x 16 elements. */
enum float8_share { FLOAT8_SHARE_NONE, FLOAT8_SHARE_ROWS, FLOAT8_SHARE_COLUMNS };
struct float8_nvfp4_scale {
    unsigned share; /* enum float8_share */
};
struct float8_nvfp4_quantise {
    int64_t seed, stream;
};
struct float8_hadamard {
    int64_t size, seed;
};

/*
 *     nvfp4_scale(amax, amax_of_tensor) -> scale
 *     nvfp4_quantise(x, scale, ?ordinals) -> q
 *     float8.hadamard(x) -> y       along tokens, in blocks; of both operands it leaves a^T b
 *
 * An element's random number depends on seed, stream, its row's ordinal and its column alone.
 */
extern const struct ct_op_type float8_op_nvfp4_scale, float8_op_nvfp4_quantise, float8_op_hadamard;
extern const struct ct_kernel float8_nvfp4_kernels[];

/*
 *     linear_nvfp4(x, w, x_scale, w_scale, x_amax, w_amax) -> y
 *
 * As linear_float8; amax: the largest magnitude of the tensor that the scales of its blocks follow
 * from, by which a kernel finds their float8_e4m3. In ops.c.
 */
extern const struct ct_op_type float8_op_nvfp4_linear, float8_op_nvfp4_dx, float8_op_nvfp4_dw;

/* A scale by which a block of this largest magnitude is multiplied. */
float float8_nvfp4_scale(float amax, float amax_of_tensor);

/* ---- experts.c ---- */

struct float8_experts {
    struct ct_experts gate;
    enum float8_experts_recipe recipe;
};

/* As ct_op_experts and its gradients. */
extern const struct ct_op_type float8_op_experts, float8_op_experts_dx, float8_op_experts_dw,
    float8_op_experts_grad;
extern const struct ct_kernel float8_experts_kernels[];

/* Mixtures become those, after all shardings are known. */
int float8_use_experts(struct ct_graph *graph, struct ct_run *run);

/* ---- float8.c ---- */

enum float8_cells {
    FLOAT8_TENSOR,
    FLOAT8_ROW,
    FLOAT8_COLUMN,
    FLOAT8_ROW_BLOCK,
    FLOAT8_COLUMN_BLOCK
};

/* The two operands of a product. */
struct float8_operands {
    enum float8_cells first, second;
};

struct float8_recipe {
    enum float8_rule rule;
    enum ct_dtype gradient;           /* of dy */
    struct float8_operands y, dx, dw; /* x and w, dy and w, x and dy */
    bool plain_dw;                    /* dw is no Float8 product */
    bool nvfp4;                       /* numbers are those of nvfp4.c, and rule is not read */
    int block;                        /* elements with one scale, of blocks */
};

/* NULL: no linear layer is changed. */
const struct float8_recipe *float8_recipe(void);

/* ---- choose.c: which linear layers ---- */

int float8_choose(struct ct_graph *graph, struct ct_run *run);

/* ---- quantise.c: operands become Float8 ---- */

int float8_quantise_operands(struct ct_graph *graph, struct ct_run *run);

/* ---- scales.c ---- */

/* One all-reduce for the largest magnitudes of all weights, and one for those of a region that are
   there at once. */
int float8_join_maxima(struct ct_graph *graph, struct ct_run *run);

#endif
