#include "assertions.h"

#include <ctitan/sharding.h>
#include <ctitan/text.h>

static const struct ct_mesh mesh = {3, {{"dp_shard", 4}, {"cp", 2}, {"tp", 3}}};

/* ---- mesh ---- */

static void ranks_have_coordinates(void **state)
{
    (void)state;
    assert_int_equal(ct_mesh_degree(&mesh, CT_ALL_AXES), 24);
    assert_int_equal(ct_mesh_degree(&(struct ct_mesh){0}, CT_ALL_AXES), 1);
    assert_int_equal(ct_mesh_find(&mesh, "cp"), 1);
    assert_int_equal(ct_mesh_find(&mesh, "pp"), -1);
    for (int64_t rank = 0; rank < 24; rank++) {
        int64_t d = ct_mesh_coordinate(&mesh, rank, 0), c = ct_mesh_coordinate(&mesh, rank, 1);

        assert_int_equal((d * 2 + c) * 3 + ct_mesh_coordinate(&mesh, rank, 2), rank);
    }
    assert_int_equal(ct_mesh_degree(&mesh, 5), 12);
    assert_int_equal(ct_mesh_degree(&mesh, 0), 1);
}

static void groups_are_in_order_of_coordinates(void **state)
{
    static const int64_t expected[] = {6, 7, 8, 12, 13, 14, 18, 19, 20};
    int64_t ranks[24];

    (void)state;
    /* dp_shard and tp around rank 7, whose cp is 0 */
    assert_int_equal(ct_mesh_group(&mesh, 7, 5, ranks), 12);
    for (int i = 0; i < 3; i++)
        assert_int_equal(ranks[i], i);
    for (int i = 0; i < 9; i++)
        assert_int_equal(ranks[3 + i], expected[i]);
    assert_int_equal(ct_mesh_group(&mesh, 7, 0, ranks), 1);
    assert_int_equal(ranks[0], 7);
    assert_int_equal(ct_mesh_group(&mesh, 23, 7, ranks), 24);
    for (int i = 0; i < 24; i++)
        assert_int_equal(ranks[i], i);
}

/* ---- shardings ---- */

/* dimension 0 by tp then dp_shard, dimension 2 by cp */
static struct ct_sharding example(void)
{
    struct ct_sharding s = {0};

    ct_sharding_split(&s, 0, 2);
    ct_sharding_split(&s, 0, 0);
    ct_sharding_split(&s, 2, 1);
    return s;
}

static void faults_are_named(void **state)
{
    struct ct_sharding s = example();

    (void)state;
    assert_int_equal(ct_sharding_check(&s, &mesh, 3), 0);
    assert_fails(ct_sharding_check(&s, &mesh, 2), CT_EINVAL, "dimension 2 is split");
    s.unreduced = 4;
    assert_fails(ct_sharding_check(&s, &mesh, 3), CT_EINVAL, "axis tp both splits");
    s.unreduced = 8;
    assert_fails(ct_sharding_check(&s, &mesh, 3), CT_EINVAL, "outside the mesh");
    s = example();
    s.axis[2][0] = 2;
    assert_fails(ct_sharding_check(&s, &mesh, 3), CT_EINVAL, "axis tp appears twice");
    s.axis[2][0] = 7;
    assert_fails(ct_sharding_check(&s, &mesh, 3), CT_EINVAL, "axis 7 is outside");
}

/* The shards of all ranks with one coordinate on the other axes cover the whole, each once. */
static void shards_cover(int64_t size)
{
    int64_t global[3] = {size, 2, 5}, local[3], offset[3], covered[64] = {0};
    struct ct_sharding s = {0};

    ct_sharding_split(&s, 0, 2);
    ct_sharding_split(&s, 0, 0);
    for (int64_t rank = 0; rank < 24; rank++) {
        if (ct_mesh_coordinate(&mesh, rank, 1))
            continue;
        ct_sharding_local(&s, &mesh, rank, 3, global, local, offset);
        assert_int_equal(local[1], 2);
        assert_int_equal(offset[2], 0);
        for (int64_t i = 0; i < local[0]; i++)
            covered[offset[0] + i]++;
    }
    for (int64_t i = 0; i < size; i++)
        assert_int_equal(covered[i], 1);
}

