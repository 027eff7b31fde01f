/*
 * A device's kernel against the op's reference in float64 on the same rounded inputs.
 * (lib/app/check.h says how near it must be). tests/conformance tries more calls, larger sizes and
 * difficult numbers.
 *
 * Operands and the workspace lie between guards, which must stay as they are, like the gaps between
 * rows.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>

#include "machine.h"
#include "mirror.h"

struct layout {
    const char *name;
    bool gaps, accumulate, ranges;
};

static const struct layout layouts[] = {
    {"dense", .gaps = false},
    {"dense, accumulating", .accumulate = true},
    {"with gaps between rows", .gaps = true},
    {"with gaps, accumulating", .gaps = true, .accumulate = true},
    {"with two ranges of ct_parallel at the same time", .ranges = true},
};
static const struct layout in_another_order = {"with sequences in another order", .gaps = false};

#define BEFORE 0.5 /* what is accumulated into */
#define GAP 3      /* elements between two rows */

/* ---- guarded memory ---- */

#define GUARD_BYTE 254 /* in floating dtypes a large number: reading it shows, too */
#define NAN_BYTE 255   /* fills the workspace, which nobody clears: in every floating dtype NaN */

static char *guard(struct call *c, struct memory *m, size_t bytes, const struct ct_tensor *tensor)
{
    size_t all = GUARD + bytes + GUARD;
    char *begin = ct_arena_alloc(&c->m.arena, all + 64);

    begin += 64 - (uintptr_t)begin % 64;
    memset(begin, GUARD_BYTE, all);
    if (!tensor)
        memset(begin + GUARD, NAN_BYTE, bytes);
    m->block[m->count++] = (struct guarded){
        begin + GUARD, (char *)ct_arena_alloc(&c->m.arena, all) + GUARD, bytes, tensor};
    return begin + GUARD;
}

static void remember(struct memory *m)
{
    for (struct guarded *g = m->block; g < m->block + m->count; g++)
        memcpy(g->before - GUARD, g->data - GUARD, GUARD + g->bytes + GUARD);
}

/* Take over what a kernel may write. */
static void allow(const struct guarded *g)
{
    const struct ct_tensor *t = g->tensor;
    size_t size = t ? ct_dtype_size(t->dtype) : g->bytes;

    for (int64_t i = 0; i < (t ? ct_tensor_count(t) : 1); i++) {
        int64_t at = 0, rest = i;

        for (int d = t ? t->ndim - 1 : -1; d >= 0; rest /= t->shape[d--])
            at += rest % t->shape[d] * t->stride[d];
        memcpy(g->before + at * (int64_t)size, g->data + at * (int64_t)size, size);
    }
}

/* The first byte that changed although it is no element's, from the beginning of the memory on;
   false: there is none. */
static bool find_stray(const struct guarded *g, int64_t *at)
{
    allow(g);
    for (*at = -GUARD; *at < (int64_t)g->bytes + GUARD; ++*at)
        if (g->data[*at] != g->before[*at])
            return true;
    return false;
}

static int check_memory(const struct call *c, const struct ct_kernel *kernel, const char *how,
                        const struct memory *m, const struct ct_launch *l)
{
    for (const struct guarded *g = m->block; g < m->block + m->count; g++) {
        bool output = g->tensor >= l->out && g->tensor < l->out + l->outs;
        const char *why = !g->tensor ? "`prepare` asks for" : "it has";
        char name[32] = "the workspace";
        int64_t at;

        if (!find_stray(g, &at))
            continue;
        if (g->tensor)
            snprintf(name, sizeof(name), "%s %d", output ? "output" : "input",
                     (int)(g->tensor - (output ? l->out : l->in)));
        if (at >= 0 && at < (int64_t)g->bytes)
            why = "that is between two rows of its";
        return ct_fail(CT_EINVAL,
                       "kernel %s of %s(%s), %s: it writes to byte %lld of %s: %s %zu bytes",
                       kernel->name, c->sample->type, c->sample->inputs, how, (long long)at, name,
                       why, g->bytes);
    }
    return 0;
}

/* *copy: t in guarded memory. */
static void lay_out(struct call *c, struct memory *m, const struct ct_tensor *t, bool gaps,
                    struct ct_tensor *copy)
{
    int64_t step = 1;

