/*
 * The slots of samples: each is taken once, and ranks and microbatches have the work that the rule
 * "longest first" gives them, against a plain search for the least bin.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include <ctitan/rng.h>
#include <ctitan/train.h>

#include "assertions.h"

enum { MOST = 256 };

static double most(const double *of, int64_t count)
{
    double found = of[0];

    for (int64_t i = 1; i < count; i++)
        found = fmax(found, of[i]);
    return found;
}

static double least(const double *of, int64_t count)
{
    double found = of[0];

    for (int64_t i = 1; i < count; i++)
        found = fmin(found, of[i]);
    return found;
}

/* Work of each bin, the greatest first, as an independent search finds it. */
static void search(const double *work, int64_t bins, int64_t each, double *of)
{
    int64_t in[MOST] = {0}, taken[MOST] = {0};

    for (int64_t k = 0; k < bins; k++)
        of[k] = 0;
    for (int64_t n = 0; n < bins * each; n++) {
        int64_t next = -1, to = -1;

        for (int64_t i = 0; i < bins * each; i++)
            if (!taken[i] && (next < 0 || work[i] > work[next]))
                next = i;
        for (int64_t k = 0; k < bins; k++)
            if (in[k] < each && (to < 0 || of[k] < of[to]))
                to = k;
        taken[next] = 1;
        in[to]++;
        of[to] += work[next];
    }
}

static int falling(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x < y) - (x > y);
}

static void check(const double *work, int64_t ranks, int64_t microbatches, int64_t each)
{
    int64_t bins = ranks * microbatches, slot[MOST], again[MOST];
    double of[MOST] = {0}, want[MOST], total[MOST] = {0}, spread = 0;
    bool taken[MOST] = {false};

    ct_balance_samples(work, ranks, microbatches, each, slot);
    ct_balance_samples(work, ranks, microbatches, each, again);
    for (int64_t i = 0; i < bins * each; i++) {
        assert_true(slot[i] >= 0 && slot[i] < bins * each && !taken[slot[i]]);
        assert_true(slot[i] == again[i]);
        taken[slot[i]] = true;
        of[slot[i] / each] += work[i];
        total[slot[i] / each % ranks] += work[i];
    }
    for (int64_t m = 0; m < microbatches; m++)
        spread = fmax(spread, most(of + m * ranks, ranks) - least(of + m * ranks, ranks));
    assert_true(most(total, ranks) - least(total, ranks) <= spread);
    for (int64_t m = 0; m + 1 < microbatches; m++) /* the least bin of one is the next one's most */
        for (int64_t r = 0; r < ranks; r++)
            assert_true(of[m * ranks + r] >= most(of + (m + 1) * ranks, ranks));
    search(work, bins, each, want);
    qsort(of, (size_t)bins, sizeof(*of), falling);
    qsort(want, (size_t)bins, sizeof(*want), falling);
    for (int64_t k = 0; k < bins; k++)
        assert_true(of[k] == want[k]);
}

static void samples_go_longest_first_to_the_least(void **state)
{
    static const double work[] = {9, 8, 7, 6, 4, 3, 2, 1}; /* in bins of 10: 9 1, 8 2, 7 3, 6 4 */
    static const int64_t want[] = {0, 2, 4, 6, 7, 5, 3, 1};
    int64_t slot[8];

    (void)state;
    ct_balance_samples(work, 2, 2, 2, slot);
    for (int64_t i = 0; i < 8; i++)
        assert_true(slot[i] == want[i]);
}

static void random_work_is_shared(void **state)
{
    double work[MOST];

    (void)state;
    for (uint64_t n = 0; n < 300; n++) {
        struct ct_philox r = ct_philox(7, n, 0);
        int64_t ranks = 1 + r.v[0] % 8, microbatches = 1 + r.v[1] % 4, each = 1 + r.v[2] % 8;

        for (int64_t i = 0; i < ranks * microbatches * each; i++)
            work[i] = ct_philox(7, n, 1 + (uint64_t)i).v[0] % (n % 3 ? 1000 : 4);
        check(work, ranks, microbatches, each);
    }
}

static void equal_work_and_one_rank_stay_in_order(void **state)
{
    static const double equal[] = {3, 3, 3, 3, 3, 3}, falls[] = {6, 1, 5, 2, 4, 3};
    int64_t slot[6];

    (void)state;
    ct_balance_samples(equal, 3, 2, 1, slot);
    for (int64_t i = 0; i < 6; i++)
        assert_true(slot[i] == i);
    ct_balance_samples(falls, 1, 1, 6, slot);
    for (int64_t i = 0; i < 6; i++)
        assert_true(slot[i] == i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_go_longest_first_to_the_least),
        cmocka_unit_test(random_work_is_shared),
        cmocka_unit_test(equal_work_and_one_rank_stay_in_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
