/*
 * The cuda plugin: its options, and what it offers.
 */
#include <ctitan/plugin.h>

#include "gpu.h"

struct gpu_config gpu_config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct gpu_config, device, "device", "-1", -1, 1023,
               "Number of the device; -1: the rank's number on its host"),
    CT_OPT_ENUM(
        struct gpu_config, attention, "attention", "auto", "auto|cudnn|tensor|plain",
        "bfloat16 attention: cudnn (what it cannot do, such as gathered keys: tensor), tensor "
        "(the plugin's own kernels on tensor cores), plain (on other cores), or auto: the "
        "first of them that supports the case"),
    CT_OPT_BOOL(struct gpu_config, tf32, "tf32", "false",
                "Round float32 operands of matrix products to TF32, for speed"),
    CT_OPT_BOOL(
        struct gpu_config, tune, "tune", "false",
        "Time up to 8 algorithms for each bfloat16 or Float8 product at its first call, and "
        "keep the fastest, also for later runs on such a device; runs on others may then differ "
        "in the last bits, and so may ranks"),
    CT_OPT_FLOAT(struct gpu_config, warm, "warm", "3", 0, 600,
                 "Seconds, at most, for which a product runs before `tune` times the first: until "
                 "the clocks of a cool device settle"),
    CT_OPT_BOOL(struct gpu_config, graph, "graph", "false",
                "Capture the step as one CUDA graph after two steps"),
    CT_OPT_BOOL(struct gpu_config, keep_hidden, "keep_hidden", "true",
                "Keep the hidden layers of experts for their gradients, instead of computing them "
                "again: 4 bytes for each choice and column of an expert in bfloat16"),
    CT_OPT_BOOL(
        struct gpu_config, wgmma, "wgmma", "true",
        "Make experts' products, and those of their gradients, by wgmma on Hopper; false: by "
        "mma.sync, as elsewhere"),
    CT_OPT_INT(struct gpu_config, spare, "spare_multiprocessors", "0", 0, 1024,
               "Multiprocessors that matrix products leave to collectives which run beside them"),
    CT_OPT_INT(struct gpu_config, logits_memory, "logits_memory", "2048", 1, 1 << 20,
               "MiB of logits that exist at a time in the loss"),
    CT_OPT_ENUM(struct gpu_config, logits, "logits", "bfloat16", "float32|bfloat16",
                "Dtype of a bfloat16 model's logits in memory; the softmax is float32 either "
                "way"),
    CT_OPT_STRING(struct gpu_config, describe, "describe", "",
                  "File that describes a GPU to plan for, without having one; set by `--device`"),
    {0}};

static const struct ct_offer offers[] = {{CT_DEVICE, "cuda", &gpu_device_ops},
                                         {CT_CODE, "cuda", &gpu_code},
#define X(name) {CT_KERNELS, "cuda", gpu_##name##_kernels},
                                         GPU_TABLES(X)
#undef X
                                             {CT_TRANSFORM, "cuda.keep_hidden", &gpu_keep_hidden},
                                         {CT_TRANSPORT, "cuda", &gpu_staged_transport},
                                         {CT_COMPILER, "cuda", &gpu_compiler_ops},
                                         {CT_NOTHING, NULL, NULL}};

/* The fastest algorithm differs from machine to machine. */
static const char *varies(void)
{
    return gpu_config.tune ? "[cuda] tune = true takes the algorithm of each product that was the "
                             "fastest when it was measured, here or in an earlier run"
                           : NULL;
}

CT_PLUGIN(.name = "cuda", .version = "1.0",
          .summary = "Kernels and streams for NVIDIA GPUs: cuBLASLt, cuDNN, CUDA graphs",
          .options = options, .config = &gpu_config, .config_size = sizeof(gpu_config),
          .offers = offers, .varies = varies);
