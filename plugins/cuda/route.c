/*
 * Rows of tokens on their way to the ranks of their experts. The host does not know how many there
 * are, so every round is packed and sent whole ("agreed" is false on devices with own memory).
 */
#include <ctitan/lib/ops.h>

#include "gpu.h"

#define THREADS 256

enum { ROWS, SLOT, VALUE, PREVIOUS };

static int64_t columns_of(const struct ct_tensor *t)
{
    return t->shape[t->ndim - 1];
}

static int64_t rows_of(const struct ct_tensor *t)
{
    return ct_shape_count(t->ndim - 1, t->shape);
}

static int launch(const struct ct_launch *l, int function, int64_t blocks, const void *arguments)
{
    return gpu_launch(l, function, (struct ct_cuda_size){(unsigned)blocks, 1, 1},
                      (struct ct_cuda_size){THREADS, 1, 1}, 0, arguments);
}

/* ---- numbering ---- */

enum { NUMBER, MOST }; /* functions */

static int prepare_route(struct ct_prepare *p)
{
    p->workspace = (size_t)ct_op_int(p->op, "ranks") * sizeof(int32_t);
    return gpu_prepare(p, "route_number", "route_most");
}

static int run_route(const struct ct_launch *l)
{
    struct gpu_route a = {.slot = l->out[0].data,
                          .counts = l->workspace,
                          .most = l->out[1].data,
                          .ids = l->in[0].data,
                          .tokens = rows_of(&l->in[0]),
                          .k = columns_of(&l->in[0]),
                          .experts = ct_op_int(l->op, "experts"),
                          .ranks = ct_op_int(l->op, "ranks"),
                          .fault = ct_cuda_of(l->device)->fault};
    int rc = launch(l, NUMBER, a.ranks, &a);

    return rc < 0 ? rc
                  : gpu_launch(l, MOST, (struct ct_cuda_size){1, 1, 1},
                               (struct ct_cuda_size){32, 1, 1}, 0, &a);
}

/* ---- packing, summing ---- */

static struct gpu_rows rows_of_round(const struct ct_launch *l)
{
    return (struct gpu_rows){.y = l->out[0].data,
                             .slot = l->in[SLOT].data,
                             .tokens = rows_of(&l->in[SLOT]),
                             .ranks = columns_of(&l->in[SLOT]),
                             .capacity = ct_op_int(l->op, "capacity"),
                             .round = ct_op_int(l->op, "round")};
}

static bool accepts_pack(const struct ct_prepare *p)
{
    return !ct_op_bool(p->op, "agreed") && ct_tensor_is_dense(&p->in[VALUE]);
}

enum { BY_16, BY_4, BY_1 }; /* functions: bytes that are moved at once */

static int prepare_pack(struct ct_prepare *p)
{
    return gpu_prepare(p, "route_pack_16", "route_pack_4", "route_pack_1");
}

/* Rows that are not there hold zeros, or CT_NO_EXPERT. */
static int clear(const struct ct_launch *l)
{
    const struct ct_tensor *y = &l->out[0];

    return gpu_check(
        gpu_driver.cuMemsetD8Async((CUdeviceptr)(uintptr_t)y->data, y->dtype == CT_I32 ? 0xff : 0,
                                   (size_t)ct_tensor_count(y) * ct_dtype_size(y->dtype), l->stream),
        "clearing rows");
}
_Static_assert(CT_NO_EXPERT == -1 && CT_NO_EXPERT == GPU_NO_EXPERT, "all bits set");

static int run_pack(const struct ct_launch *l)
{
    const struct ct_tensor *x = &l->in[VALUE];
    struct gpu_rows a = rows_of_round(l);
    int64_t bytes = columns_of(x) * (int64_t)ct_dtype_size(x->dtype);
    uintptr_t places = (uintptr_t)x->data | (uintptr_t)a.y | (uintptr_t)bytes;
    int64_t word = places % 16 == 0 ? 16 : places % 4 == 0 ? 4 : 1;
    int rc = clear(l);

    a.x = x->data;
    a.size = bytes / word;
    return rc < 0 ? rc
                  : launch(l,
                           word == 16  ? BY_16
                           : word == 4 ? BY_4
                                       : BY_1,
                           ct_cuda_blocks(a.tokens * a.ranks, THREADS / 32), &a);
}

