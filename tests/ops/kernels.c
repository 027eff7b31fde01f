/*
 * What every reference kernel promises, on every sample: any strides, accumulation, outputs in the
 * memory of inputs where the type says so, any floating dtype, and the factor rule: an op on shards
 * gives shards of what it gives on the whole.
 */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <ctitan/error.h>
#include <ctitan/rule.h>
#include <ctitan/lib/ops.h>

#include "plugin_ops.h"
#include "sample.h"

#define MAX_OPERANDS 16

struct call {
    struct machine m;
    const struct sample *sample;
    struct ct_tensor in[MAX_OPERANDS], out[MAX_OPERANDS]; /* dense; out as it should be */
};

static void call_create(struct call *c, const struct sample *s, enum ct_dtype dtype)
{
    memset(c, 0, sizeof(*c));
    c->sample = s;
    if (machine_create(&c->m, s, dtype) < 0)
        fail_msg("%s(%s): %s", s->type, s->inputs, ct_error_message());
    for (int i = 0; i < c->m.op->ins; i++)
        if (c->m.op->in[i])
            c->in[i] = *machine_tensor(&c->m, c->m.op->in[i]);
    for (int i = 0; i < c->m.op->outs; i++)
        c->out[i] = *machine_tensor(&c->m, c->m.op->out[i]);
    if (launch(c->m.op, c->in, c->out, 0) < 0)
        fail_msg("%s(%s): %s", s->type, s->inputs, ct_error_message());
}

/* A copy of t: dimensions in another order in memory, and room between the elements. */
static struct ct_tensor scattered(struct call *c, const struct ct_tensor *t)
{
    struct ct_tensor copy = *t;
    int64_t step = 3;

    if (!t->data)
        return copy;
    for (int d = 0; d < t->ndim; d++) {
        copy.stride[d] = step;
        step = step * t->shape[d] + 1;
    }
    copy.data = ct_arena_alloc(&c->m.arena, (size_t)(step + 1) * 8);
    for (int64_t i = 0; i < ct_tensor_count(t); i++)
        ct_tensor_store(&copy, i, ct_tensor_load(t, i));
    return copy;
}

static void expect(const struct call *c, const char *what, int output, const struct ct_tensor *got,
                   const struct ct_tensor *want, double offset, double tolerance)
{
    for (int64_t i = 0; i < ct_tensor_count(want); i++) {
        double g = ct_tensor_load(got, i), w = ct_tensor_load(want, i) + offset;

        if (g != w && !(fabs(g - w) <= tolerance * (1 + fabs(w))))
            fail_msg("%s: %s(%s), output %d, element %lld: %.9g, not %.9g", what, c->sample->type,
                     c->sample->inputs, output, (long long)i, g, w);
    }
}

/* An 8-bit result is rounded by up to a sixteenth or eighth of itself, and again when something
   that takes most of it away is added. */
static double exactness(const struct ct_tensor *t)
{
    if (t->dtype == CT_E4M3 || t->dtype == CT_E5M2)
        return t->dtype == CT_E4M3 ? 0x1p-3 : 0x1p-2;
    return t->dtype == CT_F64 ? 1e-12 : 1e-6;
}

static void check_strides(struct call *c, uint32_t accumulate, double before)
{
    struct ct_tensor in[MAX_OPERANDS], out[MAX_OPERANDS];
    const struct ct_op *op = c->m.op;

    for (int i = 0; i < op->ins; i++)
        in[i] = scattered(c, &c->in[i]);
    for (int i = 0; i < op->outs; i++) {
        out[i] = scattered(c, &c->out[i]);
        if (!ct_dtype_is_float(out[i].dtype))
            accumulate &= ~(1u << i); /* nothing adds up integers */
        for (int64_t k = 0; k < ct_tensor_count(&out[i]); k++)
            ct_tensor_store(&out[i], k, before);
    }
    assert_int_equal(launch(op, in, out, accumulate), 0);
    for (int i = 0; i < op->outs; i++)
        expect(c, "strides", i, &out[i], &c->out[i], accumulate >> i & 1 ? before : 0,
               exactness(&out[i]));
    for (int i = 0; i < op->ins; i++)
        if (in[i].data)
            expect(c, "inputs", i, &in[i], &c->in[i], 0, exactness(&in[i]));
}

static void test_strides_and_accumulation(void **state)
{
    (void)state;
    for (const struct sample *s = samples; s->type; s++) {
        struct call c;

        call_create(&c, s, CT_F64);
        check_strides(&c, 0, NAN);
        check_strides(&c, ~0u, 0.75);
        check_strides(&c, 1, -2);
        machine_finish(&c.m);
    }
}

