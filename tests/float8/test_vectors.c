/*
 * torchao's own scales, casts, MX blocks and linear layers (torchao.json; floats as bit patterns):
 * scales and casts to the last bit, on the reference device and on the CPU; products up to the
 * order of sums.
 */
#include "plugin_under_test.h"
#include "reference.h"

#include <jansson.h>
#include <math.h>

#include <ctitan/app/verify.h>
#include <ctitan/lib/ops.h>
#include <ctitan/run.h>
#include <ctitan/text.h>

static struct ct_device *devices[2];
static const struct ct_plugin *plugin;
static json_t *vectors;

static int load(void **state)
{
    const struct ct_plugin *cpu = test_plugin("cpu");

    (void)state;
    plugin = test_plugin("float8");
    TEST_OPTIONS(cpu, "isa=auto");
    assert_int_equal(ct_plugin_register(cpu), 0);
    assert_int_equal(ct_plugin_register(plugin), 0);
    vectors = json_load_file(getenv("VECTORS"), 0, NULL);
    assert_non_null(vectors);
    assert_int_equal(ct_device_reference.open(&(struct ct_device_request){0, 1}, &devices[0]), 0);
    return ((const struct ct_device_ops *)test_offer(cpu, CT_DEVICE))
        ->open(&(struct ct_device_request){0, 1}, &devices[1]);
}

static int unload(void **state)
{
    (void)state;
    json_decref(vectors);
    for (int i = 0; i < 2; i++)
        devices[i]->ops->close(devices[i]);
    return 0;
}

/* ---- running a graph whose inputs are parameters ---- */

struct machine {
    struct ct_arena arena;
    struct ct_graph *graph;
    struct ct_program *program;
    struct ct_executor *executor;
};

static void start(struct machine *m, struct ct_device *device)
{
    struct ct_lower_request request = {
        .graph = m->graph, .microbatches = 1, .device = device, .arena = &m->arena};

    if (ct_graph_verify(m->graph, stderr) < 0 || ct_lower(&request, &m->program) < 0 ||
        ct_executor_create(m->program, device, NULL, &m->executor) < 0)
        fail_msg("%s", ct_error_message());
}

static void feed(struct machine *m, const char *name, const void *data, size_t bytes)
{
    if (ct_executor_write(m->executor, ct_graph_find(m->graph, name), -1, data, bytes) < 0)
        fail_msg("%s", ct_error_message());
}

static void fetch(struct machine *m, const char *name, void *data, size_t bytes)
{
    if (ct_executor_read(m->executor, ct_graph_fetched(m->graph, name), data, bytes) < 0)
        fail_msg("%s: %s", name, ct_error_message());
}

static void finish(struct machine *m)
{
    ct_executor_destroy(m->executor);
    ct_arena_finish(&m->arena);
}

/* ---- scales and casts ---- */

static uint32_t bits(const json_t *object, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(object, key));
}

static bool is_e4m3(const json_t *object)
{
    return !strcmp(json_string_value(json_object_get(object, "dtype")), "float8_e4m3fn");
}

static void check_scale(const json_t *want, struct ct_device *device)
{
    struct machine m = {0};
    uint32_t amax = bits(want, "amax"), scale;
    char *text = ct_arena_printf(
        &m.arena,
        "graph \"scale\"\nparam %%amax : float32[1]\n"
        "F - %%scale = float8_scale(%%amax) {largest=%d, rule=\"%s\"} : float32[1]\n"
        "fetch scale = %%scale\n",
        is_e4m3(want) ? 448 : 57344,
        json_is_true(json_object_get(want, "power_of_2")) ? "power_of_two" : "exact");

    m.graph = ct_graph_parse(&m.arena, text);
    if (!m.graph)
        fail_msg("%s", ct_error_message());
    start(&m, device);
    feed(&m, "amax", &amax, sizeof(amax));
    assert_int_equal(ct_executor_step(m.executor), 0);
    fetch(&m, "scale", &scale, sizeof(scale));
    if (scale != bits(want, "scale"))
        fail_msg("%s: the scale of %08x is %08x, not %08x", device->name, amax, scale,
                 bits(want, "scale"));
    finish(&m);
}

static void scales_equal_the_vectors(void **state)
{
    const json_t *list = json_object_get(vectors, "scales");

    (void)state;
    assert_true(json_array_size(list) > 50);
    for (size_t i = 0; i < json_array_size(list); i++)
        for (int d = 0; d < 2; d++)
            check_scale(json_array_get(list, i), devices[d]);
}

