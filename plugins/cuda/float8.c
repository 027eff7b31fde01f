/*
 * Float8: largest magnitudes, scales, quantising, and products by cuBLASLt. It needs the rows of
 * both operands contiguous along the sum, in multiples of 16. Casts write the operands so; others
 * are transposed in front of a product.
 */
#include <stdio.h>

#include <ctitan/error.h>
#include <ctitan/op.h>

#include "float8.h"

#define THREADS 256
#define ROW_SCALES 1209 /* cuBLASLt 12.9 */
#define ADA 89          /* the first compute capability with such products */
#define HOPPER 90       /* the only one where cuBLASLt takes a scale for each row */

/* log2 of a block's numbers; 0: it is none that kernels take. */
static int32_t shift_of(int64_t whole, int64_t blocks)
{
    for (int32_t shift = 3; shift <= 5; shift++)
        if (blocks << shift == whole)
            return shift;
    return 0;
}

int gpu_float8_per(const struct ct_tensor *x, const struct ct_tensor *grid, int32_t *shift)
{
    int64_t down = gpu_rows_of(grid), across = gpu_columns_of(grid);

    *shift = 0;
    if (down == 1 && across == 1)
        return GPU_PER_TENSOR;
    if (down == gpu_rows_of(x) && across == 1)
        return GPU_PER_ROW;
    if (down == 1 && across == gpu_columns_of(x))
        return GPU_PER_COLUMN;
    if (down == gpu_rows_of(x) && (*shift = shift_of(gpu_columns_of(x), across)))
        return GPU_PER_ROW_BLOCK;
    if (across == gpu_columns_of(x) && (*shift = shift_of(gpu_rows_of(x), down)))
        return GPU_PER_COLUMN_BLOCK;
    return -1;
}

static int per_of(const struct ct_tensor *x, const struct ct_tensor *grid)
{
    int32_t shift;

    return gpu_float8_per(x, grid, &shift);
}

/* ---- largest magnitudes ---- */

enum { WHOLE = 2 }; /* function of the second step; the first: by whether it takes vectors */

static bool accepts_amax(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && per_of(&p->in[0], &p->out[0]) >= 0;
}

static bool accepts_amax_scale(const struct ct_prepare *p)
{
    return accepts_amax(p) && per_of(&p->in[0], &p->out[0]) <= GPU_PER_COLUMN;
}

static int64_t parts_of(const struct ct_tensor *x)
{
    return ct_cuda_blocks(ct_tensor_count(x), GPU_FLOAT8_PART);
}

/* One block finds the largest of them as fast as two kernels do: magnitudes of rows, as a rule. */
static bool is_few(const struct ct_tensor *x)
{
    return x->dtype == CT_F32 && ct_tensor_count(x) <= GPU_FLOAT8_FEW;
}

/* The whole of the columns is found in two steps if there are several. */
static int64_t strips_of(const struct ct_tensor *x)
{
    return gpu_rows_of(x) > GPU_FLOAT8_STRIP ? ct_cuda_blocks(gpu_rows_of(x), GPU_FLOAT8_STRIP) : 1;
}

static int prepare_amax(struct ct_prepare *p)
{
    const struct ct_tensor *x = &p->in[0];
    int per = per_of(x, &p->out[0]);

    if (per == GPU_PER_TENSOR) {
        p->workspace = is_few(x) ? 0 : (size_t)parts_of(x) * sizeof(float);
        return gpu_prepare_as(p, x->dtype, "float8_parts_*", "float8_parts_*_vector",
                              "float8_whole");
    }
    if (per == GPU_PER_ROW)
        return gpu_prepare_as(p, x->dtype, "float8_rows_*", "float8_rows_*_vector");
    if (per == GPU_PER_ROW_BLOCK)
        return gpu_prepare_as(p, x->dtype, "float8_row_blocks_*", "float8_row_blocks_*_vector");
    if (per == GPU_PER_COLUMN_BLOCK)
        return gpu_prepare_as(p, x->dtype, "float8_column_blocks_*",
                              "float8_column_blocks_*_vector");
    if (strips_of(x) > 1)
        p->workspace = (size_t)(strips_of(x) * gpu_columns_of(x)) * sizeof(float);
    return gpu_prepare_as(p, x->dtype, "float8_columns_*", "float8_columns_*_vector",
                          "float8_columns_float32");
}

