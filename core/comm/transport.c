/*
 * Transports: the host's own, those that plugins register for their devices, and the kernel that
 * runs any collective over a transport.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>

#include "comm/groups.h"

int ct_transport_call(const struct ct_launch *l, const struct ct_transport *by,
                      const struct ct_call *call)
{
    int rc = ct_call_check(call);

    return rc < 0 ? rc : by->call(l, call);
}

/* ---- memory of the device ---- */

static const struct ct_device_ops *device_ops(const struct ct_launch *l)
{
    static const struct ct_device_ops host_memory = {.copy = NULL};

    return l->device ? ((const struct ct_device *)l->device)->ops : &host_memory;
}

int ct_launch_copy(const struct ct_launch *l, void *to, size_t to_stride, const void *from,
                   size_t from_stride, size_t bytes, int64_t count)
{
    const struct ct_device_ops *ops = device_ops(l);

    if (ops->copy)
        return ops->copy(l, to, to_stride, from, from_stride, bytes, count);
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)to + (size_t)i * to_stride, (const char *)from + (size_t)i * from_stride,
               bytes);
    return 0;
}

int ct_launch_clear(const struct ct_launch *l, void *at, size_t bytes)
{
    const struct ct_device_ops *ops = device_ops(l);

    if (ops->clear)
        return ops->clear(l, at, bytes);
    memset(at, 0, bytes);
    return 0;
}

/* ---- the host's transport ---- */

static int host_begin(const struct ct_launch *l, struct ct_group *group)
{
    int rc = group->ops->begin ? group->ops->begin(group) : 0;

    (void)l;
    return rc == 0 && group->ops->begin ? 1 : rc;
}

static int host_end(const struct ct_launch *l, struct ct_group *group)
{
    (void)l;
    return group->ops->end(group);
}

static int host_call(const struct ct_launch *l, const struct ct_call *call)
{
    (void)l;
    return ct_call_run(call);
}

static const struct ct_transport host = {
    .size = sizeof(host),
    .name = "host",
    .begin = host_begin,
    .end = host_end,
    .call = host_call,
};

/* ---- the kernel ---- */

static int prepare(struct ct_prepare *p)
{
    const struct ct_collective_ops *ops = p->op->type->collective;
    int rc =
        ops->prepare && ops->run
            ? ops->prepare(p)
            : ct_fail(CT_EINVAL, "op type %s: its collective lacks a function", p->op->type->name);

    if (rc == 0)
        ((struct ct_collective *)p->state)->transport = ct_transport_find(p->device);
    return rc;
}

static int fire(const struct ct_launch *l, enum ct_event event)
{
    struct ct_event_data data;

    if (!l->event || !ct_hook_wanted(event))
        return 0;
    data = *l->event;
    data.event = event;
    return ct_hook_fire(&data);
}

/* The failure stays the thread's, whatever the hooks do. */
static int fail(const struct ct_launch *l, int rc)
{
    struct ct_event_data data;
    struct ct_error_kept kept;

    if (!l->event || !ct_hook_wanted(CT_EVENT_COLLECTIVE_FAILED))
        return rc;
    kept = ct_error_keep();
    data = *l->event;
    data.event = CT_EVENT_COLLECTIVE_FAILED;
    data.message = kept.message;
    data.code = rc;
    ct_hook_fire(&data);
    return ct_error_restore(rc, &kept);
}

static int run_transport(const struct ct_launch *l)
{
    const struct ct_collective_ops *ops = l->op->type->collective;
    const struct ct_collective *c = l->state;
    int rc;

    if (!(l->op->type->flags & CT_OP_COLLECTIVE))
        return ops->run(l, c->transport);
    if (!c->group)
        return ct_fail(CT_EINVAL, "%s: no communicator is open", l->op->type->name);
    rc = fire(l, CT_EVENT_COLLECTIVE_STARTED);
    if (rc == 0)
        rc = ops->run(l, c->transport);
    return rc < 0 ? fail(l, rc) : fire(l, CT_EVENT_COLLECTIVE_FINISHED);
}

/* ---- by device ---- */

struct entry {
    const char *device; /* NULL: any device in host memory */
    const struct ct_transport *transport;
    struct ct_kernel kernel;
};

#define KERNEL(name) CT_KERNEL("collective", name, 0, NULL, prepare, run_transport)

static const struct entry host_entry = {NULL, &host, KERNEL("host")};
static struct ct_arena arena;
static struct entry **entries;
static size_t count, room, offers; /* offers: those of plugins that are in entries */

int ct_transport_register(const char *device, const struct ct_transport *t)
{
    struct entry *c = ct_arena_new(&arena, struct entry);

    if (!t->name || !t->call || !t->begin != !t->end)
        return ct_fail(CT_EINVAL, "a transport of device %s lacks a function", device);
    *c = (struct entry){device, t, KERNEL(t->name)};
    entries = ct_arena_grow(&arena, entries, &room, count + 1, sizeof(*entries));
    entries[count++] = c;
    return 0;
}

/* Register the transports that plugins have offered since. */
static int register_offers(void)
{
    const size_t least = offsetof(struct ct_transport, call) + sizeof(host.call);
    const struct ct_offer *offer;
    const void *widened;
    int rc = 0;

    while (rc == 0 && (offer = ct_offer_at(CT_TRANSPORT, offers))) {
        rc = ct_struct_widen(offer->ops, least, sizeof(host), &widened);
        if (rc == 0)
            rc = ct_transport_register(offer->name, widened);
        offers++;
    }
    if (rc < 0)
        ct_warn("the transport of device %s is not used: %s", offer->name, ct_error_message());
    return rc;
}

static const struct entry *entry_of(const struct ct_device *device)
{
    const struct entry *found = NULL;

    while (register_offers() < 0)
        continue;
    for (size_t i = 0; i < count; i++)
        if (!strcmp(entries[i]->device, device->name) &&
            (!found || (found->transport->waits && !entries[i]->transport->waits)))
            found = entries[i];
    return found || !device->host_memory ? found : &host_entry;
}

const struct ct_transport *ct_transport_find(const struct ct_device *device)
{
    const struct entry *c = entry_of(device);

    return c ? c->transport : NULL;
}

const struct ct_kernel *ct_collective_kernel(const struct ct_device *device)
{
    const struct entry *c = entry_of(device);

    return c ? &c->kernel : NULL;
}
