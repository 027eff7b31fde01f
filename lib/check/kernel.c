/*
 * A device's kernel against the op's reference (lib/app/check.h says how near it must be): one
 * attempt for each arrangement of its operands.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>

#include "layout.h"
#include "machine.h"
#include "mirror.h"
#include "ranges.h"
#include "tensors.h"

#define BEFORE 0.5 /* what is accumulated into */

struct attempt {
    struct ct_checker *checker;
    const struct ct_kernel *kernel;
    const struct ct_check_case *c;
    const struct ct_check_expected *expected;
    enum layout layout;
    bool accumulate, ranges;
    struct ct_arena arena;
    struct operands operands;
    struct ct_launch launch;
    double *worst;
};

static int fault(const struct attempt *a, const char *format, ...) CT_PRINTF(2, 3);

/* "kernel plain of add(real[2]), dense, accumulating" and the words. */
static int fault(const struct attempt *a, const char *format, ...)
{
    static const char *const names[LAYOUTS] = {"dense", "with gaps between rows",
                                               "with padded rows", "permuted",
                                               "with columns of one matrix"};
    char words[512];
    va_list list;

    va_start(list, format);
    vsnprintf(words, sizeof(words), format, list);
    va_end(list);
    return ct_fail(CT_EINVAL, "kernel %s of %s, %s%s%s%s", a->kernel->name, a->c->what,
                   a->ranges ? "with two ranges of ct_parallel at the same time" : names[a->layout],
                   a->accumulate ? ", accumulating" : "",
                   a->operands.beside ? ", side by side" : "", words);
}

/* ---- running ---- */

/* The tensors as `accepts` and `prepare` see them, without data, and where they lie: all memory is
   one buffer here. */
static void hide(const struct ct_tensor *from, struct ct_tensor *to, int count,
                 struct ct_location *locations)
{
    for (int i = 0; i < count; i++) {
        to[i] = from[i];
        to[i].data = NULL;
        locations[i].buffer = from[i].data ? 0 : CT_ANYWHERE;
        locations[i].offset = (size_t)(uintptr_t)from[i].data;
    }
}

int ct_check_prepare(struct ct_device *device, const struct ct_kernel *kernel, struct ct_launch *l,
                     struct ct_arena *arena, size_t *workspace)
{
    struct ct_tensor *in = ct_arena_array(arena, struct ct_tensor, l->ins + 1);
    struct ct_tensor *out = ct_arena_array(arena, struct ct_tensor, l->outs + 1);
    bool *present = ct_arena_array(arena, bool, l->ins + 1);
    struct ct_location *at = ct_arena_array(arena, struct ct_location, l->ins + l->outs + 1);
    struct ct_prepare p = {.op = l->op,
                           .in = in,
                           .out = out,
                           .present = present,
                           .ins = l->ins,
                           .outs = l->outs,
                           .accumulate = l->accumulate,
                           .device = device,
                           .arena = arena,
                           .mesh = l->graph ? &l->graph->mesh : NULL,
                           .graph = l->graph};
    int rc = 0;

    for (int i = 0; i < l->ins; i++)
        present[i] = l->in[i].data != NULL;
    hide(l->in, in, l->ins, at);
    hide(l->out, out, l->outs, at + l->ins);
    if (kernel->accepts && !kernel->accepts(&p))
        return 0;
    p.locations = at;
    if (kernel->prepare)
        rc = kernel->prepare(&p);
    l->state = p.state;
    l->device = device;
    *workspace = p.workspace;
    return rc < 0 ? rc : 1;
}

static bool all_dense(const struct ct_launch *l)
{
    for (int i = 0; i < l->ins; i++)
        if (l->in[i].data && !ct_tensor_is_dense(&l->in[i]))
            return false;
    for (int i = 0; i < l->outs; i++)
        if (!ct_tensor_is_dense(&l->out[i]))
            return false;
    return true;
}

static void poison(const struct attempt *a)
{
    for (int i = 0; i < a->launch.outs; i++) {
        double bits;
        struct ct_tensor every = a->launch.out[i];

        if (a->c->op->out[i]->opaque_bytes)
            continue;
        every.data = &bits;
        memset(every.stride, 0, sizeof(every.stride));
        ct_tensor_store(&every, 0, a->launch.accumulate >> i & 1 ? BEFORE : (double)NAN);
        tensor_copy(&a->launch.out[i], &every);
    }
}

