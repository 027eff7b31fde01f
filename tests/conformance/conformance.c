/*
 * Usage: conformance [--device NAME] [--set KEY=VALUE]... [CASE]
 *
 * --set sets an option of the device's plugin. CASE: only cases whose names contain it. Prints a
 * line per kernel and leaves with status 1 if any kernel was wrong, failed, or was never tried.
 */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/plugin.h>
#include <ctitan/lib/app/check.h>
#include <ctitan/lib/app/generate.h>
#include <ctitan/lib/ops.h>

#include "conformance.h"

struct score {
    const struct ct_kernel *kernel;
    int cases, calls, faults;
    double worst; /* error over tolerance */
};

struct options {
    const char *device, *filter;
};

static struct score scores[512];
static const struct ct_plugin *device_plugin;

static struct score *score_of(const struct ct_kernel *kernel)
{
    struct score *s = scores;

    while (s->kernel && s->kernel != kernel)
        s++;
    s->kernel = kernel;
    return s;
}

/* ---- the reference ---- */

/* What an operand should be after the call. */
struct expected {
    struct ct_tensor exact; /* data NULL: opaque, or absent */
    struct ct_tensor
        rounded; /* with all results rounded to their dtypes on the way; data NULL: unknown */
    struct ct_tensor sizes; /* exact, if all inputs were positive; data NULL: not needed */
    double sensitivity;     /* change of the exact result when inputs change in their 22nd bit */
    double largest;         /* finite element of exact, by size */
};

/* Operands of an op: outputs, then inputs. */
static struct ct_value *operand_value(const struct ct_op *op, int i)
{
    return i < op->outs ? op->out[i] : op->in[i - op->outs];
}

enum precision { EXACT, ROUNDED, DISTURBED, SIZES };

static struct ct_tensor copy_of(struct ct_arena *arena, const struct ct_tensor *t,
                                enum precision precision, int operand)
{
    int64_t n = ct_tensor_count(t);
    bool real = ct_dtype_is_float(t->dtype);
    enum ct_dtype dtype = real && precision != ROUNDED ? CT_F64 : t->dtype;
    struct ct_tensor copy =
        ct_tensor_dense(ct_arena_alloc(arena, (size_t)n * 8 + 8), dtype, t->ndim, t->shape);

    if (dtype == CT_F64)
        tensor_read(t, copy.data);
    else
        tensor_copy(&copy, t);
    if (real && precision == DISTURBED)
        ct_check_disturb(copy.data, n, operand);
    for (int64_t i = 0; real && precision == SIZES && i < n; i++)
        ((double *)copy.data)[i] = fabs(((double *)copy.data)[i]);
    return copy;
}

static double *numbers_of(const struct ct_tensor *t, struct ct_arena *arena)
{
    double *numbers = ct_arena_array(arena, double, ct_tensor_count(t));

    tensor_read(t, numbers);
    return numbers;
}

static double largest(const struct ct_tensor *t, struct ct_arena *arena)
{
    const double *x = numbers_of(t, arena);
    double most = 0;

    for (int64_t i = 0; i < ct_tensor_count(t); i++)
        most = isfinite(x[i]) ? fmax(most, fabs(x[i])) : most;
    return most;
}

static int run_reference(const struct bed *bed, const struct ct_op *op, struct ct_arena *arena,
                         enum precision precision, struct ct_tensor *operands)
{
    struct ct_launch launch = {
        .op = op, .out = operands, .in = operands + op->outs, .ins = op->ins, .outs = op->outs};

    for (int i = 0; i < op->outs + op->ins; i++)
        if (operand_value(op, i))
            operands[i] = copy_of(arena, &bed->value[operand_value(op, i)->id], precision, i);
    return op->type->reference(&launch);
}

static double largest_difference(const struct ct_tensor *a, const struct ct_tensor *b,
                                 struct ct_arena *arena)
{
    const double *x = numbers_of(a, arena), *y = numbers_of(b, arena);
    double most = 0;

