/*
 * Kernels for the device cuda, from any plugin, which is linked with nothing of CUDA's and nothing
 * of the plugin cuda.
 *
 * A kernel's source is a .cu file that includes <ctitan/lib/cuda/device.cuh>. KERNEL(name, struct
 * type, threads) begins a function that takes one struct by value. nvcc compiles it into an image,
 * which is linked into the plugin. The plugin offers its images, and a table of kernels for the
 * device:
 *
 *     CT_CUDA_CODE(code);
 *     ..
 *     {CT_CODE, "cuda", &code}, {CT_KERNELS, "cuda", kernels}
 *
 * The `prepare` of a kernel finds functions by their names (ct_cuda_prepare): the device loads an
 * image with the first function that is found there. Its `run` calls ct_cuda_launch, which enqueues
 * one of them on the stream of its launch; it neither waits for the device nor touches the device's
 * memory. share/ctitan/kit/plugin.mk has the rules of make that build such a plugin, for NVIDIA's
 * devices and for the simulated one (docs/plugins.md).
 *
 * A function that finds an index from the data out of range notes it in the fault word (in_range of
 * device.cuh). The next synchronisation of the device fails with it.
 */
#ifndef CT_CUDA_H
#define CT_CUDA_H

#include <ctitan/device/device.h>
#include <ctitan/lib/cuda/arguments.h>

CT_BEGIN_DECLS

/* data: a fatbin or cubin of nvcc's. */
struct ct_cuda_image {
    const char *name; /* for messages */
    const void *data;
};

/* The functions of one plugin. Their names need to differ within it only. */
struct ct_cuda_code {
    size_t size;                        /* of this struct */
    int toolkit;                        /* the CUDA toolkit that made the images: 13.2 is 13020 */
    const struct ct_cuda_image *images; /* ended by {0}; none: only planning is possible */
};

/* Defines a plugin's code from what its build says: CT_CUDA_TOOLKIT, and CT_CUDA_IMAGES(X), which
   is X(name) for each image. Both are absent where there is no nvcc. */
