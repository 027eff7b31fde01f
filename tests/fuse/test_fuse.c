/*
 * Formulas against the reference kernels of their ops; compiled code against both; what becomes of
 * a graph, and what does not.
 *
 *     test_fuse [DEVICE] [all]
 *
 * DEVICE: code that this device's own compiler makes. all: for all ops and chains in each dtype, in
 * place of some.
 */
#include "plugin_under_test.h"
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/app/verify.h>
#include <ctitan/pointwise.h>
#include <ctitan/rng.h>
#include <ctitan/run.h>
#include <ctitan/text.h>

#include "support.h"

/* An activation and a reduction that only this test has. Their gradients are derived. */
static const struct ct_op_type mish =
    CT_ACTIVATION("mish", "x tanh(log(1 + e^x))", "y = x * tanh(log(1 + exp(x)))");
static const struct ct_op_type mean_square = {
    .size = sizeof(struct ct_op_type),
    .name = "mean_square",
    .summary = "the mean square of a row, times a number for each column",
    .signature = "x[.K] T, w[K] T -> y[.] T",
    CT_FORMULA("y = row_mean(x * x * w)"),
};

/* T is the dtype under test, W float32, or float64 with it. */
static const struct formula {
    const char *type, *text;
} formulas[] = {
    {"mish", "input %x : T[5,37]\nF - %z = mish(%x) : T[5,37]\n"},
    {"mish_grad", "input %d : T[5,37]\ninput %x : T[5,37]\nF - %z = mish_grad(%d, %x) : T[5,37]\n"},
    {"mean_square", "input %x : T[5,37]\ninput %w : T[37]\n"
                    "F - %z = mean_square(%x, %w) : T[5]\n"},
    {"mean_square_grad", "input %d : T[99]\ninput %x : T[99,37]\ninput %w : T[37]\n"
                         "F - %z, %y = mean_square_grad(%d, %x, %w) : T[99,37], T[37]\n"},
    {"add", "input %x : T[5,37]\ninput %y : T[5,37]\nF - %z = add(%x, %y) : T[5,37]\n"},
    {"cast", "input %x : T[5,37]\nF - %z = cast(%x) {dtype=\"bfloat16\"} : bfloat16[5,37]\n"},
    {"reciprocal", "input %x : T[3,130]\nF - %z = reciprocal(%x) : T[3,130]\n"},
    {"mul", "input %x : T[7,3,33]\ninput %y : T[7,3,33]\nF - %z = mul(%x, %y) : T[7,3,33]\n"},
    {"scale", "input %x : T[5001]\nF - %z = scale(%x) {factor=-0.3} : T[5001]\n"},
    {"silu", "input %x : T[5,37]\nF - %z = silu(%x) : T[5,37]\n"},
    {"silu_grad", "input %d : T[5,37]\ninput %x : T[5,37]\nF - %z = silu_grad(%d, %x) : T[5,37]\n"},
    {"gelu", "input %x : T[5,37]\nF - %z = gelu(%x) : T[5,37]\n"},
    {"gelu", "input %x : T[5,37]\nF - %z = gelu(%x) {approximate=\"tanh\"} : T[5,37]\n"},
    {"gelu_grad", "input %d : T[5,37]\ninput %x : T[5,37]\nF - %z = gelu_grad(%d, %x) : T[5,37]\n"},
    {"gelu_grad", "input %d : T[9,70]\ninput %x : T[9,70]\n"
                  "F - %z = gelu_grad(%d, %x) {approximate=\"tanh\"} : T[9,70]\n"},
    {"swiglu", "input %g : T[5,37]\ninput %u : T[5,37]\nF - %z = swiglu(%g, %u) : T[5,37]\n"},
    {"swiglu_grad", "input %d : T[5,37]\ninput %g : T[5,37]\ninput %u : T[5,37]\n"
                    "F - %z, %y = swiglu_grad(%d, %g, %u) : T[5,37], T[5,37]\n"},
    {"bias", "input %x : T[5,3,37]\ninput %r : T[37]\nF - %z = bias(%x, %r) : T[5,3,37]\n"},
    {"bias_grad", "input %x : T[70,3,37]\nF - %z = bias_grad(%x) : T[37]\n"},
    {"rms_norm", "input %x : T[5,37]\ninput %w : T[37]\n"
                 "F - %z, %r = rms_norm(%x, %w) {eps=0.1} : T[5,37], W[5]\n"},
    {"add_rms_norm", "input %x : T[5,137]\ninput %y : T[5,137]\ninput %w : T[137]\n"
                     "F - %z, %s, %r = add_rms_norm(%x, %y, %w) : T[5,137], T[5,137], W[5]\n"},
    {"rms_norm_grad", "input %d : T[99,37]\ninput %x : T[99,37]\ninput %w : T[37]\n"
                      "input %r : W[99]\n"
                      "F - %z, %y = rms_norm_grad(%d, %x, %w, %r) : T[99,37], T[37]\n"},
    {"rms_norm_grad", "input %d : T[5,37]\ninput %x : T[5,37]\ninput %w : T[37]\n"
                      "input %r : W[5]\ninput %e : T[5,37]\n"
                      "F - %z, %y = rms_norm_grad(%d, %x, %w, %r, %e) : T[5,37], T[37]\n"},
    {"rms_norm_plain", "input %x : T[5,37]\n"
                       "F - %z, %r = rms_norm_plain(%x) {eps=0.1} : T[5,37], W[5]\n"},
    {"rms_norm_plain_grad", "input %d : T[5,37]\ninput %x : T[5,37]\ninput %r : W[5]\n"
                            "F - %z = rms_norm_plain_grad(%d, %x, %r) : T[5,37]\n"},
    {"softmax_sum", "input %x : T[99,37]\nF - %z = softmax_sum(%x) : W[37]\n"},
    {"softmax_sum_grad", "input %d : W[37]\ninput %x : T[5,37]\n"
                         "F - %z = softmax_sum_grad(%d, %x) : T[5,37]\n"},
    {"sigmoid", "input %x : T[5,37]\nF - %z = sigmoid(%x) : W[5,37]\n"},
    {"sigmoid_grad", "input %d : W[5,37]\ninput %y : W[5,37]\ninput %x : T[5,37]\n"
                     "F - %z = sigmoid_grad(%d, %y, %x) : T[5,37]\n"},
    {"decay", "input %x : T[5,37]\ninput %a : T[37]\ninput %b : T[37]\n"
              "F - %z = decay(%x, %a, %b) : W[5,37]\n"},
    {"decay_grad", "input %d : W[99,37]\ninput %x : T[99,37]\ninput %a : T[37]\n"
                   "input %b : T[37]\nF - %z, %y, %s = decay_grad(%d, %x, %a, %b) : "
                   "T[99,37], T[37], T[37]\n"},
    {"scale_rows", "input %x : T[5,37]\ninput %w : W[5]\n"
                   "F - %z = scale_rows(%x, %w) : T[5,37]\n"},
    {"scale_rows_grad", "input %d : T[5,37]\ninput %x : T[5,37]\ninput %w : W[5]\n"
                        "F - %z, %y = scale_rows_grad(%d, %x, %w) : T[5,37], W[5]\n"},
    {"layer_norm", "input %x : T[5,37]\ninput %w : T[37]\n"
                   "F - %z, %m, %r = layer_norm(%x, %w) : T[5,37], W[5], W[5]\n"},
    {"layer_norm", "input %x : T[2,3,37]\ninput %w : T[37]\ninput %b : T[37]\n"
                   "F - %z, %m, %r = layer_norm(%x, %w, %b) : T[2,3,37], W[2,3], W[2,3]\n"},
    {"layer_norm_grad",
     "input %d : T[5,37]\ninput %x : T[5,37]\ninput %w : T[37]\n"
     "input %m : W[5]\ninput %r : W[5]\n"
     "F - %z, %y, %b = layer_norm_grad(%d, %x, %w, %m, %r) : T[5,37], T[37], T[37]\n"},
    {"softmax", "input %x : T[5,1037]\nF - %z = softmax(%x) : T[5,1037]\n"},
    {"softmax_grad",
     "input %d : T[5,37]\ninput %x : T[5,37]\nF - %z = softmax_grad(%d, %x) : T[5,37]\n"},
};

