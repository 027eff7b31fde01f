/*
 * The kernels for CUDA.
 */
#include <ctitan/lib/cuda.h>
#include <ctitan/op_author.h>

#include "floats.h"
#include "lora.h"
#include "lora_cuda.h"

#define MOST 65535 /* blocks along y and z of a grid */

CT_CUDA_CODE(lora_cuda_code);

static const struct ct_cuda_size flat = {LORA_THREADS, 1, 1}, tile = {32, 8, 1};

static unsigned split(int64_t whole, int64_t part)
{
    return (unsigned)ct_cuda_blocks(whole, part);
}

/* ---- w + scale b a ---- */

static struct lora_tensor_of_kind matrix_of(const struct ct_tensor *t)
{
    return (struct lora_tensor_of_kind){
        t->data,
        {t->ndim > 2 ? t->stride[0] : 0, t->stride[t->ndim > 2 ? 1 : 0]},
        ct_cuda_float_of(t->dtype)};
}

static float scale_of(const struct ct_launch *l)
{
    return (float)((const struct lora_scaled *)l->op->attrs)->scale;
}

/* w: the operand with all rows and columns; rank: its length. */
static struct lora_call call_of(const struct ct_launch *l, const struct ct_tensor *w, int64_t rank)
{
    int ndim = w->ndim;

    return (struct lora_call){.w = matrix_of(w),
                              .out = matrix_of(&l->out[0]),
                              .stack = ndim > 2 ? w->shape[0] : 1,
                              .rows = w->shape[ndim - 2],
                              .columns = w->shape[ndim - 1],
                              .rank = rank,
                              .scale = scale_of(l),
                              .accumulate = l->accumulate & 1};
}

/* Both of w, a, b. */
static struct lora_call whole_of(const struct ct_launch *l)
{
    struct lora_call a = call_of(l, &l->in[0], l->in[1].shape[l->in[1].ndim - 2]);

    a.a = matrix_of(&l->in[1]);
    a.b = matrix_of(&l->in[2]);
    return a;
}