static void shards_cover_every_size(void **state)
{
    struct ct_mesh four = {1, {{"tp", 4}}};
    int64_t five = 5, local, offset;
    struct ct_sharding s = {0};
    static const int64_t expected[] = {2, 1, 1, 1};

    (void)state;
    for (int64_t size = 0; size < 60; size++)
        shards_cover(size);
    ct_sharding_split(&s, 0, 0);
    for (int64_t rank = 0; rank < 4; rank++) {
        ct_sharding_local(&s, &four, rank, 1, &five, &local, &offset);
        assert_int_equal(local, expected[rank]);
    }
    ct_sharding_local(&s, &four, 3, 1, &five, &local, NULL);
    assert_int_equal(local, 1);
}

/* ---- text ---- */

static void text_reads_back(void **state)
{
    static const char *const texts[] = {"",
                                        "[tp.dp_shard, -, cp]",
                                        "[-, -, cp]+{tp}",
                                        "+{dp_shard, cp, tp}",
                                        "[tp, -, -]+{dp_shard, cp}",
                                        "[-, cp, -]max{dp_shard, tp}"};
    char text[100];

    (void)state;
    for (size_t i = 0; i < CT_COUNT(texts); i++) {
        struct ct_sharding s, again;
        const char *end;

        assert_int_equal(ct_sharding_parse(texts[i], &mesh, &s, &end), 0);
        assert_int_equal(*end, 0);
        assert_int_equal(ct_sharding_print(&s, &mesh, 3, text, sizeof(text)), strlen(texts[i]));
        assert_string_equal(text, texts[i]);
        assert_int_equal(ct_sharding_print(&s, &mesh, 3, text, 5), strlen(texts[i]));
        assert_int_equal(strlen(text), strlen(texts[i]) < 4 ? strlen(texts[i]) : 4);
        assert_int_equal(ct_sharding_print(&s, &mesh, 3, NULL, 0), strlen(texts[i]));
        ct_sharding_parse(texts[i], &mesh, &again, &end);
        assert_true(ct_sharding_equal(&s, &again));
    }
}

static void bad_text_says_where(void **state)
{
    static const struct {
        const char *text, *expected;
    } bad[] = {
        {"[tp", "expected ',' or ']' at ''"},          {"[tq]", "no axis tq; did you mean tp"},
        {"[tp, tp]", "axis tp appears twice"},         {"[tp]+{tp}", "axis tp appears twice"},
        {"[]", "expected the name of an axis at ']'"}, {"[tp.]", "expected the name of an axis"},
        {"+{}", "expected the name of an axis"},       {"+{tp", "expected ',' or '}'"},
        {"[-,-,-,-,-,-,-]", "more than 6 dimensions"}};
    struct ct_sharding s;
    const char *end;

    (void)state;
    for (size_t i = 0; i < CT_COUNT(bad); i++)
        assert_fails(ct_sharding_parse(bad[i].text, &mesh, &s, &end), CT_EINVAL, bad[i].expected);
}

/* A text that parses is sound, and its print parses to the same. */
static void random_text_is_refused_or_sound(void **state)
{
    static const char *const words[] = {"[",  "]",  "-",        ",", ", ", ".", "+{", "}",
                                        "tp", "cp", "dp_shard", " ", "{",  "+", "x",  "tp.cp"};
    uint64_t random = 1234567;
    int good = 0;

    (void)state;
    for (int i = 0; i < 300000; i++) {
        char text[128] = "", again[128];
        struct ct_sharding s, t;
        const char *end;

        for (uint64_t n = unit_random(&random) % 9; n; n--)
            strcat(text, words[unit_random(&random) % CT_COUNT(words)]);
        if (ct_sharding_parse(text, &mesh, &s, &end) < 0)
            continue;
        assert_true(end >= text && end <= text + strlen(text));
        assert_int_equal(ct_sharding_check(&s, &mesh, CT_MAX_DIMS), 0);
        ct_sharding_print(&s, &mesh, CT_MAX_DIMS, again, sizeof(again));
        assert_int_equal(ct_sharding_parse(again, &mesh, &t, &end), 0);
        assert_true(ct_sharding_equal(&s, &t));
        good += ct_sharding_axes(&s) || s.unreduced;
    }
    assert_true(good > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_have_coordinates),
        cmocka_unit_test(groups_are_in_order_of_coordinates),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(shards_cover_every_size),
        cmocka_unit_test(text_reads_back),
        cmocka_unit_test(bad_text_says_where),
        cmocka_unit_test(random_text_is_refused_or_sound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
