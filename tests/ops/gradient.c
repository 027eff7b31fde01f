/*
 * Gradients of every op type with a vjp against central differences, in float64 through the
 * reference kernels: for every set of outputs that a gradient arrives at, and every set of inputs
 * that want one.
 */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "plugin_ops.h"
#include "sample.h"

#define MAX_INPUTS 16

static bool has_sample(const char *type)
{
    for (const struct sample *s = samples; s->type; s++)
        if (!strcmp(s->type, type))
            return true;
    return false;
}

/* Types without a reference kernel are collectives: they have no meaning on one rank. */
static void test_every_type_has_a_sample(void **state)
{
    (void)state;
    assert_non_null(ct_op_at(0));
    for (size_t i = 0; ct_op_at(i); i++)
        if (ct_op_at(i)->reference && !has_sample(ct_op_at(i)->name))
            fail_msg("op type %s is not sampled", ct_op_at(i)->name);
}

/* Sum of <dout, out> over the outputs that have a dout. */
static double inner_product(struct machine *m, struct ct_value *const *dout)
{
    double sum = 0;

    assert_int_equal(machine_run(m, m->op), 0);
    for (int k = 0; k < m->op->outs; k++) {
        const struct ct_tensor *out = machine_tensor(m, m->op->out[k]);

        for (int64_t i = 0; dout[k] && i < ct_tensor_count(out); i++)
            sum += ct_tensor_load(out, i) * ct_tensor_load(machine_tensor(m, dout[k]), i);
    }
    return sum;
}

static double difference(struct machine *m, struct ct_value *const *dout, struct ct_tensor *x,
                         int64_t i, double step)
{
    double at = ct_tensor_load(x, i), above, below;

    ct_tensor_store(x, i, at + step);
    above = inner_product(m, dout);
    ct_tensor_store(x, i, at - step);
    below = inner_product(m, dout);
    ct_tensor_store(x, i, at);
    return (above - below) / (2 * step);
}

static void check_input(struct machine *m, const struct sample *s, struct ct_value *const *dout,
                        const struct ct_value *din, int input)
{
    struct ct_tensor *x = machine_tensor(m, m->op->in[input]);

    if (din) {
        assert_int_equal(din->ndim, x->ndim);
        assert_memory_equal(din->shape, x->shape, sizeof(*x->shape) * (size_t)x->ndim);
        assert_int_equal(din->dtype, x->dtype);
    }
    for (int64_t i = 0; i < ct_tensor_count(x); i++) {
        double want = difference(m, dout, x, i, s->step != 0 ? s->step : 1e-4);
        double got = din ? ct_tensor_load(machine_tensor(m, din), i) : 0;

        if (!(fabs(got - want) <= 1e-6 * (1 + fabs(want))))
            fail_msg("%s(%s), input %d, element %lld: gradient %.9g, by differences %.9g", s->type,
                     s->inputs, input, (long long)i, got, want);
    }
}

/* A gradient that makes the loss again makes the same. */
static void check_loss(struct machine *m)
{
    const struct ct_value *loss = ct_graph_fetched(m->graph, "loss");

    if (!loss)
        return;
    assert_int_equal(loss->dtype, m->op->out[0]->dtype);
    assert_true(fabs(ct_tensor_load(machine_tensor(m, loss), 0) -
                     ct_tensor_load(machine_tensor(m, m->op->out[0]), 0)) < 1e-12);
}

/* Emit the gradient for these sets and compare it; ops after m->op belong to it. */
static void check_sets(const struct sample *s, unsigned outputs, unsigned inputs)
{
    struct ct_value *dout[MAX_INPUTS] = {0}, *din[MAX_INPUTS] = {0};
    bool wanted[MAX_INPUTS] = {0};
    struct ct_builder b;
    struct machine m;

    assert_int_equal(machine_create(&m, s, CT_F64), 0);
    if (m.op->out[0]->ndim == 0)
        ct_graph_fetch(m.graph, "loss", m.op->out[0]);
    for (int i = 0; i < m.op->outs; i++)
        if (outputs >> i & 1) {
            dout[i] = ct_graph_source(m.graph, CT_ROLE_INPUT, "dout", m.op->out[i]->dtype,
                                      m.op->out[i]->ndim, m.op->out[i]->shape);
            machine_fill(&m, dout[i], "positive");
        }
    for (int i = 0; i < m.op->ins; i++)
        wanted[i] = inputs >> i & 1;
    b = ct_builder_at_end(m.graph, CT_PART_I, "");
    assert_int_equal(m.op->type->vjp(&(struct ct_vjp){&b, m.op, dout, din, wanted}), 0);
    assert_int_equal(b.status, 0);
    if (!inputs)
        assert_null(m.op->next);
    if (ct_graph_verify(m.graph, NULL) < 0)
        fail_msg("%s(%s): %s", s->type, s->inputs, ct_error_message());
    assert_int_equal(machine_run_from(&m, m.op), 0);
    check_loss(&m);
    for (int i = 0; i < m.op->ins; i++)
        if (wanted[i])
            check_input(&m, s, dout, din[i], i);
    machine_finish(&m);
}

