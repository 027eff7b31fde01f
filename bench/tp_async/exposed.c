/*
 * A hook for bench/tp_async/run: how long collectives along `tp` take, and how much of that no
 * computation hides.
 *
 * A collective takes from STARTED to FINISHED. An op of the compute stream takes from OP_BEGIN, or
 * the end of the last collective that it waits for, to OP_END. What is in the first and not in the
 * second is exposed. On the devices cpu and reference OP_END is the end of the computation. Prints
 * one line at the end, means over all steps but the first two.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/device/device.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

#define SKIPPED 2

struct times {
    double begin, end;
};

static struct {
    struct times *of; /* by instruction, of this step */
    size_t count;
    int64_t steps;
    double exchanged, exposed, sent, computed, flops; /* sums over steps */
} all;

static bool is_along_tp(const struct ct_graph *graph, const struct ct_instruction *i)
{
    const struct ct_op *op = i->op;
    int axis = ct_mesh_find(&graph->mesh, "tp");

    return axis >= 0 &&
           (op->type == &ct_op_all_gather || op->type == &ct_op_reduce_scatter ||
            op->type == &ct_op_permute) &&
           ct_part_is_microbatch(op->section->part) && ct_op_axes(op, "axes") == (ct_axes)1 << axis;
}

static bool computes(const struct ct_instruction *i)
{
    return i->stream == CT_STREAM_COMPUTE && !(i->op->type->flags & CT_OP_COLLECTIVE);
}

/* When instruction n could begin: behind the collectives that it waits for. */
static double begin_of(const struct ct_program *p, size_t n)
{
    double begin = all.of[n].begin;

    for (size_t k = 0; k < n; k++)
        for (const int32_t *w = p->step[n].waits; w && *w >= 0; w++)
            if (p->step[k].signal == *w && p->step[k].op->type->flags & CT_OP_COLLECTIVE &&
                all.of[k].end > begin)
                begin = all.of[k].end;
    return begin < all.of[n].end ? begin : all.of[n].end;
}

static double shared(struct times a, struct times b)
{
    double begin = a.begin > b.begin ? a.begin : b.begin, end = a.end < b.end ? a.end : b.end;

    return end > begin ? end - begin : 0;
}

static void add_step(const struct ct_program *p)
{
    for (size_t n = 0; n < p->step_count; n++)
        if (computes(&p->step[n]))
            all.of[n].begin = begin_of(p, n);
    for (size_t n = 0; n < p->step_count; n++) {
        double hidden = 0, took = all.of[n].end - all.of[n].begin;

        if (computes(&p->step[n]) && p->step[n].op->type->flops) {
            all.computed += took;
            all.flops += ct_op_flops(p->graph, p->step[n].op, 0);
        }
        if (!is_along_tp(p->graph, &p->step[n]))
            continue;
        for (size_t k = 0; k < p->step_count; k++)
            hidden += computes(&p->step[k]) ? shared(all.of[n], all.of[k]) : 0;
        all.exchanged += took;
        all.exposed += took - hidden;
        all.sent += p->step[n].lowered->sent;
    }
    all.steps++;
}

static int note(const struct ct_event_data *data)
{
    bool collective =
        data->event == CT_EVENT_COLLECTIVE_STARTED || data->event == CT_EVENT_COLLECTIVE_FINISHED;
    struct times *t;

    if (data->program != data->run->program || data->index < 0 ||
        collective != !computes(data->instruction))
        return 0;
    t = &all.of[data->index];
    if (data->event == CT_EVENT_OP_BEGIN || data->event == CT_EVENT_COLLECTIVE_STARTED)
        t->begin = data->time;
    else
        t->end = data->time;
    return 0;
}

static int tell(const struct ct_run *run)
{
    double steps = (double)(all.steps ? all.steps : 1);

    ct_info("exposed: rank %lld exchange_ms %.4f exposed_ms %.4f link %.4f tflops %.6f",
            (long long)run->rank, 1e3 * all.exchanged / steps, 1e3 * all.exposed / steps,
            all.exchanged > 0 ? all.sent / all.exchanged * 1e-9 : 0,
            all.computed > 0 ? all.flops / all.computed * 1e-12 : 0);
    free(all.of);
    return 0;
}

static int hear(const struct ct_event_data *data, void *context)
{
    (void)context;
    if (!data->run || !data->run->program)
        return 0;
    if (!all.of) {
        all.of = calloc(data->run->program->step_count, sizeof(*all.of));
        if (!all.of)
            abort();
    }
    if (data->event == CT_EVENT_RUN_END)
        return tell(data->run);
    if (data->event != CT_EVENT_STEP_END)
        return note(data);
    if (data->step > SKIPPED)
        add_step(data->run->program);
    memset(all.of, 0, data->run->program->step_count * sizeof(*all.of));
    return 0;
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook),
    .events = 1u << CT_EVENT_OP_BEGIN | 1u << CT_EVENT_OP_END | 1u << CT_EVENT_COLLECTIVE_STARTED |
              1u << CT_EVENT_COLLECTIVE_FINISHED | 1u << CT_EVENT_STEP_END | 1u << CT_EVENT_RUN_END,
    .call = hear,
};

CT_PLUGIN(.name = "exposed", .version = "1.0",
          .summary = "How long collectives along tp take, and how much of that nothing hides",
          .offers = CT_OFFERS({CT_HOOK, "exposed", &hook}));
