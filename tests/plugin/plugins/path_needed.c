#include "common.h"

static struct config {
    const char *path;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, path, "path", NULL, "A file, which has no default"), {0}};

static double factor(int64_t step, int64_t total)
{
    (void)step, (void)total;
    return 1;
}

static const struct ct_lr_schedule_ops ops = {.size = sizeof(struct ct_lr_schedule_ops),
                                              .factor = factor};

CT_PLUGIN(.name = "path_needed", .version = "1", .summary = "Has an option without a default",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_LR_SCHEDULE, "path_needed", &ops}));
