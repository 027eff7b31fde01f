#include <assert.h>

#include <ctitan/error.h>
#include <ctitan/hook.h>

#define ROOM 64

static const struct ct_hook *hooks[ROOM];
static size_t count;
static uint32_t wanted;

int ct_hook_register(const struct ct_hook *hook)
{
    assert(hook->call);
    if (count == ROOM)
        return ct_fail(CT_EINVAL, "more than %d hooks", ROOM);
    hooks[count++] = hook;
    wanted |= hook->events;
    return 0;
}

bool ct_hook_wanted(enum ct_event event)
{
    return wanted >> event & 1;
}

int ct_hook_fire(const struct ct_event_data *data)
{
    for (size_t i = 0; ct_hook_wanted(data->event) && i < count; i++) {
        int rc;

        if (!(hooks[i]->events >> data->event & 1))
            continue;
        rc = hooks[i]->call(data, hooks[i]->context);
        if (rc < 0 && data->event != CT_EVENT_FAILURE)
            return rc;
    }
    return 0;
}
