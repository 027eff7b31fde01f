/*
 * The transform "join": which ops become one, which stay, and that the numbers are the same.
 */
#include "support.h"

#include <math.h>

#include <ctitan/app/verify.h>
#include <ctitan/pass.h>
#include <ctitan/text.h>

static struct ct_graph *joined(struct ct_arena *arena, const char *text)
{
    struct ct_graph *graph = parse(arena, text);

    assert_ok(ct_graph_verify(graph, NULL));
    join(graph);
    assert_ok(ct_graph_verify(graph, NULL));
    return graph;
}

static void what_a_model_says_becomes_its_joined_form(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = tiny_llama(&arena, (struct tiny){.layers = 1, .plain = true});

    (void)state;
    join(graph);
    assert_ok(ct_graph_verify(graph, NULL));
    assert_golden("joined.graph", ct_graph_text(graph, &arena));
    ct_arena_finish(&arena);
}

static void logits_that_are_asked_for_are_made(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = tiny_llama(&arena, (struct tiny){.logits = true});

    (void)state;
    assert_int_equal(count_ops(graph, "add_rms_norm"), 4);
    assert_int_equal(count_ops(graph, "linear"), 2 * 4 + 1);
    assert_string_equal(ct_graph_fetched(graph, "logits")->producer->type->name, "linear");
    ct_arena_finish(&arena);
}

#define HEAD                                                                                       \
    "graph \"pairs\"\n"                                                                            \
    "input %x : float32[2,4]\n"                                                                    \
    "input %labels : int32[2]\n"                                                                   \
    "param %w : float32[4,4]\n"                                                                    \
    "param %v : float32[4,4]\n"                                                                    \
    "param %n : float32[4]\n"

static void logits_that_are_used_twice_stay(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph =
        joined(&arena, HEAD "F - %y = linear(%x, %w) : float32[2,4]\n"
                            "F - %loss, %lse = cross_entropy(%y, %labels) : float32[], float32[2]\n"
                            "F - %m = silu(%y) : float32[2,4]\n"
                            "fetch loss = %loss\nfetch m = %m\n");

    (void)state;
    assert_int_equal(count_ops(graph, "cross_entropy"), 1);
    graph = joined(&arena, HEAD "F - %y = linear(%x, %w) : float32[2,4]\n"
                                "F - %loss, %lse = cross_entropy(%y, %labels) : float32[], "
                                "float32[2]\n"
                                "F - %m = silu(%lse) : float32[2]\n"
                                "fetch loss = %loss\nfetch m = %m\n");
    assert_int_equal(count_ops(graph, "cross_entropy"), 1);
    ct_arena_finish(&arena);
}

static void stages_are_not_joined(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph =
        joined(&arena, "graph \"split\"\nmesh pp=2\npartition pp\n"
                       "input %x : float32[2,4]\n"
                       "param %w : float32[4,4]\nparam %v : float32[4,4]\nparam %n : float32[4]\n"
                       "0F a %y = linear(%x, %w) : float32[2,4]\n"
                       "0F a %s = add(%x, %y) : float32[2,4]\n"
                       "0F a %g = silu(%s) : float32[2,4]\n"
                       "1F b %z, %r = rms_norm(%s, %n) {eps=1e-05} : float32[2,4], float32[2]\n"
                       "1F b %u = linear(%x, %v) : float32[2,4]\n"
                       "1F b %m = mul(%g, %u) : float32[2,4]\n"
                       "1F b %e = add(%z, %m) : float32[2,4]\n"
                       "fetch e = %e\n");

    (void)state;
    assert_int_equal(count_ops(graph, "add_rms_norm"), 0);
    assert_int_equal(count_ops(graph, "swiglu"), 0);
    assert_int_equal(count_ops(graph, "linear"), 2);
    ct_arena_finish(&arena);
}

static void marks_keep_linears_apart(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = joined(&arena, HEAD "F - %a = linear(%x, %w) : float32[2,4]\n"
                                                 "F - #other %b = linear(%x, %v) : float32[2,4]\n"
                                                 "F - %c = linear(%x, %v) : float32[2,4]\n"
                                                 "F - #other %d = linear(%x, %w) : float32[2,4]\n"
                                                 "F - %e = add(%a, %b) : float32[2,4]\n"
                                                 "F - %f = add(%c, %d) : float32[2,4]\n"
                                                 "fetch e = %e\nfetch f = %f\n");

    (void)state;
    assert_int_equal(count_ops(graph, "linear"), 2);
    for (int i = 0; i < 2; i++) {
        const struct ct_op *op = find_op(graph, "linear", i);

        assert_int_equal(op->outs, 2);
        assert_string_equal(op->out[0]->name, i ? "b" : "a");
        assert_string_equal(op->out[1]->name, i ? "d" : "c");
    }
    ct_arena_finish(&arena);
}