static int amax_of_tensor(const struct ct_launch *l, struct gpu_float8_amax *a, bool vector)
{
    bool few = is_few(&l->in[0]);
    int rc = 0;

    a->partial = few ? l->in[0].data : l->workspace;
    a->parts = few ? a->count : parts_of(&l->in[0]);
    if (!few)
        rc = gpu_launch(l, vector, (struct ct_cuda_size){(unsigned)a->parts, 1, 1},
                        (struct ct_cuda_size){THREADS, 1, 1}, 0, a);
    return rc < 0 ? rc
                  : gpu_launch(l, WHOLE, (struct ct_cuda_size){1, 1, 1},
                               (struct ct_cuda_size){1024, 1, 1}, 0, a);
}

/* columns: of a block */
static int launch_strips(const struct ct_launch *l, int function, const struct gpu_float8_amax *a,
                         int64_t strips, int64_t columns)
{
    int64_t across = ct_cuda_blocks(a->columns, columns);

    return gpu_launch(l, function, (struct ct_cuda_size){(unsigned)(across * strips), 1, 1},
                      (struct ct_cuda_size){32, 8, 1}, 0, a);
}

static int amax_of_columns(const struct ct_launch *l, struct gpu_float8_amax *a, bool vector)
{
    int64_t strips = strips_of(&l->in[0]);
    struct gpu_float8_amax whole = {.amax = a->amax,
                                    .x = l->workspace,
                                    .rows = strips,
                                    .columns = a->columns,
                                    .strip = strips,
                                    .made = a->made};
    int rc;

    a->strip = GPU_FLOAT8_STRIP;
    a->partial = strips > 1 ? l->workspace : NULL;
    rc = launch_strips(l, vector, a, strips, 32 * (vector ? ct_cuda_lanes(l->in[0].dtype) : 1));
    return rc < 0 || strips == 1 ? rc : launch_strips(l, WHOLE, &whole, 1, 32);
}

/* Threads that have a vector each: all vectors of x, or of a row for each block of rows. */
static int amax_of_blocks(const struct ct_launch *l, const struct gpu_float8_amax *a, int per,
                          bool vector)
{
    int64_t elements = per == GPU_PER_ROW_BLOCK ? a->count : a->count >> a->shift;
    int64_t threads = ct_cuda_blocks(elements, vector ? ct_cuda_lanes(l->in[0].dtype) : 1);

    return gpu_launch(l, vector,
                      (struct ct_cuda_size){(unsigned)ct_cuda_blocks(threads, THREADS), 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, a);
}

/* Scales to an output, and inverses to the one behind it, if there is one. */
static struct gpu_float8_scale scales_to(const struct ct_launch *l, int output)
{
    return (struct gpu_float8_scale){.scale = l->out[output].data,
                                     .inverse =
                                         l->outs > output + 1 ? l->out[output + 1].data : NULL,
                                     .amax = l->in[0].data,
                                     .count = ct_tensor_count(&l->out[output]),
                                     .most = (float)ct_op_float(l->op, "largest"),
                                     .rule = ct_op_enum(l->op, "rule")};
}

static int run_amax(const struct ct_launch *l)
{
    const struct ct_tensor *x = &l->in[0];
    struct gpu_float8_amax a = {.amax = l->out[0].data,
                                .x = x->data,
                                .rows = gpu_rows_of(x),
                                .columns = gpu_columns_of(x),
                                .count = ct_tensor_count(x)};
    int per = gpu_float8_per(x, &l->out[0], &a.shift);
    bool scales = l->outs > 1, aligned = (uintptr_t)a.x % 16 == 0;
    bool vector = aligned && a.columns % ct_cuda_lanes(x->dtype) == 0;

    if (scales)
        a.made = scales_to(l, 0);
    if (per == GPU_PER_TENSOR)
        return amax_of_tensor(l, &a, aligned && a.count % ct_cuda_lanes(x->dtype) == 0);
    if (per == GPU_PER_COLUMN)
        return amax_of_columns(l, &a, vector);
    if (per != GPU_PER_ROW)
        return amax_of_blocks(l, &a, per, vector);
    return gpu_launch(l, vector, (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.rows, 8), 1, 1},
                      (struct ct_cuda_size){32, 8, 1}, 0, &a);
}

