/*
 * A pipeline schedule: one forward, one backward, with more forwards ahead.
 *
 * It is like 1f1b, except that each rank starts with `extra` more forwards for every rank after it.
 * Transfers have more time to arrive, and more activations are alive.
 */
#include <ctitan/lib/pipeline.h>
#include <ctitan/plugin.h>

static struct config {
    int64_t extra;
} config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct config, extra, "extra", "1", 0, 64, "Forwards ahead for each rank behind"),
    {0}};

static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)
{
    for (int rank = 0; rank < request->ranks; rank++) {
        int behind = request->ranks - 1 - rank;
        int ahead = 1 + behind * (1 + (int)config.extra), forward = 0;

        while (forward < ahead && forward < request->microbatches)
            ct_schedule_add(request, &lists[rank], CT_ACTION_F, rank, forward++);
        for (int m = 0; m < request->microbatches; m++) {
            ct_schedule_add(request, &lists[rank], CT_ACTION_B, rank, m);
            if (forward < request->microbatches)
                ct_schedule_add(request, &lists[rank], CT_ACTION_F, rank, forward++);
        }
    }
    return 0;
}

static const struct ct_schedule_ops schedule = {.size = sizeof(struct ct_schedule_ops),
                                                .summary = "1f1b with more forwards ahead",
                                                .stages_per_rank_min = 1,
                                                .stages_per_rank_max = 1,
                                                .generate = generate};

CT_PLUGIN(.name = "eager_1f1b", .version = "1.0",
          .summary = "Pipeline schedule: 1f1b with more forwards ahead", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_SCHEDULE, "eager_1f1b", &schedule}));