static void check_cast(const json_t *want, struct ct_device *device)
{
    const json_t *x = json_object_get(want, "x"), *bytes = json_object_get(want, "bytes");
    size_t count = json_array_size(x);
    const char *dtype = is_e4m3(want) ? "float8_e4m3" : "float8_e5m2";
    struct machine m = {0};
    uint32_t *numbers = ct_arena_array(&m.arena, uint32_t, count);
    uint8_t *q = ct_arena_array(&m.arena, uint8_t, count);
    float one = 1;

    m.graph = ct_graph_parse(
        &m.arena, ct_arena_printf(&m.arena,
                                  "graph \"cast\"\nparam %%x : float32[1,%zu]\n"
                                  "param %%one : float32[1,1]\n"
                                  "F - %%q = float8_quantise(%%x, %%one) {dtype=\"%s\"} : "
                                  "%s[1,%zu]\nfetch q = %%q\n",
                                  count, dtype, dtype, count));
    if (!m.graph)
        fail_msg("%s", ct_error_message());
    for (size_t i = 0; i < count; i++)
        numbers[i] = (uint32_t)json_integer_value(json_array_get(x, i));
    start(&m, device);
    feed(&m, "x", numbers, 4 * count);
    feed(&m, "one", &one, sizeof(one));
    assert_int_equal(ct_executor_step(m.executor), 0);
    fetch(&m, "q", q, count);
    for (size_t i = 0; i < count; i++)
        if (q[i] != json_integer_value(json_array_get(bytes, i)))
            fail_msg("%s: %08x becomes %02x in %s, not %02llx", device->name, numbers[i], q[i],
                     dtype, (long long)json_integer_value(json_array_get(bytes, i)));
    finish(&m);
}

static void casts_equal_the_vectors(void **state)
{
    const json_t *list = json_object_get(vectors, "casts");

    (void)state;
    assert_int_equal(json_array_size(list), 2);
    for (size_t i = 0; i < json_array_size(list); i++)
        for (int d = 0; d < 2; d++)
            check_cast(json_array_get(list, i), devices[d]);
}

/* Numbers of `size` bytes in hexadecimal. */
static void *decode(struct ct_arena *arena, const json_t *layer, const char *key, size_t size,
                    size_t *count)
{
    const char *hex = json_string_value(json_object_get(layer, key));
    char digits[9] = {0}, *data;

    *count = strlen(hex) / (2 * size);
    data = ct_arena_alloc(arena, *count * size);
    for (size_t i = 0; i < *count; i++) {
        uint32_t number;

        memcpy(digits, hex + 2 * size * i, 2 * size);
        number = (uint32_t)strtoul(digits, NULL, 16);
        memcpy(data + i * size, &number, size);
    }
    return data;
}

/* ---- blocks (OCP MX) ---- */

/* Blocks of 32 numbers, their scales (exponents of E8M0: a scale here is the inverse) and bytes. */
static void check_blocks(const json_t *want, struct ct_device *device)
{
    struct machine m = {0};
    size_t count, blocks, bytes;
    const void *x = decode(&m.arena, want, "x", 4, &count);
    const uint8_t *exponent = decode(&m.arena, want, "exponents", 1, &blocks);
    const uint8_t *q = decode(&m.arena, want, "q", 1, &bytes);
    const char *rule = json_string_value(json_object_get(want, "rule"));
    float *scale = ct_arena_array(&m.arena, float, blocks);
    uint8_t *got = ct_arena_array(&m.arena, uint8_t, count);

    assert_true(blocks > 20 && count == 32 * blocks && bytes == count);
    m.graph = ct_graph_parse(
        &m.arena,
        ct_arena_printf(&m.arena,
                        "graph \"mx\"\nparam %%x : float32[%zu,32]\n"
                        "pre - %%amax = float8_amax(%%x) {grid=\"%zu,1\"} : float32[%zu,1]\n"
                        "pre - %%scale = float8_scale(%%amax) {largest=448, rule=\"%s\"} : "
                        "float32[%zu,1]\n"
                        "pre - %%q = float8_quantise(%%x, %%scale) {dtype=\"float8_e4m3\"} : "
                        "float8_e4m3[%zu,32]\nfetch scale = %%scale\nfetch q = %%q\n",
                        blocks, blocks, blocks, rule, blocks, blocks));
    if (!m.graph)
        fail_msg("%s", ct_error_message());
    start(&m, device);
    feed(&m, "x", x, 4 * count);
    assert_int_equal(ct_executor_step(m.executor), 0);
    fetch(&m, "scale", scale, 4 * blocks);
    fetch(&m, "q", got, count);
    for (size_t i = 0; i < count; i++) {
        uint8_t e = exponent[i / 32];

        if (scale[i / 32] != ldexpf(1, 127 - e))
            fail_msg("%s, %s: the scale of block %zu is %g, not 2^%d", device->name, rule, i / 32,
                     (double)scale[i / 32], 127 - e);
        if (got[i] != q[i])
            fail_msg("%s, %s: number %zu of block %zu becomes %02x, not %02x", device->name, rule,
                     i % 32, i / 32, got[i], q[i]);
    }
    finish(&m);
}

