/*
 * AdamW (Loshchilov and Hutter 2019) over all parameters, many tensors in a launch. Tensors whose
 * p, g, m, v and copy all follow the ones before in memory are one.
 */
#include "gpu.h"

#define HEAD 3            /* lr, step, clip */
#define MOST 5            /* operands: p, g, m, v, copy */
#define COPIES_GROUP MOST /* of adamw.copies */
#define THREADS 256

static bool accepts_adamw(const struct ct_prepare *p)
{
    for (int i = HEAD; i < p->ins; i++)
        if (p->present[i] && (!ct_cuda_computes(p->in[i].dtype) || !ct_tensor_is_dense(&p->in[i])))
            return false;
    return p->in[0].dtype == CT_F64 && p->in[1].dtype == CT_F64 && p->in[2].dtype == CT_F32;
}

/* A copy is the new value rounded, not rounded again. */
static bool accepts_copies(const struct ct_prepare *p)
{
    for (int i = HEAD; i < p->ins; i += COPIES_GROUP)
        if (p->present[i + 4] && p->in[i].dtype != CT_F32)
            return false;
    return accepts_adamw(p);
}

enum { BEGIN, UPDATE }; /* functions */

static int prepare_adamw(struct ct_prepare *p)
{
    p->workspace = sizeof(struct gpu_adamw_step);
    return gpu_prepare(p, "adamw_begin", "adamw");
}

static int begin(const struct ct_launch *l)
{
    struct gpu_adamw_begin a = {.step = l->workspace,
                                .lr = l->in[0].data,
                                .number = l->in[1].data,
                                .clip = l->in[2].data,
                                .beta1 = ct_op_float(l->op, "beta1"),
                                .beta2 = ct_op_float(l->op, "beta2"),
                                .weight_decay = ct_op_float(l->op, "weight_decay"),
                                .lr_factor = ct_op_float(l->op, "lr_factor")};

    return gpu_launch(l, BEGIN, (struct ct_cuda_size){1, 1, 1}, (struct ct_cuda_size){32, 1, 1}, 0,
                      &a);
}

static bool follows(const struct gpu_adamw *a, int at, const struct ct_tensor *t, int operands)
{
    for (int j = 0; j < operands; j++)
        if (!a->tensor[at][j] != !t[j].data ||
            (t[j].data &&
             (a->kind[at][j] != ct_cuda_float_of(t[j].dtype) ||
              (char *)a->tensor[at][j] + (size_t)a->count[at] * ct_dtype_size(t[j].dtype) !=
                  t[j].data)))
            return false;
    return true;
}

static void append(struct gpu_adamw *a, const struct ct_tensor *t, int operands)
{
    int at = a->tensors;

    if (at && follows(a, at - 1, t, operands)) {
        a->count[at - 1] += ct_tensor_count(t);
        return;
    }
    a->tensor[at][MOST - 1] = NULL;
    for (int j = 0; j < operands; j++) {
        a->tensor[at][j] = t[j].data;
        a->kind[at][j] = (uint8_t)ct_cuda_float_of(t[j].dtype);
    }
    a->count[at] = ct_tensor_count(t);
    a->tensors++;
}

static int launch(const struct ct_launch *l, struct gpu_adamw *a)
{
    int rc;

    for (int i = 0; i < a->tensors; i++)
        a->first_block[i + 1] = a->first_block[i] + (int32_t)ct_cuda_blocks(a->count[i], GPU_GRAIN);
    rc = gpu_launch(l, UPDATE, (struct ct_cuda_size){(unsigned)a->first_block[a->tensors], 1, 1},
                    (struct ct_cuda_size){THREADS, 1, 1}, 0, a);
    a->tensors = 0;
    return rc;
}

static int run_groups(const struct ct_launch *l, int group, int operands)
{
    double beta1 = ct_op_float(l->op, "beta1"), beta2 = ct_op_float(l->op, "beta2");
    struct gpu_adamw a = {.step = l->workspace,
                          .beta1 = (float)beta1,
                          .beta2 = (float)beta2,
                          .rest1 = (float)(1 - beta1),
                          .rest2 = (float)(1 - beta2),
                          .eps = (float)ct_op_float(l->op, "eps")};
    int rc = begin(l);

    for (int i = HEAD; rc == 0 && i + group <= l->ins; i += group) {
        if (a.tensors == GPU_TENSORS)
            rc = launch(l, &a);
        append(&a, &l->in[i], operands);
    }
    return rc < 0 ? rc : launch(l, &a);
}

