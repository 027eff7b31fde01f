/*
 * The reference device: host memory, in-order execution, and every op by its reference kernel.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "reference.h"

static int open_reference(const struct ct_device_request *request, struct ct_device **device)
{
    static struct ct_device only = {
        .ops = &ct_device_reference, .name = "reference", .host_memory = true, .in_order = true};

    (void)request;
    *device = &only;
    return 0;
}

static void close_reference(struct ct_device *device)
{
    (void)device;
}

static void info(struct ct_device *device, enum ct_dtype compute, struct ct_device_info *info)
{
    (void)device;
    (void)compute;
    *info = (struct ct_device_info){.name = "reference kernels, one thread", .threads = 1};
}

static int reserve(struct ct_device *device, size_t bytes, void **base)
{
    size_t rounded = (bytes + 4095) / 4096 * 4096;

    (void)device;
    *base = aligned_alloc(4096, rounded ? rounded : 4096);
    if (!*base)
        return ct_fail(CT_ENOMEM, "%s", strerror(ENOMEM));
    memset(*base, 0, rounded);
    return 0;
}

static void release(struct ct_device *device, void *base, size_t bytes)
{
    (void)device;
    (void)bytes;
    free(base);
}

static int copy_in(struct ct_device *device, void *to, const void *host, size_t bytes)
{
    (void)device;
    memcpy(to, host, bytes);
    return 0;
}

static int enqueue(struct ct_device *device, int stream, const struct ct_kernel *kernel,
                   const struct ct_launch *launch)
{
    (void)device;
    (void)stream;
    return kernel->run(launch);
}

static int ignore_event(struct ct_device *device, int stream, int event)
{
    (void)device;
    (void)stream;
    (void)event;
    return 0;
}

static int events(struct ct_device *device, int count)
{
    (void)device;
    (void)count;
    return 0;
}

static int synchronize(struct ct_device *device)
{
    (void)device;
    return 0;
}

static int query(struct ct_device *device, int event)
{
    (void)device;
    (void)event;
    return 1;
}

const struct ct_device_ops ct_device_reference = {
    .size = sizeof(struct ct_device_ops),
    .open = open_reference,
    .close = close_reference,
    .info = info,
    .reserve = reserve,
    .release = release,
    .reserve_host = reserve,
    .release_host = release,
    .copy_in = copy_in,
    .copy_out = copy_in,
    .enqueue = enqueue,
    .events = events,
    .record = ignore_event,
    .wait = ignore_event,
    .synchronize = synchronize,
    .query = query,
    .copy_aside = copy_in,
};
