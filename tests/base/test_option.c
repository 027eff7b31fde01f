#include "assertions.h"

#include <math.h>

#include <ctitan/option.h>
#include <ctitan/option_use.h>
#include <ctitan/text.h>

struct config {
    bool fused;
    int64_t steps;
    double lr, norm;
    const char *path, *policy;
};

static const struct ct_option table[] = {
    CT_OPT_BOOL(struct config, fused, "fused", "true", "One launch"),
    CT_OPT_INT(struct config, steps, "steps", "100", 1, 1e15, "Steps"),
    CT_OPT_FLOAT(struct config, lr, "lr", "3e-4", 0, 1, "Rate"),
    CT_OPT_FLOAT(struct config, norm, "norm", "1", 0, INFINITY, "Norm"),
    CT_OPT_STRING(struct config, path, "path", NULL, "File"),
    CT_OPT_CHOICE(struct config, policy, "policy", "stop", "stop|skip", "Policy"),
    {0}};

static void defaults_fill_and_the_rest_is_cleared(void **state)
{
    struct config c = {false, -5, 9, 9, "left over", "left over"};

    (void)state;
    assert_int_equal(ct_options_reset(table, &c), 0);
    assert_true(c.fused);
    assert_int_equal(c.steps, 100);
    assert_true(c.lr == 3e-4);
    assert_null(c.path);
    assert_string_equal(c.policy, "stop");
}

static void good_values_are_taken(void **state)
{
    struct config c = {0};

    (void)state;
    assert_int_equal(ct_options_set(table, &c, "fused", "true", "x"), 0);
    assert_int_equal(ct_options_set(table, &c, "steps", "1000000000000000", "x"), 0);
    assert_int_equal(c.steps, 1000000000000000);
    assert_int_equal(ct_options_set(table, &c, "steps", "2.5e3", "x"), 0);
    assert_int_equal(ct_options_set(table, &c, "lr", "0.5", "x"), 0);
    assert_int_equal(ct_options_set(table, &c, "norm", "inf", "x"), 0);
    assert_true(isinf(c.norm));
    assert_int_equal(ct_options_set(table, &c, "path", "", "x"), 0);
    assert_int_equal(ct_options_set(table, &c, "policy", "skip", "x"), 0);
    assert_true(c.fused);
    assert_int_equal(c.steps, 2500);
    assert_true(c.lr == 0.5);
    assert_string_equal(c.path, "");
    assert_string_equal(c.policy, "skip");
}

static void bad_values_say_what_was_expected(void **state)
{
    static const struct {
        const char *name, *text, *expected;
    } bad[] = {
        {"fused", "yes", "a.ini:3: fused = yes: expected one of true, false"},
        {"fused", "True", "expected one of true, false"},
        {"fused", "", "expected one of true, false"},
        {"steps", "abc", "expected an integer, at least 1"},
        {"steps", "1e-3", "expected an integer"},
        {"steps", "1.5e0", "expected an integer"},
        {"steps", "0x1e3", "expected an integer"},
        {"steps", "1e300", "expected an integer"},
        {"steps", "10.0", "expected an integer"},
        {"steps", " 10", "expected an integer"},
        {"steps", "10 ", "expected an integer"},
        {"steps", "", "expected an integer"},
        {"steps", "0", "expected an integer"},
        {"steps", "99999999999999999999", "expected a smaller integer, at least 1"},
        {"lr", "fast", "expected a number, 0 to 1"},
        {"lr", "1.5", "expected a number, 0 to 1"},
        {"lr", "-0.1", "expected a number"},
        {"lr", "nan", "expected a number"},
        {"lr", "0.1x", "expected a number"},
        {"norm", "1e400", "norm = 1e400: expected a number, at least 0"},
        {"norm", "-inf", "expected a number"},
        {"policy", "stopp", "expected one of stop, skip"},
        {"policy", "", "expected one of"},
        {"policy", "stop|skip", "expected one of"},
        {"policy", "sto", "expected one of"},
        {"stps", "1", "a.ini:3: no option named stps; did you mean steps?"},
        {"something_else", "1", "a.ini:3: no option named something_else"},
    };
    struct config c, before;

    (void)state;
    ct_options_reset(table, &c);
    before = c;
    for (size_t i = 0; i < CT_COUNT(bad); i++)
        assert_fails(ct_options_set(table, &c, bad[i].name, bad[i].text, "a.ini:3"), CT_ECONFIG,
                     bad[i].expected);
    assert_memory_equal(&c, &before, sizeof(c));
}

