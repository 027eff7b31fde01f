/*
 * See clocks.h. The declarations follow NVML's binary interface. The GPU is the first that
 * CUDA_VISIBLE_DEVICES names by its number, else number 0.
 */
#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/clock.h>

#include "clocks.h"

#define SM_CLOCK 1
#define POWER_CAP 4u /* of the reasons why a clock is low */
#define LOOKS (1 << 16)

static struct {
    int (*init)(void);
    int (*handle)(unsigned index, void **device);
    int (*clock)(void *device, int which, unsigned *mhz);
    int (*power)(void *device, unsigned *milliwatts);
    int (*temperature)(void *device, int sensor, unsigned *celsius);
    int (*reasons)(void *device, unsigned long long *bits);
} nvml;

static struct look {
    double at, mhz, watts, celsius, capped; /* at: as ct_now */
} looks[LOOKS];

static void *device;
static size_t count;
static atomic_bool ends;
static pthread_t thread;
static bool runs;

static bool find(void *library, const char *name, void *into)
{
    void *call = dlsym(library, name);

    memcpy(into, &call, sizeof(call));
    return call != NULL;
}

static bool open_nvml(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    unsigned index = visible && isdigit((unsigned char)*visible) ? (unsigned)atoi(visible) : 0;
    void *l = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

    return l && find(l, "nvmlInit_v2", &nvml.init) &&
           find(l, "nvmlDeviceGetHandleByIndex_v2", &nvml.handle) &&
           find(l, "nvmlDeviceGetClockInfo", &nvml.clock) &&
           find(l, "nvmlDeviceGetPowerUsage", &nvml.power) &&
           find(l, "nvmlDeviceGetTemperature", &nvml.temperature) &&
           find(l, "nvmlDeviceGetCurrentClocksThrottleReasons", &nvml.reasons) && !nvml.init() &&
           !nvml.handle(index, &device);
}

static void *watch(void *context)
{
    while (!ends && count < LOOKS) {
        unsigned mhz = 0, milliwatts = 0, celsius = 0;
        unsigned long long bits = 0;

        if (!nvml.clock(device, SM_CLOCK, &mhz) && !nvml.power(device, &milliwatts) &&
            !nvml.temperature(device, 0, &celsius) && !nvml.reasons(device, &bits))
            looks[count++] =
                (struct look){ct_now(), mhz, milliwatts / 1e3, celsius, bits & POWER_CAP ? 100 : 0};
        ct_nap(CLOCKS_EVERY);
    }
    return context;
}

void clocks_begin(void)
{
    static int known; /* 1: NVML is there; -1: it is not */

    if (!known)
        known = open_nvml() ? 1 : -1;
    count = 0;
    ends = false;
    runs = known > 0 && pthread_create(&thread, NULL, watch, NULL) == 0;
}

void clocks_end(double seconds, char *text, size_t room)
{
    struct look sum = {.at = ct_now() - seconds};
    size_t first;
    double n;

    *text = '\0';
    if (!runs)
        return;
    ends = true;
    pthread_join(thread, NULL);
    for (first = count; first > 0 && looks[first - 1].at >= sum.at;)
        first--;
    n = (double)(count - first);
    for (size_t i = first; i < count; i++) {
        sum.mhz += looks[i].mhz / n;
        sum.watts += looks[i].watts / n;
        sum.celsius += looks[i].celsius / n;
        sum.capped += looks[i].capped / n;
    }
    if (first < count)
        snprintf(text, room, " | %.0f MHz, %.0f W, %.0f C, power cap in %.0f %% of looks", sum.mhz,
                 sum.watts, sum.celsius, sum.capped);
}
