/*
 * A learning-rate schedule as a separate plugin: after a linear warm-up the rate falls with the
 * root of the step (Vaswani et al. 2017). It replaces the rule of [lr_scheduler],
 * whose keys are errors then.
 */
#include <math.h>

#include <ctitan/model.h>
#include <ctitan/plugin.h>

static struct config {
    int64_t warmup_steps;
} config;

static const struct ct_option options[] = {CT_OPT_INT(struct config, warmup_steps, "warmup_steps",
                                                      "200", 1, 0x1p53,
                                                      "Steps until the peak learning rate"),
                                           {0}};

static double factor(int64_t step, int64_t total)
{
    double at = (double)(step + 1) / (double)config.warmup_steps;

    (void)total;
    return at < 1 ? at : 1 / sqrt(at);
}

static const struct ct_lr_schedule_ops schedule = {sizeof(struct ct_lr_schedule_ops), factor};

CT_PLUGIN(.name = "inverse_root", .version = "1.0",
          .summary = "Learning rate: warm-up, then one over the root of the step",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_LR_SCHEDULE, "inverse_root", &schedule}));
