/*
 * Chains of ops by the device's kernels, one after the other, against the same chains fused.
 *
 * Usage: chains [--threads N] [CASE]
 *
 * Every op with a formula is compiled, even where fuse would leave the device's own kernels, so a
 * case of one op compares the code itself. Both forms of a case are timed in turn, and the best of
 * each counts. The ratio is above 1 where the fused form is faster.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "conformance.h"

#define ROUNDS 40
#define MOST 64 /* ops of a case */

#define NORMS                                                                                      \
    "input %x : T[2048,768]\ninput %y : T[2048,768]\ninput %w : T[768]\ninput %b : T[768]\n"
#define GRADS NORMS "input %m : float32[2048]\ninput %r : float32[2048]\n"
#define WIDE "input %x : T[2048,2048]\ninput %y : T[2048,2048]\n"

static const struct conformance_case cases[] = {
    {.name = "add", .text = NORMS "F - %z = add(%x, %y) : T[2048,768]\n"},
    {.name = "silu", .text = WIDE "F - %z = silu(%x) : T[2048,2048]\n"},
    {.name = "silu_grad", .text = WIDE "F - %z = silu_grad(%x, %y) : T[2048,2048]\n"},
    {.name = "swiglu", .text = WIDE "F - %z = swiglu(%x, %y) : T[2048,2048]\n"},
    {.name = "swiglu_grad",
     .text = WIDE "input %d : T[2048,2048]\n"
                  "F - %g, %u = swiglu_grad(%d, %x, %y) : T[2048,2048], T[2048,2048]\n"},
    {.name = "gelu", .text = WIDE "F - %z = gelu(%x) : T[2048,2048]\n"},
    {.name = "gelu tanh", .text = WIDE "F - %z = gelu(%x) {approximate=\"tanh\"} : T[2048,2048]\n"},
    {.name = "gelu_grad tanh",
     .text = WIDE "F - %z = gelu_grad(%x, %y) {approximate=\"tanh\"} : T[2048,2048]\n"},
    {.name = "bias", .text = NORMS "F - %z = bias(%x, %b) : T[2048,768]\n"},
    {.name = "bias_grad", .text = NORMS "F - %z = bias_grad(%x) : T[768]\n"},
    {.name = "rms_norm",
     .text = NORMS "F - %z, %r = rms_norm(%x, %w) : T[2048,768], float32[2048]\n"},
    {.name = "rms_norm_grad",
     .text = GRADS "F - %z, %v = rms_norm_grad(%x, %y, %w, %r) : T[2048,768], T[768]\n"},
    {.name = "layer_norm",
     .text = NORMS "F - %z, %m, %r = layer_norm(%x, %w, %b) : T[2048,768], "
                   "float32[2048], float32[2048]\n"},
    {.name = "layer_norm_grad",
     .text = GRADS "F - %z, %v, %c = layer_norm_grad(%x, %y, %w, %m, %r) : T[2048,768], T[768], "
                   "T[768]\n"},
    {.name = "softmax", .text = NORMS "F - %z = softmax(%x) : T[2048,768]\n"},
    {.name = "softmax_grad", .text = NORMS "F - %z = softmax_grad(%x, %y) : T[2048,768]\n"},
    {.name = "add, rms_norm",
     .text = NORMS "F - %s = add(%x, %y) : T[2048,768]\n"
                   "F - %z, %r = rms_norm(%s, %w) : T[2048,768], float32[2048]\n"},
    {.name = "silu, mul",
     .text = WIDE "F - %s = silu(%x) : T[2048,2048]\n"
                  "F - %z = mul(%s, %y) : T[2048,2048]\n"},
    {.name = "bias, gelu",
     .text = WIDE "input %b : T[2048]\nF - %s = bias(%x, %b) : T[2048,2048]\n"
                  "F - %z = gelu(%s) {approximate=\"tanh\"} : T[2048,2048]\n"},
    {.name = "bias, add, layer_norm",
     .text = NORMS "F - %p = bias(%x, %b) : T[2048,768]\nF - %s = add(%y, %p) : T[2048,768]\n"
                   "F - %z, %m, %r = layer_norm(%s, %w, %b) : T[2048,768], float32[2048], "
                   "float32[2048]\n"},
    {.name = "layer_norm_grad, add",
     .text = GRADS "input %e : T[2048,768]\n"
                   "F - %a, %v, %c = layer_norm_grad(%x, %y, %w, %m, %r) : T[2048,768], T[768], "
                   "T[768]\nF - %z = add(%e, %a) : T[2048,768]\n"},
    {.name = "rms_norm_grad, add",
     .text = GRADS "input %e : T[2048,768]\n"
                   "F - %a, %v = rms_norm_grad(%x, %y, %w, %r) : T[2048,768], T[768]\n"
                   "F - %z = add(%e, %a) : T[2048,768]\n"},
    {.name = "gelu_grad, bias_grad",
     .text = WIDE "F - %z = gelu_grad(%x, %y) {approximate=\"tanh\"} : T[2048,2048]\n"
                  "F - %v = bias_grad(%z) : T[2048]\n"},
    {0}};

