/*
 * Mixtures with Float8 products against the same in PyTorch, expert by expert, with its own casts
 * (experts.json: every 97th number). Inner values are sums, which may round to neighbours of 8 bits
 * where their order differs: so the errors of all numbers together are compared.
 */
#include "plugin_under_test.h"

#include <jansson.h>
#include <math.h>

#include <ctitan/lib/ops.h>
#include <ctitan/program.h>
#include <ctitan/text.h>

#define EVERY 97
#define ERROR                                                                                      \
    1e-3 /* of the root of the sum of squares; measured: 3e-4, and 1e-2 with other tiles */

static struct ct_device *device;
static json_t *vectors;

static int load(void **state)
{
    const struct ct_plugin *cpu = test_plugin("cpu");

    (void)state;
    TEST_OPTIONS(cpu, "isa=auto");
    assert_int_equal(ct_plugin_register(cpu), 0);
    assert_int_equal(ct_plugin_register(test_plugin("float8")), 0);
    vectors = json_load_file(getenv("EXPERTS"), 0, NULL);
    assert_non_null(vectors);
    return ((const struct ct_device_ops *)test_offer(cpu, CT_DEVICE))
        ->open(&(struct ct_device_request){0, 1}, &device);
}

static int unload(void **state)
{
    (void)state;
    json_decref(vectors);
    device->ops->close(device);
    return 0;
}

/* The operands: numbers between -scale / 2 and scale / 2, which both programs make. */
static const struct {
    const char *name;
    uint64_t seed;
    double scale;
    float offset;
} operands[] = {{"x", 1, 4, 0},         {"weights", 2, 1, 0.6f}, {"gate", 3, 0.5, 0},
                {"up", 4, 0.5, 0},      {"down", 5, 0.5, 0},     {"dy", 6, 0.25, 0},
                {"gate_bias", 7, 1, 0}, {"up_bias", 8, 1, 0}};

static void fill(float *to, size_t count, uint64_t seed, double scale, float offset)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t h = (uint32_t)((i + 1) * 2654435761u + seed * 40503);

        h = (h ^ h >> 15) * 2246822519u;
        to[i] = (float)((h / 4294967296.0 - 0.5) * scale) + offset;
    }
}

static const char params[] =
    "graph \"experts\"\n"
    "param %x : float32[140,144]\nparam %weights : float32[140,2]\nparam %ids : int32[140,2]\n"
    "param %gate : float32[2,160,144]\nparam %up : float32[2,160,144]\n"
    "param %down : float32[2,144,160]\nparam %dy : float32[140,144]\n";
static const char biases[] = "param %gate_bias : float32[2,160]\nparam %up_bias : float32[2,160]\n";
static const char fetches[] =
    "fetch y = %y\nfetch dx = %dx\nfetch dweights = %dweights\nfetch dgate = %dgate\n"
    "fetch dup = %dup\nfetch ddown = %ddown\n";

/* biased: with biases, a factor in the sigmoid, limits and an offset. */
static char *text_of(struct ct_arena *arena, const char *recipe, bool biased)
{
    const char *inputs =
        ct_arena_printf(arena, "%%x, %%weights, %%ids, %%gate, %%up, %%down%s) {recipe=%s%s}",
                        biased ? ", %gate_bias, %up_bias" : "", recipe,
                        biased ? ", alpha=1.702, limit=1.5, offset=1" : "");

    return ct_arena_printf(
        arena,
        "%s%sF - %%y = float8.experts(%s : float32[140,144]\n"
        "F - %%dx, %%dweights = float8.experts_dx(%%dy, %s : float32[140,144], float32[140,2]\n"
        "F - %%dgate, %%dup, %%ddown%s = float8.experts_dw(%%dy, %s : float32[2,160,144], "
        "float32[2,160,144], float32[2,144,160]%s\n%s%s",
        params, biased ? biases : "", inputs, inputs, biased ? ", %dgate_bias, %dup_bias" : "",
        inputs, biased ? ", float32[2,160], float32[2,160]" : "", fetches,
        biased ? "fetch dgate_bias = %dgate_bias\nfetch dup_bias = %dup_bias\n" : "");
}

