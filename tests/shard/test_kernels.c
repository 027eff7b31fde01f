/*
 * The cpu device's kernels of ops that care where their shard lies, on the shards of simulated
 * ranks: what they make together is what the reference makes of the whole. Initial weights are
 * equal bit by bit on every mesh.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <ctitan/app/verify.h>
#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/pass.h>
#include <ctitan/plugins.h>
#include <ctitan/text.h>

#include "plugin_ops.h"
#include "reference.h"
#include "simulate.h"

#define assert_ok(rc)                                                                              \
    do {                                                                                           \
        if ((rc) != 0)                                                                             \
            fail_msg("%s: %s", #rc, ct_error_message());                                           \
    } while (0)

static struct ct_device *device;
static int kernels_run;

/* Lines of graph text; T is the dtype under test. Integers are below 24. */
static const char *const cases[] = {
    "input %tokens : int32[6,10]\n"
    "param %table : T[37,24]\n"
    "input %dy : T[6,10,24]\n"
    "F - %y = embedding(%tokens, %table) : T[6,10,24]\n"
    "W - %dtable = embedding_grad(%dy, %tokens) {rows=37} : float32![37,24]\n"
    "W - %dtable2 = embedding_grad(%dy, %tokens) {rows=37} : T[37,24]\n"
    "W - %dtable3 = redistribute(%dtable2) {to=\"[a, -]\"} : T[37,24]\n"
    "W - %padded = embedding_grad(%dy, %tokens) {rows=37, padding=20} : float32![37,24]\n"
    "W - %padded2 = redistribute(%padded) {to=\"[a, -]\"} : float32![37,24]\n",

    "input %x : T[2,13,4,16]\n"
    "input %positions : int32[2,13]\n"
    "F - %y = rope(%x, _) : T[2,13,4,16]\n"
    "F - %z = rope(%y, _) {inverse=true} : T[2,13,4,16]\n"
    "F - %p = rope(%z, %positions) : T[2,13,4,16]\n"
    "F - %q = rope(%p, _) {first=6, interleaved=true} : T[2,13,4,16]\n"
    "F - %t = temper(%q, _) {every=3} : T[2,13,4,16]\n"
    "F - %t2 = temper(%t, %positions) {every=3} : T[2,13,4,16]\n"
    "F - %c = document_chunks(%positions, _, %positions) {tokens=4, most=6} : int32[2,13]\n"
    "F - %c2 = document_chunks(%c, %positions) {tokens=4} : int32[2,13]\n",

    "input %logits : T[2,9,24]\n"
    "input %labels : int32[2,9]\n"
    "scalar %dloss : float32[]\n"
    "F - %stats = cross_entropy_partial(%logits, %labels) {shards=12} : float32[2,9,12,3]\n"
    "F - %loss, %lse = cross_entropy_merge(%stats, %labels) : float32[], float32[2,9]\n"
    "I - %dstats = cross_entropy_merge_grad(%dloss, %stats, %labels, %lse) : float32[2,9,12,3]\n"
    "I - %dlogits = cross_entropy_partial_grad(%dstats, %stats, %logits, %labels) : T[2,9,24]\n",

    "input %logits : T[2,9,25]\n"
    "input %labels : int32[2,9]\n"
    "scalar %dloss : float32[]\n"
    "F - %stats = cross_entropy_partial(%logits, %labels) {shards=12} : float32[2,9,12,3]\n"
    "F - %loss, %lse = cross_entropy_merge(%stats, %labels) : float32[], float32[2,9]\n"
    "I - %dstats = cross_entropy_merge_grad(%dloss, %stats, %labels, %lse) : float32[2,9,12,3]\n"
    "I - %dlogits = cross_entropy_partial_grad(%dstats, %stats, %logits, %labels) : T[2,9,25]\n",

    "input %weights : float32[2,9,3]\n"
    "input %ids : int32[2,9,3]\n"
    "param %bias : T[24,10]\n"
    "input %dy : T[2,9,10]\n"
    "F - %y = expert_bias(%weights, %ids, %bias) : T[2,9,10]\n"
    "I - %dweights = expert_bias_dweights(%dy, %ids, %bias) : float32[2,9,3]\n"
    "W - %dbias = expert_bias_dbias(%dy, %weights, %ids, %bias) : float32![24,10]\n",

    "param %p : T[37,24]\n"
    "param %q : T[3,4,5,7]\n"
    "param %norm : T[5]\n"
    "init - init_normal(%p) {std=0.02, truncate=3, seed=7}\n"
    "init - init_normal(%q) {std=2, seed=123456789012}\n"
    "init - init_constant(%norm) {value=1}\n",
};

