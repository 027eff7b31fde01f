#include "assertions.h"

#include <math.h>

#include <ctitan/app/verify.h>
#include <ctitan/device/device.h>
#include <ctitan/lib/ops.h>
#include <ctitan/model.h>
#include <ctitan/number.h>
#include <ctitan/plugins.h>
#include <ctitan/text.h>

static const struct ct_plugin *plugin;

/* A device, whose kernels say that copies can be written. Nothing runs on it. */
static int unused(const struct ct_launch *l)
{
    (void)l;
    return 0;
}

static const struct ct_kernel kernels[] = {
    CT_KERNEL("adamw.copies", "none", 0, NULL, NULL, unused),
    CT_KERNEL("cast_into", "none", 0, NULL, NULL, unused),
    {0},
};
static const struct ct_device_ops device = {.size = sizeof(struct ct_device_ops)};
static const struct ct_plugin with_device = {
    .abi = {CT_MAGIC, CT_ABI_MAJOR, CT_ABI_MINOR, sizeof(struct ct_plugin)},
    .name = "none",
    .offers = CT_OFFERS({CT_DEVICE, "none", &device}, {CT_KERNELS, "none", kernels}),
};

static int load(void **state)
{
    int rc = ct_plugin_find("adamw", &plugin);

    (void)state;
    if (rc == 0)
        rc = ct_options_reset(plugin->options, plugin->config);
    if (rc == 0)
        rc = ct_plugin_register(plugin);
    if (rc == 0)
        rc = ct_plugin_register(&with_device);
    if (rc < 0)
        print_error("%s\n", ct_error_message());
    return rc;
}

/* ---- the op ---- */

#define N 5

struct problem {
    double lr, step, p[N], g[N], m[N], v[N];
    float clip;
    int64_t shape[1];
};

/* One update of float64 tensors by the reference kernel. */
static int update_as(struct problem *x, const char *weight_decay, const char *lr_factor)
{
    struct ct_arena arena = {0};
    const struct ct_op_type *type = ct_op_find("adamw");
    struct ct_op op = {.type = type, .ins = 7, .attrs = ct_arena_alloc(&arena, type->attrs_size)};
    struct ct_tensor in[7] = {
        ct_tensor_dense(&x->lr, CT_F64, 0, NULL),   ct_tensor_dense(&x->step, CT_F64, 0, NULL),
        ct_tensor_dense(&x->clip, CT_F32, 0, NULL), ct_tensor_dense(x->p, CT_F64, 1, x->shape),
        ct_tensor_dense(x->g, CT_F64, 1, x->shape), ct_tensor_dense(x->m, CT_F64, 1, x->shape),
        ct_tensor_dense(x->v, CT_F64, 1, x->shape)};
    struct ct_launch launch = {.op = &op, .in = in, .ins = 7};
    int rc;

    ct_attributes_reset(type->attrs, op.attrs);
    ct_attribute_set(NULL, type->attrs, op.attrs, "weight_decay", weight_decay, "test");
    ct_attribute_set(NULL, type->attrs, op.attrs, "lr_factor", lr_factor, "test");
    rc = type->reference(&launch);
    ct_arena_finish(&arena);
    return rc;
}

static int update(struct problem *x, const char *weight_decay)
{
    return update_as(x, weight_decay, "1");
}

static struct problem problem(void)
{
    return (struct problem){.lr = 0.1,
                            .step = 1,
                            .p = {1, -2, 0, 3, 0.5},
                            .g = {0.5, 0.25, -1, 0, 1e-12},
                            .clip = 1,
                            .shape = {N}};
}

/* The first update moves each weight by lr times the sign of its gradient, whatever its size, but
   for eps; the decay comes before. */
static void the_first_step_is_known(void **state)
{
    struct problem x = problem();

    (void)state;
    assert_int_equal(update(&x, "0.1"), 0);
    assert_true(fabs(x.p[0] - (0.99 - 0.1 * 0.5 / (0.5 + 1e-8))) < 1e-15);
    assert_true(fabs(x.p[1] - (-1.98 - 0.1 * 0.25 / (0.25 + 1e-8))) < 1e-15);
    assert_true(fabs(x.p[2] - 0.1 / (1 + 1e-8)) < 1e-15);
    assert_true(fabs(x.p[3] - 2.97) < 1e-15);
    assert_true(fabs(x.p[4] - (0.495 - 0.1 * 1e-12 / (1e-12 + 1e-8))) < 1e-15);
    assert_true(fabs(x.m[0] - 0.05) < 1e-16);
    assert_true(fabs(x.v[0] - 0.0125) < 1e-16);
}

