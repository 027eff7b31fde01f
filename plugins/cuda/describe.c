/*
 * A GPU that is described and not there: kernels are chosen and memory is planned as for the real
 * one. Nothing runs on it, and no library is asked. What cuDNN would need as workspace is bounded
 * in attention_dnn.c.
 */
#include <stdio.h>
#include <stdlib.h>

#include "gpu.h"

int gpu_describe(const char *path, struct gpu *gpu)
{
    int rc = ct_machine_read(&gpu->arena, path, &gpu->described);

    if (rc < 0)
        return ct_context(rc, "[cuda] describe");
    gpu->cuda.capability = (int)gpu->described->capability;
    gpu->cuda.multiprocessors = (int)gpu->described->units;
    gpu->cuda.shared_memory = (int)gpu->described->shared_memory;
    if (!gpu->cuda.capability || !gpu->cuda.multiprocessors || !gpu->cuda.shared_memory)
        return ct_fail(CT_ECONFIG,
                       "[cuda] describe = %s: its [device] lacks capability, units or "
                       "shared_memory",
                       gpu->described->path);
    gpu->base.base.described = true;
    /* As with nccl, which a described machine would use. */
    gpu->base.base.in_order = false;
    gpu->base.base.enqueues = true;
    return 0;
}

void gpu_described_info(const struct gpu *gpu, enum ct_dtype compute, struct ct_device_info *info)
{
    const struct ct_machine *m = gpu->described;

    *info = (struct ct_device_info){.memory = (size_t)m->memory,
                                    .threads = gpu->cuda.multiprocessors,
                                    .peak_flops = ct_machine_peak(m, compute),
                                    .beside = m->beside > 0 ? (size_t)m->beside : GPU_BESIDE};
    snprintf(info->name, sizeof(info->name), "%.80s, described", m->name);
}