static void blocks_equal_the_vectors(void **state)
{
    const json_t *list = json_object_get(vectors, "mx");

    (void)state;
    assert_int_equal(json_array_size(list), 2);
    for (size_t i = 0; i < json_array_size(list); i++)
        for (int d = 0; d < 2; d++)
            check_blocks(json_array_get(list, i), devices[d]);
}

/* ---- linear layers ---- */

static struct ct_graph *layer_graph(struct ct_arena *arena, const json_t *layer,
                                    enum ct_dtype dtype)
{
    struct ct_graph *graph = ct_graph_create(arena, "layer");
    int64_t m = bits(layer, "m"), n = bits(layer, "n"), k = bits(layer, "k");
    struct ct_value *x = ct_graph_source(graph, CT_ROLE_PARAM, "x", dtype, 2, (int64_t[]){m, k});
    struct ct_value *w = ct_graph_source(graph, CT_ROLE_PARAM, "w", dtype, 2, (int64_t[]){n, k});
    struct ct_value *dy = ct_graph_source(graph, CT_ROLE_PARAM, "dy", dtype, 2, (int64_t[]){m, n});
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_F, "");
    struct ct_value *y = ct_emit1(&b, "linear", "y", (struct ct_value *[]){x, w}, 2, NULL);
    struct ct_value *din[2] = {NULL, NULL};
    struct ct_vjp vjp = {&b, NULL, &dy, din, (bool[]){true, true}};

    assert_int_equal(test_transform(plugin, "float8.choose")->apply(graph, &(struct ct_run){0}), 0);
    vjp.op = y->producer;
    assert_string_equal(vjp.op->type->name, "linear_float8");
    assert_int_equal(vjp.op->type->vjp(&vjp), 0);
    ct_graph_fetch(graph, "y", y);
    ct_graph_fetch(graph, "dx", din[0]);
    ct_graph_fetch(graph, "dw", din[1]);
    if (test_transform(plugin, "float8")->apply(graph, NULL) < 0)
        fail_msg("%s", ct_error_message());
    return graph;
}

/* Within the rounding of float32 sums, relative to the largest result, and one digit of bfloat16:
   both sums are rounded. */
static void compare(struct machine *m, const json_t *layer, const char *key, enum ct_dtype dtype,
                    const char *where)
{
    size_t size = ct_dtype_size(dtype), count;
    void *want = decode(&m->arena, layer, key, size, &count);
    void *got = ct_arena_alloc(&m->arena, count * size);
    int64_t shape = (int64_t)count;
    struct ct_tensor a = ct_tensor_dense(got, dtype, 1, &shape);
    struct ct_tensor b = ct_tensor_dense(want, dtype, 1, &shape);
    double most = 0;

    fetch(m, key, got, count * size);
    for (size_t i = 0; i < count; i++)
        most = fmax(most, fabs(ct_tensor_load(&b, (int64_t)i)));
    for (size_t i = 0; i < count; i++) {
        double is = ct_tensor_load(&a, (int64_t)i), should = ct_tensor_load(&b, (int64_t)i);

        if (!(fabs(is - should) <= 1e-6 * most + (size == 2 ? 0x1p-7 * fabs(should) : 0)))
            fail_msg("%s, %s: %s %zu is %.9g, not %.9g", where,
                     json_string_value(json_object_get(layer, "recipe")), key, i, is, should);
    }
}

static void check_layer(const json_t *layer, struct ct_device *device)
{
    struct machine m = {0};
    bool wide = !strcmp(json_string_value(json_object_get(layer, "dtype")), "float32");
    enum ct_dtype dtype = wide ? CT_F32 : CT_BF16;
    const char *inputs[] = {"x", "w", "dy"};

    TEST_OPTIONS(plugin, ct_arena_printf(&m.arena, "recipe=%s",
                                         json_string_value(json_object_get(layer, "recipe"))));
    m.graph = layer_graph(&m.arena, layer, dtype);
    start(&m, device);
    for (int i = 0; i < 3; i++) {
        size_t count;
        void *data = decode(&m.arena, layer, inputs[i], ct_dtype_size(dtype), &count);

        feed(&m, inputs[i], data, count * ct_dtype_size(dtype));
    }
    assert_int_equal(ct_executor_step(m.executor), 0);
    compare(&m, layer, "y", dtype, device->name);
    compare(&m, layer, "dx", dtype, device->name);
    compare(&m, layer, "dw", dtype, device->name);
    finish(&m);
}

static void layers_equal_the_vectors(void **state)
{
    const json_t *list = json_object_get(vectors, "linear");

    (void)state;
    assert_int_equal(json_array_size(list), 5);
    for (size_t i = 0; i < json_array_size(list); i++)
        for (int d = 0; d < 2; d++)
            check_layer(json_array_get(list, i), devices[d]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_equal_the_vectors), cmocka_unit_test(casts_equal_the_vectors),
        cmocka_unit_test(blocks_equal_the_vectors), cmocka_unit_test(layers_equal_the_vectors)};

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests_name("torchao's vectors", tests, load, unload);
}
