/*
 * The mesh of a run, made from axes that plugins offer: none is dropped, and degrees that make no
 * mesh are refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include <ctitan/error.h>
#include <ctitan/plugin.h>

#include "run/mesh.h"

static int64_t wide = 1, near_degree = 1, rest = 1;

static int64_t wide_degree(void)
{
    return wide;
}

static int64_t near_of(void)
{
    return near_degree;
}

static int64_t rest_degree(void)
{
    return rest;
}

#define AXIS(...)                                                                                  \
    &(const struct ct_axis_ops)                                                                    \
    {                                                                                              \
        .size = sizeof(struct ct_axis_ops), __VA_ARGS__                                            \
    }

/* The offers are not in the order of their places. */
static const struct ct_plugin plugin = {
    .name = "axes",
    .offers =
        CT_OFFERS({CT_AXIS, "near", AXIS(.place = 900, .fills = true, .degree = near_of)},
                  {CT_AXIS, "wide", AXIS(.place = 10, .splits_batch = true, .degree = wide_degree)},
                  {CT_AXIS, "rest", AXIS(.place = 500, .fills = true, .degree = rest_degree)})};

static int make(int64_t world, struct ct_run *run)
{
    *run = (struct ct_run){.world = world};
    return ct_run_make_mesh(run);
}

static void refused(int64_t world, const char *expected)
{
    struct ct_run run;

    assert_int_equal(make(world, &run), CT_ECONFIG);
    if (!strstr(ct_error_message(), expected))
        fail_msg("'%s' lacks '%s'", ct_error_message(), expected);
}

static void axes_of_any_name_stand_in_the_order_of_their_places(void **state)
{
    struct ct_run run;

    (void)state;
    wide = 2, near_degree = 3, rest = 5;
    assert_int_equal(make(30, &run), 0);
    assert_int_equal(run.mesh.count, 3);
    assert_string_equal(run.mesh.axis[0].name, "wide");
    assert_string_equal(run.mesh.axis[1].name, "rest");
    assert_string_equal(run.mesh.axis[2].name, "near");
    assert_int_equal(run.mesh.axis[2].size, 3);
    assert_int_equal(run.batch_axes, 1);
}

static void one_axis_takes_the_remaining_ranks(void **state)
{
    struct ct_run run;

    (void)state;
    wide = 2, near_degree = 3, rest = -1;
    assert_int_equal(make(24, &run), 0);
    assert_int_equal(run.mesh.axis[1].size, 4);
    refused(25, "the mesh wide 2 x rest 4 x near 3 makes 24 ranks, but there are 25");
    near_degree = -1;
    refused(24, "both rest and near take what is left: give one a degree");
}

static void degrees_that_cannot_be_are_refused(void **state)
{
    (void)state;
    wide = 0, near_degree = 1, rest = 1;
    refused(1, "axis wide has degree 0: it must be at least 1");
    wide = -1;
    refused(1, "axis wide has degree -1: it must be at least 1");
    wide = near_degree = rest = (int64_t)1 << 31;
    refused(8, "makes more ranks than can be counted");
}

static void a_mesh_has_a_limited_number_of_axes(void **state)
{
    static struct ct_offer offers[CT_MAX_AXES - 1];
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    static struct ct_plugin many = {.name = "many", .offers = offers};

    (void)state;
    for (int i = 0; i < CT_MAX_AXES - 2; i++)
        offers[i] = (struct ct_offer){CT_AXIS, names[i], plugin.offers[0].ops};
    assert_int_equal(ct_plugin_register(&many), 0);
    refused(1, "a mesh has at most 8 axes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(axes_of_any_name_stand_in_the_order_of_their_places),
        cmocka_unit_test(one_axis_takes_the_remaining_ranks),
        cmocka_unit_test(degrees_that_cannot_be_are_refused),
        cmocka_unit_test(a_mesh_has_a_limited_number_of_axes),
    };

    if (ct_plugin_register(&plugin) < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
