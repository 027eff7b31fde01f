/*
 * The cuda plugin's own header: the device, kernel tables. Kernels are launched as those of other
 * plugins (ctitan/lib/cuda.h).
 *
 * Everything that a kernel of the op table does is enqueued on the stream of its launch; nothing
 * waits for the device but `synchronize` and copies to and from the host. Kernels on the device are
 * compiled ahead of time (kernels/) into images inside this plugin, and found by name: what they do
 * and the dtype, "rope_bfloat16". Each takes one struct of kernels/arguments.h.
 *
 * A kernel that finds a token or label out of range records it in the fault word, memory that the
 * host sees too; synchronize turns it into a failure.
 */
#ifndef GPU_H
#define GPU_H

#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/cuda.h>
#include <ctitan/lib/machine.h>

#include "driver.h"
#include "kernels/arguments.h"

struct gpu_config {
    enum { GPU_AUTO, GPU_CUDNN, GPU_TENSOR, GPU_PLAIN } attention;
    enum { GPU_LOGITS_F32, GPU_LOGITS_BF16 } logits;
    bool tf32, graph, tune, keep_hidden, wgmma;
    int64_t spare;         /* multiprocessors that products leave to collectives */
    int64_t logits_memory; /* MiB */
    int64_t device;        /* -1: the local rank's */
    double warm;           /* seconds before products are timed, at most */
    const char *describe;  /* a description, instead of a device; "": none */
};
extern struct gpu_config gpu_config;

/* Estimate in bytes of the device memory used outside the arena: the context, kernels of cuBLASLt
   and cuDNN that are loaded at their first call. */
#define GPU_BESIDE ((size_t)3 << 29)

struct gpu_events {
    CUevent *event;
    _Atomic unsigned char *recorded; /* by event: since gpu_events_begin */
    int count;
};

struct gpu_functions;
struct gpu_arena;
struct gpu_blas;
struct gpu_dnn;

struct gpu {
    struct ct_cuda_device base;
    struct ct_cuda cuda;
    int device;
    CUcontext context;
    CUstream stream[CT_STREAMS];
    struct gpu_events events;
    CUstream aside; /* for copies from another thread */
    struct gpu_functions *functions;
    struct gpu_arena *arenas;
    struct gpu_blas *blas;
    struct gpu_dnn *dnn;         /* NULL: not asked for yet */
    struct ct_cuda_fault *fault; /* pinned; at cuda.fault for the device */
    struct gpu_graph *graph;     /* the step, captured; NULL: not wanted */
    struct gpu_stamps *stamps;   /* NULL: no step was timed yet */
    void *staging;               /* pinned, for collectives through the host */
    size_t staging_bytes;
    const struct ct_machine *described; /* NULL: the device is there; else nothing runs on it */
    struct ct_arena arena;
};

extern const struct ct_device_ops gpu_device_ops;
/* The device and its driver, as keys of what is kept for later runs say them. */
void gpu_identify(const struct gpu *gpu, char *text, size_t room);
/* diagnose.c */
void gpu_diagnose(void (*say)(const char *line));

static inline struct gpu *gpu_of(const void *device)
{
    return (struct gpu *)(uintptr_t)device;
}

/* ---- describe.c ---- */

int gpu_describe(const char *path, struct gpu *gpu);
void gpu_described_info(const struct gpu *gpu, enum ct_dtype compute, struct ct_device_info *info);

/* ---- arena.c: one range of addresses per reservation, backed by physical memory ---- */

/* The ranges are exportable and can be registered with NCCL where the device allows. */
int gpu_arena_create(struct gpu *gpu, size_t bytes, void **base);
void gpu_arena_destroy(struct gpu *gpu, void *base);
void gpu_arena_destroy_all(struct gpu *gpu);

/* ---- events.c ---- */

/* There are at least `count` events, with these flags of the driver's; none is recorded. */
int gpu_events_begin(struct gpu_events *e, int count, unsigned flags);
void gpu_events_destroy(struct gpu_events *e);

/* ---- offload.c: pinned memory of the host ---- */

