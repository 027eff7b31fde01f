/*
 * Promises of every op type, on every sample: lib/app/check.h.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <ctitan/error.h>
#include <ctitan/lib/app/check.h>
#include <ctitan/lib/ops.h>
#include <ctitan/pointwise.h>

#include "plugin_ops.h"

static int run(const struct ct_op_check *check, const struct ct_sample *s)
{
    int checked = 0;

    for (; s->type; s++) {
        int rc = check->check(s);

        if (rc < 0)
            fail_msg("%s: %s", check->name, ct_error_message());
        checked += rc;
    }
    return checked;
}

#define ROWS(NAME, SIGNATURE, SAMPLES, TEXT)                                                       \
    {                                                                                              \
        .size = sizeof(struct ct_op_type), .name = (NAME), .summary = "an op of this test",        \
        .signature = (SIGNATURE), .samples = (SAMPLES), CT_FORMULA(TEXT)                           \
    }

/* Formulas with every function and every way of reducing. Their gradients are derived. */
static struct ct_op_type by_formula[] = {
    CT_ACTIVATION("mish", "x tanh(log(1 + e^x))", "y = x * tanh(log(1 + exp(x)))"),
    CT_ACTIVATION("elu", "x, or e^x - 1 below 0", "y = x > 0 ? x : exp(x) - 1"),
    CT_ACTIVATION("snake", "x + sin(x)^2", "s = sin(x); y = x + s * s / 3 - cos(x)"),
    CT_ACTIVATION("root", "root of 1 + x^2", "y = sqrt(1 + x * x) + pow(abs(x) + 1, x / 2)"),
    CT_ACTIVATION("knee", "the lesser of two lines", "y = min(x, x / 3 + 0.1) - erf(-x)"),
    ROWS("prelu", "x[.K] T, w[K] T -> y[.K] T", "real[2,4,6] real[6]", "y = x > 0 ? x : w * x"),
    ROWS("blend", "x[.K] T, g[.] W, w[K] T -> y[.K] T", "real[2,4,6] statistic[2,4] real[6]",
         "s = sigmoid(g * x + w); y = s * x + (1 - s) * w"),
    ROWS("unit_rows", "x[.K] T -> y[.K] T", "real[2,4,6]", "y = x / sqrt(row_sum(x * x))"),
    ROWS("log_softmax", "x[.K] T -> y[.K] T", "real[2,4,6]",
         "c = x - row_max(x); y = c - log(row_sum(exp(c)))"),
    ROWS("mean_square", "x[.K] T -> y[.] T", "real[2,4,6]", "y = row_mean(x * x)"),
    ROWS("below_largest", "x[.K] T, b[K] T -> y[.K] T", "real[2,4,6] real[6]",
         "y = row_max(x + b) * x - columns() * b"),
    ROWS("spread_mean", "x[.K] T, w[K] T -> y[.K] T", "real[2,4,6] real[6]",
         "y = row_mean(x) * w + row_sum(w * x) * row_mean(x * x)"),
};

static void gradients_follow_from_formulas(void **state)
{
    struct ct_arena arena = {0};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(by_formula); i++) {
        const struct ct_op_type *gradient;
        struct ct_sample *of_gradient, *own;
        int tried = 0, before = 0;

        by_formula[i].samples = by_formula[i].samples ? by_formula[i].samples : "real[2,4,6]";
        gradient = ct_pointwise_gradient(&by_formula[i]);
        if (!gradient || ct_samples_of(&by_formula[i], &arena, &own) < 0 ||
            ct_samples_of(gradient, &arena, &of_gradient) < 0)
            fail_msg("%s: %s", by_formula[i].name, ct_error_message());
        for (const struct ct_op_check *check = ct_op_checks; check->name; check++) {
            tried += run(check, own);
            run(check, of_gradient);
            if (strstr(check->name, "gradients") && tried == before)
                fail_msg("%s: no gradient was compared", by_formula[i].name);
            before = tried;
        }
    }
    ct_arena_finish(&arena);
}

struct faded {
    double factor;
};

static const struct ct_option faded_attrs[] = {
    CT_OPT_FLOAT(struct faded, factor, "factor", "0", -1e3, 1e3, "A factor that may be 0"), {0}};

