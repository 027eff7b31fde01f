/*
 * Differentiation: graphs before and after, for people to read (golden/), and gradients of a whole
 * small model against central differences, all in float64 on the reference device.
 */
#include <math.h>
#include <stdio.h>

#include <ctitan/app/verify.h>
#include <ctitan/rng.h>
#include <ctitan/text.h>

#include "support.h"

/* ---- texts ---- */

static const struct {
    const char *golden, *before;
} texts[] = {
    {"linear_and_loss.graph", "graph \"linear and loss\"\n"
                              "param %embed : float32[7,4]\n"
                              "param %w : float32[4,4]\n"
                              "param %head : float32[7,4]\n"
                              "input %tokens : int32[2,3]\n"
                              "input %labels : int32[2,3]\n"
                              "F in %x = embedding(%tokens, %embed) : float32[2,3,4]\n"
                              "F mid %y = linear(%x, %w) : float32[2,3,4]\n"
                              "F out %loss = linear_cross_entropy(%y, %head, %labels) : float32[]\n"
                              "fetch loss = %loss\n"},
    {"tied_weights.graph", "graph \"one weight used twice\"\n"
                           "param %table : float32[7,4]\n"
                           "input %tokens : int32[2,3]\n"
                           "input %labels : int32[2,3]\n"
                           "F in %x = embedding(%tokens, %table) : float32[2,3,4]\n"
                           "F out %loss = linear_cross_entropy(%x, %table, %labels) : float32[]\n"
                           "fetch loss = %loss\n"},
    {"residual_block.graph",
     "graph \"a residual block\"\n"
     "param %norm1 : float32[4]\n"
     "param %gate : float32[6,4]\n"
     "param %up : float32[6,4]\n"
     "param %down : float32[4,6]\n"
     "param %norm2 : float32[4]\n"
     "input %x : float32[2,3,4]\n"
     "input %labels : int32[2,3]\n"
     "F block %n1, %n1.rstd = rms_norm(%x, %norm1) : float32[2,3,4], float32[2,3]\n"
     "F block %g, %u = linear(%n1, %gate, %up) : float32[2,3,6], float32[2,3,6]\n"
     "F block %s = swiglu(%g, %u) : float32[2,3,6]\n"
     "F block %d = linear(%s, %down) : float32[2,3,4]\n"
     "F out %n2, %sum, %n2.rstd = add_rms_norm(%n1, %d, %norm2) : float32[2,3,4], float32[2,3,4], "
     "float32[2,3]\n"
     "F out %logits = add(%n2, %sum) : float32[2,3,4]\n"
     "F out %loss, %lse = cross_entropy(%logits, %labels) : float32[], float32[2,3]\n"
     "fetch loss = %loss\n"},
    {"mixed_precision.graph",
     "graph \"weights cast once per step; their gradients come out in float32\"\n"
     "param %table : float32[7,4]\n"
     "input %tokens : int32[2,3]\n"
     "input %labels : int32[2,3]\n"
     "pre - %table.bfloat16 = cast(%table) {dtype=\"bfloat16\"} : bfloat16[7,4]\n"
     "F in %x = embedding(%tokens, %table.bfloat16) : bfloat16[2,3,4]\n"
     "F out %loss = linear_cross_entropy(%x, %table.bfloat16, %labels) : float32[]\n"
     "fetch loss = %loss\n"},
    {"wide_precision.graph",
     "graph \"weights kept in bfloat16: gradients are summed in float32, and cast once\"\n"
     "param %table : bfloat16[7,4]\n"
     "input %tokens : int32[2,3]\n"
     "input %labels : int32[2,3]\n"
     "pre - %table.float32 = cast(%table) {dtype=\"float32\"} : float32[7,4]\n"
     "F in %x = embedding(%tokens, %table.float32) : float32[2,3,4]\n"
     "F out %loss = linear_cross_entropy(%x, %table.float32, %labels) : float32[]\n"
     "fetch loss = %loss\n"},
    {"weight_in_forward.graph",
     "graph \"a weight that is made ready in every microbatch: its gradient's way back is W\"\n"
     "param %w : float32[4,4]\n"
     "param %v : float32[7,4]\n"
     "input %x : float32[2,3,4]\n"
     "input %labels : int32[2,3]\n"
     "F a %w16 = cast(%w) {dtype=\"bfloat16\"} : bfloat16[4,4]\n"
     "F a %x16 = cast(%x) {dtype=\"bfloat16\"} : bfloat16[2,3,4]\n"
     "F a %y = linear(%x16, %w16) : bfloat16[2,3,4]\n"
     "F a %z = linear(%y, %w16) : bfloat16[2,3,4]\n"
     "F b %v16 = cast(%v) {dtype=\"bfloat16\"} : bfloat16[7,4]\n"
     "F b %loss = linear_cross_entropy(%z, %v16, %labels) : float32[]\n"
     "fetch loss = %loss\n"},
    {"added_parameter.graph",
     "graph \"a gradient that is a weight's and an activation's\"\n"
     "param %w : float32[7,7]\n"
     "param %bias : float32[2,3,7]\n"
     "input %x : float32[2,3,7]\n"
     "input %labels : int32[2,3]\n"
     "F - %y = linear(%x, %w) : float32[2,3,7]\n"
     "F - %z = add(%y, %bias) : float32[2,3,7]\n"
     "F - %loss, %lse = cross_entropy(%z, %labels) : float32[], float32[2,3]\n"
     "fetch loss = %loss\n"},
    {"slices.graph", "graph \"slices of a weight, and of what one of them makes\"\n"
                     "param %w : float32[11,4]\n"
                     "input %x : float32[2,3,4]\n"
                     "input %labels : int32[2,3]\n"
                     "F a %up = narrow(%w) {size=4} : float32[4,4]\n"
                     "F a %head = narrow(%w) {from=4, size=7} : float32[7,4]\n"
                     "F a %y = linear(%x, %up) : float32[2,3,4]\n"
                     "F b %left = narrow(%y) {dim=2, size=2} : float32[2,3,2]\n"
                     "F b %z = concat(%left, %left) {dim=2} : float32[2,3,4]\n"
                     "F b %loss = linear_cross_entropy(%z, %head, %labels) : float32[]\n"
                     "fetch loss = %loss\n"},
};

