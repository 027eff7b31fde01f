/*
 * Simulated bubbles and peaks of activations against the closed forms of the literature, for every
 * number of ranks and microbatches that a schedule takes; and every one of these schedules
 * verified, before and after it was given communication.
 */
#include <math.h>

#include "support.h"

struct times {
    double f, i, w; /* of all layers of a rank */
};

static const struct times equal = {1, 1, 1};

struct form {
    const char *name;
    int loops, microbatches; /* the least number of these for which the form holds, in ranks */
    int more;                /* and this many more */
    double (*bubble)(struct times t, int p, int v, int m);
    double (*peak_at_i)(int p, int v, int m, int r), (*peak_at_w)(int p, int v, int m, int r);
};

static double least(double a, double b)
{
    return a < b ? a : b;
}

/* The longest round of an interleaved schedule. */
static int round_length(int p, int m)
{
    int rounds = m < p ? 1 : m / p;

    return (m + rounds - 1) / rounds;
}

/* ---- bubbles ---- */

static double whole_fill(struct times t, int p, int v, int m)
{
    (void)v, (void)m;
    return (p - 1) * (t.f + t.i + t.w);
}

/* With fewer microbatches than ranks, each loop waits for what is not there to fill it. */
static double looped_fill(struct times t, int p, int v, int m)
{
    double each = (t.f + t.i + t.w) / v;

    return (p - 1) * each + (m < p ? (p - m) * (v - 1) * each : 0);
}

static double zero_bubble_fill(struct times t, int p, int v, int m)
{
    (void)v;
    return (p - 1) * (t.f + t.i) - (least(m, p) - 1) * t.w;
}

static double looped_zero_bubble_fill(struct times t, int p, int v, int m)
{
    (void)m;
    return (p - 1) * (t.f + t.i - t.w) / v;
}

static double v_fill(struct times t, int p, int v, int m)
{
    (void)v, (void)m;
    return (p - 1) * t.f / 2;
}

static double dual_fill(struct times t, int p, int v, int m)
{
    double b = t.i + t.w;

    (void)v, (void)m;
    return (p - 1) * (t.f + b + b - 3 * t.w) / 2;
}

/* ---- peaks, in activations of one stage ---- */

static double all(int p, int v, int m, int r)
{
    (void)p, (void)r;
    return v * m;
}

static double as_deep_as_the_rest(int p, int v, int m, int r)
{
    (void)v;
    return least(m, p - r);
}

static double as_many_as_ranks(int p, int v, int m, int r)
{
    (void)v, (void)r;
    return least(m, p);
}

static double interleaved(int p, int v, int m, int r)
{
    return least(v * m, (v - 1) * round_length(p, m) + 2 * (p - 1 - r) + 1);
}

static double interleaved_at_i(int p, int v, int m, int r)
{
    return least(v * m, (v - 1) * round_length(p, m) + p - r);
}

static double interleaved_at_w(int p, int v, int m, int r)
{
    (void)r;
    return least(v * m, (v - 1) * round_length(p, m) + p);
}

static double two_each(int p, int v, int m, int r)
{
    (void)v, (void)m, (void)r;
    return 2 * p;
}

static double two_each_and_one(int p, int v, int m, int r)
{
    (void)v, (void)m, (void)r;
    return 2 * p + 1;
}

static const struct form forms[] = {
    {"gpipe", 1, 0, 1, whole_fill, all, all},
    {"1f1b", 1, 0, 1, whole_fill, as_deep_as_the_rest, as_deep_as_the_rest},
    {"interleaved_1f1b", 2, 0, 1, looped_fill, interleaved, interleaved},
    {"interleaved_1f1b", 3, 0, 1, looped_fill, interleaved, interleaved},
    {"interleaved_1f1b", 4, 0, 1, looped_fill, interleaved, interleaved},
    {"looped_bfs", 1, 0, 1, looped_fill, all, all},
    {"looped_bfs", 2, 0, 1, looped_fill, all, all},
    {"looped_bfs", 4, 0, 1, looped_fill, all, all},
    {"zb1p", 1, 0, 1, zero_bubble_fill, as_deep_as_the_rest, as_many_as_ranks},
    {"interleaved_zero_bubble", 2, 1, 0, looped_zero_bubble_fill, interleaved_at_i,
     interleaved_at_w},
    {"interleaved_zero_bubble", 3, 1, 0, looped_zero_bubble_fill, interleaved_at_i,
     interleaved_at_w},
    {"zbv", 2, 2, -1, v_fill, two_each, two_each},
    {"dualpipe_v", 2, 2, 0, dual_fill, two_each_and_one, two_each_and_one},
};

/* ---- the comparison ---- */

