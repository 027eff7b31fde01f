/* A plugin for tests: each instruction takes longer by a share of its time; or the times of steps
   are planted, for the hooks of plugins that are loaded after this one. */
#include <ctitan/clock.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

static struct config {
    double percent, planted;
} config;

static const struct ct_option options[] = {
    CT_OPT_FLOAT(struct config, percent, "percent", "5", 0, 1e6, "How much longer"),
    CT_OPT_FLOAT(
        struct config, planted, "planted", "0", 0, 1e6,
        "Seconds that each step is said to take, and every second one 1 % more; 0: as long "
        "as it does"),
    {0}};

static int on_event(const struct ct_event_data *data, void *context)
{
    static double began;
    double until;

    (void)context;
    if (data->event == CT_EVENT_STEP_END) {
        if (config.planted > 0)
            ((struct ct_step_result *)(uintptr_t)data->result)->seconds =
                config.planted * (data->step % 2 ? 1.01 : 1);
        return 0;
    }
    if (data->event == CT_EVENT_OP_BEGIN) {
        began = data->time;
        return 0;
    }
    for (until = data->time + (data->time - began) * config.percent / 100; ct_now() < until;)
        ;
    return 0;
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_OP_BEGIN | 1u << CT_EVENT_OP_END |
                                              1u << CT_EVENT_STEP_END,
                                    .call = on_event};

CT_PLUGIN(.name = "slow", .version = "1", .summary = "Takes longer", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_HOOK, "slow", &hook}));