static int run_kernel(struct ct_device *device, const struct ct_kernel *kernel,
                      const struct ct_launch *launch)
{
    int rc = device->ops->enqueue(device, CT_STREAM_COMPUTE, kernel, launch);

    return rc == 0 ? device->ops->synchronize(device) : rc;
}

static char *add_workspace(struct memory *m, size_t bytes, bool host_memory)
{
    static const char name[] = "the workspace";

    return host_memory ? memory_add(m, bytes, NULL, name, -1) : memory_add_apart(m, bytes, name);
}

/* Kernels in host memory run on the blocks themselves, others on copies of them. */
static int prepare_and_run(struct attempt *a)
{
    struct ct_device *device = a->checker->device;
    struct mirror mirror = {.checker = a->checker};
    struct ct_launch there = a->launch;
    size_t workspace;
    int rc = 0;

    if (!device->host_memory) {
        rc = mirror_reserve(&mirror, &a->operands.memory);
        if (rc == 0)
            mirror_operands(&mirror, &a->operands.memory, &a->launch, &there);
    }
    if (rc == 0)
        rc = ct_check_prepare(device, a->kernel, &there, &a->arena, &workspace);
    if (rc <= 0)
        return rc;
    if (workspace)
        there.workspace = add_workspace(&a->operands.memory, workspace, device->host_memory);
    if (a->ranges)
        rc = run_in_ranges(device, a->kernel, &there, &a->operands.memory);
    else if (device->host_memory)
        rc = run_kernel(device, a->kernel, &there);
    else if ((rc = mirror_reserve(&mirror, &a->operands.memory)) == 0)
        rc = mirror_run(&mirror, a->kernel, &there, &a->operands.memory);
    return rc < 0 ? fault(a, ": %s", ct_error_message()) : 1;
}

/* ---- judging ---- */

static int check_memory(const struct attempt *a)
{
    int64_t at;
    const struct guarded *g = memory_stray(&a->operands.memory, &at);
    const char *why = "it has";

    if (!g)
        return 0;
    if (at >= 0 && at < (int64_t)g->bytes)
        why = "that is between two rows of its";
    else if (!strcmp(g->name, "the workspace"))
        why = "`prepare` asks for";
    return fault(a, ": it writes to byte %lld of %s: %s %zu bytes", (long long)at, g->name, why,
                 g->bytes);
}

/* Infinity if what is to be NaN is a number. */
static double lost(const double *got, const double *want, int64_t count, int64_t *where)
{
    for (int64_t i = 0; i < count; i++)
        if (isnan(want[i]) && !isnan(got[i])) {
            *where = i;
            return INFINITY;
        }
    return 0;
}

/* The error of an operand, in tolerances. operand: outputs come first. */
static double error_of(struct attempt *a, int operand, const struct ct_tensor *got, double before,
                       int64_t *where)
{
    const struct ct_check_case *c = a->c;
    const struct ct_check_expected *want = &a->expected[operand];
    const struct ct_check_call call = {.op = c->op,
                                       .in = a->launch.in,
                                       .out = a->launch.out,
                                       .inner_roundings = c->inner_roundings};
    struct ct_check_allowance allowance = {.rounding = ct_check_rounding(got->dtype)};
    double slack = ct_check_slack(&call, got->dtype, fmax(want->largest + fabs(before), c->least),
                                  want->sensitivity);
    const double *numbers = tensor_numbers(got, &a->arena);
    const double *exact = tensor_numbers(&want->exact, &a->arena);
    int64_t count = ct_tensor_count(got), ignored = 0;
    double error;

    if (c->only_nan)
        return lost(numbers, exact, count, where);
    if (c->allow)
        c->allow(c, a->kernel, operand, before != 0, &allowance);
    error = ct_check_error(numbers, exact, count, slack, allowance.own, before, allowance.rounding,
                           where);
    if (error > 1 && want->rounded.data)
        error = fmin(error, ct_check_error(numbers, tensor_numbers(&want->rounded, &a->arena),
                                           count, slack, allowance.own, before,
                                           2 * allowance.rounding, &ignored));
    return error;
}

