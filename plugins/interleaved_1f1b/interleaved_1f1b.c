/*
 * Interleaved 1F1B (Narayanan et al. 2021): each rank has several stages, so that the pipeline
 * fills in a fraction of the time. A rank starts with the forwards that the first backward of its
 * last stage needs, and two more for each rank after it (one transfer each way).
 */
#include <ctitan/plugin.h>
#include <ctitan/lib/pipeline.h>

static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    int ranks = request->ranks, loops = request->stages / ranks,
        all = loops * request->microbatches;
    const struct ct_loop_step *order = ct_schedule_rounds(request);

    for (int rank = 0; rank < ranks; rank++) {
        int ahead = (loops - 1) * ct_schedule_longest_round(request) + 2 * (ranks - 1 - rank),
            forward = 0;

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