static int run_adamw(const struct ct_launch *l)
{
    return run_groups(l, MOST - 1, MOST - 1);
}

static int run_copies(const struct ct_launch *l)
{
    return run_groups(l, COPIES_GROUP, MOST);
}

/* Copies at the beginning, and after the host has written parameters. */
static bool accepts_copy(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && p->in[1].dtype == CT_F32;
}

static int prepare_copy(struct ct_prepare *p)
{
    return gpu_prepare_cast(p, p->in[1].dtype, p->in[0].dtype);
}

static int run_copy(const struct ct_launch *l)
{
    return gpu_cast(l, l->state, &l->in[1], &l->in[0]);
}

/* ---- moments of 8 bits ---- */

enum { LR, STEP, CLIP, P, G, M, M_SCALE, V, V_SCALE };

#define LARGEST_BLOCK 256 /* elements with one scale */

static bool accepts_codes(const struct ct_prepare *p)
{
    enum ct_dtype moments = p->in[M].dtype;
    int64_t blocks = p->in[M_SCALE].shape[p->in[M_SCALE].ndim - 1];

    for (int i = P; i < p->ins; i++)
        if (!ct_tensor_is_dense(&p->in[i]))
            return false;
    return ct_cuda_computes(p->in[P].dtype) && ct_cuda_computes(p->in[G].dtype) &&
           (moments == CT_E4M3 || moments == CT_F32) && p->in[V].dtype == moments &&
           p->in[M_SCALE].dtype == CT_F32 && p->in[V_SCALE].dtype == CT_F32 &&
           p->in[P].shape[p->in[P].ndim - 1] <= blocks * LARGEST_BLOCK;
}

static int prepare_codes(struct ct_prepare *p)
{
    p->workspace = sizeof(struct gpu_adamw_step);
    return gpu_prepare(p, "adamw_begin", "adamw_codes");
}

static int run_codes(const struct ct_launch *l)
{
    const struct ct_tensor *p = &l->in[P];
    double beta1 = ct_op_float(l->op, "beta1"), beta2 = ct_op_float(l->op, "beta2");
    int64_t blocks = l->in[M_SCALE].shape[p->ndim - 1], columns = p->shape[p->ndim - 1];
    struct gpu_adamw_codes a = {.step = l->workspace,
                                .number = l->in[STEP].data,
                                .p = p->data,
                                .m = l->in[M].data,
                                .v = l->in[V].data,
                                .g = l->in[G].data,
                                .m_scale = l->in[M_SCALE].data,
                                .v_scale = l->in[V_SCALE].data,
                                .rows = ct_shape_count(p->ndim - 1, p->shape),
                                .blocks = blocks,
                                .count = columns / blocks,
                                .dims = p->ndim,
                                .coded = l->in[M].dtype == CT_E4M3,
                                .p_kind = ct_cuda_float_of(p->dtype),
                                .g_kind = ct_cuda_float_of(l->in[G].dtype),
                                .beta1 = (float)beta1,
                                .beta2 = (float)beta2,
                                .rest1 = (float)(1 - beta1),
                                .rest2 = (float)(1 - beta2),
                                .eps = (float)ct_op_float(l->op, "eps")};
    int rc = begin(l);

    for (int d = 0; d < p->ndim; d++) {
        a.size[d] = p->shape[d];
        a.global[d] = l->op->in[P]->shape[d];
        a.offset[d] = ct_launch_offset(l, l->op->in[P], d);
    }
    return rc < 0 ? rc
                  : gpu_launch(l, UPDATE,
                               (struct ct_cuda_size){
                                   (unsigned)ct_cuda_blocks(a.rows * a.blocks, THREADS / 32), 1, 1},
                               (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

const struct ct_kernel gpu_adamw_kernels[] = {
    CT_KERNEL("adamw", "vector", 0, accepts_adamw, prepare_adamw, run_adamw),
    CT_KERNEL("adamw.copies", "vector", 0, accepts_copies, prepare_adamw, run_copies),
    CT_KERNEL("cast_into", "vector", 0, accepts_copy, prepare_copy, run_copy),
    CT_KERNEL("adamw.float8", "codes", 0, accepts_codes, prepare_codes, run_codes),
    {0}};