/* Programs of several ops. */
static const char *const chains[] = {
    "input %x : T[6,3,45]\ninput %r : T[6,3,45]\ninput %b : T[45]\ninput %w : T[45]\n"
    "F - %a = bias(%x, %b) : T[6,3,45]\nF - %s = add(%r, %a) : T[6,3,45]\n"
    "F - %z, %m, %q = layer_norm(%s, %w, %b) : T[6,3,45], W[6,3], W[6,3]\n"
    "F - %n = squared_norm(%s) : float64[]\nfetch n = %n\n",
    "input %x : T[130,19]\ninput %y : T[130,19]\nF - %a = scale(%x) {factor=3} : T[130,19]\n"
    "F - %b = softmax(%a) : T[130,19]\nF - %c = mul(%b, %y) : T[130,19]\n"
    "F - %d = softmax(%c) : T[130,19]\nF - %z = add(%d, %b) : T[130,19]\n",
    "input %d : T[70,33]\ninput %x : T[70,33]\ninput %e : T[70,33]\ninput %w : T[33]\n"
    "input %m : W[70]\ninput %r : W[70]\n"
    "F - %a, %y, %b = layer_norm_grad(%d, %x, %w, %m, %r) : T[70,33], T[33], T[33]\n"
    "F - %z = add(%e, %a) : T[70,33]\n",
    "input %x : T[9001]\ninput %y : T[9001]\nF - %a = silu(%x) : T[9001]\n"
    "F - %b = mul(%a, %y) : T[9001]\nF - %c = cast(%b) {dtype=\"float32\"} : float32[9001]\n"
    "F - %z = gelu(%c) : float32[9001]\n",
    /* side by side: they take the same rows */
    "input %d : T[70,33]\ninput %x : T[70,33]\ninput %y : T[70,33]\n"
    "F - %a = mul(%d, %x) : T[70,33]\nF - %b = silu(%a) : T[70,33]\n"
    "F - %c = mul(%d, %y) : T[70,33]\nF - %e = bias_grad(%d) : T[33]\n",
};

