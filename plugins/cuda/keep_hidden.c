/*
 * The transform "cuda.keep_hidden": hidden layers of experts are kept (ct_keep_hidden), as the
 * kernels compute them: in bfloat16 on tensor cores, else in float32.
 */
#include <ctitan/lib/ops.h>
#include <ctitan/run.h>

#include "experts.h"

static size_t kept_item(const struct ct_op *forward, const int64_t *gate, int64_t choices)
{
    bool tiles = forward->in[0]->dtype == CT_BF16 && gpu_experts_fit_tiles(gate);

    if (choices > GPU_MOST_CHOICES)
        return 0;
    return tiles ? sizeof(uint16_t) : sizeof(float);
}

static int keep_hidden(struct ct_graph *graph, struct ct_run *run)
{
    if (!gpu_config.keep_hidden || run->device_ops->open != gpu_device_ops.open)
        return 0;
    return ct_keep_hidden(graph, run, kept_item);
}

const struct ct_transform gpu_keep_hidden = {
    .size = sizeof(struct ct_transform),
    .name = "cuda.keep_hidden",
    .summary = "hidden layers of experts are kept from the forward to their gradients",
    .phase = CT_PHASE_FUSE,
    .gives = (const char *const[]){"preferred", NULL},
    .after = (const char *const[]){"joined_gradients", NULL},
    .apply = keep_hidden,
};
