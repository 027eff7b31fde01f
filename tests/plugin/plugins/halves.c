#include "common.h"

static double factor(int64_t step, int64_t total)
{
    (void)total;
    return step ? 0.5 : 1;
}

static const struct ct_lr_schedule_ops ops = {.size = sizeof(struct ct_lr_schedule_ops),
                                              .factor = factor};

CT_PLUGIN(.name = "halves", .version = "1", .summary = "Halves the learning rate once",
          .offers = CT_OFFERS({CT_LR_SCHEDULE, "halves", &ops}));