/* The graph of a text, with all results that no op takes as fetches. */
static struct ct_graph *graph_of(struct ct_arena *arena, const char *text, const char *dtype)
{
    char *out = ct_arena_alloc(arena, strlen(text) * 4 + 64);
    size_t n = (size_t)sprintf(out, "graph \"formula\"\n");
    struct ct_graph *graph;

    for (; *text; text++)
        if (text[0] == 'T' && text[1] == '[')
            n += (size_t)sprintf(out + n, "%s", dtype);
        else if (text[0] == 'W' && text[1] == '[')
            n += (size_t)sprintf(out + n, "%s", strcmp(dtype, "float64") ? "float32" : dtype);
        else
            out[n++] = *text;
    graph = parse(arena, out);
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->producer && !graph->values[i]->use_count &&
            !graph->values[i]->fetch_count)
            ct_graph_fetch(graph, graph->values[i]->name, graph->values[i]);
    assert_ok(ct_graph_verify(graph, stderr));
    return graph;
}

static double normal(uint64_t stream, uint64_t index)
{
    struct ct_philox r = ct_philox(7, stream, index);
    double sum = 0;

    for (int i = 0; i < 4; i++)
        sum += r.v[i] * 0x1p-32 - 0.5;
    return sum * 1.7;
}

/* Every source from its name. */
static void fill(struct machine *m)
{
    for (size_t i = 0; i < m->graph->value_count; i++) {
        const struct ct_value *v = m->graph->values[i];
        struct ct_tensor t = m->program->tensors[v->id];
        size_t bytes = (size_t)ct_tensor_count(&t) * ct_dtype_size(t.dtype);

        if (v->producer)
            continue;
        t = ct_tensor_dense(ct_arena_alloc(&m->arena, bytes), t.dtype, t.ndim, t.shape);
        for (int64_t k = 0; k < ct_tensor_count(&t); k++)
            ct_tensor_store(&t, k, normal((uint64_t)*v->name, (uint64_t)k));
        assert_ok(
            ct_executor_write(m->executor, v, v->role == CT_ROLE_INPUT ? 0 : -1, t.data, bytes));
    }
}

