/*
 * Shared parts of the norms. The gradient of a weight is summed per thread over its rows, then over
 * threads in their order, so it depends on the number of threads alone.
 */
#ifndef CPU_KERNELS_NORM_H
#define CPU_KERNELS_NORM_H

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

#define STEPS 4 /* independent sums: hides the latency of an addition */

struct state {
    float eps, offset; /* offset: added to w */
    int threads;
    size_t weight, partial; /* in the workspace: w, and each thread's dw, as float32 */
    size_t partial_bytes;
};

/* eps, offset: names of attributes, or NULL */
static inline int prepare_state(struct ct_prepare *prepare, const char *eps, const char *offset,
                                int partials)
{
    struct state *s = ct_arena_new(prepare->arena, struct state);
    size_t row = (size_t)prepare->in[0].shape[prepare->in[0].ndim - 1] * sizeof(float);

    s->eps = eps ? (float)ct_op_float(prepare->op, eps) : 0;
    s->offset = offset ? (float)ct_op_float(prepare->op, offset) : 0;
    s->threads = cpu_threads();
    s->weight = cpu_carve(&prepare->workspace, row);
    s->partial = prepare->workspace;
    s->partial_bytes = (row + 63) & ~(size_t)63;
    prepare->workspace += s->partial_bytes * (size_t)(partials * s->threads);
    prepare->state = s;
    return 0;
}

/* offset + w as float32: w itself, or in `to`. */
static inline const float *widen_weight(const struct ct_tensor *w, float offset, float *to)
{
    int64_t n = w->shape[0];

    if (w->dtype == CT_F32 && offset == 0)
        return w->data;
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(CT_F32, to, i, n, v_get(w->dtype, w->data, i, n) + offset);
    return to;
}

static inline void *row_at(const struct ct_tensor *t, const struct cpu_runs *runs, int operand,
                           int64_t r)
{
    int64_t at = cpu_run_at(runs, operand, r);

    return (char *)t->data + at * (int64_t)ct_dtype_size(t->dtype);
}

/* Columns of dw: the threads' sums in their order. */
static inline void reduce(const struct ct_tensor *dw, const char *partial, size_t bytes,
                          int threads, bool accumulate, struct cpu_range columns)
{
    for (int64_t i = columns.begin; i < columns.end; i += CPU_LANES) {
        vf total = accumulate ? v_get(dw->dtype, dw->data, i, columns.end) : v_set(0);

        for (int t = 0; t < threads; t++)
            total += v_get(CT_F32, partial + bytes * (size_t)t, i, columns.end);
        v_put(dw->dtype, dw->data, i, columns.end, total);
    }
}

#endif