struct side {
    struct bed bed;
    const struct ct_kernel *kernel[MOST];
    struct ct_launch launch[MOST];
    int count;
    double best;
};

static int begin(struct side *s, struct ct_device *device, const struct conformance_case *test,
                 enum ct_dtype dtype, const struct ct_plugin *fuse)
{
    int rc = bed_create(&s->bed, device, test, dtype, FILL_CHEAP, 1);

    s->count = 0;
    s->best = 1e9;
    if (rc >= 0 && fuse)
        rc = bed_transform(&s->bed, fuse);
    ct_for_each_op (op, s->bed.graph)
        if (rc >= 0) {
            rc = bed_call(&s->bed, op, &s->bed.arena, &s->launch[s->count], &s->kernel[s->count]);
            s->count++;
        }
    return rc;
}

static int run(struct side *s)
{
    double from = ct_now();
    int rc = 0;

    for (int i = 0; rc >= 0 && i < s->count; i++)
        rc = s->kernel[i]->run(&s->launch[i]);
    from = ct_now() - from;
    s->best = from < s->best ? from : s->best;
    return rc;
}

static int bench(struct ct_device *device, const struct conformance_case *test, enum ct_dtype dtype,
                 const struct ct_plugin *fuse)
{
    static struct side own, fused;
    int rc = begin(&own, device, test, dtype, NULL);

    if (rc >= 0)
        rc = begin(&fused, device, test, dtype, fuse);
    for (int i = 0; rc >= 0 && i < ROUNDS; i++) {
        rc = run(&own);
        if (rc >= 0)
            rc = run(&fused);
    }
    if (rc >= 0)
        printf("%-24s %-8s  own kernels %8.3f ms  fused %8.3f ms  ratio %5.2f\n", test->name,
               ct_dtype_name(dtype), own.best * 1e3, fused.best * 1e3, own.best / fused.best);
    fflush(stdout);
    bed_finish(&own.bed);
    bed_finish(&fused.bed);
    return rc;
}

int main(int argc, char **argv)
{
    const struct ct_plugin *cpu, *fuse;
    const struct ct_offer *offer;
    struct ct_device *device = NULL;
    bool threads = argc > 2 && !strcmp(argv[1], "--threads");
    char *set_cpu[1], *set_fuse[] = {"always=true"};
    const char *filter = argc > (threads ? 3 : 1) ? argv[threads ? 3 : 1] : NULL;
    struct ct_arena arena = {0};
    int rc = ct_ops_register();

    set_cpu[0] = ct_arena_printf(&arena, "threads=%s", threads ? argv[2] : "1");
    if (rc == 0)
        rc = bed_load("cpu", set_cpu, 1, &cpu);
    if (rc >= 0)
        rc = bed_load("fuse", set_fuse, 1, &fuse);
    if (rc >= 0)
        rc = ct_offer_find(CT_DEVICE, "cpu", &offer);
    if (rc >= 0)
        rc = ((const struct ct_device_ops *)offer->ops)
                 ->open(&(struct ct_device_request){0, 1}, &device);
    for (const struct conformance_case *test = cases; rc >= 0 && test->name; test++) {
        if (filter && !strstr(test->name, filter))
            continue;
        rc = bench(device, test, CT_F32, fuse);
        if (rc >= 0)
            rc = bench(device, test, CT_BF16, fuse);
    }
    if (rc < 0)
        fprintf(stderr, "chains: %s\n", ct_error_message());
    ct_arena_finish(&arena);
    return rc < 0;
}