/* The second weight is made behind the first linear layer, and brought in front of it. */
static void weights_are_brought_forward(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = joined(&arena, HEAD "F - %y = linear(%x, %w) : float32[2,4]\n"
                                                 "F - %t = add(%w, %v) : float32[4,4]\n"
                                                 "F - %u = add(%t, %t) : float32[4,4]\n"
                                                 "F - %a = add(%y, %x) : float32[2,4]\n"
                                                 "F - %z = linear(%x, %u) : float32[2,4]\n"
                                                 "F - %s = add(%a, %z) : float32[2,4]\n"
                                                 "fetch s = %s\n");
    const struct ct_op *op = find_op(graph, "linear", 0);

    (void)state;
    assert_int_equal(count_ops(graph, "linear"), 1);
    assert_int_equal(op->outs, 2);
    assert_string_equal(op->out[0]->name, "y");
    assert_string_equal(op->out[1]->name, "z");
    assert_string_equal(op->in[2]->name, "u");
    ct_arena_finish(&arena);
}

/* A weight that depends on the first layer's result cannot be. */
static void weights_that_come_too_late_are_left(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = joined(&arena, HEAD "input %q : float32[4,4]\n"
                                                 "F - %y = linear(%q, %w) : float32[4,4]\n"
                                                 "F - %t = add(%y, %v) : float32[4,4]\n"
                                                 "F - %z = linear(%q, %t) : float32[4,4]\n"
                                                 "fetch z = %z\n");

    (void)state;
    assert_int_equal(count_ops(graph, "linear"), 2);
    ct_arena_finish(&arena);
}

/* The norm of a sum that something else needs first stays where it is. */
static void sums_that_are_used_before_the_norm_are_left(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph =
        joined(&arena, HEAD "F - %s = add(%x, %x) : float32[2,4]\n"
                            "F - %g = silu(%s) : float32[2,4]\n"
                            "F - %y, %r = rms_norm(%s, %n) {eps=1e-05} : float32[2,4], float32[2]\n"
                            "F - %m = mul(%y, %g) : float32[2,4]\n"
                            "fetch m = %m\n");

    (void)state;
    assert_int_equal(count_ops(graph, "add_rms_norm"), 0);
    assert_int_equal(count_ops(graph, "swiglu"), 1);
    assert_string_equal(ct_graph_fetched(graph, "m")->name, "m");
    ct_arena_finish(&arena);
}

/* ---- numbers ---- */

static void start(struct machine *m, struct ct_arena *arena, struct tiny tiny)
{
    struct ct_graph *graph = tiny_llama(arena, tiny);

    assert_ok(ct_differentiate(graph));
    fetch_gradients(graph);
    machine_start(m, graph, NULL, 2, IN_TURN);
    feed_samples(m);
    assert_ok(ct_executor_step(m->executor));
}

static void assert_same(struct machine *a, struct machine *b, const char *name)
{
    int64_t count, other;
    const double *x = read_fetch(a, name, &count), *y = read_fetch(b, name, &other);

    assert_int_equal(count, other);
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(x[i] - y[i]) <= 1e-12 * (1 + fabs(y[i]))))
            fail_msg("%s, element %lld: %.17g and %.17g", name, (long long)i, x[i], y[i]);
}

static void losses_and_gradients_are_those_of_the_plain_graph(void **state)
{
    struct tiny tiny = {.dtype = CT_F64, .heads = 4, .kv_heads = 2, .documents = true};
    struct ct_arena arena = {0};
    struct machine plain, joined;

    (void)state;
    start(&joined, &arena, tiny);
    tiny.plain = true;
    start(&plain, &arena, tiny);
    assert_int_equal(count_ops(plain.graph, "swiglu") + count_ops(plain.graph, "add_rms_norm"), 0);
    assert_int_equal(plain.graph->fetch_count, joined.graph->fetch_count);
    for (size_t i = 0; i < plain.graph->fetch_count; i++)
        assert_same(&plain, &joined, plain.graph->fetches[i].name);
    machine_finish(&plain);
    machine_finish(&joined);
    ct_arena_finish(&arena);
}

static void many_linears_become_a_few(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = parse(&arena, HEAD);
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_F, "");

    (void)state;
    for (int i = 0; i < 70; i++) {
        struct ct_value *w =
            ct_graph_source(graph, CT_ROLE_PARAM, ct_arena_printf(&arena, "w%d", i), CT_F32, 2,
                            (const int64_t[]){4, 4});

        const char *name = ct_arena_printf(&arena, "y%d", i);

        ct_graph_fetch(graph, name, ct_linear(&b, name, ct_graph_find(graph, "x"), w));
    }
    assert_ok(b.status);
    join(graph);
    assert_ok(ct_graph_verify(graph, NULL));
    assert_int_equal(count_ops(graph, "linear"), 3);
    assert_int_equal(find_op(graph, "linear", 0)->outs, 32);
    assert_int_equal(find_op(graph, "linear", 2)->outs, 6);
    assert_string_equal(ct_graph_find(graph, "y69")->producer->type->name, "linear");
    ct_arena_finish(&arena);
}

/* ---- gradients that begin with the same work ---- */

