/*
 * One forward, one backward (PipeDream-Flush, Narayanan et al. 2021). A rank starts with one
 * forward for each rank from itself to the end of the pipeline. It then runs one backward per
 * forward, so it never holds more activations than that.
 */
#include <ctitan/plugin.h>
#include <ctitan/lib/pipeline.h>

static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    int microbatches = request->microbatches;

    for (int rank = 0; rank < request->ranks; rank++) {
        int forward = 0, ahead = request->ranks - rank;

        while (forward < ahead && forward < microbatches)
            ct_schedule_add(request, &lists[rank], CT_ACTION_F, rank, forward++);
        for (int m = 0; m < microbatches; m++) {
            ct_schedule_add(request, &lists[rank], CT_ACTION_B, rank, m);
            if (forward < microbatches)
                ct_schedule_add(request, &lists[rank], CT_ACTION_F, rank, forward++);
        }
    }
    return 0;
}

static const struct ct_schedule_ops schedule = {
    .size = sizeof(struct ct_schedule_ops),
    .summary = "one forward, one backward",
    .stages_per_rank_min = 1,
    .stages_per_rank_max = 1,
    .generate = generate,
};

CT_PLUGIN(.name = "1f1b", .version = "1.0",
          .summary = "Pipeline schedule: one forward, one backward",
          .offers = CT_OFFERS({CT_SCHEDULE, "1f1b", &schedule}));