static void graphs_before_and_after(void **state)
{
    (void)state;
    for (size_t i = 0; i < CT_COUNT(texts); i++) {
        struct ct_arena arena = {0};
        struct ct_graph *graph = parse(&arena, texts[i].before);
        const char *before = ct_graph_text(graph, &arena);

        assert_ok(ct_graph_verify(graph, stderr));
        assert_ok(ct_differentiate(graph));
        assert_ok(ct_graph_verify(graph, stderr));
        assert_golden(texts[i].golden, ct_arena_printf(&arena, "# before\n%s\n# after\n%s", before,
                                                       ct_graph_text(graph, &arena)));
        ct_arena_finish(&arena);
    }
}

static int refuse(struct ct_vjp *v)
{
    (void)v;
    return ct_fail(CT_ECONFIG, "the recipe does not want it");
}

static void the_code_of_a_failed_gradient_is_kept(void **state)
{
    static struct ct_op_type type;
    struct ct_arena arena = {0};
    struct ct_graph *graph =
        parse(&arena, "param %w : float32[7,4]\n"
                      "input %x : float32[2,3,4]\n"
                      "input %labels : int32[2,3]\n"
                      "F - %loss = linear_cross_entropy(%x, %w, %labels) : float32[]\n"
                      "fetch loss = %loss\n");

    (void)state;
    type = *graph->last->type;
    type.vjp = refuse;
    graph->last->type = &type;
    assert_int_equal(ct_differentiate(graph), CT_ECONFIG);
    assert_message("the gradient of %loss: the recipe does not want it");
    ct_arena_finish(&arena);
}

static void what_cannot_be_differentiated(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = parse(&arena, "param %p : float32[3]\n"
                                           "F - %r = reciprocal(%p) : float32[3]\n"
                                           "F - %s = squared_norm(%r) : float64[]\n");

    (void)state;
    assert_int_equal(ct_differentiate(graph), CT_EINVAL);
    assert_message("the graph fetches no loss");
    ct_graph_fetch(graph, "loss", ct_graph_find(graph, "s"));
    assert_int_equal(ct_differentiate(graph), CT_EINVAL);
    assert_message("%s: op type squared_norm has no gradient");
    graph = parse(&arena, "param %w : float32[4,4]\n"
                          "input %x : float32[3,4]\n"
                          "input %labels : int32[3]\n"
                          "input %label : int32[1]\n"
                          "F - %y = linear(%x, %w) : float32[3,4]\n"
                          "F - %loss, %lse = cross_entropy(%y, %labels) : float32[], float32[3]\n"
                          "F - %z = view(%lse) {shape=\"1,3\"} : float32[1,3]\n"
                          "F - %more, %l = cross_entropy(%z, %label) : float32[], float32[1]\n"
                          "F - %sum = add(%loss, %more) : float32[]\n"
                          "fetch loss = %sum\n");
    assert_int_equal(ct_differentiate(graph), CT_EINVAL);
    assert_message("%lse: op type cross_entropy has no gradient of output 1");
    ct_arena_finish(&arena);
}

