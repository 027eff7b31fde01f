/*
 * The graph by sac: which values are saved, which are recomputed and where; a step computes the
 * same to the last bit; memory and FLOPs are as they should be.
 */
#include "plugin_under_test.h"
#include <ctitan/app/verify.h>
#include <ctitan/lib/ops.h>
#include <ctitan/run.h>
#include <ctitan/text.h>

#include "shuffle.h"
#include "support.h"

static const struct tiny tiny_sizes = {.layers = 3, .dtype = CT_F64};

/* A differentiated llama after sac in a mode; NULL: without it. */
static struct ct_graph *backward_of(struct ct_arena *arena, struct tiny tiny,
                                    const char *const *settings)
{
    const struct ct_plugin *sac = test_plugin("sac");
    struct ct_graph *g = tiny_llama(arena, tiny);

    assert_ok(ct_differentiate(g));
    if (settings) {
        test_options(sac, settings);
        assert_ok(test_transform(sac, "sac")->apply(g, NULL));
    }
    assert_ok(ct_graph_verify(g, stderr));
    return g;
}
#define BACKWARD_OF(arena, tiny, ...)                                                              \
    backward_of(arena, tiny, (const char *const[]){__VA_ARGS__, NULL})

static bool backward(const struct ct_op *op)
{
    return op->section->part == CT_PART_I || op->section->part == CT_PART_W;
}

/* Bytes of the forward's values that the backward reads; a view counts as the value it shows. */
static size_t saved_bytes(const struct ct_graph *g)
{
    size_t sum = 0;

    for (size_t i = 0; i < g->value_count; i++) {
        const struct ct_value *v = g->values[i];
        bool saved = false;

        if (!v->producer || v->producer->section->part != CT_PART_F ||
            v->producer->type->flags & CT_OP_VIEW)
            continue;
        ct_for_each_use (use, v) {
            saved |= backward(use->op);
            if (use->op->type->flags & CT_OP_VIEW)
                ct_for_each_use (of_view, use->op->out[0])
                    saved |= backward(of_view->op);
        }
        sum += saved ? ct_value_bytes(g, v, 0) : 0;
    }
    return sum;
}

static double flops_of(const struct ct_graph *g, enum ct_part part)
{
    double sum = 0;

    ct_for_each_op (op, g)
        if (op->section->part == part)
            sum += ct_op_flops(g, op, 0);
    return sum;
}

static double backward_flops(const struct ct_graph *g)
{
    return flops_of(g, CT_PART_I) + flops_of(g, CT_PART_W);
}

/* ---- graphs ---- */

static void graphs_are_as_agreed(void **state)
{
    static const char *const modes[] = {"full", "layer", "op", "budget"};
    struct tiny tiny = {.layers = 2};
    struct ct_arena arena = {0};

    (void)state;
    assert_golden("before.txt", ct_graph_text(backward_of(&arena, tiny, NULL), &arena));
    for (size_t i = 0; i < CT_COUNT(modes); i++) {
        struct ct_graph *g =
            BACKWARD_OF(&arena, tiny, ct_arena_printf(&arena, "mode=%s", modes[i]));
        const char *text = ct_graph_text(g, &arena);

        assert_golden(ct_arena_printf(&arena, "%s.txt", modes[i]), text);
        assert_string_equal(ct_graph_text(parse(&arena, text), &arena), text);
    }
    ct_arena_finish(&arena);
}

/* Copies out follow what they copy; copies in come one region ahead. */
static void offloaded_values_are_as_agreed(void **state)
{
    struct tiny tiny = {.layers = 2};
    struct ct_arena arena = {0};
    struct ct_graph *g = BACKWARD_OF(&arena, tiny, "mode=op", "save_ops=linear, attention",
                                     "offload=attention, swiglu, linear/3");
    const char *text = ct_graph_text(g, &arena);

    (void)state;
    assert_golden("offload.txt", text);
    assert_string_equal(ct_graph_text(parse(&arena, text), &arena), text);
    ct_arena_finish(&arena);
}

static void none_changes_nothing(void **state)
{
    struct ct_arena arena = {0};
    char *before = ct_graph_text(backward_of(&arena, tiny_sizes, NULL), &arena);

    (void)state;
    assert_string_equal(ct_graph_text(BACKWARD_OF(&arena, tiny_sizes, "mode=none"), &arena),
                        before);
    ct_arena_finish(&arena);
}

