/*
 * The loop that runs a program and fires hooks.
 */

#include <ctitan/calling.h>
#include <ctitan/device/comm.h>
#include <ctitan/error.h>
#include <ctitan/run.h>

#include "run/executor.h"

/* A run through a part of a program. */
struct walk {
    struct ct_executor *e;
    const struct ct_instruction *list;
    struct ct_calling *calling; /* of this thread */
    size_t count;
    int64_t first; /* index of its first instruction */
    int64_t step;
    bool ops, items; /* somebody listens */
    bool renewing;   /* only what follows a parameter */
    bool timed;      /* the device notes when each instruction begins and ends */
};

static struct ct_event_data describe(const struct walk *w, size_t n, const struct ct_launch *launch)
{
    const struct ct_instruction *i = &w->list[n];

    return (struct ct_event_data){.run = w->e->program->run,
                                  .step = w->step,
                                  .program = w->e->program,
                                  .index = w->first + (int64_t)n,
                                  .instruction = i,
                                  .launch = launch,
                                  .section = i->op->section->name,
                                  .microbatch = i->microbatch};
}

static int fire(const struct walk *w, enum ct_event event, size_t n, const struct ct_launch *launch)
{
    struct ct_event_data data = describe(w, n, launch);

    data.event = event;
    return ct_hook_fire(&data);
}

/* Number the call, before any hook sees it. */
static int announce(const struct walk *w, size_t n, struct ct_launch *launch,
                    struct ct_event_data *event)
{
    struct ct_group *group = w->list[n].lowered->group;
    struct ct_event_data data;

    *event = describe(w, n, launch);
    event->group = group;
    event->sequence = group ? ++group->calls : 0;
    launch->event = w->e->device->enqueues ? NULL : event;
    if (!ct_hook_wanted(CT_EVENT_COLLECTIVE_ENQUEUED))
        return 0;
    data = *event;
    data.event = CT_EVENT_COLLECTIVE_ENQUEUED;
    return ct_hook_fire(&data);
}

static int enqueue(struct ct_executor *e, const struct ct_instruction *i,
                   const struct ct_launch *launch, const struct ct_event_data *event)
{
    const struct ct_device_ops *ops = e->device->ops;
    int watched = ct_watch_next(e, event), rc = 0;

    if (watched >= 0)
        rc = ops->record(e->device, i->stream, watched);
    if (rc == 0)
        rc = ops->enqueue(e->device, i->stream, i->lowered->kernel, launch);
    if (rc < 0 || watched < 0)
        return rc;
    rc = ops->record(e->device, i->stream, watched + 1);
    ct_watch_add(e, event);
    return rc < 0 ? rc : ct_watch_look(e);
}

/* event: of a collective, else NULL. */
static int launch(const struct walk *w, size_t n, const struct ct_launch *l,
                  const struct ct_event_data *event)
{
    const struct ct_instruction *i = &w->list[n];
    const struct ct_device_ops *ops = w->e->device->ops;
    int rc = 0;

    for (const int32_t *wait = i->waits; rc == 0 && wait && *wait >= 0; wait++)
        rc = ops->wait(w->e->device, i->stream, *wait);
    if (rc == 0 && w->timed)
        rc = ops->stamp(w->e->device, i->stream, 2 * (int)n);
    if (rc == 0)
        rc = enqueue(w->e, i, l, event);
    if (rc == 0 && w->timed)
        rc = ops->stamp(w->e->device, i->stream, 2 * (int)n + 1);
    if (rc == 0 && i->signal >= 0)
        rc = ops->record(w->e->device, i->stream, i->signal);
    return rc;
}

static void say_calling(const struct walk *w, size_t n)
{
    struct ct_calling *c = w->calling;

    c->op = w->list[n].op;
    c->kernel = w->list[n].lowered->kernel;
    c->microbatch = w->list[n].microbatch;
    c->step = w->step;
    ct_calling_wait(c, c->op->type->flags & CT_OP_COLLECTIVE);
    c->kind = "op";
    c->calls++;
}

static int perform(const struct walk *w, size_t n)
{
    const struct ct_instruction *i = &w->list[n];
    struct ct_launch *l = ct_executor_launch(w->e, i);
    bool collective = i->op->type->flags & CT_OP_COLLECTIVE;
    struct ct_event_data event;
    int rc = w->ops ? fire(w, CT_EVENT_OP_BEGIN, n, l) : 0;

    if (rc == 0 && collective)
        rc = announce(w, n, l, &event);
    if (rc == 0) {
        say_calling(w, n);
        rc = launch(w, n, l, collective ? &event : NULL);
        w->calling->kind = NULL;
    }
    if (rc < 0)
        return ct_context(rc, "%s of %%%s", i->op->type->name,
                          i->op->outs ? i->op->out[0]->name : i->op->in[0]->name);
    return w->ops ? fire(w, CT_EVENT_OP_END, n, l) : 0;
}