    for (int64_t i = 0; i < ct_tensor_count(a); i++)
        most = fmax(most, fabs(x[i] - y[i]));
    return most;
}

static bool is_float8_product(const struct ct_op *op)
{
    return !strncmp(op->type->name, "linear_float8", strlen("linear_float8"));
}

static int expect(const struct bed *bed, const struct ct_op *op, struct ct_arena *arena,
                  struct expected **expected)
{
    int n = op->outs + op->ins, rc = 0, last = is_float8_product(op) ? SIZES : DISTURBED;
    struct ct_tensor *operands[SIZES + 1] = {NULL};

    *expected = ct_arena_array(arena, struct expected, n + 1);
    for (int p = EXACT; rc >= 0 && p <= last; p++) {
        operands[p] = ct_arena_array(arena, struct ct_tensor, n + 1);
        rc = run_reference(bed, op, arena, (enum precision)p, operands[p]);
    }
    for (int i = 0; rc >= 0 && i < n; i++)
        if (operand_value(op, i))
            (*expected)[i] = (struct expected){
                operands[EXACT][i], operands[ROUNDED][i],
                last == SIZES ? operands[SIZES][i] : (struct ct_tensor){0},
                largest_difference(&operands[EXACT][i], &operands[DISTURBED][i], arena),
                largest(&operands[EXACT][i], arena)};
    return rc;
}

/* Later ops see the reference's results. */
static void keep_results(struct bed *bed, const struct ct_op *op, const struct expected *expected,
                         struct ct_arena *arena)
{
    for (int i = 0; i < op->outs + op->ins; i++) {
        const struct ct_value *v = operand_value(op, i);
        const double *numbers;

        if (!expected[i].exact.data || (i >= op->outs && !ct_op_mutates(op, i - op->outs)))
            continue;
        numbers = numbers_of(&expected[i].exact, arena);
        tensor_write(&bed->value[v->id], numbers);
        tensor_write(&bed->exact[v->id], numbers);
        bed->sensitivity[v->id] = expected[i].sensitivity;
    }
}

/* ---- comparing ---- */

#define UNITS_ERROR 0x1p-12 /* of a sum of Float8 products by hardware, relative to their sizes */

/* The tolerance for an element of size |want|, but for a rounding of it. */
static double tolerance(const struct call *c, const struct bed *bed, const struct ct_tensor *got,
                        const struct expected *expected, double before)
{
    const struct ct_check_call call = {
        .op = c->op,
        .in = c->in,
        .out = c->out,
        .inner_roundings = bed->dtype == CT_BF16 ? bed->test->inner_roundings : 0,
    };
    double scale = expected->largest + fabs(before);

    if (bed->test->exponential)
        scale = fmax(1, scale);
    return ct_check_slack(&call, got->dtype, scale, expected->sensitivity);
}

/* cuDNN makes gradients of keys and values in bfloat16 only: float32 ones are casts of those. */
static double result_rounding(const struct call *c, const struct ct_tensor *got)
{
    bool cast = !strcmp(c->kernel->name, "cudnn") && !strcmp(c->kernel->op, "attention_grad");

    return ct_check_rounding(cast ? CT_BF16 : got->dtype);
}

/* What the units that multiply Float8 add to the tolerance of each element (conformance.h); NULL:
   nothing. */
static const double *units_tolerance(const struct call *c, const struct expected *expected,
                                     const struct ct_tensor *got, bool accumulated)
{
    double *sizes;
    const double *want;

    if (strcmp(c->kernel->name, "cublaslt") != 0 || !expected->sizes.data)
        return NULL;
    sizes = numbers_of(&expected->sizes, c->arena);
    want = numbers_of(&expected->exact, c->arena);
    for (int64_t i = 0; i < ct_tensor_count(got); i++) {
        sizes[i] *= UNITS_ERROR;
        if (accumulated && got->dtype == CT_BF16)
            sizes[i] += ct_check_rounding(CT_BF16) * fabs(want[i]);
    }
    return sizes;
}