static void run(struct machine *m, const struct ct_graph *graph, struct ct_device *device)
{
    machine_start(m, graph, device, 1, FORWARD);
    fill(m);
    assert_ok(ct_executor_step(m->executor));
}

/* Both graphs fetch the same values; relative to the largest element of each. */
static void compare(const struct ct_graph *is, struct ct_device *on, const struct ct_graph *should,
                    double tolerance)
{
    struct machine a, b;

    run(&a, is, on);
    run(&b, should, NULL);
    for (size_t i = 0; i < should->fetch_count; i++) {
        const char *name = should->fetches[i].name;
        int64_t count;
        double *got = read_fetch(&a, name, NULL), *want = read_fetch(&b, name, &count), size = 0;

        for (int64_t k = 0; k < count; k++)
            size = fmax(size, fabs(want[k]));
        for (int64_t k = 0; k < count; k++)
            if (!(fabs(got[k] - want[k]) <= tolerance * size))
                fail_msg("%s: %s[%d] is %.9g, not %.9g (of at most %g)",
                         ct_graph_text(is, &a.arena), name, (int)k, got[k], want[k], size);
    }
    machine_finish(&a);
    machine_finish(&b);
}

/* ---- formulas ---- */

/* Gradients as papers write them; what they were derived to must compute the same. */
static const char *const known[][2] = {
    {"silu_grad", "s = sigmoid(x); dx = dy * (s * (1 + x * (1 - s)))"},
    {"gelu_grad", "u = 0.79788456080286535588 * (x + 0.044715 * x * x * x); t = tanh(u);"
                  "a = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456080286535588 *"
                  " (1 + 0.134145 * x * x); e = erf(0.70710678118654752440 * x);"
                  "n = 0.39894228040143267794 * exp(-0.5 * x * x);"
                  "dx = dy * (approximate ? a : 0.5 * (1 + e) + x * n)"},
    {"swiglu_grad", "s = sigmoid(gate); dgate = dy * up * (s * (1 + gate * (1 - s)));"
                    "dup = dy * (gate * s)"},
    {"softmax_grad", "dx = y * (dy - row_sum(dy * y))"},
    {"softmax_sum_grad", "q = exp(x - row_max(x)); p = q / row_sum(q);"
                         "dx = p * (dsum - row_sum(dsum * p))"},
    {"layer_norm_grad", "g = dy * w; z = (x - mean) * rstd; dw = column_sum(dy * z);"
                        "dbias = column_sum(dy);"
                        "dx = rstd * (g - row_mean(g) - z * row_mean(g * z))"},
    {"sigmoid_grad", "dx = dy * y * (1 - y)"},
    {"decay_grad", "s = x + bias; p = max(s, 0) + log(1 + exp(0 - abs(s)));"
                   "e = 0 - exp(a) * dy; dx = e * sigmoid(s); da = column_sum(e * p);"
                   "dbias = column_sum(e * sigmoid(s))"},
    {"scale_rows_grad", "dx = dy * w; dw = row_sum(dy * x)"},
};

/* The case with the op by the known formula. */
static void compare_with_known(size_t at, const char *formula)
{
    struct ct_op_type *twin = calloc(1, sizeof(*twin)); /* types live as long as the process */
    struct ct_arena arena = {0};
    struct ct_graph *graph = graph_of(&arena, formulas[at].text, "float64");
    struct ct_graph *by_formula = ct_graph_clone(graph, &arena);
    struct ct_op *op = by_formula->first;

    *twin = *op->type;
    twin->name = strdup(ct_arena_printf(&arena, "formula_%zu", at));
    twin->pointwise = formula;
    assert_ok(ct_op_need(twin));
    assert_string_not_equal(op->type->pointwise, formula);
    ct_op_become(by_formula, op, twin, op->in, op->ins, op->attrs);
    compare(by_formula, NULL, graph, 1e-12);
    ct_arena_finish(&arena);
}

