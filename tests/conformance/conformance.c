/*
 * Usage: conformance [--device NAME] [--sample] [--exact] [--expect KERNEL] [--set KEY=VALUE]...
 *                    [CASE]
 *
 * --set sets an option of the device's plugin. CASE: only cases whose names contain it. --sample:
 * every case with normal numbers, and with others, in one dtype, as long as one of its kernels has
 * not had those, or not with this feature of attention. --exact: products of 8 bits by wgmma are
 * not truncated (SIMULATOR_SUMS=exact). Prints a line per kernel and leaves with
 * status 1 if any kernel was wrong, failed, or was never tried; with a CASE, kernels named KERNEL
 * are to be tried, whichever op they are for.
 */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/plugin.h>
#include <ctitan/lib/app/check.h>
#include <ctitan/lib/ops.h>

#include "conformance.h"

static const enum ct_dtype dtypes[] = {CT_F32, CT_BF16};

struct score {
    const struct ct_kernel *kernel;
    int cases, calls, faults;
    double worst;                        /* error over tolerance */
    unsigned features[CT_COUNT(dtypes)]; /* that calls of the case had */
    unsigned tried[FILLS];               /* features */
};

struct options {
    const char *device, *filter, *expected;
};

static struct score scores[1024];
static const struct ct_plugin *device_plugin;
static struct ct_checker checker;
static bool sample, exact;

static struct score *score_of(const struct ct_kernel *kernel)
{
    struct score *s = scores;

    while (s->kernel && s->kernel != kernel)
        s++;
    s->kernel = kernel;
    return s;
}

/* Bits: any op; and of attention whatever computes scores or their mask otherwise. */
static unsigned features_of(const struct ct_op *op)
{
    bool grad = !strcmp(op->type->name, "attention_grad");
    int keys = 1 + grad, documents = grad ? 6 : 3;

    if (!grad && strcmp(op->type->name, "attention"))
        return 1;
    return 1 | (ct_op_int(op, "window") > 0) << 1 | (ct_op_float(op, "softcap") > 0) << 2 |
           (ct_op_float(op, "alibi") > 0) << 3 | (op->ins > documents && op->in[documents]) << 4 |
           (op->in[keys]->shape[3] != op->in[keys + 1]->shape[3]) << 5;
}

static void begin_case(void)
{
    for (struct score *s = scores; s->kernel; s++)
        memset(s->features, 0, sizeof(s->features));
}

/* A kernel of the case has not been tried with this fill. In which dtype those are that take both
   depends on the kernel. */
static bool shows_more(size_t dtype, int fill)
{
    for (size_t i = 0; scores[i].kernel; i++)
        if (scores[i].features[dtype] & ~scores[i].tried[fill] &&
            (!scores[i].features[!dtype] || (i + (size_t)fill) % 2 == dtype))
            return true;
    return false;
}

static void took_call(struct score *s, const struct bed *bed, const struct ct_op *op)
{
    s->features[bed->dtype == CT_BF16] |= features_of(op);
    s->tried[bed->fill] |= features_of(op);
}

/* ---- the reference ---- */

/* Operands of an op: outputs, then inputs. */
static struct ct_value *operand_value(const struct ct_op *op, int i)
{
    return i < op->outs ? op->out[i] : op->in[i - op->outs];
}

static bool is_float8_product(const struct ct_op *op)
{
    return !strncmp(op->type->name, "linear_float8", strlen("linear_float8")) ||
           !strncmp(op->type->name, "linear_nvfp4", strlen("linear_nvfp4"));
}

/* Later ops see the reference's results. */
static void keep_results(struct bed *bed, const struct ct_op *op,
                         const struct ct_check_expected *expected)
{
    for (int i = 0; i < op->outs + op->ins; i++) {
        const struct ct_value *v = operand_value(op, i);
        struct ct_arena arena = {0};
        double *numbers;

        if (!expected[i].exact.data || (i >= op->outs && !ct_op_mutates(op, i - op->outs)))
            continue;
        numbers = ct_arena_array(&arena, double, ct_tensor_count(&expected[i].exact));
        ct_check_read(&expected[i].exact, numbers);
        ct_check_write(&bed->value[v->id], numbers);
        ct_check_write(&bed->exact[v->id], numbers);
        bed->sensitivity[v->id] = expected[i].sensitivity;
        ct_arena_finish(&arena);
    }
}