/* Infinity if a NaN has become a number. */
static double lost(const double *got, const double *want, int64_t count, int64_t *where)
{
    for (int64_t i = 0; i < count; i++)
        if (isnan(want[i]) && !isnan(got[i])) {
            *where = i;
            return INFINITY;
        }
    return 0;
}

static void report(struct score *s, const struct call *c, const struct bed *bed, int operand,
                   const struct ct_tensor *got, const struct ct_tensor *want, double before,
                   int64_t where, const char *how)
{
    if (s->faults++ < 5)
        printf("FAULT %s (%s), case \"%s\", %s, %s: element %lld of %lld: %.17g instead of %.17g\n",
               c->op->type->name, c->kernel->name, bed->test->name, how,
               operand_value(c->op, operand)->name, (long long)where,
               (long long)ct_tensor_count(got), ct_tensor_load(got, where),
               ct_tensor_load(want, where) + before);
}

static void judge(struct score *s, const struct call *c, const struct bed *bed,
                  const struct expected *expected, double before, const char *how)
{
    for (int i = 0; i < c->op->outs + c->op->ins; i++) {
        const struct ct_tensor *got = i < c->op->outs ? &c->out[i] : &c->in[i - c->op->outs];
        const struct ct_tensor *want = &expected[i].exact;
        bool accumulated = i < c->op->outs && c->launch.accumulate >> i & 1;
        double base = accumulated ? before : 0, once = result_rounding(c, got), tolerated, error;
        int64_t where = 0, ignored;
        const double *numbers, *own;

        if (!want->data || (!ct_dtype_is_float(got->dtype) && accumulated))
            continue;
        tolerated = tolerance(c, bed, got, &expected[i], base);
        own = units_tolerance(c, &expected[i], got, accumulated);
        numbers = numbers_of(got, c->arena);
        error = bed->fill == FILL_NAN
                    ? lost(numbers, numbers_of(want, c->arena), ct_tensor_count(got), &where)
                    : ct_check_error(numbers, numbers_of(want, c->arena), ct_tensor_count(got),
                                     tolerated, own, base, once, &where);
        if (error > 1 && bed->fill != FILL_NAN && expected[i].rounded.data)
            error = fmin(error, ct_check_error(numbers, numbers_of(&expected[i].rounded, c->arena),
                                               ct_tensor_count(got), tolerated, own, base, 2 * once,
                                               &ignored));
        if (!(error <= 1))
            report(s, c, bed, i, got, want, base, where, how);
        s->worst = fmax(s->worst, error);
    }
}

/* ---- trying ---- */

static void poison(const struct call *c, double before)
{
    for (int i = 0; i < c->op->outs; i++) {
        double bits;
        struct ct_tensor every = c->out[i];

        if (c->op->out[i]->opaque_bytes)
            continue;
        every.data = &bits;
        memset(every.stride, 0, sizeof(every.stride));
        ct_tensor_store(&every, 0, c->launch.accumulate >> i & 1 ? before : (double)NAN);
        tensor_copy(&c->out[i], &every);
    }
}

#define BESIDE 64 /* buffers of a plan begin at multiples of this */

static size_t room_of(const struct ct_tensor *t)
{
    return ((size_t)ct_tensor_count(t) * ct_dtype_size(t->dtype) + BESIDE - 1) / BESIDE * BESIDE;
}

/* Operands with data of their own, one behind the other from base on, with what is in them; NULL:
   nowhere. Returns the bytes. */
static size_t place_beside(struct ct_tensor *t, struct ct_value *const *value, int count,
                           char *base)
{
    size_t bytes = 0;

    for (int i = 0; i < count; i++) {
        if (!t[i].data || !ct_tensor_is_dense(&t[i]) || value[i]->opaque_bytes)
            continue;
        if (base) {
            memcpy(base + bytes, t[i].data,
                   (size_t)ct_tensor_count(&t[i]) * ct_dtype_size(t[i].dtype));
            t[i].data = base + bytes;
        }
        bytes += room_of(&t[i]);
    }
    return bytes;
}