static void derived_gradients_are_the_known_ones(void **state)
{
    (void)state;
    for (size_t k = 0; k < CT_COUNT(known); k++) {
        int tried = 0;

        for (size_t i = 0; i < CT_COUNT(formulas); i++)
            if (!strcmp(formulas[i].type, known[k][0])) {
                compare_with_known(i, known[k][1]);
                tried++;
            }
        assert_true(tried > 0);
    }
}

static void every_formula_is_tried(void **state)
{
    const struct ct_op_type *type;

    (void)state;
    for (size_t i = 0; (type = ct_op_at(i)); i++) {
        bool tried = !type->pointwise || !strncmp(type->name, "formula_", 8);

        for (size_t k = 0; !tried && k < CT_COUNT(formulas); k++)
            tried = !strcmp(formulas[k].type, type->name);
        if (!tried)
            fail_msg("%s has a formula, but no case here", type->name);
    }
}

static void faults_of_formulas_are_said(void **state)
{
    static const char *const faults[][2] = {
        {"y = x +", "a value is missing"},
        {"y = -", "a value is missing"},
        {"y = x y", "an operator or \";\" is missing"},
        {"y = z", "the name is not defined before this"},
        {"y = root(x)", "no such function"},
        {"y = max(x)", "too few arguments"},
        {"y = (x", "\")\" is missing"},
        {"x * x", "\"name =\" is missing"},
        {"y = row_sum(2)", "the argument has no columns"},
        {"y = x ? 1", "\":\" is missing"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(faults); i++) {
        struct ct_arena arena = {0};
        struct ct_pointwise p = {.arena = &arena};
        struct ct_pointwise_names names = {0};

        ct_pointwise_name(&p, &names, "x", ct_pointwise_input(&p, 0, CT_BY_ROW | CT_BY_COLUMN));
        assert_int_equal(ct_pointwise_read(&p, faults[i][0], &names), CT_EINVAL);
        assert_message(faults[i][1]);
        ct_arena_finish(&arena);
    }
}

/* ---- compiled code ---- */

static bool all;
static const struct ct_plugin *plugin;
static struct ct_device bare, *device = &bare; /* has kernels for nothing but fused ops */

static void fuse(struct ct_graph *graph)
{
    struct ct_run run = {.device = device, .device_ops = device->ops};

    assert_ok(test_transform(plugin, "fuse")->apply(graph, &run));
    assert_ok(ct_graph_verify(graph, stderr));
}

static void check_compiled(const char *text, const char *dtype, double tolerance)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = graph_of(&arena, text, dtype);
    struct ct_graph *fused = ct_graph_clone(graph, &arena);
    char *printed;

    fuse(fused);
    assert_int_equal(count_ops(fused, "fused"), 1);
    compare(fused, device, graph, tolerance);
    printed = ct_graph_text(fused, &arena);
    assert_string_equal(ct_graph_text(parse(&arena, printed), &arena), printed);
    compare(parse(&arena, printed), NULL, graph, tolerance); /* and the fused op's reference */
    ct_arena_finish(&arena);
}

static void compiled_ops_are_what_references_compute(void **state)
{
    (void)state;
    test_options(plugin, (const char *const[]){NULL});
    for (size_t i = 0; i < CT_COUNT(formulas); i++) {
        check_compiled(formulas[i].text, "float32", 2e-6);
        if (all || i % 6 == 0)
            check_compiled(formulas[i].text, "bfloat16", 0x1p-8);
    }
}

static void compiled_chains_are_what_references_compute(void **state)
{
    (void)state;
    test_options(plugin, (const char *const[]){NULL});
    for (size_t i = 0; i < CT_COUNT(chains); i++) {
        if (all || i % 2)
            check_compiled(chains[i], "float32", 3e-6);
        if (all || i % 2 == 0)
            check_compiled(chains[i], "bfloat16", 0x1p-7);
    }
}

