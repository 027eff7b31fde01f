/*
 * A device's kernel against the op's reference in float64 on the same rounded inputs.
 *
 * Tolerance, for an output of dtype D in a tensor whose largest element is S: one rounding to D,
 * and (8 + 3 sqrt(K)) 2^-24 S, where K is the number of terms of the longest sum. tests/conformance
 * tries more calls, larger sizes and difficult numbers.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>

#include "machine.h"

struct layout {
    const char *name;
    bool gaps, accumulate;
};

static const struct layout layouts[] = {{"dense", false, false},
                                        {"dense, accumulating", false, true},
                                        {"with gaps between rows", true, false},
                                        {"with gaps, accumulating", true, true}};

#define BEFORE 0.5 /* what is accumulated into */
#define GAP 3      /* elements between two rows */

static struct ct_tensor laid_out(struct call *c, const struct ct_tensor *t, bool gaps)
{
    struct ct_tensor copy = *t;
    int64_t step = 1;
    char *data;

    if (!t->data)
        return copy;
    for (int d = t->ndim - 1; d >= 0; d--) {
        copy.stride[d] = step;
        step = step * t->shape[d] + (gaps && d == t->ndim - 1 && t->ndim > 1 ? GAP : 0);
    }
    data = ct_arena_alloc(&c->m.arena, (size_t)step * 8 + 128);
    copy.data = data + (64 - (uintptr_t)data % 64);
    for (int64_t i = 0; i < ct_tensor_count(t); i++)
        ct_tensor_store(&copy, i, ct_tensor_load(t, i));
    return copy;
}

/* The tensors as `accepts` sees them: without data. */
static void hide(const struct ct_tensor *from, struct ct_tensor *to, bool *present, int count)
{
    for (int i = 0; i < count; i++) {
        to[i] = from[i];
        to[i].data = NULL;
        if (present)
            present[i] = from[i].data != NULL;
    }
}

static int prepare(struct call *c, struct ct_device *device, const struct ct_kernel *kernel,
                   struct ct_launch *launch)
{
    struct ct_tensor *in = ct_arena_array(&c->m.arena, struct ct_tensor, launch->ins + 1);
    struct ct_tensor *out = ct_arena_array(&c->m.arena, struct ct_tensor, launch->outs + 1);
    bool *present = ct_arena_array(&c->m.arena, bool, launch->ins + 1);
    struct ct_prepare p = {.op = c->op,
                           .in = in,
                           .out = out,
                           .present = present,
                           .ins = launch->ins,
                           .outs = launch->outs,
                           .accumulate = launch->accumulate,
                           .device = device,
                           .arena = &c->m.arena};
    int rc = 0;

    hide(launch->in, in, present, launch->ins);
    hide(launch->out, out, NULL, launch->outs);
    if (kernel->accepts && !kernel->accepts(&p))
        return 0;
    memcpy(in, launch->in, sizeof(*in) * (size_t)launch->ins);
    memcpy(out, launch->out, sizeof(*out) * (size_t)launch->outs);
    if (kernel->prepare)
        rc = kernel->prepare(&p);
    launch->state = p.state;
    if (p.workspace) {
        char *data = ct_arena_alloc(&c->m.arena, p.workspace + 64);

        launch->workspace = data + (64 - (uintptr_t)data % 64);
    }
    return rc < 0 ? rc : 1;
}

static double largest(const struct ct_tensor *t)
{
    double most = 0;

    for (int64_t i = 0; i < ct_tensor_count(t); i++)
        most = fmax(most, fabs(ct_tensor_load(t, i)));
    return most;
}

static double rounding(enum ct_dtype dtype)
{
    switch (dtype) {
    case CT_F64:
        return 0x1p-40;
    case CT_F32:
        return 0x1p-23;
    case CT_F16:
        return 0x1p-10;
    case CT_BF16:
        return 0x1.1p-8;
    default:
        return 0x1p-3;
    }
}

