/*
 * Kernels on packed weights. Adjacent shards (q, k, v) are one product. If the memory plan could
 * not make them adjacent, they are copied through a matrix in the workspace.
 */
#include <string.h>

#include <ctitan/error.h>

#include "loss.h"
#include "pack_weights.h"
#include "products/select.h"

/* ---- packing ---- */

/* cpu.pack and cpu.pack_both write outputs, cpu.pack_into its first input. */
static int first_weight(const struct ct_op *op)
{
    return op->outs ? 0 : 1;
}

static bool accepts_packing(const struct ct_prepare *p)
{
    int first = first_weight(p->op);

    if (p->ins - first > CPU_MAX_WEIGHTS)
        return false;
    for (int i = first; i < p->ins; i++)
        if (!cpu_is_compute_dtype(p->in[i].dtype) || p->in[i].stride[1] != 1 ||
            p->in[i].dtype != p->in[first].dtype)
            return false;
    return true;
}

static int prepare_packing(struct ct_prepare *p)
{
    int64_t n[CPU_MAX_WEIGHTS], stride[CPU_MAX_WEIGHTS];
    int first = first_weight(p->op);
    bool both = p->op->outs > 1, forward = both || ct_op_enum(p->op, "use") == CPU_FORWARD;
    struct cpu_packing_spec spec = {.use = {forward, both || !forward},
                                    .count = p->ins - first,
                                    .n = n,
                                    .stride = stride,
                                    .k = p->in[first].shape[1],
                                    .from = p->in[first].dtype,
                                    .dtype = cpu_pack_dtype(p->op)};

    for (int i = 0; i < spec.count; i++) {
        n[i] = p->in[first + i].shape[0];
        stride[i] = p->in[first + i].stride[0];
    }
    return cpu_packing_prepare(&spec, (struct cpu_packing **)&p->state);
}

static int run_packing(const struct ct_launch *l)
{
    const void *weights[CPU_MAX_WEIGHTS];
    int first = first_weight(l->op);
    void *one = first ? l->in[0].data : l->out[0].data;

    for (int i = first; i < l->ins; i++)
        weights[i - first] = l->in[i].data;
    return cpu_packing_run(l->state, weights, (void *[]){one, l->outs > 1 ? l->out[1].data : one});
}

/* ---- linear ---- */

struct packed_linear {
    struct cpu_gemm *gemm[2]; /* [accumulate] */
    bool gathered;            /* shards are copied through the workspace */
    size_t matrix_at;
    int64_t width;
};

static bool acceptable(const struct ct_tensor *t, int count)
{
    struct ct_matrix rows;

    for (int i = 0; i < count; i++)
        if (!cpu_is_compute_dtype(t[i].dtype) || !ct_tensor_as_matrix(&t[i], &rows) ||
            t[i].dtype != t[0].dtype)
            return false;
    return count > 0;
}

static int64_t columns(const struct ct_tensor *t)
{
    return t->shape[t->ndim - 1];
}

/* True if the shards, operands of the call from `first` on, are columns of one matrix, without gaps
   between them. */
static bool side_by_side(const struct ct_prepare *p, int first, const struct ct_tensor *shard,
                         int count, int64_t width)
{
    int64_t at = 0;

    for (int i = 0; i < count; i++) {
        ptrdiff_t distance = 0;

        if ((i && !ct_prepare_distance(p, first, first + i, &distance)) || distance != at ||
            cpu_rows_of(&shard[i]).stride != cpu_rows_of(shard).stride)
            return false;
        at += columns(&shard[i]) * (int64_t)ct_dtype_size(shard[i].dtype);
    }
    return cpu_rows_of(shard).stride >= width;
}

/* The shards are operands of the call from `first` on. */
static struct packed_linear *plan_shards(struct ct_prepare *p, int first, int count)
{
    const struct ct_tensor *shard = first < p->ins ? p->in + first : p->out + (first - p->ins);
    struct packed_linear *state = ct_arena_new(p->arena, struct packed_linear);

    for (int i = 0; i < count; i++)
        state->width += columns(&shard[i]);
    state->gathered = !side_by_side(p, first, shard, count, state->width);
    p->state = state;
    return state;
}

static int prepare_products(struct ct_prepare *p, struct cpu_gemm_spec spec,
                            const struct ct_tensor *shard)
{
    struct packed_linear *state = p->state;
    int rc = 0;

    for (int accumulate = 0; rc >= 0 && accumulate < (p->accumulate ? 2 : 1); accumulate++) {
        spec.accumulate = accumulate;
        rc = cpu_gemm_prepare(&spec, &state->gemm[accumulate]);
        if (rc >= 0 && cpu_gemm_workspace(state->gemm[accumulate]) > p->workspace)
            p->workspace = cpu_gemm_workspace(state->gemm[accumulate]);
    }
    state->matrix_at = (p->workspace + 63) & ~(size_t)63;
    if (state->gathered)
        p->workspace =
            state->matrix_at + (size_t)(spec.m * state->width) * ct_dtype_size(shard->dtype);
    return rc;
}

struct columns_call {
    const struct ct_tensor *shard;
    int count;
    char *matrix;
    int64_t width;
    bool out;
};

