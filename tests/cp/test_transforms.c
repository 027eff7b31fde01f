/*
 * Graphs by the transforms of cp: the text after each method, rings written out, and
 * what is refused.
 */
#include <ctitan/app/verify.h>
#include <ctitan/run.h>
#include <ctitan/text.h>

#include "plugin_under_test.h"
#include "support.h"

static const struct ct_plugin *plugin;

static const struct ct_transform *transform(const char *name)
{
    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++)
        if (o->kind == CT_TRANSFORM && !strcmp(o->name, name))
            return o->ops;
    fail_msg("no transform %s", name);
    return NULL;
}

static int load(void **state)
{
    (void)state;
    plugin = test_plugin("cp");
    return ct_plugin_register(plugin);
}

static struct ct_graph *meshed(struct ct_graph *g, int cp)
{
    g->mesh = (struct ct_mesh){2, {{"cp", cp}, {"tp", 2}}};
    return g;
}

static struct ct_graph *model(struct ct_arena *arena, int64_t tokens, int64_t kv_heads, int cp)
{
    return meshed(tiny_llama(arena, (struct tiny){.batch = 2,
                                                  .tokens = tokens,
                                                  .layers = 1,
                                                  .heads = 4,
                                                  .kv_heads = kv_heads,
                                                  .documents = true}),
                  cp);
}

/* As with tp, whose axis is the second. */
static int apply_both(struct ct_graph *g)
{
    struct ct_run run = {.head_axes = (ct_axes)1 << 1};
    int rc = transform("cp.inputs")->apply(g, &run);

    return rc < 0 ? rc : transform("cp.attention")->apply(g, &run);
}

static void check_method(const char *method)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = model(&arena, 8, 4, 2);

    TEST_OPTIONS(plugin, "degree=2", ct_arena_printf(&arena, "method=%s", method));
    assert_ok(apply_both(g));
    ct_graph_sweep(g);
    assert_ok(ct_graph_verify(g, NULL));
    assert_golden(ct_arena_printf(&arena, "%s.txt", method), ct_graph_text(g, &arena));
    ct_arena_finish(&arena);
}

static void ring_attention_replaces_attention(void **state)
{
    (void)state;
    check_method("ring");
}

static void allgather_gathers_keys_and_values(void **state)
{
    (void)state;
    check_method("allgather");
}

static void ulysses_trades_tokens_for_heads(void **state)
{
    (void)state;
    check_method("ulysses");
}

/* A sink is at work where attention is: with ulysses on the rank's heads. The gradient of attention
   takes what the sink gives as its o. */
static void sinks_stay_with_attention(void **state)
{
    static const struct {
        const char *method, *gradient;
        bool moved;
    } cases[] = {{"ring", "ring_attention_grad", false},
                 {"allgather", "attention_grad", false},
                 {"ulysses", "attention_grad", true}};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_arena arena = {0};
        struct ct_graph *g = meshed(
            tiny_llama(
                &arena,
                (struct tiny){.tokens = 8, .layers = 1, .heads = 4, .kv_heads = 4, .sinks = true}),
            2);
        const struct ct_op *sink = find_op(g, "attention_sink", 0);
        const char *user;

        TEST_OPTIONS(plugin, "degree=2", ct_arena_printf(&arena, "method=%s", cases[i].method));
        assert_ok(apply_both(g));
        user = ct_value_only_user(sink->out[0])->type->name;
        assert_string_equal(user, cases[i].moved ? "redistribute" : "view");
        assert_ptr_equal(sink->in[0]->producer, sink->in[1]->producer);
        assert_ok(ct_differentiate(g));
        assert_ok(ct_graph_verify(g, NULL));
        assert_ptr_equal(find_op(g, cases[i].gradient, 0)->in[4], sink->out[0]);
        ct_arena_finish(&arena);
    }
}

/* Two layers, so that what travels for both is seen to travel once; the values of one are the keys
   of the other, so that heads of v have another size than those of k. */
static void rings_expand_and_share_rotations(void **state)
{
    static const char *const before =
        "graph \"rings\" chunks=0,5,1,4,2,3\n"
        "mesh cp=3\n"
        "input %documents : int32[2,12] [-, cp]\n"
        "input %positions : int32[2,12] [-, cp]\n"
        "input %q : bfloat16[2,12,4,8] [-, cp, -, -]\n"
        "input %k : bfloat16[2,12,2,8] [-, cp, -, -]\n"
        "input %v : bfloat16[2,12,2,6] [-, cp, -, -]\n"
        "F one %o, %lse = ring_attention(%q, %k, %v, %documents, %positions) : "
        "bfloat16[2,12,4,6] [-, cp, -, -], float32[2,4,12] [-, -, cp]\n"
        "F two %p, %p.lse = ring_attention(%o, %v, %k, %documents, %positions) : "
        "bfloat16[2,12,4,8] [-, cp, -, -], float32[2,4,12] [-, -, cp]\n"
        "I two %d.o, %d.v, %d.k = ring_attention_grad(%p, %o, %v, %k, %p, %p.lse, %documents, "
        "%positions) : bfloat16[2,12,4,6] [-, cp, -, -], bfloat16[2,12,2,6] [-, cp, -, -], "
        "bfloat16[2,12,2,8] [-, cp, -, -]\n"
        "post - %n = squared_norm(%d.o, %d.k, %d.v) : float64[] +{cp}\n"
        "fetch n = %n\n";
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, before);

    (void)state;
    TEST_OPTIONS(plugin, "degree=3");
    assert_ok(ct_graph_verify(g, NULL));
    assert_ok(transform("cp.ring")->apply(g, NULL));
    ct_graph_sweep(g);
    assert_ok(ct_graph_verify(g, NULL));
    assert_golden("rings.txt", ct_graph_text(g, &arena));
    ct_arena_finish(&arena);
}

