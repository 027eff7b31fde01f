/*
 * A libcuda.so.1 that has no device but takes code: with it, cuDNN compiles plans for a device that
 * is only described, and says how they end. All other calls of the driver fail (described_driver).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

#define STUB 34 /* CUDA_ERROR_STUB_LIBRARY */

static char something[64];

#define GIVES(name, parameters, to)                                                                \
    int name parameters;                                                                           \
    int name parameters                                                                            \
    {                                                                                              \
        *(to) = (void *)something;                                                                 \
        return 0;                                                                                  \
    }
GIVES(cuLibraryLoadData, (void **library), library)
GIVES(cuLibraryGetKernel, (void **kernel), kernel)
GIVES(cuLibraryGetModule, (void **module), module)
GIVES(cuKernelGetFunction, (void **function), function)
GIVES(cuModuleLoadData, (void **module), module)
GIVES(cuModuleLoadDataEx, (void **module), module)
GIVES(cuModuleGetFunction, (void **function), function)

#define DOES(name)                                                                                 \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return 0;                                                                                  \
    }
DOES(cuLibraryUnload)
DOES(cuModuleUnload)
DOES(cuKernelSetAttribute)
DOES(cuFuncSetAttribute)

#define COUNTS(name, value)                                                                        \
    int name(int *to);                                                                             \
    int name(int *to)                                                                              \
    {                                                                                              \
        *to = value;                                                                               \
        return 0;                                                                                  \
    }
COUNTS(cuDriverGetVersion, 13000)
COUNTS(cuKernelGetAttribute, 128)
COUNTS(cuFuncGetAttribute, 128)

static int fails(void)
{
    return STUB;
}

int cuGetProcAddress_v2(const char *name, void **call, int version, uint64_t flags, int *status);
int cuGetProcAddress_v2(const char *name, void **call, int version, uint64_t flags, int *status)
{
    void *self = dlopen("libcuda.so.1", RTLD_NOW);
    char newer[128];

    (void)version;
    (void)flags;
    snprintf(newer, sizeof(newer), "%s_v2", name);
    *call = dlsym(self, name);
    if (!*call)
        *call = dlsym(self, newer);
    if (!*call)
        *(int (**)(void))call = fails;
    if (status)
        *status = 0;
    dlclose(self);
    return 0;
}
