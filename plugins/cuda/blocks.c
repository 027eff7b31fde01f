/*
 * Blocks of numbers with a scale each, on Blackwell: products of MXFP8 and NVFP4 by cuBLASLt, and
 * NVFP4's casts. No device has run them: layouts are as NVIDIA documents them.
 *
 * In the graph scales are float32 and codes take a byte each. In front of a product, its workspace
 * gets the operands with rows along the sum, those of NVFP4 two to a byte, and their scales as
 * cuBLASLt stores them (kernels/blocks.cu).
 */
#include <ctitan/rng.h>

#include "float8.h"

#define THREADS 256
#define BLACKWELL 100     /* the first compute capability with such products */
#define BLOCK_SCALES 1208 /* cuBLASLt 12.8 */
#define MX_BLOCK 32
#define NVFP4_UNIT 32 /* codes of a row are multiples of 16 bytes */

/* ---- grids ---- */

static bool has_row_blocks(const struct ct_tensor *x, const struct ct_tensor *grid, int64_t block)
{
    return gpu_rows_of(grid) == gpu_rows_of(x) && gpu_columns_of(grid) * block == gpu_columns_of(x);
}

static bool has_column_blocks(const struct ct_tensor *x, const struct ct_tensor *grid,
                              int64_t block)
{
    return gpu_columns_of(grid) == gpu_columns_of(x) && gpu_rows_of(grid) * block == gpu_rows_of(x);
}

static unsigned split(int64_t whole, int64_t share)
{
    return (unsigned)ct_cuda_blocks(whole, share);
}

/* ---- products ---- */

struct product {
    struct gpu_operands of;
    bool nvfp4;
    int64_t block, depth; /* numbers of a scale; of a row, filled up */
    size_t factor, inner;
    struct ct_cuda_function *scales, *turn, *pack;
};

static bool has_blocks(const struct ct_prepare *p, const struct gpu_operand *o, int64_t block)
{
    int scale = o->input + 2;

    if (o->stored || p->ins <= scale || !p->present[scale])
        return false;
    return o->turned ? has_column_blocks(&p->in[o->input], &p->in[scale], block)
                     : has_row_blocks(&p->in[o->input], &p->in[scale], block);
}

static bool accepts_blocks(const struct ct_prepare *p, const struct gpu_operands *of,
                           const char *name, int64_t block)
{
    const struct gpu *gpu = gpu_of(p->device);
    int capability = gpu->cuda.capability;

    if (!ct_cuda_computes(p->out[0].dtype))
        return false;
    if (!has_blocks(p, &of->a, block) || !has_blocks(p, &of->b, block))
        return gpu_refuse("%s needs whole blocks of %d numbers along the sum, on each rank", name,
                          (int)block);
    if (capability < BLACKWELL)
        return gpu_lacks("%s needs compute capability 10.0, as B200, GB200 and RTX 5090 have, and "
                         "this device has %d.%d",
                         name, capability / 10, capability % 10);
    if (!gpu->described && gpu_blas_version() < BLOCK_SCALES)
        return gpu_refuse("%s needs cuBLASLt 12.8", name);
    if (of->a.rows % 16 || of->b.rows % 16)
        return gpu_refuse("%s needs sizes that are multiples of 16", name);
    return true;
}

static bool accepts_mx(const struct ct_prepare *p, const struct gpu_operands *of)
{
    bool wide = p->in[0].dtype == CT_E5M2 && p->in[1].dtype == CT_E5M2;

    return ct_op_int(p->op, "block") == MX_BLOCK && ct_dtype_size(p->in[0].dtype) == 1 &&
           ct_dtype_size(p->in[1].dtype) == 1 && !wide && accepts_blocks(p, of, "mxfp8", MX_BLOCK);
}

static bool accepts_nvfp4(const struct ct_prepare *p, const struct gpu_operands *of)
{
    for (int i = 0; i < 6; i++)
        if (i >= p->ins || !p->present[i])
            return false;
    return p->in[0].dtype == CT_E4M3 && p->in[1].dtype == CT_E4M3 &&
           accepts_blocks(p, of, "nvfp4", GPU_NVFP4_BLOCK);
}

static size_t scales_room(const struct gpu_operand *o, int64_t block)
{
    return (size_t)(ct_cuda_blocks(o->rows, GPU_SCALES_OUTER) *
                    ct_cuda_blocks(ct_cuda_blocks(o->columns, block), GPU_SCALES_INNER) *
                    GPU_SCALES_OUTER * GPU_SCALES_INNER);
}

/* Bytes that an operand takes as the product reads it, beside the input. */
static size_t copy_room(const struct product *s, const struct gpu_operand *o)
{
    if (s->nvfp4)
        return (size_t)(o->rows * s->depth / 2);
    return o->turned ? (size_t)(o->rows * o->columns) : 0;
}

static void carve(struct ct_prepare *p, const struct product *s, struct gpu_operand *o)
{
    size_t copy = copy_room(s, o), scales = scales_room(o, s->block);

    o->at = ct_cuda_carve(&p->workspace, copy);
    o->scale_at = ct_cuda_carve(&p->workspace, scales);
    p->traffic += (copy ? (double)(o->rows * o->columns) : 0) + (double)copy + (double)scales;
}