struct machine {
    struct ct_arena arena;
    struct ct_graph *graph;
    struct ct_executor *executor;
};

static void feed(struct machine *m)
{
    struct ct_value *ids = ct_graph_find(m->graph, "ids");
    int32_t id[140][2];

    for (size_t i = 0; i < CT_COUNT(operands); i++) {
        struct ct_value *v = ct_graph_find(m->graph, operands[i].name);
        size_t bytes = v ? ct_value_bytes(m->graph, v, -1) : 0;
        float *data = ct_arena_alloc(&m->arena, bytes + 1);

        if (!v)
            continue;
        fill(data, bytes / sizeof(*data), operands[i].seed, operands[i].scale, operands[i].offset);
        assert_int_equal(ct_executor_write(m->executor, v, -1, data, bytes), 0);
    }
    for (int t = 0; t < 140; t++) {
        id[t][0] = t % 2;
        id[t][1] = t >= 5 && t < 70 ? -1 : 1 - t % 2;
    }
    assert_int_equal(ct_executor_write(m->executor, ids, -1, id, sizeof(id)), 0);
}

static void compare(struct machine *m, const char *name, const json_t *want, const char *recipe)
{
    struct ct_value *v = ct_graph_fetched(m->graph, name);
    size_t bytes = ct_value_bytes(m->graph, v, -1);
    float *got = ct_arena_alloc(&m->arena, bytes);
    double error = 0, whole = 0;

    assert_int_equal(ct_executor_read(m->executor, v, got, bytes), 0);
    assert_int_equal(json_array_size(want), (bytes / sizeof(*got) + EVERY - 1) / EVERY);
    for (size_t i = 0; i < json_array_size(want); i++) {
        double x = json_number_value(json_array_get(want, i));

        error += ((double)got[i * EVERY] - x) * ((double)got[i * EVERY] - x);
        whole += x * x;
    }
    if (!(sqrt(error) <= ERROR * sqrt(whole)))
        fail_msg("%s, %s: the error is %g of the numbers", recipe, name, sqrt(error / whole));
}

static void run(const char *which, const char *recipe, bool biased)
{
    struct machine m = {0};
    const json_t *want = json_object_get(vectors, which), *numbers;
    struct ct_lower_request request = {.microbatches = 1, .device = device, .arena = &m.arena};
    struct ct_program *program;
    const char *name;

    m.graph = ct_graph_parse(&m.arena, text_of(&m.arena, recipe, biased));
    if (!m.graph)
        fail_msg("%s", ct_error_message());
    request.graph = m.graph;
    assert_int_equal(ct_lower(&request, &program), 0);
    assert_int_equal(ct_executor_create(program, device, NULL, &m.executor), 0);
    feed(&m);
    assert_int_equal(ct_executor_step(m.executor), 0);
    assert_int_equal(json_object_size(want), biased ? 8 : 6);
    json_object_foreach((json_t *)(uintptr_t)want, name, numbers) compare(&m, name, numbers, which);
    ct_executor_destroy(m.executor);
    ct_arena_finish(&m.arena);
}

static void rowwise_equals_the_vectors(void **state)
{
    (void)state;
    run("rowwise", "rowwise", false);
}

static void blockwise_equals_the_vectors(void **state)
{
    (void)state;
    run("blockwise", "blockwise", false);
    run("biased", "blockwise", true);
}

static void mxfp8_equals_the_vectors(void **state)
{
    (void)state;
    run("mxfp8", "mxfp8", false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rowwise_equals_the_vectors),
                                       cmocka_unit_test(blockwise_equals_the_vectors),
                                       cmocka_unit_test(mxfp8_equals_the_vectors)};

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests_name("float8 experts", tests, load, unload);
}
