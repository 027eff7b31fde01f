/*
 * The simulated CUPTI: libcupti.so.13. Of what it may watch, it tells the launches of kernels. Its
 * clock is a day behind the host's.
 *
 * SIMULATOR_CUPTI=VERSION in the environment: it says that it is of this version.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include <ctitan/base.h>

#include "cupti_library.h"
#include <ctitan/lib/cuda/simulator.h>

#define X(name, parameters) CT_API int name parameters;
CUPTI_CALLS(X)
#undef X

#define DAY 86400000000000u
#define NONE_LEFT 12

/* A record, with more behind what its readers know. */
struct record {
    struct cupti_kernel kernel;
    uint64_t more[8];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cupti_room *get_room;
static cupti_filled *give;
static struct record *buffer;
static size_t room, used;

int cuptiGetVersion(uint32_t *version)
{
    const char *other = getenv("SIMULATOR_CUPTI");

    *version = other ? (uint32_t)atoi(other) : 130001;
    return CUPTI_SUCCESS;
}

int cuptiGetResultString(int result, const char **text)
{
    (void)result;
    *text = "simulated";
    return CUPTI_SUCCESS;
}

int cuptiGetTimestamp(uint64_t *nanoseconds)
{
    *nanoseconds = simulated_clock() - DAY;
    return CUPTI_SUCCESS;
}

int cuptiActivityRegisterCallbacks(cupti_room *request, cupti_filled *filled)
{
    get_room = request;
    give = filled;
    return CUPTI_SUCCESS;
}

static void flush(void)
{
    if (buffer)
        give(NULL, 0, (uint8_t *)buffer, room, used * sizeof(*buffer));
    buffer = NULL;
    room = used = 0;
}

static void note(const char *kernel, uint64_t begin, uint64_t end)
{
    size_t records;

    pthread_mutex_lock(&lock);
    if ((used + 1) * sizeof(*buffer) > room)
        flush();
    if (!buffer)
        get_room((uint8_t **)&buffer, &room, &records);
    buffer[used++] = (struct record){.kernel = {.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                                .start = begin - DAY,
                                                .end = end - DAY,
                                                .stream = 7,
                                                .name = kernel}};
    pthread_mutex_unlock(&lock);
}

int cuptiActivityEnable(int kind)
{
    if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
        simulated_watch(note);
    return CUPTI_SUCCESS;
}

int cuptiActivityDisable(int kind)
{
    if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
        simulated_watch(NULL);
    return CUPTI_SUCCESS;
}

int cuptiActivityFlushAll(uint32_t flag)
{
    (void)flag;
    pthread_mutex_lock(&lock);
    flush();
    pthread_mutex_unlock(&lock);
    return CUPTI_SUCCESS;
}

int cuptiActivityGetNextRecord(uint8_t *from, size_t valid, void **record)
{
    struct record *next = *record ? (struct record *)*record + 1 : (struct record *)(void *)from;

    if ((uint8_t *)(next + 1) > from + valid)
        return NONE_LEFT;
    *record = next;
    return CUPTI_SUCCESS;
}
