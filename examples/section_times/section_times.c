/*
 * Time per section: the milliseconds that rank 0 spends in each section of the step's order,
 * printed every so many steps. I and W are one item where they run together. On the cpu device this
 * is the time to compute and to wait for other ranks. A GPU computes while the host goes on, so
 * there it is the time to enqueue.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/log.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

static struct config {
    int64_t every;
} config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct config, every, "every", "10", 1, 1e15, "Steps between two lines"), {0}};

#define MOST 64 /* sections; later ones are not printed */

static struct {
    const struct ct_section *section[MOST], *with[MOST]; /* with: NULL, or W together with I */
    double seconds[MOST], begin;
    int count;
    int64_t steps;
} times;

static void add(const struct ct_span *span, double seconds)
{
    int i = 0;

    while (i < times.count &&
           (times.section[i] != span->section[0] || times.with[i] != span->section[1]))
        i++;
    if (i == MOST)
        return;
    times.section[i] = span->section[0];
    times.with[i] = span->section[1];
    times.seconds[i] += seconds;
    times.count += i == times.count;
}

static void tell(int64_t step)
{
    char line[1024];
    size_t at = 0;

    for (int i = 0; i < times.count && at < sizeof(line); i++)
        at +=
            (size_t)snprintf(line + at, sizeof(line) - at, "  %s%s%s %.3f", times.section[i]->name,
                             times.with[i] ? "+" : "", times.with[i] ? times.with[i]->name : "",
                             1e3 * times.seconds[i] / (double)times.steps);
    ct_info("sections of step %lld, ms:%s", (long long)step, line);
    memset(&times, 0, sizeof(times));
}

static int on_event(const struct ct_event_data *data, void *context)
{
    (void)context;
    if (!data->run || data->run->rank != 0)
        return 0;
    if (data->event == CT_EVENT_SECTION_BEGIN)
        times.begin = data->time;
    if (data->event == CT_EVENT_SECTION_END && data->program == data->run->program)
        add(&data->program->order.item[data->instruction->item].run, data->time - times.begin);
    if (data->event == CT_EVENT_STEP_END && ++times.steps == config.every)
        tell(data->step);
    return 0;
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_SECTION_BEGIN |
                                              1u << CT_EVENT_SECTION_END | 1u << CT_EVENT_STEP_END,
                                    .call = on_event};

CT_PLUGIN(.name = "section_times", .version = "1.0",
          .summary = "How long a step spends in each section", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_HOOK, "section_times", &hook}));
