/*
 * The device: its arena, and the mapping from the core's calls to the streams.
 *
 * The arena is one anonymous mapping at a huge-page boundary, kept until the end, so that page
 * faults occur once and not in every step.
 */
#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/host.h>
#include <ctitan/lib/numa.h>

#include "cpu.h"
#include "gemm.h"
#include "products/unit.h"

#define HUGE_PAGE ((size_t)2 << 20)

/* As the recipe says, else $OMP_NUM_THREADS, else the rank's share of the cores. */
static void set_threads(const struct ct_device_request *request)
{
    int ranks = request->local_ranks > 0 ? request->local_ranks : 1;
    const char *variable = getenv("OMP_NUM_THREADS");
    int threads = (int)cpu_config.threads;

    if (!threads && variable)
        threads = atoi(variable);
    if (threads < 1)
        threads = omp_get_num_procs() / ranks;
    omp_set_dynamic(0);
    omp_set_num_threads(threads > 0 ? threads : 1);
}

static void start_thread(void *context, int thread, int threads)
{
    (void)context;
    (void)thread;
    (void)threads;
    cpu_flush_denormals();
}

static void close_device(struct ct_device *base)
{
    struct cpu_device *device = (struct cpu_device *)base;

    if (!device)
        return;
    cpu_streams_destroy(device->streams);
    free(device);
}

static int check_products(void)
{
    bool native = cpu_bf16_native();

    if (cpu_config.products == CPU_PRODUCTS_OWN && native && !cpu_unit(CT_BF16))
        return ct_fail(CT_ECONFIG,
                       "[cpu] products = own: this CPU has no AVX512_BF16, which bf16_matmul = "
                       "native asks for, or [cpu] isa excludes it; use auto");
    if (cpu_config.products == CPU_PRODUCTS_EMULATED && !native)
        return ct_fail(CT_ECONFIG, "[cpu] products = emulated: bf16_matmul = widen leaves the "
                                   "emulated tile unit no products");
    return 0;
}

static int open_device(const struct ct_device_request *request, struct ct_device **out)
{
    struct cpu_device *device;
    int rc = ct_cpu_use(cpu_config.isa, "[cpu] isa");

    if (rc < 0)
        return rc;
    set_threads(request);
    ct_numa_bind(request->local_rank, request->local_ranks > 0 ? request->local_ranks : 1);
    cpu_parallel(start_thread, NULL);
    rc = cpu_gemm_start();
    if (rc >= 0)
        rc = check_products();
    if (rc >= 0 && cpu_config.attention == CPU_ATTENTION_BFLOAT16 && !cpu_best_unit())
        rc = ct_fail(CT_ECONFIG, "[cpu] attention = bfloat16: this CPU has neither AMX nor "
                                 "AVX512_BF16, or [cpu] isa excludes them; use auto");
    if (rc < 0)
        return rc;
    device = calloc(1, sizeof(*device));
    if (!device)
        return ct_fail(CT_ENOMEM, "no memory for the cpu device");
    device->base = (struct ct_device){.ops = &cpu_device_ops,
                                      .name = "cpu",
                                      .host_memory = true,
                                      .in_order = cpu_config.streams == CPU_STREAMS_IN_ORDER};
    rc = cpu_streams_create(device->base.in_order, &device->streams);
    if (rc < 0) {
        close_device(&device->base);
        return rc;
    }
    *out = &device->base;
    return 0;
}

static void read_cpu_name(char *name, size_t room)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];

    snprintf(name, room, "CPU");
    if (!file)
        return;
    while (fgets(line, sizeof(line), file)) {
        if (strncmp(line, "model name", 10) || !strchr(line, ':'))
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name, room, "%.60s", strchr(line, ':') + 2);
        break;
    }
    fclose(file);
}

static void device_info(struct ct_device *device, enum ct_dtype compute,
                        struct ct_device_info *info)
{
    char name[64];

