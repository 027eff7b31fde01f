/*
 * Interleaved 1F1B (Narayanan et al. 2021): each rank has several stages, so that the pipeline
 * fills in a fraction of the time. Microbatches are divided into rounds of about as many as there
 * are ranks. A round passes through all stages of the rank, first to last in the forward, last to
 * first in the backward.
 *
 * A rank starts with the forwards that the first backward of its last stage needs, and two more for
 * each rank after it (one transfer each way). Rounds need not be equal. The longer ones come first,
 * because their length determines how many forwards must run ahead.
 */
#include <ctitan/plugin.h>
#include <ctitan/lib/pipeline.h>

struct step {
    int loop, microbatch;
};

/* The order in which a rank's forwards visit its loops and the microbatches. */
static struct step *order_of(const struct ct_schedule_request *r)
{
    int loops = r->stages / r->ranks, rounds = r->microbatches / r->ranks, first = 0;
    struct step *order = ct_arena_array(r->arena, struct step, loops * r->microbatches),
                *at = order;

    rounds = rounds ? rounds : 1;
    for (int round = 0; round < rounds; round++) {
        int length = r->microbatches / rounds + (round < r->microbatches % rounds);

        for (int loop = 0; loop < loops; loop++)
            for (int m = first; m < first + length; m++)
                *at++ = (struct step){loop, m};
        first += length;
    }
    return order;
}

static int longest_round(const struct ct_schedule_request *r)
{
    int rounds = r->microbatches / r->ranks;

    return rounds ? (r->microbatches + rounds - 1) / rounds : r->microbatches;
}

static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    int ranks = request->ranks, loops = request->stages / ranks,
        all = loops * request->microbatches;
    const struct step *order = order_of(request);

    for (int rank = 0; rank < ranks; rank++) {
        int ahead = (loops - 1) * longest_round(request) + 2 * (ranks - 1 - rank), forward = 0;

        for (int backward = 0; backward < all; backward++) {
            for (; forward < all && forward <= backward + ahead; forward++)
                ct_schedule_add(request, &lists[rank], CT_ACTION_F,
                                order[forward].loop * ranks + rank, order[forward].microbatch);
            ct_schedule_add(request, &lists[rank], CT_ACTION_B,
                            (loops - 1 - order[backward].loop) * ranks + rank,
                            order[backward].microbatch);
        }
    }
    return 0;
}

static const struct ct_schedule_ops schedule = {
    .size = sizeof(struct ct_schedule_ops),
    .summary = "one forward, one backward, several stages on each rank",
    .stages_per_rank_min = 2,
    .generate = generate,
};

CT_PLUGIN(.name = "interleaved_1f1b", .version = "1.0",
          .summary = "Pipeline schedule: one forward, one backward, several stages on each rank",
          .offers = CT_OFFERS({CT_SCHEDULE, "interleaved_1f1b", &schedule}));