int gpu_reserve_host(struct ct_device *device, size_t bytes, void **base);
void gpu_release_host(struct ct_device *device, void *base, size_t bytes);

/* ---- functions.c ---- */

int gpu_functions_open(struct gpu *gpu);
void gpu_functions_unload(struct gpu *gpu);
/* The device's `find` and `launch`. */
int gpu_find_function(struct ct_device *device, const struct ct_cuda_code *code, const char *name,
                      struct ct_cuda_function **function);
int gpu_launch_function(const struct ct_launch *l, struct ct_cuda_function *f,
                        struct ct_cuda_size grid, struct ct_cuda_size block, size_t shared,
                        const void *arguments);

/* This plugin's own functions. */
extern const struct ct_cuda_code gpu_code;
/* The image that has each function, ended by {0}. */
extern const struct gpu_image_function {
    const char *name, *image;
} gpu_image_functions[];

/* ct_cuda_find and ct_cuda_prepare for them; `*` in a name stands for dtype. */
#define gpu_find_as(p, dtype, f, ...)                                                              \
    ct_cuda_find(p, &gpu_code, dtype, CT_CUDA_NAMES(__VA_ARGS__), f)
#define gpu_prepare_as(p, dtype, ...)                                                              \
    ct_cuda_prepare(p, &gpu_code, dtype, CT_CUDA_NAMES(__VA_ARGS__))
/* The same for names without a dtype. */
#define gpu_find(p, f, ...) gpu_find_as(p, CT_F32, f, __VA_ARGS__)
#define gpu_prepare(p, ...) gpu_prepare_as(p, CT_F32, __VA_ARGS__)

/* Launches function i of those that gpu_prepare found. */
static inline int gpu_launch(const struct ct_launch *l, int i, struct ct_cuda_size grid,
                             struct ct_cuda_size block, size_t shared, const void *arguments)
{
    return ct_cuda_launch(l, ct_cuda_function(l, i), grid, block, shared, arguments);
}

/* A function for any elements, and one for vectors: f[vector]. */
struct gpu_widths {
    struct ct_cuda_function *f[2];
};

/* elementwise.c: "NAME_FROM_to_TO", and the same with "_vector". */
int gpu_find_conversion(const struct ct_prepare *p, const char *name, enum ct_dtype from,
                        enum ct_dtype to, struct gpu_widths *found);

/* The same: to = from, in to's dtype; both float32 or bfloat16, matrices of one shape. */
int gpu_find_cast(const struct ct_prepare *p, enum ct_dtype from, enum ct_dtype to,
                  struct gpu_widths *found);
int gpu_cast(const struct ct_launch *l, const struct gpu_widths *by, const struct ct_tensor *from,
             const struct ct_tensor *to);
/* For a kernel that does nothing else; p->state becomes what gpu_cast takes. */
int gpu_prepare_cast(struct ct_prepare *p, enum ct_dtype from, enum ct_dtype to);

/* layer_norm.c: output `out` = the sum of the rows of x, dense; shares: memory of as many bytes as
   gpu_column_shares says. Always in the same order. */
#define GPU_COLUMN_SUM "column_sum" /* function that sums rows of shares */
struct gpu_sum_columns {
    struct ct_cuda_function *shares, *sum;
};
size_t gpu_column_shares(int64_t rows, int64_t columns);
/* dtype: of x; gpu_sum_columns takes float32. */
int gpu_find_sum_columns(const struct ct_prepare *p, enum ct_dtype dtype,
                         struct gpu_sum_columns *found);
int gpu_sum_columns(const struct ct_launch *l, const struct gpu_sum_columns *by, int out,
                    const float *x, int64_t rows, int64_t columns, float *shares);

/* sdpa_plans.c */
void gpu_dnn_close(struct gpu *gpu);

/* attention.c: whether softcap or alibi changes the scores of an attention; then only the plain
   kernels accept it. */
bool gpu_attention_changes(const struct ct_op *op);
/* The same: op attention, or its gradient, on tensor cores. With functions that are found for
   `rest`, nothing is done if *wanted, on the device, is 0 when the kernels run; else wanted is
   NULL. delta: as many floats as lse has. */