/* Before n, one item of the order ends and another begins: fire both events. */
static int change_item(const struct walk *w, size_t n, int *item)
{
    int rc = *item >= 0 ? fire(w, CT_EVENT_SECTION_END, n - 1, NULL) : 0;

    *item = n < w->count ? w->list[n].item : -1;
    return rc == 0 && *item >= 0 ? fire(w, CT_EVENT_SECTION_BEGIN, n, NULL) : rc;
}

/* Does op only update states, from a parameter? */
static bool follows_parameter(const struct ct_op *op)
{
    for (int i = 0; i < op->ins && !op->outs; i++)
        if (op->in[i] && op->in[i]->role == CT_ROLE_PARAM && !ct_op_mutates(op, i))
            return true;
    return false;
}

static int walk(struct walk *w)
{
    int rc = 0, item = -1;

    w->calling = ct_calling();
    w->ops = ct_hook_wanted(CT_EVENT_OP_BEGIN) || ct_hook_wanted(CT_EVENT_OP_END);
    w->items = ct_hook_wanted(CT_EVENT_SECTION_BEGIN) || ct_hook_wanted(CT_EVENT_SECTION_END);
    for (size_t n = 0; rc == 0 && n < w->count; n++) {
        if (w->renewing && !follows_parameter(w->list[n].op))
            continue;
        if (w->first + (int64_t)n == w->e->hold_before)
            ct_executor_await_next(w->e);
        if (w->items && w->list[n].item != item)
            rc = change_item(w, n, &item);
        if (rc == 0)
            rc = perform(w, n);
    }
    return rc == 0 && w->items && item >= 0 ? change_item(w, w->count, &item) : rc;
}

/* Wait for the device; an earlier failure takes precedence. */
static int finish(struct ct_executor *e, int rc)
{
    struct ct_error_kept kept;
    int end;

    if (rc == 0 && e->watch.count)
        rc = ct_watch_wait(e);
    kept = ct_error_keep();
    end = e->device->ops->synchronize(e->device);
    if (rc < 0)
        return ct_error_restore(rc, &kept);
    return end < 0 ? end : ct_watch_end(e);
}

static int init(struct ct_executor *e, bool renewing)
{
    struct walk w = {.e = e,
                     .list = e->program->init,
                     .count = e->program->init_count,
                     .first = -(int64_t)e->program->init_count,
                     .renewing = renewing};

    return finish(e, walk(&w));
}

int ct_executor_init(struct ct_executor *e)
{
    return init(e, false);
}

/* ---- timed steps ---- */

int ct_executor_time_next(struct ct_executor *e)
{
    const struct ct_device_ops *ops = e->device->ops;

    if (!ops->stamps || !ops->stamp || !ops->stamped)
        return ct_fail(CT_EINVAL, "device %s does not time instructions", e->device->name);
    e->time_next = true;
    return 0;
}

const struct ct_instruction_time *ct_executor_times(const struct ct_executor *e)
{
    return e->timed ? e->times : NULL;
}

static void take_times(struct ct_executor *e)
{
    const struct ct_device_ops *ops = e->device->ops;
    int count = (int)e->program->step_count;

    if (!e->times)
        e->times = ct_arena_array(&e->arena, struct ct_instruction_time, count + 1);
    for (int n = 0; n < count; n++)
        e->times[n] = (struct ct_instruction_time){ops->stamped(e->device, 2 * n),
                                                   ops->stamped(e->device, 2 * n + 1)};
}

int ct_executor_step(struct ct_executor *e)
{
    struct walk w = {.e = e,
                     .list = e->program->step,
                     .count = e->program->step_count,
                     .step = e->program->run ? e->program->run->progress.step : 0,
                     .timed = e->time_next};
    struct ct_executor *memory = e->common ? e->common : e;
    int rc = memory->written ? init(e, true) : 0;

    if (rc == 0)
        rc = e->device->ops->events(e->device, e->program->events + ct_watch_begin(e));
    if (rc == 0 && w.timed)
        rc = e->device->ops->stamps(e->device, 2 * (int)w.count);
    rc = rc < 0 ? rc : finish(e, walk(&w));
    e->timed = rc == 0 && w.timed;
    if (e->timed)
        take_times(e);
    e->time_next = memory->written = false;
    return rc;
}
