/*
 * States of the segments of sequences: keeps state + gain from one segment to the next. Threads
 * share heads.
 */
#include <omp.h>

#include <ctitan/lib/ops.h>

#include "../cpu.h"
#include "kernels.h"
#include "rows.h"

struct fold {
    const struct ct_launch *l;
    bool back;
    int64_t batch, segments, heads, k, factor;
    int64_t *at; /* by position: index of the segment */
};

bool CPU_ISA(cpu_fold_states_accepts)(const struct ct_prepare *p)
{
    bool keeps = p->present[0];

    return cpu_is_compute_dtype(p->in[1].dtype) && (!keeps || p->in[1].dtype == CT_F32);
}

int CPU_ISA(cpu_fold_states_prepare)(struct ct_prepare *p)
{
    cpu_carve(&p->workspace, (size_t)p->in[1].shape[1] * sizeof(int64_t));
    return 0;
}

/* Rows of a head of the segment at a position: keeps, gain or states. */
static struct rows head_of(const struct fold *f, const struct ct_tensor *t, int64_t b,
                           int64_t position, int64_t h)
{
    int64_t bytes = (int64_t)ct_dtype_size(t->dtype);
    char *at = (char *)t->data +
               (b * t->stride[0] + f->at[position] * t->stride[1] + h * t->stride[2]) * bytes;

    return (struct rows){at, t->stride[3] * bytes, 0, t->shape[4], t->dtype};
}

static bool goes_on(const struct fold *f, int64_t b, int64_t position)
{
    struct rows ends = f->l->ins > 2 ? rows_of(&f->l->in[2], 0, 3) : (struct rows){NULL};
    const struct ct_tensor *t = &f->l->in[2];
    const int32_t *of = (const int32_t *)(const void *)ends.at;

    if (!of)
        return true;
    of += b * t->stride[0];
    return of[f->at[position - 1] * t->stride[1] + 1] == of[f->at[position] * t->stride[1]];
}

/* to = gain + keeps from, or with keeps transposed; row i. */
static void fold_row(const struct fold *f, const struct rows *keeps, const struct rows *gain,
                     const struct rows *from, const struct rows *to, int64_t i)
{
    char *row = row_at(to, i, 0);

    memcpy(row, row_at(gain, i, 0), (size_t)gain->size * ct_dtype_size(gain->dtype));
    for (int64_t j = 0; keeps->at && j < f->k; j++) {
        int64_t a = f->back ? j : i, b = f->back ? i : j;
        float w = f->factor == 1 ? i == j ? *(const float *)(const void *)keeps->at : 0
                                 : ((const float *)(const void *)row_at(keeps, a, 0))[b];

        for (int64_t k = 0; w != 0 && k < to->size; k += CPU_LANES)
            v_put(CT_F32, row, k, to->size,
                  v_get(CT_F32, row, k, to->size) +
                      w * v_get(CT_F32, row_at(from, j, 0), k, to->size));
    }
}

static void fold_head(const struct fold *f, int64_t b, int64_t h)
{
    const struct ct_tensor *in = f->l->in, *out = f->l->out;

    for (int64_t p = 0; p < f->segments; p++) {
        int64_t position = f->back ? f->segments - 1 - p : p,
                before = position + (f->back ? 1 : -1);
        struct rows to = head_of(f, out, b, position, h), keeps = {NULL}, gain, from;

        if (p == 0 || !goes_on(f, b, f->back ? before : position)) {
            for (int64_t i = 0; i < f->k; i++)
                memset(row_at(&to, i, 0), 0, (size_t)to.size * ct_dtype_size(to.dtype));
            continue;
        }
        if (in[0].data)
            keeps = head_of(f, &in[0], b, before, h);
        gain = head_of(f, &in[1], b, before, h);
        from = head_of(f, out, b, before, h);
        for (int64_t i = 0; i < f->k; i++)
            fold_row(f, &keeps, &gain, &from, &to, i);
    }
}

int CPU_ISA(cpu_fold_states_run)(const struct ct_launch *l)
{
    const int64_t *shape = l->in[1].shape;
    struct fold f = {.l = l,
                     .back = ((const struct ct_fold *)l->op->attrs)->back,
                     .batch = shape[0],
                     .segments = shape[1],
                     .heads = shape[2],
                     .k = shape[3],
                     .factor = l->in[0].data ? l->in[0].shape[4] : 0,
                     .at = l->workspace};

    ct_launch_order(l, l->op->in[1], 1, f.at);
#pragma omp parallel for if (cpu_worth_threads(ct_tensor_count(&l->in[1])))
    for (int64_t i = 0; i < f.batch * f.heads; i++)
        fold_head(&f, i / f.heads, i % f.heads);
    return 0;
}

bool CPU_ISA(cpu_document_ends_accepts)(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_I32;
}

int CPU_ISA(cpu_document_ends_run)(const struct ct_launch *l)
{
    const struct ct_tensor *d = l->in;
    int64_t tokens = d->shape[d->ndim - 1];

    for (int64_t b = 0; b < ct_shape_count(d->ndim - 1, d->shape); b++) {
        struct rows from = rows_of(d, b, 1), to = rows_of(l->out, b, 1);

        memcpy(to.at, row_at(&from, 0, 0), sizeof(int32_t));
        memcpy(to.at + sizeof(int32_t), row_at(&from, tokens - 1, 0), sizeof(int32_t));
    }
    return 0;
}