/* ---- tolerances of libraries ---- */

#define UNITS_ERROR 0x1p-12 /* of a sum of Float8 products by hardware, relative to their sizes */
#define CODES_ERROR                                                                                \
    0x1p-3 /* of experts with such sums, relative to the largest of a token or expert */

/* For `allow`: results if all inputs were positive, by operand; NULL: the op is no Float8
   product. */
struct sizes {
    struct ct_arena *arena;
    const struct ct_check_expected *expected;
    struct ct_tensor *operand;
};

/* How many results of experts lie together that are of one token, or of one expert's weights; of
   gradients of choices, whose terms cancel, all. */
static int64_t results_of_one(const struct ct_op *op, int operand, const struct ct_tensor *all)
{
    if (operand >= 2 || !strcmp(op->type->name, "float8.experts_dw"))
        return ct_tensor_count(all) / all->shape[0];
    return operand == 0 ? all->shape[all->ndim - 1] : ct_tensor_count(all);
}

static void allow_codes(const struct sizes *sizes, const struct ct_op *op, int operand,
                        struct ct_check_allowance *allowance)
{
    const struct ct_tensor *all = &sizes->expected[operand].exact;
    int64_t count = ct_tensor_count(all), together = results_of_one(op, operand, all);
    double *own = ct_arena_array(sizes->arena, double, count);
    double *want = ct_arena_array(sizes->arena, double, count);

    ct_check_read(all, want);
    for (int64_t i = 0; i < count; i++) {
        double *most = &own[i / together * together];

        *most = isfinite(want[i]) ? fmax(*most, CODES_ERROR * fabs(want[i])) : *most;
    }
    for (int64_t i = 0; i < count; i++)
        own[i] = own[i / together * together];
    allowance->own = own;
}

/* Experts in 8 bits on Hopper: what their sums lose may round an inner value to the next code. */
static bool is_truncated(const struct ct_kernel *kernel)
{
    return !exact && !strcmp(kernel->name, "wgmma") && !strncmp(kernel->op, "float8.", 7);
}

/* cuDNN makes gradients of keys and values in bfloat16 only: float32 ones are casts of those. The
   units that multiply Float8 are in conformance.h. */
static void allow(const struct ct_check_case *c, const struct ct_kernel *kernel, int operand,
                  bool accumulated, struct ct_check_allowance *allowance)
{
    const struct sizes *sizes = c->context;
    const struct ct_value *v = operand_value(c->op, operand);
    double *own, *want;
    int64_t count;

    if (!strcmp(kernel->name, "cudnn") && !strcmp(kernel->op, "attention_grad"))
        allowance->rounding = ct_check_rounding(CT_BF16);
    if (is_truncated(kernel))
        allow_codes(sizes, c->op, operand, allowance);
    if (strncmp(kernel->name, "cublaslt", strlen("cublaslt")) != 0 || !sizes->operand)
        return;
    count = ct_tensor_count(&sizes->operand[operand]);
    own = ct_arena_array(sizes->arena, double, count);
    want = ct_arena_array(sizes->arena, double, count);
    ct_check_read(&sizes->operand[operand], own);
    ct_check_read(&sizes->expected[operand].exact, want);
    for (int64_t i = 0; i < count; i++) {
        own[i] *= UNITS_ERROR;
        if (accumulated && v->dtype == CT_BF16)
            own[i] += ct_check_rounding(CT_BF16) * fabs(want[i]);
    }
    allowance->own = own;
}

/* ---- trying ---- */