static void formatted_values_read_back(void **state)
{
    static const double numbers[] = {0, 1, 0.1, 1.0 / 3, 8e-4, 1e-300, 1, 0x1.fffffffffffffp-1};
    const struct ct_option *lr = ct_option_find(table, "lr");
    struct config c = {0}, back = {0};
    char text[64];

    (void)state;
    for (size_t i = 0; i < CT_COUNT(numbers); i++) {
        c.lr = numbers[i];
        ct_option_format(lr, &c, text, sizeof(text));
        assert_int_equal(ct_options_set(table, &back, "lr", text, "x"), 0);
        assert_true(back.lr == c.lr);
    }
    c.lr = 0.1;
    assert_int_equal(ct_option_format(lr, &c, text, sizeof(text)), 3);
    assert_string_equal(text, "0.1");
    c.steps = INT64_MIN;
    ct_option_format(ct_option_find(table, "steps"), &c, text, sizeof(text));
    assert_string_equal(text, "-9223372036854775808");
    assert_int_equal(ct_option_format(ct_option_find(table, "path"), &c, text, sizeof(text)), 0);
    assert_string_equal(text, "");
    assert_null(ct_option_find(table, "none"));
}

static void ranges_are_for_people(void **state)
{
    struct config c;
    static const struct ct_option more[] = {
        CT_OPT_FLOAT(struct config, lr, "any", "0", -INFINITY, INFINITY, ""),
        CT_OPT_FLOAT(struct config, lr, "positive", "0", 0, INFINITY, ""),
        CT_OPT_INT(struct config, steps, "small", "0", -1, 7, ""),
        {0}};
    char text[64], tiny[4];

    (void)state;
    ct_options_reset(more, &c);
    ct_option_range(&more[0], text, sizeof(text));
    assert_string_equal(text, "");
    ct_option_range(&more[1], text, sizeof(text));
    assert_string_equal(text, "at least 0");
    ct_option_range(&more[2], text, sizeof(text));
    assert_string_equal(text, "-1 to 7");
    assert_int_equal(ct_option_range(ct_option_find(table, "policy"), tiny, sizeof(tiny)), 10);
    assert_string_equal(tiny, "sto");
}

static void the_nearest_name_is_near(void **state)
{
    static const char *const names[] = {"steps", "seq_len", "seed", "max_norm", "tp"};
    static const struct {
        const char *word, *near;
    } cases[] = {{"stesp", "steps"}, {"seqlen", "seq_len"}, {"maxnorm", "max_norm"},
                 {"step", "steps"},  {"qqqqq", NULL},       {"", NULL},
                 {"xy", NULL},       {"pt", "tp"}};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        const char *near = ct_nearest(cases[i].word, names, CT_COUNT(names));

        if (cases[i].near) {
            assert_non_null(near);
            assert_string_equal(near, cases[i].near);
        } else {
            assert_null(near);
        }
    }
    assert_null(ct_nearest("steps", NULL, 0));
}

/* A value counts, not how it is written. */
static void values_of_unused_options_are_compared_as_values(void **state)
{
    struct config {
        bool fused;
        int64_t steps;
        double share;
        const char *path, *policy;
        unsigned order;
    } c = {0};
    static const struct ct_option all[] = {
        CT_OPT_BOOL(struct config, fused, "fused", "true", "One launch"),
        CT_OPT_INT(struct config, steps, "steps", "1000", 1, 1e15, "Steps"),
        CT_OPT_FLOAT(struct config, share, "share", "0.1", 0, 1, "Share"),
        CT_OPT_STRING(struct config, path, "path", "", "File"),
        CT_OPT_CHOICE(struct config, policy, "policy", "stop", "stop|skip", "Policy"),
        CT_OPT_ENUM(struct config, order, "order", "up", "down|up", "Order"),
        {0}};
    static const struct {
        const char *name, *same, *other;
    } cases[] = {{"fused", "true", "false"}, {"steps", "1e3", "999"},    {"share", "0.10", "0.11"},
                 {"path", "", "x"},          {"policy", "stop", "skip"}, {"order", "up", "down"}};

    (void)state;
    assert_int_equal(ct_options_reset(all, &c), 0);
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        const struct ct_option_use uses[] = {{cases[i].name, false, "off"},
                                             {"path", true, "on"},
                                             {cases[i].name, false, "too"},
                                             {0}};
        char same[16];

        snprintf(same, sizeof(same), "%s", cases[i].same); /* another address than the default's */
        assert_int_equal(ct_options_set(all, &c, cases[i].name, same, "x"), 0);
        assert_int_equal(ct_options_check_use(all, &c, "s", uses), 0);
        assert_int_equal(ct_options_set(all, &c, cases[i].name, cases[i].other, "x"), 0);
        assert_fails(ct_options_check_use(all, &c, "s", uses), CT_ECONFIG, "has no effect: off");
        assert_ptr_equal(ct_options_unused(all, &c, uses), &uses[0]);
        assert_ptr_equal(ct_options_unused(all, &c, &uses[1]), &uses[2]);
        assert_null(ct_options_unused(all, &c, &uses[3]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_fill_and_the_rest_is_cleared),
        cmocka_unit_test(good_values_are_taken),
        cmocka_unit_test(bad_values_say_what_was_expected),
        cmocka_unit_test(formatted_values_read_back),
        cmocka_unit_test(ranges_are_for_people),
        cmocka_unit_test(values_of_unused_options_are_compared_as_values),
        cmocka_unit_test(the_nearest_name_is_near),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