#define CT_CUDA_CODE(code)                                                                         \
    CT_CUDA_IMAGES(CT_CUDA_DECLARE_IMAGE)                                                          \
    static const struct ct_cuda_image code##_images[] = {CT_CUDA_IMAGES(CT_CUDA_LIST_IMAGE){0}};   \
    const struct ct_cuda_code code = {sizeof(struct ct_cuda_code), CT_CUDA_TOOLKIT, code##_images}
#define CT_CUDA_DECLARE_IMAGE(name) extern const char ct_cuda_image_##name[];
#define CT_CUDA_LIST_IMAGE(name) {#name, ct_cuda_image_##name},
#ifndef CT_CUDA_IMAGES
#define CT_CUDA_IMAGES(X)
#define CT_CUDA_TOOLKIT 0
#endif

struct ct_cuda_size {
    unsigned x, y, z;
};

/* A function of a plugin's code, on a device that is open. */
struct ct_cuda_function;

/* A device: a real one, or one that is only described, for planning. */
struct ct_cuda {
    size_t size;                 /* of this struct */
    int capability;              /* 90: compute capability 9.0 */
    int multiprocessors;         /* of the device */
    int shared_memory, cache;    /* bytes: the largest of a block, and the L2 cache */
    struct ct_cuda_fault *fault; /* an address on the device */
    /* *function is NULL if the device is only described. */
    int (*find)(struct ct_device *device, const struct ct_cuda_code *code, const char *name,
                struct ct_cuda_function **function);
    int (*launch)(const struct ct_launch *l, struct ct_cuda_function *function,
                  struct ct_cuda_size grid, struct ct_cuda_size block, size_t shared,
                  const void *arguments);
};

/* Common head of devices called "cuda". */
struct ct_cuda_device {
    struct ct_device base;
    const struct ct_cuda *cuda;
};

/* device: that of a ct_prepare or ct_launch of a kernel for "cuda". */
static inline const struct ct_cuda *ct_cuda_of(const void *device)
{
    return ((const struct ct_cuda_device *)device)->cuda;
}

/* ---- functions ---- */

/* Names of functions, for ct_cuda_find and ct_cuda_prepare. */
#define CT_CUDA_NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

/*
 * Find functions of a plugin's code by their names, which NULL ends; functions[i] is that of
 * names[i]. In a name `*` stands for the name of dtype, `@` for that of the op's type. For the
 * `prepare` of a kernel. CT_EIO: no image has one of them.
 */
CT_API int ct_cuda_find(const struct ct_prepare *p, const struct ct_cuda_code *code,
                        enum ct_dtype dtype, const char *const *names,
                        struct ct_cuda_function **functions);
/* The same for a kernel without other state: p->state becomes the array, for ct_cuda_function. */
CT_API int ct_cuda_prepare(struct ct_prepare *p, const struct ct_cuda_code *code,
                           enum ct_dtype dtype, const char *const *names);

/* Function i of those that ct_cuda_prepare found, counted from 0 in the order of the names. It
   lives as long as the device. */
static inline struct ct_cuda_function *ct_cuda_function(const struct ct_launch *l, int i)
{
    return ((struct ct_cuda_function *const *)l->state)[i];
}

/*
 * Enqueue a function on the stream of l. arguments: its struct, which is copied. shared: bytes of
 * dynamic shared memory. An empty grid does nothing. CT_EIO: the driver's words.
 */
static inline int ct_cuda_launch(const struct ct_launch *l, struct ct_cuda_function *function,
                                 struct ct_cuda_size grid, struct ct_cuda_size block, size_t shared,
                                 const void *arguments)
{
    return ct_cuda_of(l->device)->launch(l, function, grid, block, shared, arguments);
}

/* ---- sizes ---- */

static inline int64_t ct_cuda_blocks(int64_t count, int64_t per_block)
{
    return (count + per_block - 1) / per_block;
}

/* Elements of a vector of 16 bytes. */
static inline int64_t ct_cuda_lanes(enum ct_dtype dtype)
{
    return 16 / (int64_t)ct_dtype_size(dtype);
}

/* As many threads for a row as it has vectors, but a power of two and at most a warp. */
CT_API int32_t ct_cuda_threads_of_row(int64_t columns, int64_t lanes);

/* Blocks of so many threads, and the grid: a thread has a vector of `lanes` columns, in one row or
   in several. */
CT_API struct ct_cuda_size ct_cuda_cover(const struct ct_matrix *rows, int64_t lanes,
                                         int64_t threads, struct ct_cuda_size *block);

/* ---- operands ---- */

/* Whether all of them are matrices of the same shape; dense ones become one long row. */
CT_API bool ct_cuda_matrices(const struct ct_tensor *const *t, int count, struct ct_matrix *rows);
/* Whether vectors of so many elements can be loaded at once everywhere. */
CT_API bool ct_cuda_vectors(const struct ct_tensor *const *t, const struct ct_matrix *rows,
                            int count, int64_t elements);
/* Whether 16 bytes can be loaded at data and at multiples of the strides; true where data is NULL.
 */
CT_API bool ct_cuda_starts_vectors(const void *data, const int64_t *stride, int count,
                                   int64_t lanes);

static inline bool ct_cuda_computes(enum ct_dtype dtype)
{
    return dtype == CT_F32 || dtype == CT_BF16;
}

static inline int ct_cuda_float_of(enum ct_dtype dtype)
{
    return dtype == CT_F32 ? CT_CUDA_F32 : dtype == CT_BF16 ? CT_CUDA_BF16 : CT_CUDA_F64;
}

/* The offset of a part of a workspace, 256-byte aligned; advances *at behind it. */
static inline size_t ct_cuda_carve(size_t *at, size_t bytes)
{
    size_t offset = *at;

    *at += (bytes + 255) & ~(size_t)255;
    return offset;
}

CT_END_DECLS

#endif