/* Bits of a result do not depend on neighbours in memory: the call again, operands side by side. A
   GPU may multiply neighbours as one matrix (docs/gpu.md). */
static int try_neighbours(struct score *s, struct bed *bed, struct call *c, uint32_t bits,
                          const char *how)
{
    const double *first[64], *second;
    int ins = c->op->ins, outs = c->op->outs, rc;
    char *base;

    for (int i = 0; i < outs; i++)
        first[i] = numbers_of(&c->out[i], c->arena);
    base = ct_arena_alloc(c->arena, place_beside(c->in, c->op->in, ins, NULL) +
                                        place_beside(c->out, c->op->out, outs, NULL) + BESIDE);
    base += BESIDE - (uintptr_t)base % BESIDE;
    place_beside(c->out, c->op->out, outs, base + place_beside(c->in, c->op->in, ins, base));
    rc = call_prepare(c, bed, c->kernel, bits);
    if (rc <= 0)
        return rc;
    poison(c, 0.5);
    rc = call_run(c, bed);
    for (int i = 0; rc >= 0 && i < outs; i++) {
        second = numbers_of(&c->out[i], c->arena);
        for (int64_t k = 0; k < ct_tensor_count(&c->out[i]); k++)
            if (first[i][k] != second[k] && !(isnan(first[i][k]) && isnan(second[k])) &&
                s->faults++ < 5)
                printf("FAULT %s (%s), case \"%s\", %s: element %lld of output %d is %.17g, and "
                       "%.17g among neighbours\n",
                       c->op->type->name, c->kernel->name, bed->test->name, how, (long long)k, i,
                       first[i][k], second[k]);
    }
    return rc;
}

/* Whether op has several operands that could be one. */
static bool has_members(const struct ct_op *op)
{
    struct ct_value **values;

    return ct_op_join(op, &values) > 1;
}

static int try_kernel(struct bed *bed, const struct ct_op *op, const struct ct_kernel *kernel,
                      const struct expected *expected, enum layout layout, bool accumulate)
{
    static const char *const names[LAYOUTS] = {"dense", "padded", "permuted", "joined"};
    struct score *s = score_of(kernel);
    struct ct_arena arena = {0};
    struct call call;
    char how[64];
    uint32_t bits = accumulate ? (1u << op->outs) - 1 : 0;
    int rc = 0;

    if (call_lay_out(&call, bed, op, layout, &arena))
        rc = call_prepare(&call, bed, kernel, bits);
    if (rc > 0) {
        poison(&call, 0.5);
        rc = call_run(&call, bed);
        snprintf(how, sizeof(how), "%s%s, %s", names[layout], accumulate ? ", accumulating" : "",
                 ct_dtype_name(bed->dtype));
        if (rc >= 0)
            judge(s, &call, bed, expected, 0.5, how);
        else if (s->faults++ < 5)
            printf("FAULT %s (%s), case \"%s\", %s: %s\n", op->type->name, kernel->name,
                   bed->test->name, how, ct_error_message());
        if (rc >= 0 && bed->device->host_memory && has_members(op))
            rc = try_neighbours(s, bed, &call, bits, how);
        s->calls++;
        rc = 0; /* of other kernels more can be learned */
    }
    ct_arena_finish(&arena);
    return rc < 0 ? ct_context(rc, "%s (%s), case \"%s\"", op->type->name, kernel->name,
                               bed->test->name)
                  : 0;
}

