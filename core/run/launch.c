/*
 * Launches, for those that run kernels: their copies, and their work on a device's threads.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/device/device.h>
#include <ctitan/hook.h>

/* A copy of size bytes at *end of a block, or only the room for it. */
static void *put(char *block, size_t *end, const void *data, size_t size)
{
    size_t at = *end, unit = _Alignof(max_align_t);

    *end += (size + unit - 1) / unit * unit;
    return block && size ? memcpy(block + at, data, size) : NULL;
}

/* Copy a launch into a block; block NULL: only count. Returns the bytes. */
static size_t copy_into(char *block, const struct ct_launch *launch)
{
    size_t end = 0;
    struct ct_launch *copy = put(block, &end, launch, sizeof(*copy));
    const void *in = put(block, &end, launch->in, sizeof(*launch->in) * (size_t)launch->ins);
    const void *out = put(block, &end, launch->out, sizeof(*launch->out) * (size_t)launch->outs);
    struct ct_event_data *event =
        launch->event ? put(block, &end, launch->event, sizeof(*event)) : NULL;

    if (!block)
        return end;
    copy->in = in;
    copy->out = out;
    copy->event = event;
    if (event)
        event->launch = copy;
    return end;
}

struct ct_launch *ct_launch_dup(const struct ct_launch *launch)
{
    void *block = malloc(copy_into(NULL, launch));

    if (block)
        copy_into(block, launch);
    return block;
}

void ct_parallel(const struct ct_launch *launch, int64_t count, ct_range_body *body, void *context)
{
    struct ct_device *device = launch->device;

    if (device && device->ops->parallel && count > 1)
        device->ops->parallel(device, count, body, context);
    else if (count > 0)
        body(context, 0, count);
}
