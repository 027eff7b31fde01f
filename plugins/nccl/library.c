/* Finds and loads NCCL and the driver. */
#include <dlfcn.h>
#include <string.h>

#include <ctitan/error.h>

#include "library.h"

struct nccl_library nccl;

struct call {
    const char *symbol;
    size_t offset;
};

static const struct call nccl_calls[] = {
#define X(name, parameters) {#name, offsetof(struct nccl_library, name)},
    NCCL_CALLS(X)
#undef X
        {"ncclGetErrorString", offsetof(struct nccl_library, ncclGetErrorString)}};

static const struct call cuda_calls[] = {
#define X(name, symbol, parameters) {#symbol, offsetof(struct nccl_library, name)},
    CUDA_CALLS(X)
#undef X
};

static int find(void *library, const char *what, const struct call *calls, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *call = dlsym(library, calls[i].symbol);

        if (!call)
            return ct_fail(CT_ENOENT, "this %s is too old: it has no %s", what, calls[i].symbol);
        memcpy((char *)&nccl + calls[i].offset, &call, sizeof(call));
    }
    return 0;
}

static int load(const char *file, const char *what, const struct call *calls, size_t count,
                void **library)
{
    *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!*library)
        return ct_fail(CT_ENOENT, "%s is not installed: %s", what, dlerror());
    return find(*library, what, calls, count);
}

static int check_version(bool windows)
{
    int version = 0;

    nccl.ncclGetVersion(&version);
    if (version < NCCL_OLDEST)
        return ct_fail(CT_ENOENT, "this NCCL is version %d.%d: 2.22 or newer is needed",
                       version / 10000, version / 100 % 100);
    if (windows && (version < NCCL_WINDOWS || !nccl.ncclCommWindowRegister))
        return ct_fail(CT_ECONFIG,
                       "[nccl] windows = true needs NCCL 2.28 or newer, and this is version %d.%d",
                       version / 10000, version / 100 % 100);
    return 0;
}

int nccl_library_open(bool windows)
{
    void *library, *call;
    static bool open;
    int rc;

    if (open)
        return 0;
    rc = load("libcuda.so.1", "NVIDIA driver", cuda_calls, CT_COUNT(cuda_calls), &library);
    if (rc == 0)
        rc = load("libnccl.so.2", "NCCL", nccl_calls, CT_COUNT(nccl_calls), &library);
    if (rc < 0)
        return rc;
    call = dlsym(library, "ncclCommWindowRegister");
    memcpy(&nccl.ncclCommWindowRegister, &call, sizeof(call));
    rc = check_version(windows);
    open = rc == 0;
    return rc;
}