static void check_in_place(struct call *c, const int8_t pair[2])
{
    struct ct_tensor in[MAX_OPERANDS], out[MAX_OPERANDS];
    const struct ct_op *op = c->m.op;

    for (int i = 0; i < op->ins; i++)
        in[i] = scattered(c, &c->in[i]);
    for (int i = 0; i < op->outs; i++)
        out[i] = scattered(c, &c->out[i]);
    assert_int_equal(in[pair[1]].dtype, out[pair[0]].dtype);
    out[pair[0]] = in[pair[1]];
    assert_int_equal(launch(op, in, out, 0), 0);
    for (int i = 0; i < op->outs; i++)
        expect(c, "in place", i, &out[i], &c->out[i], 0, 1e-12);
}

static void test_in_place(void **state)
{
    int checked = 0;

    (void)state;
    for (const struct sample *s = samples; s->type; s++) {
        const int8_t(*pair)[2] = ct_op_find(s->type)->inplace;
        struct call c;

        for (; pair && (*pair)[0] >= 0; pair++, checked++) {
            call_create(&c, s, CT_F64);
            check_in_place(&c, *pair);
            machine_finish(&c.m);
        }
    }
    assert_true(checked >= 8);
}

/* The same inputs, rounded, in float64 and in bfloat16. */
static void test_bfloat16(void **state)
{
    (void)state;
    for (const struct sample *s = samples; s->type; s++) {
        struct call narrow, wide;

        call_create(&narrow, s, CT_BF16);
        call_create(&wide, s, CT_F64);
        for (int i = 0; i < wide.m.op->ins; i++)
            for (int64_t k = 0; wide.in[i].data && k < ct_tensor_count(&wide.in[i]); k++)
                ct_tensor_store(&wide.in[i], k, ct_tensor_load(&narrow.in[i], k));
        assert_int_equal(launch(wide.m.op, wide.in, wide.out, 0), 0);
        assert_int_equal(launch(narrow.m.op, narrow.in, narrow.out, 0), 0);
        for (int i = 0; i < wide.m.op->outs; i++)
            expect(&narrow, "bfloat16", i, &narrow.out[i], &wide.out[i], 0, 0x1p-6);
        machine_finish(&narrow.m);
        machine_finish(&wide.m);
    }
}

/* ---- factor rules ---- */

/* Is factor f, or what is split with it, that of dimension `dim` of this operand? */
static bool is_cut(const struct ct_rule *rule, int f, int g)
{
    const struct ct_factor *a = &rule->factor[f], *b = &rule->factor[g];

    if (f == g)
        return true;
    if ((f == rule->tie[0] && g == rule->tie[1]) || (f == rule->tie[1] && g == rule->tie[0]))
        return true;
    return a->kind == CT_FACTOR_REDUCTION && a->letter == b->letter && a->index == b->index &&
           b->kind == CT_FACTOR_REDUCTION;
}

static struct ct_value *value_at(const struct ct_op *op, int i)
{
    return i < op->ins ? op->in[i] : op->out[i - op->ins];
}

static const struct ct_mesh two = {1, {{"two", 2}}};

/* Split every dimension of every operand that has factor f. */
static void split(const struct ct_op *op, const struct ct_rule *rule, int f)
{
    for (int i = 0; i < op->ins + op->outs; i++) {
        struct ct_value *v = value_at(op, i);

        if (v)
            v->sharding = (struct ct_sharding){0};
        for (int d = 0; d < rule->operand[i].ndim; d++)
            if (is_cut(rule, f, rule->operand[i].factor[d]))
                ct_sharding_split(&v->sharding, d, 0);
    }
}

/* The shard of t that a rank holds, in place. */
static struct ct_tensor shard_of(const struct ct_tensor *t, const struct ct_value *v, int rank)
{
    int64_t offset[CT_MAX_DIMS], at = 0;
    struct ct_tensor shard = *t;

    if (!t->data)
        return shard;
    ct_sharding_local(&v->sharding, &two, rank, t->ndim, t->shape, shard.shape, offset);
    for (int d = 0; d < t->ndim; d++)
        at += offset[d] * t->stride[d];
    shard.data = (char *)t->data + at * (int64_t)ct_dtype_size(t->dtype);
    return shard;
}

static struct ct_tensor emptied(struct call *c, const struct ct_tensor *t, double value)
{
    struct ct_tensor copy = scattered(c, t);

