/*
 * core/redistribute.c: the steps between two shardings, what they cost, and, on simulated ranks,
 * what they do to numbers.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/text.h>

#include "steps.h"

#define assert_ok(rc)                                                                              \
    do {                                                                                           \
        if ((rc) != 0)                                                                             \
            fail_msg("%s: %s", #rc, ct_error_message());                                           \
    } while (0)

static const struct ct_mesh abc = {3, {{"a", 2}, {"b", 3}, {"c", 4}}};

static struct ct_sharding parse(const struct ct_mesh *mesh, const char *text)
{
    struct ct_sharding s;
    const char *end;

    assert_ok(ct_sharding_parse(text, mesh, &s, &end));
    assert_string_equal(end, "");
    return s;
}

/* "all_gather a.b 0, slice b 0": axes, dimension, and where an exchange leads to. */
static const char *steps_text(const struct ct_mesh *mesh, const struct ct_steps *steps, char *text)
{
    char *at = text;

    *text = '\0';
    for (int i = 0; i < steps->count; i++) {
        const struct ct_step *s = &steps->step[i];

        at += sprintf(at, "%s%s ", i ? ", " : "", s->op->name);
        for (int k = 0; k < s->count; k++)
            at += sprintf(at, "%s%s", k ? "." : "", mesh->axis[s->axis[k]].name);
        if (s->op != &ct_op_all_reduce)
            at += sprintf(at, " %d", s->dim);
        if (s->op == &ct_op_all_to_all)
            at += sprintf(at, ">%d", s->to);
        if (s->reduction == CT_REDUCE_MAX && s->op != &ct_op_slice)
            at += sprintf(at, " max");
    }
    return text;
}

/* ---- known pairs ---- */

/* a = 2, b = 3, c = 4; a tensor of 24 x 24 floats is 2304 bytes. */
static const struct {
    const char *from, *to, *steps;
    double bytes;
} known[] = {
    {"", "", "", 0},
    {"[a, -]", "[a, -]", "", 0},
    {"", "[a, b]", "slice a 0, slice b 1", 0},
    {"[a, -]", "", "all_gather a 0", 2304 / 2},
    {"[a.b, -]", "", "all_gather a.b 0", 2304 / 6 * 5},
    {"[a.b, -]", "[a, -]", "all_gather b 0", 2304 / 2 / 3 * 2},
    {"[a.b, -]", "[b, -]", "all_gather a.b 0, slice b 0", 2304 / 6 * 5},
    {"[a, b]", "", "all_gather a 0, all_gather b 1", 2304 / 3 / 2 + 2304 / 3 * 2},
    {"+{a}", "", "all_reduce a", 2304},
    {"+{a, b}", "", "all_reduce a.b", 2 * 2304 / 6 * 5},
    {"+{a}", "[a, -]", "reduce_scatter a 0", 2304 / 2},
    {"+{a, b}", "[b.a, -]", "reduce_scatter b.a 0", 2304 / 6 * 5},
    {"+{a, b}", "[b, -]", "reduce_scatter b 0, all_reduce a", 2304 / 3 * 2 + 768},
    {"+{a}", "[b.a, -]", "slice b 0, reduce_scatter a 0", 768 / 2},
    {"+{a}", "[-, b]", "slice b 1, all_reduce a", 768},
    {"max{a}", "", "all_reduce a max", 2304},
    {"max{a, b}", "[b.a, -]", "reduce_scatter b.a 0 max", 2304 / 6 * 5},
    {"max{a, b}", "[a, -]max{b}", "reduce_scatter a 0 max", 2304 / 2},
    {"+{a, b}", "+{b}", "all_reduce a", 2304},
    {"+{a, b}", "[a, -]+{b}", "reduce_scatter a 0", 2304 / 2},
    {"[b, -]+{a}", "[b, a]", "reduce_scatter a 1", 768 / 2},
    {"[a, -]", "[-, a]", "all_to_all a 0>1", 2304 / 2 / 2},
    {"[a.b, -]", "[a, b]", "all_to_all b 0>1", 384 / 3 * 2},
    {"[a.b, -]", "[-, b.a]", "all_to_all b 0>1, all_to_all a 0>1", 384 / 3 * 2 + 384 / 2},
    {"[a, b]", "[b, a]", "all_gather a 0, all_to_all b 1>0, slice a 1", 384 + 768 / 3 * 2},
};