static int judge(struct attempt *a, int operand)
{
    const struct ct_launch *l = &a->launch;
    bool output = operand < l->outs;
    int i = output ? operand : operand - l->outs;
    const struct ct_tensor *got = output ? &l->out[i] : &l->in[i];
    double before = output && l->accumulate >> i & 1 ? BEFORE : 0, error;
    int64_t where = 0;

    if (!got->data || !a->expected[operand].exact.data)
        return 0;
    error = error_of(a, operand, got, before, &where);
    *a->worst = fmax(*a->worst, error);
    if (error <= 1)
        return 0;
    return fault(a, ", %s: %s %d, element %lld of %lld: %.9g, and the reference computes %.9g",
                 ct_dtype_name(got->dtype), output ? "output" : "input", i, (long long)where,
                 (long long)ct_tensor_count(got), ct_tensor_load(got, where),
                 ct_tensor_load(&a->expected[operand].exact, where) + before);
}

/* ---- attempts ---- */

/* 1: it was tried; 0: the kernel does not accept the call, or the arrangement is that of another
   one. */
static int attempt(struct attempt *a)
{
    const struct ct_op *op = a->c->op;
    struct ct_launch *l = &a->launch;
    int rc;

    a->operands.memory = (struct memory){.arena = &a->arena};
    if (!lay_out(&a->operands, a->c, a->layout))
        return 0;
    *l = (struct ct_launch){.op = op,
                            .in = a->operands.in,
                            .out = a->operands.out,
                            .ins = op->ins,
                            .outs = op->outs,
                            .graph = a->c->graph};
    for (int i = 0; a->accumulate && i < l->outs; i++)
        l->accumulate |= (uint32_t)ct_dtype_is_float(l->out[i].dtype) << i;
    if (!(a->kernel->flags & CT_KERNEL_STRIDED) && !all_dense(l))
        return 0;
    poison(a);
    rc = prepare_and_run(a);
    if (rc <= 0)
        return rc;
    take_opaque(&a->operands, a->c);
    rc = check_memory(a);
    for (int i = 0; rc == 0 && i < l->outs + l->ins; i++)
        rc = judge(a, i);
    return rc < 0 ? rc : 1;
}

/* Bits of a result do not depend on neighbours in memory. A GPU may multiply neighbours as one
   matrix (docs/gpu.md). */
static int compare_bits(const struct attempt *a, struct attempt *beside)
{
    for (int i = 0; i < a->launch.outs; i++) {
        const double *first = tensor_numbers(&a->launch.out[i], &beside->arena);
        const double *second = tensor_numbers(&beside->launch.out[i], &beside->arena);

        for (int64_t k = 0, n = ct_tensor_count(&a->launch.out[i]); k < n; k++)
            if (first[k] != second[k] && !(isnan(first[k]) && isnan(second[k])))
                return fault(
                    beside, ", %s: output %d, element %lld: %.17g, and %.17g where they lie apart",
                    ct_dtype_name(a->launch.out[i].dtype), i, (long long)k, second[k], first[k]);
    }
    return 0;
}

/* Whether op has several operands that could be one. */
static bool has_members(const struct ct_op *op)
{
    struct ct_value **values;

    return ct_op_join(op, &values) > 1;
}

/* In the arrangement, and, on a device with host memory, with operands one behind the other. */
static int attempt_twice(struct attempt *a)
{
    struct attempt beside = *a;
    int rc = attempt(a);

    if (rc > 0 && !a->ranges && a->checker->device->host_memory && has_members(a->c->op)) {
        beside.operands.beside = true;
        rc = attempt(&beside);
        rc = rc > 0 ? compare_bits(a, &beside) : rc;
        rc = rc < 0 ? rc : 1;
    }
    ct_arena_finish(&beside.arena);
    ct_arena_finish(&a->arena);
    return rc;
}

