/*
 * The samples of a step in its slots, with equal work.
 *
 * A bin is the share of one rank in one microbatch, and has room for a fixed number of samples.
 * Samples go to bins longest first, each into the one with the least work so far (Graham 1969).
 * Ranks wait for each other in each microbatch, so bins of like work are put into one microbatch,
 * and there the largest goes to the rank that has the least so far.
 */
#include <stdlib.h>

#include <ctitan/arena.h>
#include <ctitan/calling.h>
#include <ctitan/model.h>
#include <ctitan/train.h>

/* A sample or a bin. */
struct load {
    double work;
    int64_t number;
};

struct bin {
    struct load load; /* first */
    int64_t count;    /* samples in it */
};

/* Most work first; of equal ones, the lower number. */
static int most_first(const void *a, const void *b)
{
    const struct load *x = a, *y = b;

    return x->work != y->work ? (x->work < y->work) - (x->work > y->work)
                              : (x->number > y->number) - (x->number < y->number);
}

static int least_first(const void *a, const void *b)
{
    const struct load *x = a, *y = b;

    return x->work != y->work ? (x->work > y->work) - (x->work < y->work)
                              : (x->number > y->number) - (x->number < y->number);
}

/* Restore the order of a heap whose first bin has more work than before, or is another. */
static void sink(struct bin **heap, int64_t count)
{
    for (int64_t at = 0, next; (next = 2 * at + 1) < count; at = next) {
        struct bin *bin = heap[at];

        if (next + 1 < count && least_first(heap[next + 1], heap[next]) < 0)
            next++;
        if (least_first(bin, heap[next]) < 0)
            return;
        heap[at] = heap[next];
        heap[next] = bin;
    }
}

/* Put samples, most work first, into bins; in[i]: the bin of sample i. */
static void fill(const struct load *samples, int64_t count, struct bin *bins, int64_t bin_count,
                 int64_t *in, struct ct_arena *scratch)
{
    struct bin **heap = ct_arena_array(scratch, struct bin *, bin_count);
    int64_t room = count / bin_count, open = bin_count;

    for (int64_t k = 0; k < bin_count; k++) {
        bins[k] = (struct bin){.load = {.number = k}};
        heap[k] = &bins[k];
    }
    for (int64_t i = 0; i < count; i++) {
        struct bin *bin = heap[0];

        in[samples[i].number] = bin->load.number;
        bin->load.work += samples[i].work;
        if (++bin->count == room)
            heap[0] = heap[--open];
        sink(heap, open);
    }
}

/* Give the bins, most work first, to microbatches and ranks; place[k]: the first slot of bin k. */
static void place_bins(const struct bin *bins, int64_t ranks, int64_t microbatches, int64_t each,
                       int64_t *place, struct ct_arena *scratch)
{
    struct load *total = ct_arena_array(scratch, struct load, ranks);

    for (int64_t r = 0; r < ranks; r++)
        total[r] = (struct load){.number = r};
    for (int64_t m = 0; m < microbatches; m++) {
        qsort(total, (size_t)ranks, sizeof(*total), least_first);
        for (int64_t r = 0; r < ranks; r++) {
            const struct load *bin = &bins[m * ranks + r].load;

            place[bin->number] = (m * ranks + total[r].number) * each;
            total[r].work += bin->work;
        }
    }
}

static bool are_equal(const double *work, int64_t count)
{
    for (int64_t i = 1; i < count; i++)
        if (work[i] != work[0])
            return false;
    return true;
}

void ct_balance_samples(const double *work, int64_t ranks, int64_t microbatches, int64_t each,
                        int64_t *slot)
{
    int64_t bin_count = ranks * microbatches, count = bin_count * each, *place;
    struct ct_arena scratch = {0};
    struct load *samples;
    struct bin *bins;

    for (int64_t i = 0; i < count; i++)
        slot[i] = i;
    if (bin_count == 1 || are_equal(work, count))
        return;
    samples = ct_arena_array(&scratch, struct load, count);
    bins = ct_arena_array(&scratch, struct bin, bin_count);
    place = ct_arena_array(&scratch, int64_t, bin_count);
    for (int64_t i = 0; i < count; i++)
        samples[i] = (struct load){work[i], i};
    qsort(samples, (size_t)count, sizeof(*samples), most_first);
    fill(samples, count, bins, bin_count, slot, &scratch);
    qsort(bins, (size_t)bin_count, sizeof(*bins), most_first);
    place_bins(bins, ranks, microbatches, each, place, &scratch);
    for (int64_t i = 0; i < count; i++)
        slot[i] = place[slot[i]]++;
    ct_arena_finish(&scratch);
}

int ct_balance_costs(const struct ct_data_ops *ops, struct ct_data *data, int64_t first,
                     int64_t count, double *work)
{
    struct ct_calling before = ct_calling_begin("data source", NULL);
    int rc = ops->cost ? 0 : 1;

    for (int64_t i = 0; rc == 0 && i < count; i++)
        rc = ops->cost(data, first + i, &work[i]);
    ct_calling_end(&before);
    return rc;
}