static char *with_dtype(struct ct_arena *arena, const struct ct_mesh *mesh, const char *text,
                        const char *dtype)
{
    char *out = ct_arena_strdup(arena, "graph \"case\"\nmesh");
    const char *next;

    for (int i = 0; i < mesh->count; i++)
        out = ct_arena_printf(arena, "%s %c=%d", out, 'a' + i, (int)mesh->axis[i].size);
    out = ct_arena_printf(arena, "%s\n", out);
    for (; (next = strstr(text, "T[")); text = next + 1)
        out = ct_arena_printf(arena, "%s%.*s%s", out, (int)(next - text), text, dtype);
    return ct_arena_printf(arena, "%s%s", out, text);
}

/* By the device's kernel, which must take the call. */
static int launch_kernel(const struct ct_op *op, const struct ct_tensor *in,
                         const struct ct_tensor *out, const struct ct_mesh *mesh, int64_t rank)
{
    struct ct_tensor shapes[16];
    bool present[8];
    struct ct_arena arena = {0};
    struct ct_prepare p = {.op = op,
                           .in = shapes,
                           .out = shapes + op->ins,
                           .present = present,
                           .ins = op->ins,
                           .outs = op->outs,
                           .device = device,
                           .arena = &arena,
                           .rank = rank,
                           .mesh = mesh};
    struct ct_launch l = {.op = op,
                          .in = in,
                          .out = out,
                          .ins = op->ins,
                          .outs = op->outs,
                          .device = device,
                          .rank = rank,
                          .mesh = mesh};
    const struct ct_kernel *kernel;
    int rc = 0;

    for (int i = 0; i < op->ins + op->outs; i++) {
        shapes[i] = i < op->ins ? in[i] : out[i - op->ins];
        if (i < op->ins)
            present[i] = in[i].data != NULL;
        shapes[i].data = NULL;
    }
    kernel = ct_kernel_find("cpu", &p);
    if (!kernel)
        return ct_fail(CT_EINVAL, "no kernel takes %s", op->type->name);
    if (kernel->prepare)
        rc = kernel->prepare(&p);
    l.workspace = aligned_alloc(64, (p.workspace + 64) / 64 * 64);
    l.state = p.state;
    for (int i = 0; i < op->outs; i++)
        memset(out[i].data, 0xff, (size_t)ct_tensor_count(&out[i]) * ct_dtype_size(out[i].dtype));
    if (rc == 0)
        rc = kernel->run(&l);
    free(l.workspace);
    ct_arena_finish(&arena);
    kernels_run++;
    return rc;
}

static double element(const struct ct_value *v, struct random *random)
{
    if (v->dtype != CT_I32)
        return random_normal(random);
    if (!strcmp(v->name, "labels") && random_chance(random, 25))
        return -100;
    return (double)random_below(random, 24);
}

static void feed(struct world *w, struct random *random)
{
    for (size_t i = 0; i < w->graph->value_count; i++) {
        const struct ct_value *v = w->graph->values[i];
        struct ct_tensor whole;

        if (v->producer)
            continue;
        whole = world_whole(w, v);
        for (int64_t k = 0; k < ct_tensor_count(&whole); k++)
            ct_tensor_store(&whole, k, element(v, random));
        world_scatter(w, v, &whole, random);
    }
}

/* Every parameter is what the kernel makes of it as a whole. */
static void check_bits(struct world *w)
{
    ct_for_each_op (op, w->graph) {
        struct ct_tensor shards, whole;

        if (op->section->part != CT_PART_INIT)
            continue;
        whole = world_whole(w, op->in[0]);
        assert_ok(launch_kernel(op, &whole, NULL, NULL, 0));
        assert_ok(world_gather(w, op->in[0], &shards));
        assert_memory_equal(shards.data, whole.data,
                            (size_t)ct_tensor_count(&whole) * ct_dtype_size(whole.dtype));
    }
}

static void check_case(const char *text, const char *dtype, uint64_t seed)
{
    struct random random = {seed, 0};
    struct ct_arena arena = {0};
    struct ct_graph *graph;
    struct ct_mesh mesh;
    struct world w;

    random_mesh(&random, &mesh);
    graph = ct_graph_parse(&arena, with_dtype(&arena, &mesh, text, dtype));
    if (!graph)
        fail_msg("%s: %s", text, ct_error_message());
    for (size_t i = 0; i < graph->value_count; i++)
        if (!graph->values[i]->producer)
            graph->values[i]->sharding =
                random_sharding(&random, &graph->mesh, graph->values[i]->ndim, false);
    assert_ok(ct_pass_propagate.apply(graph, NULL));
    assert_ok(ct_graph_verify(graph, NULL));
    world_create(&w, graph);
    w.launch = launch_kernel;
    feed(&w, &random);
    if (world_run(&w) < 0) {
        ct_graph_print(graph, stderr);
        fail_msg("seed %d: %s", (int)seed, ct_error_message());
    }
    check_bits(&w);
    world_finish(&w);
    ct_arena_finish(&arena);
}

