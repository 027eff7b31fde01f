/*
 * How the work of samples is shared by ranks: the largest over the mean.
 */
#include <stdio.h>

#include <ctitan/error.h>
#include <ctitan/run.h>
#include <ctitan/train.h>

#include "data_balance.h"

struct balance {
    const struct ct_data_ops *ops;
    struct ct_data *data;
    int64_t ranks, microbatches, each, samples; /* samples: of a step */
    double *work, *bins, *total;                /* of a sample, a rank in a microbatch, a rank */
    int64_t *slot;
};

/* Sums over steps. */
struct sums {
    double mean, largest, waiting; /* waiting: of the largest in each microbatch */
};

static int open_balance(struct balance *b, struct ct_recipe *recipe, int64_t world,
                        struct ct_arena *arena)
{
    struct ct_run_options options = {.depth = CT_RUN_MODEL, .world = world};
    struct ct_run *run;
    int64_t batch;
    int microbatches, rc = ct_run_open(recipe, &options, &run);

    if (rc < 0)
        return rc;
    rc = ct_run_batch_sizes(run, &batch, &microbatches);
    b->ranks = ct_mesh_degree(&run->mesh, run->batch_axes);
    ct_run_close(run);
    if (rc < 0)
        return rc;
    b->microbatches = microbatches;
    b->each = batch / b->ranks;
    b->samples = batch * microbatches;
    b->work = ct_arena_array(arena, double, b->samples);
    b->bins = ct_arena_array(arena, double, b->ranks * b->microbatches);
    b->total = ct_arena_array(arena, double, b->ranks);
    b->slot = ct_arena_array(arena, int64_t, b->samples);
    return 0;
}

/* Add a step whose samples are in the slots. */
static void add_step(struct balance *b, struct sums *sums)
{
    double largest = 0, all = 0;

    for (int64_t k = 0; k < b->ranks * b->microbatches; k++)
        b->bins[k] = 0;
    for (int64_t r = 0; r < b->ranks; r++)
        b->total[r] = 0;
    for (int64_t i = 0; i < b->samples; i++)
        b->bins[b->slot[i] / b->each] += b->work[i];
    for (int64_t m = 0; m < b->microbatches; m++) {
        double most = 0;

        for (int64_t r = 0; r < b->ranks; r++) {
            double work = b->bins[m * b->ranks + r];

            most = work > most ? work : most;
            b->total[r] += work;
            all += work;
        }
        sums->waiting += most;
    }
    for (int64_t r = 0; r < b->ranks; r++)
        largest = b->total[r] > largest ? b->total[r] : largest;
    sums->largest += largest;
    sums->mean += all / (double)b->ranks;
}

static void print_sums(const char *how, const struct sums *s)
{
    printf("  %s: the busiest rank has %.3f, those of each microbatch together %.3f\n", how,
           s->largest / s->mean, s->waiting / s->mean);
}

/* All steps of the first samples. */
static int count_steps(struct balance *b, int64_t steps, struct sums *plain, struct sums *balanced)
{
    int rc = 0;

    for (int64_t step = 0; rc == 0 && step < steps; step++) {
        rc = ct_balance_costs(b->ops, b->data, step * b->samples, b->samples, b->work);
        for (int64_t i = 0; i < b->samples; i++)
            b->slot[i] = i;
        add_step(b, plain);
        ct_balance_samples(b->work, b->ranks, b->microbatches, b->each, b->slot);
        add_step(b, balanced);
    }
    if (rc == 1)
        return ct_fail(CT_ECONFIG, "--world: the data source does not tell the work of its "
                                   "samples, which are given out in their order");
    return rc;
}

int data_balance_print(struct ct_recipe *recipe, int64_t world, const struct ct_data_ops *ops,
                       struct ct_data *data, int64_t samples)
{
    int64_t steps, epoch = ops->samples ? ops->samples(data) : 0;
    struct balance b = {.ops = ops, .data = data};
    struct sums plain = {0}, balanced = {0};
    struct ct_arena arena = {0};
    int rc = open_balance(&b, recipe, world, &arena);

    if (rc == 0) {
        steps = (epoch && epoch < samples ? epoch : samples) / b.samples;
        if (!steps)
            rc = ct_fail(CT_ECONFIG,
                         "--world: a step has %lld sample%s, more than the %lld that are "
                         "looked at",
                         (long long)b.samples, ct_plural(b.samples),
                         (long long)(epoch && epoch < samples ? epoch : samples));
    }
    if (rc == 0)
        rc = count_steps(&b, steps, &plain, &balanced);
    if (rc == 0) {
        printf(
            "work within documents, over the mean of %lld data-parallel rank%s, in %lld step%s of "
            "%lld sample%s in %lld microbatch%s\n",
            (long long)b.ranks, ct_plural(b.ranks), (long long)steps, ct_plural(steps),
            (long long)b.samples, ct_plural(b.samples), (long long)b.microbatches,
            b.microbatches == 1 ? "" : "es");
        print_sums("in order", &plain);
        print_sums("balanced", &balanced);
    }
    ct_arena_finish(&arena);
    return rc;
}
