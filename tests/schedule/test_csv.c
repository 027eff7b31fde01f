/*
 * Schedules as torch's CSV, read and written; and what communication, prefetching and times do to a
 * schedule small enough to be looked at.
 */
#include <math.h>

#include "support.h"

static struct ct_arena arena;
static const char *folder;

static int read_text(const char *csv, size_t size, int ranks, int stages, int microbatches,
                     struct ct_schedule **s)
{
    const char *path = ct_arena_printf(&arena, "%s/s.csv", folder);

    test_write(path, csv, size);
    return ct_schedule_read_csv(&arena, path, ranks, stages, microbatches, s);
}

static const char *csv_of(const struct ct_schedule *s)
{
    char *text, *kept;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    ct_schedule_write_csv(s, out);
    fclose(out);
    kept = ct_arena_strdup(&arena, text);
    free(text);
    return kept;
}

static void assert_csv(const struct ct_schedule *s, const char *expected)
{
    const char *csv = csv_of(s);

    if (strcmp(csv, expected))
        fail_msg("expected\n%sand it is\n%s", expected, csv);
}

/* ---- round trips ---- */

static void check_round_trip(const struct ct_schedule *s)
{
    const char *csv = csv_of(s);
    struct ct_schedule *again;

    assert_works(read_text(csv, strlen(csv), s->ranks, s->stages, s->microbatches, &again));
    assert_int_equal(again->ranks, s->ranks);
    assert_int_equal(again->stages, s->stages);
    assert_int_equal(again->microbatches, s->microbatches);
    assert_memory_equal(again->rank_of, s->rank_of, sizeof(int) * (size_t)s->stages);
    assert_int_equal(again->communicates, s->communicates);
    assert_int_equal(again->forward_only, s->forward_only);
    assert_csv(again, csv);
}

static void every_schedule_reads_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < CT_COUNT(kinds); i++) {
        struct ct_schedule *s;

        assert_works(generate(&arena, &kinds[i], 4, 9, &s));
        check_round_trip(s);
        assert_works(ct_schedule_communicate(s, &everything));
        check_round_trip(s);
    }
}

static void forwards_alone_read_back(void **state)
{
    static const int rank_of[] = {0, 1, 1, 0};
    struct ct_schedule_request request = {2, 4, 5, &arena};
    struct ct_schedule *s;

    (void)state;
    assert_works(ct_schedule_forward_only(&request, rank_of, &s));
    check_round_trip(s);
    assert_csv(s, "0F0,0F1,3F0,3F1,0F2,0F3,3F2,3F3,0F4,3F4\n"
                  "1F0,1F1,2F0,2F1,1F2,1F3,2F2,2F3,1F4,2F4\n");
}

/* ---- torch's files ---- */

/* Files of torch before 2.15 have no waits, and of the same actions otherwise. */
static void waits_are_read_written_and_not_needed(void **state)
{
    static const char waits[] = "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0\n"
                                "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0\n";
    static const char none[] = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";
    static const char *const wrong[][2] = {
        {"0F0,0WAIT_SEND_F0,0SEND_F0\n1RECV_F0,1F0\n", "there is no 0SEND_F0 before it"},
        {"0F0,0SEND_F0,0WAIT_RECV_B0\n1RECV_F0,1F0\n", "only sends and reductions"},
        {"0F0,0SEND_F0,0WAIT_SENDF0\n1RECV_F0,1F0\n", "row 1, column 3"},
    };
    struct ct_schedule *s;

    (void)state;
    assert_works(read_text(waits, strlen(waits), 2, 2, 1, &s));
    assert_int_equal(s->lists[0].count, 4);
    assert_works(ct_schedule_verify(s, NULL, NULL));
    assert_csv(s, waits);
    assert_works(read_text(none, strlen(none), 2, 2, 1, &s));
    assert_csv(s, waits);
    for (size_t i = 0; i < CT_COUNT(wrong); i++) {
        assert_int_equal(read_text(wrong[i][0], strlen(wrong[i][0]), -1, -1, -1, &s), CT_ECONFIG);
        assert_message(wrong[i][1]);
    }
}

