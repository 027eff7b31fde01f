/*
 * The text of an answer that is printed while it grows: whole characters, and nothing of a stop.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../../cli/generate.h"

static struct ct_arena arena;
static struct answer answer;
static const struct stops none;

static int begin(void **state)
{
    (void)state;
    answer = (struct answer){0};
    return 0;
}

static bool add(const struct stops *stops, const char *text)
{
    return answer_add(&arena, &answer, stops, text, strlen(text));
}

/* Bytes that are printed by now. */
static size_t shown(const struct stops *stops, bool ended)
{
    assert_int_equal(answer_show(&answer, stops, ended), 0);
    return answer.shown;
}

static void characters_are_whole(void **state)
{
    static const struct {
        const char *text;
        size_t shown;
    } steps[] = {{"a", 1},     {"\xc3", 1}, {"\xa9", 3},     {"\xe6\x97", 3},
                 {"\xa5", 6},  {"\xf0", 6}, {"\x9f\x99", 6}, {"\x82z", 11},
                 {"\xe6", 11}, {"b", 13},   {"\x80", 14}};

    (void)state;
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
        assert_false(add(&none, steps[i].text));
        assert_int_equal(shown(&none, false), steps[i].shown);
    }
    add(&none, "\xf0\x9f");
    assert_int_equal(shown(&none, false), 14);
    assert_int_equal(shown(&none, true), 16);
}

static void stops_are_held_back(void **state)
{
    static const struct stops stops = {.texts = {"<end>", "nd of"}, .count = 2, .longest = 5};

    (void)state;
    assert_false(add(&stops, "x<e"));
    assert_int_equal(shown(&stops, false), 1);
    assert_false(add(&stops, "n"));
    assert_int_equal(shown(&stops, false), 1);
    assert_false(add(&stops, "d")); /* "nd" may begin the other one, "<end" this one */
    assert_int_equal(shown(&stops, false), 1);
    assert_false(add(&stops, " o"));
    assert_int_equal(shown(&stops, false), 3);
    assert_false(add(&stops, "n"));
    assert_int_equal(shown(&stops, false), 7);
    assert_false(add(&stops, "<en"));
    assert_int_equal(shown(&stops, false), 8);
    assert_true(add(&stops, "d> and more"));
    assert_int_equal(shown(&stops, true), 8);
    assert_int_equal(answer.size, 8);
    assert_memory_equal(answer.text, "x<end on", 8);
}

static void the_first_stop_counts(void **state)
{
    static const struct stops stops = {.texts = {"cd", "bc"}, .count = 2, .longest = 2};

    (void)state;
    assert_true(add(&stops, "abcd"));
    assert_int_equal(shown(&stops, true), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(characters_are_whole, begin),
                                       cmocka_unit_test_setup(stops_are_held_back, begin),
                                       cmocka_unit_test_setup(the_first_stop_counts, begin)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
