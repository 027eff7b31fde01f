/*
 * The proof of schedules: every schedule passes it, and what harms a run does not. Lists are harmed
 * in many ways, and a machine that runs them decides whether the harm is real.
 */
#include "machine.h"
#include "support.h"

static uint64_t state = 88172645463325252u;

static size_t random_below(size_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (size_t)(state % n);
}

/* ---- what is right passes ---- */

static void check_right(const struct ct_schedule *s, bool own_streams)
{
    const char *wrong = machine_run(s, own_streams);

    if (wrong)
        fail_msg("%s, %d ranks, %d microbatches: %s", s->name, s->ranks, s->microbatches, wrong);
    assert_works(ct_schedule_verify(s, NULL, NULL));
}

static void check_all_forms(struct ct_schedule *s)
{
    assert_works(ct_schedule_verify(s, NULL, NULL));
    assert_works(ct_schedule_communicate(s, &everything));
    check_right(s, true);
    check_right(s, false);
    assert_works(ct_schedule_prefetch(s));
    check_right(s, true);
}

static void every_schedule_is_right(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < CT_COUNT(kinds); i++)
        for (int p = 1; p <= 5; p++)
            for (int m = 1; m <= 13; m++) {
                struct ct_arena arena = {0};
                struct ct_schedule *s;

                if (generate(&arena, &kinds[i], p, m, &s) == 0)
                    check_all_forms(s);
                else
                    assert_true(!strcmp(kinds[i].name, "dualpipe_v") && m < 2 * p);
                ct_arena_finish(&arena);
            }
}

static void forwards_alone_are_right(void **unused)
{
    static const int ranks_of[][8] = {
        {0, 1, 2, 3, 0, 1, 2, 3}, {0, 1, 2, 3, 3, 2, 1, 0}, {0, 0, 1, 1, 2, 2, 3, 3}};

    (void)unused;
    for (size_t i = 0; i < CT_COUNT(ranks_of); i++)
        for (int m = 1; m <= 9; m++) {
            struct ct_arena arena = {0};
            struct ct_schedule_request request = {4, 8, m, &arena};
            struct ct_communicate_options options = {.unshard = true, .unsharded_most = 1};
            struct ct_schedule *s;

            assert_works(ct_schedule_forward_only(&request, ranks_of[i], &s));
            assert_works(ct_schedule_verify(s, NULL, NULL));
            assert_works(ct_schedule_communicate(s, &options));
            check_right(s, true);
            check_right(s, false);
            ct_arena_finish(&arena);
        }
}

/* ---- harm ---- */

struct place {
    int rank;
    size_t at;
};

static struct place random_place(const struct ct_schedule *s)
{
    struct place p;

    do
        p.rank = (int)random_below((size_t)s->ranks);
    while (!s->lists[p.rank].count);
    p.at = random_below(s->lists[p.rank].count);
    return p;
}

static void drop(struct ct_schedule *s)
{
    struct place p = random_place(s);
    struct ct_action_list *list = &s->lists[p.rank];

    list->count--;
    memmove(&list->item[p.at], &list->item[p.at + 1], sizeof(*list->item) * (list->count - p.at));
}

static void insert(struct ct_schedule *s, int rank, size_t at, struct ct_action action)
{
    struct ct_action_list *list = &s->lists[rank];

    ct_action_append(s->arena, list, action);
    memmove(&list->item[at + 1], &list->item[at], sizeof(action) * (list->count - 1 - at));
    list->item[at] = action;
}

static void duplicate(struct ct_schedule *s)
{
    struct place from = random_place(s), to = random_place(s);

    insert(s, to.rank, to.at, s->lists[from.rank].item[from.at]);
}

static void swap_neighbours(struct ct_schedule *s)
{
    struct place p = random_place(s);
    struct ct_action *a = &s->lists[p.rank].item[p.at ? p.at - 1 : 0],
                     *b = &s->lists[p.rank].item[p.at], c = *a;

    *a = *b;
    *b = c;
}