int ct_check_call(struct ct_checker *checker, const struct ct_kernel *kernel,
                  const struct ct_check_case *c, const struct ct_check_expected *expected,
                  double *worst)
{
    const struct attempt plain = {
        .checker = checker, .kernel = kernel, .c = c, .expected = expected, .worst = worst};
    struct attempt a;
    int rc = 0, tried = 0;

    for (int layout = 0; rc >= 0 && layout < LAYOUTS; layout++)
        for (int accumulate = 0; rc >= 0 && accumulate < 2; accumulate++) {
            if ((accumulate && !(kernel->flags & CT_KERNEL_ACCUMULATES)) ||
                (layout == SPACED && c->again))
                continue;
            a = plain;
            a.layout = (enum layout)layout;
            a.accumulate = accumulate;
            rc = attempt_twice(&a);
            tried += rc > 0;
        }
    if (rc >= 0 && checker->device->host_memory && !c->again) {
        a = plain;
        a.ranges = true;
        rc = attempt_twice(&a);
        tried += rc > 0;
    }
    return rc < 0 ? rc : tried;
}

void ct_checker_finish(struct ct_checker *checker)
{
    for (int i = 0; i < 2; i++)
        if (checker->reserved[i].base)
            checker->device->ops->release(checker->device, checker->reserved[i].base,
                                          checker->reserved[i].bytes);
    memset(checker->reserved, 0, sizeof(checker->reserved));
}

/* ---- samples ---- */

/* For types whose results depend on positions in sequences. */
static int try_order(struct ct_checker *checker, const struct ct_kernel *kernel, struct ct_trial *m,
                     struct ct_check_case *c, struct ct_check_expected *expected)
{
    const struct ct_op *op = c->op;
    struct ct_rule rule;
    double worst = 0;
    int rc = order_begin(m, &rule);

    for (int i = 0; rc > 0 && i < op->ins; i++)
        if (op->in[i])
            order_apply(m, &rule, i, ct_trial_tensor(m, op->in[i]));
    for (int i = 0; rc > 0 && i < op->outs + op->ins; i++) {
        int operand = i < op->outs ? op->ins + i : i - op->outs;

        order_apply(m, &rule, operand, &expected[i].exact);
        order_apply(m, &rule, operand, &expected[i].rounded);
    }
    if (rc <= 0)
        return rc;
    c->what = ct_arena_printf(&m->arena, "%s, with sequences in another order", c->what);
    return ct_check_call(checker, kernel, c, expected, &worst);
}

static int try_dtype(struct ct_checker *checker, const struct ct_kernel *kernel,
                     const struct ct_sample *sample, enum ct_dtype dtype)
{
    struct ct_check_expected *expected;
    struct ct_check_case c = {.what = NULL};
    struct ct_trial m;
    double worst = 0;
    int rc = ct_trial_create(&m, sample, dtype), tried = 0;

    c.what = ct_arena_printf(&m.arena, "%s(%s)", sample->type, sample->inputs);
    if (rc < 0)
        rc = ct_context(CT_EINVAL, "%s", c.what);
    if (rc == 0) {
        c.graph = m.graph;
        c.op = m.op;
        for (size_t i = 0; i < m.graph->value_count; i++)
            ct_trial_tensor(&m, m.graph->values[i]);
        c.value = m.memory;
        if ((c.op->outs && c.op->out[0]->dtype == CT_BF16) ||
            (c.op->ins && c.op->in[0] && c.op->in[0]->dtype == CT_BF16))
            c.inner_roundings = sample->inner_roundings;
        rc = ct_check_expect(&c, &m.arena, &expected);
    }
    if (rc >= 0)
        rc = tried = ct_check_call(checker, kernel, &c, expected, &worst);
    if (rc >= 0)
        rc = try_order(checker, kernel, &m, &c, expected);
    ct_trial_finish(&m);
    return rc < 0 ? rc : tried + rc;
}

int ct_check_kernel(struct ct_checker *checker, const struct ct_kernel *kernel,
                    const struct ct_sample *sample)
{
    static const enum ct_dtype dtypes[] = {CT_F32, CT_BF16, CT_F64};
    int rc = 0, tried = 0;

    for (size_t d = 0; rc >= 0 && d < CT_COUNT(dtypes); d++) {
        rc = try_dtype(checker, kernel, sample, dtypes[d]);
        tried += rc > 0 ? rc : 0;
    }
    return rc < 0 ? rc : tried;
}
