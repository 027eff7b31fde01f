/*
 * The transform "keep_hidden": hidden layers of experts are kept (ct_keep_hidden), in float32 as
 * they are computed.
 */
#include <ctitan/run.h>

#include "experts.h"

static size_t kept_item(const struct ct_op *forward, const int64_t *gate, int64_t choices)
{
    (void)gate;
    (void)choices;
    return cpu_is_compute_dtype(forward->in[0]->dtype) ? sizeof(float) : 0;
}

static int keep_hidden(struct ct_graph *graph, struct ct_run *run)
{
    if (!cpu_config.keep_hidden || run->device_ops->open != cpu_device_ops.open)
        return 0;
    return ct_keep_hidden(graph, run, kept_item);
}

const struct ct_transform cpu_keep_hidden = {
    .size = sizeof(struct ct_transform),
    .name = "keep_hidden",
    .summary = "hidden layers of experts are kept from the forward to their gradients",
    .phase = CT_PHASE_FUSE,
    .gives = (const char *const[]){"preferred", NULL},
    .after = (const char *const[]){"joined_gradients", NULL},
    .apply = keep_hidden,
};
