/*
 * Weights that qlora's kernels decode on the simulated device: bit for bit those of the CPU, as
 * each number is rounded in the same way.
 */
#include <string.h>

#include "plugin_under_test.h"

#include <ctitan/lib/ops.h>
#include <ctitan/program.h>
#include <ctitan/text.h>

enum { CPU, CUDA, DEVICES };

static struct ct_device *device[DEVICES];

static struct ct_device *opened(const char *name)
{
    const struct ct_plugin *plugin = test_plugin(name);
    struct ct_device *d;

    assert_int_equal(ct_options_reset(plugin->options, plugin->config), 0);
    assert_int_equal(ct_plugin_register(plugin), 0);
    assert_int_equal(((const struct ct_device_ops *)test_offer(plugin, CT_DEVICE))
                         ->open(&(struct ct_device_request){0, 1}, &d),
                     0);
    return d;
}

static int open_devices(void **state)
{
    (void)state;
    assert_int_equal(ct_plugin_register(test_plugin("qlora")), 0);
    device[CPU] = opened("cpu");
    device[CUDA] = opened("cuda");
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    for (int i = 0; i < DEVICES; i++)
        device[i]->ops->close(device[i]);
    return 0;
}

/* Numbers of every size for float32; any bits for others. */
static void fill(unsigned char *data, size_t bytes, enum ct_dtype dtype)
{
    uint64_t random = 88172645463325252;

    for (size_t i = 0; i < bytes; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        data[i] = (unsigned char)(random >> 32);
    }
    for (size_t i = 0; dtype == CT_F32 && i < bytes / 4; i++)
        ((float *)(void *)data)[i] = (float)((int)data[4 * i] - 100) * 0x1.234p-7f;
}

/* Runs a graph, and returns the bytes of its value "y". */
static void *result_of(const char *text, struct ct_device *on, struct ct_arena *arena, size_t *size)
{
    struct ct_graph *graph = ct_graph_parse(arena, text);
    struct ct_lower_request request = {
        .graph = graph, .microbatches = 1, .device = on, .arena = arena};
    struct ct_program *program;
    struct ct_executor *executor;
    struct ct_value *y;
    void *out;

    if (!graph)
        fail_msg("%s", ct_error_message());
    assert_int_equal(ct_lower(&request, &program), 0);
    assert_int_equal(ct_executor_create(program, on, NULL, &executor), 0);
    for (size_t i = 0; i < graph->value_count; i++) {
        struct ct_value *v = graph->values[i];
        size_t bytes = ct_value_bytes(graph, v, -1);
        unsigned char *data;

        if (v->role != CT_ROLE_PARAM)
            continue;
        data = ct_arena_alloc(arena, bytes);
        fill(data, bytes, v->dtype);
        assert_int_equal(ct_executor_write(executor, v, -1, data, bytes), 0);
    }
    assert_int_equal(ct_executor_step(executor), 0);
    y = ct_graph_find(graph, "y");
    *size = ct_value_bytes(graph, y, -1);
    out = ct_arena_alloc(arena, *size);
    assert_int_equal(ct_executor_read(executor, y, out, *size), 0);
    ct_executor_destroy(executor);
    return out;
}

static void compare(const char *text)
{
    struct ct_arena arena = {0};
    size_t size[DEVICES];
    const unsigned char *y[DEVICES];

    for (int i = 0; i < DEVICES; i++)
        y[i] = result_of(text, device[i], &arena, &size[i]);
    assert_int_equal(size[CPU], size[CUDA]);
    for (size_t i = 0; i < size[CPU]; i++)
        if (y[CPU][i] != y[CUDA][i])
            fail_msg("byte %zu of %zu differs: %02x, and %02x on the device, in\n%s", i, size[CPU],
                     y[CPU][i], y[CUDA][i], text);
    ct_arena_finish(&arena);
}

/* Rows of 70 and 37 begin within blocks; groups of 256 scales, and one with less. */
static void weights_are_decoded(void **state)
{
    (void)state;
    compare("graph \"nf4\"\nparam %q : uint4[44,70]\nparam %absmax : float32[44,3]\n"
            "F - %y = qlora.dequantise(%q, %absmax) {dtype=bfloat16} : bfloat16[44,70]\n"
            "fetch y = %y\n");
    compare("graph \"nf4\"\nparam %q : uint4[7,37]\nparam %absmax : float32[7,2]\n"
            "F - %y = qlora.dequantise(%q, %absmax) : float32[7,37]\nfetch y = %y\n");
    compare("graph \"double\"\nparam %q : uint4[300,70]\nparam %absmax : uint8[300,3]\n"
            "param %nested : float32[3]\n"
            "F - %y = qlora.dequantise(%q, %absmax, %nested) : float32[300,70]\nfetch y = %y\n");
    compare("graph \"int8\"\nparam %q : uint8[300,64]\nparam %absmax : uint8[300,1]\n"
            "param %nested : float32[3]\n"
            "F - %y = qlora.dequantise(%q, %absmax, %nested) {base=int8} : float32[300,64]\n"
            "fetch y = %y\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_are_decoded)};

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests_name("bits of kernels", tests, open_devices, close_devices);
}