static void kernels_on_shards_equal_the_whole(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++)
        for (size_t i = 0; i < CT_COUNT(cases); i++) {
            check_case(cases[i], "float32", seed);
            check_case(cases[i], "bfloat16", seed);
        }
    assert_true(kernels_run > 5000);
}

/* A token of nobody's shard is an error on every rank. */
static void tokens_out_of_range_fail_on_every_rank(void **state)
{
    struct ct_arena arena = {0};
    struct random random = {1, 0};
    struct ct_graph *graph =
        ct_graph_parse(&arena, "graph \"outside\"\n"
                               "mesh a=2\n"
                               "input %tokens : int32[3]\n"
                               "param %table : float32[20,4] [a, -]\n"
                               "F - %y = embedding(%tokens, %table) : float32[3,4] +{a}\n");
    struct world w;

    (void)state;
    assert_non_null(graph);
    world_create(&w, graph);
    w.launch = launch_kernel;
    feed(&w, &random);
    for (int rank = 0; rank < 2; rank++) {
        struct ct_op *op = graph->first;
        struct ct_tensor in[2] = {w.shard[op->in[0]->id][rank], w.shard[op->in[1]->id][rank]};
        struct ct_tensor out = world_whole(&w, op->out[0]);

        ct_tensor_store(&in[0], 0, 0);
        ct_tensor_store(&in[0], 1, 19);
        ct_tensor_store(&in[0], 2, 7);
        assert_ok(launch_kernel(op, in, &out, &graph->mesh, rank));
        ct_tensor_store(&in[0], 1, 20);
        assert_int_equal(launch_kernel(op, in, &out, &graph->mesh, rank), CT_EINVAL);
        assert_non_null(strstr(ct_error_message(), "token 20 is outside the table of 20 rows"));
    }
    world_finish(&w);
    ct_arena_finish(&arena);
}

/* ---- threads ---- */

enum { INDICES = 1003 };

static void visit(void *context, int64_t begin, int64_t end)
{
    int *visits = context;

    assert_true(0 <= begin && begin < end && end <= INDICES);
    for (int64_t i = begin; i < end; i++)
        visits[i]++;
}

static void each_index_is_in_one_range(void **state)
{
    struct ct_device serial = {.ops = &ct_device_reference};
    struct ct_device *const devices[] = {device, &serial, NULL};

    (void)state;
    for (size_t d = 0; d < CT_COUNT(devices); d++)
        for (int64_t count = 0; count <= INDICES; count = 3 * count + 1) {
            const struct ct_launch launch = {.device = devices[d]};
            int visits[INDICES] = {0};

            ct_parallel(&launch, count, visit, visits);
            for (int64_t i = 0; i < INDICES; i++)
                assert_int_equal(visits[i], i < count);
        }
}

static void count_range(void *context, int64_t begin, int64_t end)
{
    assert_true(begin < end);
    __atomic_fetch_add((int *)context, 1, __ATOMIC_SEQ_CST);
}

static void ranges_run_on_the_threads_of_the_device(void **state)
{
    const struct ct_launch launch = {.device = device};
    struct ct_device_info info;
    int ranges = 0;

    (void)state;
    device->ops->info(device, CT_F32, &info);
    ct_parallel(&launch, 64, count_range, &ranges);
    assert_int_equal(ranges, info.threads < 64 ? info.threads : 64);
}

static int open_device(void)
{
    const struct ct_plugin *plugin;
    const struct ct_offer *offer;
    int rc = ct_plugin_find("cpu", &plugin);

    if (rc == 0)
        rc = ct_options_reset(plugin->options, plugin->config);
    if (rc == 0)
        rc = ct_plugin_register(plugin);
    if (rc == 0)
        rc = ct_offer_find(CT_DEVICE, "cpu", &offer);
    if (rc == 0)
        rc = ((const struct ct_device_ops *)offer->ops)
                 ->open(&(struct ct_device_request){0, 1}, &device);
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_on_shards_equal_the_whole),
        cmocka_unit_test(tokens_out_of_range_fail_on_every_rank),
        cmocka_unit_test(each_index_is_in_one_range),
        cmocka_unit_test(ranges_run_on_the_threads_of_the_device),
    };

    if (open_device() < 0) {
        print_error("%s\n", ct_error_message());
        return 1;
    }
    if (REGISTER_OPS("float8", "tp") < 0)
        return 1;
    return cmocka_run_group_tests_name("kernels on shards", tests, NULL, NULL);
}