static const struct ct_op_type noise = {
    .size = sizeof(struct ct_op_type),
    .name = "noise",
    .summary = "other numbers each time",
    .signature = "x[.] T -> y[.] T",
    .flags = CT_OP_EFFECT,
};

/* An op with an effect is never run twice; ops on its result may be. */
static void effects_are_not_repeated(void **state)
{
    static const char text[] = "graph \"effects\"\n"
                               "input %x : float32[4,4]\n"
                               "F layers.0 %y = noise(%x) : float32[4,4]\n"
                               "F layers.0 %z = add(%y, %y) : float32[4,4]\n"
                               "F layers.1 %t = squared_norm(%z) : float64[]\n"
                               "F layers.1 %s = squared_norm(%z) : float64[]\n"
                               "F layers.0 %u = add(%z, %y) : float32[4,4]\n"
                               "I layers.0 %d = add(%y, %u) : float32[4,4]\n"
                               "W layers.0 %n = squared_norm(%d) : float64[]\n"
                               "fetch s = %s\n"
                               "fetch t = %t\n"
                               "fetch n = %n\n";
    const struct ct_plugin *sac = test_plugin("sac");
    struct ct_arena arena = {0};
    struct ct_graph *g;

    (void)state;
    assert_ok(ct_op_register(&noise));
    g = parse(&arena, text);
    TEST_OPTIONS(sac, "mode=full");
    assert_ok(test_transform(sac, "sac")->apply(g, NULL));
    assert_ok(ct_graph_verify(g, stderr));
    assert_int_equal(count_ops(g, "noise"), 1);
    assert_non_null(ct_graph_find(g, "u.again"));
    assert_null(ct_graph_find(g, "z.again"));
    ct_arena_finish(&arena);
}

static const struct ct_op_type variant = {
    .size = sizeof(struct ct_op_type),
    .name = "silu_of.test",
    .summary = "takes the place of silu",
    .signature = "x[.] T -> y[.] T",
};

/* An entry stands for ops that are named after its op. */
static void variants_are_listed_by_the_ops_they_replace(void **state)
{
    static const char text[] = "graph \"variants\"\n"
                               "input %x : float32[4,4]\n"
                               "F layers.0 %y = silu_of.test(%x) : float32[4,4]\n"
                               "F layers.0 %z = silu(%y) : float32[4,4]\n"
                               "F layers.0 %u = mul(%z, %y) : float32[4,4]\n"
                               "F layers.1 %s = squared_norm(%u) : float64[]\n"
                               "I layers.0 %d = add(%z, %y) : float32[4,4]\n"
                               "W layers.0 %n = squared_norm(%d) : float64[]\n"
                               "fetch s = %s\n"
                               "fetch n = %n\n";
    static const struct {
        const char *ops;
        bool y, z; /* are recomputed */
    } cases[] = {{"save_ops=silu", false, false},
                 {"save_ops=silu, silu_of.test/2", false, false},
                 {"save_ops=silu/2", false, true},
                 {"save_ops=silu_of.test", false, true},
                 {"save_ops=mul", true, true}};
    const struct ct_plugin *sac = test_plugin("sac");

    (void)state;
    assert_ok(ct_op_register(&variant));
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_arena arena = {0};
        struct ct_graph *g = parse(&arena, text);

        TEST_OPTIONS(sac, "mode=op", cases[i].ops);
        assert_ok(test_transform(sac, "sac")->apply(g, NULL));
        assert_int_equal(ct_graph_find(g, "y.again") != NULL, cases[i].y);
        assert_int_equal(ct_graph_find(g, "z.again") != NULL, cases[i].z);
        ct_arena_finish(&arena);
    }
}

