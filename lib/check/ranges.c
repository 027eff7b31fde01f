/*
 * Two ranges of ct_parallel at the same time, one after the other: the second starts from the
 * memory that the first found, and then what both wrote is put together. A byte that both write
 * differently is a race, which threads would show only now and then; it is found where the ranges
 * follow each other.
 *
 * Memory is what a kernel can share between ranges: its operands and workspace, the frames of the
 * stack below the call of ct_parallel, and the variables of the plugin's file.
 */
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "ranges.h"

#define REGIONS (2 * CHECK_OPERANDS + 16)
#define DEEPEST ((size_t)1 << 20) /* bytes of the stack between the caller and ct_parallel */

#if defined(__SANITIZE_ADDRESS__)
#define WATCHED 0 /* it forbids to read between variables */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WATCHED 0
#endif
#endif
#ifndef WATCHED
#define WATCHED 1
#endif

enum copy { BEFORE, FIRST, SECOND, COPIES };

struct region {
    const char *name;
    char *at;
    size_t bytes;
    char *copy[COPIES]; /* as it was before, after the first range, and after the second as well */
};

/* One at a time. */
static struct {
    const struct ct_device_ops *ops; /* the device's own */
    struct region region[REGIONS];
    int count;   /* of operands, workspace and variables */
    char *stack; /* the end of the frames that the kernel may share */
    struct ct_arena arena;
    int status;
} now;

static void add_region(const char *name, char *at, size_t bytes)
{
    if (now.count < REGIONS - 1)
        now.region[now.count++] = (struct region){.name = name, .at = at, .bytes = bytes};
}

/* ---- variables of a file ---- */

/* Addresses in files: of the kernel's code and its table, which lie apart where this library runs
   what a plugin compiled; of the device's code, and of this library's variables. */
struct wanted {
    uintptr_t run, table, device, own;
};

static bool contains(const struct dl_phdr_info *info, uintptr_t address)
{
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD &&
            address - (info->dlpi_addr + info->dlpi_phdr[i].p_vaddr) < info->dlpi_phdr[i].p_memsz)
            return true;
    return false;
}

/* The device's own file has threads of its own, whose variables change at any time; in this library
   are the check's. */
static int add_variables(struct dl_phdr_info *info, size_t size, void *context)
{
    const struct wanted *wanted = context;

    (void)size;
    if (contains(info, wanted->device) || contains(info, wanted->own) ||
        (!contains(info, wanted->run) && !contains(info, wanted->table)))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];

        if (h->p_type == PT_LOAD && h->p_flags & PF_W)
            add_region("a variable of its file", (char *)(info->dlpi_addr + h->p_vaddr),
                       h->p_memsz);
    }
    return 0;
}

/* ---- ranges ---- */

static void copy_regions(int count, int copy)
{
    for (struct region *r = now.region; r < now.region + count; r++) {
        r->copy[copy] = ct_arena_alloc(&now.arena, r->bytes + 1);
        memcpy(r->copy[copy], r->at, r->bytes);
    }
}

/* After the first range, the second, and the first again: a byte that changed by both. Once is not
   enough, as the first may write again what an earlier call of it left there. */
static int find_race(int count)
{
    for (const struct region *r = now.region; r < now.region + count; r++)
        for (size_t i = 0; i < r->bytes; i++) {
            bool by_first =
                r->copy[FIRST][i] != r->copy[BEFORE][i] || r->at[i] != r->copy[SECOND][i];

            if (by_first && r->copy[SECOND][i] != r->copy[FIRST][i])
                return ct_fail(CT_EINVAL, "both write byte %zu of %s, which is a race", i, r->name);
        }
    return 0;
}

/* Only what changed is written: parts of a file's variables are read-only. */
static void restore(int count)
{
    for (const struct region *r = now.region; r < now.region + count; r++)
        for (size_t i = 0; i < r->bytes; i++)
            if (r->at[i] != r->copy[BEFORE][i])
                r->at[i] = r->copy[BEFORE][i];
}

/* Add to the second range's memory what the first wrote. */
static void merge(int count)
{
    for (const struct region *r = now.region; r < now.region + count; r++)
        for (size_t i = 0; i < r->bytes; i++)
            if (r->copy[FIRST][i] != r->copy[BEFORE][i])
                r->at[i] = r->copy[FIRST][i];
}

static __attribute__((noinline)) void in_ranges(struct ct_device *device, int64_t count,
                                                ct_range_body *body, void *context)
{
    char *frame = (char *)__builtin_frame_address(0) + 2 * sizeof(void *);
    int regions = now.count, rc;

    (void)device;
    if (count < 2) {
        body(context, 0, count);
        return;
    }
    if (WATCHED && now.stack > frame && (size_t)(now.stack - frame) < DEEPEST)
        now.region[regions++] =
            (struct region){.name = "a variable of the function that calls ct_parallel",
                            .at = frame,
                            .bytes = (size_t)(now.stack - frame)};
    copy_regions(regions, BEFORE);
    body(context, 0, count / 2);
    copy_regions(regions, FIRST);
    body(context, count / 2, count);
    copy_regions(regions, SECOND);
    body(context, 0, count / 2);
    rc = find_race(regions);
    restore(regions);
    body(context, count / 2, count);
    merge(regions);
    now.status = now.status < 0 ? now.status : rc;
}

__attribute__((noinline)) int run_in_ranges(struct ct_device *device,
                                            const struct ct_kernel *kernel,
                                            const struct ct_launch *launch,
                                            const struct memory *memory)
{
    struct ct_device_ops ops = *device->ops;
    struct wanted wanted = {(uintptr_t)kernel->run, (uintptr_t)kernel, (uintptr_t)ops.enqueue,
                            (uintptr_t)&now};
    int rc;

    memset(&now, 0, sizeof(now));
    now.ops = device->ops;
    now.stack = __builtin_frame_address(0);
    for (const struct guarded *g = memory->block; g < memory->block + memory->count; g++)
        add_region(g->tensor ? "an operand" : "the workspace", g->data, g->bytes);
    if (WATCHED)
        dl_iterate_phdr(add_variables, &wanted);
    ops.parallel = in_ranges;
    device->ops = &ops;
    rc = ops.enqueue(device, CT_STREAM_COMPUTE, kernel, launch);
    if (rc == 0)
        rc = ops.synchronize(device);
    device->ops = now.ops;
    ct_arena_finish(&now.arena);
    return rc == 0 ? now.status : rc;
}