static int try_kernels(struct bed *bed, const struct ct_op *op, const struct expected *expected)
{
    const struct ct_kernel *kernel;
    int rc = 0;

    for (size_t i = 0; rc >= 0 && (kernel = ct_kernel_at(bed->device->name, i)); i++) {
        if (strcmp(kernel->op, op->type->name))
            continue;
        score_of(kernel)->cases++;
        for (int layout = 0; rc >= 0 && layout < LAYOUTS; layout++)
            for (int accumulate = 0; rc >= 0 && accumulate < 2; accumulate++)
                rc = try_kernel(bed, op, kernel, expected, (enum layout)layout, accumulate);
    }
    return rc;
}

static int try_op(struct bed *bed, const struct ct_op *op)
{
    struct ct_arena arena = {0};
    struct expected *expected;
    int rc = expect(bed, op, &arena, &expected);

    if (rc >= 0)
        rc = try_kernels(bed, op, expected);
    if (rc >= 0)
        keep_results(bed, op, expected, &arena);
    ct_arena_finish(&arena);
    return rc;
}

/* What the plain graph's value of the same name is: twins keep their outputs' names. */
static int expect_as_in(const struct bed *plain, const struct ct_op *op, struct expected *expected,
                        struct ct_arena *arena)
{
    for (int i = 0; i < op->outs; i++) {
        const struct ct_value *same = ct_graph_find(plain->graph, op->out[i]->name);

        if (op->out[i]->opaque_bytes)
            continue;
        if (!same)
            return ct_fail(CT_EINVAL, "%%%s is not in the graph of case \"%s\"", op->out[i]->name,
                           plain->test->name);
        expected[i] = (struct expected){.exact = plain->exact[same->id],
                                        .sensitivity = plain->sensitivity[same->id],
                                        .largest = largest(&plain->exact[same->id], arena)};
    }
    return 0;
}

/* An op that the device's own transform put there is tried, others only hand on their results. */
static int try_twin(struct bed *bed, const struct bed *plain, const struct ct_op *op)
{
    struct ct_arena arena = {0};
    struct expected *expected = ct_arena_array(&arena, struct expected, op->outs + op->ins + 1);
    int rc = expect_as_in(plain, op, expected, &arena);

    if (rc >= 0 && !op->type->reference)
        rc = try_kernels(bed, op, expected);
    if (rc >= 0)
        keep_results(bed, op, expected, &arena);
    ct_arena_finish(&arena);
    return rc;
}

static int try_twins(const struct bed *plain)
{
    struct bed bed;
    int rc = bed_create(&bed, plain->device, plain->test, plain->dtype, plain->fill, plain->seed);

    if (rc >= 0)
        rc = bed_transform(&bed, device_plugin);
    for (const struct ct_op *op = rc > 0 ? bed.graph->first : NULL; rc >= 0 && op; op = op->next)
        rc = try_twin(&bed, plain, op);
    bed_finish(&bed);
    return rc;
}

static int try_case(struct ct_device *device, const struct conformance_case *test)
{
    static const enum ct_dtype dtypes[] = {CT_F32, CT_BF16};
    int rc = 0;

    for (size_t d = 0; rc >= 0 && d < CT_COUNT(dtypes); d++)
        for (int fill = 0; rc >= 0 && fill < (test->large ? 1 : FILLS); fill++) {
            struct bed bed;

            rc = bed_create(&bed, device, test, dtypes[d], (enum fill)fill, 42 + (uint64_t)fill);
            for (struct ct_op *op = rc >= 0 ? bed.graph->first : NULL; rc >= 0 && op; op = op->next)
                rc = try_op(&bed, op);
            if (rc >= 0)
                rc = try_twins(&bed);
            bed_finish(&bed);
        }
    return rc;
}

/* ---- the result ---- */

/* An instruction set or a unit that this process does not use, ops that are there with the unit
   alone (own_products tries them), a library that the machine may lack; packed weights that the
   optimizer renews, without AVX-512; a collective, which needs other ranks. */
