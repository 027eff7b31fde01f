/*
 * A plugin for `measure`: seconds of compute of every op in one microbatch.
 *
 * Each rank writes $PIPELINE_TIMES.RANK at the end: "part stage seconds" a line. An op that waits
 * for a transfer, or for memory that one has, counts its wait, too: so the median is taken of the
 * times at which it had nothing to wait for, and the least of all times where it always had.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/lib/measure.h>
#include <ctitan/plugin.h>
#include <ctitan/program.h>
#include <ctitan/run.h>

#define MOST_OPS 4096
#define MOST_TIMES 128

struct times {
    const struct ct_op *op;
    double at_once[MOST_TIMES], least;
    int count;
};

static struct times *table;
static int op_count, step;
static double began;

static struct times *find(const struct ct_op *op)
{
    int i;

    if (!table)
        table = calloc(MOST_OPS, sizeof(*table));
    for (i = 0; table && i < op_count; i++)
        if (table[i].op == op)
            return &table[i];
    if (!table || op_count == MOST_OPS)
        return NULL;
    op_count++;
    table[i] = (struct times){.op = op, .least = 1e9};
    return &table[i];
}

static void note(const struct ct_instruction *i, double seconds)
{
    struct times *t = find(i->op);

    if (!t)
        return;
    if (seconds < t->least)
        t->least = seconds;
    if (!i->waits && t->count < MOST_TIMES)
        t->at_once[t->count++] = seconds;
}

static double usual(struct times *t)
{
    return t->count ? ct_median(t->at_once, (size_t)t->count) : t->least;
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
    for (int i = 0; i < op_count; i++)
        fprintf(out, "%s %d %.9f\n", ct_part_name(table[i].op->section->part),
                table[i].op->section->group, usual(&table[i]));
    return fclose(out) ? ct_fail(CT_EIO, "pipeline_times: %s", path) : 0;
}

/* The first two steps meet their memory for the first time, and do not count. */
static int on_event(const struct ct_event_data *data, void *context)
{
    const struct ct_instruction *i = data->instruction;

    (void)context;
    switch (data->event) {
    case CT_EVENT_OP_BEGIN:
        began = ct_now();
        return 0;
    case CT_EVENT_OP_END:
        if (step >= 2 && i->stream == CT_STREAM_COMPUTE && !(i->op->type->flags & CT_OP_COLLECTIVE))
            note(i, ct_now() - began);
        return 0;
    case CT_EVENT_STEP_END:
        step++;
        return 0;
    case CT_EVENT_RUN_END:
        return write_times(data->run->rank);
    default:
        return 0;
    }
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_OP_BEGIN | 1u << CT_EVENT_OP_END |
                                              1u << CT_EVENT_STEP_END | 1u << CT_EVENT_RUN_END,
                                    .call = on_event};

CT_PLUGIN(.name = "pipeline_times", .version = "1.0",
          .summary = "Benchmark: compute seconds by part, region and stage",
          .offers = CT_OFFERS({CT_HOOK, "pipeline_times", &hook}));