/* ---- I and W ---- */

static bool makes_only_weights_gradients(const struct ct_graph *graph, const struct ct_op *op)
{
    static const char *const types[] = {"linear_dw", "embedding_grad"};

    for (size_t i = 0; i < CT_COUNT(types); i++)
        if (!strcmp(op->type->name, types[i]))
            return true;
    return op->out[0] == ct_graph_find(graph, "embedding.table")->grad;
}

/* W is what only a weight's gradient needs: here the dw products, the embedding's, and the sum of
   the two gradients of a tied table. Ops that make both kinds at once are I. */
static void weight_ops_are_split_off(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = tiny_llama(&arena, (struct tiny){.tied = true});
    size_t weights = 0;

    (void)state;
    assert_ok(ct_differentiate(graph));
    ct_for_each_op (op, graph) {
        if (op->section->part != CT_PART_I && op->section->part != CT_PART_W)
            continue;
        weights += op->section->part == CT_PART_W;
        if ((op->section->part == CT_PART_W) != makes_only_weights_gradients(graph, op))
            fail_msg("%%%s (%s) is in part %s", op->out[0]->name, op->type->name,
                     ct_part_name(op->section->part));
    }
    /* four products in each of two layers, the embedding's gradient, the sum of the tied table's */
    assert_int_equal(weights, 2 * 4 + 1 + 1);
    ct_arena_finish(&arena);
}

/* The sum of an activation's gradients stays in I after a weight's sum went to W. */
static void sums_of_activations_stay_in_i(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph =
        parse(&arena, "input %x : float32[1,2,4]\ninput %labels : int32[1,2]\n"
                      "param %p : float32[1,2,4]\nparam %w : float32[1,2,4]\n"
                      "F - %a = add(%x, %p) : float32[1,2,4]\n"
                      "F - %b = swiglu(%w, %a) : float32[1,2,4]\n"
                      "F - %c = swiglu(%w, %a) : float32[1,2,4]\n"
                      "F - %d = add(%b, %c) : float32[1,2,4]\n"
                      "F - %loss, %lse = cross_entropy(%d, %labels) : float32[], float32[1,2]\n"
                      "fetch loss = %loss\n");
    size_t sums = 0;

    (void)state;
    assert_ok(ct_differentiate(graph));
    assert_ok(ct_graph_verify(graph, stderr));
    ct_for_each_op (op, graph)
        if (op->why && !strcmp(op->why, "sums the gradients of several uses")) {
            bool weight = op == ct_graph_find(graph, "w")->grad->producer;

            assert_int_equal(op->section->part, weight ? CT_PART_W : CT_PART_I);
            sums++;
        }
    assert_int_equal(sums, 2);
    ct_arena_finish(&arena);
}

/* A gradient is computed in the group of the op that it belongs to. Groups add theirs after the
   microbatches, in any number. */
static void groups_keep_their_gradients(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph =
        parse(&arena, "input %x : float32[1,2,4]\ninput %labels : int32[1,2]\n"
                      "param %w : float32[4,4]\n"
                      "F a %a = linear(%x, %w) : float32[1,2,4]\n"
                      "F a %b = linear(%a, %w) : float32[1,2,4]\n"
                      "F b %c = linear(%b, %w) : float32[1,2,4]\n"
                      "F b %loss, %lse = cross_entropy(%c, %labels) : float32[], float32[1,2]\n"
                      "fetch loss = %loss\n");
    const struct ct_op *last;

    (void)state;
    ct_for_each_op (op, graph)
        op->section = ct_graph_section(graph, op->section->part, *op->region == 'b');
    assert_ok(ct_differentiate(graph));
    assert_ok(ct_graph_verify(graph, stderr));
    ct_for_each_op (op, graph)
        if (ct_part_is_microbatch(op->section->part))
            assert_int_equal(op->section->group, *op->region == 'b');
    last = ct_graph_find(graph, "w")->grad->producer;
    assert_int_equal(last->section->part, CT_PART_POST);
    assert_int_equal(last->in[0]->producer->section->part, CT_PART_POST);
    ct_arena_finish(&arena);
}