static void known_pairs_take_known_steps(void **state)
{
    const struct ct_value v = {.dtype = CT_F32, .ndim = 2, .shape = {24, 24}};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(known); i++) {
        struct ct_sharding from = parse(&abc, known[i].from), to = parse(&abc, known[i].to);
        struct ct_steps steps;
        char text[512];
        double bytes;

        assert_ok(ct_redistribute_steps(&abc, 2, &from, &to, &steps));
        if (strcmp(steps_text(&abc, &steps, text), known[i].steps))
            fail_msg("\"%s\" to \"%s\": \"%s\", not \"%s\"", known[i].from, known[i].to, text,
                     known[i].steps);
        bytes = ct_redistribute_bytes(&abc, &v, &from, &steps);
        if (fabs(bytes - known[i].bytes) > 1e-9)
            fail_msg("\"%s\" to \"%s\": %g bytes, not %g", known[i].from, known[i].to, bytes,
                     known[i].bytes);
    }
}

static void nothing_becomes_unreduced(void **state)
{
    struct ct_sharding whole = {0}, split = parse(&abc, "[a]"), pending = parse(&abc, "+{a}");
    struct ct_sharding maximum = parse(&abc, "max{a}");
    struct ct_steps steps;

    (void)state;
    assert_int_equal(ct_redistribute_steps(&abc, 1, &whole, &pending, &steps), CT_EINVAL);
    assert_int_equal(ct_redistribute_steps(&abc, 1, &split, &pending, &steps), CT_EINVAL);
    assert_int_equal(ct_redistribute_steps(&abc, 1, &maximum, &pending, &steps), CT_EINVAL);
}

/* ---- random pairs ---- */

/* Bytes by the formulas of redistribute.h, of rank 0. */
static double bytes_of(const struct ct_graph *g, const struct ct_op *op)
{
    const struct ct_value *side[] = {op->in[0], op->out[0]};
    double larger = 0, n = (double)ct_mesh_degree(&g->mesh, ct_op_axes(op, "axes"));

    for (int i = 0; i < 2; i++) {
        int64_t local[CT_MAX_DIMS], count;

        ct_sharding_local(&side[i]->sharding, &g->mesh, 0, side[i]->ndim, side[i]->shape, local,
                          NULL);
        count = ct_shape_count(side[i]->ndim, local);
        larger = fmax(larger, (double)count * (double)ct_dtype_size(side[i]->dtype));
    }
    if (!strcmp(op->type->name, "slice"))
        return 0;
    return (strcmp(op->type->name, "all_reduce") ? 1 : 2) * larger * (n - 1) / n;
}

/* From any sharding to any other that has no new pending sums, on any mesh, shards uneven or empty:
   the steps end there, every step on the way is legal, and no number changes. */
static void random_pairs_keep_every_number(void **state)
{
    int steps_seen = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        struct random random = {seed, 0};
        struct ct_arena arena = {0};
        struct ct_sharding to;
        struct ct_steps steps;
        struct ct_graph *g;
        struct ct_value *x;
        struct world w;
        double bytes = 0;

        assert_ok(random_steps(&arena, &random, &g, &x, &to, &steps));
        ct_for_each_op (op, g)
            bytes += bytes_of(g, op);
        assert_true(ct_sharding_equal(g->last ? &g->last->out[0]->sharding : &x->sharding, &to));
        assert_true(fabs(bytes - ct_redistribute_bytes(&g->mesh, x, &x->sharding, &steps)) < 1e-9);
        world_of_steps(&w, g, x, &random);
        assert_ok(world_run(&w));
        steps_seen += steps.count;
        world_finish(&w);
        ct_arena_finish(&arena);
    }
    assert_true(steps_seen > 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_pairs_take_known_steps),
        cmocka_unit_test(nothing_becomes_unreduced),
        cmocka_unit_test(random_pairs_keep_every_number),
    };
    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests_name("redistribution", tests, NULL, NULL);
}
