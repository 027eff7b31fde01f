/*
 * Command lines by a table.
 */
#include <ctitan/verb.h>

#include "assertions.h"

struct request {
    const char *from, *to, *name, *format;
    struct ct_texts rest, with;
    bool force, json;
    int64_t count;
    double ratio, memory;
    char taken[64];
};

static int take(void *at, struct ct_arena *arena, const char *option, const char *value)
{
    (void)arena;
    if (!strcmp(value, "bad"))
        return ct_fail(CT_ECONFIG, "%s bad: not that", option);
    strcat(strcat(at, option), value);
    return 0;
}

static const struct ct_argument table[] = {
    CT_ARG_CHOSEN(struct request, format, "FORMAT", "ini|json", "How it is written"),
    CT_ARG_WORD(struct request, from, "FROM", "Where it is from"),
    CT_ARG_OPTIONAL(struct request, to, "TO", "Where it goes"),
    CT_ARG_FLAG(struct request, force, "force", 'f', "Replace it"),
    CT_ARG_FLAG(struct request, json, "json", 0, "Print JSON"),
    CT_ARG_TEXT(struct request, name, "name", 0, "NAME", "Its name"),
    CT_ARG_TEXTS(struct request, with, "with", 'w', "PLUGIN", "One more"),
    CT_ARG_INT(struct request, count, "max-count", 'n', "N", 1, 10, "How many"),
    CT_ARG_FLOAT(struct request, ratio, "ratio", 0, "R", 0, 1, "How much"),
    CT_ARG_BYTES(struct request, memory, "memory", 0, "BYTES", "How large"),
    CT_ARG_TAKE(struct request, taken, "take", 't', "THING", "What is taken", take),
    {0}};
static const struct ct_argument several[] = {
    CT_ARG_WORDS(struct request, rest, "RUN", 1, 3, "Runs"), {0}};
static const struct ct_argument none[] = {{0}};

static struct ct_arena arena;

/* Parse "verb WORD..", separated by spaces. */
static int parse(const struct ct_argument *rows, const char *line, struct request *r)
{
    char *argv[32] = {"verb"}, *rest = ct_arena_strdup(&arena, line);
    int argc = 1;

    *r = (struct request){0};
    for (char *word; (word = strsep(&rest, " "));)
        if (*word)
            argv[argc++] = word;
    return ct_arguments_parse(rows, argc, argv, &arena, r);
}

static void values_go_where_the_table_says(void **state)
{
    struct request r;

    (void)state;
    assert_int_equal(parse(table,
                           "--force ini -n 3 a --with x -wy --with=z= b --name=u=v --ratio .5 "
                           "--memory 1.5G --take p -tq --take=r -q",
                           &r),
                     0);
    assert_true(r.force && !r.json);
    assert_string_equal(r.format, "ini");
    assert_string_equal(r.from, "a");
    assert_string_equal(r.to, "b");
    assert_string_equal(r.name, "u=v");
    assert_int_equal(r.count, 3);
    assert_true(r.ratio == 0.5 && r.memory == 1.5 * (1 << 30));
    assert_int_equal(r.with.count, 3);
    assert_string_equal(r.with.at[1], "y");
    assert_string_equal(r.with.at[2], "z=");
    assert_string_equal(r.taken, "--takep-tq--taker");
    assert_int_equal(parse(table, "json - -n5 -- --force", &r), 0);
    assert_string_equal(r.from, "-");
    assert_string_equal(r.to, "--force");
    assert_int_equal(r.count, 5);
    assert_int_equal(parse(table, "json a --name --force", &r), 0); /* a value, whatever it is */
    assert_string_equal(r.name, "--force");
    assert_int_equal(parse(several, "a b c", &r), 0);
    assert_int_equal(r.rest.count, 3);
}

static void mistakes_are_named(void **state)
{
    static const struct {
        const struct ct_argument *rows;
        const char *line, *expected;
    } mistakes[] = {
        {table, "", "verb: ini|json is missing: how it is written; `ctitan help verb` shows the"},
        {table, "ini", "verb: FROM is missing: where it is from"},
        {table, "ini a b c", "expected ini|json FROM [TO], but there is also c"},
        {table, "inj a", "verb inj: expected ini or json; did you mean ini?"},
        {table, "ini a --forse", "verb has no option --forse; did you mean --force?"},
        {table, "ini a --max_count 3", "no option --max_count; did you mean --max-count?"},
        {table, "ini a --zzzzzz", "verb has no option --zzzzzz; `ctitan help verb` lists them"},
        {table, "ini a -x", "verb has no option -x"},
        {table, "ini a --quite", "did you mean --quiet?"},
        {table, "ini a --name", "verb: --name needs a value, NAME"},
        {table, "ini a --force=yes", "verb: --force takes no value"},
        {table, "ini a -fx", "verb: -f takes no value"},
        {table, "ini a -n 0", "-n 0: expected a number, at least 1"},
        {table, "ini a --max-count 11", "--max-count 11: expected a number, at most 10"},
        {table, "ini a -n 3x", "-n 3x: expected a number"},
        {table, "ini a -n 99999999999999999999", "expected a number, at most 10"},
        {table, "ini a --ratio nan", "--ratio nan: expected a number from 0 to 1"},
        {table, "ini a --memory 80X", "--memory 80X: expected bytes, like 80G"},
        {table, "ini a --take bad", "--take bad: not that"},
        {several, "", "verb: RUN is missing: runs"},
        {several, "a b c d", "RUN... (3 at most), but there is also d"},
        {none, "now", "verb takes options only, but there is now; `ctitan help verb` shows them"},
    };
    struct request r;

    (void)state;
    for (size_t i = 0; i < CT_COUNT(mistakes); i++)
        assert_fails(parse(mistakes[i].rows, mistakes[i].line, &r), CT_ECONFIG,
                     mistakes[i].expected);
}

static struct ct_common_arguments common_of(const struct ct_argument *rows, const char *a,
                                            const char *b)
{
    struct ct_common_arguments common;
    char *argv[] = {"verb", (char *)(uintptr_t)a, (char *)(uintptr_t)b, NULL};

    ct_arguments_common(rows, b ? 3 : 2, argv, &common);
    return common;
}

static void all_verbs_have_some_options(void **state)
{
    (void)state;
    assert_true(common_of(table, "ini", "--help").help);
    assert_true(common_of(table, "-h", NULL).help);
    assert_true(common_of(NULL, "-h", NULL).help);
    assert_true(common_of(table, "-q", "--verbose").quiet);
    assert_true(common_of(table, "-q", "--verbose").verbose);
    assert_false(common_of(table, "--name", "-h").help); /* a value */
    assert_false(common_of(table, "--", "-h").help);     /* a word */
}

static void labels_show_names_and_values(void **state)
{
    char text[64];

    (void)state;
    ct_argument_print(&table[7], true, text, sizeof(text));
    assert_string_equal(text, "-n, --max-count N");
    ct_argument_print(&table[7], false, text, sizeof(text));
    assert_string_equal(text, "-n N");
    ct_argument_print(&table[0], true, text, sizeof(text));
    assert_string_equal(text, "ini|json");
    ct_argument_print(&several[0], true, text, sizeof(text));
    assert_string_equal(text, "RUN...");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_go_where_the_table_says),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(all_verbs_have_some_options),
        cmocka_unit_test(labels_show_names_and_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