/* ---- largest magnitudes of rows and columns ---- */

enum { ROWS_OF_ALL = 2, COLUMNS_OF_ALL }; /* functions behind the two that read x */

static bool accepts_lines(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype);
}

/* Blocks side by side; each has numbers of its own for rows. Without vectors they are more. */
static int64_t blocks_across(const struct ct_tensor *x, bool vector)
{
    return ct_cuda_blocks(gpu_columns_of(x), 32 * (vector ? ct_cuda_lanes(x->dtype) : 1));
}

static size_t rows_room(const struct ct_tensor *x)
{
    return sizeof(float) * (size_t)(gpu_rows_of(x) * blocks_across(x, false));
}

static int prepare_lines(struct ct_prepare *p)
{
    const struct ct_tensor *x = &p->in[0];

    p->workspace = rows_room(x) + sizeof(float) * (size_t)(strips_of(x) * gpu_columns_of(x));
    return gpu_prepare_as(p, x->dtype, "float8_both_*", "float8_both_*_vector",
                          "float8_rows_float32", "float8_columns_float32");
}

/* rows, columns: where the results of each go, and by which rule. */
static int read_lines(const struct ct_launch *l, struct gpu_float8_amax of_rows,
                      struct gpu_float8_amax of_columns)
{
    const struct ct_tensor *x = &l->in[0];
    int64_t rows = gpu_rows_of(x), columns = gpu_columns_of(x), strips = strips_of(x), across;
    bool vector = (uintptr_t)x->data % 16 == 0 && columns % ct_cuda_lanes(x->dtype) == 0;
    struct gpu_float8_amax a = of_columns;
    int rc;

    across = blocks_across(x, vector);
    a.x = x->data;
    a.rows = rows;
    of_columns.columns = a.columns = columns;
    a.strip = GPU_FLOAT8_STRIP;
    of_rows.x = a.rows_of = l->workspace;
    of_rows.rows = rows;
    of_rows.columns = across;
    of_columns.x = (char *)l->workspace + rows_room(x);
    a.partial = strips > 1 ? (float *)of_columns.x : NULL;
    of_columns.rows = of_columns.strip = strips;
    rc = launch_strips(l, vector, &a, strips, 32 * (vector ? ct_cuda_lanes(x->dtype) : 1));
    if (rc >= 0)
        rc = gpu_launch(l, ROWS_OF_ALL,
                        (struct ct_cuda_size){(unsigned)ct_cuda_blocks(rows, 8), 1, 1},
                        (struct ct_cuda_size){32, 8, 1}, 0, &of_rows);
    return rc < 0 || strips == 1 ? rc : launch_strips(l, COLUMNS_OF_ALL, &of_columns, 1, 32);
}

static int run_amax_both(const struct ct_launch *l)
{
    return read_lines(l, (struct gpu_float8_amax){.amax = l->out[0].data},
                      (struct gpu_float8_amax){.amax = l->out[1].data});
}

static int run_line_scales(const struct ct_launch *l)
{
    return read_lines(l, (struct gpu_float8_amax){.made = scales_to(l, 0)},
                      (struct gpu_float8_amax){.made = scales_to(l, 2)});
}

/* ---- scales ---- */

static int prepare_scale(struct ct_prepare *p)
{
    return gpu_prepare(p, "float8_scales");
}