    *copy = *t;
    if (!t->data)
        return;
    for (int d = t->ndim - 1; d >= 0; d--) {
        copy->stride[d] = step;
        step = step * t->shape[d] + (gaps && d == t->ndim - 1 && t->ndim > 1 ? GAP : 0);
    }
    copy->data = guard(c, m, (size_t)step * ct_dtype_size(t->dtype), copy);
    for (int64_t i = 0; i < ct_tensor_count(t); i++)
        ct_tensor_store(copy, i, ct_tensor_load(t, i));
}

/* ---- calls ---- */

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
                   struct memory *memory, struct ct_launch *launch)
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
                           .arena = &c->m.arena,
                           .graph = launch->graph};
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
    if (p.workspace)
        launch->workspace = guard(c, memory, p.workspace, NULL);
    return rc < 0 ? rc : 1;
}

static double largest(const struct ct_tensor *t)
{
    double most = 0;

    for (int64_t i = 0; i < ct_tensor_count(t); i++)
        most = fmax(most, fabs(ct_tensor_load(t, i)));
    return most;
}

/* What a sample's call should give. */
struct wanted {
    struct call rounded, exact; /* in the dtype that is tried, and in float64 on the same inputs */
    struct call disturbed;      /* as exact, with inputs that differ in their 22nd bit */
};

/* An operand of a call after it: an output, or an input. */
static const struct ct_tensor *operand(const struct call *c, bool output, int i)
{
    return output ? &c->out[i] : &c->after[i];
}

static double *numbers_of(struct call *c, const struct ct_tensor *t)
{
    double *numbers = ct_arena_array(&c->m.arena, double, ct_tensor_count(t));

    for (int64_t i = 0; i < ct_tensor_count(t); i++)
        numbers[i] = ct_tensor_load(t, i);
    return numbers;
}

static double largest_difference(const struct ct_tensor *a, const struct ct_tensor *b)
{
    double most = 0;

    for (int64_t i = 0; i < ct_tensor_count(a); i++)
        most = fmax(most, fabs(ct_tensor_load(a, i) - ct_tensor_load(b, i)));
    return most;
}

static int compare(struct wanted *w, const struct ct_kernel *kernel, const char *how, bool output,
                   int index, const struct ct_tensor *got, double before)
{
    struct call *c = &w->rounded;
    const struct ct_tensor *want = operand(&w->exact, output, index);
    const struct ct_check_call call = {
        .op = c->op,
        .in = c->in,
        .out = c->out,
        .inner_roundings = c->out[0].dtype == CT_BF16 || c->in[0].dtype == CT_BF16
                               ? c->sample->inner_roundings
                               : 0,
    };
    double slack = ct_check_slack(&call, got->dtype, largest(want) + fabs(before),
                                  largest_difference(want, operand(&w->disturbed, output, index)));
    double once = ct_check_rounding(got->dtype);
    const double *numbers = numbers_of(c, got);
    int64_t count = ct_tensor_count(got), where = 0, ignored = 0;

    if (ct_check_error(numbers, numbers_of(c, want), count, slack, NULL, before, once, &where) <=
            1 ||
        ct_check_error(numbers, numbers_of(c, operand(c, output, index)), count, slack, NULL,
                       before, 2 * once, &ignored) <= 1)
        return 0;
    return ct_fail(CT_EINVAL,
                   "kernel %s of %s(%s), %s, %s: %s %d, element %lld: %.9g, and the reference "
                   "computes %.9g",
                   kernel->name, c->sample->type, c->sample->inputs, how, ct_dtype_name(got->dtype),
                   output ? "output" : "input", index, (long long)where, numbers[where],
                   ct_tensor_load(want, where) + before);
}

static int compare_all(struct wanted *w, const struct ct_kernel *kernel, const char *how,
                       const struct ct_launch *l)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < l->outs; i++)
        rc = compare(w, kernel, how, true, i, &l->out[i], l->accumulate >> i & 1 ? BEFORE : 0);
    for (int i = 0; rc == 0 && i < l->ins; i++)
        if (l->in[i].data)
            rc = compare(w, kernel, how, false, i, &l->in[i], 0);
    return rc;
}

static int run(struct ct_device *device, const struct ct_kernel *kernel,
               const struct ct_launch *launch)
{
    int rc = device->ops->enqueue(device, CT_STREAM_COMPUTE, kernel, launch);

    return rc == 0 ? device->ops->synchronize(device) : rc;
}

