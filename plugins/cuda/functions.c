/*
 * Functions on the device, found by name while programs are lowered. An image, of this plugin or of
 * another, is loaded with the first of its functions that a program needs.
 */
#include <stdio.h>
#include <stdlib.h>

#include <ctitan/plugin.h>

#include "functions.h"

#define SLOTS 4096 /* a power of two, several times the number of functions */
/* Up to 48 KiB need no leave; what a kernel declares itself counts too. */
#define PLAIN_SHARED ((size_t)32 << 10)

struct ct_cuda_function {
    const struct ct_cuda_image *images; /* of the plugin that calls it */
    char name[80];
    CUfunction handle;
    size_t shared; /* largest dynamic shared memory allowed so far */
};

struct module {
    CUmodule handle;                    /* NULL: not loaded yet */
    const struct ct_cuda_image *images; /* of the plugin that it belongs to; NULL: compiled */
    const struct ct_cuda_image *image;  /* the one of them */
};

struct gpu_functions {
    struct module *module;
    int modules, slots;
    struct ct_cuda_function slot[SLOTS]; /* by the hash of the name */
};

/* A driver loads images of its own major version of CUDA, and of older ones. */
static int check_driver(const struct ct_cuda_code *code)
{
    int driver = 0, toolkit = code->toolkit;
    int rc = gpu_check(gpu_driver.cuDriverGetVersion(&driver), "the driver's version");

    if (rc < 0 || driver / 1000 >= toolkit / 1000)
        return rc;
    return ct_fail(CT_ENOENT,
                   "the NVIDIA driver is for CUDA %d.%d, the kernels were built with CUDA %d.%d: "
                   "install a newer driver, or build with nvcc %d",
                   driver / 1000, driver % 1000 / 10, toolkit / 1000, toolkit % 1000 / 10,
                   driver / 1000);
}

static int add_module(struct gpu_functions *f, struct module module)
{
    struct module *grown = realloc(f->module, ((size_t)f->modules + 1) * sizeof(*grown));

    if (!grown)
        return ct_fail(CT_ENOMEM, "the kernels of the device");
    f->module = grown;
    f->module[f->modules++] = module;
    return 0;
}

static int load_module(struct gpu *gpu, struct module *m)
{
    int rc = m->handle ? 0
                       : gpu_check(gpu_driver.cuModuleLoadData(&m->handle, m->image->data),
                                   "loading kernels");

    return rc < 0 ? ct_context(rc, "%s, for compute capability %d.%d", m->image->name,
                               gpu->cuda.capability / 10, gpu->cuda.capability % 10)
                  : 0;
}

static int add_code(struct gpu *gpu, const struct ct_cuda_code *code)
{
    int rc = code->images->data ? check_driver(code) : 0;

    for (const struct ct_cuda_image *i = code->images; rc == 0 && i->data; i++)
        rc = add_module(gpu->functions, (struct module){.images = code->images, .image = i});
    return rc;
}

static int add_offer(struct gpu *gpu, const struct ct_offer *offer)
{
    size_t least = offsetof(struct ct_cuda_code, images) + sizeof(struct ct_cuda_image *);
    const void *code;
    int rc = ct_struct_widen(offer->ops, least, sizeof(struct ct_cuda_code), &code);

    if (rc == 0 && !((const struct ct_cuda_code *)code)->images)
        rc = ct_fail(CT_EINVAL, "its `images` is not set");
    return rc < 0 ? ct_context(rc, "the %s of a plugin: struct ct_cuda_code",
                               ct_kind_name(offer->kind))
                  : add_code(gpu, code);
}

/* The functions of other plugins. */
static int add_offers(struct gpu *gpu)
{
    const struct ct_offer *offer;
    int rc = 0;

    for (size_t i = 0; rc == 0 && (offer = ct_offer_at(CT_CODE, i)); i++)
        if (!strcmp(offer->name, "cuda") && offer->ops != &gpu_code)
            rc = add_offer(gpu, offer);
    return rc;
}

int gpu_functions_open(struct gpu *gpu)
{
    int rc;

    if (!gpu_code.images->data)
        return ct_fail(CT_ENOENT,
                       "plugin cuda was built without kernels, for planning only: build it where "
                       "nvcc of the CUDA toolkit is installed");
    gpu->functions = calloc(1, sizeof(*gpu->functions));
    if (!gpu->functions)
        return ct_fail(CT_ENOMEM, "the kernels of the device");
    rc = add_code(gpu, &gpu_code);
    return rc < 0 ? rc : add_offers(gpu);
}

