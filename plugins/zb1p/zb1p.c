/*
 * ZB-H1 (Qi et al. 2024), which torch has as InterleavedZeroBubble with one stage per rank: 1F1B
 * with the backward in two parts. A rank passes the gradient of inputs (I) on at once. It delays
 * those of its weights (W) by `rank` microbatches, to fill the time when it would wait at the end.
 * No rank holds more microbatches between F and W than the first rank of 1F1B.
 */
#include <ctitan/plugin.h>
#include <ctitan/lib/pipeline.h>

static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    int all = request->microbatches;

    for (int rank = 0; rank < request->ranks; rank++) {
        int ahead = request->ranks - 1 - rank, forward = 0, weight = 0;

        for (int backward = 0; backward < all; backward++) {
            while (forward < all && forward <= backward + ahead)
                ct_schedule_add(request, &lists[rank], CT_ACTION_F, rank, forward++);
            ct_schedule_add(request, &lists[rank], CT_ACTION_I, rank, backward);
            if (backward >= rank)
                ct_schedule_add(request, &lists[rank], CT_ACTION_W, rank, weight++);
        }
        while (weight < all)
            ct_schedule_add(request, &lists[rank], CT_ACTION_W, rank, weight++);
    }
    return 0;
}

static const struct ct_schedule_ops schedule = {
    .size = sizeof(struct ct_schedule_ops),
    .summary = "1F1B with weight gradients later (ZB-H1)",
    .stages_per_rank_min = 1,
    .stages_per_rank_max = 1,
    .generate = generate,
};

CT_PLUGIN(.name = "zb1p", .version = "1.0",
          .summary = "Pipeline schedule: 1F1B with weight gradients later (ZB-H1)",
          .offers = CT_OFFERS({CT_SCHEDULE, "zb1p", &schedule}));
