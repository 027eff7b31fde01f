/*
 * Messages of the cuda device about tokens and labels out of range and about too little memory, the
 * ways in which it takes memory, the state that it forgets with memory that it returns, and parts
 * of values in its memory. Runs on the simulated device.
 */
#include "plugin_under_test.h"

#include <dlfcn.h>

#include <ctitan/collective.h>
#include <ctitan/core_ops.h>
#include <ctitan/lib/ops.h>
#include <ctitan/program.h>
#include <ctitan/text.h>

static struct ct_device *device;

static int open_device(void **state)
{
    const struct ct_plugin *plugin = test_plugin("cuda");

    (void)state;
    TEST_OPTIONS(plugin, "attention=plain", "graph=true");
    assert_int_equal(ct_plugin_register(plugin), 0);
    return ((const struct ct_device_ops *)test_offer(plugin, CT_DEVICE))
        ->open(&(struct ct_device_request){0, 1}, &device);
}

static int close_device(void **state)
{
    (void)state;
    device->ops->close(device);
    return 0;
}

/* A graph of one microbatch, with these bytes as its input `name`. */
static struct ct_executor *fed(struct ct_arena *arena, const char *text, const char *name,
                               const void *values, size_t bytes, struct ct_graph **graph)
{
    struct ct_lower_request request = {.microbatches = 1, .device = device, .arena = arena};
    struct ct_program *program;
    struct ct_executor *executor;

    request.graph = *graph = ct_graph_parse(arena, text);
    assert_non_null(*graph);
    assert_int_equal(ct_lower(&request, &program), 0);
    assert_int_equal(ct_executor_create(program, device, NULL, &executor), 0);
    assert_int_equal(ct_executor_write(executor, ct_graph_find(*graph, name), 0, values, bytes), 0);
    return executor;
}

/* Runs a graph of one microbatch once, with these integers as its input `name`. */
static int run(const char *text, const char *name, const int32_t *values, size_t count)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph;
    struct ct_executor *executor = fed(&arena, text, name, values, count * sizeof(*values), &graph);
    int rc;

    rc = ct_executor_step(executor);
    ct_executor_destroy(executor);
    ct_arena_finish(&arena);
    return rc;
}

static void tokens_out_of_range_are_refused(void **state)
{
    static const char text[] = "graph \"tokens\"\n"
                               "input %tokens : int32[1,4]\n"
                               "param %table : float32[11,8]\n"
                               "F - %y = embedding(%tokens, %table) : float32[1,4,8]\n"
                               "fetch y = %y\n";

    (void)state;
    assert_int_equal(run(text, "tokens", (int32_t[]){0, 10, 3, 1}, 4), 0);
    assert_int_equal(run(text, "tokens", (int32_t[]){0, 10, 99, 1}, 4), CT_EINVAL);
    assert_message("token 99 at position 2 is not below 11");
    assert_int_equal(run(text, "tokens", (int32_t[]){0, 10, 3, 1}, 4), 0);
}

static void labels_out_of_range_are_refused(void **state)
{
    static const char text[] = "graph \"labels\"\n"
                               "input %labels : int32[1,4]\n"
                               "input %logits : float32[1,4,7]\n"
                               "F - %loss, %lse = cross_entropy(%logits, %labels) : float32[], "
                               "float32[1,4]\n"
                               "fetch loss = %loss\n";

    (void)state;
    assert_int_equal(run(text, "labels", (int32_t[]){0, 6, -100, 1}, 4), 0);
    assert_int_equal(run(text, "labels", (int32_t[]){0, 6, -100, 7}, 4), CT_EINVAL);
    assert_message("label 7 at position 3 is not below 7");
}

/* The simulated device has a GiB, and gives as much as the host has, up to 8. */
static void too_little_memory_is_refused(void **state)
{
    void *base;

    (void)state;
    assert_int_equal(device->ops->reserve(device, (size_t)20 << 30, &base), CT_ENOMEM);
    assert_message("20.00 GiB are needed, but only 1.00 of 1.00 GiB are free on the device");
}

/* Containers refuse memory that can be exported, or that is mapped at all. */
static void refused_memory_falls_back(void **state)
{
    static const char *const refused[] = {"export", "mapping"};
    char in[300], out[300];
    void *base;

    (void)state;
    memset(in, 7, sizeof(in));
    for (size_t i = 0; i < CT_COUNT(refused); i++) {
        setenv("SIMULATOR_REFUSES", refused[i], 1);
        assert_int_equal(device->ops->reserve(device, sizeof(in), &base), 0);
        assert_int_equal(device->ops->copy_in(device, base, in, sizeof(in)), 0);
        assert_int_equal(device->ops->copy_out(device, out, base, sizeof(out)), 0);
        assert_memory_equal(in, out, sizeof(in));
        device->ops->release(device, base, sizeof(in));
    }
    unsetenv("SIMULATOR_REFUSES");
}

/* ---- pinned memory ---- */