int gpu_functions_add(struct gpu *gpu, const void *image, const char *name, CUfunction *function)
{
    struct module m = {NULL, NULL, NULL};
    int rc = gpu_check(gpu_driver.cuModuleLoadData(&m.handle, image), "loading kernels");

    if (rc == 0)
        rc = add_module(gpu->functions, m);
    return rc < 0 ? rc : gpu_check(gpu_driver.cuModuleGetFunction(function, m.handle, name), name);
}

void gpu_functions_unload(struct gpu *gpu)
{
    struct gpu_functions *f = gpu->functions;

    if (!f)
        return;
    for (int i = 0; i < f->modules; i++)
        if (f->module[i].handle)
            gpu_driver.cuModuleUnload(f->module[i].handle);
    free(f->module);
    free(f);
}

static struct ct_cuda_function *find_slot(struct gpu_functions *f,
                                          const struct ct_cuda_image *images, const char *name)
{
    uint32_t hash = 2166136261u;
    struct ct_cuda_function *slot;

    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    for (;; hash++) {
        slot = &f->slot[hash % SLOTS];
        if (!*slot->name || (slot->images == images && !strcmp(slot->name, name)))
            return slot;
    }
}

/* Whether the image may have the function: known of this plugin's images, where nvcc made them. */
static bool may_have(const struct module *m, const char *function)
{
    if (m->images != gpu_code.images)
        return true;
    for (const struct gpu_image_function *f = gpu_image_functions; f->name; f++)
        if (!strcmp(f->name, function))
            return !strcmp(f->image, m->image->name);
    return true;
}

/* *handle is NULL if no image has it. */
static int find_in_images(struct gpu *gpu, const struct ct_cuda_image *images, const char *name,
                          CUfunction *handle)
{
    struct gpu_functions *f = gpu->functions;

    *handle = NULL;
    for (int i = 0; i < f->modules; i++) {
        struct module *m = &f->module[i];
        int rc;

        if (m->images != images || !may_have(m, name))
            continue;
        rc = load_module(gpu, m);
        if (rc < 0)
            return rc;
        if (gpu_driver.cuModuleGetFunction(handle, m->handle, name) == 0)
            return 0;
        *handle = NULL;
    }
    return 0;
}

static int load_function(struct gpu *gpu, const struct ct_cuda_image *images, const char *name,
                         struct ct_cuda_function *slot)
{
    struct gpu_functions *f = gpu->functions;
    CUfunction handle;
    int rc;

    if (f->slots == SLOTS / 2)
        return ct_fail(CT_ENOMEM, "more than %d functions of kernels", SLOTS / 2);
    rc = find_in_images(gpu, images, name, &handle);
    if (rc < 0)
        return rc;
    if (!handle && !images->data)
        return ct_fail(CT_ENOENT,
                       "its plugin was built without kernels for CUDA: build it where nvcc of the "
                       "CUDA toolkit is installed");
    if (!handle)
        return ct_fail(CT_EIO, "the images have no kernel %s", name);
    *slot = (struct ct_cuda_function){.images = images, .handle = handle, .shared = PLAIN_SHARED};
    snprintf(slot->name, sizeof(slot->name), "%s", name);
    f->slots++;
    return 0;
}

int gpu_find_function(struct ct_device *device, const struct ct_cuda_code *code, const char *name,
                      struct ct_cuda_function **function)
{
    struct gpu *gpu = gpu_of(device);

    *function = NULL;
    if (gpu->described)
        return 0;
    *function = find_slot(gpu->functions, code->images, name);
    return (*function)->handle ? 0 : load_function(gpu, code->images, name, *function);
}

static int allow_shared(struct ct_cuda_function *f, size_t shared)
{
    int rc;

    if (shared <= f->shared)
        return 0;
    rc = gpu_check(gpu_driver.cuFuncSetAttribute(
                       f->handle, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared),
                   "shared memory of a kernel");
    f->shared = shared;
    return rc;
}

int gpu_launch_function(const struct ct_launch *l, struct ct_cuda_function *f,
                        struct ct_cuda_size grid, struct ct_cuda_size block, size_t shared,
                        const void *arguments)
{
    void *parameters[] = {(void *)(uintptr_t)arguments};
    int rc;

    if (!grid.x || !grid.y || !grid.z)
        return 0;
    rc = allow_shared(f, shared);
    return rc < 0 ? rc
                  : gpu_check(gpu_driver.cuLaunchKernel(f->handle, grid.x, grid.y, grid.z, block.x,
                                                        block.y, block.z, (unsigned)shared,
                                                        l->stream, parameters, NULL),
                              f->name);
}