static void a_custom_schedule_of_compute_actions(void **state)
{
    const char *path = ct_arena_printf(&arena, "%s/custom_schedule.csv", getenv("SCHEDULE_TESTS"));
    struct ct_schedule *s;

    (void)state;
    assert_works(ct_schedule_read_csv(&arena, path, 2, 4, 8, &s));
    assert_false(s->communicates);
    assert_int_equal(s->lists[0].count, 48);
    assert_int_equal(s->lists[1].count, 48);
    assert_int_equal(s->rank_of[2], 0);
    assert_int_equal(s->rank_of[3], 1);
    assert_works(ct_schedule_verify(s, NULL, NULL));
    assert_works(ct_schedule_communicate(s, &everything));
    assert_works(ct_schedule_verify(s, NULL, NULL));
}

static void idle_cells_blanks_and_line_ends_do_not_matter(void **state)
{
    static const char csv[] = "0F0,,, 0F1 ,0B0,0B1,,\r\n,,1F0\t,1B0,1F1,1B1";
    struct ct_schedule *s;

    (void)state;
    assert_works(read_text(csv, strlen(csv), -1, -1, -1, &s));
    assert_csv(s, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    assert_int_equal(s->microbatches, 2);
}

static void mistakes_are_told_with_row_and_column(void **state)
{
    static const struct {
        const char *csv;
        int ranks, stages, microbatches;
        const char *expected;
    } bad[] = {
        {"0F0,0B0\n1F0,,1G0\n", -1, -1, -1, "s.csv, row 2, column 3: action '1G0': no type"},
        {"0F0,0B0,F1\n", -1, -1, -1,
         "row 1, column 3: action 'F1': expected the number of a stage"},
        {"0F0,0F0 0B0\n", -1, -1, -1, "row 1, column 2: action '0F0 0B0': ' 0B0' after its end"},
        {"0F0,0B0\n0F1,0B1\n", -1, -1, -1,
         "row 2, column 1: stage 0 is on rank 0, and cannot be on rank 1 too"},
        {"0F0,0B0\n2F0,2B0\n", -1, -1, -1, "stage 1 is on no rank, though there is a stage 2"},
        {"0F0,0B0\n1F0,1B0\n", 3, -1, -1, "the schedule is for 2 ranks, not 3"},
        {"0F0,0B0\n1F0,1B0\n", 2, 4, -1, "the schedule is for 2 stages, not 4"},
        {"0F0,0B0\n1F0,1B0\n", 2, 2, 8, "the schedule is for 1 microbatches, not 8"},
        {"", -1, -1, -1, "it has no action"},
        {",,\n\n", -1, -1, -1, "it has no action"},
        {"0UNSHARD\n", -1, -1, -1, "it has no action"},
        {"2000000F0\n", -1, -1, -1, "row 1, column 1: stages and microbatches must be below"},
        {"0F0,700000F900000\n", -1, -1, -1, "row 1, column 2: "},
    };
    struct ct_schedule *s;

    (void)state;
    for (size_t i = 0; i + 1 < CT_COUNT(bad); i++) {
        int rc = read_text(bad[i].csv, strlen(bad[i].csv), bad[i].ranks, bad[i].stages,
                           bad[i].microbatches, &s);

        assert_int_equal(rc, CT_ECONFIG);
        assert_message(bad[i].expected);
    }
    assert_int_equal(read_text("0F0\0,0B0", 8, -1, -1, -1, &s), CT_ECONFIG);
    assert_message("zero byte");
    assert_int_equal(ct_schedule_read_csv(&arena, "/none.csv", -1, -1, -1, &s), CT_ENOENT);
}

static void random_text_is_refused_or_reads_back(void **state)
{
    static const char letters[] = "0123FFFBBIW,,,,\nUNSHARDSEND_F";
    uint64_t random = 42;
    int good = 0;

    (void)state;
    for (int i = 0; i < 1500; i++) {
        char text[40];
        size_t length = (size_t)i % sizeof(text);
        struct ct_schedule *s;

        for (size_t k = 0; k < length; k++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            text[k] = k % 4 == 3 ? ',' : letters[random % (sizeof(letters) - 1)];
            if (k % 4 != 3 && k % 4 != 1)
                text[k] = (char)('0' + random % 2);
        }
        if (read_text(text, length, -1, -1, -1, &s) < 0)
            continue;
        good++;
        ct_schedule_verify(s, NULL, NULL);
        check_round_trip(s);
    }
    assert_true(good > 20);
}

/* ---- what is added ---- */

static void communication_is_what_it_looks_like(void **state)
{
    struct ct_schedule *s;

    (void)state;
    assert_works(generate(&arena, &(struct kind){"1f1b", 1}, 2, 3, &s));
    assert_csv(s, "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
    assert_works(ct_schedule_communicate(s, &everything));
    assert_csv(s, "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0F2,0RECV_B1,"
                  "0SEND_F2,0B1,0WAIT_SEND_F1,0RECV_B2,0B2,0WAIT_SEND_F2,0REDUCE_GRAD,"
                  "0WAIT_REDUCE_GRAD,0RESHARD\n"
                  "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1RECV_F2,1F2,1B2,"
                  "1SEND_B2,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1RESHARD,1WAIT_SEND_B0,1WAIT_SEND_B1,"
                  "1WAIT_SEND_B2\n");
    assert_int_equal(ct_schedule_communicate(s, &everything), CT_EINVAL);
    assert_message("has communication already");
}

static void only_the_next_stages_are_unsharded(void **state)
{
    struct ct_communicate_options options = {.unshard = true, .unsharded_most = 2};
    struct ct_schedule *s;

    (void)state;
    assert_works(generate(&arena, &(struct kind){"looped_bfs", 3}, 1, 2, &s));
    assert_works(ct_schedule_communicate(s, &options));
    assert_csv(s, "0UNSHARD,1UNSHARD,0F0,0F1,0RESHARD,2UNSHARD,1F0,1F1,2F0,2F1,2B1,2B0,2RESHARD,"
                  "0UNSHARD,1B1,1B0,1RESHARD,0B1,0B0,0RESHARD\n");
    assert_works(ct_schedule_verify(s, NULL, NULL));
    assert_works(generate(&arena, &(struct kind){"dualpipe_v", 2}, 2, 4, &s));
    options.unsharded_most = 1;
    assert_int_equal(ct_schedule_communicate(s, &options), CT_EINVAL);
    assert_message("must be unsharded at the same time");
    options.unsharded_most = 0;
    assert_int_equal(ct_schedule_communicate(s, &options), CT_EINVAL);
    assert_message("at least one is required");
}

static void what_cannot_run_gets_no_communication(void **state)
{
    static const char csv[] = "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n";
    struct ct_schedule *s;

    (void)state;
    assert_works(read_text(csv, strlen(csv), -1, -1, -1, &s));
    assert_int_equal(ct_schedule_communicate(s, &everything), CT_EINVAL);
    assert_message("deadlock: rank 0 cannot do 0B0 (action 2) before rank 1 gets past 1F1");
    assert_csv(s, csv);
}

static size_t computed_between(const struct ct_action_list *list, size_t from, size_t to)
{
    size_t count = 0;

    for (size_t i = from; i < to; i++)
        count += list->item[i].type == CT_ACTION_F || list->item[i].type == CT_ACTION_B ||
                 list->item[i].type == CT_ACTION_I || list->item[i].type == CT_ACTION_W;
    return count;
}

/* Each receive has a compute action between itself and its consumer, if there is one before. */
static void receives_are_asked_for_one_action_ahead(void **state)
{
    struct ct_schedule *s;

    (void)state;
    assert_works(generate(&arena, &(struct kind){"interleaved_zero_bubble", 2}, 4, 8, &s));
    assert_int_equal(ct_schedule_prefetch(s), CT_EINVAL);
    assert_message("no communication to prefetch");
    assert_works(ct_schedule_communicate(s, &everything));
    assert_works(ct_schedule_prefetch(s));
    assert_true(s->own_streams);
    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < s->lists[r].count; i++) {
            const struct ct_action *a = &s->lists[r].item[i];
            enum ct_action_type user = a->type == CT_ACTION_RECV_F ? CT_ACTION_F : CT_ACTION_I;
            size_t use = i;

            if (a->type != CT_ACTION_RECV_F && a->type != CT_ACTION_RECV_B)
                continue;
            while (s->lists[r].item[use].type != user || s->lists[r].item[use].stage != a->stage ||
                   s->lists[r].item[use].microbatch != a->microbatch)
                use++;
            assert_true(computed_between(&s->lists[r], i, use) > 0 ||
                        computed_between(&s->lists[r], 0, use) == 0);
        }
}

/* ---- times ---- */

static void times_of_stages_and_transfers(void **state)
{
    static const double forward[] = {1, 3}, input[] = {2, 1}, weight[] = {1, 2};
    struct ct_costs costs = {
        .forward_of = forward, .input_of = input, .weight_of = weight, .send = 0.5};
    struct ct_schedule *s;
    struct ct_simulation x;

    (void)state;
    assert_works(generate(&arena, &(struct kind){"gpipe", 1}, 2, 1, &s));
    assert_works(ct_schedule_simulate(s, &costs, &arena, &x));
    /* F 1, transfer, F 3, B 3, transfer, B 3 */
    assert_true(x.makespan == 1 + 0.5 + 3 + 3 + 0.5 + 3);
    assert_true(x.busy[0] == 4 && x.busy[1] == 6);
    assert_true(x.bubble == x.makespan - 6);
    assert_true(x.start[1][0] == 1.5 && x.end[1][1] == 7.5);
    assert_works(ct_schedule_communicate(s, &everything));
    assert_works(ct_schedule_simulate(s, &costs, &arena, &x));
    assert_true(x.makespan == 11);
}

/* The order of transfers is made for the times that it is given. */
static void an_order_made_for_the_times_is_faster(void **state)
{
    struct ct_costs costs = {.forward = 1, .input = 1.3, .weight = 0.7};
    struct ct_communicate_options options = everything;
    struct ct_simulation with, without;
    struct ct_schedule *s;

    (void)state;
    assert_works(generate(&arena, &(struct kind){"zb1p", 1}, 8, 32, &s));
    assert_works(ct_schedule_communicate(s, &options));
    assert_works(ct_schedule_simulate(s, &costs, &arena, &without));
    assert_works(generate(&arena, &(struct kind){"zb1p", 1}, 8, 32, &s));
    options.costs = &costs;
    assert_works(ct_schedule_communicate(s, &options));
    assert_works(ct_schedule_simulate(s, &costs, &arena, &with));
    assert_true(fabs(with.bubble - 7 * (1 + 1.3 - 0.7)) < 1e-9);
    assert_true(without.bubble > with.bubble + 1);
}

static void overlapped_pairs_may_take_less(void **state)
{
    struct ct_costs costs = {.forward = 1, .input = 1, .weight = 1};
    struct ct_schedule *s;
    struct ct_simulation apart, together;

    (void)state;
    assert_works(generate(&arena, &(struct kind){"dualpipe_v", 2}, 4, 16, &s));
    assert_works(ct_schedule_simulate(s, &costs, &arena, &apart));
    costs.overlap = 0.75;
    assert_works(ct_schedule_simulate(s, &costs, &arena, &together));
    assert_true(together.makespan < 0.85 * apart.makespan);
}

static int make(void **state)
{
    (void)state;
    folder = test_folder();
    return 0;
}

static int finish(void **state)
{
    (void)state;
    test_remove(folder);
    ct_arena_finish(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_reads_back),
        cmocka_unit_test(forwards_alone_read_back),
        cmocka_unit_test(waits_are_read_written_and_not_needed),
        cmocka_unit_test(a_custom_schedule_of_compute_actions),
        cmocka_unit_test(idle_cells_blanks_and_line_ends_do_not_matter),
        cmocka_unit_test(mistakes_are_told_with_row_and_column),
        cmocka_unit_test(random_text_is_refused_or_reads_back),
        cmocka_unit_test(communication_is_what_it_looks_like),
        cmocka_unit_test(only_the_next_stages_are_unsharded),
        cmocka_unit_test(what_cannot_run_gets_no_communication),
        cmocka_unit_test(receives_are_asked_for_one_action_ahead),
        cmocka_unit_test(times_of_stages_and_transfers),
        cmocka_unit_test(an_order_made_for_the_times_is_faster),
        cmocka_unit_test(overlapped_pairs_may_take_less),
    };

    return cmocka_run_group_tests(tests, make, finish);
}