static void swap_any(struct ct_schedule *s)
{
    struct place p = random_place(s), q = {p.rank, random_below(s->lists[p.rank].count)};
    struct ct_action *a = &s->lists[p.rank].item[p.at], *b = &s->lists[q.rank].item[q.at], c = *a;

    *a = *b;
    *b = c;
}

static void move_elsewhere(struct ct_schedule *s)
{
    struct place p = random_place(s);
    struct ct_action action = s->lists[p.rank].item[p.at];
    struct ct_action_list *list = &s->lists[p.rank];

    list->count--;
    memmove(&list->item[p.at], &list->item[p.at + 1], sizeof(*list->item) * (list->count - p.at));
    insert(s, p.rank, random_below(list->count + 1), action);
}

static void other_stage(struct ct_schedule *s)
{
    struct place p = random_place(s);

    s->lists[p.rank].item[p.at].stage = (int)random_below((size_t)s->stages + 1);
}

static void other_microbatch(struct ct_schedule *s)
{
    struct place p = random_place(s);

    s->lists[p.rank].item[p.at].microbatch = (int)random_below((size_t)s->microbatches + 1);
}

static void other_type(struct ct_schedule *s)
{
    struct place p = random_place(s);

    s->lists[p.rank].item[p.at].type = (enum ct_action_type)random_below(CT_ACTION_TYPES);
}

/* Two of one rank's actions of one type change places. */
static void reverse(struct ct_schedule *s, enum ct_action_type type)
{
    struct place p = random_place(s);
    struct ct_action_list *list = &s->lists[p.rank];
    struct ct_action *two[2] = {NULL, NULL}, swapped;

    for (size_t i = p.at; i < list->count && !two[1]; i++)
        if (list->item[i].type == type)
            two[two[0] != NULL] = &list->item[i];
    if (!two[1])
        return;
    swapped = *two[0];
    *two[0] = *two[1];
    *two[1] = swapped;
}

static void reverse_sends(struct ct_schedule *s)
{
    reverse(s, random_below(2) ? CT_ACTION_SEND_F : CT_ACTION_SEND_B);
}

static void reverse_receives(struct ct_schedule *s)
{
    reverse(s, random_below(2) ? CT_ACTION_RECV_F : CT_ACTION_RECV_B);
}

static void reverse_computing(struct ct_schedule *s)
{
    static const enum ct_action_type types[] = {CT_ACTION_F, CT_ACTION_B, CT_ACTION_I, CT_ACTION_W};

    reverse(s, types[random_below(CT_COUNT(types))]);
}

static const struct harm {
    const char *name;
    void (*apply)(struct ct_schedule *s);
    bool reorders; /* and does nothing else: the proof must agree with the machine both ways */
} harms[] = {
    {"drop", drop, false},
    {"duplicate", duplicate, false},
    {"swap neighbours", swap_neighbours, true},
    {"swap any", swap_any, true},
    {"move", move_elsewhere, true},
    {"other stage", other_stage, false},
    {"other microbatch", other_microbatch, false},
    {"other type", other_type, false},
    {"reverse sends", reverse_sends, true},
    {"reverse receives", reverse_receives, true},
    {"reverse computing", reverse_computing, true},
};

static void print_lists(const struct ct_schedule *s)
{
    ct_schedule_write_csv(s, stderr);
}

static struct ct_schedule *copy(struct ct_arena *arena, const struct ct_schedule *s)
{
    struct ct_schedule *c = ct_arena_copy(arena, s, sizeof(*s));

    c->arena = arena;
    c->lists = ct_arena_array(arena, struct ct_action_list, s->ranks);
    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < s->lists[r].count; i++)
            ct_action_append(arena, &c->lists[r], s->lists[r].item[i]);
    return c;
}

struct tally {
    int broken, accepted, harmless_but_refused;
};

