/* A plugin that crashes, does not return, comes late, or fails: option `how` says where. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

static struct config {
    const char *how;
    int64_t rank;
} config;

static const struct ct_option options[] = {
    CT_OPT_CHOICE(struct config, how, "how", "hook",
                  "hook|op|transform|abort|loop|first|third|again", "What it does"),
    CT_OPT_INT(struct config, rank, "rank", "0", 0, 8, "The rank that does it"),
    {0}};

static void fall(const char *how, const struct ct_run *run)
{
    static int *volatile nowhere;

    if (strcmp(config.how, how) != 0 || (run && run->rank != config.rank))
        return;
    if (!strcmp(how, "first") || !strcmp(how, "third")) {
        sleep(2);
        return;
    }
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "loop"))
        fprintf(stderr, "falling\n");
    while (!strcmp(how, "loop"))
        usleep(1000);
    *nowhere = 1;
}

/* Each start ends behind its third step. */
static int fail_again(const struct ct_run *run)
{
    static int steps;

    return !strcmp(config.how, "again") && run->rank == config.rank && ++steps == 3
               ? ct_fail(CT_EIO, "the same words")
               : 0;
}

static int on_event(const struct ct_event_data *data, void *context)
{
    (void)context;
    if (data->event == CT_EVENT_OP_BEGIN)
        fall("op", data->run);
    if (data->event == CT_EVENT_RUN_READY)
        fall("first", data->run);
    if (data->event == CT_EVENT_STEP_END && data->step == 3) {
        fall("hook", data->run);
        fall("abort", data->run);
        fall("loop", data->run);
        fall("third", data->run);
    }
    return data->event == CT_EVENT_STEP_END ? fail_again(data->run) : 0;
}

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    (void)graph;
    fall("transform", run);
    return 0;
}

static const struct ct_hook hook = {.size = sizeof(hook),
                                    .events = 1u << CT_EVENT_STEP_END | 1u << CT_EVENT_OP_BEGIN |
                                              1u << CT_EVENT_RUN_READY,
                                    .call = on_event};
static const struct ct_transform transform = {
    .size = sizeof(transform), .name = "falls.here", .phase = CT_PHASE_FUSE, .apply = apply};

CT_PLUGIN(.name = "falls", .version = "1.0", .summary = "Crashes, or does not return",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_HOOK, "falls", &hook}, {CT_TRANSFORM, "falls", &transform}));