    for (int64_t k = 0; k < ct_tensor_count(t); k++)
        ct_tensor_store(&copy, k, value);
    return copy;
}

static void raise_to(const struct ct_tensor *t, const struct ct_tensor *part)
{
    for (int64_t k = 0; k < ct_tensor_count(t); k++)
        ct_tensor_store(t, k, fmax(ct_tensor_load(t, k), ct_tensor_load(part, k)));
}

/* Two ranks with a shard each make what one makes of the whole. Ops that update an input (init ops)
   do not read it. */
static void check_factor(struct call *c, const struct ct_rule *rule, int f)
{
    struct ct_tensor in[MAX_OPERANDS], out[MAX_OPERANDS];
    struct ct_tensor all_in[MAX_OPERANDS], all_out[MAX_OPERANDS];
    const struct ct_op *op = c->m.op;
    uint32_t reduced = 0, raised = 0; /* sums over the ranks, maxima over them */
    char what[64];

    split(op, rule, f);
    for (int i = 0; i < op->ins; i++)
        all_in[i] = ct_op_mutates(op, i) ? emptied(c, &c->in[i], NAN) : scattered(c, &c->in[i]);
    for (int i = 0; i < op->outs; i++) {
        bool reduces = ct_rule_reduces(rule, op, f, i);

        all_out[i] = emptied(c, &c->out[i], reduces ? 0 : NAN);
        *(rule->operand[op->ins + i].maximum ? &raised : &reduced) |= (uint32_t)reduces << i;
    }
    for (int rank = 0; rank < 2; rank++) {
        for (int i = 0; i < op->ins; i++)
            in[i] = shard_of(&all_in[i], op->in[i], rank);
        for (int i = 0; i < op->outs; i++)
            out[i] = raised >> i & 1 ? emptied(c, &c->out[i], NAN)
                                     : shard_of(&all_out[i], op->out[i], rank);
        assert_int_equal(launch_on(&two, rank, op, in, out, reduced), 0);
        for (int i = 0; i < op->outs; i++)
            if (raised >> i & 1)
                raise_to(&all_out[i], &out[i]);
    }
    snprintf(what, sizeof(what), "factor %c%d", rule->factor[f].letter, rule->factor[f].index);
    for (int i = 0; i < op->outs; i++)
        expect(c, what, i, &all_out[i], &c->out[i], 0, exactness(&all_out[i]));
    for (int i = 0; i < op->ins; i++)
        if (ct_op_mutates(op, i))
            expect(c, what, i, &all_in[i], &c->in[i], 0, exactness(&all_in[i]));
}

static void check_operand_factors(const struct call *c, const struct ct_rule *rule)
{
    const struct ct_op *op = c->m.op;

    for (int i = 0; i < op->ins + op->outs; i++) {
        const struct ct_value *v = value_at(op, i);
        const struct ct_rule_operand *operand = &rule->operand[i];

        assert_int_equal(operand->ndim, v ? v->ndim : -1);
        for (int d = 0; d < operand->ndim; d++) {
            const struct ct_factor *f = &rule->factor[operand->factor[d]];

            assert_true(f->size == v->shape[d] || (f->size < 0 && i >= op->ins));
        }
    }
}

/* Tied factors are split where both shards are equal; all others anywhere. */
static bool may_cut(const struct ct_rule *rule, int f)
{
    if (rule->factor[f].kind == CT_FACTOR_WHOLE || rule->factor[f].size == 1)
        return false;
    return (f != rule->tie[0] && f != rule->tie[1]) || rule->factor[rule->tie[1]].size % 2 == 0;
}

/* Every factor that may be split in two is. */
static void test_factors(void **state)
{
    int checked = 0;

    (void)state;
    for (const struct sample *s = samples; s->type; s++) {
        struct ct_rule rule;
        struct call c;

        call_create(&c, s, CT_F64);
        assert_int_equal(ct_rule_apply(c.m.op, &c.m.arena, &rule), 0);
        check_operand_factors(&c, &rule);
        for (int f = 0; f < rule.count; f++)
            if (may_cut(&rule, f) && rule.factor[f].letter != s->replaced) {
                check_factor(&c, &rule, f);
                checked++;
            }
        machine_finish(&c.m);
    }
    assert_true(checked >= 80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strides_and_accumulation),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_bfloat16),
        cmocka_unit_test(test_factors),
    };
    if (REGISTER_OPS("cp", "float8", "tp") < 0)
        return 1;
    return cmocka_run_group_tests_name("reference kernels", tests, NULL, NULL);
}