/* One harmed copy: is it refused if it breaks the run? */
static void harm_once(const struct ct_schedule *s, const struct harm *harm, struct tally *tally)
{
    struct ct_arena arena = {0};
    struct ct_schedule *harmed = copy(&arena, s);
    const char *wrong;
    bool refused;

    harm->apply(harmed);
    wrong = machine_run(harmed, true);
    if (!wrong && !s->own_streams)
        wrong = machine_run(harmed, false);
    refused = ct_schedule_verify(harmed, NULL, NULL) < 0;
    if (wrong && !refused) {
        print_lists(harmed);
        fail_msg("%s, harmed by %s, is accepted, but: %s", s->name, harm->name, wrong);
    }
    if (harm->reorders && !wrong && refused) {
        print_lists(harmed);
        fail_msg("%s, reordered by %s, runs, but is refused: %s", s->name, harm->name,
                 ct_error_message());
    }
    tally->broken += wrong != NULL;
    tally->accepted += !refused;
    tally->harmless_but_refused += !wrong && refused;
    ct_arena_finish(&arena);
}

static void harm_kind(const struct kind *kind, bool prefetch, struct tally *tally)
{
    static const int sizes[][2] = {{2, 4}, {3, 7}, {4, 8}};

    for (size_t i = 0; i < CT_COUNT(sizes); i++) {
        struct ct_arena arena = {0};
        struct ct_schedule *s;

        assert_works(generate(&arena, kind, sizes[i][0], sizes[i][1], &s));
        assert_works(ct_schedule_communicate(s, &everything));
        if (prefetch)
            assert_works(ct_schedule_prefetch(s));
        for (size_t h = 0; h < CT_COUNT(harms); h++)
            for (int time = 0; time < 60; time++)
                harm_once(s, &harms[h], tally);
        ct_arena_finish(&arena);
    }
}

static void harm_is_found(void **unused)
{
    struct tally tally = {0};

    (void)unused;
    for (size_t i = 0; i < CT_COUNT(kinds); i++)
        for (int prefetch = 0; prefetch < 2; prefetch++)
            harm_kind(&kinds[i], prefetch, &tally);
    print_message("%d broken, %d accepted, %d refused though they run\n", tally.broken,
                  tally.accepted, tally.harmless_but_refused);
    assert_true(tally.broken > 20000);
    assert_true(tally.accepted > 3000);
}

/* ---- what the proof says ---- */

static void read_lists(struct ct_arena *arena, const char *csv, struct ct_schedule **s)
{
    const char *folder = test_folder(), *path = ct_arena_printf(arena, "%s/s.csv", folder);

    test_write(path, csv, strlen(csv));
    assert_works(ct_schedule_read_csv(arena, path, -1, -1, -1, s));
    test_remove(folder);
}

