/*
 * Usage: conformance [--device NAME] [--set KEY=VALUE]... [--bench] [CASE]
 *
 * --set sets an option of the device's plugin. CASE: only cases whose names contain it. Prints a
 * line per kernel and leaves with status 1 if any kernel was wrong, or was never tried.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugin.h>

#include "conformance.h"

struct score {
    const struct ct_kernel *kernel;
    int cases, calls, faults;
    double worst; /* error over tolerance */
};

struct options {
    const char *device, *filter;
    bool bench;
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

/* What outputs and updated inputs should be, in float64; NULL where the op leaves an operand alone.
 */
struct expected {
    struct ct_tensor *in, *out;
};

static struct ct_tensor exact_copy(struct ct_arena *arena, const struct ct_tensor *t)
{
    int64_t n = ct_tensor_count(t);
    enum ct_dtype dtype = ct_dtype_is_float(t->dtype) ? CT_F64 : t->dtype;
    struct ct_tensor copy =
        ct_tensor_dense(ct_arena_alloc(arena, (size_t)n * 8 + 8), dtype, t->rank, t->shape);

    for (int64_t i = 0; i < n; i++)
        ct_tensor_store(&copy, i, ct_tensor_load(t, i));
    return copy;
}

static int run_reference(const struct bed *bed, const struct ct_op *op, struct ct_arena *arena,
                         struct expected *expected)
{
    struct ct_launch launch = {.op = op, .ins = op->ins, .outs = op->outs};

    expected->in = ct_arena_array(arena, struct ct_tensor, op->ins + 1);
    expected->out = ct_arena_array(arena, struct ct_tensor, op->outs + 1);
    for (int i = 0; i < op->ins; i++)
        if (op->in[i])
            expected->in[i] = exact_copy(arena, &bed->value[op->in[i]->id]);
    for (int i = 0; i < op->outs; i++)
        expected->out[i] = exact_copy(arena, &bed->value[op->out[i]->id]);
    launch.in = expected->in;
    launch.out = expected->out;
    return op->type->reference(&launch);
}

static void keep(struct bed *bed, const struct ct_value *v, const struct ct_tensor *result)
{
    for (int64_t k = 0; k < ct_tensor_count(result); k++) {
        ct_tensor_store(&bed->value[v->id], k, ct_tensor_load(result, k));
        ct_tensor_store(&bed->exact[v->id], k, ct_tensor_load(result, k));
    }
}

/* Later ops see the reference's results. */
static void keep_results(struct bed *bed, const struct ct_op *op, const struct expected *expected)
{
    for (int i = 0; i < op->outs; i++)
        keep(bed, op->out[i], &expected->out[i]);
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && ct_op_mutates(op, i))
            keep(bed, op->in[i], &expected->in[i]);
}

/* ---- comparing ---- */

static double rounding(enum ct_dtype dtype)
{
    return dtype == CT_F64 ? 0x1p-40 : dtype == CT_BF16 ? 0x1.01p-8 : 0x1p-23;
}

/* Terms of the longest sum behind one element of the outputs. */
static double terms(const struct call *c)
{
    double most = 1, count = c->op->outs ? (double)ct_tensor_count(&c->out[0]) : 1;

    for (int i = 0; i < c->op->ins; i++) {
        const struct ct_tensor *t = &c->in[i];

        if (!c->present[i] || t->rank == 0)
            continue;
        most = fmax(most, (double)t->shape[t->rank - 1]);
        for (int k = 0; k < c->op->outs; k++)
            most =
                fmax(most, (double)ct_tensor_count(t) / (double)(ct_tensor_count(&c->out[k]) + 1));
    }
    if (c->op->type->flops)
        most = fmax(most, c->op->type->flops(c->in, c->out, c->op->ins, c->op->outs) / (2 * count));
    return most;
}

static double largest(const struct ct_tensor *t)
{
    double most = 0;

    for (int64_t i = 0; i < ct_tensor_count(t); i++)
        most = fmax(most, fabs(ct_tensor_load(t, i)));
    return most;
}

