/*
 * Finding the driver.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "driver.h"

struct gpu_driver gpu_driver;

static const struct gpu_call calls[] = {
#define X(name, symbol, parameters) {#symbol, &gpu_driver.name},
    GPU_DRIVER_CALLS(X)
#undef X
};

int gpu_library(const char *const *names, void **library)
{
    char words[512] = "";

    for (; *names; names++) {
        *library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
        if (*library)
            return 0;
        snprintf(words, sizeof(words), "%s", dlerror());
    }
    return ct_fail(CT_ENOENT, "%s", words);
}

const char *gpu_find_calls(void *library, const struct gpu_call *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *call = dlsym(library, list[i].symbol);

        if (!call)
            return list[i].symbol;
        memcpy(list[i].at, &call, sizeof(call));
    }
    return NULL;
}

/* Streams share the queues to the device, eight of them unless the driver is told otherwise before
   it starts, and one that waits for an event holds up all that share its queue: a send must not
   wait behind a receive. The plan's streams, NCCL's and those of its groups are more than eight. */
static void ask_for_queues(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

int gpu_driver_open(void)
{
    static const char *const names[] = {"libcuda.so.1", NULL};
    static bool open;
    const char *missing;
    void *library;
    int rc, code;

    if (open)
        return 0;
    rc = gpu_library(names, &library);
    if (rc < 0)
        return ct_context(
            rc, "there is no CUDA device, as no NVIDIA driver is installed (plan and tune "
                "have --device NAME; --without cuda --with cpu runs on processors)");
    missing = gpu_find_calls(library, calls, CT_COUNT(calls));
    if (missing)
        return ct_fail(CT_ENOENT, "the NVIDIA driver is too old for this plugin: it has no %s",
                       missing);
    ask_for_queues();
    code = gpu_driver.cuInit(0);
    if (code == CUDA_ERROR_NO_DEVICE)
        return ct_fail(CT_ENOENT, "there is no CUDA device: the NVIDIA driver sees none");
    rc = gpu_check(code, "starting the NVIDIA driver");
    if (rc < 0)
        return ct_context(CT_ENOENT, "there is no CUDA device");
    open = true;
    return 0;
}

int gpu_check(int code, const char *what)
{
    const char *name = NULL, *text = NULL;

    if (code == CUDA_SUCCESS)
        return 0;
    gpu_driver.cuGetErrorName(code, &name);
    gpu_driver.cuGetErrorString(code, &text);
    return ct_fail(code == CUDA_ERROR_OUT_OF_MEMORY ? CT_ENOMEM : CT_EIO, "%s: %s (%s)", what,
                   text ? text : "unknown error", name ? name : "no name");
}