static void simulate(const struct ct_schedule *s, struct times t, bool one_stream,
                     struct ct_simulation *x)
{
    double share = (double)s->ranks / s->stages;
    struct ct_costs costs = {.forward = t.f * share,
                             .input = t.i * share,
                             .weight = t.w * share,
                             .one_stream = one_stream};

    assert_works(ct_schedule_simulate(s, &costs, s->arena, x));
}

static void compare(const struct form *form, const struct ct_schedule *s, struct times t)
{
    int p = s->ranks, v = form->loops, m = s->microbatches;
    struct ct_simulation x;
    double expected = form->bubble(t, p, v, m);

    simulate(s, t, false, &x);
    if (fabs(x.bubble - expected) > 1e-9 * x.makespan)
        fail_msg("%s, %d ranks, %d loops, %d microbatches: bubble %g, expected %g", form->name, p,
                 v, m, x.bubble, expected);
    assert_true(fabs(x.makespan - m * (t.f + t.i + t.w) - expected) < 1e-9 * x.makespan);
    assert_true(fabs(x.fraction - expected / x.makespan) < 1e-12);
    for (int r = 0; r < p; r++)
        if (x.peak_freed_at_i[r] != form->peak_at_i(p, v, m, r) ||
            x.peak_freed_at_w[r] != form->peak_at_w(p, v, m, r))
            fail_msg("%s, %d ranks, %d loops, %d microbatches, rank %d: peaks %g and %g, expected "
                     "%g and %g",
                     form->name, p, v, m, r, x.peak_freed_at_i[r], x.peak_freed_at_w[r],
                     form->peak_at_i(p, v, m, r), form->peak_at_w(p, v, m, r));
}

/* Communication costs nothing where transfers take no time, even with one stream. */
static void compare_with_communication(const struct form *form, struct ct_schedule *s)
{
    struct ct_simulation x;

    assert_works(ct_schedule_verify(s, NULL, NULL));
    assert_works(ct_schedule_communicate(s, &everything));
    assert_works(ct_schedule_verify(s, NULL, NULL));
    compare(form, s, equal);
    simulate(s, equal, true, &x);
    assert_true(fabs(x.bubble - form->bubble(equal, s->ranks, form->loops, s->microbatches)) <
                1e-9 * x.makespan);
}

static void compare_sizes(const struct form *form, int p, struct times t)
{
    struct kind kind = {form->name, form->loops};

    for (int m = form->microbatches * p + form->more; m <= 64; m += m < 2 * p + 2 ? 1 : 5) {
        struct ct_arena arena = {0};
        struct ct_schedule *s;

        assert_works(generate(&arena, &kind, p, m, &s));
        compare(form, s, t);
        if (t.f == t.i && t.i == t.w)
            compare_with_communication(form, s);
        ct_arena_finish(&arena);
    }
}

static void bubbles_and_peaks_are_those_of_the_closed_forms(void **state)
{
    (void)state;
    for (size_t i = 0; i < CT_COUNT(forms); i++)
        for (int p = 2; p <= 16; p++)
            compare_sizes(&forms[i], p, equal);
}

/* Most forms hold for any times, if W takes no longer than I. */
static void bubbles_of_other_times(void **state)
{
    static const struct times others[] = {{1, 2, 1}, {1, 1.3, 0.7}, {2, 1, 1}, {0.5, 1, 0.25}};

    (void)state;
    for (size_t i = 0; i < 11; i++)
        for (size_t t = 0; t < CT_COUNT(others); t++)
            for (int p = 2; p <= 16; p += 3)
                compare_sizes(&forms[i], p, others[t]);
}

/* Numbers of torch's generators, on an event simulator of their own. */
static void bubbles_equal_the_known_ones(void **state)
{
    static const struct {
        struct kind kind;
        struct times times;
        double bubble;
    } known[] = {
        {{"zbv", 2}, {1, 1.1, 0.9}, 3.85}, {{"zbv", 2}, {1, 1.4, 0.6}, 5.6},
        {{"zbv", 2}, {1, 1, 1}, 3.5},      {{"interleaved_zero_bubble", 2}, {1, 1.4, 0.6}, 6.3},
        {{"dualpipe_v", 2}, {1, 1, 1}, 7}, {{"interleaved_1f1b", 2}, {1, 1, 1}, 10.5},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(known); i++) {
        struct ct_arena arena = {0};
        struct ct_schedule *s;
        struct ct_simulation x;

        assert_works(generate(&arena, &known[i].kind, 8, 32, &s));
        simulate(s, known[i].times, false, &x);
        if (fabs(x.bubble - known[i].bubble) > 1e-9)
            fail_msg("%s: bubble %g, expected %g", s->name, x.bubble, known[i].bubble);
        ct_arena_finish(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bubbles_and_peaks_are_those_of_the_closed_forms),
        cmocka_unit_test(bubbles_of_other_times),
        cmocka_unit_test(bubbles_equal_the_known_ones),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