static bool accepts_sum(const struct ct_prepare *p)
{
    bool more = p->ins > PREVIOUS && p->present[PREVIOUS];

    return !ct_op_bool(p->op, "agreed") && ct_cuda_computes(p->in[VALUE].dtype) &&
           ct_cuda_computes(p->out[0].dtype) && (!more || ct_cuda_computes(p->in[PREVIOUS].dtype));
}

static int prepare_sum(struct ct_prepare *p)
{
    return gpu_prepare(p, "route_sum");
}

static int run_sum(const struct ct_launch *l)
{
    struct gpu_rows a = rows_of_round(l);

    a.x = l->in[VALUE].data;
    a.kind = ct_cuda_float_of(l->in[VALUE].dtype);
    a.out_kind = ct_cuda_float_of(l->out[0].dtype);
    a.size = columns_of(&l->out[0]);
    if (ct_op_input(l->op, PREVIOUS)) {
        a.previous = l->in[PREVIOUS].data;
        a.previous_kind = ct_cuda_float_of(l->in[PREVIOUS].dtype);
    }
    return launch(l, 0, ct_cuda_blocks(a.tokens, THREADS / 32), &a);
}

/* ---- rows in 8 bits ---- */

static bool is_quantised(const struct ct_tensor *x, const struct ct_tensor *codes,
                         const struct ct_tensor *factors)
{
    return ct_cuda_computes(x->dtype) && codes->dtype == CT_E4M3 && factors->dtype == CT_F32;
}

static bool accepts_quantise(const struct ct_prepare *p)
{
    return is_quantised(&p->in[0], &p->out[0], &p->out[1]);
}

static bool accepts_dequantise(const struct ct_prepare *p)
{
    return is_quantised(&p->out[0], &p->in[0], &p->in[1]);
}

static int prepare_quantise(struct ct_prepare *p)
{
    return gpu_prepare(p, "route_quantise");
}

static int prepare_dequantise(struct ct_prepare *p)
{
    return gpu_prepare(p, "route_dequantise");
}

static int launch_codes(const struct ct_launch *l, const struct ct_tensor *x,
                        const struct ct_tensor *codes, const struct ct_tensor *factors)
{
    struct gpu_row_codes a = {.x = x->data,
                              .codes = codes->data,
                              .factors = factors->data,
                              .rows = rows_of(x),
                              .columns = columns_of(x),
                              .blocks = ct_cuda_blocks(columns_of(x), GPU_ROW_BLOCK),
                              .kind = ct_cuda_float_of(x->dtype)};

    return launch(l, 0, ct_cuda_blocks(a.rows * a.blocks, THREADS / 32), &a);
}

static int run_quantise(const struct ct_launch *l)
{
    return launch_codes(l, &l->in[0], &l->out[0], &l->out[1]);
}

static int run_dequantise(const struct ct_launch *l)
{
    return launch_codes(l, &l->out[0], &l->in[0], &l->in[1]);
}

const struct ct_kernel gpu_route_kernels[] = {
    CT_KERNEL("ep.route", "rows", 0, NULL, prepare_route, run_route),
    CT_KERNEL("ep.pack", "rows", 0, accepts_pack, prepare_pack, run_pack),
    CT_KERNEL("ep.sum", "rows", 0, accepts_sum, prepare_sum, run_sum),
    CT_KERNEL("ep.quantise", "rows", 0, accepts_quantise, prepare_quantise, run_quantise),
    CT_KERNEL("ep.dequantise", "rows", 0, accepts_dequantise, prepare_dequantise, run_dequantise),
    {0}};
