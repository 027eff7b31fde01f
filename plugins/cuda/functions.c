/*
 * Kernels on the device: images in this plugin, loaded when the device is opened, and their
 * functions by name.
 */
#include <stdio.h>
#include <stdlib.h>

#include "functions.h"

#define SLOTS 1024 /* a power of two, several times the number of functions */
/* Up to 48 KiB need no leave; what a kernel declares itself counts too. */
#define PLAIN_SHARED ((size_t)32 << 10)

struct slot {
    char name[80];
    CUfunction function;
    size_t shared; /* largest dynamic shared memory allowed so far */
};

struct gpu_functions {
    CUmodule *module; /* of images, then of what was compiled */
    int images, modules;
    struct slot slot[SLOTS];
};

/* A driver loads images of its own major version of CUDA, and of older ones. */
static int check_driver(void)
{
    int driver = 0, toolkit = gpu_images_toolkit;
    int rc = gpu_check(gpu_driver.cuDriverGetVersion(&driver), "the driver's version");

    if (rc < 0 || driver / 1000 >= toolkit / 1000)
        return rc;
    return ct_fail(CT_ENOENT,
                   "the NVIDIA driver is for CUDA %d.%d, the kernels were built with CUDA %d.%d: "
                   "install a newer driver, or build with nvcc %d",
                   driver / 1000, driver % 1000 / 10, toolkit / 1000, toolkit % 1000 / 10,
                   driver / 1000);
}

int gpu_functions_load(struct gpu *gpu)
{
    struct gpu_functions *f;
    int count = 0, rc = gpu_images[0].data ? check_driver() : 0;

    if (!gpu_images[0].data)
        return ct_fail(CT_ENOENT,
                       "plugin cuda was built without kernels, for planning only: build it where "
                       "nvcc of the CUDA toolkit is installed");
    if (rc < 0)
        return rc;
    f = calloc(1, sizeof(*f));
    if (!f)
        return ct_fail(CT_ENOMEM, "the kernels of the device");
    gpu->functions = f;
    while (gpu_images[count].data)
        count++;
    f->module = calloc((size_t)count + 1, sizeof(*f->module));
    if (!f->module)
        return ct_fail(CT_ENOMEM, "the kernels of the device");
    for (; rc == 0 && f->modules < count; f->images = ++f->modules) {
        rc = gpu_check(
            gpu_driver.cuModuleLoadData(&f->module[f->modules], gpu_images[f->modules].data),
            "loading kernels");
        if (rc < 0)
            rc = ct_context(rc, "%s, for compute capability %d.%d", gpu_images[f->modules].name,
                            gpu->capability / 10, gpu->capability % 10);
    }
    return rc;
}

int gpu_functions_add(struct gpu *gpu, const void *image, const char *name, CUfunction *function)
{
    struct gpu_functions *f = gpu->functions;
    CUmodule *grown = realloc(f->module, ((size_t)f->modules + 1) * sizeof(*grown));
    int rc;

    if (!grown)
        return ct_fail(CT_ENOMEM, "a kernel of the device");
    f->module = grown;
    rc = gpu_check(gpu_driver.cuModuleLoadData(&f->module[f->modules], image), "loading a kernel");
    if (rc < 0)
        return rc;
    return gpu_check(gpu_driver.cuModuleGetFunction(function, f->module[f->modules++], name), name);
}

void gpu_functions_unload(struct gpu *gpu)
{
    struct gpu_functions *f = gpu->functions;

    if (!f)
        return;
    for (int i = 0; i < f->modules; i++)
        if (f->module[i])
            gpu_driver.cuModuleUnload(f->module[i]);
    free(f->module);
    free(f);
}

static struct slot *find_slot(struct gpu_functions *f, const char *name)
{
    uint32_t hash = 2166136261u;

    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    while (*f->slot[hash % SLOTS].name && strcmp(f->slot[hash % SLOTS].name, name))
        hash++;
    return &f->slot[hash % SLOTS];
}

static int find(struct gpu_functions *f, const char *name, struct slot **slot)
{
    *slot = find_slot(f, name);
    if ((*slot)->function)
        return 0;
    for (int i = 0; i < f->images; i++)
        if (gpu_driver.cuModuleGetFunction(&(*slot)->function, f->module[i], name) == 0) {
            snprintf((*slot)->name, sizeof((*slot)->name), "%s", name);
            (*slot)->shared = PLAIN_SHARED;
            return 0;
        }
    (*slot)->function = NULL;
    return ct_fail(CT_EIO, "the images have no kernel %s", name);
}

static int allow_shared(struct slot *slot, size_t shared)
{
    int rc;

    if (shared <= slot->shared)
        return 0;
    rc =
        gpu_check(gpu_driver.cuFuncSetAttribute(
                      slot->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared),
                  "shared memory of a kernel");
    slot->shared = shared;
    return rc;
}

int gpu_launch(const struct ct_launch *l, const char *name, struct gpu_size grid,
               struct gpu_size block, size_t shared, const void *arguments)
{
    void *parameters[] = {(void *)(uintptr_t)arguments};
    struct slot *slot;
    int rc;

    if (!grid.x || !grid.y || !grid.z)
        return 0;
    rc = find(gpu_of(l->device)->functions, name, &slot);
    if (rc == 0)
        rc = allow_shared(slot, shared);
    if (rc == 0)
        rc = gpu_check(gpu_driver.cuLaunchKernel(slot->function, grid.x, grid.y, grid.z, block.x,
                                                 block.y, block.z, (unsigned)shared, l->stream,
                                                 parameters, NULL),
                       name);
    return rc;
}

int gpu_launch_as(const struct ct_launch *l, const char *name, enum ct_dtype dtype, bool vector,
                  struct gpu_size grid, struct gpu_size block, size_t shared, const void *arguments)
{
    char full[80];

    snprintf(full, sizeof(full), "%s_%s%s", name, ct_dtype_name(dtype), vector ? "_vector" : "");
    return gpu_launch(l, full, grid, block, shared, arguments);
}
