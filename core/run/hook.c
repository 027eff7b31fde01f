/*
 * The subscribers of this process, called in the order in which they came.
 */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include <ctitan/calling.h>
#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/log.h>
#include <ctitan/run.h>

#include "run/note.h"

#define ROOM 64
#define NOTE_ROOM 1024

static struct subscriber {
    const struct ct_hook *hook;
    const char *owner;
} subscribers[ROOM];

static size_t count;
static uint32_t wanted;

const char *ct_event_name(enum ct_event event)
{
    static const char *const names[] = {
#define X(id) #id,
        CT_EVENTS(X)
#undef X
    };

    return names[event];
}

int ct_hook_register(const struct ct_hook *hook, const char *owner)
{
    assert(hook->call);
    if (count == ROOM)
        return ct_fail(CT_EINVAL, "more than %d hooks", ROOM);
    subscribers[count++] = (struct subscriber){hook, owner};
    wanted |= hook->events;
    return 0;
}

bool ct_hook_wanted(enum ct_event event)
{
    return wanted >> event & 1;
}

/* Call a subscriber, if it wants the event. */
static int call(const struct subscriber *s, const struct ct_event_data *data)
{
    bool wants = s->hook->events >> data->event & 1;
    struct ct_calling before;
    int rc;

    if (!wants)
        return 0;
    before = ct_calling_begin(s->owner ? "hook" : NULL, s->owner);
    ct_calling()->event = ct_event_name(data->event);
    ct_calling()->step = data->step;
    rc = s->hook->call(data, s->hook->context);
    ct_calling_end(&before);
    return rc < 0 && s->owner
               ? ct_context(rc, "%s, hook on %s", s->owner, ct_event_name(data->event))
               : rc;
}

/* Call every subscriber. The first failure is returned, and its message is restored at the end. */
static int fire_end(const struct ct_event_data *data)
{
    struct ct_error_kept kept;
    int first = 0;

    for (size_t i = 0; i < count; i++) {
        int rc = call(&subscribers[i], data);

        if (rc >= 0 || first < 0)
            continue;
        first = rc;
        kept = ct_error_keep();
    }
    return first < 0 && data->event != CT_EVENT_FAILURE ? ct_error_restore(first, &kept) : 0;
}

/* A call of the host knows its group only: that of all ranks belongs to a run. */
static void find_run(struct ct_event_data *data)
{
    data->run = ct_run_of_world(data->group);
    data->step = data->run ? data->run->progress.step : 0;
}

int ct_hook_fire(const struct ct_event_data *given)
{
    struct ct_event_data data = *given;
    int rc = 0;

    if (!ct_hook_wanted(data.event))
        return 0;
    data.size = sizeof(data);
    if (data.time == 0)
        data.time = ct_now();
    if (data.call && !data.run)
        find_run(&data);
    if (data.event == CT_EVENT_FAILURE || data.event == CT_EVENT_RUN_END ||
        data.event == CT_EVENT_SAVE_END)
        return fire_end(&data);
    for (size_t i = 0; rc >= 0 && i < count; i++)
        rc = call(&subscribers[i], &data);
    return rc < 0 ? rc : 0;
}

int ct_run_tell(struct ct_run *run, enum ct_log_level level, int64_t step, const char *kind,
                const char *text)
{
    if (run->rank != 0)
        return 0;
    ct_log(level, "%s", text);
    return ct_hook_fire(&(struct ct_event_data){
        .event = CT_EVENT_NOTE, .run = run, .step = step, .kind = kind, .message = text});
}

int ct_run_note(struct ct_run *run, int64_t step, const char *kind, const char *format, ...)
{
    char text[NOTE_ROOM];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return ct_run_tell(run, CT_LOG_WARNING, step, kind, text);
}

int ct_hook_fire_failure(struct ct_run *run, const struct ct_step_result *result, int rc)
{
    struct ct_error_kept kept = ct_error_keep();

    ct_hook_fire(&(struct ct_event_data){.event = CT_EVENT_FAILURE,
                                         .run = run,
                                         .step = result ? result->step : 0,
                                         .result = result,
                                         .message = kept.message,
                                         .code = rc});
    return ct_error_restore(rc, &kept);
}