/* As a learning rate of so many times, for the decay too. */
static void a_factor_is_of_the_learning_rate(void **state)
{
    struct problem x = problem(), y = problem();

    (void)state;
    y.lr *= 0.25;
    assert_int_equal(update_as(&x, "0.1", "0.25"), 0);
    assert_int_equal(update(&y, "0.1"), 0);
    assert_memory_equal(x.p, y.p, sizeof(x.p));
}

/* Moments in closed form: sums over the gradients so far, weighted by powers of beta. */
static void later_steps_follow_the_moments(void **state)
{
    static const double gradients[] = {0.3, -0.7, 0.2, 1.1, -0.4, 0.05};
    struct problem x = problem();
    double weight = x.p[0];

    (void)state;
    for (int t = 1; t <= (int)CT_COUNT(gradients); t++) {
        double first = 0, second = 0;

        for (int k = 0; k < t; k++) {
            first += 0.1 * pow(0.9, t - 1 - k) * gradients[k] * 0.5;
            second += 0.05 * pow(0.95, t - 1 - k) * pow(gradients[k] * 0.5, 2);
        }
        first /= 1 - pow(0.9, t);
        second /= 1 - pow(0.95, t);
        weight = weight - 0.1 * 0.2 * weight - 0.1 * first / (sqrt(second) + 1e-8);
        x.step = t;
        x.clip = 0.5f;
        x.g[0] = gradients[t - 1];
        assert_int_equal(update(&x, "0.2"), 0);
        assert_true(fabs(x.p[0] - weight) < 1e-13);
    }
}

static void a_negative_coefficient_skips(void **state)
{
    struct problem x = problem(), before;

    (void)state;
    x.clip = -1;
    x.g[0] = NAN;
    before = x;
    assert_int_equal(update(&x, "0.1"), 0);
    assert_memory_equal(x.p, before.p, sizeof(x.p));
    assert_memory_equal(x.m, before.m, sizeof(x.m));
    assert_memory_equal(x.v, before.v, sizeof(x.v));
}

/* ---- moments in 8 bits ---- */

#define ROWS 16
#define COLUMNS 256

struct narrow {
    float p[ROWS * COLUMNS], g[ROWS * COLUMNS], m_scale[ROWS], v_scale[ROWS];
    uint8_t m[ROWS * COLUMNS], v[ROWS * COLUMNS];
};

static int update_narrow(struct narrow *x, double step)
{
    struct ct_arena arena = {0};
    const struct ct_op_type *type = ct_op_find("adamw.float8");
    int64_t shape[2] = {ROWS, COLUMNS}, scales[2] = {ROWS, 1};
    struct ct_value p = {.ndim = 2, .shape = {ROWS, COLUMNS}};
    struct ct_op op = {.type = type, .ins = 9, .attrs = ct_arena_alloc(&arena, type->attrs_size)};
    double lr = 1e-3;
    float clip = 1;
    struct ct_tensor in[9] = {
        ct_tensor_dense(&lr, CT_F64, 0, NULL),          ct_tensor_dense(&step, CT_F64, 0, NULL),
        ct_tensor_dense(&clip, CT_F32, 0, NULL),        ct_tensor_dense(x->p, CT_F32, 2, shape),
        ct_tensor_dense(x->g, CT_F32, 2, shape),        ct_tensor_dense(x->m, CT_E4M3, 2, shape),
        ct_tensor_dense(x->m_scale, CT_F32, 2, scales), ct_tensor_dense(x->v, CT_E4M3, 2, shape),
        ct_tensor_dense(x->v_scale, CT_F32, 2, scales)};
    struct ct_value *values[9] = {NULL, NULL, NULL, &p, NULL, NULL, NULL, NULL, NULL};
    struct ct_launch launch = {.op = &op, .in = in, .ins = 9};
    int rc;

    op.in = values;
    ct_attributes_reset(type->attrs, op.attrs);
    rc = type->reference(&launch);
    ct_arena_finish(&arena);
    return rc;
}