static int try_kernels(struct bed *bed, const struct ct_op *op,
                       const struct ct_check_expected *expected, const struct sizes *sizes)
{
    struct ct_check_case c = {
        .what = ct_arena_printf(sizes->arena, "%s in case \"%s\"", op->type->name, bed->test->name),
        .graph = bed->graph,
        .op = op,
        .value = bed->value,
        .inner_roundings = bed->dtype == CT_BF16 ? bed->test->inner_roundings : 0,
        .least = bed->test->exponential ? 1 : 0,
        .only_nan = bed->fill == FILL_NAN,
        .again = bed->fill != FILL_NORMAL,
        .allow = allow,
        .context = (void *)(uintptr_t)sizes,
    };
    const struct ct_kernel *kernel;

    for (size_t i = 0; (kernel = ct_kernel_at(bed->device->name, i)); i++) {
        struct score *s;
        int rc;

        if (strcmp(kernel->op, op->type->name))
            continue;
        s = score_of(kernel);
        s->cases++;
        rc = ct_check_call(&checker, kernel, &c, expected, &s->worst);
        s->calls += rc > 0 ? rc : rc < 0;
        if (rc > 0)
            took_call(s, bed, op);
        if (rc < 0 && s->faults++ < 5)
            printf("FAULT %s: %s\n", ct_dtype_name(bed->dtype), ct_error_message());
    }
    return 0;
}

static int try_op(struct bed *bed, const struct ct_op *op)
{
    struct ct_arena arena = {0};
    struct ct_check_expected *expected;
    struct sizes sizes = {.arena = &arena};
    const struct ct_check_case c = {
        .graph = bed->graph, .op = op, .value = bed->value, .only_nan = bed->fill == FILL_NAN};
    int rc = ct_check_expect(&c, &arena, &expected);

    sizes.expected = expected;
    if (rc >= 0 && is_float8_product(op)) {
        sizes.operand = ct_arena_array(&arena, struct ct_tensor, op->outs + op->ins);
        rc = ct_check_reference(&c, CT_CHECK_SIZES, &arena, sizes.operand);
    }
    if (rc >= 0)
        rc = try_kernels(bed, op, expected, &sizes);
    if (rc >= 0)
        keep_results(bed, op, expected);
    ct_arena_finish(&arena);
    return rc < 0 ? ct_context(rc, "%s in case \"%s\"", op->type->name, bed->test->name) : 0;
}

static double largest(const struct ct_tensor *t)
{
    const double *x = t->data;
    double most = 0;

    for (int64_t i = 0; ct_dtype_is_float(t->dtype) && i < ct_tensor_count(t); i++)
        most = isfinite(x[i]) ? fmax(most, fabs(x[i])) : most;
    return most;
}

/* Expects the plain graph's value of the same name: twins keep their outputs' names. */
static int expect_as_in(const struct bed *plain, const struct ct_op *op,
                        struct ct_check_expected *expected)
{
    for (int i = 0; i < op->outs; i++) {
        const struct ct_value *same = ct_graph_find(plain->graph, op->out[i]->name);

        if (op->out[i]->opaque_bytes)
            continue;
        if (!same)
            return ct_fail(CT_EINVAL, "%%%s is not in the graph of case \"%s\"", op->out[i]->name,
                           plain->test->name);
        expected[i] = (struct ct_check_expected){.exact = plain->exact[same->id],
                                                 .sensitivity = plain->sensitivity[same->id],
                                                 .largest = largest(&plain->exact[same->id])};
    }
    return 0;
}

/* An op that the device's own transform put there is tried, others only hand on their results. */
static int try_twin(struct bed *bed, const struct bed *plain, const struct ct_op *op)
{
    struct ct_arena arena = {0};
    struct ct_check_expected *expected =
        ct_arena_array(&arena, struct ct_check_expected, op->outs + op->ins + 1);
    const struct sizes sizes = {.arena = &arena, .expected = expected};
    int rc = expect_as_in(plain, op, expected);

    if (rc >= 0 && !op->type->reference)
        rc = try_kernels(bed, op, expected, &sizes);
    if (rc >= 0)
        keep_results(bed, op, expected);
    ct_arena_finish(&arena);
    return rc;
}

static int try_twins(const struct bed *plain)
{
    struct bed bed;
    int rc = bed_parse(&bed, plain->device, plain->test, plain->dtype, plain->fill, plain->seed);

    if (rc >= 0)
        rc = bed_transform(&bed, device_plugin);
    for (const struct ct_op *op = rc > 0 ? bed.graph->first : NULL; rc >= 0 && op; op = op->next)
        rc = try_twin(&bed, plain, op);
    bed_finish(&bed);
    return rc;
}

