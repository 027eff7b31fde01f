/*
 * A sink of attention, and its gradient. The gradient of the sink is made for each row of o first,
 * and then summed over tokens in a fixed order.
 */
#include "gpu.h"

#define THREADS 256

/* Set what forward and gradient have alike; x is o, or dy. Can vectors be loaded? */
static bool take_rows(struct gpu_sink *a, const struct ct_tensor *x, const struct ct_tensor *lse,
                      const struct ct_tensor *sink, const struct ct_tensor *out)
{
    int64_t lanes = ct_cuda_lanes(x->dtype);

    *a = (struct gpu_sink){.x = x->data,
                           .lse = lse->data,
                           .sink = sink->data,
                           .out = out->data,
                           .rows = x->shape[0] * x->shape[1] * x->shape[2],
                           .tokens = x->shape[1],
                           .heads = x->shape[2],
                           .size = (int32_t)x->shape[3]};
    memcpy(a->x_stride, x->stride, sizeof(a->x_stride));
    memcpy(a->out_stride, out->stride, sizeof(a->out_stride));
    memcpy(a->lse_stride, lse->stride, sizeof(a->lse_stride));
    return a->size % lanes == 0 && ct_cuda_starts_vectors(a->x, a->x_stride, 3, lanes) &&
           ct_cuda_starts_vectors(a->out, a->out_stride, 3, lanes);
}

static int launch(const struct ct_launch *l, const struct gpu_widths *by, struct gpu_sink *a,
                  bool vector)
{
    a->lanes = ct_cuda_threads_of_row(a->size, vector ? ct_cuda_lanes(l->in[0].dtype) : 1);
    return ct_cuda_launch(
        l, by->f[vector],
        (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a->rows, THREADS / a->lanes), 1, 1},
        (struct ct_cuda_size){THREADS, 1, 1}, 0, a);
}

static bool accepts_sink(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return ct_cuda_computes(dtype) && p->in[1].dtype == CT_F32 && p->in[2].dtype == dtype &&
           p->out[0].dtype == dtype;
}

struct state {
    struct gpu_widths rows;
    struct gpu_sum_columns sum; /* of the gradient */
};

static int find_rows(struct ct_prepare *p)
{
    struct state *state = ct_arena_new(p->arena, struct state);

    p->state = state;
    return gpu_find_as(p, p->in[0].dtype, state->rows.f, "@_*", "@_*_vector");
}

static int run_sink(const struct ct_launch *l)
{
    struct gpu_sink a;
    bool vector = take_rows(&a, &l->in[0], &l->in[1], &l->in[2], &l->out[0]);

    return launch(l, &((const struct state *)l->state)->rows, &a, vector);
}

static bool accepts_grad(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return ct_cuda_computes(dtype) && p->in[1].dtype == dtype && p->in[2].dtype == CT_F32 &&
           p->in[3].dtype == dtype && p->out[0].dtype == dtype && ct_cuda_computes(p->out[1].dtype);
}

static int prepare_grad(struct ct_prepare *p)
{
    const int64_t *shape = p->in[0].shape;
    int rc = find_rows(p);

    ct_cuda_carve(&p->workspace, gpu_column_shares(shape[0] * shape[1], shape[2]));
    ct_cuda_carve(&p->workspace, (size_t)(shape[0] * shape[1] * shape[2]) * sizeof(float));
    return rc < 0 ? rc : gpu_find_sum_columns(p, CT_F32, &((struct state *)p->state)->sum);
}

static int run_grad(const struct ct_launch *l)
{
    const struct state *state = l->state;
    const struct ct_tensor *y = &l->in[1];
    int64_t tokens = y->shape[0] * y->shape[1], heads = y->shape[2];
    size_t at = 0;
    struct gpu_sink a;
    bool vector = take_rows(&a, &l->in[0], &l->in[2], &l->in[3], &l->out[0]);
    int rc;

    ct_cuda_carve(&at, gpu_column_shares(tokens, heads));
    a.dsink = (float *)((char *)l->workspace + at);
    a.y = y->data;
    memcpy(a.y_stride, y->stride, sizeof(a.y_stride));
    vector = vector && ct_cuda_starts_vectors(a.y, a.y_stride, 3, ct_cuda_lanes(y->dtype));
    a.accumulate = l->accumulate & 1;
    rc = launch(l, &state->rows, &a, vector);
    return rc < 0 ? rc : gpu_sum_columns(l, &state->sum, 1, a.dsink, tokens, heads, l->workspace);
}

const struct ct_kernel gpu_sink_kernels[] = {
    CT_KERNEL("attention_sink", "rows", CT_KERNEL_STRIDED, accepts_sink, find_rows, run_sink),
    CT_KERNEL("attention_sink_grad", "rows", CT_KERNEL_STRIDED | CT_KERNEL_ACCUMULATES,
              accepts_grad, prepare_grad, run_grad),
    {0}};
