/*
 * What the cuda device says of tokens and labels out of range, and of too little memory, and how it
 * takes memory that a machine gives in no other way. Runs on the simulated device.
 */
#include "../plugin_under_test.h"

#include <ctitan/lib/text.h>
#include <ctitan/program.h>
#include <ctitan/lib/ops.h>

static struct ct_device *device;

static int open_device(void **state)
{
    const struct ct_plugin *plugin = test_plugin("cuda");

    (void)state;
    TEST_OPTIONS(plugin, "attention=plain");
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

/* Runs a graph of one microbatch once, with these integers as its input `name`. */
static int run(const char *text, const char *name, const int32_t *values, size_t count)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_parse(&arena, text);
    struct ct_lower_request request = {
        .graph = graph, .microbatches = 1, .device = device, .arena = &arena};
    struct ct_program *program;
    struct ct_executor *executor;
    int rc;

    assert_non_null(graph);
    assert_int_equal(ct_lower(&request, &program), 0);
    assert_int_equal(ct_executor_create(program, device, NULL, &executor), 0);
    assert_int_equal(
        ct_executor_write(executor, ct_graph_find(graph, name), 0, values, count * sizeof(*values)),
        0);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_out_of_range_are_refused),
        cmocka_unit_test(labels_out_of_range_are_refused),
        cmocka_unit_test(too_little_memory_is_refused),
        cmocka_unit_test(refused_memory_falls_back),
        cmocka_unit_test(an_old_driver_is_refused),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests_name("cuda faults", tests, open_device, close_device);
}
