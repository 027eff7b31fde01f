/*
 * Gradients of op types that depend on which of them are wanted, or on other ops. kernels.c checks
 * those of every sample.
 */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <ctitan/app/verify.h>
#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/app/check.h>
#include <ctitan/lib/ops.h>

#include "plugin_ops.h"

/* Weights that nobody trains, and outputs that no gradient arrives at, cost nothing. */
static void linear_emits_only_wanted_gradients(void **state)
{
    struct ct_sample s = {"linear", NULL, "real[4,6] real[2,6] real[8,6] real[4,6]"};
    struct ct_value *din[4] = {0}, *dout[3] = {0};
    struct ct_builder b;
    struct ct_trial m;

    (void)state;
    assert_int_equal(ct_trial_create(&m, &s, CT_F64), 0);
    b = ct_builder_at_end(m.graph, CT_PART_I, "");
    for (int i = 1; i < 3; i++)
        dout[i] = ct_graph_source(m.graph, CT_ROLE_INPUT, "dout", CT_F64, 2, m.op->out[i]->shape);
    assert_int_equal(m.op->type->vjp(&(struct ct_vjp){&b, m.op, dout, din,
                                                      (const bool[]){true, true, false, true}}),
                     0);
    assert_string_equal(din[0]->producer->type->name, "linear_dx");
    assert_int_equal(din[0]->producer->ins, 4);
    assert_string_equal(din[0]->name, "d.in0");
    assert_null(din[1]);
    assert_null(din[2]);
    assert_string_equal(din[3]->producer->type->name, "linear_dw");
    assert_int_equal(din[3]->producer->ins, 2);
    assert_string_equal(din[3]->name, "d.in3");
    assert_ptr_equal(m.graph->last, din[3]->producer);
    ct_trial_finish(&m);
}

/* The joined gradient's loss replaces the forward's, unless an op of the forward takes it. */
static void the_joined_gradient_gives_the_loss(void **state)
{
    struct ct_sample s = {"linear_cross_entropy", NULL, "real[4,4] real[6,4] label[4]"};

    (void)state;
    for (int used = 0; used < 2; used++) {
        struct ct_value *din[3] = {0}, *dout;
        struct ct_builder b;
        struct ct_trial m;

        assert_int_equal(ct_trial_create(&m, &s, CT_F64), 0);
        ct_graph_fetch(m.graph, "loss", m.op->out[0]);
        dout = ct_graph_source(m.graph, CT_ROLE_SCALAR, "dout", CT_F64, 0, NULL);
        b = ct_builder_at_end(m.graph, CT_PART_F, "");
        if (used)
            ct_graph_fetch(m.graph, "inverse",
                           ct_emit1(&b, "reciprocal", NULL, m.op->out, 1, NULL));
        ct_builder_set_part(&b, CT_PART_I);
        assert_int_equal(
            m.op->type->vjp(&(struct ct_vjp){&b, m.op, &dout, din, (const bool[]){1, 1, 0}}), 0);
        assert_ptr_equal(ct_graph_fetched(m.graph, "loss"),
                         used ? m.op->out[0] : din[0]->producer->out[2]);
        ct_trial_finish(&m);
    }
}

/* The loss, with logit i moved by step. */
static double loss_beside(struct ct_trial *m, const struct ct_op *merge, int64_t i, double step)
{
    struct ct_tensor *logits = ct_trial_tensor(m, m->op->in[0]);
    double at = ct_tensor_load(logits, i);

    ct_tensor_store(logits, i, at + step);
    assert_int_equal(ct_trial_run(m, m->op), 0);
    assert_int_equal(ct_trial_run(m, merge), 0);
    ct_tensor_store(logits, i, at);
    return ct_tensor_load(ct_trial_tensor(m, merge->out[0]), 0);
}