/* Each softmax passes over a row twice for its reductions. */
static void rows_are_passed_over_a_bounded_number_of_times(void **state)
{
    struct ct_arena arena = {0};
    const char *text = "input %x0 : T[3,5]\n";
    struct ct_graph *graph, *fused;

    (void)state;
    TEST_OPTIONS(plugin, "flags=-std=gnu11 -O0");
    for (int i = 0; i < 17; i++)
        text = ct_arena_printf(&arena, "%sF - %%x%d = softmax(%%x%d) : T[3,5]\n", text, i + 1, i);
    graph = graph_of(&arena, text, "float32");
    fused = ct_graph_clone(graph, &arena);
    fuse(fused);
    assert_int_equal(count_ops(fused, "fused"), 2);
    compare(fused, device, graph, 3e-6);
    ct_arena_finish(&arena);
}

/* A value that is used twice counts once, not twice for each use of its operands. */
static void values_that_are_used_often_are_planned_at_once(void **state)
{
    struct ct_arena arena = {0};
    const char *text = "input %x0 : T[3,5]\n";
    struct ct_graph *graph;

    (void)state;
    TEST_OPTIONS(plugin, "flags=-std=gnu11 -O0");
    for (int i = 0; i < 40; i++)
        text = ct_arena_printf(&arena, "%sF - %%x%d = add(%%x%d, %%x%d) : T[3,5]\n", text, i + 1, i,
                               i);
    text = ct_arena_printf(&arena, "%sF - %%y = softmax(%%x40) : T[3,5]\n", text);
    graph = graph_of(&arena, text, "float32");
    fuse(graph);
    assert_int_equal(count_ops(graph, "fused"), 1);
    ct_arena_finish(&arena);
}

static void all_flags_are_given(void **state)
{
    struct ct_arena arena = {0};
    const char *flags = "flags=-std=gnu11";
    struct ct_graph *graph = graph_of(&arena, formulas[0].text, "float32");
    char *before = ct_graph_text(graph, &arena);

    (void)state;
    for (int i = 0; i < 40; i++)
        flags = ct_arena_printf(&arena, "%s -DNUMBER%d", flags, i);
    flags = ct_arena_printf(&arena, "%s -fno-such-flag", flags);
    TEST_OPTIONS(plugin, "always=true", flags);
    fuse(graph);
    assert_string_equal(ct_graph_text(graph, &arena), before);
    ct_arena_finish(&arena);
}

/* ---- graphs ---- */

static const char layer[] =
    "input %x : T[4,6,8]\ninput %r : T[4,6,8]\ninput %d : T[4,6,8]\nparam %w : T[8,8]\n"
    "param %b : T[8]\n"
    "F layers.0 %p = linear(%x, %w) : T[4,6,8]\n"
    "F layers.0 %a = bias(%p, %b) : T[4,6,8]\n"
    "F layers.0 %s = add(%r, %a) : T[4,6,8]\n"
    "F layers.0 %n, %m, %q = layer_norm(%s, %b, %b) : T[4,6,8], W[4,6], W[4,6]\n"
    "F layers.0 %u = linear(%n, %w) : T[4,6,8]\n"
    "F layers.0 %v = bias(%u, %b) : T[4,6,8]\n"
    "F layers.0 %g = gelu(%v) {approximate=\"tanh\"} : T[4,6,8]\n"
    "F layers.0 %e = squared_norm(%g) : float64[]\n"
    "I layers.0 %h = gelu_grad(%d, %v) {approximate=\"tanh\"} : T[4,6,8]\n"
    "I layers.0 %i = mul(%h, %s) : T[4,6,8]\n"
    "W layers.0 %k = bias_grad(%h) : T[8]\n"
    "I layers.0 %o = view(%i) {shape=\"24,8\"} : T[24,8]\n"
    "I layers.0 %t = silu(%o) : T[24,8]\n"
    "post - %y = add(%k, %k) : T[8]\n";