    (void)device;
    (void)compute;
    read_cpu_name(name, sizeof(name));
    *info = (struct ct_device_info){.threads = cpu_threads()};
    info->memory = (size_t)ct_host_memory();
    snprintf(info->name, sizeof(info->name), "%s, %d thread%s, %s%s", name, info->threads,
             ct_plural(info->threads), ct_cpu_isa_name(ct_cpu_isa()),
             cpu_bf16_native() ? ", bf16" : "");
}

static size_t mapped_size(size_t bytes)
{
    return (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

static int reserve(struct ct_device *device, size_t bytes, void **out)
{
    size_t size = mapped_size(bytes), head;
    char *memory;

    (void)device;
    memory = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return ct_fail(CT_ENOMEM, "%s", strerror(errno));
    head = (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE) % HUGE_PAGE;
    if (head)
        munmap(memory, head);
    munmap(memory + head + size, HUGE_PAGE - head);
    memory += head;
    madvise(memory, size, cpu_config.huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    ct_numa_place(memory, size);
    *out = memory;
    return 0;
}

static void release(struct ct_device *device, void *memory, size_t bytes)
{
    (void)device;
    if (memory)
        munmap(memory, mapped_size(bytes));
}

static int copy(struct ct_device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    memcpy(to, from, bytes);
    return 0;
}

static struct cpu_streams *streams(struct ct_device *device)
{
    return ((struct cpu_device *)device)->streams;
}

static int enqueue(struct ct_device *device, int stream, const struct ct_kernel *kernel,
                   const struct ct_launch *launch)
{
    return cpu_streams_enqueue(streams(device), stream, kernel, launch);
}

static int events(struct ct_device *device, int count)
{
    return cpu_streams_events(streams(device), count);
}

static int record(struct ct_device *device, int stream, int event)
{
    return cpu_streams_record(streams(device), stream, event);
}

static int wait_event(struct ct_device *device, int stream, int event)
{
    return cpu_streams_wait(streams(device), stream, event);
}

static int synchronize(struct ct_device *device)
{
    return cpu_streams_synchronize(streams(device));
}

static int query(struct ct_device *device, int event)
{
    return cpu_streams_query(streams(device), event);
}

static int stamps(struct ct_device *device, int count)
{
    return cpu_streams_stamps(streams(device), count);
}

static int stamp(struct ct_device *device, int stream, int number)
{
    return cpu_streams_stamp(streams(device), stream, number);
}

static double stamped(struct ct_device *device, int number)
{
    return cpu_streams_stamped(streams(device), number);
}

/* Resident pages. */
static size_t used(struct ct_device *device)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0;

    (void)device;
    if (file && fscanf(file, "%*u %llu", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

struct ranges {
    int64_t count;
    ct_range_body *body;
    void *context;
};

static void run_range(void *context, int thread, int threads)
{
    const struct ranges *r = context;
    struct cpu_range mine = cpu_share(r->count, 1, thread, threads);

    if (mine.begin < mine.end)
        r->body(r->context, mine.begin, mine.end);
}

static void parallel(struct ct_device *device, int64_t count, ct_range_body *body, void *context)
{
    struct ranges ranges = {count, body, context};

    (void)device;
    cpu_parallel(run_range, &ranges);
}

const struct ct_device_ops cpu_device_ops = {
    .size = sizeof(struct ct_device_ops),
    .open = open_device,
    .close = close_device,
    .info = device_info,
    .reserve = reserve,
    .release = release,
    .reserve_host = cpu_reserve_host,
    .release_host = cpu_release_host,
    .copy_in = copy,
    .copy_out = copy,
    .enqueue = enqueue,
    .events = events,
    .record = record,
    .wait = wait_event,
    .synchronize = synchronize,
    .query = query,
    .copy_aside = copy,
    .parallel = parallel,
    .stamps = stamps,
    .stamp = stamp,
    .stamped = stamped,
    .used = used,
};
