/*
 * Who waits for whom, in records that are made here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <ctitan/lib/flight.h>
#include <ctitan/lib/flight_record.h>

#define LAYERS 40 /* of two ranks: more of these than a word has bits */
#define WORLD (2 * LAYERS)

/* The file of a rank: it is in group 0, and the two of the layer before it wait for it in groups 1
   and 2. */
struct file {
    struct ct_flight_header h;
    struct ct_flight_group group[3];
    struct ct_flight_record ring[1];
    char strings[1];
};

static struct file *files;
static int32_t members[WORLD][3];
static int numbers[WORLD][3], own[WORLD][3];
static struct ct_flight_members groups[WORLD];
static struct ct_flight_rank ranks[WORLD];

static void make_rank(int r)
{
    int layer = r / 2;
    struct file *f = &files[r];

    f->h.groups = offsetof(struct file, group);
    f->h.group_count = 3;
    f->h.ring = offsetof(struct file, ring);
    f->h.ring_count = 1;
    f->h.strings = f->h.recipe = offsetof(struct file, strings);
    f->h.rank = r;
    f->h.world = WORLD;
    f->h.seen = 'S';
    f->h.position.phase = layer + 1 < LAYERS ? CT_FLIGHT_IN_CALL : CT_FLIGHT_IN_DATA;
    for (int g = 0; g < 3; g++) {
        struct ct_flight_mark never = {.program = -1};

        f->group[g].size = 3;
        f->group[g].enqueued = f->group[g].started = f->group[g].finished = never;
        numbers[r][g] = g == 0 ? r : layer ? 2 * (layer - 1) + g - 1 : r;
    }
    if (layer + 1 < LAYERS)
        f->group[0].enqueued.sequence = f->group[0].started.sequence = 1;
    ranks[r] = (struct ct_flight_rank){.h = &f->h, .group = numbers[r], .process = 'S'};
    for (int i = 0; i < 3; i++) {
        int next = 2 * (layer + 1) + i - 1;

        members[r][i] = i == 0 || layer + 1 == LAYERS ? r : next;
        own[r][i] = i == 0 || layer + 1 == LAYERS ? 0 : 1 + r % 2;
    }
    groups[r] =
        (struct ct_flight_members){.name = "g", .size = 3, .ranks = members[r], .own = own[r]};
}

/* There are 2^40 ways from the first layer to the last. */
static void all_that_hold_a_run_up_are_found(void **state)
{
    struct ct_flight_run run = {
        .world = WORLD, .rank = ranks, .group = groups, .group_count = WORLD};
    struct ct_flight_verdict *verdict = calloc(1, sizeof(*verdict));

    (void)state;
    files = calloc(WORLD, sizeof(*files));
    assert_true(verdict && files);
    for (int r = 0; r < WORLD; r++)
        make_rank(r);
    ct_flight_analyse(&run, verdict);
    assert_int_equal(verdict->rule, CT_FLIGHT_R5);
    assert_int_equal(verdict->rank, WORLD - 2);
    for (int r = 0; r < WORLD; r++)
        assert_int_equal(verdict->guilty[r], r >= WORLD - 2);
    ct_arena_finish(&run.arena);
    free(files);
    free(verdict);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_that_hold_a_run_up_are_found)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