static void every_parameter_gets_a_gradient_of_its_shape(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = tiny_llama(&arena, (struct tiny){.documents = true});
    size_t count = 0;

    (void)state;
    assert_ok(ct_differentiate(graph));
    for (size_t i = 0; i < graph->value_count; i++) {
        const struct ct_value *v = graph->values[i];

        if (v->role != CT_ROLE_PARAM)
            continue;
        count++;
        assert_non_null(v->grad);
        assert_int_equal(v->grad->ndim, v->ndim);
        assert_memory_equal(v->grad->shape, v->shape, sizeof(*v->shape) * (size_t)v->ndim);
    }
    assert_int_equal(count, 1 + 2 * 9 + 2);
    ct_arena_finish(&arena);
}

/* ---- numbers ---- */

#define STEP 1e-5

/* The loss of the forward alone, with one element of a parameter moved. */
static double loss_with(struct machine *m, const struct ct_value *param, double *elements,
                        int64_t count, int64_t at, double delta)
{
    double old = elements[at], loss;

    elements[at] += delta;
    assert_ok(
        ct_executor_write(m->executor, param, -1, elements, sizeof(*elements) * (size_t)count));
    assert_ok(ct_executor_step(m->executor));
    loss = *read_fetch(m, "loss", NULL);
    elements[at] = old;
    assert_ok(
        ct_executor_write(m->executor, param, -1, elements, sizeof(*elements) * (size_t)count));
    return loss;
}

static void check_parameter(struct machine *forward, struct machine *step,
                            const struct ct_value *param, double valid_tokens)
{
    enum { SAMPLES = 5 };
    const struct ct_value *mine = ct_graph_find(forward->graph, param->name);
    int64_t count;
    double *gradient = read_value(step, param->grad, &count);
    double *elements = read_value(forward, mine, NULL);

    for (int k = 0; k < SAMPLES; k++) {
        int64_t at = ct_philox(1, ct_rng_stream(param->name), (uint64_t)k).v[0] % count;
        double more = loss_with(forward, mine, elements, count, at, STEP);
        double less = loss_with(forward, mine, elements, count, at, -STEP);
        double expected = (more - less) / (2 * STEP) / valid_tokens;

        if (fabs(gradient[at] - expected) > 1e-8 + 1e-6 * fabs(expected))
            fail_msg("d %s [%lld] is %.12g, central differences say %.12g", param->name,
                     (long long)at, gradient[at], expected);
    }
}

static double count_valid(const struct machine *m)
{
    double valid = 0;
    struct ct_tensor t =
        ct_executor_tensor(m->executor, ct_graph_find(m->graph, "valid_tokens"), -1);

    valid = ct_tensor_load(&t, 0);
    assert_true(valid > 0);
    return valid;
}

static void check_model(struct tiny tiny, int microbatches)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph, *forward_graph;
    struct machine forward, step;

    tiny.dtype = CT_F64;
    forward_graph = tiny_llama(&arena, tiny);
    graph = tiny_llama(&arena, tiny);
    assert_ok(ct_differentiate(graph));
    fetch_gradients(graph);
    machine_start(&forward, forward_graph, NULL, microbatches, FORWARD);
    machine_start(&step, graph, NULL, microbatches, IN_TURN);
    feed_samples(&forward);
    feed_samples(&step);
    assert_ok(ct_executor_step(forward.executor));
    assert_ok(ct_executor_step(step.executor));
    assert_near(*read_fetch(&step, "loss", NULL), *read_fetch(&forward, "loss", NULL), 1e-12);
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM)
            check_parameter(&forward, &step, graph->values[i], count_valid(&step));
    machine_finish(&forward);
    machine_finish(&step);
    ct_arena_finish(&arena);
}

static void gradients_of_a_model(void **state)
{
    (void)state;
    check_model((struct tiny){.layers = 1}, 1);
    check_model((struct tiny){.tied = true, .heads = 4, .kv_heads = 2, .documents = true}, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_before_and_after),
        cmocka_unit_test(the_code_of_a_failed_gradient_is_kept),
        cmocka_unit_test(what_cannot_be_differentiated),
        cmocka_unit_test(weight_ops_are_split_off),
        cmocka_unit_test(sums_of_activations_stay_in_i),
        cmocka_unit_test(groups_keep_their_gradients),
        cmocka_unit_test(every_parameter_gets_a_gradient_of_its_shape),
        cmocka_unit_test(gradients_of_a_model),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
