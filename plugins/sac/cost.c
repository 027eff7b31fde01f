/*
 * Cost of running an op again, by a roofline.
 *
 * An op takes the longest of three times: its floating-point operations at the device's peak, the
 * bytes that it reads and writes at its memory bandwidth, and the bytes that it sends at its link
 * bandwidth. Nothing is measured, because all ranks must make the same choice, and a plan must
 * match the run. Rates that are not given follow from the peak: the memory of an H200 moves a byte
 * in the time of 200 operations, that of a processor with vector units in about 20. Links are ten
 * times slower than memory. Host memory is a hundred times slower than a GPU's (PCIe 5.0 x16 beside
 * HBM3e), and ten times slower than a processor's, as a file is.
 */
#include <ctitan/core_ops.h>
#include <ctitan/lib/collective.h>
#include <ctitan/error.h>

#include "sac.h"

#define UNKNOWN_PEAK 100e12
#define FLOPS_PER_BYTE 200
#define FLOPS_PER_BYTE_OF_HOST 20
#define LINKS_SLOWER 10
#define HOST_SLOWER 100
#define FILE_SLOWER 10

/* The dtype of matrix products: that of the first op with FLOPs. */
static enum ct_dtype compute_dtype(const struct sac *s)
{
    ct_for_each_op (op, s->graph)
        if (op->section->part == CT_PART_F && op->type->flops && op->outs)
            return op->out[0]->dtype;
    return CT_F32;
}

void sac_find_rates(struct sac *s, struct ct_run *run)
{
    struct ct_device_info info = {.peak_flops = 0};
    bool host = run && run->device && run->device->host_memory;
    double per_byte = host ? FLOPS_PER_BYTE_OF_HOST : FLOPS_PER_BYTE;

    if (run && run->device)
        run->device_ops->info(run->device, compute_dtype(s), &info);
    s->rates.flops = sac_config.tflops > 0 ? sac_config.tflops * 1e12 : info.peak_flops;
    if (s->rates.flops <= 0)
        s->rates.flops = UNKNOWN_PEAK;
    s->rates.memory =
        sac_config.memory_gbps > 0 ? sac_config.memory_gbps * 1e9 : s->rates.flops / per_byte;
    s->rates.link =
        sac_config.link_gbps > 0 ? sac_config.link_gbps * 1e9 : s->rates.memory / LINKS_SLOWER;
    s->rates.host = sac_config.host_gbps > 0 ? sac_config.host_gbps * 1e9
                                             : s->rates.memory / (host ? FILE_SLOWER : HOST_SLOWER);
}

/* A rank's share of the whole op: attention over a split sequence also uses other ranks' keys. */
double sac_flops(const struct sac *s, const struct ct_op *op)
{
    ct_axes axes = 0;

    for (int i = 0; i < op->ins; i++)
        axes |= op->in[i] ? ct_sharding_axes(&op->in[i]->sharding) : 0;
    for (int i = 0; i < op->outs; i++)
        axes |= ct_sharding_axes(&op->out[i]->sharding);
    return ct_op_flops(s->forward, op, -1) / (double)ct_mesh_degree(&s->forward->mesh, axes);
}

static double sum_bytes(const struct sac *s, struct ct_value *const *v, int count)
{
    double sum = 0;

    for (int i = 0; i < count; i++)
        sum += v[i] ? (double)ct_value_bytes(s->forward, v[i], s->rank) : 0;
    return sum;
}

static double longer(double a, double b)
{
    return a > b ? a : b;
}

double sac_seconds(const struct sac *s, const struct ct_op *op)
{
    double in = sum_bytes(s, op->in, op->ins), out = sum_bytes(s, op->out, op->outs);
    double seconds = longer(sac_flops(s, op) / s->rates.flops, (in + out) / s->rates.memory);

    if (op->type->flags & CT_OP_VIEW)
        return 0;
    if (op->type->collective && op->type->collective->sent) {
        double ranks = (double)ct_mesh_degree(&s->forward->mesh, ct_op_axes(op, "axes"));

        seconds = longer(seconds, op->type->collective->sent(in, out, ranks) / s->rates.link);
    }
    return seconds;
}