static void faults_of_options_are_said(void **state)
{
    static const struct {
        const char *mode, *setting, *says;
    } cases[] = {
        {"mode=op", "save_ops=liner", "did you mean linear?"},
        {"mode=op", "save_ops=linear, gelu", "[sac] save_ops: no layer has an op gelu"},
        {"mode=op", "save_ops=linear/1, attention", "[sac] save_ops: linear/1"},
        {"mode=op", "save_ops=linear/x", "[sac] save_ops: linear/x"},
        {"mode=none", "offload=liner", "did you mean linear?"},
        {"mode=none", "offload=embedding", "[sac] offload: no layer has an op embedding"},
        {"mode=budget", "offload=linear/0", "[sac] offload: linear/0"},
        {"mode=budget", "budget=much", "[sac] budget = much: expected a fraction or bytes"},
        {"mode=budget", "budget=1Gib", "Gib is no unit"},
        {"mode=budget", "budget=inf", "[sac] budget = inf: expected a fraction or bytes"},
        {"mode=budget", "budget=1e40GiB", "[sac] budget = 1e40GiB: expected a fraction or bytes"},
        {"mode=budget", "budget=100B", "the layers keep at least"}};
    const struct ct_plugin *sac = test_plugin("sac");

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_arena arena = {0};
        struct ct_graph *g = backward_of(&arena, tiny_sizes, NULL);

        TEST_OPTIONS(sac, cases[i].mode, cases[i].setting);
        assert_int_equal(test_transform(sac, "sac")->apply(g, NULL), CT_ECONFIG);
        if (!strstr(ct_error_message(), cases[i].says))
            fail_msg("\"%s\" is not in \"%s\"", cases[i].says, ct_error_message());
        ct_arena_finish(&arena);
    }
}

/* ---- TorchTitan's tests of activation checkpointing ---- */

static void recomputation_costs_known_flops(void **state)
{
    struct ct_arena arena = {0};
    double forward, layer, none;
    struct ct_graph *g = backward_of(&arena, tiny_sizes, NULL);

    (void)state;
    none = backward_flops(g);
    forward = layer = 0;
    ct_for_each_op (op, g)
        if (op->section->part == CT_PART_F && !strncmp(op->region, "layers.", 7) &&
            !strstr(op->out[0]->name, "down")) /* which nothing in the backward needs */
            forward += ct_op_flops(g, op, 0);
    layer = forward / 3;
    assert_near(backward_flops(BACKWARD_OF(&arena, tiny_sizes, "mode=full")), none + forward, 0);
    assert_near(backward_flops(BACKWARD_OF(&arena, tiny_sizes, "mode=layer", "every=1")),
                none + forward, 0);
    assert_near(backward_flops(BACKWARD_OF(&arena, tiny_sizes, "mode=layer", "every=3")),
                none + layer, 0);
    assert_near(
        backward_flops(BACKWARD_OF(&arena, tiny_sizes, "mode=op", "save_ops=linear, attention")),
        none, 0);
    ct_arena_finish(&arena);
}

static size_t planned(const struct ct_graph *g, int microbatches)
{
    struct machine m;
    size_t bytes;

    machine_lower(&m, g, NULL, microbatches, FORWARDS_FIRST);
    bytes = m.program->memory.bytes;
    machine_finish(&m);
    return bytes;
}

/* With all forwards first, each microbatch holds what is saved. */
static void recomputation_saves_known_memory(void **state)
{
    static const char *const modes[] = {"mode=full", "mode=op", "mode=layer"};
    enum { MICROBATCHES = 12 };
    struct tiny tiny = {.layers = 3, .tokens = 64};
    struct ct_arena arena = {0};
    struct ct_graph *plain = backward_of(&arena, tiny, NULL);
    size_t saved = saved_bytes(plain), before = planned(plain, MICROBATCHES), h = 2 * 64 * 8 * 4;

    (void)state;
    for (size_t i = 0; i < CT_COUNT(modes); i++) {
        struct ct_graph *g = BACKWARD_OF(&arena, tiny, modes[i]);
        size_t less = (saved - saved_bytes(g)) * MICROBATCHES, is;

        is = planned(g, MICROBATCHES);
        assert_true(is <= before - less + saved); /* and what a layer recomputes, once */
        assert_true(is + saved >= before - less);
    }
    /* the embedding and the outputs of layers; of the head, its norm and that's rstd */
    assert_int_equal(saved_bytes(BACKWARD_OF(&arena, tiny, "mode=full")), 5 * h + 2 * 64 * 4);
    ct_arena_finish(&arena);
}