static void refusals_have_reasons(void **unused)
{
    static const struct {
        const char *csv, *expected;
    } bad[] = {
        {"0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n",
         "stage 1 microbatch 1: B (or I and W) is missing on rank 1"},
        {"0F0,0I0,0F1,0B1\n1F0,1B0,1F1,1B1\n", "stage 0 microbatch 0: W is missing on rank 0"},
        {"0F0,0F1,0B0,0B1\n1F0,1B0,1B1\n", "stage 1 microbatch 1: F is missing on rank 1"},
        {"0F0,0F0,0B0\n1F0,1B0\n", "rank 0: 0F0 (action 2) was already done by 0F0 (action 1)"},
        {"0B0,0F0\n1F0,1B0\n", "stage 0 microbatch 0: F (action 2 of rank 0) must come before B"},
        {"0F0,0W0,0I0\n1F0,1B0\n", "I (action 3 of rank 0) must come before W (action 2)"},
        {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "deadlock: rank 0 cannot do 0B0 (action 2) before "
                                               "rank 1 gets past 1F1, rank 1 cannot do 1F1 "
                                               "(action 2) before rank 0 gets past 0B0"},
        {"0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n",
         "RECV_F (action 2 of rank 1) must come before F (action 1)"},
        {"0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "SEND_F is missing on rank 0"},
        {"0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "RECV_B is missing on rank 0"},
        {"0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
         "F (action 2 of rank 0) must come before SEND_F (action 1)"},
        {"0F0,0SEND_F0,0RECV_B0,0B0,0SEND_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
         "0SEND_B0: there is nothing to transfer"},
        {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
         "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
         "0SEND_F0 is message 1 from rank 0 to rank 1, but rank 1 takes message 2 there in "
         "1RECV_F0"},
        {"0F0,0F1,0RECV_B0,0SEND_F0,0SEND_F1,0B0,0RECV_B1,0B1\n"
         "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
         "deadlock with one stream: rank 0 cannot do 0RECV_B0 (action 3) before rank 1 gets past "
         "1RECV_F0, rank 1 cannot do 1RECV_F0 (action 1) before rank 0 gets past 0RECV_B0"},
        {"0F0,0UNSHARD,0B0,0RESHARD\n", "rank 0, action 1: 0F0, but the stage is not unsharded"},
        {"0UNSHARD,0F0,0UNSHARD,0B0,0RESHARD\n", "0UNSHARD, but the stage is unsharded already"},
        {"0UNSHARD,0F0,0B0\n", "stage 0: RESHARD is missing at the end of rank 0"},
        {"0F0,0B0,0RESHARD\n", "0F0, but the stage is not unsharded"},
        {"0F0,0REDUCE_GRAD,0B0\n", "0B0, but the stage is reduced already"},
        {"0F0,0B0,0REDUCE_GRAD,1F0,1B0\n", "stage 1: REDUCE_GRAD is missing on rank 0"},
        {"0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", NULL},
        {"0F0,0F1,0B0,0B1,0REDUCE_GRAD,0REDUCE_GRAD\n", "the stage is reduced already"},
        {"(0F0;0B0)OVERLAP_F_B\n", "F (action 1 of rank 0) must come before B (action 1)"},
    };

    (void)unused;
    for (size_t i = 0; i < CT_COUNT(bad); i++) {
        struct ct_arena arena = {0};
        struct ct_schedule *s;
        int rc;

        read_lists(&arena, bad[i].csv, &s);
        rc = ct_schedule_verify(s, NULL, NULL);
        if (bad[i].expected) {
            assert_int_equal(rc, CT_EINVAL);
            assert_message(bad[i].expected);
        } else {
            assert_works(rc);
        }
        ct_arena_finish(&arena);
    }
}

static void the_report_counts_what_was_checked(void **unused)
{
    struct ct_arena arena = {0};
    struct ct_schedule *s;
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    (void)unused;
    assert_works(generate(&arena, &(struct kind){"1f1b", 1}, 4, 6, &s));
    assert_works(ct_schedule_communicate(s, &everything));
    assert_works(ct_schedule_verify(s, NULL, out));
    fclose(out);
    assert_non_null(strstr(text, "48 compute actions"));
    assert_non_null(strstr(text, "36 transfers"));
    assert_non_null(strstr(text, "12 times UNSHARD"));
    assert_non_null(strstr(text, "streams of their own for transfers, nor with one stream"));
    free(text);
    ct_arena_finish(&arena);
}

/* ---- memory ---- */

static void activations_are_held_against_their_limits(void **unused)
{
    static const size_t until_i[] = {30, 30, 30}, until_w[] = {7, 7, 7};
    /* zb1p on three ranks, many microbatches: p - r alive until I, p until W */
    size_t room[] = {3 * 37, 2 * 37 + 7, 37 + 14};
    struct ct_schedule_limits limits = {until_i, until_w, room};
    struct ct_arena arena = {0};
    struct ct_schedule *s;

    (void)unused;
    assert_works(generate(&arena, &(struct kind){"zb1p", 1}, 3, 9, &s));
    assert_works(ct_schedule_verify(s, &limits, NULL));
    for (int r = 0; r < 3; r++) {
        room[r]--;
        assert_int_equal(ct_schedule_verify(s, &limits, NULL), CT_EINVAL);
        assert_message("activations take");
        assert_message(ct_arena_printf(&arena, "rank %d:", r));
        assert_message(ct_arena_printf(&arena, "and %zu are the limit", room[r]));
        room[r]++;
    }
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_is_right),
        cmocka_unit_test(forwards_alone_are_right),
        cmocka_unit_test(harm_is_found),
        cmocka_unit_test(refusals_have_reasons),
        cmocka_unit_test(the_report_counts_what_was_checked),
        cmocka_unit_test(activations_are_held_against_their_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
