/*
 * GPipe (Huang et al. 2019): all forwards, then all backwards. All activations of a step are alive
 * at once.
 */
#include <ctitan/plugin.h>
#include <ctitan/lib/pipeline.h>

static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    for (int rank = 0; rank < request->ranks; rank++) {
        for (int m = 0; m < request->microbatches; m++)
            ct_schedule_add(request, &lists[rank], CT_ACTION_F, rank, m);
        for (int m = 0; m < request->microbatches; m++)
            ct_schedule_add(request, &lists[rank], CT_ACTION_B, rank, m);
    }
    return 0;
}

static const struct ct_schedule_ops schedule = {
    .size = sizeof(struct ct_schedule_ops),
    .summary = "all forwards, then all backwards",
    .stages_per_rank_min = 1,
    .stages_per_rank_max = 1,
    .generate = generate,
};

CT_PLUGIN(.name = "gpipe", .version = "1.0",
          .summary = "Pipeline schedule: all forwards, then all backwards",
          .offers = CT_OFFERS({CT_SCHEDULE, "gpipe", &schedule}));