static bool cannot_be_tried(const struct ct_kernel *kernel, const struct score *s,
                            const char *processor)
{
    const struct ct_op_type *type = ct_op_find(kernel->op);

    if (!strcmp(kernel->op, "cpu.pack_into"))
        return !s->cases && !strstr(processor, "avx512");
    if (!strncmp(kernel->op, "cpu.swiglu", 10))
        return true;
    return (s->cases && (!strncmp(kernel->name, "avx", 3) || strstr(kernel->name, "unit") ||
                         !strcmp(kernel->name, "cudnn"))) ||
           (type && type->flags & CT_OP_COLLECTIVE) || type == &ct_op_slice;
}

static int summarise(struct ct_device *device, const char *filter)
{
    const struct ct_kernel *kernel;
    struct ct_device_info info;
    int faults = 0;

    device->ops->info(device, CT_F32, &info);
    for (size_t i = 0; (kernel = ct_kernel_at(device->name, i)); i++) {
        const struct score *s = score_of(kernel);
        bool untried = s->calls == 0 && !filter && !cannot_be_tried(kernel, s, info.name);

        if (filter && !s->calls)
            continue;
        printf("%-29s %-11s %6d calls  worst %6.3f  %s\n", kernel->op, kernel->name, s->calls,
               s->worst,
               s->faults  ? "WRONG"
               : untried  ? "NEVER TRIED"
               : s->calls ? "ok"
                          : "unused");
        faults += s->faults || untried;
    }
    return faults;
}

static int run_cases(struct ct_device *device, const char *filter)
{
    int rc = 0;

    for (const struct conformance_case *test = conformance_cases; rc >= 0 && test->name; test++)
        if (!filter || strstr(test->name, filter))
            rc = try_case(device, test);
    if (rc < 0)
        return rc;
    return summarise(device, filter);
}

/* ---- starting ---- */

static int start(int argc, char **argv, struct options *options, struct ct_device **device)
{
    char *assignments[16];
    static const char *const with_ops[] = {"adamw", "cp", "ema", "ep", "float8", "muon", "tp"};
    const struct ct_plugin *plugin;
    const struct ct_offer *offer;
    int count = 0, rc;

    *options = (struct options){.device = "cpu"};
    ct_config.training.local_batch_size = 1; /* one microbatch */
    ct_config.training.global_batch_size = -1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--set") && i + 1 < argc && count < (int)CT_COUNT(assignments))
            assignments[count++] = argv[++i];
        else if (!strcmp(argv[i], "--device") && i + 1 < argc)
            options->device = argv[++i];
        else if (*argv[i] != '-')
            options->filter = argv[i];
        else
            return ct_fail(CT_EINVAL, "unknown option %s", argv[i]);
    }
    rc = bed_load(options->device, assignments, count, &device_plugin);
    for (size_t i = 0; rc >= 0 && i < CT_COUNT(with_ops); i++)
        rc = bed_load(with_ops[i], NULL, 0, &plugin);
    if (rc >= 0)
        rc = ct_offer_find(CT_DEVICE, options->device, &offer);
    if (rc < 0)
        return rc;
    return ((const struct ct_device_ops *)offer->ops)
        ->open(&(struct ct_device_request){0, 1}, device);
}

int main(int argc, char **argv)
{
    struct ct_device_info info;
    struct ct_device *device;
    struct options options = {0};
    int rc = ct_ops_register();

    /* Memory that was freed stays here for the next case: else half of the time is the kernel's. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    if (rc == 0)
        rc = ct_op_need(&ct_op_cache_write);
    if (rc == 0)
        rc = start(argc, argv, &options, &device);

    setvbuf(stdout, NULL, _IOLBF, 0); /* what was found is seen, even if the next call hangs */
    if (rc >= 0) {
        device->ops->info(device, CT_F32, &info);
        printf("%s\n", info.name);
        rc = run_cases(device, options.filter);
        device->ops->close(device);
    }
    if (rc < 0)
        fprintf(stderr, "conformance: %s\n", ct_error_message());
    return rc == CT_ECONFIG ? 77 : rc != 0;
}