static int prepare_blocks(struct ct_prepare *p, struct gpu_operands of, bool nvfp4)
{
    struct product *s = ct_arena_new(p->arena, struct product);
    int64_t unit = nvfp4 ? NVFP4_UNIT : 1;
    int rc;

    *s = (struct product){.of = of,
                          .nvfp4 = nvfp4,
                          .block = nvfp4 ? GPU_NVFP4_BLOCK : MX_BLOCK,
                          .depth = ct_cuda_blocks(of.a.columns, unit) * unit};
    carve(p, s, &s->of.a);
    carve(p, s, &s->of.b);
    s->factor = ct_cuda_carve(&p->workspace, 2 * sizeof(float));
    s->inner = ct_cuda_carve(&p->workspace, GPU_BLAS_WORKSPACE);
    p->state = s;
    rc = gpu_find(p, &s->scales, "block_scales");
    if (rc >= 0)
        rc = gpu_find(p, &s->turn, nvfp4 ? "nvfp4_pack_turned" : "float8_turn");
    return rc < 0 || !nvfp4 ? rc : gpu_find(p, &s->pack, "nvfp4_pack");
}

static int prepare_mx(struct ct_prepare *p, struct gpu_operands of)
{
    return prepare_blocks(p, of, false);
}

static int prepare_nvfp4(struct ct_prepare *p, struct gpu_operands of)
{
    return prepare_blocks(p, of, true);
}

static void *work(const struct ct_launch *l, size_t at)
{
    return (char *)l->workspace + at;
}

