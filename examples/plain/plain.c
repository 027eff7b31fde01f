/*
 * A device: host memory, one thread, and loops that anybody can read. All streams are one, in the
 * order of enqueueing, so events need no work.
 *
 * Ops without a kernel here run their reference, because the host may read and write the memory. A
 * device with memory of its own sets host_memory to false, and must bring a kernel for each op that
 * it is to run, and a transport for collectives (collective.h).
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/op_author.h>
#include <ctitan/plugin.h>

#define PAGE ((size_t)4096)

static const struct ct_device_ops ops;

static int open_device(const struct ct_device_request *request, struct ct_device **device)
{
    static struct ct_device only = {
        .ops = &ops, .name = "plain", .host_memory = true, .in_order = true};

    (void)request; /* a device with several units takes number request->local_rank */
    *device = &only;
    return 0;
}

static void close_device(struct ct_device *device)
{
    (void)device;
}

static void info(struct ct_device *device, enum ct_dtype compute, struct ct_device_info *info)
{
    (void)device, (void)compute;
    *info = (struct ct_device_info){.name = "host memory, one thread", .threads = 1};
}

/* ---- memory ---- */

static int reserve(struct ct_device *device, size_t bytes, void **base)
{
    size_t whole = (bytes / PAGE + 1) * PAGE;

    (void)device;
    *base = aligned_alloc(PAGE, whole);
    if (!*base)
        return ct_fail(CT_ENOMEM, "%zu bytes", bytes);
    memset(*base, 0, whole);
    return 0;
}

static void release(struct ct_device *device, void *base, size_t bytes)
{
    (void)device, (void)bytes;
    free(base);
}

static int copy(struct ct_device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    memcpy(to, from, bytes);
    return 0;
}

/* ---- streams and events ---- */

static int enqueue(struct ct_device *device, int stream, const struct ct_kernel *kernel,
                   const struct ct_launch *launch)
{
    (void)device, (void)stream;
    return kernel->run(launch);
}

static int events(struct ct_device *device, int count)
{
    (void)device, (void)count;
    return 0;
}

static int on_event(struct ct_device *device, int stream, int event)
{
    (void)device, (void)stream, (void)event;
    return 0;
}

static int synchronize(struct ct_device *device)
{
    (void)device;
    return 0;
}

static const struct ct_device_ops ops = {
    .size = sizeof(struct ct_device_ops),
    .open = open_device,
    .close = close_device,
    .info = info,
    .reserve = reserve,
    .release = release,
    .copy_in = copy,
    .copy_out = copy,
    .enqueue = enqueue,
    .events = events,
    .record = on_event,
    .wait = on_event,
    .synchronize = synchronize,
    .copy_aside = copy,
};

/* ---- a kernel: y = x w^T on dense float32, for each of several w ---- */

static bool accepts(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_F32;
}

static void multiply(const struct ct_tensor *x, const struct ct_tensor *w,
                     const struct ct_tensor *y)
{
    int64_t rows = ct_rows(x), depth = ct_columns(x), columns = ct_rows(w);
    const float *a = x->data, *b = w->data;
    float *c = y->data;

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            float sum = 0;

            for (int64_t k = 0; k < depth; k++)
                sum += a[i * depth + k] * b[j * depth + k];
            c[i * columns + j] = sum;
        }
}

/* The signature is "x[.k] T, *w[nk] T -> *y[.n] T". */
static int linear(const struct ct_launch *l)
{
    for (int i = 0; i < l->outs; i++)
        multiply(&l->in[0], &l->in[1 + i], &l->out[i]);
    return 0;
}

static const struct ct_kernel kernels[] = {
    CT_KERNEL(.op = "linear", .name = "loops", .accepts = accepts, .run = linear), {0}};

CT_PLUGIN(.name = "plain", .version = "1.0", .summary = "Device: host memory and readable loops",
          .offers = CT_OFFERS({CT_DEVICE, "plain", &ops}, {CT_KERNELS, "plain", kernels}));
