#include "assertions.h"

#include <ctitan/lib/pipeline.h>

static void actions_read_back(void **state)
{
    static const char *const texts[] = {
        "0F0",      "12B345",   "3I1",      "3W1",      "1UNSHARD",     "1RESHARD",
        "2SEND_F7", "2RECV_F7", "2SEND_B7", "2RECV_B7", "0REDUCE_GRAD", "(3F1;2B0)OVERLAP_F_B"};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(texts); i++) {
        struct ct_action action;
        char text[64];

        assert_int_equal(ct_action_parse(texts[i], &action), 0);
        assert_int_equal(ct_action_print(&action, text, sizeof(text)), strlen(texts[i]));
        assert_string_equal(text, texts[i]);
    }
}

static void bad_actions_say_what_is_wrong(void **state)
{
    static const struct {
        const char *text, *expected;
    } bad[] = {{"", "expected the number of a stage"},
               {"F0", "expected the number of a stage at 'F0'"},
               {"0", "no type of action at ''"},
               {"0X1", "no type of action at 'X1'"},
               {"0F", "expected the number of a microbatch"},
               {"1UNSHARD3", "'3' after its end"},
               {"0F0 ", "' ' after its end"},
               {"-1F0", "expected the number of a stage"},
               {"99999999999F0", "stage is too large"},
               {"0F99999999999", "microbatch is too large"},
               {"(0F0", "expected ';' after the forward"},
               {"(0F0;1B0", "expected ')' after the backward"},
               {"(0F0;1B0)", "no type of action"},
               {"(0B0;1B0)OVERLAP_F_B", "a pair is an F and a B"},
               {"(0F0;1B0)F", "a pair is an F and a B"},
               {"0OVERLAP_F_B0", "is written (1F0;0B0)OVERLAP_F_B"}};
    struct ct_action action;

    (void)state;
    for (size_t i = 0; i < CT_COUNT(bad); i++)
        assert_fails(ct_action_parse(bad[i].text, &action), CT_EINVAL, bad[i].expected);
}

static void random_text_is_refused_or_reads_back(void **state)
{
    static const char letters[] = "0123456789FIWBUNSHARDECVSEND_FRGOLP();";
    uint64_t random = 42;
    int good = 0;

    (void)state;
    for (int i = 0; i < 300000; i++) {
        char text[24], again[64];
        struct ct_action action, same;
        size_t length = unit_random(&random) % (sizeof(text) - 1);

        for (size_t k = 0; k < length; k++)
            text[k] = i % 2 ? letters[unit_random(&random) % (sizeof(letters) - 1)]
                            : (char)(unit_random(&random) % 255 + 1);
        text[length] = '\0';
        if (ct_action_parse(text, &action) < 0)
            continue;
        good++;
        assert_true(ct_action_print(&action, again, sizeof(again)) < (int)sizeof(again));
        assert_int_equal(ct_action_parse(again, &same), 0);
        assert_memory_equal(&action, &same, sizeof(action));
    }
    assert_true(good > 50);
}

static void print_list(const struct ct_action_list *list, char *text)
{
    *text = '\0';
    for (size_t i = 0; i < list->count; i++) {
        char one[64];

        ct_action_print(&list->item[i], one, sizeof(one));
        strcat(strcat(text, i ? " " : ""), one);
    }
}

static void the_trivial_schedules(void **state)
{
    struct ct_arena arena = {0};
    struct ct_schedule_request request = {1, 2, 2, &arena};
    struct ct_action_list training = {0}, forward = {0};
    char text[256];

    (void)state;
    ct_schedule_trivial(&request, &training);
    print_list(&training, text);
    assert_string_equal(text, "0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1");
    ct_schedule_forward(&request, &forward);
    print_list(&forward, text);
    assert_string_equal(text, "0F0 1F0 0F1 1F1");
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(actions_read_back),
        cmocka_unit_test(bad_actions_say_what_is_wrong),
        cmocka_unit_test(random_text_is_refused_or_reads_back),
        cmocka_unit_test(the_trivial_schedules),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
