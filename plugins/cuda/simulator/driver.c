/*
 * The simulated driver: libcuda.so.1. Memory is the host's; streams are in streams.c.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "races.h"
#include "streams.h"

/* Symbols that are versioned. */
#define cuDeviceTotalMem cuDeviceTotalMem_v2
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#define cuMemGetInfo cuMemGetInfo_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemFree cuMemFree_v2
#define cuMemHostGetDevicePointer cuMemHostGetDevicePointer_v2
#define cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#define cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2
#define cuMemcpy2DAsync cuMemcpy2DAsync_v2
#define cuMemGetAddressRange cuMemGetAddressRange_v2

/* ---- the device ---- */

int cuInit(unsigned flags)
{
    (void)flags;
    return getenv("SIMULATOR_NO_DEVICE") ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

int cuDriverGetVersion(int *version)
{
    const char *other = getenv("SIMULATOR_DRIVER");

    *version = other ? atoi(other) : 13000;
    return CUDA_SUCCESS;
}

int cuGetErrorName(int error, const char **name)
{
    *name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
    return CUDA_SUCCESS;
}

int cuGetErrorString(int error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "unknown error";
    return CUDA_SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

int cuDeviceGetName(char *name, int room, int device)
{
    (void)device;
    snprintf(name, (size_t)room, "simulated device");
    return CUDA_SUCCESS;
}

/* SIMULATOR_CAPABILITY=100 in the environment: compute capability 10.0. */
static int capability(void)
{
    const char *other = getenv("SIMULATOR_CAPABILITY");

    return other ? atoi(other) : 90;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 4;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = capability() / 10;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = capability() % 10;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = 227 << 10;
        break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
        *value = 50 << 20;
        break;
    default:
        *value = 1;
    }
    return CUDA_SUCCESS;
}

int cuDeviceTotalMem(size_t *bytes, int device)
{
    (void)device;
    *bytes = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer;
    return CUDA_SUCCESS;
}

int cuDevicePrimaryCtxRetain(CUcontext *context, int device)
{
    (void)device;
    *context = (CUcontext)(uintptr_t)1;
    return CUDA_SUCCESS;
}

int cuDevicePrimaryCtxRelease(int device)
{
    (void)device;
    return CUDA_SUCCESS;
}

int cuCtxGetCurrent(CUcontext *context)
{
    *context = (CUcontext)(uintptr_t)1;
    return CUDA_SUCCESS;
}

int cuCtxSetCurrent(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

/* ---- kernels: functions of this library, by name ---- */

#define ARGUMENTS 8192 /* bytes */

static void *self(void)
{
    Dl_info here;

    return dladdr((void *)(uintptr_t)self, &here) ? dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD)
                                                  : NULL;
}

/* The file stays open: a library is known by its name. */
static void *load_object(const struct simulated_object *object)
{
    char path[64];
    int file = memfd_create("object", MFD_CLOEXEC);

    if (file < 0 || write(file, object + 1, object->bytes) != (ssize_t)object->bytes)
        return NULL;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

int cuModuleLoadData(CUmodule *module, const void *image)
{
    const struct simulated_object *object = image;

    simulated_count("cuModuleLoadData");
    *module =
        strncmp(image, SIMULATED_OBJECT, sizeof(object->magic)) ? self() : load_object(object);
    return *module ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static _Atomic bool launched; /* a kernel, of any stream */

int cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    simulated_count(launched ? "a function is asked for between launches"
                             : "a function is asked for before the first launch");
    *function = (CUfunction)dlsym(module, name);
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

int cuModuleUnload(CUmodule module)
{
    (void)module;
    return CUDA_SUCCESS;
}

#define PLAIN_SHARED 49152 /* bytes of a block that need no permission */
#define LARGEST_SHARED 232448

/* Bytes that functions are allowed, where these are more than PLAIN_SHARED. */
static struct {
    CUfunction function;
    int bytes;
} permissions[256];

static int *permission_of(CUfunction function)
{
    size_t i = 0;

    while (i + 1 < CT_COUNT(permissions) && permissions[i].function &&
           permissions[i].function != function)
        i++;
    permissions[i].function = function;
    return &permissions[i].bytes;
}

int cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value > LARGEST_SHARED)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        *permission_of(function) = value;
    return CUDA_SUCCESS;
}

/* KERNEL notes them beside the function. */
static size_t argument_bytes(CUfunction function)
{
    char name[128];
    Dl_info info;
    const size_t *bytes = NULL;
    void *library;

    if (dladdr((void *)function, &info) && info.dli_sname) {
        simulated_count("%s", info.dli_sname);
        snprintf(name, sizeof(name), "%s_bytes", info.dli_sname);
        library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
        bytes = library ? dlsym(library, name) : NULL;
    }
    return bytes ? *bytes : 0;
}

struct launch {
    struct simulated_launch launch;
    _Alignas(16) unsigned char arguments[ARGUMENTS];
};

static simulated_watcher *_Atomic watcher;

void simulated_watch(simulated_watcher *to)
{
    watcher = to;
}

uint64_t simulated_clock(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int run_launch(const void *arguments)
{
    struct simulated_launch l = ((const struct launch *)arguments)->launch;
    simulated_watcher *tell = watcher;
    uint64_t begin = simulated_clock();
    Dl_info info;

    l.arguments = ((const struct launch *)arguments)->arguments;
    simulated_run(&l);
    if (tell && dladdr((void *)(uintptr_t)l.kernel, &info) && info.dli_sname)
        tell(info.dli_sname, begin, simulated_clock());
    return CUDA_SUCCESS;
}

int cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   CUstream stream, void **parameters, void **extra)
{
    size_t bytes = argument_bytes(function);
    struct launch l = {.launch = {{grid_x, grid_y, grid_z},
                                  {block_x, block_y, block_z},
                                  shared,
                                  (void (*)(const void *))(uintptr_t)function,
                                  NULL}};

    (void)extra;
    launched = true;
    if (bytes > sizeof(l.arguments))
        return CUDA_ERROR_NOT_FOUND;
    if (shared > PLAIN_SHARED && shared > (unsigned)*permission_of(function))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(l.arguments, parameters[0], bytes);
    return simulated_submit(stream, run_launch, &l, offsetof(struct launch, arguments) + bytes);
}

/* ---- memory ---- */

int cuMemGetInfo(size_t *available, size_t *total)
{
    *available = *total = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

#define RANGES 256
#define LARGE ((size_t)2 << 20)

/* The device's memory. Nobody may touch it but calls that a stream performs: a host that follows a
   pointer of the device ends by a signal, as it would with a real one. */
static struct range {
    void *address;
    size_t bytes;
} ranges[RANGES];
static pthread_mutex_t access_lock = PTHREAD_MUTEX_INITIALIZER;
static int performing; /* calls that are under way */

static void protect(const struct range *r)
{
    int access = performing ? PROT_READ | PROT_WRITE : PROT_NONE;

    if (r->address && mprotect(r->address, r->bytes, access))
        abort();
}

void simulated_memory_open(int change)
{
    pthread_mutex_lock(&access_lock);
    performing += change;
    for (int i = 0; performing == (change > 0) && i < RANGES; i++)
        protect(&ranges[i]);
    pthread_mutex_unlock(&access_lock);
}

static struct range *range_at(void *address)
{
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].address == address)
            return &ranges[i];
    return NULL;
}

