/*
 * NVFP4 on the CPU: scales and codes equal those of Transformer Engine's formulas to the last bit
 * (nvfp4.json); stochastic rounding and the Hadamard transform by their properties.
 */
#include "plugin_under_test.h"

#include <jansson.h>
#include <math.h>

#include <ctitan/lib/ops.h>
#include <ctitan/program.h>
#include <ctitan/text.h>

#define ROWS 16
#define COLUMNS 32
#define COUNT (ROWS * COLUMNS)

static struct ct_device *device;
static json_t *vectors;

static int load(void **state)
{
    const struct ct_plugin *cpu = test_plugin("cpu");

    (void)state;
    TEST_OPTIONS(cpu, "isa=auto");
    assert_int_equal(ct_plugin_register(cpu), 0);
    assert_int_equal(ct_plugin_register(test_plugin("float8")), 0);
    vectors = json_load_file(getenv("VECTORS"), 0, NULL);
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

struct machine {
    struct ct_arena arena;
    struct ct_graph *graph;
    struct ct_executor *executor;
};

static void start(struct machine *m, const char *text)
{
    struct ct_lower_request request = {.microbatches = 1, .device = device, .arena = &m->arena};
    struct ct_program *program;

    m->graph = ct_graph_parse(&m->arena, text);
    if (!m->graph)
        fail_msg("%s", ct_error_message());
    request.graph = m->graph;
    if (ct_lower(&request, &program) < 0 ||
        ct_executor_create(program, device, NULL, &m->executor) < 0)
        fail_msg("%s", ct_error_message());
}

static void feed(struct machine *m, const char *name, const void *data, size_t bytes)
{
    assert_int_equal(ct_executor_write(m->executor, ct_graph_find(m->graph, name), -1, data, bytes),
                     0);
}

static void fetch(struct machine *m, const char *name, void *data, size_t bytes)
{
    assert_int_equal(ct_executor_read(m->executor, ct_graph_fetched(m->graph, name), data, bytes),
                     0);
}

static void finish(struct machine *m)
{
    ct_executor_destroy(m->executor);
    ct_arena_finish(&m->arena);
}

/* ---- casts ---- */

static float number_of(int code)
{
    static const float number[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

    return code & 8 ? -number[code & 7] : number[code & 7];
}

static void check_case(const json_t *want)
{
    const json_t *x = json_object_get(want, "x"), *scales = json_object_get(want, "scale");
    const json_t *codes = json_object_get(want, "codes");
    const char *kind = json_string_value(json_object_get(want, "kind"));
    bool tile = json_is_true(json_object_get(want, "tile"));
    struct machine m = {0};
    uint32_t numbers[COUNT], scale[COUNT / 16];
    uint8_t q[COUNT];

    start(&m, ct_arena_printf(&m.arena,
                              "graph \"cast\"\nparam %%x : float32[16,32]\n"
                              "F - %%a = float8_amax(%%x) {grid=\"1,1\"} : float32[1,1]\n"
                              "F - %%b = float8_amax(%%x) {grid=\"16,2\"} : float32[16,2]\n"
                              "F - %%s = nvfp4_scale(%%b, %%a) {share=%s} : float32[16,2]\n"
                              "F - %%q = nvfp4_quantise(%%x, %%s) : float8_e4m3[16,32]\n"
                              "fetch s = %%s\nfetch q = %%q\n",
                              tile ? "rows" : "none"));
    for (size_t i = 0; i < COUNT; i++)
        numbers[i] = (uint32_t)json_integer_value(json_array_get(x, i));
    feed(&m, "x", numbers, sizeof(numbers));
    assert_int_equal(ct_executor_step(m.executor), 0);
    fetch(&m, "s", scale, sizeof(scale));
    fetch(&m, "q", q, sizeof(q));
    for (size_t i = 0; i < COUNT / 16; i++)
        if (scale[i] != (uint32_t)json_integer_value(json_array_get(scales, i)))
            fail_msg("%s: scale %zu is %08x, not %08x", kind, i, scale[i],
                     (uint32_t)json_integer_value(json_array_get(scales, i)));
    for (size_t i = 0; i < COUNT; i++) {
        float got = ct_e4m3_to_f32(q[i]);
        float number = number_of((int)json_integer_value(json_array_get(codes, i)));

        if (!(got == number))
            fail_msg("%s: number %zu, %08x, becomes %g, not %g", kind, i, numbers[i], (double)got,
                     (double)number);
    }
    finish(&m);
}

static void casts_equal_the_vectors(void **state)
{
    const json_t *cases = json_object_get(vectors, "cases");

    (void)state;
    assert_int_equal(json_array_size(cases), 9);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_case(json_array_get(cases, i));
}

/* The block of x[0], and all others, to nearest and stochastically. */
static void a_number_that_is_not_finite_makes_all_nan(void **state)
{
    static const float numbers[] = {INFINITY, -INFINITY, NAN};

    (void)state;
    for (size_t k = 0; k < CT_COUNT(numbers); k++) {
        struct machine m = {0};
        float x[COUNT] = {numbers[k], 1, 2};
        int32_t ordinals[ROWS] = {0};
        uint8_t q[COUNT], r[COUNT];

        start(&m, "graph \"cast\"\nparam %x : float32[1,16,32]\nparam %o : int32[1,16]\n"
                  "F - %a = float8_amax(%x) {grid=\"1,1,1\"} : float32[1,1,1]\n"
                  "F - %b = float8_amax(%x) {grid=\"1,16,2\"} : float32[1,16,2]\n"
                  "F - %s = nvfp4_scale(%b, %a) : float32[1,16,2]\n"
                  "F - %q = nvfp4_quantise(%x, %s) : float8_e4m3[1,16,32]\n"
                  "F - %r = nvfp4_quantise(%x, %s, %o) : float8_e4m3[1,16,32]\n"
                  "fetch q = %q\nfetch r = %r\n");
        feed(&m, "x", x, sizeof(x));
        feed(&m, "o", ordinals, sizeof(ordinals));
        assert_int_equal(ct_executor_step(m.executor), 0);
        fetch(&m, "q", q, sizeof(q));
        fetch(&m, "r", r, sizeof(r));
        for (size_t i = 0; i < COUNT; i++)
            assert_true(isnan(ct_e4m3_to_f32(q[i])) && isnan(ct_e4m3_to_f32(r[i])));
        finish(&m);
    }
}

/* ---- stochastic rounding ---- */

#define DRAWS 64

static void draw(const char *attributes, int32_t first, float x, uint8_t *q)
{
    struct machine m = {0};
    float numbers[DRAWS * COLUMNS], one = 1;
    int32_t ordinals[DRAWS];

    start(&m, ct_arena_printf(
                  &m.arena,
                  "graph \"draw\"\nparam %%x : float32[1,64,32]\nparam %%s : float32[1,1,1]\n"
                  "param %%o : int32[1,64]\n"
                  "F - %%q = nvfp4_quantise(%%x, %%s, %%o) %s : float8_e4m3[1,64,32]\n"
                  "fetch q = %%q\n",
                  attributes));
    for (int i = 0; i < DRAWS * COLUMNS; i++)
        numbers[i] = x;
    for (int i = 0; i < DRAWS; i++)
        ordinals[i] = first + i;
    feed(&m, "x", numbers, sizeof(numbers));
    feed(&m, "s", &one, sizeof(one));
    feed(&m, "o", ordinals, sizeof(ordinals));
    assert_int_equal(ct_executor_step(m.executor), 0);
    fetch(&m, "q", q, DRAWS * COLUMNS);
    finish(&m);
}

/* The mean of 2048 draws is that of the number, within five standard deviations. */
static void stochastic_rounding_has_no_bias(void **state)
{
    static const float numbers[] = {0.1f, -0.4f, 1.3f, 2.75f, -4.5f, 5.75f};
    uint8_t q[DRAWS * COLUMNS];

    (void)state;
    for (size_t k = 0; k < CT_COUNT(numbers); k++) {
        float x = numbers[k], size = fabsf(x);
        float step = size < 2 ? 0.5f : size < 4 ? 1 : 2, part = fmodf(size, step) / step;
        double sum = 0, count = DRAWS * COLUMNS;

        draw("{seed=7}", 100, x, q);
        for (int i = 0; i < DRAWS * COLUMNS; i++) {
            assert_true(fabsf(ct_e4m3_to_f32(q[i]) - x) < step);
            sum += (double)ct_e4m3_to_f32(q[i]);
        }
        assert_true(fabs(sum / count - (double)x) <
                    5 * (double)step * sqrt((double)(part * (1 - part)) / count));
    }
}

static void random_numbers_follow_from_seed_stream_and_token(void **state)
{
    uint8_t a[DRAWS * COLUMNS], b[DRAWS * COLUMNS];

    (void)state;
    draw("{seed=7, stream=3}", 100, 0.3f, a);
    draw("{seed=7, stream=3}", 101, 0.3f, b);
    assert_memory_equal(a + COLUMNS, b, (DRAWS - 1) * COLUMNS);
    assert_memory_not_equal(a, b, COLUMNS);
    draw("{seed=8, stream=3}", 100, 0.3f, b);
    assert_memory_not_equal(a, b, sizeof(a));
    draw("{seed=7, stream=4}", 100, 0.3f, b);
    assert_memory_not_equal(a, b, sizeof(a));
}

/* ---- the transform ---- */

static void transform(const float *x, float *y)
{
    struct machine m = {0};

    start(&m, "graph \"transform\"\nparam %x : float32[1,32,16]\n"
              "F - %y = float8.hadamard(%x) {seed=5} : float32[1,32,16]\nfetch y = %y\n");
    feed(&m, "x", x, sizeof(*x) * COUNT);
    assert_int_equal(ct_executor_step(m.executor), 0);
    fetch(&m, "y", y, sizeof(*y) * COUNT);
    finish(&m);
}

/* The input is the 16 x 16 identity, twice: rows are orthogonal, of entries +-1/4, and not all of
   one sign. */
static void the_transform_is_orthogonal(void **state)
{
    float x[COUNT] = {0}, y[COUNT];
    int negative = 0;

    (void)state;
    for (int i = 0; i < 32; i++)
        x[i * 16 + i % 16] = 1;
    transform(x, y);
    for (int a = 0; a < 16; a++)
        for (int b = 0; b < 16; b++) {
            float dot = 0;

            for (int t = 0; t < 16; t++)
                dot += y[t * 16 + a] * y[t * 16 + b];
            assert_true(dot == (a == b ? 1 : 0));
            assert_true(fabsf(y[a * 16 + b]) == 0.25f && y[a * 16 + b] == y[(a + 16) * 16 + b]);
        }
    for (int b = 0; b < 16; b++)
        negative += y[b] < 0;
    assert_in_range(negative, 1, 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_equal_the_vectors),
        cmocka_unit_test(a_number_that_is_not_finite_makes_all_nan),
        cmocka_unit_test(stochastic_rounding_has_no_bias),
        cmocka_unit_test(random_numbers_follow_from_seed_stream_and_token),
        cmocka_unit_test(the_transform_is_orthogonal),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, load, unload);
}