static double mean_of(const uint8_t *codes, const float *scale)
{
    double sum = 0;

    for (int i = 0; i < ROWS * COLUMNS; i++)
        if (i % COLUMNS)
            sum += (double)ct_e4m3_to_f32(codes[i]) * (double)scale[i / COLUMNS];
    return sum / (ROWS * (COLUMNS - 1));
}

/* The first element of each block holds its scale; the gradient of the others ends. A step changes
   their moments by less than half the distance of two codes, so only their mean decays rightly. */
static void moments_in_8_bits_decay_on_average(void **state)
{
    static struct narrow x;
    double first = 0, second = 0;

    (void)state;
    for (int t = 1; t <= 60; t++) {
        for (int i = 0; i < ROWS * COLUMNS; i++)
            x.g[i] = i % COLUMNS ? t <= 20 ? 0.01f : 0 : 1;
        assert_int_equal(update_narrow(&x, t), 0);
        if (t == 20) {
            first = mean_of(x.m, x.m_scale);
            second = mean_of(x.v, x.v_scale);
            assert_true(fabs(first / (0.01 * (1 - pow(0.9, 20))) - 1) < 0.02);
            assert_true(fabs(second / (0.01 * sqrt(1 - pow(0.95, 20))) - 1) < 0.02);
        }
    }
    assert_true(fabs(mean_of(x.m, x.m_scale) / (first * pow(0.9, 40)) - 1) < 0.15);
    assert_true(fabs(mean_of(x.v, x.v_scale) / (second * pow(0.95, 20)) - 1) < 0.03);
}

/* ---- the optimizer ---- */

static struct ct_value *with_gradient(struct ct_graph *graph, const char *name, enum ct_dtype dtype)
{
    int64_t shape[2] = {3, 4};
    struct ct_value *p = ct_graph_source(graph, CT_ROLE_PARAM, name, dtype, 2, shape);

    ct_value_set_grad(p, ct_graph_source(graph, CT_ROLE_STATE, "g", dtype, 2, shape));
    return p;
}

static void check_state(const struct ct_graph *graph, const char *name, enum ct_dtype dtype)
{
    const struct ct_value *state = ct_graph_find(graph, name);
    int inits = 0;

    assert_non_null(state);
    assert_int_equal(state->role, CT_ROLE_STATE);
    assert_int_equal(state->dtype, dtype);
    assert_int_equal(ct_shape_count(state->ndim, state->shape), 12);
    ct_for_each_op (op, graph)
        if (op->section->part == CT_PART_INIT && op->in[0] == state)
            inits++;
    assert_int_equal(inits, 1);
}

static void building_makes_states_and_one_op(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_create(&arena, "t");
    struct ct_value *params[2] = {with_gradient(graph, "a.weight", CT_F32),
                                  with_gradient(graph, "b.weight", CT_BF16)};
    struct ct_value *lr = ct_graph_source(graph, CT_ROLE_SCALAR, "lr", CT_F64, 0, NULL);
    struct ct_value *step = ct_graph_source(graph, CT_ROLE_SCALAR, "step", CT_F64, 0, NULL);
    struct ct_value *clip = ct_graph_source(graph, CT_ROLE_SCALAR, "clip", CT_F32, 0, NULL);
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_POST, "");
    const struct ct_optimizer_ops *ops;
    const struct ct_offer *offer;

    (void)state;
    assert_int_equal(ct_offer_find(CT_OPTIMIZER, NULL, &offer), 0);
    ops = offer->ops;
    assert_true(ops->lr() == 8e-4);
    assert_int_equal(ops->build(&b, params, 2, lr, step, clip), 0);
    check_state(graph, "adamw.m.a.weight", CT_F32);
    check_state(graph, "adamw.v.a.weight", CT_F32);
    check_state(graph, "adamw.m.b.weight", CT_BF16);
    check_state(graph, "adamw.v.b.weight", CT_BF16);
    assert_string_equal(graph->last->type->name, "adamw");
    assert_int_equal(graph->last->section->part, CT_PART_POST);
    assert_int_equal(graph->last->ins, 11);
    assert_int_equal(graph->last->outs, 0);
    for (int i = 0; i < 11; i++)
        assert_int_equal(ct_op_mutates(graph->last, i), i >= 3 && (i - 3) % 4 != 1);
    assert_true(ct_op_float(graph->last, "beta2") == 0.95);
    assert_int_equal(ct_graph_verify(graph, stderr), 0);
    ct_arena_finish(&arena);
}

