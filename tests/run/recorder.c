/*
 * A hook that writes every event of a collective down, a line each:
 * event, ranks of the group, its name, its instance, number of the call, op, index, microbatch,
 * step.
 */
#include <stdio.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

static FILE *out;

static int open_file(const struct ct_run *run)
{
    char path[CT_PATH_ROOM];
    int rc = ct_run_path(run, path, "events-%lld", (long long)run->rank);

    if (rc < 0)
        return rc;
    out = fopen(path, "w");
    return out ? 0 : ct_fail(CT_EIO, "%s", path);
}

static int on_event(const struct ct_event_data *data, void *context)
{
    const struct ct_group *g = data->group;
    char ranks[256] = "";
    int used = 0;

    (void)context;
    if (!out && data->run && open_file(data->run) < 0)
        return CT_EIO;
    if (data->event == CT_EVENT_RUN_END)
        return fclose(out) ? CT_EIO : 0;
    for (int i = 0; g && i < g->size && used < 240; i++)
        used +=
            snprintf(ranks + used, sizeof(ranks) - (size_t)used, "%s%d", i ? "," : "", g->ranks[i]);
    fprintf(out, "%s|%s|%s|%d|%lld|%s|%lld|%d|%lld\n", ct_event_name(data->event),
            g ? ranks : "none", g ? g->name : "none", g ? g->instance : 0,
            (long long)data->sequence, data->instruction->op->type->name, (long long)data->index,
            data->microbatch, (long long)data->step);
    return 0;
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook),
    .events = 1u << CT_EVENT_COLLECTIVE_ENQUEUED | 1u << CT_EVENT_COLLECTIVE_STARTED |
              1u << CT_EVENT_COLLECTIVE_FINISHED | 1u << CT_EVENT_RUN_END,
    .call = on_event};

CT_PLUGIN(.name = "recorder", .version = "1.0", .summary = "Writes down every collective",
          .offers = CT_OFFERS({CT_HOOK, "recorder", &hook}));
