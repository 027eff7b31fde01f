/*
 * Kernels of a profiled step, by NVIDIA's CUPTI: which functions ran, its libraries' too, and when.
 *
 * CUPTI fills buffers, from a thread of its own, and hands them back when they are flushed. Its
 * clock is compared with that of the trace when a step begins.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/log.h>

#include "cupti_library.h"
#include "profile.h"

#define BUFFER ((size_t)1 << 20)

static struct {
    enum { UNASKED, ABSENT, THERE } state;
    void *library;
#define X(name, parameters) int(*name) parameters;
    CUPTI_CALLS(X)
#undef X
} cupti;

static const struct {
    const char *symbol;
    void *at;
} calls[] = {
#define X(name, parameters) {#name, &cupti.name},
    CUPTI_CALLS(X)
#undef X
};

static const int kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                            CUPTI_ACTIVITY_KIND_MEMSET};

static struct {
    pthread_mutex_t lock;
    struct ct_arena arena;
    struct profiled_kernel *list;
    size_t count, room;
    uint64_t base; /* CUPTI's time at `began`; differences to it keep their nanoseconds as double */
    double began;  /* seconds of CLOCK_MONOTONIC */
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- finding it ---- */

static int check(int result, const char *what)
{
    const char *text = NULL;

    if (result == CUPTI_SUCCESS)
        return 0;
    cupti.cuptiGetResultString(result, &text);
    return ct_fail(CT_EIO, "CUPTI: %s: %s", what, text ? text : "unknown error");
}

static int open_library(void)
{
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12"};

    for (size_t i = 0; !cupti.library && i < CT_COUNT(names); i++)
        cupti.library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return cupti.library ? 0 : ct_fail(CT_ENOENT, "CUPTI is not installed: %s", dlerror());
}

static int find_calls(void)
{
    for (size_t i = 0; i < CT_COUNT(calls); i++) {
        void *call = dlsym(cupti.library, calls[i].symbol);

        if (!call)
            return ct_fail(CT_ENOENT, "this CUPTI has no %s", calls[i].symbol);
        memcpy(calls[i].at, &call, sizeof(call));
    }
    return 0;
}

static int check_version(void)
{
    uint32_t version = 0;
    int rc = check(cupti.cuptiGetVersion(&version), "its version");

    if (rc == 0 && !CUPTI_KNOWN(version))
        rc = ct_fail(CT_ENOENT,
                     "records of CUPTI's version %u are not known; those of CUDA 12 and "
                     "13 are",
                     version);
    return rc;
}

/* ---- records ---- */

static double seconds_at(uint64_t nanoseconds)
{
    return seen.began + 1e-9 * (double)(int64_t)(nanoseconds - seen.base);
}

static void add(const char *name, uint64_t start, uint64_t end, uint32_t stream, uint64_t bytes)
{
    struct profiled_kernel k = {.start = seconds_at(start),
                                .end = seconds_at(end),
                                .stream = stream,
                                .bytes = (int64_t)bytes};

    pthread_mutex_lock(&seen.lock);
    seen.list =
        ct_arena_grow(&seen.arena, seen.list, &seen.room, seen.count + 1, sizeof(*seen.list));
    k.name = ct_arena_strdup(&seen.arena, name);
    seen.list[seen.count++] = k;
    pthread_mutex_unlock(&seen.lock);
}

static void take_record(const void *record)
{
    const struct cupti_kernel *kernel = record;
    const struct cupti_copy *copy = record;

    if (kernel->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
        add(kernel->name ? kernel->name : "kernel", kernel->start, kernel->end, kernel->stream, 0);
    else if (copy->kind == CUPTI_ACTIVITY_KIND_MEMCPY || copy->kind == CUPTI_ACTIVITY_KIND_MEMSET)
        add(copy->kind == CUPTI_ACTIVITY_KIND_MEMCPY ? "copy" : "set", copy->start, copy->end,
            copy->stream, copy->bytes);
}

/* Records are aligned to 8 bytes. */
static void make_room(uint8_t **buffer, size_t *size, size_t *records)
{
    *buffer = malloc(BUFFER);
    *size = *buffer ? BUFFER : 0;
    *records = 0;
}

static void take_buffer(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    void *record = NULL;

    (void)context;
    (void)stream;
    (void)size;
    while (valid && cupti.cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
        take_record(record);
    free(buffer);
}

/* ---- steps ---- */

static int start_cupti(void)
{
    int rc = open_library();

    if (rc == 0)
        rc = find_calls();
    if (rc == 0)
        rc = check_version();
    if (rc == 0)
        rc = check(cupti.cuptiActivityRegisterCallbacks(make_room, take_buffer), "starting");
    return rc;
}

static void compare_clocks(void)
{
    double before = ct_now();

    cupti.cuptiGetTimestamp(&seen.base);
    seen.began = (before + ct_now()) / 2;
}

static void give_up(void)
{
    cupti.state = ABSENT;
    ct_warn("profile: traces have no kernels: %s", ct_error_message());
}

static void disable(void)
{
    for (size_t i = 0; i < CT_COUNT(kinds); i++)
        cupti.cuptiActivityDisable(kinds[i]);
}

void profile_kernels_begin(void)
{
    int rc = 0;

    if (cupti.state == UNASKED) {
        cupti.state = THERE;
        rc = start_cupti();
    }
    if (rc < 0)
        give_up();
    if (cupti.state != THERE)
        return;
    compare_clocks();
    for (size_t i = 0; rc == 0 && i < CT_COUNT(kinds); i++)
        rc = check(cupti.cuptiActivityEnable(kinds[i]), "watching kernels");
    if (rc < 0) {
        give_up();
        disable();
    }
}

size_t profile_kernels_end(const struct profiled_kernel **list)
{
    *list = NULL;
    if (cupti.state != THERE)
        return 0;
    cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    disable();
    *list = seen.list;
    return seen.count;
}

void profile_kernels_forget(void)
{
    ct_arena_finish(&seen.arena);
    seen.list = NULL;
    seen.count = seen.room = 0;
}
