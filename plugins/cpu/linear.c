/*
 * linear, linear_dx and linear_dw as matrix products.
 *
 * All three may have several weights (q, k, v of one x), with one product each. Weights or
 * gradients that happen to be adjacent in memory are not joined into one product: it would sum in
 * another order, so results would depend on the memory plan. Packed weights always form one matrix,
 * and use one product (packed_weights.c). Gradients of weights run side by side where own kernels
 * do.
 */
#include <string.h>

#include <ctitan/error.h>

#include "convert.h"
#include "gemm.h"

/* Operands of one product: shards as columns of one matrix, or as rows of one. */
struct shard {
    const struct ct_tensor *wide;   /* y or dy: [.., n] */
    const struct ct_tensor *weight; /* w or dw: [n, k] */
};

struct linear {
    bool summed; /* dx of several shards: summed in float32, then rounded once */
    size_t sum_at;
    struct cpu_gemm **each[2]; /* [accumulate][shard] */
};

typedef struct cpu_gemm_spec spec_of(const struct ct_tensor *narrow, const struct shard *shard,
                                     int64_t n);

/* y = x w^T */
static struct cpu_gemm_spec forward_spec(const struct ct_tensor *x, const struct shard *p,
                                         int64_t n)
{
    struct ct_matrix a = cpu_rows_of(x), b = cpu_rows_of(p->weight), c = cpu_rows_of(p->wide);

    return (struct cpu_gemm_spec){.m = a.rows,
                                  .n = n,
                                  .k = a.columns,
                                  .a_type = x->dtype,
                                  .b_type = p->weight->dtype,
                                  .c_type = p->wide->dtype,
                                  .a_row = a.stride,
                                  .a_col = 1,
                                  .b_row = 1,
                                  .b_col = b.stride,
                                  .c_row = c.stride};
}

/* dx = dy w */
static struct cpu_gemm_spec dx_spec(const struct ct_tensor *dx, const struct shard *p, int64_t n)
{
    struct ct_matrix a = cpu_rows_of(p->wide), b = cpu_rows_of(p->weight), c = cpu_rows_of(dx);

    return (struct cpu_gemm_spec){.m = a.rows,
                                  .n = c.columns,
                                  .k = n,
                                  .a_type = p->wide->dtype,
                                  .b_type = p->weight->dtype,
                                  .c_type = dx->dtype,
                                  .a_row = a.stride,
                                  .a_col = 1,
                                  .b_row = b.stride,
                                  .b_col = 1,
                                  .c_row = c.stride};
}

/* dw = dy^T x */
static struct cpu_gemm_spec dw_spec(const struct ct_tensor *x, const struct shard *p, int64_t n)
{
    struct ct_matrix a = cpu_rows_of(p->wide), b = cpu_rows_of(x), c = cpu_rows_of(p->weight);

    return (struct cpu_gemm_spec){.m = n,
                                  .n = b.columns,
                                  .k = a.rows,
                                  .a_type = p->wide->dtype,
                                  .b_type = x->dtype,
                                  .c_type = p->weight->dtype,
                                  .a_row = 1,
                                  .a_col = a.stride,
                                  .b_row = b.stride,
                                  .b_col = 1,
                                  .c_row = c.stride};
}

static bool acceptable(const struct ct_tensor *t, int count)
{
    struct ct_matrix rows;

    for (int i = 0; i < count; i++)
        if (!cpu_is_compute_dtype(t[i].dtype) || !ct_tensor_as_matrix(&t[i], &rows))
            return false;
    return true;
}

static bool accepts_linear(const struct ct_prepare *p)
{
    return acceptable(p->in, p->ins) && acceptable(p->out, p->outs);
}

static int prepare_product(struct ct_prepare *p, struct cpu_gemm_spec spec, bool accumulate,
                           struct cpu_gemm **gemm)
{
    int rc;

    spec.accumulate = accumulate;
    rc = cpu_gemm_prepare(&spec, gemm);
    if (rc >= 0 && cpu_gemm_workspace(*gemm) > p->workspace)
        p->workspace = cpu_gemm_workspace(*gemm);
    return rc;
}