/* Copy between the shards and the joined matrix. */
static void move_columns(void *context, int thread, int threads)
{
    const struct columns_call *c = context;
    size_t size = ct_dtype_size(c->shard->dtype), at = 0;

    for (int i = 0; i < c->count; i++) {
        struct ct_matrix rows;
        struct cpu_range mine;

        ct_tensor_as_matrix(&c->shard[i], &rows);
        mine = cpu_share(rows.rows, 1, thread, threads);
        for (int64_t row = mine.begin; row < mine.end; row++) {
            char *shard = (char *)c->shard[i].data + (size_t)(row * rows.stride) * size;
            char *matrix = c->matrix + (size_t)(row * c->width) * size + at;
            size_t bytes = (size_t)rows.columns * size;

            memcpy(c->out ? shard : matrix, c->out ? matrix : shard, bytes);
        }
        at += (size_t)rows.columns * size;
    }
}

/* ---- cpu.linear ---- */

static bool accepts_linear(const struct ct_prepare *p)
{
    return acceptable(p->in, 1) && acceptable(p->out, p->outs);
}

static int prepare_linear(struct ct_prepare *p)
{
    const struct packed_linear *state = plan_shards(p, p->ins, p->outs);
    struct ct_matrix x;

    ct_tensor_as_matrix(&p->in[0], &x);
    return prepare_products(
        p,
        (struct cpu_gemm_spec){.m = x.rows,
                               .n = state->width,
                               .k = x.columns,
                               .a_type = p->in[0].dtype,
                               .b_type = p->in[1].dtype,
                               .c_type = p->out[0].dtype,
                               .a_row = x.stride,
                               .a_col = 1,
                               .c_row = state->gathered ? state->width : cpu_rows_of(p->out).stride,
                               .b_use = CPU_FORWARD,
                               .b_for = p->in[0].dtype},
        p->out);
}

static int run_linear(const struct ct_launch *l)
{
    const struct packed_linear *state = l->state;
    struct columns_call move = {l->out, l->outs, (char *)l->workspace + state->matrix_at,
                                state->width, false};
    bool accumulate = l->accumulate & 1;
    int rc;

    if (state->gathered && accumulate)
        cpu_parallel(move_columns, &move);
    rc = cpu_gemm_run(state->gemm[accumulate], l->in[0].data, l->in[1].data,
                      state->gathered ? move.matrix : l->out[0].data, l->workspace);
    move.out = true;
    if (rc >= 0 && state->gathered)
        cpu_parallel(move_columns, &move);
    return rc;
}

/* ---- cpu.linear_dx ---- */

static bool accepts_linear_dx(const struct ct_prepare *p)
{
    return acceptable(p->in, p->ins - 1) && acceptable(p->out, 1);
}

static int prepare_linear_dx(struct ct_prepare *p)
{
    const struct packed_linear *state = plan_shards(p, 0, p->ins - 1);
    struct ct_matrix dx;

    ct_tensor_as_matrix(&p->out[0], &dx);
    return prepare_products(
        p,
        (struct cpu_gemm_spec){.m = dx.rows,
                               .n = dx.columns,
                               .k = state->width,
                               .a_type = p->in[0].dtype,
                               .b_type = p->in[p->ins - 1].dtype,
                               .c_type = p->out[0].dtype,
                               .a_row = state->gathered ? state->width : cpu_rows_of(p->in).stride,
                               .a_col = 1,
                               .c_row = dx.stride,
                               .b_use = CPU_BACKWARD,
                               .b_for = p->in[0].dtype},
        p->in);
}

static int run_linear_dx(const struct ct_launch *l)
{
    const struct packed_linear *state = l->state;
    struct columns_call move = {l->in, l->ins - 1, (char *)l->workspace + state->matrix_at,
                                state->width, false};

    if (state->gathered)
        cpu_parallel(move_columns, &move);
    return cpu_gemm_run(state->gemm[l->accumulate & 1],
                        state->gathered ? move.matrix : l->in[0].data, l->in[l->ins - 1].data,
                        l->out[0].data, l->workspace);
}

/* ---- the loss ---- */

static struct cpu_head packed_head(const struct ct_prepare *p)
{
    const struct ct_tensor *packed = cpu_loss_weight(p);

    return (struct cpu_head){packed->shape[0], packed->dtype, 0};
}

static bool accepts_loss(const struct ct_prepare *p)
{
    struct cpu_head head = packed_head(p);

    return cpu_loss_accepts(p, &head);
}

static int prepare_loss(struct ct_prepare *p)
{
    struct cpu_head head = packed_head(p);

    return cpu_loss_prepare(p, &head);
}

#define FLAGS (CT_KERNEL_ACCUMULATES | CT_KERNEL_STRIDED)

const struct ct_kernel cpu_pack_kernels[] = {
    CT_KERNEL("cpu.pack", "lines", CT_KERNEL_STRIDED, accepts_packing, prepare_packing,
              run_packing),
    CT_KERNEL("cpu.pack_both", "lines", CT_KERNEL_STRIDED, accepts_packing, prepare_packing,
              run_packing),
    CT_KERNEL("cpu.pack_into", "lines", CT_KERNEL_STRIDED, accepts_packing, prepare_packing,
              run_packing),
    CT_KERNEL("cpu.linear", "gemm", FLAGS, accepts_linear, prepare_linear, run_linear),
    CT_KERNEL("cpu.linear_dx", "gemm", FLAGS, accepts_linear_dx, prepare_linear_dx, run_linear_dx),
    CT_KERNEL("cpu.linear_cross_entropy", "gemm", FLAGS, accepts_loss, prepare_loss, cpu_loss_run),
    CT_KERNEL("cpu.linear_cross_entropy_grad", "gemm", FLAGS, accepts_loss, prepare_loss,
              cpu_loss_run),
    CT_KERNEL("cpu.linear_cross_entropy_dx", "gemm", FLAGS, accepts_loss, prepare_loss,
              cpu_loss_run),
    {0}};
