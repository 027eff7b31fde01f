/*
 * The cpu device's kernels against the machine's own rates.
 *
 * Usage: kernels [--set KEY=VALUE]... [CASE]
 *
 * The graphs of the bench cases (tests/conformance/cases.c) are transformed as in a run and timed
 * op by op, the best of several calls. The last column is the share of the machine's rate: for
 * matrix products the best that oneDNN alone does for the shape, over plain and packed weights and
 * over float32 and bfloat16 where the op is in bfloat16; for attention, float32 products of the
 * same number of operations; for all others, the bandwidth of a triad over as many bytes as the
 * op's operands have.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "conformance.h"
#include "machine.h"

#define SECONDS 0.3 /* of repetitions */

static const struct ct_plugin *plugin;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The best of the calls that fit into SECONDS, at least three. */
static double time_call(const struct ct_kernel *kernel, const struct ct_launch *launch, int *rc)
{
    double begin = now(), best = 1e9;

    for (int i = 0; *rc >= 0 && (i < 4 || now() - begin < SECONDS); i++) {
        double t = now();

        *rc = kernel->run(launch);
        t = now() - t;
        best = i > 0 && t < best ? t : best;
    }
    return best;
}

static double operand_bytes(const struct ct_launch *l)
{
    double bytes = 0;

    for (int i = 0; i < l->ins; i++)
        if (l->in[i].data)
            bytes += (double)ct_tensor_count(&l->in[i]) * (double)ct_dtype_size(l->in[i].dtype) *
                     (ct_op_mutates(l->op, i) && !strcmp(l->op->type->name, "adamw") ? 2 : 1);
    for (int i = 0; i < l->outs; i++)
        bytes += (double)ct_tensor_count(&l->out[i]) * (double)ct_dtype_size(l->out[i].dtype);
    return bytes;
}

static void print_line(const struct ct_kernel *kernel, const struct ct_launch *l,
                       const struct bed *bed, double seconds)
{
    const struct ct_op_type *type = l->op->type;
    double flops = type->flops ? type->flops(l->op, l->in, l->out) : 0;
    double bytes = operand_bytes(l), best;
    struct machine_op op;

    printf("%-22s %-30s %-10s %-8s %9.3f ms ", bed->test->name, type->name, kernel->name,
           ct_dtype_name(bed->dtype), seconds * 1e3);
    if (strstr(type->name, "linear") && flops > 0) {
        op = machine_op(l->op, l->in, l->out);
        best = machine_op_seconds(&op, bed->dtype);
    } else if (flops > 0) {
        best = machine_product(MACHINE_FORWARD, 1024, 1024, 1024, CT_F32) * flops / 0x1p31;
    } else {
        best = bytes / machine_bandwidth(bytes);
    }
    if (flops > 0)
        printf("%8.1f GF/s", flops / seconds * 1e-9);
    else
        printf("%8.1f GB/s", bytes / seconds * 1e-9);
    printf("  %5.2f of the machine's\n", best / seconds);
    fflush(stdout);
}

static int bench_op(struct bed *bed, const struct ct_op *op)
{
    struct ct_arena arena = {0};
    const struct ct_kernel *kernel;
    struct ct_launch launch;
    double seconds;
    int rc = bed_call(bed, op, &arena, &launch, &kernel);

    if (rc > 0) {
        seconds = time_call(kernel, &launch, &rc);
        if (rc >= 0)
            print_line(kernel, &launch, bed, seconds);
    }
    ct_arena_finish(&arena);
    return rc < 0 ? ct_context(rc, "%s in case \"%s\"", op->type->name, bed->test->name) : 0;
}

static int bench_case(struct ct_device *device, const struct conformance_case *test,
                      enum ct_dtype dtype)
{
    struct bed bed;
    int rc = bed_create(&bed, device, test, dtype, FILL_CHEAP, 1);

    if (rc >= 0)
        rc = bed_transform(&bed, plugin);
    for (const struct ct_op *op = rc >= 0 ? bed.graph->first : NULL; rc >= 0 && op; op = op->next)
        rc = bench_op(&bed, op);
    bed_finish(&bed);
    return rc;
}

static int start(int argc, char **argv, const char **filter, struct ct_device **device)
{
    char *assignments[16];
    static const char *const with_ops[] = {"adamw", "cp", "tp"};
    const struct ct_plugin *other;
    const struct ct_offer *offer;
    int count = 0, rc;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--set") && i + 1 < argc && count < (int)CT_COUNT(assignments))
            assignments[count++] = argv[++i];
        else
            *filter = argv[i];
    }
    rc = bed_load("cpu", assignments, count, &plugin);
    for (size_t i = 0; rc >= 0 && i < CT_COUNT(with_ops); i++)
        rc = bed_load(with_ops[i], NULL, 0, &other);
    if (rc >= 0)
        rc = ct_offer_find(CT_DEVICE, "cpu", &offer);
    if (rc < 0)
        return rc;
    return ((const struct ct_device_ops *)offer->ops)
        ->open(&(struct ct_device_request){0, 1}, device);
}

int main(int argc, char **argv)
{
    struct ct_device *device;
    struct ct_device_info info;
    const char *filter = NULL;
    int rc = ct_ops_register();

    if (rc == 0)
        rc = start(argc, argv, &filter, &device);

    if (rc >= 0) {
        device->ops->info(device, CT_F32, &info);
        printf("%s\n", info.name);
    }
    for (const struct conformance_case *test = bench_cases; rc >= 0 && test->name; test++) {
        if (filter && !strstr(test->name, filter))
            continue;
        rc = bench_case(device, test, CT_F32);
        if (rc >= 0 && strstr(test->text, "T["))
            rc = bench_case(device, test, CT_BF16);
    }
    if (rc < 0)
        fprintf(stderr, "kernels: %s\n", ct_error_message());
    return rc < 0;
}