static int run_scale(const struct ct_launch *l)
{
    struct gpu_float8_scale a = scales_to(l, 0);

    return gpu_launch(l, 0, (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.count, THREADS), 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

/* ---- quantising ---- */

static bool accepts_quantise(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && per_of(&p->in[0], &p->in[1]) >= 0 &&
           gpu_rows_of(&p->in[0]) <= (int64_t)65535 * 32;
}

static unsigned split(int64_t whole, int64_t shard)
{
    return (unsigned)ct_cuda_blocks(whole, shard);
}

static int prepare_quantise(struct ct_prepare *p)
{
    char plain[64], vector[80];

    snprintf(plain, sizeof(plain), "%s_*", ct_dtype_name(p->out[0].dtype));
    snprintf(vector, sizeof(vector), "%s_vector", plain);
    return gpu_prepare_as(p, p->in[0].dtype, plain, vector);
}

static struct gpu_float8_cells cells_of(const struct ct_launch *l, int scale)
{
    struct gpu_float8_cells of = {.scale = l->in[scale].data};

    of.per = gpu_float8_per(&l->in[0], &l->in[scale], &of.shift);
    return of;
}

static struct gpu_float8_quantise arguments_of(const struct ct_launch *l)
{
    const struct ct_tensor *x = &l->in[0];

    return (struct gpu_float8_quantise){.x = x->data,
                                        .rows = gpu_rows_of(x),
                                        .columns = gpu_columns_of(x),
                                        .of_q = cells_of(l, 1),
                                        .of_transposed = cells_of(l, 1)};
}

static bool is_aligned(const struct gpu_float8_quantise *a, enum ct_dtype dtype)
{
    return a->columns % GPU_FLOAT8_VECTOR == 0 && (uintptr_t)a->q % GPU_FLOAT8_VECTOR == 0 &&
           (uintptr_t)a->x % (GPU_FLOAT8_VECTOR * ct_dtype_size(dtype)) == 0;
}

static int run_quantise(const struct ct_launch *l)
{
    struct gpu_float8_quantise a = arguments_of(l);
    struct ct_cuda_size grid = {split(a.columns, 32), split(a.rows, 32), 1};
    bool vector;

    a.q = l->out[0].data;
    vector = is_aligned(&a, l->in[0].dtype) && a.rows <= (int64_t)65535 * 8;
    if (vector)
        grid = (struct ct_cuda_size){split(a.columns, 32 * GPU_FLOAT8_VECTOR), split(a.rows, 8), 1};
    return gpu_launch(l, vector, grid, (struct ct_cuda_size){32, 8, 1}, 0, &a);
}

/* ---- transposes ---- */

enum { TILES = 1, OWN_TILES }; /* functions of casts that write transposes; the first: any size */

/* No blocks: they share scales with neither rows nor columns of a square. */
static bool accepts_transposed(const struct ct_prepare *p)
{
    for (int i = 1; i < p->ins; i++)
        if (p->present[i] && per_of(&p->in[0], &p->in[i]) > GPU_PER_COLUMN)
            return false;
    return accepts_quantise(p);
}

static int prepare_transposed(struct ct_prepare *p)
{
    char plain[64], tiles[80], own[80];

    snprintf(plain, sizeof(plain), "%s_*_transposed", ct_dtype_name(p->out[0].dtype));
    snprintf(tiles, sizeof(tiles), "%s_vector", plain);
    snprintf(own, sizeof(own), "%s_own", plain);
    return gpu_prepare_as(p, p->in[0].dtype, plain, tiles, own);
}

static int run_transposed(const struct ct_launch *l)
{
    struct gpu_float8_quantise a = arguments_of(l);
    bool own = l->ins > 2 && l->in[2].data;

    a.q = l->outs > 1 ? l->out[0].data : NULL;
    a.transposed = l->out[l->outs - 1].data;
    if (own)
        a.of_transposed = cells_of(l, 2);
    if (is_aligned(&a, l->in[0].dtype) && a.rows % 4 == 0 && (uintptr_t)a.transposed % 4 == 0)
        return gpu_launch(l, own ? OWN_TILES : TILES,
                          (struct ct_cuda_size){split(a.columns, GPU_FLOAT8_COLUMNS),
                                                split(a.rows, GPU_FLOAT8_ROWS), 1},
                          (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
    return gpu_launch(l, 0, (struct ct_cuda_size){split(a.columns, 32), split(a.rows, 32), 1},
                      (struct ct_cuda_size){32, 8, 1}, 0, &a);
}

static int launch_turn(const struct ct_launch *l, struct ct_cuda_function *turn,
                       const struct gpu_float8_turn *a)
{
    struct ct_cuda_size grid = {split(a->columns, GPU_FLOAT8_COLUMNS),
                                split(a->rows, GPU_FLOAT8_ROWS), 1};

    return ct_cuda_launch(l, turn, grid, (struct ct_cuda_size){THREADS, 1, 1}, 0, a);
}

static bool accepts_transpose(const struct ct_prepare *p)
{
    if (ct_dtype_size(p->in[0].dtype) != 1)
        return false;
    if (gpu_rows_of(&p->in[0]) % 4 || gpu_columns_of(&p->in[0]) % 4)
        return gpu_refuse("codes are transposed in multiples of 4 rows and columns");
    return true;
}

static int prepare_transpose(struct ct_prepare *p)
{
    return gpu_prepare(p, "float8_turn");
}

static int run_transpose(const struct ct_launch *l)
{
    struct gpu_float8_turn a = {.to = l->out[0].data,
                                .from = l->in[0].data,
                                .rows = gpu_rows_of(&l->in[0]),
                                .columns = gpu_columns_of(&l->in[0])};

    return launch_turn(l, ct_cuda_function(l, 0), &a);
}

/* ---- products ---- */

struct product {
    struct gpu_operands of;
    bool by_row, inverted; /* inverted: inverses of scales are operands */
    size_t inner;
    struct ct_cuda_function *turn, *invert;
};

static bool is_float8(enum ct_dtype dtype)
{
    return dtype == CT_E4M3 || dtype == CT_E5M2;
}

/* Operand of a product: summed over along its rows, `across`, or else along its columns. */
static struct gpu_operand operand_of(const struct ct_prepare *p, int input, bool across)
{
    const struct ct_tensor *x = &p->in[input];
    bool stored = across && ct_op_bool(p->op, "transposed");
    int64_t rows = stored ? x->shape[0] : across ? gpu_columns_of(x) : gpu_rows_of(x);

    return (struct gpu_operand){.input = input,
                                .stored = stored,
                                .turned = across && !stored,
                                .rows = rows,
                                .columns = rows ? ct_tensor_count(x) / rows : 0};
}

struct gpu_operands gpu_linear_operands(const struct ct_prepare *p)
{
    return (struct gpu_operands){operand_of(p, 0, false), operand_of(p, 1, false)};
}

struct gpu_operands gpu_dx_operands(const struct ct_prepare *p)
{
    return (struct gpu_operands){operand_of(p, 0, false), operand_of(p, 1, true)};
}

struct gpu_operands gpu_dw_operands(const struct ct_prepare *p)
{
    return (struct gpu_operands){operand_of(p, 1, true), operand_of(p, 0, true)};
}

/* per_of, for an operand that is stored transposed: its grid lies over the straight tensor. */
static int per_of_stored(const struct gpu_operand *o, const struct ct_tensor *grid)
{
    if (ct_tensor_count(grid) == 1)
        return GPU_PER_TENSOR;
    return gpu_rows_of(grid) == 1 && gpu_columns_of(grid) == o->rows ? GPU_PER_COLUMN : -1;
}

/* Does the operand have a scale for each of its rows (as transposed)? -1: neither that nor one. */
static int scales_of(const struct ct_prepare *p, const struct gpu_operand *o)
{
    int scale = o->input + 2, per = -1;

    if (p->ins > scale && p->present[scale])
        per = o->stored ? per_of_stored(o, &p->in[scale]) : per_of(&p->in[o->input], &p->in[scale]);
    if (per == GPU_PER_TENSOR)
        return 0;
    return per == (o->turned || o->stored ? GPU_PER_COLUMN : GPU_PER_ROW) ? 1 : -1;
}

/* An older cuBLASLt takes them, and fails at the first call. */
static bool has_row_scales(const struct gpu *gpu)
{
    int capability = gpu->cuda.capability;

    if (capability != HOPPER)
        return gpu_lacks("scales by row need compute capability 9.0, as H100 and H200 have, and "
                         "this device has %d.%d",
                         capability / 10, capability % 10);
    if (!gpu->described && gpu_blas_version() < ROW_SCALES)
        return gpu_refuse("scales by row need cuBLASLt 12.9");
    return true;
}

static bool accepts_float8(const struct ct_prepare *p, const struct gpu_operands *of)
{
    const struct gpu_operand *a = &of->a, *b = &of->b;
    int of_a = scales_of(p, a), of_b = scales_of(p, b);
    const struct gpu *gpu = gpu_of(p->device);

    if (!is_float8(p->in[0].dtype) || !is_float8(p->in[1].dtype) ||
        (p->in[0].dtype != CT_E4M3 && p->in[1].dtype != CT_E4M3) ||
        !ct_cuda_computes(p->out[0].dtype) || of_a < 0 || of_b < 0)
        return false;
    if (gpu->cuda.capability < ADA)
        return gpu_lacks("float8 needs compute capability 8.9, and this device has %d.%d",
                         gpu->cuda.capability / 10, gpu->cuda.capability % 10);
    if (ct_op_int(p->op, "block"))
        return false;
    if (of_a + of_b && !has_row_scales(gpu))
        return false;
    if (a->columns % 16 || b->rows % 16 || (a->turned && a->rows % 4))
        return gpu_refuse("cuBLASLt's float8 needs sizes that are multiples of 16");
    return true;
}

static size_t factors(const struct product *p, const struct gpu_operand *o)
{
    return (size_t)(p->by_row ? o->rows : 1);
}

static void carve(struct ct_prepare *p, const struct product *product, struct gpu_operand *o)
{
    size_t bytes = (size_t)(o->rows * o->columns);

    if (o->turned) {
        o->at = ct_cuda_carve(&p->workspace, bytes);
        p->traffic += 2 * (double)bytes;
    }
    if (!product->inverted)
        o->scale_at = ct_cuda_carve(&p->workspace, sizeof(float) * factors(product, o));
}

static bool has_inverse(const struct ct_prepare *p, const struct product *product,
                        const struct gpu_operand *o)
{
    int inverse = o->input + 4;

    return p->ins > inverse && p->present[inverse] &&
           (size_t)ct_tensor_count(&p->in[inverse]) == factors(product, o);
}

static int prepare_float8(struct ct_prepare *p, struct gpu_operands of)
{
    struct product *state = ct_arena_new(p->arena, struct product);
    int rc;

    *state = (struct product){.of = of};
    state->by_row = scales_of(p, &of.a) > 0 || scales_of(p, &of.b) > 0;
    state->inverted = has_inverse(p, state, &of.a) && has_inverse(p, state, &of.b);
    carve(p, state, &state->of.a);
    carve(p, state, &state->of.b);
    state->inner = ct_cuda_carve(&p->workspace, GPU_BLAS_WORKSPACE);
    p->state = state;
    rc = gpu_find(p, &state->turn, "float8_turn");
    return rc < 0 ? rc : gpu_find(p, &state->invert, "float8_invert");
}

int gpu_turn(const struct ct_launch *l, struct ct_cuda_function *turn, const struct gpu_operand *o)
{
    return launch_turn(l, turn,
                       &(struct gpu_float8_turn){.to = (uint8_t *)l->workspace + o->at,
                                                 .from = l->in[o->input].data,
                                                 .rows = o->columns,
                                                 .columns = o->rows});
}

/* One launch for both operands. */
static int launch_invert(const struct ct_launch *l, const struct product *p)
{
    const struct gpu_operand *of[2] = {&p->of.a, &p->of.b};
    struct gpu_float8_invert a = {0};
    int64_t most = 1;

    for (int i = 0; i < 2; i++) {
        const struct ct_tensor *scale = &l->in[of[i]->input + 2];

        a.to[i] = (float *)((char *)l->workspace + of[i]->scale_at);
        a.from[i] = scale->data;
        a.count[i] = (int64_t)factors(p, of[i]);
        a.one[i] = ct_tensor_count(scale) == 1;
        most = a.count[i] > most ? a.count[i] : most;
    }
    return ct_cuda_launch(l, p->invert,
                          (struct ct_cuda_size){(unsigned)ct_cuda_blocks(most, THREADS), 2, 1},
                          (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

static int ready(const struct ct_launch *l, const struct product *p)
{
    int rc = p->of.a.turned ? gpu_turn(l, p->turn, &p->of.a) : 0;

    if (rc >= 0 && p->of.b.turned)
        rc = gpu_turn(l, p->turn, &p->of.b);
    return rc < 0 || p->inverted ? rc : launch_invert(l, p);
}

static const void *data_of(const struct ct_launch *l, const struct gpu_operand *o)
{
    return o->turned ? (char *)l->workspace + o->at : l->in[o->input].data;
}

static const float *inverse_of(const struct ct_launch *l, const struct gpu_operand *o)
{
    const struct product *p = l->state;

    if (p->inverted)
        return l->in[o->input + 4].data;
    return (const float *)((char *)l->workspace + o->scale_at);
}

static int run_float8(const struct ct_launch *l)
{
    const struct product *p = l->state;
    const struct gpu_operand *a = &p->of.a, *b = &p->of.b;
    int rc = ready(l, p);

    if (rc < 0)
        return rc;
    return gpu_multiply(
        l,
        &(struct gpu_product){.m = a->rows,
                              .n = b->rows,
                              .k = a->columns,
                              .a = data_of(l, a),
                              .b = data_of(l, b),
                              .c = l->out[0].data,
                              .a_stride = a->columns,
                              .b_stride = b->columns,
                              .c_stride = b->rows,
                              .accumulate = l->accumulate & 1,
                              .a_dtype = l->in[a->input].dtype,
                              .b_dtype = l->in[b->input].dtype,
                              .c_dtype = l->out[0].dtype,
                              .scaled = p->by_row ? GPU_SCALED_ROWS : GPU_SCALED_WHOLE,
                              .a_scale = inverse_of(l, a),
                              .b_scale = inverse_of(l, b),
                              .fast_accumulation = ct_op_bool(l->op, "fast_accumulation")},
        (char *)l->workspace + p->inner);
}

GPU_FLOAT8_PRODUCTS(float8, accepts_float8, prepare_float8)

const struct ct_kernel gpu_float8_kernels[] = {
    CT_KERNEL("float8_amax", "vector", 0, accepts_amax, prepare_amax, run_amax),
    CT_KERNEL("float8_amax_scale", "vector", 0, accepts_amax_scale, prepare_amax, run_amax),
    CT_KERNEL("float8_amax_both", "vector", 0, accepts_lines, prepare_lines, run_amax_both),
    CT_KERNEL("float8_line_scales", "vector", 0, accepts_lines, prepare_lines, run_line_scales),
    CT_KERNEL("float8_scale", "plain", 0, NULL, prepare_scale, run_scale),
    CT_KERNEL("float8_scale_both", "plain", 0, NULL, prepare_scale, run_scale),
    CT_KERNEL("float8_quantise", "tile", 0, accepts_quantise, prepare_quantise, run_quantise),
    CT_KERNEL("float8_transpose", "tile", 0, accepts_transpose, prepare_transpose, run_transpose),
    CT_KERNEL("float8_quantise_transposed", "tile", 0, accepts_transposed, prepare_transposed,
              run_transposed),
    CT_KERNEL("float8_quantise_both", "tile", 0, accepts_transposed, prepare_transposed,
              run_transposed),
    CT_KERNEL("linear_float8", "cublaslt", CT_KERNEL_ACCUMULATES, accepts_float8_linear,
              prepare_float8_linear, run_float8),
    CT_KERNEL("linear_float8_dx", "cublaslt", CT_KERNEL_ACCUMULATES, accepts_float8_dx,
              prepare_float8_dx, run_float8),
    CT_KERNEL("linear_float8_dw", "cublaslt", CT_KERNEL_ACCUMULATES, accepts_float8_dw,
              prepare_float8_dw, run_float8),
    {0}};