#define PREPARE(which)                                                                             \
    static int prepare_##which(struct ct_prepare *p)                                               \
    {                                                                                              \
        return ct_cuda_prepare(p, &lora_cuda_code, CT_F32, CT_CUDA_NAMES("lora_" #which));         \
    }
PREPARE(squared_norms)
PREPARE(merge)
PREPARE(merge_da)
PREPARE(merge_db)
PREPARE(magnify)
PREPARE(magnify_dm)

static int run_squared_norms(const struct ct_launch *l)
{
    struct lora_call a = whole_of(l);

    return ct_cuda_launch(l, ct_cuda_function(l, 0),
                          (struct ct_cuda_size){split(a.rows, LORA_ROWS), 1, 1}, flat, 0, &a);
}

static int run_merge(const struct ct_launch *l)
{
    struct lora_call a = whole_of(l);
    const struct ct_cuda_size grid = {split(a.columns, LORA_THREADS), split(a.rows, LORA_ROWS),
                                      (unsigned)a.stack};

    return ct_cuda_launch(l, ct_cuda_function(l, 0), grid, flat, 0, &a);
}

static int run_merge_da(const struct ct_launch *l)
{
    struct lora_call a = call_of(l, &l->in[0], l->in[1].shape[2]);
    const struct ct_cuda_size grid = {split(a.columns, 32), split(a.rank, 8), (unsigned)a.stack};

    a.b = matrix_of(&l->in[1]);
    return ct_cuda_launch(l, ct_cuda_function(l, 0), grid, tile, 0, &a);
}

static int run_merge_db(const struct ct_launch *l)
{
    struct lora_call a = call_of(l, &l->in[0], l->in[1].shape[1]);
    const struct ct_cuda_size grid = {split(a.rows * a.rank, 8), 1, (unsigned)a.stack};

    a.a = matrix_of(&l->in[1]);
    return ct_cuda_launch(l, ct_cuda_function(l, 0), grid, tile, 0, &a);
}

/* Matrices with dense rows. */
static bool accepts_matrices(const struct ct_prepare *p)
{
    for (int i = 0; i < p->ins + p->outs; i++) {
        const struct ct_tensor *t = i < p->ins ? &p->in[i] : &p->out[i - p->ins];

        if (!ct_cuda_computes(t->dtype) || t->stride[t->ndim - 1] != 1 ||
            (t->ndim > 2 && t->shape[0] > MOST) ||
            (t->ndim > 1 && t->shape[t->ndim - 2] > (int64_t)MOST * LORA_ROWS))
            return false;
    }
    return true;
}

static bool accepts_squared_norms(const struct ct_prepare *p)
{
    return accepts_matrices(p) && p->out[0].dtype == CT_F32;
}

/* ---- magnitudes ---- */

static struct lora_tensor_of_kind rows_of(const struct ct_tensor *t)
{
    return (struct lora_tensor_of_kind){
        t->data, {0, lora_floats_matrix(t).stride}, ct_cuda_float_of(t->dtype)};
}

static int run_magnify(const struct ct_launch *l)
{
    struct ct_matrix x = lora_floats_matrix(&l->in[0]);
    struct lora_magnify_call a = {.x = rows_of(&l->in[0]),
                                  .out = rows_of(&l->out[0]),
                                  .m = l->in[1].data,
                                  .squared_norms = l->in[2].data,
                                  .rows = x.rows,
                                  .columns = x.columns,
                                  .accumulate = l->accumulate & 1};

    return ct_cuda_launch(l, ct_cuda_function(l, 0),
                          (struct ct_cuda_size){split(a.rows * a.columns, LORA_THREADS), 1, 1},
                          flat, 0, &a);
}

static int run_magnify_dm(const struct ct_launch *l)
{
    struct ct_matrix x = lora_floats_matrix(&l->in[1]);
    struct lora_magnify_call a = {.x = rows_of(&l->in[1]),
                                  .dy = rows_of(&l->in[0]),
                                  .out = {.data = l->out[0].data, .kind = CT_CUDA_F32},
                                  .squared_norms = l->in[2].data,
                                  .rows = x.rows,
                                  .columns = x.columns,
                                  .accumulate = l->accumulate & 1};

    return ct_cuda_launch(l, ct_cuda_function(l, 0),
                          (struct ct_cuda_size){split(a.columns, 32), 1, 1}, tile, 0, &a);
}

static bool is_row(const struct ct_tensor *t)
{
    return t->dtype == CT_F32 && t->stride[0] == 1;
}

static bool accepts_magnify(const struct ct_prepare *p)
{
    return lora_floats_taken(&p->in[0]) && is_row(&p->in[1]) && is_row(&p->in[2]) &&
           lora_floats_taken(&p->out[0]);
}

static bool accepts_magnify_dm(const struct ct_prepare *p)
{
    return lora_floats_taken(&p->in[0]) && lora_floats_taken(&p->in[1]) && is_row(&p->in[2]) &&
           is_row(&p->out[0]);
}

#define FLAGS (CT_KERNEL_STRIDED | CT_KERNEL_ACCUMULATES)

const struct ct_kernel lora_cuda_kernels[] = {
    CT_KERNEL("lora.squared_norms", "rows", CT_KERNEL_STRIDED, accepts_squared_norms,
              prepare_squared_norms, run_squared_norms),
    CT_KERNEL("lora.magnify", "plain", FLAGS, accepts_magnify, prepare_magnify, run_magnify),
    CT_KERNEL("lora.magnify_dm", "columns", FLAGS, accepts_magnify_dm, prepare_magnify_dm,
              run_magnify_dm),
    CT_KERNEL("lora.merge", "rows", FLAGS, accepts_matrices, prepare_merge, run_merge),
    CT_KERNEL("lora.merge_da", "tile", FLAGS, accepts_matrices, prepare_merge_da, run_merge_da),
    CT_KERNEL("lora.merge_db", "warps", FLAGS, accepts_matrices, prepare_merge_db, run_merge_db),
    {0}};