static int compare(const struct call *c, const struct ct_kernel *kernel, const char *how,
                   const char *operand, int index, const struct ct_tensor *got,
                   const struct ct_tensor *want, double before)
{
    double terms = 1, slack;

    for (int i = 0; i < c->op->ins; i++)
        if (c->in[i].data)
            terms = fmax(terms, (double)ct_tensor_count(&c->in[i]));
    slack = ((8 + 3 * sqrt(terms)) * 0x1p-24 + rounding(got->dtype) / 4) *
            (largest(want) + fabs(before));
    for (int64_t i = 0; i < ct_tensor_count(want); i++) {
        double g = ct_tensor_load(got, i), w = ct_tensor_load(want, i) + before;

        if (g != w && !(isnan(g) && isnan(w)) &&
            !(fabs(g - w) <= rounding(got->dtype) * fabs(w) + slack))
            return ct_fail(CT_EINVAL,
                           "kernel %s of %s(%s), %s, %s: %s %d, element %lld: %.9g, and the "
                           "reference computes %.9g",
                           kernel->name, c->sample->type, c->sample->inputs, how,
                           ct_dtype_name(got->dtype), operand, index, (long long)i, g, w);
    }
    return 0;
}

/* All operands against those of the call `want`. */
static int compare_all(const struct call *c, const struct ct_kernel *kernel, const char *how,
                       const struct ct_launch *l, const struct call *want)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < l->outs; i++)
        rc = compare(c, kernel, how, "output", i, &l->out[i], &want->out[i],
                     l->accumulate >> i & 1 ? BEFORE : 0);
    for (int i = 0; rc == 0 && i < l->ins; i++)
        if (l->in[i].data)
            rc = compare(c, kernel, how, "input", i, &l->in[i], &want->after[i], 0);
    return rc;
}

/* 1: it was tried; 0: the kernel does not accept the call. exact: the same call in float64. What
   follows from rounded results may be near the reference on rounded results instead. */
static int try_layout(struct ct_device *device, const struct ct_kernel *kernel, struct call *c,
                      const struct call *exact, const struct layout *how)
{
    struct ct_tensor in[CHECK_OPERANDS], out[CHECK_OPERANDS];
    struct ct_launch l = {.op = c->op,
                          .in = in,
                          .out = out,
                          .ins = c->op->ins,
                          .outs = c->op->outs,
                          .device = device};
    int rc;

    if ((how->gaps && !(kernel->flags & CT_KERNEL_STRIDED)) ||
        (how->accumulate && !(kernel->flags & CT_KERNEL_ACCUMULATES)))
        return 0;
    for (int i = 0; i < l.ins; i++)
        in[i] = laid_out(c, &c->in[i], how->gaps);
    for (int i = 0; i < l.outs; i++) {
        bool add = how->accumulate && ct_dtype_is_float(c->out[i].dtype);

        l.accumulate |= (uint32_t)add << i;
        out[i] = laid_out(c, &c->out[i], how->gaps);
        for (int64_t k = 0; k < ct_tensor_count(&out[i]); k++)
            ct_tensor_store(&out[i], k, add ? BEFORE : (double)NAN);
    }
    rc = prepare(c, device, kernel, &l);
    if (rc <= 0)
        return rc;
    rc = device->ops->enqueue(device, CT_STREAM_COMPUTE, kernel, &l);
    if (rc == 0)
        rc = device->ops->synchronize(device);
    if (rc == 0 && compare_all(c, kernel, how->name, &l, c) < 0)
        rc = compare_all(c, kernel, how->name, &l, exact);
    return rc < 0 ? rc : 1;
}

int ct_check_kernel(struct ct_device *device, const struct ct_kernel *kernel,
                    const struct ct_sample *sample)
{
    static const enum ct_dtype dtypes[] = {CT_F32, CT_BF16, CT_F64};
    int rc = 0, tried = 0;

    for (size_t d = 0; rc >= 0 && d < CT_COUNT(dtypes); d++) {
        struct call c = {0}, exact = {0};

        rc = call_create(&c, sample, dtypes[d], NULL);
        if (rc == 0)
            rc = call_create(&exact, sample, CT_F64, &c);
        for (size_t i = 0; rc >= 0 && i < CT_COUNT(layouts); i++) {
            rc = try_layout(device, kernel, &c, &exact, &layouts[i]);
            tried += rc > 0;
        }
        call_finish(&exact);
        call_finish(&c);
    }
    return rc < 0 ? rc : tried;
}