/* The loss in shards: its two gradients together are that of the whole. */
static void the_loss_in_shards_has_the_same_gradient(void **state)
{
    struct ct_sample s = {"cross_entropy_partial", "shards=2", "real[2,4,6] label[2,4]"};
    struct ct_value *merge_din[2] = {0}, *din[2] = {0}, *dout[2] = {0};
    struct ct_builder b;
    struct ct_op *merge;
    struct ct_trial m;

    (void)state;
    assert_int_equal(ct_trial_create(&m, &s, CT_F64), 0);
    b = ct_builder_at_end(m.graph, CT_PART_F, "");
    merge = ct_emit(&b, "cross_entropy_merge", "loss",
                    (struct ct_value *[]){m.op->out[0], m.op->in[1]}, 2, NULL);
    assert_non_null(merge);
    dout[0] = ct_graph_source(m.graph, CT_ROLE_INPUT, "dloss", CT_F64, 0, NULL);
    ct_tensor_store(ct_trial_tensor(&m, dout[0]), 0, 1.5);
    b = ct_builder_at_end(m.graph, CT_PART_I, "");
    assert_int_equal(
        merge->type->vjp(&(struct ct_vjp){&b, merge, dout, merge_din, (const bool[]){true, false}}),
        0);
    assert_int_equal(
        m.op->type->vjp(&(struct ct_vjp){&b, m.op, merge_din, din, (const bool[]){true, false}}),
        0);
    assert_int_equal(ct_graph_verify(m.graph, NULL), 0);
    assert_int_equal(ct_trial_run_from(&m, m.op), 0);
    for (int64_t i = 0; i < 2 * 4 * 6; i++) {
        double got = ct_tensor_load(ct_trial_tensor(&m, din[0]), i);
        double want = (loss_beside(&m, merge, i, 1e-4) - loss_beside(&m, merge, i, -1e-4)) / 2e-4;

        assert_true(fabs(got - 1.5 * want) < 1e-7);
    }
    ct_trial_finish(&m);
}

/* The gradient of the bias is the excess of choices, whether or not the logits want theirs. */
static void the_gradient_of_a_bias_is_the_excess(void **state)
{
    struct ct_sample s = {"top_k", "k=2 scores=sigmoid", "real[3,6] given[6]"};

    (void)state;
    for (int wanted = 0; wanted < 2; wanted++) {
        struct ct_value *din[2] = {0}, *dout[2] = {0};
        struct ct_builder b;
        struct ct_trial m;
        double sum = 0;

        assert_int_equal(ct_trial_create(&m, &s, CT_F64), 0);
        dout[0] = ct_graph_source(m.graph, CT_ROLE_INPUT, "dout", CT_F64, 2, m.op->out[0]->shape);
        b = ct_builder_at_end(m.graph, CT_PART_I, "");
        assert_int_equal(
            m.op->type->vjp(&(struct ct_vjp){&b, m.op, dout, din, (const bool[]){wanted, true}}),
            0);
        assert_string_equal(din[1]->name, "d.in1");
        assert_int_equal(din[0] != NULL, wanted);
        assert_int_equal(dout[0]->use_count, 1);
        assert_int_equal(ct_trial_run_from(&m, m.op), 0);
        for (int e = 0; e < 6; e++) {
            double choices = 0, got = ct_tensor_load(ct_trial_tensor(&m, din[1]), e);

            for (int i = 0; i < 6; i++)
                choices += ct_tensor_load(ct_trial_tensor(&m, m.op->out[1]), i) == e;
            assert_true(got == 6 * choices - 6);
            sum += fabs(got);
        }
        assert_true(sum > 0);
        ct_trial_finish(&m);
    }
}

/* ---- a model with a bias for the choice of experts ---- */

static int build(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request)
{
    static const struct ct_top_k how = {.k = 2, .normalised = true, .scores = CT_SCORES_SIGMOID};
    int64_t shape[] = {request->batch, request->seq_len}, sizes[] = {9, 6}, experts = 6, k = 2;
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_F, "");
    struct ct_value *x, *ids;

    (void)model;
    x = ct_embedding(&b, NULL, ct_input(&b, "tokens", shape),
                     ct_parameter(&b, "table", 2, sizes, CT_INIT_STD(1)));
    x = ct_top_k(&b, "choice", x, ct_parameter(&b, "bias", 1, &experts, CT_INIT_STD(1)), &how,
                 &ids);
    x = ct_linear_cross_entropy(
        &b, "loss", x, ct_parameter(&b, "head", 2, (int64_t[]){sizes[0], k}, CT_INIT_STD(1)),
        ct_input(&b, "labels", shape));
    if (x)
        ct_graph_fetch(graph, "loss", x);
    return b.status;
}

static int64_t vocabulary(const struct ct_model *model)
{
    (void)model;
    return 9;
}

/* The excess of choices is no derivative of the loss; the other gradients are. */
static void a_model_may_have_a_bias_for_the_choice(void **state)
{
    static const struct ct_model_ops ops = {
        .size = sizeof(struct ct_model_ops), .build = build, .vocabulary = vocabulary};

    (void)state;
    if (ct_check_model(&ops, NULL) != 2)
        fail_msg("%s", ct_error_message());
}

