/*
 * Interleaved 1F1B with the backward in two parts (Qi et al. 2024, on Narayanan et al. 2021). A
 * rank passes the gradient of inputs (I) on at once. It delays those of its weights (W) by `rank`
 * backwards, to fill the time when it would wait at the end. An I is half a B, so running one
 * forward ahead for each rank after it is enough.
 */
#include <ctitan/plugin.h>
#include <ctitan/lib/pipeline.h>

static void add_backward(const struct ct_schedule_request *request, struct ct_action_list *list,
                         enum ct_action_type type, int rank, struct ct_loop_step step)
{
    int loop = request->stages / request->ranks - 1 - step.loop;

    ct_schedule_add(request, list, type, loop * request->ranks + rank, step.microbatch);
}

static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    int ranks = request->ranks, loops = request->stages / ranks,
        all = loops * request->microbatches;
    const struct ct_loop_step *order = ct_schedule_rounds(request);

    for (int rank = 0; rank < ranks; rank++) {
        int ahead = (loops - 1) * ct_schedule_longest_round(request) + ranks - 1 - rank;
        int forward = 0, weight = 0;

        for (int backward = 0; backward < all; backward++) {
            for (; forward < all && forward <= backward + ahead; forward++)
                ct_schedule_add(request, &lists[rank], CT_ACTION_F,
                                order[forward].loop * ranks + rank, order[forward].microbatch);
            add_backward(request, &lists[rank], CT_ACTION_I, rank, order[backward]);
            if (backward >= rank)
                add_backward(request, &lists[rank], CT_ACTION_W, rank, order[weight++]);
        }
        while (weight < all)
            add_backward(request, &lists[rank], CT_ACTION_W, rank, order[weight++]);
    }
    return 0;
}

static const struct ct_schedule_ops schedule = {
    .size = sizeof(struct ct_schedule_ops),
    .summary = "interleaved 1F1B with weight gradients later",
    .stages_per_rank_min = 2,
    .generate = generate,
};

CT_PLUGIN(.name = "interleaved_zero_bubble", .version = "1.0",
          .summary = "Pipeline schedule: interleaved 1F1B with weight gradients later",
          .offers = CT_OFFERS({CT_SCHEDULE, "interleaved_zero_bubble", &schedule}));
