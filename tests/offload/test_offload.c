/*
 * Offloading: where copies are loaded and stored, and that a step computes the same to the last bit
 * however the streams run against each other.
 */
#include "plugin_ops.h"
#include "plugin_under_test.h"
#include <ctitan/app/verify.h>
#include <ctitan/run.h>
#include <ctitan/text.h>
#include <ctitan/train.h>

#include "reference.h"
#include "shuffle.h"
#include "support.h"

/* ---- where copies are loaded ---- */

/* Three layers, of which the first computes with a copy in bfloat16; an optimizer for each. */
static const char layers[] = "graph \"layers\"\n"
                             "input %x : bfloat16[4,4]\n"
                             "param %a : float32[4,4]\n"
                             "param %b : float32[4,4]\n"
                             "param %c : float32[4,4]\n"
                             "state %m : float32[4,4]\n"
                             "init - init_normal(%a) {std=1}\n"
                             "init - init_constant(%m) {value=0}\n"
                             "pre - %a.cast = cast(%a) {dtype=\"bfloat16\"} : bfloat16[4,4]\n"
                             "F l0 %y0 = linear(%x, %a.cast) : bfloat16[4,4]\n"
                             "F l1 %y0.wide = cast(%y0) {dtype=\"float32\"} : float32[4,4]\n"
                             "F l1 %y1 = linear(%y0.wide, %b) : float32[4,4]\n"
                             "F l2 %y2 = linear(%y1, %c) : float32[4,4]\n"
                             "F l2 %s = squared_norm(%y2) : float64[]\n"
                             "I l2 %d1 = linear_dx(%y2, %c) : float32[4,4]\n"
                             "W l2 %g = linear_dw(%y1, %y2) : float32[4,4]\n"
                             "I l1 %d0 = linear_dx(%d1, %b) : float32[4,4]\n"
                             "I l1 %d0.cast = cast(%d0) {dtype=\"bfloat16\"} : bfloat16[4,4]\n"
                             "I l0 %d = linear_dx(%d0.cast, %a.cast) : bfloat16[4,4]\n"
                             "post - %n = squared_norm(%g) : float64[]\n"
                             "post - init_constant(%m) {value=1}\n"
                             "post - init_constant(%b) {value=1}\n"
                             "fetch s = %s\n"
                             "fetch n = %n\n";

static void check_layers(const char *settings, const char *golden)
{
    const struct ct_plugin *plugin = test_plugin("offload");
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, layers);

    TEST_OPTIONS(plugin, settings);
    assert_ok(test_transform(plugin, "offload")->apply(g, NULL));
    assert_ok(ct_graph_verify(g, stderr));
    assert_golden(golden, ct_graph_text(g, &arena));
    assert_string_equal(ct_graph_text(parse(&arena, ct_graph_text(g, &arena)), &arena),
                        ct_graph_text(g, &arena));
    ct_arena_finish(&arena);
}

static void copies_come_one_region_ahead(void **state)
{
    (void)state;
    check_layers("parameters=true", "both.txt");
    check_layers("parameters=false", "optimizer.txt");
    check_layers("optimizer=false", "parameters.txt");
}

/* A value that one op of the optimizer updates and the next one reads is not loaded ahead of the
   store. */
static void loads_follow_stores(void **state)
{
    const struct ct_plugin *plugin = test_plugin("offload");
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, "state %m : float32[4]\n"
                                       "state %n : float32[4]\n"
                                       "post - init_constant(%n) {value=1}\n"
                                       "post - init_constant(%m) {value=1}\n"
                                       "post - %s = squared_norm(%m, %n) : float64[]\n"
                                       "fetch s = %s\n");
    const struct ct_op *stored, *read = find_op(g, "squared_norm", 0);

    (void)state;
    TEST_OPTIONS(plugin, "parameters=true");
    assert_ok(test_transform(plugin, "offload")->apply(g, NULL));
    stored = find_op(g, "store", 1);
    assert_string_equal(stored->in[0]->name, "m");
    for (int i = 0; i < 2; i++) {
        const struct ct_op *op = read->in[i]->producer;

        assert_string_equal(op->type->name, "load");
        while (op && op != stored)
            op = op->prev;
        assert_ptr_equal(op, stored);
    }
    ct_arena_finish(&arena);
}

static void something_must_be_chosen(void **state)
{
    const struct ct_plugin *plugin = test_plugin("offload");
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, layers);

    (void)state;
    TEST_OPTIONS(plugin, "parameters=false", "optimizer=false");
    assert_int_equal(test_transform(plugin, "offload.update")->apply(g, NULL), CT_ECONFIG);
    assert_message("[offload] parameters and optimizer are both false");
    ct_arena_finish(&arena);
}

/* ---- a step ---- */

static void check_marks(const struct ct_graph *g)
{
    for (size_t i = 0; i < g->value_count; i++)
        if (g->values[i]->role == CT_ROLE_PARAM)
            assert_true(g->values[i]->marks & ct_mark(CT_UPDATE_BY_REGION));
}

static struct ct_graph *training_step(struct ct_arena *arena, bool away)
{
    const struct ct_plugin *adamw = test_plugin("adamw"), *offload = test_plugin("offload");
    struct ct_run run = {.optimizer = test_offer(adamw, CT_OPTIMIZER)};
    struct ct_graph *g = tiny_llama(arena, (struct tiny){.layers = 3, .dtype = CT_F64});