struct gpu_attention_grad_functions {
    struct ct_cuda_function *delta, *dq, *dkv;
};
bool gpu_attention_accepts(const struct ct_prepare *p);
int gpu_attention_find(const struct ct_prepare *p, bool rest, struct ct_cuda_function **f);
int gpu_attention_run(const struct ct_launch *l, struct ct_cuda_function *f, const int32_t *wanted);
bool gpu_attention_grad_accepts(const struct ct_prepare *p);
int gpu_attention_grad_find(const struct ct_prepare *p, bool rest,
                            struct gpu_attention_grad_functions *f);
int gpu_attention_grad_run(const struct ct_launch *l, const struct gpu_attention_grad_functions *f,
                           float *delta, const int32_t *wanted);

/* loss.c: loss = sum of count losses, or loss + them */
#define GPU_SUM_LOSSES "sum_losses" /* its function */
int gpu_sum_losses(const struct ct_launch *l, struct ct_cuda_function *f,
                   const struct ct_tensor *loss, const float *losses, int64_t count,
                   bool accumulate);

/* collective.c: does the host wait in collectives? No plugin has brought better ones. */
bool gpu_collectives_wait(void);

/* ---- stamps.c: the device's `stamps`, `stamp`, `stamped` and `used` ---- */

int gpu_stamps_begin(struct ct_device *device, int count);
int gpu_stamp(struct ct_device *device, int stream, int number);
double gpu_stamped(struct ct_device *device, int number);
size_t gpu_used(struct ct_device *device);
/* At the first launch, after it is decided whether the step is captured. */
int gpu_stamp_waiting(struct gpu *gpu);
void gpu_stamps_destroy(struct gpu_stamps *stamps);

/* ---- graph.c: a step captured once, launched whole from then on ---- */

struct gpu_graph *gpu_graph_create(void);
void gpu_graph_destroy(struct gpu_graph *graph);

/* A kernel does not accept a call, for this reason. */
#define gpu_refuse(...) (ct_fail(CT_ENOENT, __VA_ARGS__) == 0)

/* As gpu_refuse, and no other kernel can accept it: the device lacks units for such calls. */
#define gpu_lacks(...) (ct_fail(CT_ECONFIG, __VA_ARGS__) == 0)

/* Can kernels load 8 elements at a time from rows of so many columns? */
static inline bool gpu_may_load_8(const void *rows, int kind, int64_t columns)
{
    return columns % 8 == 0 && (uintptr_t)rows % (kind == CT_CUDA_BF16 ? 16 : 32) == 0;
}

/* ---- what it offers: tables ended by {0} ---- */

#define GPU_TABLES(X)                                                                              \
    X(linear)                                                                                      \
    X(elementwise)                                                                                 \
    X(norm)                                                                                        \
    X(layer_norm)                                                                                  \
    X(rope)                                                                                        \
    X(position)                                                                                    \
    X(scale_rows)                                                                                  \
    X(latent)                                                                                      \
    X(copy_heads)                                                                                  \
    X(expert_bias)                                                                                 \
    X(experts_tensor)                                                                              \
    X(experts)                                                                                     \
    X(experts_float8)                                                                              \
    X(top_k)                                                                                       \
    X(embedding)                                                                                   \
    X(loss)                                                                                        \
    X(loss_shards)                                                                                 \
    X(attention_dnn)                                                                               \
    X(attention_documents)                                                                         \
    X(attention)                                                                                   \
    X(recurrence)                                                                                  \
    X(causal_conv)                                                                                 \
    X(states)                                                                                      \
    X(sink)                                                                                        \
    X(reduce)                                                                                      \
    X(adamw)                                                                                       \
    X(muon)                                                                                        \
    X(route)                                                                                       \
    X(init)                                                                                        \
    X(float8)                                                                                      \
    X(block)                                                                                       \
    X(offload)

#define X(name) extern const struct ct_kernel gpu_##name##_kernels[];
GPU_TABLES(X)
#undef X
extern const struct ct_transport gpu_staged_transport;
extern const struct ct_transform gpu_keep_hidden;
extern const struct ct_compiler_ops gpu_compiler_ops;

#endif