static int add_one(const struct ct_call *call)
{
    for (size_t i = 0; i < call->count; i++)
        ((float *)call->out)[i] = ((const float *)call->in)[i] + 1;
    return 0;
}

static int run_call(const struct ct_launch *launch)
{
    return ct_transport_call(launch, ct_transport_find(device), launch->state);
}

/* Runs the call on the device's first stream. */
static int enqueue(struct ct_call *call)
{
    static const struct ct_kernel kernel = {
        .size = sizeof(kernel), .op = "all_reduce", .name = "staged", .run = run_call};
    struct ct_launch launch = {
        .op = &(struct ct_op){.type = &ct_op_all_reduce}, .device = device, .state = call};
    int rc = device->ops->enqueue(device, CT_STREAM_COMPUTE, &kernel, &launch);

    return rc == 0 ? device->ops->synchronize(device) : rc;
}

/* A larger call, after pinned memory was refused once, must not use memory that is not there. */
static void refused_pinned_memory_is_asked_for_again(void **state)
{
    enum { MOST = 1 << 14 };
    static const struct ct_comm_ops ops = {.size = sizeof(ops), .call = add_one};
    static float numbers[MOST];
    struct ct_group group = {.ops = &ops, .name = "two", .size = 2, .ranks = (const int[]){0, 1}};
    struct ct_call call = {
        .kind = CT_CALL_ALL_REDUCE, .group = &group, .dtype = CT_F32, .count = 16};
    void *base;

    (void)state;
    assert_string_equal(ct_transport_find(device)->name, "staged");
    assert_int_equal(device->ops->reserve(device, sizeof(numbers), &base), 0);
    assert_int_equal(device->ops->copy_in(device, base, numbers, sizeof(numbers)), 0);
    call.in = call.out = base;
    assert_int_equal(enqueue(&call), 0);
    call.count = MOST;
    setenv("SIMULATOR_REFUSES", "pinned", 1);
    for (int i = 0; i < 2; i++) {
        assert_true(enqueue(&call) < 0);
        assert_message("pinned memory: out of memory");
    }
    unsetenv("SIMULATOR_REFUSES");
    assert_int_equal(enqueue(&call), 0);
    assert_int_equal(device->ops->copy_out(device, numbers, base, sizeof(numbers)), 0);
    assert_true(numbers[0] == 2 && numbers[MOST - 1] == 1);
    device->ops->release(device, base, sizeof(numbers));
}

/* ---- captured graphs ---- */

/* The first element of OP(3, 3) after so many steps. */
static float run_steps(const char *op, int steps)
{
    static const char text[] = "graph \"one\"\n"
                               "input %%x : float32[64]\n"
                               "F - %%y = %s(%%x, %%x) : float32[64]\n"
                               "fetch y = %%y\n";
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_parse(&arena, ct_arena_printf(&arena, text, op));
    struct ct_lower_request request = {
        .graph = graph, .microbatches = 1, .device = device, .arena = &arena};
    struct ct_program *program;
    struct ct_executor *executor;
    float x[64], y[64];

    for (int i = 0; i < 64; i++)
        x[i] = 3;
    assert_non_null(graph);
    assert_int_equal(ct_lower(&request, &program), 0);
    assert_int_equal(ct_executor_create(program, device, NULL, &executor), 0);
    for (int step = 0; step < steps; step++) {
        assert_int_equal(ct_executor_write(executor, ct_graph_find(graph, "x"), 0, x, sizeof(x)),
                         0);
        assert_int_equal(ct_executor_step(executor), 0);
    }
    assert_int_equal(ct_executor_read(executor, ct_graph_find(graph, "y"), y, sizeof(y)), 0);
    ct_executor_destroy(executor);
    ct_arena_finish(&arena);
    return y[0];
}

/* Captured steps are known by the address of their first launch. A later program may get that. */
static void a_captured_step_ends_with_its_memory(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_true(run_steps("add", 6) == 6);
        assert_true(run_steps("swiglu", 6) > 8);
    }
}

static int runs;

static int count_run(const struct ct_launch *launch)
{
    (void)launch;
    runs++;
    return 0;
}

/* Stages, validation, lengths of a batch: there may be many. */
static void each_program_is_captured(void **state)
{
    enum { PROGRAMS = 20, STEPS = 5, REPLAYED = 2 };
    static const struct ct_kernel kernel = {.size = sizeof(kernel), .run = count_run};
    static struct ct_launch first[PROGRAMS];
    void *base;

    (void)state;
    assert_int_equal(device->ops->reserve(device, 256, &base), 0);
    for (int i = 0; i < PROGRAMS * STEPS; i++) {
        assert_int_equal(device->ops->events(device, 1), 0);
        assert_int_equal(
            device->ops->enqueue(device, CT_STREAM_COMPUTE, &kernel, &first[i % PROGRAMS]), 0);
        assert_int_equal(device->ops->synchronize(device), 0);
    }
    assert_int_equal(runs, PROGRAMS * (STEPS - REPLAYED));
    device->ops->release(device, base, 256);
}