static int prepare_shards(struct ct_prepare *p, spec_of *spec, const struct ct_tensor *narrow,
                          const struct shard *shard, int count)
{
    struct linear *state = ct_arena_new(p->arena, struct linear);
    bool sum = spec == dx_spec && count > 1;
    int rc = 0;

    state->summed = sum && narrow->dtype == CT_BF16;
    for (int accumulate = 0; accumulate < (p->accumulate || sum ? 2 : 1); accumulate++) {
        state->each[accumulate] = ct_arena_array(p->arena, struct cpu_gemm *, count);
        for (int i = 0; rc >= 0 && i < count; i++) {
            struct cpu_gemm_spec s = spec(narrow, &shard[i], cpu_rows_of(shard[i].wide).columns);

            if (state->summed) {
                s.c_type = CT_F32;
                s.c_row = s.n;
            }
            rc = prepare_product(p, s, accumulate, &state->each[accumulate][i]);
        }
    }
    state->sum_at = (p->workspace + 63) & ~(size_t)63;
    if (state->summed)
        p->workspace = state->sum_at + (size_t)ct_tensor_count(narrow) * 4;
    p->state = state;
    return rc;
}

static int take_shards(struct shard *shard, const struct ct_tensor *wide,
                       const struct ct_tensor *weight, int count)
{
    if (count > CPU_MAX_WEIGHTS)
        return ct_fail(CT_EINVAL, "%d weights of one linear op; at most %d", count,
                       CPU_MAX_WEIGHTS);
    for (int i = 0; i < count; i++)
        shard[i] = (struct shard){wide + i, weight + i};
    return count;
}

/* ---- linear ---- */

static int prepare_forward(struct ct_prepare *p)
{
    struct shard shard[CPU_MAX_WEIGHTS];
    int count = take_shards(shard, p->out, p->in + 1, p->outs);

    return count < 0 ? count : prepare_shards(p, forward_spec, &p->in[0], shard, count);
}

static int run_forward(const struct ct_launch *l)
{
    const struct linear *state = l->state;
    int rc = 0;

    for (int i = 0; rc >= 0 && i < l->outs; i++)
        rc = cpu_gemm_run(state->each[l->accumulate >> i & 1][i], l->in[0].data, l->in[1 + i].data,
                          l->out[i].data, l->workspace);
    return rc;
}

/* ---- linear_dx ---- */

static int prepare_dx(struct ct_prepare *p)
{
    struct shard shard[CPU_MAX_WEIGHTS];
    int count = take_shards(shard, p->in, p->in + p->ins / 2, p->ins / 2);

    return count < 0 ? count : prepare_shards(p, dx_spec, &p->out[0], shard, count);
}

static int run_dx(const struct ct_launch *l)
{
    const struct linear *state = l->state;
    int count = l->ins / 2, rc = 0;
    bool accumulate = l->accumulate & 1;
    float *sum = state->summed ? (float *)((char *)l->workspace + state->sum_at) : NULL;

    for (int i = 0; rc >= 0 && i < count; i++)
        rc = cpu_gemm_run(state->each[i > 0 || (accumulate && !sum)][i], l->in[i].data,
                          l->in[count + i].data, sum ? sum : l->out[0].data, l->workspace);
    if (rc >= 0 && sum)
        cpu_round_all(l->out[0].data, sum, cpu_rows_of(&l->out[0]), accumulate);
    return rc;
}

/* ---- linear_dw ---- */

static int prepare_dw(struct ct_prepare *p)
{
    struct shard shard[CPU_MAX_WEIGHTS];
    int count = take_shards(shard, p->in + 1, p->out, p->outs), rc;
    const struct linear *state;

    if (count < 0)
        return count;
    rc = prepare_shards(p, dw_spec, &p->in[0], shard, count);
    state = p->state;
    for (int accumulate = 0; rc >= 0 && accumulate < 2 && state->each[accumulate]; accumulate++) {
        size_t bytes = cpu_gemm_gradients_workspace(state->each[accumulate], count);

        p->workspace = bytes > p->workspace ? bytes : p->workspace;
    }
    return rc;
}

static int run_dw(const struct ct_launch *l)
{
    const struct linear *state = l->state;
    struct cpu_gemm_operands each[CPU_MAX_WEIGHTS];

    for (int i = 0; i < l->outs; i++)
        each[i] = (struct cpu_gemm_operands){state->each[l->accumulate >> i & 1][i],
                                             l->in[1 + i].data, l->out[i].data};
    return cpu_gemm_run_gradients(each, l->outs, l->in[0].data, l->workspace);
}

const struct ct_kernel cpu_linear_kernels[] = {
    CT_KERNEL("linear", "gemm", CT_KERNEL_ACCUMULATES | CT_KERNEL_STRIDED, accepts_linear,
              prepare_forward, run_forward),
    CT_KERNEL("linear_dx", "gemm", CT_KERNEL_ACCUMULATES | CT_KERNEL_STRIDED, accepts_linear,
              prepare_dx, run_dx),
    CT_KERNEL("linear_dw", "gemm", CT_KERNEL_ACCUMULATES | CT_KERNEL_STRIDED, accepts_linear,
              prepare_dw, run_dw),
    {0}};