/* With everything offloaded, the device keeps what one region needs. */
static void offloading_moves_memory(void **state)
{
    enum { MICROBATCHES = 12 };
    struct tiny tiny = {.layers = 6, .tokens = 64};
    struct ct_arena arena = {0};
    struct ct_graph *plain = backward_of(&arena, tiny, NULL);
    struct ct_graph *g = BACKWARD_OF(&arena, tiny, "mode=none", "offload=all");
    size_t kept = saved_bytes(plain), copied = 0, device, host;
    struct machine m;

    (void)state;
    ct_for_each_op (op, g)
        copied += op->type == &ct_op_offload ? ct_value_bytes(g, op->out[0], 0) : 0;
    assert_true(copied > kept / 2);
    assert_near(backward_flops(g), backward_flops(plain), 0);
    machine_lower(&m, g, NULL, MICROBATCHES, FORWARDS_FIRST);
    device = m.program->memory.bytes;
    host = m.program->host.bytes;
    assert_true(m.program->loaded_bytes == (double)(MICROBATCHES * copied));
    assert_true(m.program->stored_bytes == m.program->loaded_bytes);
    machine_finish(&m);
    assert_true(host >= MICROBATCHES * copied);
    assert_true(device <= planned(plain, MICROBATCHES) - (MICROBATCHES - 1) * copied);
    ct_arena_finish(&arena);
}

/* The bytes of copies that are not hidden cost time: a slow memory is left alone, a fast one takes
   what would be recomputed. */
static void the_rate_decides_on_offloading(void **state)
{
    static const struct {
        const char *rate;
        bool away, again;
    } cases[] = {{"host_gbps=1e9", true, false}, {"host_gbps=0.000001", false, true}};
    struct tiny tiny = {.layers = 3, .tokens = 16, .heads = 4, .ffn = 40};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_arena arena = {0};
        double none = backward_flops(backward_of(&arena, tiny, NULL));
        struct ct_graph *g = BACKWARD_OF(&arena, tiny, "mode=budget", "budget=0.3", "offload=all",
                                         "tflops=0.001", "memory_gbps=1", cases[i].rate);

        assert_int_equal(count_ops(g, "offload") > 0, cases[i].away);
        assert_int_equal(backward_flops(g) > none, cases[i].again);
        ct_arena_finish(&arena);
    }
}

/* ---- the search ---- */

/* Bytes that are kept outside layers: all but their outputs, where these alone are kept. */
static size_t saved_outside(struct tiny tiny)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = BACKWARD_OF(&arena, tiny, "mode=full");
    const struct ct_value *tokens = ct_graph_find_input(g, "tokens");
    int64_t heads = tiny.heads ? tiny.heads : 2;
    size_t output = (size_t)(tokens->shape[0] * tokens->shape[1] * heads * 4) * sizeof(float);
    size_t outside = saved_bytes(g) - (size_t)tiny.layers * output;

    ct_arena_finish(&arena);
    return outside;
}

/* Bit i: the model has no op of types[i]. */
static unsigned find_missing(struct tiny tiny, const char *const *types, size_t count)
{
    struct ct_arena arena = {0};
    const struct ct_graph *g = backward_of(&arena, tiny, NULL);
    unsigned missing = 0;

    for (size_t i = 0; i < count; i++)
        if (!count_ops(g, types[i]))
            missing |= 1u << i;
    ct_arena_finish(&arena);
    return missing;
}

/* Whatever a list of ops keeps: in its bytes, no more FLOPs are recomputed. */
static void check_never_beaten(struct tiny tiny)
{
    static const char *const ops[] = {"linear", "attention", "rope",    "swiglu",
                                      "add",    "rms_norm",  "linear/2"};
    unsigned missing = find_missing(tiny, ops, CT_COUNT(ops) - 1);
    size_t outside = saved_outside(tiny);

    for (unsigned set = 1; set < 1u << CT_COUNT(ops); set++) {
        struct ct_arena arena = {0};
        const char *list = "save_ops=", *budget;
        struct ct_graph *g;
        double flops;

        if (set & missing)
            continue;
        for (size_t i = 0; i < CT_COUNT(ops); i++)
            if (set >> i & 1)
                list = ct_arena_printf(&arena, "%s%s,", list, ops[i]);
        g = BACKWARD_OF(&arena, tiny, "mode=op", list);
        flops = backward_flops(g);
        budget = ct_arena_printf(&arena, "budget=%zuB", saved_bytes(g) - outside);
        g = BACKWARD_OF(&arena, tiny, "mode=budget", budget, "tflops=0.001", "memory_gbps=1e9");
        if (backward_flops(g) > flops)
            fail_msg("%s: %g FLOPs, in its %s %g", list, flops, budget, backward_flops(g));
        ct_arena_finish(&arena);
    }
}

static void budget_is_never_beaten(void **state)
{
    static const struct tiny models[] = {
        {.layers = 3, .tokens = 16, .heads = 4, .ffn = 40},
        {.layers = 1, .tokens = 5, .heads = 2, .ffn = 7},
        {.layers = 2, .tokens = 64, .heads = 4, .kv_heads = 2, .ffn = 24},
        {.layers = 2, .tokens = 9, .plain = true},
        {.layers = 4, .tokens = 12, .documents = true, .tied = true},
        {.layers = 2, .tokens = 16, .heads = 4, .sinks = true},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(models); i++)
        check_never_beaten(models[i]);
}

