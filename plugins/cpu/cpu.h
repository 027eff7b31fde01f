/*
 * The cpu plugin's own header: device, threads, instruction sets, kernel tables.
 *
 * Instruction sets: the sources of vector kernels are built once per level (kernels/isa.h); the
 * level is chosen once per process from the CPU's feature bits, so one binary runs everywhere,
 * valgrind included. Matrix products are oneDNN's (gemm.h), held to the same level.
 *
 * Threads: kernels of stream 0 run on the thread that drives the run and its OpenMP team, which
 * oneDNN uses too. Other streams are one thread each. Denormals are flushed on all of them.
 */
#ifndef CPU_H
#define CPU_H

#include <ctitan/device/device.h>
#include <ctitan/pass.h>

#include "kernels/isa.h"

struct cpu_config {
    int64_t threads;            /* 0: cores / local ranks */
    const char *isa;            /* auto, portable, avx2, avx512 */
    const char *streams;        /* threads, in_order */
    const char *bf16_matmul;    /* auto, native, widen */
    const char *offload_folder; /* of the host memory's file; "": there is none */
    bool huge_pages, pack_weights;
};
extern struct cpu_config cpu_config;

/* The level that every kernel of this process uses: $CTITAN_CPU_ISA, else [cpu] isa. */
const char *cpu_isa_name(enum cpu_isa isa);
/* CT_ECONFIG: the level asked for is unknown, or this CPU does not have it. */
int cpu_isa_check(void);
/* bfloat16 products in hardware, faster than float32's: AMX, or AVX512_BF16 where it runs at full
   rate. Otherwise they are widened to float32. */
bool cpu_bf16_native(void);
/* On the calling thread; threads that it starts inherit it. */
void cpu_flush_denormals(void);

/* The team of compute threads; fixed when the device is opened. */
int cpu_threads(void);
/* Run body on every compute thread. */
void cpu_parallel(void (*body)(void *context, int thread, int threads), void *context);

/* Thread's part of count items, split at multiples of align. */
struct cpu_range {
    int64_t begin, end;
};
static inline struct cpu_range cpu_share(int64_t count, int64_t align, int thread, int threads)
{
    int64_t units = (count + align - 1) / align;
    struct cpu_range r = {units * thread / threads * align, units * (thread + 1) / threads * align};

    r.begin = r.begin < count ? r.begin : count;
    r.end = r.end < count ? r.end : count;
    return r;
}

static inline bool cpu_is_compute_dtype(enum ct_dtype dtype)
{
    return dtype == CT_F32 || dtype == CT_BF16;
}

/* A chunk of a workspace: 64-byte aligned, advancing *at. */
static inline size_t cpu_carve(size_t *at, size_t bytes)
{
    size_t offset = *at;

    *at += (bytes + 63) & ~(size_t)63;
    return offset;
}

/* ---- the device ---- */

struct cpu_streams;

struct cpu_device {
    struct ct_device base;
    struct cpu_streams *streams;
};

extern const struct ct_device_ops cpu_device_ops;

/* streams.c. All calls from the thread that drives the run. */
int cpu_streams_create(bool in_order, struct cpu_streams **streams);
void cpu_streams_destroy(struct cpu_streams *streams);
int cpu_streams_events(struct cpu_streams *streams, int count);
int cpu_streams_enqueue(struct cpu_streams *streams, int stream, const struct ct_kernel *kernel,
                        const struct ct_launch *launch);
int cpu_streams_record(struct cpu_streams *streams, int stream, int event);
int cpu_streams_wait(struct cpu_streams *streams, int stream, int event);
int cpu_streams_synchronize(struct cpu_streams *streams);
/* The device's `query`, `copy_out_begin` and `copy_out_wait`. */
int cpu_streams_query(const struct cpu_streams *streams, int event);
int cpu_streams_copy(struct cpu_streams *streams, void *to, const void *from, size_t bytes,
                     int64_t *ticket);
int cpu_streams_copied(struct cpu_streams *streams, int64_t ticket, bool block);

/* offload.c: the host memory */
int cpu_reserve_host(struct ct_device *device, size_t bytes, void **base);
void cpu_release_host(struct ct_device *device, void *base, size_t bytes);

/* ---- what it offers: tables ended by {0} ---- */

extern const struct ct_kernel cpu_linear_kernels[], cpu_pack_kernels[], cpu_loss_kernels[],
    cpu_cross_entropy_kernels[], cpu_loss_shard_kernels[], cpu_adamw_kernels[],
    cpu_reduce_kernels[], cpu_init_kernels[], cpu_offload_kernels[];
extern const struct ct_op_type cpu_op_pack, cpu_op_linear, cpu_op_linear_dx, cpu_op_loss,
    cpu_op_loss_grad;
extern const struct ct_transform cpu_pack_weights;

#endif