    TEST_OPTIONS(adamw, "lr=0.01");
    TEST_OPTIONS(offload, "parameters=true");
    ct_config.training.mixed_precision_param = CT_F32;
    ct_config.training.max_norm = 0.5;
    if (away) {
        assert_ok(test_transform(offload, "offload.update")->apply(g, NULL));
        check_marks(parse(arena, ct_graph_text(g, arena)));
    }
    assert_ok(ct_pass_precision.apply(g, &run));
    assert_ok(ct_differentiate(g));
    assert_ok(ct_pass_update.apply(g, &run));
    if (away)
        assert_ok(test_transform(offload, "offload")->apply(g, NULL));
    ct_graph_sweep(g);
    assert_ok(ct_graph_verify(g, stderr));
    return g;
}

static void run_steps(struct machine *m, int steps)
{
    double lr = 0.01;

    for (double step = 1; step <= steps; step++) {
        if (m->device != reference_device())
            shuffle_poison(m->program->memory.persistent, m->program->memory.bytes);
        feed_samples(m);
        assert_ok(ct_executor_write(m->executor, ct_graph_find(m->graph, "lr"), -1, &lr, 8));
        assert_ok(ct_executor_write(m->executor, ct_graph_find(m->graph, "step"), -1, &step, 8));
        assert_ok(ct_executor_step(m->executor));
    }
}

static void compare_weights(struct machine *m, struct machine *plain)
{
    for (size_t i = 0; i < plain->graph->value_count; i++) {
        const struct ct_value *v = plain->graph->values[i];
        int64_t count, other;
        double *should, *is;

        if (v->role != CT_ROLE_PARAM && v->role != CT_ROLE_STATE)
            continue;
        should = read_value(plain, v, &count);
        is = read_value(m, ct_graph_find(m->graph, v->name), &other);
        assert_int_equal(count, other);
        if (memcmp(is, should, (size_t)count * sizeof(*is)) != 0)
            fail_msg("%s differs", v->name);
    }
}

static void training_is_the_same(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *there = training_step(&arena, false), *away = training_step(&arena, true);

    (void)state;
    for (int order = IN_TURN; order <= SPLIT; order++) {
        struct machine plain;

        machine_start(&plain, there, NULL, 2, (enum order)order);
        run_steps(&plain, 3);
        for (uint64_t seed = 1; seed <= 10; seed++) {
            struct machine m;

            machine_start(&m, away, shuffle_device(seed), 2, (enum order)order);
            run_steps(&m, 3);
            compare_weights(&m, &plain);
            machine_finish(&m);
        }
        machine_finish(&plain);
    }
    ct_arena_finish(&arena);
}

/* Offloaded states have no place on the device; on it are the windows of two regions. */
static void memory_falls(void **state)
{
    struct ct_arena arena = {0};
    struct machine plain, m;

    (void)state;
    machine_lower(&plain, training_step(&arena, false), NULL, 1, IN_TURN);
    machine_lower(&m, training_step(&arena, true), NULL, 1, IN_TURN);
    assert_int_equal(plain.program->host.bytes, 0);
    assert_int_equal(m.program->host.peak[CT_CATEGORY_PARAMETER],
                     plain.program->memory.peak[CT_CATEGORY_PARAMETER]);
    assert_int_equal(m.program->host.peak[CT_CATEGORY_OPTIMIZER],
                     plain.program->memory.peak[CT_CATEGORY_OPTIMIZER]);
    assert_true(m.program->memory.peak[CT_CATEGORY_OPTIMIZER] <
                plain.program->memory.peak[CT_CATEGORY_OPTIMIZER] * 3 / 4);
    assert_true(m.program->memory.persistent < plain.program->memory.persistent / 4);
    machine_finish(&plain);
    machine_finish(&m);
    ct_arena_finish(&arena);
}

/* ---- devices without a host memory ---- */

static void a_device_without_second_memory_says_so(void **state)
{
    struct ct_device_ops ops = ct_device_reference;
    struct ct_device device = {.ops = &ops, .name = "single", .host_memory = true};
    struct ct_arena arena = {0};
    struct machine m;

    (void)state;
    ops.reserve_host = NULL;
    machine_lower(&m, training_step(&arena, true), &device, 1, IN_TURN);
    assert_int_equal(ct_executor_create(m.program, m.device, NULL, &m.executor), CT_ECONFIG);
    assert_message("device single has no host memory, and the program needs ");
    machine_finish(&m);
    ct_arena_finish(&arena);
}

static void what_is_not_loaded_cannot_be_used(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"param %w host : float32[4]\npre - %s = squared_norm(%w) : float64[]\nfetch s = %s\n",
         "%w lies in host memory: copy it to the device first"},
        {"param %w : float32[4]\npre - %v = load(%w) : float32[4]\n", "%w is not offloaded"},
        {"param %w host : float32[4]\npre - %v = offload(%w) : float32[4]\n", "%w is offloaded"},
        {"param %w : float32[4]\nparam %v : float32[4]\npost - store(%w, %v)\n",
         "%w is not offloaded"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_arena arena = {0};
        struct ct_graph *g = ct_graph_parse(&arena, cases[i].text);

        if (g)
            assert_int_equal(ct_graph_verify(g, NULL), CT_EINVAL);
        assert_message(cases[i].says);
        ct_arena_finish(&arena);
    }
}

static int register_adamw(void **state)
{
    (void)state;
    return ct_op_register(test_offer(test_plugin("adamw"), CT_OP));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_come_one_region_ahead),
        cmocka_unit_test(loads_follow_stores),
        cmocka_unit_test(something_must_be_chosen),
        cmocka_unit_test(training_is_the_same),
        cmocka_unit_test(memory_falls),
        cmocka_unit_test(a_device_without_second_memory_says_so),
        cmocka_unit_test(what_is_not_loaded_cannot_be_used),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, register_adamw, NULL);
}