static unsigned real_inputs(const struct sample *s)
{
    const char *p = s->inputs;
    int64_t shape[CT_MAX_DIMS];
    unsigned set = 0;
    char fill[32];

    for (int i = 0, rank; next_operand(&p, fill, &rank, shape); i++)
        set |= (unsigned)is_real(fill) << i;
    return set;
}

static void test_gradients(void **state)
{
    int checked = 0;

    (void)state;
    for (const struct sample *s = samples; s->type; s++) {
        unsigned all_outputs = s->gradients ? s->gradients : 1, all_inputs = real_inputs(s);

        if (!ct_op_find(s->type)->vjp || s->joint)
            continue;
        for (unsigned outputs = 1; outputs <= all_outputs; outputs++)
            for (unsigned inputs = 0; inputs <= all_inputs; inputs++)
                if (!(outputs & ~all_outputs) && !(inputs & ~all_inputs)) {
                    check_sets(s, outputs, inputs);
                    checked++;
                }
    }
    assert_true(checked > 100);
}

/* Weights that nobody trains, and outputs that no gradient arrives at, cost nothing. */
static void test_linear_emits_what_is_wanted(void **state)
{
    struct sample s = {"linear", NULL, "real[4,6] real[2,6] real[8,6] real[4,6]"};
    struct ct_value *din[4] = {0}, *dout[3] = {0};
    struct ct_builder b;
    struct machine m;

    (void)state;
    assert_int_equal(machine_create(&m, &s, CT_F64), 0);
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
    machine_finish(&m);
}

/* The joined gradient's loss replaces the forward's, unless an op of the forward takes it. */
static void test_loss_of_the_joined_gradient(void **state)
{
    struct sample s = {"linear_cross_entropy", NULL, "real[4,4] real[6,4] label[4]"};

    (void)state;
    for (int used = 0; used < 2; used++) {
        struct ct_value *din[3] = {0}, *dout;
        struct ct_builder b;
        struct machine m;

        assert_int_equal(machine_create(&m, &s, CT_F64), 0);
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
        machine_finish(&m);
    }
}

/* The loss, with logit i moved by step. */
static double loss_beside(struct machine *m, const struct ct_op *merge, int64_t i, double step)
{
    struct ct_tensor *logits = machine_tensor(m, m->op->in[0]);
    double at = ct_tensor_load(logits, i);

    ct_tensor_store(logits, i, at + step);
    assert_int_equal(machine_run(m, m->op), 0);
    assert_int_equal(machine_run(m, merge), 0);
    ct_tensor_store(logits, i, at);
    return ct_tensor_load(machine_tensor(m, merge->out[0]), 0);
}

/* The loss in shards: its two gradients together are that of the whole. */
static void test_loss_in_shards(void **state)
{
    struct sample s = {"cross_entropy_partial", "shards=2", "real[2,4,6] label[2,4]"};
    struct ct_value *merge_din[2] = {0}, *din[2] = {0}, *dout[2] = {0};
    struct ct_builder b;
    struct ct_op *merge;
    struct machine m;

    (void)state;
    assert_int_equal(machine_create(&m, &s, CT_F64), 0);
    b = ct_builder_at_end(m.graph, CT_PART_F, "");
    merge = ct_emit(&b, "cross_entropy_merge", "loss",
                    (struct ct_value *[]){m.op->out[0], m.op->in[1]}, 2, NULL);
    assert_non_null(merge);
    dout[0] = ct_graph_source(m.graph, CT_ROLE_INPUT, "dloss", CT_F64, 0, NULL);
    ct_tensor_store(machine_tensor(&m, dout[0]), 0, 1.5);
    b = ct_builder_at_end(m.graph, CT_PART_I, "");
    assert_int_equal(
        merge->type->vjp(&(struct ct_vjp){&b, merge, dout, merge_din, (const bool[]){true, false}}),
        0);
    assert_int_equal(
        m.op->type->vjp(&(struct ct_vjp){&b, m.op, merge_din, din, (const bool[]){true, false}}),
        0);
    assert_int_equal(ct_graph_verify(m.graph, NULL), 0);
    assert_int_equal(machine_run_from(&m, m.op), 0);
    for (int64_t i = 0; i < 2 * 4 * 6; i++) {
        double got = ct_tensor_load(machine_tensor(&m, din[0]), i);
        double want = (loss_beside(&m, merge, i, 1e-4) - loss_beside(&m, merge, i, -1e-4)) / 2e-4;

        assert_true(fabs(got - 1.5 * want) < 1e-7);
    }
    machine_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_has_a_sample),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_linear_emits_what_is_wanted),
        cmocka_unit_test(test_loss_of_the_joined_gradient),
        cmocka_unit_test(test_loss_in_shards),
    };
    if (REGISTER_OPS("cp", "float8", "tp") < 0)
        return 1;
    return cmocka_run_group_tests_name("op gradients", tests, NULL, NULL);
}
