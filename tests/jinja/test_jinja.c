/*
 * test_jinja CASES TEMPLATES: templates render as transformers renders them.
 *
 * Each case names a template of the folder, and has variables and the text, with the bytes that
 * {% generation %} marks, or an error. oracle.py makes them, and calls this with more of them.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/jinja.h>
#include <ctitan/lib/json.h>

#include "assertions.h"

static const char *cases_path, *templates;

static struct ct_jinja *read_template(struct ct_arena *arena, const char *name)
{
    char path[CT_PATH_ROOM];
    struct ct_jinja *jinja;
    const void *source;
    size_t size;

    snprintf(path, sizeof(path), "%s/%s.jinja", templates, name);
    assert_int_equal(ct_file_map(path, &source, &size), 0);
    if (ct_jinja_read(arena, name, source, size, &jinja) < 0)
        fail_msg("%s", ct_error_message());
    ct_file_unmap(source, size);
    return jinja;
}

static bool same_answers(const json_t *want, const struct ct_jinja_text *got)
{
    bool same = json_array_size(want) == got->count;

    for (size_t i = 0; same && i < got->count; i++) {
        const json_t *span = json_array_get(want, i);

        same = (size_t)json_integer_value(json_array_get(span, 0)) == got->answers[i].begin &&
               (size_t)json_integer_value(json_array_get(span, 1)) == got->answers[i].end;
    }
    return same;
}

/* Whether a case is as it should be; else both texts are printed. */
static bool check(const json_t *c)
{
    struct ct_arena arena = {0};
    const char *name = json_string_value(json_object_get(c, "template"));
    const json_t *want = json_object_get(c, "text");
    struct ct_jinja_text got;
    int rc = ct_jinja_render(read_template(&arena, name), json_object_get(c, "variables"), "",
                             &arena, &got);
    bool right = want ? rc == 0 && json_string_length(want) == got.size &&
                            !memcmp(json_string_value(want), got.data, got.size) &&
                            same_answers(json_object_get(c, "answers"), &got)
                      : rc == CT_ECONFIG;

    if (!right)
        printf("%s: %s\n--- instead of\n%s\n---\n", name, rc < 0 ? ct_error_message() : got.data,
               want ? json_string_value(want) : json_string_value(json_object_get(c, "error")));
    ct_arena_finish(&arena);
    return right;
}

static void test_cases(void **state)
{
    json_t *cases, *c;
    size_t i, wrong = 0;

    (void)state;
    assert_int_equal(ct_json_read_file(cases_path, 0, &cases), 0);
    assert_true(json_array_size(cases) >= 60);
    json_array_foreach(cases, i, c) wrong += wrong < 3 && !check(c);
    assert_int_equal(wrong, 0);
    json_decref(cases);
}

static int render(const char *source, const char *date, char *out, size_t room)
{
    struct ct_arena arena = {0};
    json_t *variables = json_pack("{s: s}", "text", "hi");
    struct ct_jinja *jinja;
    struct ct_jinja_text text = {0};
    int rc = ct_jinja_read(&arena, "t", source, strlen(source), &jinja);

    if (rc == 0)
        rc = ct_jinja_render(jinja, variables, date, &arena, &text);
    snprintf(out, room, "%s", rc == 0 ? text.data : "");
    json_decref(variables);
    ct_arena_finish(&arena);
    return rc;
}

static void test_refusals(void **state)
{
    static const struct {
        const char *source, *message;
    } wrong[] = {
        {"a\n{% include 'x' %}", "t:2: {% include %} is not supported here"},
        {"\n\n{{ text|groupby('a') }}", "t:3: the filter groupby is not supported"},
        {"{{ text is upper }}", "t:1: the test upper is not supported here"},
        {"{{ nothing.more }}", "t:1: nothing is undefined, and has no more"},
        {"{% if text %}a", "expected {% endif %}"},
        {"{{ text", "the tag does not end"},
        {"{{ 'a' + 1 }}", "+ is not possible with a text and an integer"},
        {"{{ text.format(1) }}", "format is no function or method that is supported"},
        {"{{ strftime_now('%Y') }}", "set [text] date"},
        {"{{ '\u00e9'|upper }}", "beyond ASCII"},
        {"{{ raise_exception('no: ' ~ text) }}", "the template refuses this: no: hi"},
        {"{{ range(1000000)|list }}", "a range of more than"},
        {"{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", "nested too deep"},
        {"{% set x.y = 1 %}", "x is no namespace"},
        {"{% set n = namespace() %}{% set n.a = n %}\n{{ n }}", "t:2: a namespace has no text"},
        {"{% set n = namespace() %}{{ [n]|join }}", "a namespace has no text"},
        {"{% set n = namespace() %}{{ 'a' ~ [n] }}", "a list has no text, or a value within it"},
        {"{% set n = namespace(a=[]) %}{% for i in range(99999) %}{% set n.a = [n.a] %}"
         "{% endfor %}{{ n.a }}",
         "nested too deep"},
        {"{% for a, b in [1] %}{% endfor %}", "2 names are set"},
        {"{{ 1 % 0 }}", "a division by zero"},
        {"{{ (-9223372036854775807 - 1) // -1 }}", "an integer beyond 64 bits"},
        {"{{ 99999999999999999999 }}", "99999999999999999999 is beyond 64 bits"},
        {"{{ (-9223372036854775807 - 1)|abs }}", "an integer beyond 64 bits"},
        {"{{ -(-9223372036854775807 - 1) }}", "an integer beyond 64 bits"},
        {"{{ [9223372036854775807, 1]|sum }}", "an integer beyond 64 bits"},
        {"{{ 1e300|int }}", "1e+300 is no integer of 64 bits"},
        {"{{ '1e300'|int }}", "1e+300 is no integer of 64 bits"},
        {"{{ '99999999999999999999'|int }}", "99999999999999999999 is no integer of 64 bits"},
        {"\n{{ 'x\\ny'|indent(1000000000000) }}", "t:2: a text of more than 67108864 bytes"},
        {"{{ [[1]]|tojson(indent=2147483647) }}", "a text of more than"},
        {"{{ [1]|tojson(indent=9223372036854775807) }}", "a text of more than"},
        {"{{ 'x' * 9223372036854775807 }}", "a text of more than"},
        {"{{ [1]|tojson(separators=[',', ':']) }}", "tojson takes ensure_ascii, indent and"},
        {"{{ [1]|tojson(true, 'x') }}", "the indent of tojson is no integer"},
        {"{{ text.startswith(prefix='h') }}", "startswith takes one text"},
        {"{{ [1].count(value=1) }}", "count takes one value"},
    };
    char out[64], deep[1024];

    (void)state;
    for (size_t i = 0; i < CT_COUNT(wrong); i++) {
        assert_int_equal(render(wrong[i].source, "", out, sizeof(out)), CT_ECONFIG);
        assert_message(wrong[i].message);
    }
    memset(deep, '(', sizeof(deep));
    memcpy(deep, "{{", 2);
    strcpy(deep + sizeof(deep) - 3, "}}");
    assert_int_equal(render(deep, "", out, sizeof(out)), CT_ECONFIG);
    assert_message("nested too deep");
}