static void graphs_are_as_agreed(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = graph_of(&arena, layer, "bfloat16");

    (void)state;
    test_options(plugin, (const char *const[]){NULL});
    assert_golden("before.txt", ct_graph_text(graph, &arena));
    fuse(graph);
    assert_golden("after.txt", ct_graph_text(graph, &arena));
    ct_arena_finish(&arena);
}

static void without_a_compiler_nothing_changes(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = graph_of(&arena, layer, "bfloat16");
    char *before = ct_graph_text(graph, &arena);

    (void)state;
    TEST_OPTIONS(plugin, "compiler=/nonexistent/cc");
    fuse(graph);
    assert_string_equal(ct_graph_text(graph, &arena), before);
    TEST_OPTIONS(plugin, "compiler=false"); /* refuses everything */
    fuse(graph);
    assert_string_equal(ct_graph_text(graph, &arena), before);
    ct_arena_finish(&arena);
}

/* Cut what is in the cache in half. */
static void damage(const char *folder)
{
    char pattern[96];
    glob_t found;
    struct stat is;

    snprintf(pattern, sizeof(pattern), "%s/*.so", folder);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        assert_int_equal(stat(found.gl_pathv[i], &is), 0);
        assert_int_equal(truncate(found.gl_pathv[i], is.st_size / 2), 0);
    }
    globfree(&found);
}

static void damaged_kernels_are_compiled_again(void **state)
{
    const char *folder = test_folder();
    char option[96];
    struct ct_arena arena = {0};

    (void)state;
    snprintf(option, sizeof(option), "cache=%s", folder);
    TEST_OPTIONS(plugin, option);
    fuse(graph_of(&arena, chains[3], "float32"));
    damage(folder);
    check_compiled(chains[3], "float32", 3e-6);
    ct_arena_finish(&arena);
    test_remove(folder);
}

static void a_cache_that_others_can_change_is_refused(void **state)
{
    const char *folder = test_folder();
    char option[96];
    struct ct_arena arena = {0};
    struct ct_run run = {.device = device, .device_ops = device->ops};

    (void)state;
    snprintf(option, sizeof(option), "cache=%s", folder);
    TEST_OPTIONS(plugin, option);
    assert_int_equal(chmod(folder, 01777), 0);
    assert_fails(
        test_transform(plugin, "fuse")->apply(graph_of(&arena, chains[3], "float32"), &run),
        CT_ECONFIG, "[fuse] cache: ");
    assert_message("can be written by other users (mode 1777)");
    ct_arena_finish(&arena);
    test_remove(folder);
}

static int never(const struct ct_launch *l)
{
    return ct_fail(CT_EINVAL, "%s is not run here", l->op->type->name);
}

/* The gradient of a norm is slower compiled than by the device's kernel. One fused sum does not
   make up for that in bfloat16; in float32 it does. */
static void what_would_be_slower_is_left_apart_and_says_why(void **state)
{
    static struct ct_device own;
    static const struct ct_kernel add = CT_KERNEL("add", "own", 0, NULL, NULL, never),
                                  norm = CT_KERNEL("layer_norm_grad", "own", 0, NULL, NULL, never);
    struct ct_run run = {.device = &own, .device_ops = bare.ops};
    struct ct_arena arena = {0};

    (void)state;
    own = bare;
    own.name = "own";
    assert_ok(ct_kernel_register("own", &add));
    assert_ok(ct_kernel_register("own", &norm));
    assert_ok(ct_kernel_register("own", test_offer(plugin, CT_KERNELS)));
    test_options(plugin, (const char *const[]){NULL});
    for (int narrow = 0; narrow < 2; narrow++) {
        struct ct_graph *graph = graph_of(&arena, chains[2], narrow ? "bfloat16" : "float32");

        assert_ok(test_transform(plugin, "fuse")->apply(graph, &run));
        assert_int_equal(count_ops(graph, "fused"), !narrow);
        if (narrow)
            assert_non_null(
                strstr(graph->last->why, "not fused with layer_norm_grad: predicted to be "));
    }
    TEST_OPTIONS(plugin, "always=true");
    {
        struct ct_graph *graph = graph_of(&arena, chains[2], "bfloat16");

        assert_ok(test_transform(plugin, "fuse")->apply(graph, &run));
        assert_int_equal(count_ops(graph, "fused"), 1);
    }
    ct_arena_finish(&arena);
}