static int try_fill(struct ct_device *device, const struct conformance_case *test,
                    enum ct_dtype dtype, enum fill fill)
{
    struct bed bed;
    int rc = bed_create(&bed, device, test, dtype, fill, 42 + (uint64_t)fill);

    for (struct ct_op *op = rc >= 0 ? bed.graph->first : NULL; rc >= 0 && op; op = op->next)
        rc = try_op(&bed, op);
    if (rc >= 0)
        rc = try_twins(&bed);
    bed_finish(&bed);
    return rc;
}

static int try_case(struct ct_device *device, const struct conformance_case *test)
{
    int rc = 0;

    begin_case();
    for (int fill = 0; rc >= 0 && fill < (test->large ? 1 : FILLS); fill++)
        for (size_t d = 0; rc >= 0 && d < CT_COUNT(dtypes); d++)
            if (!sample || fill == FILL_NORMAL || shows_more(d, fill))
                rc = try_fill(device, test, dtypes[d], (enum fill)fill);
    return rc;
}

/* ---- the result ---- */

/* An instruction set or a unit that this process or the device lacks or does not use, a library;
   a collective, which needs other ranks. */
static bool cannot_be_tried(const struct ct_kernel *kernel, const struct score *s)
{
    const struct ct_op_type *type = ct_op_find(kernel->op);

    return (s->cases &&
            (!strncmp(kernel->name, "avx", 3) || strstr(kernel->name, "unit") ||
             !strcmp(kernel->name, "cudnn") || !strcmp(kernel->name, "cublaslt_blocks"))) ||
           (type && type->flags & CT_OP_COLLECTIVE) || type == &ct_op_slice;
}

static bool is_to_be_tried(const struct ct_kernel *kernel, const struct score *s,
                           const struct options *o)
{
    if (o->expected && !strcmp(kernel->name, o->expected))
        return true;
    return !o->filter && !cannot_be_tried(kernel, s);
}

static int summarise(struct ct_device *device, const struct options *o)
{
    const struct ct_kernel *kernel;
    struct ct_device_info info;
    int faults = 0;

    device->ops->info(device, CT_F32, &info);
    for (size_t i = 0; (kernel = ct_kernel_at(device->name, i)); i++) {
        const struct score *s = score_of(kernel);
        bool untried = s->calls == 0 && is_to_be_tried(kernel, s, o);

        if (o->filter && !s->calls && !untried)
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

static int run_cases(struct ct_device *device, const struct options *o)
{
    int rc = 0;

    for (const struct conformance_case *test = conformance_cases; rc >= 0 && test->name; test++)
        if (!o->filter || strstr(test->name, o->filter))
            rc = try_case(device, test);
    if (rc < 0)
        return rc;
    return summarise(device, o);
}

/* ---- starting ---- */

static int start(int argc, char **argv, struct options *options, struct ct_device **device)
{
    char *assignments[16];
    static const char *const with_ops[] = {"adamw",  "cp",   "ema", "ep",
                                           "float8", "muon", "tp",  "tp_async"};
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
        else if (!strcmp(argv[i], "--expect") && i + 1 < argc)
            options->expected = argv[++i];
        else if (!strcmp(argv[i], "--sample"))
            sample = true;
        else if (!strcmp(argv[i], "--exact"))
            exact = true;
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
        rc = start(argc, argv, &options, &device);

    setvbuf(stdout, NULL, _IOLBF, 0); /* what was found is seen, even if the next call hangs */
    if (rc >= 0) {
        device->ops->info(device, CT_F32, &info);
        printf("%s\n", info.name);
        checker.device = device;
        rc = run_cases(device, &options);
        ct_checker_finish(&checker);
        device->ops->close(device);
    }
    if (rc < 0)
        fprintf(stderr, "conformance: %s\n", ct_error_message());
    return rc == CT_ECONFIG ? 77 : rc != 0;
}
