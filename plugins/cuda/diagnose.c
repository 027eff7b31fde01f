/*
 * What `ctitan doctor` says of CUDA: libraries, and which devices see each other's memory.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "gpu.h"

static const struct {
    const char *file, *what;
} libraries[] = {
    {"libcuda.so.1", "the NVIDIA driver"},
    {"libcublasLt.so.13", "cuBLASLt 13 (matrix products; 12 does as well)"},
    {"libcudnn.so.9", "cuDNN 9 (bfloat16 attention; plain kernels otherwise)"},
    {"libnvrtc.so.13", "NVRTC 13 (compiled kernels, with plugin fuse; 12 does as well)"},
    {"libnccl.so.2", "NCCL 2 (many GPUs; through the host otherwise)"},
};

static void find_libraries(void (*say)(const char *line))
{
    char line[160];

    for (size_t i = 0; i < CT_COUNT(libraries); i++) {
        void *library = dlopen(libraries[i].file, RTLD_LAZY | RTLD_LOCAL);

        snprintf(line, sizeof(line), "%-18s %s: %s", libraries[i].file,
                 library ? "found" : "missing", libraries[i].what);
        say(line);
        if (library)
            dlclose(library);
    }
}

static void find_peers(int count, void (*say)(const char *line))
{
    char line[160];

    for (int i = 0; i < count; i++)
        for (int k = i + 1; k < count; k++) {
            int can = 0;

            if (gpu_driver.cuDeviceCanAccessPeer(&can, i, k) == 0 && !can) {
                snprintf(line, sizeof(line),
                         "devices %d and %d do not see each other's memory: their traffic goes "
                         "through the host",
                         i, k);
                say(line);
            }
        }
}

void gpu_diagnose(void (*say)(const char *line))
{
    int count = 0;

    find_libraries(say);
    if (gpu_driver_open() == 0 && gpu_driver.cuDeviceGetCount(&count) == 0)
        find_peers(count, say);
}