/* Build the update of four parameters with the options, and count the ops; a failure if < 0. */
static int build_groups(const char *no_decay, const char *lr_factors, struct ct_arena *arena,
                        struct ct_graph **graph)
{
    struct ct_graph *g = *graph = ct_graph_create(arena, "t");
    struct ct_value *params[4] = {
        with_gradient(g, "embed.weight", CT_F32), with_gradient(g, "a.norm.weight", CT_F32),
        with_gradient(g, "a.q_proj.weight", CT_F32), with_gradient(g, "b.q_proj.weight", CT_F32)};
    struct ct_value *lr = ct_graph_source(g, CT_ROLE_SCALAR, "lr", CT_F64, 0, NULL);
    struct ct_value *step = ct_graph_source(g, CT_ROLE_SCALAR, "step", CT_F64, 0, NULL);
    struct ct_value *clip = ct_graph_source(g, CT_ROLE_SCALAR, "clip", CT_F32, 0, NULL);
    struct ct_builder b = ct_builder_at_end(g, CT_PART_POST, "");
    const struct ct_offer *offer;
    int rc, ops = 0;

    ct_options_set(plugin->options, plugin->config, "no_decay", no_decay, "test");
    ct_options_set(plugin->options, plugin->config, "lr_factors", lr_factors, "test");
    assert_int_equal(ct_offer_find(CT_OPTIMIZER, NULL, &offer), 0);
    rc = ((const struct ct_optimizer_ops *)offer->ops)->build(&b, params, 4, lr, step, clip);
    ct_options_reset(plugin->options, plugin->config);
    ct_for_each_op (op, g)
        ops += op->section->part == CT_PART_POST;
    return rc < 0 ? rc : ops;
}

/* The hyperparameters with which a parameter is updated. */
static void check_group(const struct ct_graph *graph, const char *name, double weight_decay,
                        double lr_factor)
{
    ct_for_each_use (use, ct_graph_find(graph, name)) {
        if (use->op->section->part != CT_PART_POST)
            continue;
        assert_true(ct_op_float(use->op, "weight_decay") == weight_decay);
        assert_true(ct_op_float(use->op, "lr_factor") == lr_factor);
    }
}

static void groups_have_ops_of_their_own(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g;

    (void)state;
    assert_int_equal(build_groups("*norm.weight, embed*", "embed*:0.5, *.q_proj*:2", &arena, &g),
                     3);
    check_group(g, "embed.weight", 0, 0.5);
    check_group(g, "a.norm.weight", 0, 1);
    check_group(g, "a.q_proj.weight", 0.1, 2);
    check_group(g, "b.q_proj.weight", 0.1, 2);
    assert_int_equal(build_groups("", "a.*:0.5, *:2", &arena, &g), 2);
    check_group(g, "a.norm.weight", 0.1, 0.5);
    check_group(g, "b.q_proj.weight", 0.1, 2);
    assert_int_equal(build_groups("", "", &arena, &g), 1);
    ct_arena_finish(&arena);
}