static void a_budget_is_kept(void **state)
{
    static const char *const budgets[] = {"1", "0.8", "0.6", "0.4", "0.2"};
    struct tiny tiny = {.layers = 3, .tokens = 16, .heads = 4, .ffn = 40};
    size_t h = 2 * 16 * 16 * 4, outside = 2 * h + 2 * 16 * 4, without;
    struct ct_arena arena = {0};

    (void)state;
    without = saved_bytes(backward_of(&arena, tiny, NULL)) - outside;
    for (size_t i = 0; i < CT_COUNT(budgets); i++) {
        const char *budget = ct_arena_printf(&arena, "budget=%s", budgets[i]);
        struct ct_graph *g = BACKWARD_OF(&arena, tiny, "mode=budget", budget);

        assert_true((double)(saved_bytes(g) - outside) <=
                    strtod(budgets[i], NULL) * (double)without);
    }
    ct_arena_finish(&arena);
}

/* ---- numbers ---- */

static struct ct_graph *with_gradients(struct ct_arena *arena, struct tiny tiny, const char *mode,
                                       const char *offload)
{
    struct ct_graph *g =
        mode ? BACKWARD_OF(arena, tiny, mode, offload) : backward_of(arena, tiny, NULL);

    fetch_gradients(g);
    return g;
}

static void compare(struct machine *m, struct machine *plain)
{
    feed_samples(m);
    assert_ok(ct_executor_step(m->executor));
    for (size_t i = 0; i < plain->graph->fetch_count; i++) {
        const char *name = plain->graph->fetches[i].name;
        int64_t count, other;
        double *should = read_fetch(plain, name, &count), *is = read_fetch(m, name, &other);

        assert_int_equal(count, other);
        if (memcmp(is, should, (size_t)count * sizeof(*is)) != 0)
            fail_msg("%s differs", name);
    }
}

static void check_correctness(struct tiny tiny, const char *mode, const char *offload)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = with_gradients(&arena, tiny, mode, offload);
    struct ct_graph *plain = with_gradients(&arena, tiny, NULL, NULL);

    for (int order = IN_TURN; order <= SPLIT; order++) {
        struct machine before;

        machine_start(&before, plain, NULL, 3, (enum order)order);
        feed_samples(&before);
        assert_ok(ct_executor_step(before.executor));
        for (uint64_t seed = 1; seed <= 4; seed++) {
            struct machine m;

            machine_start(&m, g, shuffle_device(seed), 3, (enum order)order);
            compare(&m, &before);
            machine_finish(&m);
        }
        machine_finish(&before);
    }
    ct_arena_finish(&arena);
}

static void recomputed_gradients_are_equal(void **state)
{
    static const char *const cases[][2] = {
        {"mode=full", "offload="},     {"mode=layer", "offload="},    {"mode=op", "offload="},
        {"mode=budget", "offload="},   {"mode=none", "offload=all"},  {"mode=full", "offload=all"},
        {"mode=op", "offload=linear"}, {"mode=budget", "offload=all"}};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        check_correctness(tiny_sizes, cases[i][0], cases[i][1]);
        check_correctness((struct tiny){.tied = true, .documents = true, .dtype = CT_F64},
                          cases[i][0], cases[i][1]);
        check_correctness((struct tiny){.plain = true, .sinks = true, .dtype = CT_F64}, cases[i][0],
                          cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_are_as_agreed),
        cmocka_unit_test(offloaded_values_are_as_agreed),
        cmocka_unit_test(none_changes_nothing),
        cmocka_unit_test(effects_are_not_repeated),
        cmocka_unit_test(variants_are_listed_by_the_ops_they_replace),
        cmocka_unit_test(faults_of_options_are_said),
        cmocka_unit_test(recomputation_costs_known_flops),
        cmocka_unit_test(recomputation_saves_known_memory),
        cmocka_unit_test(offloading_moves_memory),
        cmocka_unit_test(the_rate_decides_on_offloading),
        cmocka_unit_test(budget_is_never_beaten),
        cmocka_unit_test(a_budget_is_kept),
        cmocka_unit_test(recomputed_gradients_are_equal),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