/* Error of got over the tolerance, at its worst; before: what was accumulated into. */
static double compare(const struct call *c, const struct bed *bed, const struct ct_tensor *got,
                      const struct ct_tensor *want, bool accumulated, double before, int64_t *where)
{
    double unit = got->dtype == CT_F64 ? 0x1p-53 : 0x1p-24, worst = 0;
    double slack = (8 + sqrt(terms(c))) * unit;
    double smallest = got->dtype == CT_F64 ? 0 : 0x1p-126; /* denormals may be flushed */
    double scale = largest(want) + (accumulated ? fabs(before) : 0);

    if (bed->test->exponential)
        scale = fmax(1, scale);
    if (bed->test->inner_rounding && bed->dtype == CT_BF16)
        slack += 0x1p-8;
    for (int64_t i = 0; i < ct_tensor_count(got); i++) {
        double a = ct_tensor_load(got, i);
        double b = ct_tensor_load(want, i) + (accumulated ? before : 0), error;

        if (a == b || (isnan(a) && isnan(b)))
            continue;
        error = fabs(a - b) / (rounding(got->dtype) * fabs(b) + slack * scale + smallest);
        if (!(error <= worst)) {
            worst = isnan(error) ? INFINITY : error;
            *where = i;
        }
    }
    return worst;
}

static void report(struct score *s, const struct call *c, const struct bed *bed,
                   const char *operand, const struct ct_tensor *got, const struct ct_tensor *want,
                   int64_t where, const char *how)
{
    if (s->faults++ < 5)
        printf("FAULT %s (%s), case \"%s\", %s, %s: element %lld of %lld: %.17g instead of %.17g\n",
               c->op->type->name, c->kernel->name, bed->test->name, how, operand, (long long)where,
               (long long)ct_tensor_count(got), ct_tensor_load(got, where),
               ct_tensor_load(want, where));
}

static void judge(struct score *s, const struct call *c, const struct bed *bed,
                  const struct expected *expected, double before, const char *how)
{
    for (int i = 0; i < c->op->outs + c->op->ins; i++) {
        bool out = i < c->op->outs;
        int k = out ? i : i - c->op->outs;
        const struct ct_tensor *got = out ? &c->out[k] : &c->in[k];
        const struct ct_tensor *want = out ? &expected->out[k] : &expected->in[k];
        bool accumulated = out && c->launch.accumulate >> k & 1;
        int64_t where = 0;
        double error;

        if (out ? c->op->out[k]->opaque_bytes > 0
                : !c->present[k] || c->op->in[k]->opaque_bytes || !ct_dtype_is_float(got->dtype))
            continue;
        error = compare(c, bed, got, want, accumulated, before, &where);
        if (!(error <= 1))
            report(s, c, bed, out ? c->op->out[k]->name : c->op->in[k]->name, got, want, where,
                   how);
        s->worst = fmax(s->worst, error);
    }
}

/* ---- trying ---- */

static void poison(const struct call *c, double before)
{
    for (int i = 0; i < c->op->outs; i++)
        for (int64_t k = 0; !c->op->out[i]->opaque_bytes && k < ct_tensor_count(&c->out[i]); k++)
            ct_tensor_store(&c->out[i], k, c->launch.accumulate >> i & 1 ? before : (double)NAN);
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
        rc = kernel->run(&call.launch);
        snprintf(how, sizeof(how), "%s%s, %s", names[layout], accumulate ? ", accumulating" : "",
                 ct_dtype_name(bed->dtype));
        if (rc >= 0)
            judge(s, &call, bed, expected, 0.5, how);
        s->calls++;
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
    struct expected expected;
    int rc = run_reference(bed, op, &arena, &expected);

    if (rc >= 0)
        rc = try_kernels(bed, op, &expected);
    if (rc >= 0)
        keep_results(bed, op, &expected);
    ct_arena_finish(&arena);
    return rc;
}

/* An op that the device's own transform put there: its outputs have the names of the plain graph's.
 */
