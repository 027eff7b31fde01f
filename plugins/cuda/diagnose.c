/*
 * Findings of `ctitan doctor` about CUDA: libraries, and which devices see each other's memory.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "gpu.h"

static const struct {
    const char *files[2]; /* the first that is there is used */
    const char *what;
} libraries[] = {
    {{"libcuda.so.1"}, "the NVIDIA driver"},
    {{"libcublasLt.so.13", "libcublasLt.so.12"}, "cuBLASLt 13 or 12 (matrix products)"},
    {{"libcudnn.so.9"}, "cuDNN 9 (bfloat16 attention; plain kernels otherwise)"},
    {{"libnvrtc.so.13", "libnvrtc.so.12"}, "NVRTC 13 or 12 (compiled kernels, with plugin fuse)"},
    {{"libnccl.so.2"}, "NCCL 2 (many GPUs; through the host otherwise)"},
    {{"libcupti.so.13", "libcupti.so.12"},
     "CUPTI 13 or 12 (kernels in traces, with plugin profile)"},
};

static const char *find_one(const char *const *files)
{
    for (int i = 0; i < 2 && files[i]; i++) {
        void *library = dlopen(files[i], RTLD_LAZY | RTLD_LOCAL);

        if (library) {
            dlclose(library);
            return files[i];
        }
    }
    return NULL;
}

static void find_libraries(void (*say)(const char *line))
{
    char line[160];

    for (size_t i = 0; i < CT_COUNT(libraries); i++) {
        const char *file = find_one(libraries[i].files);

        snprintf(line, sizeof(line), "%-18s %s: %s", file ? file : libraries[i].files[0],
                 file ? "found" : "missing", libraries[i].what);
        say(line);
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