/* Rank r of n gets the chunks r and 2 n - 1 - r. */
static void headtail_pairs_early_and_late_chunks(void **state)
{
    static const int64_t pairs[] = {0, 5, 6, 11, 1, 4, 7, 10, 2, 3, 8, 9};
    struct ct_arena arena = {0};
    struct ct_graph *g = model(&arena, 12, 4, 3);

    (void)state;
    TEST_OPTIONS(plugin, "degree=3");
    assert_ok(apply_both(g));
    for (int64_t rank = 0; rank < 3; rank++)
        for (int64_t i = 0; i < 4; i++)
            assert_int_equal(ct_graph_position(g, 12, 4 * rank + i),
                             i < 2 ? 2 * rank + i : 2 * (5 - rank) + i - 2);
    g = model(&arena, 12, 4, 3);
    TEST_OPTIONS(plugin, "degree=3", "pairs=2"); /* of parts of one token, in two stretches */
    assert_ok(apply_both(g));
    for (int64_t i = 0; i < 12; i++)
        assert_int_equal(ct_graph_position(g, 12, i), pairs[i]);
    g = model(&arena, 1536, 4, 2); /* has documents */
    TEST_OPTIONS(plugin, "degree=2");
    assert_ok(apply_both(g));
    assert_int_equal(g->chunks, 1536 / 64);
    g = model(&arena, 12, 4, 3);
    TEST_OPTIONS(plugin, "degree=3", "load_balancer=none");
    assert_ok(apply_both(g));
    for (int64_t i = 0; i < 12; i++)
        assert_int_equal(ct_graph_position(g, 12, i), i);
    ct_arena_finish(&arena);
}

static void check_refusal(int64_t tokens, int64_t kv_heads, const char *method,
                          const char *balancer, const char *message)
{
    struct ct_arena arena = {0};

    TEST_OPTIONS(plugin, "degree=2", ct_arena_printf(&arena, "method=%s", method),
                 ct_arena_printf(&arena, "load_balancer=%s", balancer));
    assert_int_equal(apply_both(model(&arena, tokens, kv_heads, 2)), CT_ECONFIG);
    assert_string_equal(ct_error_message(), message);
    ct_arena_finish(&arena);
}

static void wrong_settings_are_refused(void **state)
{
    struct ct_arena arena = {0};

    (void)state;
    TEST_OPTIONS(plugin, "degree=2", "pairs=4");
    assert_int_equal(apply_both(model(&arena, 24, 4, 2)), CT_ECONFIG);
    assert_string_equal(ct_error_message(),
                        "[training] seq_len = 24 is not a multiple of 16, as [cp] degree = 2 with "
                        "load_balancer = headtail, pairs = 4 needs");
    TEST_OPTIONS(plugin, "degree=2", "pairs=1", "method=ulysses");
    assert_fails(apply_both(model(&arena, 24, 4, 2)), CT_ECONFIG,
                 "[cp] pairs = 1 has no effect with method = ulysses");
    TEST_OPTIONS(plugin, "degree=2", "pairs=1", "load_balancer=none");
    assert_fails(apply_both(model(&arena, 24, 4, 2)), CT_ECONFIG,
                 "[cp] pairs = 1 has no effect with load_balancer = none");
    ct_arena_finish(&arena);
    check_refusal(6, 4, "ring", "headtail",
                  "[training] seq_len = 6 is not a multiple of 4, as [cp] degree = 2 with "
                  "load_balancer = headtail needs");
    check_refusal(5, 4, "allgather", "none",
                  "[training] seq_len = 5 is not a multiple of 2, as [cp] degree = 2 with "
                  "load_balancer = none needs");
}

static void wrong_orders_of_chunks_are_refused(void **state)
{
    static const struct {
        const char *chunks, *message;
    } bad[] = {
        {"0,1,1", "the order of the sequence's 3 chunks has 1 twice"},
        {"0,3", "the order of the sequence's 2 chunks has 3 in it"},
    };
    struct ct_arena arena = {0};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(bad); i++) {
        struct ct_graph *g =
            parse(&arena, ct_arena_printf(&arena, "graph \"g\" chunks=%s\n", bad[i].chunks));

        assert_int_equal(ct_graph_verify(g, NULL), CT_EINVAL);
        assert_string_equal(ct_error_message(), bad[i].message);
    }
    assert_null(ct_graph_parse(&arena, "graph \"g\" chunks=0,x"));
    assert_message("expected a number at \"x\"");
    ct_arena_finish(&arena);
}

/* Without the axis, that is, with degree 1, nothing changes. */
static void degree_one_changes_nothing(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = model(&arena, 7, 2, 1);
    const char *before;

    (void)state;
    g->mesh = (struct ct_mesh){1, {{"tp", 2}}};
    before = ct_graph_text(g, &arena);
    TEST_OPTIONS(plugin, "degree=1");
    assert_ok(apply_both(g));
    assert_ok(transform("cp.ring")->apply(g, NULL));
    assert_string_equal(ct_graph_text(g, &arena), before);
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring_attention_replaces_attention),
        cmocka_unit_test(allgather_gathers_keys_and_values),
        cmocka_unit_test(ulysses_trades_tokens_for_heads),
        cmocka_unit_test(sinks_stay_with_attention),
        cmocka_unit_test(rings_expand_and_share_rotations),
        cmocka_unit_test(headtail_pairs_early_and_late_chunks),
        cmocka_unit_test(wrong_settings_are_refused),
        cmocka_unit_test(wrong_orders_of_chunks_are_refused),
        cmocka_unit_test(degree_one_changes_nothing),
    };
    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests_name("cp", tests, load, NULL);
}
