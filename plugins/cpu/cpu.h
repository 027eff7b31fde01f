/*
 * The cpu plugin's own header: device, threads, kernel tables.
 *
 * Instruction sets: the sources of vector kernels are built once per level (ctitan/lib/cpu.h).
 * Matrix products use oneDNN (gemm.h), restricted to the same level.
 *
 * Threads: kernels of stream 0 run on the thread that drives the run and its OpenMP team, which
 * oneDNN uses too. Every other stream is one thread. Denormals are flushed on all threads.
 */
#ifndef CPU_H
#define CPU_H

#include <ctitan/device/device.h>
#include <ctitan/lib/cpu.h>
#include <ctitan/pass.h>

/* Values of options, in the order of their words. */
enum cpu_streams_kind { CPU_STREAMS_THREADS, CPU_STREAMS_IN_ORDER };
enum cpu_bf16_matmul { CPU_BF16_AUTO, CPU_BF16_NATIVE, CPU_BF16_WIDEN };
enum cpu_products {
    CPU_PRODUCTS_AUTO,
    CPU_PRODUCTS_ONEDNN,
    CPU_PRODUCTS_OWN,
    CPU_PRODUCTS_EMULATED
};

enum cpu_attention {
    CPU_ATTENTION_AUTO,
    CPU_ATTENTION_FLOAT32,
    CPU_ATTENTION_BFLOAT16,
    CPU_ATTENTION_EMULATED
};

struct cpu_config {
    int64_t threads; /* 0: cores / local ranks */
    const char *isa; /* auto, portable, avx2, avx512 */
    enum cpu_streams_kind streams;
    enum cpu_bf16_matmul bf16_matmul;
    enum cpu_products products;
    enum cpu_attention attention;
    const char *offload_folder; /* of the file that backs host memory; "": no host memory */
    bool huge_pages, pack_weights, keep_hidden;
};
extern struct cpu_config cpu_config;

/* True if the hardware multiplies bfloat16 faster than float32: with AMX, or with AVX512_BF16 that
   is timed to run at full rate. Otherwise operands are widened to float32. */
bool cpu_bf16_native(void);
/* Affects the calling thread and the threads that it starts later. */
void cpu_flush_denormals(void);

/* Number of compute threads; fixed when the device is opened. */
int cpu_threads(void);
/* Run body on every compute thread. */
void cpu_parallel(void (*body)(void *context, int thread, int threads), void *context);

/* ---- the device ---- */

struct cpu_streams;

struct cpu_device {
    struct ct_device base;
    struct cpu_streams *streams;
};

extern const struct ct_device_ops cpu_device_ops;

/* streams.c. All calls come from the thread that drives the run. */
int cpu_streams_create(bool in_order, struct cpu_streams **streams);
void cpu_streams_destroy(struct cpu_streams *streams);
int cpu_streams_events(struct cpu_streams *streams, int count);
int cpu_streams_enqueue(struct cpu_streams *streams, int stream, const struct ct_kernel *kernel,
                        const struct ct_launch *launch);
int cpu_streams_record(struct cpu_streams *streams, int stream, int event);
int cpu_streams_wait(struct cpu_streams *streams, int stream, int event);
int cpu_streams_synchronize(struct cpu_streams *streams);
/* The device's `query`. */
int cpu_streams_query(const struct cpu_streams *streams, int event);

/* The device's `stamps`, `stamp` and `stamped`. */
int cpu_streams_stamps(struct cpu_streams *streams, int count);
int cpu_streams_stamp(struct cpu_streams *streams, int stream, int number);
double cpu_streams_stamped(const struct cpu_streams *streams, int number);

/* offload.c: host memory */
int cpu_reserve_host(struct ct_device *device, size_t bytes, void **base);
void cpu_release_host(struct ct_device *device, void *base, size_t bytes);

/* ---- offers: tables ended by {0} ---- */

extern const struct ct_kernel cpu_linear_kernels[], cpu_pack_kernels[], cpu_loss_kernels[],
    cpu_cross_entropy_kernels[], cpu_loss_shard_kernels[], cpu_adamw_kernels[],
    cpu_reduce_kernels[], cpu_init_kernels[], cpu_offload_kernels[], cpu_experts_kernels[],
    cpu_expert_load_kernels[], cpu_float8_kernels[], cpu_muon_kernels[], cpu_sign_step_kernels[],
    cpu_chunks_kernels[];
extern const struct ct_op_type cpu_op_pack, cpu_op_pack_both, cpu_op_pack_into, cpu_op_linear,
    cpu_op_linear_dx, cpu_op_loss, cpu_op_loss_grad, cpu_op_loss_dx;
extern const struct ct_transform cpu_pack_weights, cpu_keep_hidden;

#endif
