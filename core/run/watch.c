/*
 * Collectives on devices that only enqueue. An event is recorded before and after each. The events
 * are queried while the rest is enqueued and while the host waits for the end of the step.
 */
#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/run.h>

#include "run/executor.h"

#define EVERY 1e-4 /* seconds between two looks */

static bool wanted(const struct ct_executor *e)
{
    return e->device->enqueues && e->device->ops->query &&
           (ct_hook_wanted(CT_EVENT_COLLECTIVE_STARTED) ||
            ct_hook_wanted(CT_EVENT_COLLECTIVE_FINISHED));
}

int ct_watch_begin(struct ct_executor *e)
{
    struct ct_watch *w = &e->watch;

    w->active = wanted(e);
    w->count = 0;
    w->blind = false;
    if (!w->active)
        return 0;
    if (!w->item)
        w->item = ct_arena_array(&e->arena, struct ct_watched, e->collectives + 1);
    return (int)(2 * e->collectives);
}

int ct_watch_next(const struct ct_executor *e, const struct ct_event_data *event)
{
    return e->watch.active && event && event->index >= 0
               ? e->program->events + 2 * (int)e->watch.count
               : -1;
}

void ct_watch_add(struct ct_executor *e, const struct ct_event_data *event)
{
    int begin = ct_watch_next(e, event);

    e->watch.item[e->watch.count++] = (struct ct_watched){*event, begin, begin + 1, false};
}

static int tell(const struct ct_event_data *event, enum ct_event what)
{
    struct ct_event_data data = *event;

    data.event = what;
    return ct_hook_fire(&data);
}

/* A device that cannot tell, or has failed, is not asked again: the end of the step will show. */
static bool happened(struct ct_executor *e, int event)
{
    int rc = e->watch.blind ? 0 : e->device->ops->query(e->device, event);

    e->watch.blind |= rc < 0;
    return rc == 1;
}

/* 1: everything about it was reported; negative: a hook failed. */
static int look_at(struct ct_executor *e, struct ct_watched *w)
{
    int rc = 0;

    if (!w->started && !happened(e, w->begin))
        return 0;
    if (!w->started)
        rc = tell(&w->event, CT_EVENT_COLLECTIVE_STARTED);
    w->started = true;
    if (rc < 0 || !happened(e, w->end))
        return rc;
    rc = tell(&w->event, CT_EVENT_COLLECTIVE_FINISHED);
    return rc < 0 ? rc : 1;
}

static int look(struct ct_executor *e)
{
    struct ct_watch *w = &e->watch;
    size_t left = 0;

    for (size_t i = 0; i < w->count; i++) {
        int rc = w->item[i].event.program ? look_at(e, &w->item[i]) : 1;

        if (rc < 0)
            return rc;
        if (rc == 1)
            w->item[i].event.program = NULL;
        left += rc == 0;
    }
    w->asked = ct_now();
    return left && !w->blind ? 0 : 1;
}

int ct_watch_look(struct ct_executor *e)
{
    int rc = e->watch.count && ct_now() - e->watch.asked > EVERY ? look(e) : 0;

    return rc < 0 ? rc : 0;
}

int ct_watch_wait(struct ct_executor *e)
{
    int rc;

    while ((rc = look(e)) == 0)
        ct_nap(EVERY);
    return rc < 0 ? rc : 0;
}

int ct_watch_end(struct ct_executor *e)
{
    struct ct_watch *w = &e->watch;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < w->count; i++) {
        if (w->item[i].event.program && !w->item[i].started)
            rc = tell(&w->item[i].event, CT_EVENT_COLLECTIVE_STARTED);
        if (rc == 0 && w->item[i].event.program)
            rc = tell(&w->item[i].event, CT_EVENT_COLLECTIVE_FINISHED);
    }
    w->count = 0;
    return rc;
}
