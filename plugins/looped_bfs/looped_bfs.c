/*
 * Looped, breadth-first (Lamy-Poirier 2023): each rank has several stages, and runs all
 * microbatches through one before it begins the next; backwards go in the opposite order. The
 * weights of a stage are needed in one interval per pass, so sharded weights are gathered twice a
 * step.
 */
#include <ctitan/plugin.h>
#include <ctitan/lib/pipeline.h>

static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    for (int stage = 0; stage < request->stages; stage++)
        for (int m = 0; m < request->microbatches; m++)
            ct_schedule_add(request, &lists[stage % request->ranks], CT_ACTION_F, stage, m);
    for (int stage = request->stages - 1; stage >= 0; stage--)
        for (int m = request->microbatches - 1; m >= 0; m--)
            ct_schedule_add(request, &lists[stage % request->ranks], CT_ACTION_B, stage, m);
    return 0;
}

static const struct ct_schedule_ops schedule = {
    .size = sizeof(struct ct_schedule_ops),
    .summary = "all microbatches through one stage after the other, and back",
    .stages_per_rank_min = 1,
    .generate = generate,
};

CT_PLUGIN(.name = "looped_bfs", .version = "1.0",
          .summary = "Pipeline schedule: all microbatches through one stage after the other",
          .offers = CT_OFFERS({CT_SCHEDULE, "looped_bfs", &schedule}));