/* ---- a device with its own compiler ---- */

/* The digits are a number of rows of the text. */
static bool is_of_rows(const char *text, const char *digits, size_t count)
{
    char rows[16];

    snprintf(rows, sizeof(rows), "[%.*s,", (int)count, digits);
    return strstr(text, rows) != NULL;
}

/* Other numbers of columns: whole vectors. */
static char *widened(const char *text)
{
    char *wide = strdup(text);

    for (char *at = wide; (at = strpbrk(at, ",[")); at++) {
        size_t digits = strspn(at + 1, "0123456789");

        if (digits >= 2 && at[1 + digits] == ']' && !is_of_rows(text, at + 1, digits))
            memcpy(at + 1, "4000", digits);
    }
    return wide;
}

static void check_on_device(const char *text, const char *dtype, double tolerance)
{
    char *wide = widened(text);

    check_compiled(text, dtype, tolerance);
    check_compiled(wide, dtype, tolerance);
    free(wide);
}

static void device_code_is_what_references_compute(void **state)
{
    (void)state;
    TEST_OPTIONS(plugin, "always=true");
    for (size_t i = 0; i < CT_COUNT(formulas); i++) {
        if (all || !strcmp(formulas[i].type, "rms_norm_grad"))
            check_on_device(formulas[i].text, "bfloat16", 0x1p-8);
        if (all || !strcmp(formulas[i].type, "softmax"))
            check_on_device(formulas[i].text, "float32", 3e-6);
    }
    for (size_t i = 0; i < CT_COUNT(chains); i++) {
        check_on_device(chains[i], "bfloat16", 0x1p-7);
        if (all)
            check_on_device(chains[i], "float32", 3e-6);
    }
}

static void set_up_device(const char *name)
{
    const struct ct_plugin *own = test_plugin(name);
    const struct ct_device_ops *ops = test_offer(own, CT_DEVICE);

    test_options(own, (const char *const[]){NULL});
    assert_ok(ct_plugin_register(own));
    assert_ok(ops->open(&(struct ct_device_request){0, 1}, &device));
}

static int set_up(void **state)
{
    const struct ct_kernel *kernels;

    (void)state;
    plugin = test_plugin("fuse");
    kernels = test_offer(plugin, CT_KERNELS);
    bare = *reference_device();
    bare.name = "bare";
    return ct_op_need(test_offer(plugin, CT_OP)) < 0 ? -1 : ct_kernel_register("bare", kernels);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest on_device[] = {
        cmocka_unit_test(device_code_is_what_references_compute),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(derived_gradients_are_the_known_ones),
        cmocka_unit_test(every_formula_is_tried),
        cmocka_unit_test(faults_of_formulas_are_said),
        cmocka_unit_test(compiled_ops_are_what_references_compute),
        cmocka_unit_test(compiled_chains_are_what_references_compute),
        cmocka_unit_test(rows_are_passed_over_a_bounded_number_of_times),
        cmocka_unit_test(values_that_are_used_often_are_planned_at_once),
        cmocka_unit_test(all_flags_are_given),
        cmocka_unit_test(graphs_are_as_agreed),
        cmocka_unit_test(without_a_compiler_nothing_changes),
        cmocka_unit_test(damaged_kernels_are_compiled_again),
        cmocka_unit_test(a_cache_that_others_can_change_is_refused),
        cmocka_unit_test(what_would_be_slower_is_left_apart_and_says_why),
    };

    if (ct_ops_register() < 0 || ct_op_need(&mish) < 0 || ct_op_need(&mean_square) < 0)
        return 1;
    all = argc > 1 && !strcmp(argv[argc - 1], "all");
    if (argc - all > 1)
        set_up_device(argv[1]);
    return argc - all > 1 ? cmocka_run_group_tests(on_device, set_up, NULL)
                          : cmocka_run_group_tests(tests, set_up, NULL);
}
