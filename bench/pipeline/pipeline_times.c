/*
 * A plugin for `measure`: seconds of compute by part, region and stage.
 *
 * Each rank writes $PIPELINE_TIMES.RANK at the end: "part region stage seconds" a line, the median
 * over steps. An op that waits for a transfer counts its wait, so times are read in a run without
 * transfers, and only the stages of the regions in one with them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

#define MOST_KEYS 256
#define MOST_STEPS 256

struct key {
    enum ct_part part;
    char region[64];
    int stage;
    double seconds[MOST_STEPS];
};

static struct key keys[MOST_KEYS];
static int key_count, step;
static double began;

static struct key *find(const struct ct_op *op)
{
    struct key *k;

    for (k = keys; k < keys + key_count; k++)
        if (k->part == op->part && k->stage == op->stage && !strcmp(k->region, op->region))
            return k;
    if (key_count == MOST_KEYS)
        return NULL;
    key_count++;
    k->part = op->part;
    k->stage = op->stage;
    snprintf(k->region, sizeof(k->region), "%s", op->region);
    return k;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Without the first two steps: they meet their memory for the first time. */
static double median(struct key *k)
{
    int warmup = step > 4 ? 2 : 0;

    qsort(k->seconds + warmup, (size_t)(step - warmup), sizeof(double), ascending);
    return k->seconds[warmup + (step - warmup) / 2];
}

static int write_times(int64_t rank)
{
    const char *name = getenv("PIPELINE_TIMES");
    char path[4096];
    FILE *out;

    snprintf(path, sizeof(path), "%s.%lld", name ? name : "", (long long)rank);
    out = name ? fopen(path, "w") : NULL;
    if (!out)
        return ct_fail(CT_EIO, "pipeline_times: set PIPELINE_TIMES to a file that can be written");
    for (int i = 0; i < key_count; i++)
        fprintf(out, "%s %s %d %.9f\n", ct_part_name(keys[i].part),
                *keys[i].region ? keys[i].region : "-", keys[i].stage, median(&keys[i]));
    return fclose(out) ? ct_fail(CT_EIO, "pipeline_times: %s", path) : 0;
}

static int on_event(const struct ct_event_data *data, void *context)
{
    const struct ct_instruction *i = data->instruction;
    struct key *k;

    (void)context;
    switch (data->event) {
    case CT_EVENT_OP_BEGIN:
        began = ct_now();
        return 0;
    case CT_EVENT_OP_END:
        if (i->stream != CT_STREAM_COMPUTE || (i->op->type->flags & CT_OP_COLLECTIVE) ||
            step == MOST_STEPS || !(k = find(i->op)))
            return 0;
        k->seconds[step] += ct_now() - began;
        return 0;
    case CT_EVENT_STEP_END:
        step += step < MOST_STEPS;
        return 0;
    case CT_EVENT_RUN_END:
        return write_times(data->run->rank);
    default:
        return 0;
    }
}

static const struct ct_hook hook = {1u << CT_EVENT_OP_BEGIN | 1u << CT_EVENT_OP_END |
                                        1u << CT_EVENT_STEP_END | 1u << CT_EVENT_RUN_END,
                                    on_event, NULL};

CT_PLUGIN(.name = "pipeline_times", .version = "1.0",
          .summary = "Benchmark: compute seconds by part, region and stage",
          .offers = CT_OFFERS({CT_HOOK, "pipeline_times", &hook}));