/* Its gradient would be cheapest from its result, if that could be divided by the factor. */
static const struct ct_op_type faded = {
    .size = sizeof(struct ct_op_type),
    .name = "faded",
    .summary = "an op of this test",
    .signature = "x[.K] T -> y[.K] T",
    .attrs = faded_attrs,
    .attrs_size = sizeof(struct faded),
    .samples = "real[2,6]",
    CT_FORMULA("y = factor * tanh(x)"),
};

/* Run the reference of a gradient, whose inputs are [2,6] and filled with one value each. */
static void run_gradient(struct ct_trial *m, const struct ct_op_type *type, const double *fill)
{
    const struct ct_op_type *gradient = ct_pointwise_gradient(type);
    struct ct_arena arena = {0};
    struct ct_sample *sample;

    if (!gradient || ct_samples_of(gradient, &arena, &sample) < 0 ||
        ct_trial_create(m, sample, CT_F64) < 0)
        fail_msg("%s: %s", type->name, ct_error_message());
    for (int i = 0; i < m->op->ins; i++)
        for (int k = 0; k < 12; k++)
            ((double *)ct_trial_tensor(m, m->op->in[i])->data)[k] = fill[i];
    assert_int_equal(ct_trial_run(m, m->op), 0);
    ct_arena_finish(&arena);
}

static void gradients_hold_at_zero(void **state)
{
    static const struct ct_op_type power =
        ROWS("power", "x[.K] T, n[.K] T -> y[.K] T", "positive[2,6] real[2,6]", "y = pow(x, n)");
    static const double at[][5] = {{1, 0, 0, 0, 0}, {1, 0, 1, 1, 0}, {1, 0, 2, 0, 0}};
    struct ct_trial m;

    (void)state;
    run_gradient(&m, &faded, (double[]){1, 0.5});
    assert_true(*(double *)ct_trial_tensor(&m, m.op->out[0])->data == 0);
    ct_trial_finish(&m);
    for (size_t i = 0; i < CT_COUNT(at); i++) { /* dy, x, n: dx, dn */
        run_gradient(&m, &power, at[i]);
        assert_int_equal(m.op->ins, 3);
        for (int k = 0; k < 2; k++)
            assert_true(*(double *)ct_trial_tensor(&m, m.op->out[k])->data == at[i][3 + k]);
        ct_trial_finish(&m);
    }
}

static void what_has_no_derived_gradient_is_said(void **state)
{
    static const struct ct_op_type bad[] = {
        ROWS("bad_two", "x[.K] T -> y[.K] T, z[.K] T", NULL, "y = x * x; z = x * y"),
        ROWS("bad_sum", "x[.K] T, s[] T -> y[.K] T", NULL, "y = x * s"),
        ROWS("bad_block", "x[btn] T -> y[btn] T | @t", NULL, "y = x * x"),
        ROWS("bad_name", "x[.K] T -> y[.K] T", NULL, "z = x * x"),
    };
    static const char *const why[] = {"several outputs take a gradient", "a sum over everything",
                                      "clause", "does not assign y"};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(bad); i++) {
        assert_int_equal(ct_op_need(&bad[i]), CT_EINVAL);
        if (!strstr(ct_error_message(), why[i]))
            fail_msg("%s: %s", bad[i].name, ct_error_message());
    }
}

/* Each type gives its samples. Types without a reference kernel are collectives: they have no
   meaning on one rank. */
static void every_type_keeps_every_promise(void **state)
{
    struct ct_arena arena = {0};

    (void)state;
    assert_non_null(ct_op_at(0));
    for (const struct ct_op_check *check = ct_op_checks; check->name; check++) {
        struct ct_sample *own;
        int checked = 0;

        for (size_t i = 0; ct_op_at(i); i++) {
            if (!ct_op_at(i)->reference)
                continue;
            if (!ct_op_at(i)->samples || ct_samples_of(ct_op_at(i), &arena, &own) < 0)
                fail_msg("op type %s is not sampled", ct_op_at(i)->name);
            checked += run(check, own);
        }
        printf("%s: %d\n", check->name, checked);
        assert_true(checked >= 6); /* few types know positions */
    }
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_keeps_every_promise),
        cmocka_unit_test(gradients_follow_from_formulas),
        cmocka_unit_test(gradients_hold_at_zero),
        cmocka_unit_test(what_has_no_derived_gradient_is_said),
    };
    if (REGISTER_OPS("cp", "float8", "tp", "tp_async") < 0)
        return 1;
    return cmocka_run_group_tests_name("promises of op types", tests, NULL, NULL);
}
