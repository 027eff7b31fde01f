/* rope, on any strides with a last one of 1. */
#include <math.h>

#include <ctitan/lib/ops.h>

#include "gpu.h"

#define THREADS 256
#define HEADS 4 /* of a thread */

static int64_t rotated(const struct ct_prepare *p)
{
    const struct ct_rope *rope = p->op->attrs;

    return rope->rotated ? rope->rotated : p->in[0].shape[3] - rope->first;
}

static bool accepts_rope(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && p->in[0].stride[3] == 1 &&
           p->out[0].stride[3] == 1 && rotated(p) <= 2 * GPU_ROPE_PAIRS;
}

static void find_turns(const struct ct_rope *rope, struct gpu_rope *a)
{
    for (int i = 0; i < a->pairs; i++)
        a->turns[i] = ct_rope_frequency(rope, 2 * a->pairs, i) / (2 * M_PI);
    a->inverse = rope->inverse;
    a->unrotated = (int32_t)rope->first;
    a->magnitude = rope->magnitude > 0 ? (float)rope->magnitude : 1;
}

struct state {
    struct gpu_widths by;
    struct gpu_rope call;
};

/* The pairs are fixed with the op: found once. */
static int prepare_rope(struct ct_prepare *p)
{
    struct state *state = ct_arena_new(p->arena, struct state);
    struct gpu_rope *a = &state->call;
    const struct ct_tensor *x = &p->in[0];

    a->batch = x->shape[0];
    a->tokens = x->shape[1];
    a->heads = (int32_t)x->shape[2];
    a->pairs = (int32_t)rotated(p) / 2;
    find_turns(p->op->attrs, a);
    a->copied = (int32_t)x->shape[3] - 2 * a->pairs;
    p->state = state;
    if (((const struct ct_rope *)p->op->attrs)->interleaved)
        return gpu_find_as(p, x->dtype, state->by.f, "rope_neighbours_*",
                           "rope_neighbours_*_vector");
    return gpu_find_as(p, x->dtype, state->by.f, "rope_*", "rope_*_vector");
}

static bool vectors(const struct ct_tensor *t, const struct gpu_rope *a)
{
    int64_t lanes = ct_cuda_lanes(t->dtype);

    return a->pairs % lanes == 0 && a->unrotated % lanes == 0 && a->copied % lanes == 0 &&
           (uintptr_t)t->data % 16 == 0 && t->stride[0] % lanes == 0 && t->stride[1] % lanes == 0 &&
           t->stride[2] % lanes == 0;
}

static int run_rope(const struct ct_launch *l)
{
    const struct ct_tensor *x = &l->in[0], *y = &l->out[0];
    const struct state *state = l->state;
    struct gpu_rope a = state->call;
    bool vector = vectors(x, &a) && vectors(y, &a);
    int64_t lanes = vector ? ct_cuda_lanes(x->dtype) : 1, items;

    a.x = x->data;
    a.y = y->data;
    a.copied = a.x == a.y ? 0 : a.copied;
    items = a.batch * a.tokens * (a.pairs / lanes + a.copied / lanes);
    memcpy(a.x_stride, x->stride, sizeof(a.x_stride));
    memcpy(a.y_stride, y->stride, sizeof(a.y_stride));
    a.first = ct_launch_offset(l, l->op->in[0], 1);
    if (ct_op_input(l->op, 1)) {
        a.positions = l->in[1].data;
        memcpy(a.position_stride, l->in[1].stride, sizeof(a.position_stride));
    }
    return ct_cuda_launch(l, state->by.f[vector],
                          (struct ct_cuda_size){(unsigned)ct_cuda_blocks(items, THREADS),
                                                (unsigned)ct_cuda_blocks(a.heads, HEADS), 1},
                          (struct ct_cuda_size){THREADS, 1, 1}, 0, &a);
}

const struct ct_kernel gpu_rope_kernels[] = {
    CT_KERNEL("rope", "vector", CT_KERNEL_STRIDED, accepts_rope, prepare_rope, run_rope), {0}};