#ifdef SIMULATED_RACES
bool simulated_is_memory(uintptr_t address)
{
    for (int i = 0; i < RANGES; i++)
        if (address - (uintptr_t)ranges[i].address < ranges[i].bytes)
            return true;
    return false;
}
#endif

/* In large pages, where there are some: their protection changes fast. */
static void *map(size_t bytes)
{
    char *memory =
        mmap(NULL, bytes + LARGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t before = LARGE - (uintptr_t)memory % LARGE;

    if (memory == MAP_FAILED)
        return NULL;
    munmap(memory, before);
    if (before < LARGE)
        munmap(memory + before + bytes, LARGE - before);
    madvise(memory + before, bytes, MADV_HUGEPAGE);
    return memory + before;
}

static int allocate(CUdeviceptr *address, size_t bytes)
{
    struct range *r, new = {NULL, (bytes + LARGE - 1) / LARGE * LARGE};

    pthread_mutex_lock(&access_lock);
    r = range_at(NULL);
    if (r && bytes && bytes <= (size_t)8 << 30)
        new.address = map(new.bytes);
    if (new.address)
        *r = new;
    protect(&new);
    pthread_mutex_unlock(&access_lock);
    *address = (uintptr_t) new.address;
    return new.address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

int cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
    return allocate(address, bytes);
}

int cuMemFree(CUdeviceptr address)
{
    struct range *r;

    pthread_mutex_lock(&access_lock);
    r = address ? range_at((void *)(uintptr_t)address) : NULL;
    if (r) {
        munmap(r->address, r->bytes);
        r->address = NULL;
    }
    pthread_mutex_unlock(&access_lock);
    return r || !address ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

int cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    const char *refused = getenv("SIMULATOR_REFUSES");

    (void)flags;
    if (refused && !strcmp(refused, "pinned"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

int cuMemHostGetDevicePointer(CUdeviceptr *address, void *host, unsigned flags)
{
    (void)flags;
    *address = (uintptr_t)host;
    return CUDA_SUCCESS;
}

int cuMemFreeHost(void *address)
{
    free(address);
    return CUDA_SUCCESS;
}

int cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties, int option)
{
    (void)properties;
    (void)option;
    *bytes = (size_t)2 << 20;
    return CUDA_SUCCESS;
}

int cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t align, CUdeviceptr at,
                        unsigned long long flags)
{
    (void)align;
    (void)at;
    (void)flags;
    return allocate(address, bytes);
}

int cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    (void)bytes;
    return cuMemFree(address);
}

int cuMemCreate(unsigned long long *handle, size_t bytes, const CUmemAllocationProp *properties,
                unsigned long long flags)
{
    const char *refused = getenv("SIMULATOR_REFUSES");

    (void)bytes;
    (void)flags;
    if (refused && (!strcmp(refused, "mapping") || properties->requestedHandleTypes))
        return 801; /* CUDA_ERROR_NOT_SUPPORTED */
    *handle = 1;
    return CUDA_SUCCESS;
}

int cuMemRelease(unsigned long long handle)
{
    (void)handle;
    return CUDA_SUCCESS;
}

int cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, unsigned long long handle,
             unsigned long long flags)
{
    (void)address;
    (void)bytes;
    (void)offset;
    (void)handle;
    (void)flags;
    return CUDA_SUCCESS;
}

int cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    (void)address;
    (void)bytes;
    return CUDA_SUCCESS;
}

int cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    (void)address;
    (void)bytes;
    (void)access;
    (void)count;
    return CUDA_SUCCESS;
}

struct fill {
    CUdeviceptr address;
    unsigned char value;
    size_t count;
};

static int run_fill(const void *arguments)
{
    const struct fill *f = arguments;

    memset((void *)(uintptr_t)f->address, f->value, f->count);
    return CUDA_SUCCESS;
}

int cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream stream)
{
    struct fill f = {address, value, count};

    return simulated_submit(stream, run_fill, &f, sizeof(f));
}

struct copy {
    void *to;
    const void *from;
    size_t bytes;
};

static int run_copy(const void *arguments)
{
    const struct copy *c = arguments;

    memcpy(c->to, c->from, c->bytes);
    return CUDA_SUCCESS;
}

static int copy(void *to, const void *from, size_t bytes, CUstream stream)
{
    struct copy c = {to, from, bytes};

    return simulated_submit(stream, run_copy, &c, sizeof(c));
}

int cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    return copy((void *)(uintptr_t)to, from, bytes, stream);
}

int cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(to, (void *)(uintptr_t)from, bytes, stream);
}

int cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, stream);
}

int cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, stream);
}

int cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    int rc = CUDA_ERROR_NOT_FOUND;

    pthread_mutex_lock(&access_lock);
    for (int i = 0; i < RANGES; i++)
        if (address - (uintptr_t)ranges[i].address < ranges[i].bytes && ranges[i].address) {
            *base = (uintptr_t)ranges[i].address;
            *bytes = ranges[i].bytes;
            rc = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&access_lock);
    return rc;
}

static int run_copy_rows(const void *arguments)
{
    const CUDA_MEMCPY2D *c = arguments;

    for (size_t row = 0; row < c->Height; row++)
        memmove((char *)(uintptr_t)c->dstDevice + row * c->dstPitch,
                (const char *)(uintptr_t)c->srcDevice + row * c->srcPitch, c->WidthInBytes);
    return CUDA_SUCCESS;
}

int cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    if (copy->srcMemoryType != CU_MEMORYTYPE_DEVICE ||
        copy->dstMemoryType != CU_MEMORYTYPE_DEVICE || copy->srcPitch < copy->WidthInBytes ||
        copy->dstPitch < copy->WidthInBytes || copy->srcPitch > INT32_MAX ||
        copy->dstPitch > INT32_MAX)
        return CUDA_ERROR_NOT_FOUND;
    return simulated_submit(stream, run_copy_rows, copy, sizeof(*copy));
}