/* ---- a model with a sink in attention ---- */

/* Grouped heads and a window; perhaps equal tokens are a document, or an op beside the sink uses
   the o or lse of attention itself. */
static enum { NOTHING, DOCUMENTS, READER_OF_O, READER_OF_LSE } beside;

static int build_sink(struct ct_model *model, struct ct_graph *graph,
                      const struct ct_model_request *request)
{
    static const struct ct_attention how = {.causal = true, .window = 5, .scale = 30};
    int64_t b = request->batch, t = request->seq_len, shape[] = {b, t}, h = 4, n = 3;
    struct ct_builder f = ct_builder_at_end(graph, CT_PART_F, "");
    struct ct_value *sink = ct_parameter(&f, "sinks", 1, &h, CT_INIT_STD(1)), *x, *y[3], *w[3];
    struct ct_value *tokens = ct_input(&f, "tokens", shape);
    struct ct_value *documents = request->documents    ? ct_input(&f, "documents", shape)
                                 : beside == DOCUMENTS ? tokens
                                                       : NULL;

    (void)model;
    x = ct_embedding(&f, NULL, tokens,
                     ct_parameter(&f, "table", 2, (int64_t[]){9, 6}, CT_INIT_STD(1)));
    for (int i = 0; i < 3; i++)
        w[i] = ct_parameter(&f, (const char *[]){"q", "k", "v"}[i], 2,
                            (int64_t[]){(i ? 2 : h) * n, 6}, CT_INIT_STD(1));
    ct_linears(&f, (const char *[]){"q", "k", "v"}, x, w, 3, y);
    for (int i = 0; i < 3; i++)
        y[i] = ct_view(&f, NULL, y[i], 4, (int64_t[]){b, t, i ? 2 : h, n});
    x = ct_attention_with_sink(&f, "o", y[0], y[1], y[2], documents, sink, &how);
    if (x && beside == READER_OF_O)
        x = ct_add(&f, "sum", x, x->producer->in[0]);
    if (x && beside == READER_OF_LSE)
        x = ct_emit1(&f, "attention_sink", "again",
                     (struct ct_value *[]){x, x->producer->in[1], sink}, 3, NULL);
    x = ct_view(&f, NULL, x, 3, (int64_t[]){b, t, h * n});
    x = ct_linear_cross_entropy(&f, "loss", x,
                                ct_parameter(&f, "head", 2, (int64_t[]){9, h * n}, CT_INIT_STD(1)),
                                ct_input(&f, "labels", shape));
    if (x)
        ct_graph_fetch(graph, "loss", x);
    return f.status;
}

/* Attention's gradient knows of the sink, the gradient of the sink does not flow through lse. */
static void a_sink_has_its_gradient(void **state)
{
    static const struct ct_model_ops ops = {
        .size = sizeof(struct ct_model_ops), .build = build_sink, .vocabulary = vocabulary};

    (void)state;
    for (beside = NOTHING; beside <= DOCUMENTS; beside++)
        if (ct_check_model(&ops, NULL) != 6)
            fail_msg("%s", ct_error_message());
    beside = READER_OF_O;
    assert_int_equal(ct_check_model(&ops, NULL), CT_EINVAL);
    assert_string_equal(ct_error_message(),
                        "the gradient of %o.plain: %o.plain is used by add beside the "
                        "attention_sink of %o: the gradient of attention with a sink needs all "
                        "else to use what the sink gives");
    beside = READER_OF_LSE;
    assert_int_equal(ct_check_model(&ops, NULL), CT_EINVAL);
    assert_string_equal(ct_error_message(), "the gradient of %again: %o.plain.lse is not of the "
                                            "attention that computes %o");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_emits_only_wanted_gradients),
        cmocka_unit_test(the_joined_gradient_gives_the_loss),
        cmocka_unit_test(the_loss_in_shards_has_the_same_gradient),
        cmocka_unit_test(the_gradient_of_a_bias_is_the_excess),
        cmocka_unit_test(a_model_may_have_a_bias_for_the_choice),
        cmocka_unit_test(a_sink_has_its_gradient),
    };
    if (REGISTER_OPS("cp", "float8", "tp") < 0)
        return 1;
    return cmocka_run_group_tests_name("op gradients", tests, NULL, NULL);
}