static int try_twin(struct bed *bed, const struct bed *plain, const struct ct_op *op)
{
    struct ct_arena arena = {0};
    struct expected expected = {ct_arena_array(&arena, struct ct_tensor, op->ins + 1),
                                ct_arena_array(&arena, struct ct_tensor, op->outs + 1)};
    int rc = 0;

    for (int i = 0; i < op->ins; i++)
        if (op->in[i])
            expected.in[i] = bed->exact[op->in[i]->id];
    for (int i = 0; i < op->outs; i++) {
        const struct ct_value *same = ct_graph_find(plain->graph, op->out[i]->name);

        if (same)
            expected.out[i] = plain->exact[same->id];
        else if (!op->out[i]->opaque_bytes)
            rc = ct_fail(CT_EINVAL, "%%%s is not in the graph of case \"%s\"", op->out[i]->name,
                         plain->test->name);
    }
    if (rc >= 0 && (!op->type->reference || op->out[0]->opaque_bytes))
        rc = try_kernels(bed, op, &expected);
    if (rc >= 0 && !op->out[0]->opaque_bytes)
        keep_results(bed, op, &expected);
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
        for (int fill = 0; rc >= 0 && fill < FILLS; fill++) {
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

/* An instruction set that this process does not use. */
static bool refuses_all(const struct ct_kernel *kernel)
{
    return !strncmp(kernel->name, "avx", 3);
}

static int summarise(const char *device, const char *filter)
{
    const struct ct_kernel *kernel;
    int faults = 0;

    for (size_t i = 0; (kernel = ct_kernel_at(device, i)); i++) {
        const struct score *s = score_of(kernel);
        bool untried = s->calls == 0 && !filter && !(s->cases && refuses_all(kernel));

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
    return summarise(device->name, filter);
}

/* ---- starting ---- */

static int load(const char *name, const struct ct_plugin **plugin)
{
    char path[4096];
    int rc = ct_plugin_path(name, path, sizeof(path));

    if (rc >= 0)
        rc = ct_plugin_open(path, plugin);
    if (rc >= 0 && (*plugin)->options)
        rc = ct_options_reset((*plugin)->options, (*plugin)->config);
    return rc;
}

static int configure(const struct ct_plugin *plugin, char *assignment)
{
    char *value = strchr(assignment, '=');

    if (!value)
        return ct_fail(CT_EINVAL, "--set %s: expected KEY=VALUE", assignment);
    *value = '\0';
    return ct_options_set(plugin->options, plugin->config, assignment, value + 1, "--set");
}

static int start(int argc, char **argv, struct options *options, struct ct_device **device)
{
    const struct ct_plugin *adamw;
    const struct ct_offer *offer;
    int rc;

    *options = (struct options){.device = "cpu"};
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--device"))
            options->device = argv[i + 1];
    rc = load(options->device, &device_plugin);
    for (int i = 1; rc >= 0 && i < argc; i++) {
        if (!strcmp(argv[i], "--set") && i + 1 < argc)
            rc = configure(device_plugin, argv[++i]);
        else if (!strcmp(argv[i], "--device") && i + 1 < argc)
            i++;
        else if (!strcmp(argv[i], "--bench"))
            options->bench = true;
        else if (*argv[i] != '-')
            options->filter = argv[i];
        else
            rc = ct_fail(CT_EINVAL, "unknown option %s", argv[i]);
    }
    if (rc >= 0)
        rc = ct_plugin_adopt(device_plugin);
    if (rc >= 0)
        rc = load("adamw", &adamw);
    if (rc >= 0)
        rc = ct_plugin_adopt(adamw);
    if (rc >= 0)
        rc = ct_offer_find(CT_DEVICE, options->device, &offer);
    if (rc >= 0)
        rc = ((const struct ct_device_ops *)offer->ops)
                 ->open(&(struct ct_device_request){0, 1}, device);
    return rc;
}

int main(int argc, char **argv)
{
    struct ct_device_info info;
    struct ct_device *device;
    struct options options;
    int rc = start(argc, argv, &options, &device);

    if (rc >= 0) {
        device->ops->info(device, CT_F32, &info);
        printf("%s\n", info.name);
        rc = options.bench ? bench_run(device, options.filter) : run_cases(device, options.filter);
        device->ops->close(device);
    }
    if (rc < 0)
        fprintf(stderr, "conformance: %s\n", ct_error_message());
    return rc != 0;
}