#define MIXTURE                                                                                    \
    "graph \"mixture\"\n"                                                                          \
    "input %x : bfloat16[2,3,4]\ninput %dy : bfloat16[2,3,4]\n"                                    \
    "input %weights : float32[2,3,2]\ninput %ids : int32[2,3,2]\n"                                 \
    "param %gate : bfloat16[6,8,4]\nparam %up : bfloat16[6,8,4]\n"                                 \
    "param %down : bfloat16[6,4,8]\n"
#define OPERANDS "%x, %weights, %ids, %gate, %up, %down"
#define DX(dy, of)                                                                                 \
    "I - %dx, %dweights = experts_dx(" dy ", " of ") : bfloat16[2,3,4], float32[2,3,2]\n"
#define DW(dy, how)                                                                                \
    "W - %dgate, %dup, %ddown = experts_dw(" dy ", " OPERANDS ")" how                              \
    " : float32![6,8,4], float32![6,8,4], bfloat16[6,4,8]\nfetch dup = %dup\nfetch dx = %dx\n"

static struct ct_graph *with_joined_gradients(struct ct_arena *arena, const char *text)
{
    struct ct_graph *graph = parse(arena, text);
    const struct ct_transform *t;

    for (size_t i = 0; (t = ct_transform_at(i)) && strcmp(t->name, "join_gradients");)
        i++;
    assert_ok(ct_graph_verify(graph, NULL));
    assert_ok(t->apply(graph, NULL));
    assert_ok(ct_graph_verify(graph, NULL));
    return graph;
}

static void gradients_of_experts_become_one_op(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph =
        with_joined_gradients(&arena, MIXTURE DX("%dy", OPERANDS) DW("%dy", ""));
    const struct ct_op *op = find_op(graph, "experts_grad", 0);

    (void)state;
    assert_int_equal(count_ops(graph, "experts_dx") + count_ops(graph, "experts_dw"), 0);
    assert_ptr_equal(ct_graph_fetched(graph, "dx"), op->out[0]);
    assert_ptr_equal(ct_graph_fetched(graph, "dup"), op->out[3]);
    assert_string_equal(op->out[4]->name, "ddown");
    assert_int_equal(op->out[3]->dtype, CT_F32);
    assert_int_equal(op->out[4]->dtype, CT_BF16);
    ct_arena_finish(&arena);
}

/* Ops that gather or cast them may be there twice, but must do the same. */
static void gradients_of_copies_become_one_op(void **state)
{
#define CAST(name, dtype) "I - %" name " = cast(%other) {dtype=\"" dtype "\"} : " dtype "[6,8,4]\n"
#define OF(gate) "%x, %weights, %ids, %" gate ", %up, %down"
#define DW_OF(gate)                                                                                \
    "W - %dgate, %dup, %ddown = experts_dw(%dy, " OF(                                              \
        gate) ") : float32![6,8,4], float32![6,8,4],"                                              \
              " float32![6,4,8]\nfetch dup = %dup\nfetch dx = %dx\n"
    static const char start[] = MIXTURE "param %other : float32[6,8,4]\n" CAST("a", "bfloat16");
    struct ct_arena arena = {0};
    const char *text =
        ct_arena_printf(&arena, "%s%s", start, CAST("b", "bfloat16") DX("%dy", OF("a")) DW_OF("b"));
    struct ct_graph *graph = with_joined_gradients(&arena, text);

    (void)state;
    assert_int_equal(count_ops(graph, "experts_grad"), 1);
    assert_int_equal(count_ops(graph, "cast"), 1);
    text =
        ct_arena_printf(&arena, "%s%s", start,
                        "I - %b = silu(%gate) : bfloat16[6,8,4]\n" DX("%dy", OF("a")) DW_OF("b"));
    assert_int_equal(count_ops(with_joined_gradients(&arena, text), "experts_grad"), 0);
    ct_arena_finish(&arena);
}

static void gradients_of_other_operands_are_left(void **state)
{
    static const char *const texts[] = {
        MIXTURE DX("%x", OPERANDS) DW("%dy", ""),
        MIXTURE DX("%dy", "%dy, %weights, %ids, %gate, %up, %down") DW("%dy", ""),
        MIXTURE DX("%dy", OPERANDS) DW("%dy", " {limit=7}"),
    };
    struct ct_arena arena = {0};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(texts); i++)
        assert_int_equal(count_ops(with_joined_gradients(&arena, texts[i]), "experts_grad"), 0);
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_model_says_becomes_its_joined_form),
        cmocka_unit_test(logits_that_are_asked_for_are_made),
        cmocka_unit_test(logits_that_are_used_twice_stay),
        cmocka_unit_test(stages_are_not_joined),
        cmocka_unit_test(marks_keep_linears_apart),
        cmocka_unit_test(weights_are_brought_forward),
        cmocka_unit_test(weights_that_come_too_late_are_left),
        cmocka_unit_test(sums_that_are_used_before_the_norm_are_left),
        cmocka_unit_test(losses_and_gradients_are_those_of_the_plain_graph),
        cmocka_unit_test(many_linears_become_a_few),
        cmocka_unit_test(gradients_of_experts_become_one_op),
        cmocka_unit_test(gradients_of_copies_become_one_op),
        cmocka_unit_test(gradients_of_other_operands_are_left),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