static void test_date(void **state)
{
    char out[64];

    (void)state;
    assert_int_equal(render("{{ strftime_now('%d %b %Y, %A') }}", "2026-11-28", out, sizeof(out)),
                     0);
    assert_string_equal(out, "28 Nov 2026, Saturday");
    assert_int_equal(render("{{ [1, 2, 3][1::9223372036854775807] }}", "", out, sizeof(out)), 0);
    assert_string_equal(out, "[2]");
    assert_int_equal(render("{{ strftime_now is defined }}", "", out, sizeof(out)), 0);
    assert_string_equal(out, "False");
}

/* A condition has any number of branches: they take no stack. */
static void *render_branches(void *out)
{
    static const char begin[] = "{% if text == 'a' %}a", more[] = "{% elif text == 'b' %}b",
                      end[] = "{% elif text == 'hi' %}c{% else %}d{% endif %}";
    size_t count = 2000, size = strlen(more);
    char *source = malloc(sizeof(begin) + count * size + sizeof(end)), *at = source;
    int rc;

    at = stpcpy(at, begin);
    for (size_t i = 0; i < count; i++)
        at = stpcpy(at, more);
    strcpy(at, end);
    rc = render(source, "", out, 64);
    free(source);
    return rc < 0 ? NULL : out;
}

static void test_branches(void **state)
{
    char out[64];
    pthread_attr_t small;
    pthread_t thread;
    void *rendered;

    (void)state;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 << 10);
    assert_int_equal(pthread_create(&thread, &small, render_branches, out), 0);
    pthread_join(thread, &rendered);
    assert_ptr_equal(rendered, out);
    assert_string_equal(out, "c");
}

static void test_integers(void **state)
{
    static const struct {
        const char *source, *text;
    } right[] = {
        {"{{ (-9223372036854775807 - 1) is divisibleby(-1) }}", "True"},
        {"{{ '-9223372036854775808'|int }}", "-9223372036854775808"},
        {"{{ 'inf'|int(7) }} {{ '2.5e3'|int }} {{ -2.5|int }}", "7 2500 -2"},
        {"{{ [1, 2.5, true]|sum }} {{ []|sum }}", "4.5 0"},
        {"{{ '' * 9223372036854775807 }}", ""},
    };
    char out[64];

    (void)state;
    for (size_t i = 0; i < CT_COUNT(right); i++) {
        assert_int_equal(render(right[i].source, "", out, sizeof(out)), 0);
        assert_string_equal(out, right[i].text);
    }
}

/* As Python's json.dumps, by the arguments that transformers' tojson has, in its order. */
static void test_json(void **state)
{
    static const struct {
        const char *source, *text;
    } right[] = {
        {"{{ 'a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f'|tojson(ensure_ascii=true) }}",
         "\"a\\u00e9\\u20ac\\ud83d\\ude00\\u007f\""},
        {"{{ 'a\xc3\xa9\x7f'|tojson(ensure_ascii=false) }}", "\"a\xc3\xa9\x7f\""},
        {"{{ {'\xc3\xa9': [1]}|tojson(true, 1) }}", "{\n \"\\u00e9\": [\n  1\n ]\n}"},
        {"{{ [1, 2]|tojson(4) }}", "[1, 2]"},
        {"{{ [1, 2]|tojson(indent=0) }}", "[\n1,\n2\n]"},
        {"{{ [1, 2]|tojson(indent=none) }}", "[1, 2]"},
        {"{{ {'b': 1, 'a': 2}|tojson(false, none, none, true) }}", "{\"a\": 2, \"b\": 1}"},
    };
    char out[64];

    (void)state;
    for (size_t i = 0; i < CT_COUNT(right); i++) {
        assert_int_equal(render(right[i].source, "", out, sizeof(out)), 0);
        assert_string_equal(out, right[i].text);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),    cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_date),     cmocka_unit_test(test_branches),
        cmocka_unit_test(test_integers), cmocka_unit_test(test_json)};

    if (argc != 3)
        return 2;
    cases_path = argv[1];
    templates = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