/* Kernels in host memory run on the blocks themselves, others on copies of them. */
static int prepare_and_run(struct ct_device *device, const struct ct_kernel *kernel, struct call *c,
                           const struct layout *how, struct memory *memory,
                           const struct ct_launch *l)
{
    struct mirror mirror = {.device = device};
    struct ct_launch there = *l;
    int rc = 0;

    if (!device->host_memory) {
        rc = mirror_reserve(&mirror, memory);
        mirror_operands(&mirror, memory, l, &there);
    }
    if (rc == 0)
        rc = prepare(c, device, kernel, memory, &there);
    if (rc > 0) {
        remember(memory);
        if (how->ranges)
            rc = run_in_ranges(device, kernel, &there, memory);
        else if (device->host_memory)
            rc = run(device, kernel, &there);
        else if ((rc = mirror_reserve(&mirror, memory)) == 0)
            rc = mirror_run(&mirror, kernel, &there, memory);
        rc = rc < 0 ? rc : 1;
    }
    mirror_release(&mirror);
    return rc;
}

/* 1: it was tried; 0: the kernel does not accept the call. */
static int try_layout(struct ct_device *device, const struct ct_kernel *kernel, struct wanted *w,
                      const struct layout *how)
{
    struct call *c = &w->rounded;
    struct ct_tensor in[CHECK_OPERANDS], out[CHECK_OPERANDS];
    struct memory memory = {.count = 0};
    struct ct_launch l = {.op = c->op,
                          .in = in,
                          .out = out,
                          .ins = c->op->ins,
                          .outs = c->op->outs,
                          .device = device,
                          .graph = c->m.graph};
    int rc;

    if ((how->gaps && !(kernel->flags & CT_KERNEL_STRIDED)) ||
        (how->accumulate && !(kernel->flags & CT_KERNEL_ACCUMULATES)) ||
        (how->ranges && !device->host_memory))
        return 0;
    for (int i = 0; i < l.ins; i++)
        lay_out(c, &memory, &c->in[i], how->gaps, &in[i]);
    for (int i = 0; i < l.outs; i++) {
        bool add = how->accumulate && ct_dtype_is_float(c->out[i].dtype);

        l.accumulate |= (uint32_t)add << i;
        lay_out(c, &memory, &c->out[i], how->gaps, &out[i]);
        for (int64_t k = 0; k < ct_tensor_count(&out[i]); k++)
            ct_tensor_store(&out[i], k, add ? BEFORE : (double)NAN);
    }
    rc = prepare_and_run(device, kernel, c, how, &memory, &l);
    if (rc < 0)
        return ct_context(rc, "kernel %s of %s(%s), %s", kernel->name, c->sample->type,
                          c->sample->inputs, how->name);
    if (rc == 0)
        return 0;
    rc = check_memory(c, kernel, how->name, &memory, &l);
    if (rc == 0)
        rc = compare_all(w, kernel, how->name, &l);
    return rc < 0 ? rc : 1;
}

/* For types whose results depend on positions in sequences. */
static int try_order(struct ct_device *device, const struct ct_kernel *kernel, struct wanted *w)
{
    int rc = call_reorder(&w->rounded);

    if (rc > 0)
        rc = call_reorder(&w->exact);
    if (rc > 0)
        rc = call_reorder(&w->disturbed);
    return rc > 0 ? try_layout(device, kernel, w, &in_another_order) : rc;
}

int ct_check_kernel(struct ct_device *device, const struct ct_kernel *kernel,
                    const struct ct_sample *sample)
{
    static const enum ct_dtype dtypes[] = {CT_F32, CT_BF16, CT_F64};
    int rc = 0, tried = 0;

    for (size_t d = 0; rc >= 0 && d < CT_COUNT(dtypes); d++) {
        struct wanted w = {0};

        rc = call_create(&w.rounded, sample, dtypes[d], NULL, false);
        if (rc == 0)
            rc = call_create(&w.exact, sample, CT_F64, &w.rounded, false);
        if (rc == 0)
            rc = call_create(&w.disturbed, sample, CT_F64, &w.rounded, true);
        for (size_t i = 0; rc >= 0 && i < CT_COUNT(layouts); i++) {
            rc = try_layout(device, kernel, &w, &layouts[i]);
            tried += rc > 0;
        }
        if (rc >= 0)
            rc = try_order(device, kernel, &w);
        tried += rc > 0;
        call_finish(&w.disturbed);
        call_finish(&w.exact);
        call_finish(&w.rounded);
    }
    return rc < 0 ? rc : tried;
}