static void entries_without_effect_are_refused(void **state)
{
    static const struct {
        const char *no_decay, *lr_factors, *expected;
    } bad[] = {
        {"*nrom.weight", "", "*nrom.weight fits no parameter; the nearest is a.norm.weight"},
        {"", "*q_porj*:2", "*q_porj* fits no parameter; the nearest is a.q_proj.weight"},
        {"", "xyz*:2", "lr_factors, for the parameters that adamw updates: xyz* fits no parameter"},
        {"", "*:2, embed*:1", "patterns before embed* fit all its parameters"},
        {"", "embed*", "embed*: expected PATTERN:FACTOR"},
        {"", "embed*:", "embed*:: expected PATTERN:FACTOR"},
        {"", ":2", ":2: expected PATTERN:FACTOR"},
        {"", "embed*:-1", "embed*:-1: expected PATTERN:FACTOR with a factor of at least 0"},
        {"", "embed*:nan", "embed*:nan: expected PATTERN:FACTOR"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(bad); i++) {
        struct ct_arena arena = {0};
        struct ct_graph *g;

        assert_fails(build_groups(bad[i].no_decay, bad[i].lr_factors, &arena, &g), CT_ECONFIG,
                     bad[i].expected);
        ct_arena_finish(&arena);
    }
}

/* ---- copies of parameters ---- */

/* The weight w is cast in front of the step, and updated by adamw, then by what stands in last. */
#define STEP(last)                                                                                 \
    "graph \"g\"\n"                                                                                \
    "scalar %lr : float64[]\n"                                                                     \
    "scalar %step : float64[]\n"                                                                   \
    "scalar %clip : float32[]\n"                                                                   \
    "param %w : float32[4,4]\n"                                                                    \
    "state %m : float32[4,4]\n"                                                                    \
    "state %v : float32[4,4]\n"                                                                    \
    "init - init_constant(%w) {value=2}\n"                                                         \
    "pre - %c = cast(%w) {dtype=\"bfloat16\"} : bfloat16[4,4]\n"                                   \
    "F - %y = linear(%c, %c) : bfloat16[4,4]\n"                                                    \
    "F - %g = cast(%y) {dtype=\"float32\"} : float32[4,4]\n"                                       \
    "post - adamw(%lr, %step, %clip, %w, %g, %m, %v)\n" last

static struct ct_graph *parse(struct ct_arena *arena, const char *text)
{
    struct ct_graph *graph = ct_graph_parse(arena, text);

    if (!graph)
        fail_msg("%s", ct_error_message());
    return graph;
}

static struct ct_graph *write_copies(struct ct_arena *arena, const char *text)
{
    struct ct_graph *graph = parse(arena, text);
    const struct ct_transform *transform = NULL;
    const struct ct_offer *offer;

    for (size_t i = 0; (offer = ct_offer_at(CT_TRANSFORM, i)); i++)
        if (!strcmp(offer->name, "adamw.copies"))
            transform = offer->ops;
    assert_non_null(transform);
    if (transform->apply(graph, NULL) < 0)
        fail_msg("%s", ct_error_message());
    assert_int_equal(ct_graph_verify(graph, stderr), 0);
    return graph;
}

static int count(const struct ct_graph *graph, enum ct_part part, const char *type)
{
    int n = 0;

    ct_for_each_op (op, graph)
        n += op->section->part == part && !strcmp(op->type->name, type);
    return n;
}

static void copies_take_the_place_of_casts(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = write_copies(&arena, STEP(""));
    const struct ct_value *copy;

    (void)state;
    assert_int_equal(count(graph, CT_PART_PRE, "cast"), 0);
    assert_int_equal(count(graph, CT_PART_INIT, "cast_into"), 1);
    assert_string_equal(graph->last->type->name, "adamw.copies");
    assert_int_equal(graph->last->ins, 8);
    copy = graph->last->in[7];
    assert_string_equal(copy->name, "adamw.copy.w");
    assert_int_equal(copy->role, CT_ROLE_STATE);
    assert_int_equal(copy->dtype, CT_BF16);
    assert_true(ct_op_mutates(graph->last, 7));
    ct_for_each_op (op, graph)
        if (!strcmp(op->type->name, "linear"))
            assert_true(op->in[0] == copy && op->in[1] == copy);
    ct_arena_finish(&arena);
}

/* Its copy would miss the later update. */
static void what_others_update_stays_cast(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = write_copies(&arena, STEP("post - init_constant(%w) {value=3}\n"));

    (void)state;
    assert_int_equal(count(graph, CT_PART_PRE, "cast"), 1);
    assert_int_equal(count(graph, CT_PART_INIT, "cast_into"), 0);
    assert_int_equal(count(graph, CT_PART_POST, "adamw"), 1);
    assert_int_equal(count(graph, CT_PART_POST, "adamw.copies"), 0);
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_step_is_known),
        cmocka_unit_test(a_factor_is_of_the_learning_rate),
        cmocka_unit_test(later_steps_follow_the_moments),
        cmocka_unit_test(a_negative_coefficient_skips),
        cmocka_unit_test(moments_in_8_bits_decay_on_average),
        cmocka_unit_test(building_makes_states_and_one_op),
        cmocka_unit_test(groups_have_ops_of_their_own),
        cmocka_unit_test(entries_without_effect_are_refused),
        cmocka_unit_test(copies_take_the_place_of_casts),
        cmocka_unit_test(what_others_update_stays_cast),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, load, NULL);
}
