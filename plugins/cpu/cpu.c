/* The cpu plugin: its options, its offers, and its team of threads. */
#include <omp.h>

#include <ctitan/plugin.h>

#include <ctitan/lib/rows.h>

#include "cpu.h"
#include "kernels/kernels.h"

struct cpu_config cpu_config;

static const struct ct_option options[] = {
    CT_OPT_INT(
        struct cpu_config, threads, "threads", "0", 0, 4096,
        "Compute threads of a rank; 0: $OMP_NUM_THREADS, else the cores that the process may "
        "use, divided by the local ranks"),
    CT_OPT_STRING(struct cpu_config, isa, "isa", "auto",
                  "Instruction set: auto (the CPU's best), portable, avx2 or avx512"),
    CT_OPT_ENUM(
        struct cpu_config, streams, "streams", "threads", "threads|in_order",
        "How the streams besides the compute stream run: threads, or in_order (all on one thread)"),
    CT_OPT_ENUM(struct cpu_config, bf16_matmul, "bf16_matmul", "auto", "auto|native|widen",
                "bfloat16 products: native, widen (to float32), or auto: native where that is "
                "faster (AMX; AVX512_BF16 where it is timed to be)"),
    CT_OPT_ENUM(
        struct cpu_config, products, "products", "auto", "auto|onednn|own|emulated",
        "Kernels of linear layers: own, onednn, auto: for each shape what is timed to be faster, "
        "once per machine, and own for small weights; emulated: own ones, bfloat16 on AMX in C, "
        "for tests"),
    CT_OPT_ENUM(struct cpu_config, attention, "attention", "auto", "auto|float32|bfloat16|emulated",
                "Products of bfloat16 attention: float32, bfloat16 (AMX or AVX512_BF16), auto: for "
                "each head size what is timed to be faster, once per machine; emulated: AMX in C, "
                "for tests"),
    CT_OPT_STRING(struct cpu_config, offload_folder, "offload_folder", "",
                  "Folder on a disk for the file that holds offloaded values; empty: none"),
    CT_OPT_BOOL(struct cpu_config, huge_pages, "huge_pages", "true",
                "Back the arena with huge pages"),
    CT_OPT_BOOL(struct cpu_config, pack_weights, "pack_weights", "true",
                "Keep weights in the matrix product's own layout, repacked once per step"),
    CT_OPT_BOOL(struct cpu_config, keep_hidden, "keep_hidden", "true",
                "Keep the hidden layers of experts for their gradients, instead of multiplying "
                "them again"),
    {0}};

int cpu_threads(void)
{
    return omp_get_max_threads();
}

void cpu_parallel(void (*body)(void *context, int thread, int threads), void *context)
{
#pragma omp parallel
    body(context, omp_get_thread_num(), omp_get_num_threads());
}

CT_PLUGIN(.name = "cpu", .version = "1.0",
          .summary = "Kernels and streams for CPUs: oneDNN, AVX2, AVX-512, AMX", .options = options,
          .config = &cpu_config, .config_size = sizeof(cpu_config),
          .offers = CT_OFFERS(
              {CT_DEVICE, "cpu", &cpu_device_ops}, {CT_KERNELS, "cpu", cpu_linear_kernels},
              {CT_KERNELS, "cpu", cpu_pack_kernels}, {CT_KERNELS, "cpu", cpu_float8_kernels},
              {CT_KERNELS, "cpu", cpu_muon_kernels}, {CT_KERNELS, "cpu", cpu_loss_kernels},
              {CT_KERNELS, "cpu", cpu_cross_entropy_kernels},
              {CT_KERNELS, "cpu", cpu_loss_shard_kernels}, {CT_KERNELS, "cpu", cpu_adamw_kernels},
              {CT_KERNELS, "cpu", cpu_experts_kernels},
              {CT_KERNELS, "cpu", cpu_expert_load_kernels}, {CT_KERNELS, "cpu", cpu_reduce_kernels},
              {CT_KERNELS, "cpu", cpu_sign_step_kernels}, {CT_KERNELS, "cpu", cpu_init_kernels},
              {CT_KERNELS, "cpu", cpu_offload_kernels}, {CT_KERNELS, "cpu", cpu_pointwise_kernels},
              {CT_KERNELS, "cpu", formula_kernels}, {CT_KERNELS, "cpu", cpu_chunks_kernels},
              {CT_OP, "cpu.pack", &cpu_op_pack}, {CT_OP, "cpu.pack_both", &cpu_op_pack_both},
              {CT_OP, "cpu.pack_into", &cpu_op_pack_into}, {CT_OP, "cpu.linear", &cpu_op_linear},
              {CT_OP, "cpu.linear_dx", &cpu_op_linear_dx},
              {CT_OP, "cpu.linear_cross_entropy", &cpu_op_loss},
              {CT_OP, "cpu.linear_cross_entropy_grad", &cpu_op_loss_grad},
              {CT_OP, "cpu.linear_cross_entropy_dx", &cpu_op_loss_dx},
              {CT_TRANSFORM, "pack_weights", &cpu_pack_weights},
              {CT_TRANSFORM, "keep_hidden", &cpu_keep_hidden}));