/* One launch for both operands. */
static int launch_scales(const struct ct_launch *l, const struct product *s)
{
    const struct gpu_operand *of[2] = {&s->of.a, &s->of.b};
    struct gpu_block_scales a = {.inner = ct_cuda_blocks(s->of.a.columns, s->block),
                                 .factor = s->nvfp4 ? work(l, s->factor) : NULL,
                                 .accumulate = l->accumulate & 1};
    size_t most = 0;

    for (int i = 0; i < 2; i++) {
        size_t bytes = scales_room(of[i], s->block);

        a.to[i] = work(l, of[i]->scale_at);
        a.from[i] = l->in[of[i]->input + 2].data;
        a.amax[i] = s->nvfp4 ? l->in[of[i]->input + 4].data : NULL;
        a.outer[i] = of[i]->rows;
        a.turned[i] = of[i]->turned;
        most = bytes > most ? bytes : most;
    }
    return ct_cuda_launch(l, s->scales,
                          (struct ct_cuda_size){split((int64_t)most / 4, THREADS), 2, 1},
                          (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

static int launch_pack(const struct ct_launch *l, const struct product *s,
                       const struct gpu_operand *o)
{
    struct gpu_nvfp4_pack a = {.to = work(l, o->at),
                               .scales = work(l, o->scale_at),
                               .from = l->in[o->input].data,
                               .rows = o->rows,
                               .depth = o->columns,
                               .stride = s->depth / 2};
    struct ct_cuda_size grid = {split(a.rows * a.stride / 4, THREADS), 1, 1};

    if (o->turned)
        grid = (struct ct_cuda_size){split(s->depth, GPU_NVFP4_SIDE), split(a.rows, GPU_NVFP4_SIDE),
                                     1};
    return ct_cuda_launch(l, o->turned ? s->turn : s->pack, grid,
                          (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

static int ready(const struct ct_launch *l, const struct product *s, const struct gpu_operand *o)
{
    if (s->nvfp4)
        return launch_pack(l, s, o);
    return o->turned ? gpu_turn(l, s->turn, o) : 0;
}

static const void *data_of(const struct ct_launch *l, const struct product *s,
                           const struct gpu_operand *o)
{
    return s->nvfp4 || o->turned ? work(l, o->at) : l->in[o->input].data;
}

static int run_blocks(const struct ct_launch *l)
{
    const struct product *s = l->state;
    const struct gpu_operand *a = &s->of.a, *b = &s->of.b;
    int rc = launch_scales(l, s);

    if (rc >= 0)
        rc = ready(l, s, a);
    if (rc >= 0)
        rc = ready(l, s, b);
    if (rc < 0)
        return rc;
    return gpu_multiply(
        l,
        &(struct gpu_product){.m = a->rows,
                              .n = b->rows,
                              .k = s->depth,
                              .a = data_of(l, s, a),
                              .b = data_of(l, s, b),
                              .c = l->out[0].data,
                              .a_stride = s->depth,
                              .b_stride = s->depth,
                              .c_stride = b->rows,
                              .accumulate = l->accumulate & 1,
                              .a_dtype = l->in[a->input].dtype,
                              .b_dtype = l->in[b->input].dtype,
                              .c_dtype = l->out[0].dtype,
                              .scaled = s->nvfp4 ? GPU_SCALED_BLOCKS_16 : GPU_SCALED_BLOCKS_32,
                              .a_scale = work(l, a->scale_at),
                              .b_scale = work(l, b->scale_at),
                              .factor = s->nvfp4 ? work(l, s->factor) : NULL},
        work(l, s->inner));
}

GPU_FLOAT8_PRODUCTS(mx, accepts_mx, prepare_mx)
GPU_FLOAT8_PRODUCTS(nvfp4, accepts_nvfp4, prepare_nvfp4)

/* ---- casts of NVFP4 ---- */

static int launch_threads(const struct ct_launch *l, int64_t threads, const void *arguments)
{
    return gpu_launch(l, 0, (struct ct_cuda_size){split(threads, THREADS), 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, arguments);
}

static int prepare_scale(struct ct_prepare *p)
{
    return gpu_prepare(p, "nvfp4_scales");
}

static int run_scale(const struct ct_launch *l)
{
    struct gpu_nvfp4_scale a = {.scale = l->out[0].data,
                                .amax = l->in[0].data,
                                .amax_of_tensor = l->in[1].data,
                                .rows = gpu_rows_of(&l->in[0]),
                                .columns = gpu_columns_of(&l->in[0]),
                                .share = ct_op_enum(l->op, "share")};

    return launch_threads(l, a.rows * a.columns, &a);
}

static bool accepts_quantise(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) &&
           (has_row_blocks(&p->in[0], &p->in[1], GPU_NVFP4_BLOCK) ||
            has_column_blocks(&p->in[0], &p->in[1], GPU_NVFP4_BLOCK));
}

static int prepare_quantise(struct ct_prepare *p)
{
    return gpu_prepare(p, "nvfp4_codes");
}

static int run_quantise(const struct ct_launch *l)
{
    const struct ct_tensor *x = &l->in[0];
    bool random = l->ins > 2 && l->in[2].data;
    struct gpu_nvfp4_quantise a = {
        .q = l->out[0].data,
        .x = x->data,
        .scale = l->in[1].data,
        .ordinals = random ? l->in[2].data : NULL,
        .rows = gpu_rows_of(x),
        .columns = gpu_columns_of(x),
        .first = random ? ct_launch_offset(l, l->op->in[0], x->ndim - 1) : 0,
        .seed = (uint64_t)ct_op_int(l->op, "seed"),
        .stream = (uint64_t)ct_op_int(l->op, "stream"),
        .per = has_row_blocks(x, &l->in[1], GPU_NVFP4_BLOCK) ? GPU_PER_ROW_BLOCK
                                                             : GPU_PER_COLUMN_BLOCK,
        .shift = GPU_NVFP4_SHIFT,
        .kind = ct_cuda_float_of(x->dtype)};

    return launch_threads(l, a.rows * ((a.first + a.columns + 3) / 4 - a.first / 4), &a);
}

static bool accepts_hadamard(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype);
}

static int prepare_hadamard(struct ct_prepare *p)
{
    return gpu_prepare(p, "hadamard_rows");
}

/* The signs are those of the op's reference. */
static int run_hadamard(const struct ct_launch *l)
{
    uint64_t seed = (uint64_t)ct_op_int(l->op, "seed");
    struct gpu_hadamard a = {.y = l->out[0].data,
                             .x = l->in[0].data,
                             .blocks = gpu_rows_of(&l->in[0]) / GPU_NVFP4_BLOCK,
                             .columns = gpu_columns_of(&l->in[0]),
                             .negative = ct_philox(seed, ct_rng_stream(l->op->type->name), 0).v[0],
                             .kind = ct_cuda_float_of(l->in[0].dtype)};

    return launch_threads(l, a.blocks * a.columns, &a);
}

const struct ct_kernel gpu_block_kernels[] = {
    CT_KERNEL("linear_float8", "cublaslt_blocks", CT_KERNEL_ACCUMULATES, accepts_mx_linear,
              prepare_mx_linear, run_blocks),
    CT_KERNEL("linear_float8_dx", "cublaslt_blocks", CT_KERNEL_ACCUMULATES, accepts_mx_dx,
              prepare_mx_dx, run_blocks),
    CT_KERNEL("linear_float8_dw", "cublaslt_blocks", CT_KERNEL_ACCUMULATES, accepts_mx_dw,
              prepare_mx_dw, run_blocks),
    CT_KERNEL("linear_nvfp4", "cublaslt_blocks", CT_KERNEL_ACCUMULATES, accepts_nvfp4_linear,
              prepare_nvfp4_linear, run_blocks),
    CT_KERNEL("linear_nvfp4_dx", "cublaslt_blocks", CT_KERNEL_ACCUMULATES, accepts_nvfp4_dx,
              prepare_nvfp4_dx, run_blocks),
    CT_KERNEL("linear_nvfp4_dw", "cublaslt_blocks", CT_KERNEL_ACCUMULATES, accepts_nvfp4_dw,
              prepare_nvfp4_dw, run_blocks),
    CT_KERNEL("nvfp4_scale", "plain", 0, NULL, prepare_scale, run_scale),
    CT_KERNEL("nvfp4_quantise", "plain", 0, accepts_quantise, prepare_quantise, run_quantise),
    CT_KERNEL("float8.hadamard", "plain", 0, accepts_hadamard, prepare_hadamard, run_hadamard),
    {0}};