/* The simulated driver refuses what a real one does. */
#define DRIVER_CALL(name, ...)                                                                     \
    ((int (*)(__VA_ARGS__))(uintptr_t)dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), name))

static void captures_wait_for_their_own(void **state)
{
    int (*wait)(void *, void *, unsigned) =
        DRIVER_CALL("cuStreamWaitEvent", void *, void *, unsigned);
    int (*record)(void *, void *) = DRIVER_CALL("cuEventRecord", void *, void *);
    void *stream, *event, *graph;

    (void)state;
    assert_int_equal(DRIVER_CALL("cuStreamCreate", void **, unsigned)(&stream, 0), 0);
    assert_int_equal(DRIVER_CALL("cuEventCreate", void **, unsigned)(&event, 0), 0);
    assert_int_equal(record(event, stream), 0);
    assert_int_equal(wait(stream, event, 0), 0);
    assert_int_equal(DRIVER_CALL("cuStreamBeginCapture_v2", void *, int)(stream, 1), 0);
    assert_int_equal(wait(stream, event, 0), 905);
    assert_int_equal(record(event, stream), 0);
    assert_int_equal(wait(stream, event, 0), 0);
    assert_int_equal(DRIVER_CALL("cuStreamEndCapture", void *, void **)(stream, &graph), 0);
    assert_int_equal(wait(stream, event, 0), 907);
}

static void much_shared_memory_needs_permission(void **state)
{
    int (*allow)(void *, int, int) = DRIVER_CALL("cuFuncSetAttribute", void *, int, int);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **) =
        DRIVER_CALL("cuLaunchKernel", void *, unsigned, unsigned, unsigned, unsigned, unsigned,
                    unsigned, unsigned, void *, void **, void **);
    void *function = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "add_numbers");
    double numbers[3] = {0, 1, 2};
    double *arguments[] = {&numbers[0], &numbers[1], &numbers[2]};
    void *parameters[] = {arguments}, *stream;

    (void)state;
    assert_non_null(function);
    assert_int_equal(DRIVER_CALL("cuStreamCreate", void **, unsigned)(&stream, 0), 0);
    assert_int_equal(launch(function, 1, 1, 1, 1, 1, 1, 65536, stream, parameters, NULL), 1);
    assert_int_equal(allow(function, 8, 65536), 0);
    assert_int_equal(launch(function, 1, 1, 1, 1, 1, 1, 65536, stream, parameters, NULL), 0);
    assert_true(numbers[0] == 3);
    assert_int_equal(allow(function, 8, 240000), 1);
}

/* A second device, as the first is open: what it says of the driver comes before anything else. */
static void an_old_driver_is_refused(void **state)
{
    struct ct_device *other;

    (void)state;
    setenv("SIMULATOR_DRIVER", "12080", 1);
    assert_int_equal(device->ops->open(&(struct ct_device_request){0, 1}, &other), CT_ENOENT);
    assert_message("the NVIDIA driver is for CUDA 12.8, the kernels were built with CUDA 13.0");
    unsetenv("SIMULATOR_DRIVER");
}

static void parts_are_among_zeros(void **state)
{
    static const char text[] = "graph \"parts\"\n"
                               "input %x : float32[2,3]\n"
                               "F - %p = pad(%x) {dim=1, from=1, size=5} : float32[2,5]\n"
                               "F - %n = narrow(%p) {dim=1, from=2, size=2} : float32[2,2]\n"
                               "fetch p = %p\nfetch n = %n\n";
    const float x[] = {1, 2, 3, 4, 5, 6}, padded[] = {0, 1, 2, 3, 0, 0, 4, 5, 6, 0},
                slice[] = {2, 3, 5, 6};
    struct ct_arena arena = {0};
    struct ct_graph *graph;
    struct ct_executor *executor = fed(&arena, text, "x", x, sizeof(x), &graph);
    float p[10], n[4];

    (void)state;
    assert_int_equal(ct_executor_step(executor), 0);
    assert_int_equal(ct_executor_read(executor, ct_graph_find(graph, "p"), p, sizeof(p)), 0);
    assert_int_equal(ct_executor_read(executor, ct_graph_find(graph, "n"), n, sizeof(n)), 0);
    assert_memory_equal(p, padded, sizeof(p));
    assert_memory_equal(n, slice, sizeof(n));
    ct_executor_destroy(executor);
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_out_of_range_are_refused),
        cmocka_unit_test(labels_out_of_range_are_refused),
        cmocka_unit_test(too_little_memory_is_refused),
        cmocka_unit_test(refused_memory_falls_back),
        cmocka_unit_test(refused_pinned_memory_is_asked_for_again),
        cmocka_unit_test(a_captured_step_ends_with_its_memory),
        cmocka_unit_test(each_program_is_captured),
        cmocka_unit_test(captures_wait_for_their_own),
        cmocka_unit_test(much_shared_memory_needs_permission),
        cmocka_unit_test(an_old_driver_is_refused),
        cmocka_unit_test(parts_are_among_zeros),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests_name("cuda faults", tests, open_device, close_device);
}
