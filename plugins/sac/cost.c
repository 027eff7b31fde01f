/*
 * Cost of running an op again, by a roofline.
 *
 * An op takes the longest of three times: its floating-point operations at the device's peak, the
 * bytes that it reads and writes at its memory bandwidth, and the bytes that it sends at its link
 * bandwidth. Nothing is measured unless [sac] measure asks for it, because all ranks must make the
 * same choice, and a plan must match the run. Rates that are not given follow from the peak: the
 * memory of an H200 moves a byte in the time of 200 operations, that of a processor with vector
 * units in about 20. Links are ten times slower than memory. Host memory is a hundred times slower
 * than a GPU's (PCIe 5.0 x16 beside HBM3e), and ten times slower than a processor's, as a file is.
 */
#include <string.h>

#include <ctitan/collective.h>
#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/lib/measure.h>
#include <ctitan/log.h>

#include "sac.h"

#define UNKNOWN_PEAK 100e12
#define FLOPS_PER_BYTE 200
#define FLOPS_PER_BYTE_OF_HOST 20
#define LINKS_SLOWER 10
#define HOST_SLOWER 100
#define FILE_SLOWER 10
#define ENOUGH 0.01 /* seconds of calls to measure */

/* The dtype of matrix products: that of the first op with FLOPs. */
static enum ct_dtype compute_dtype(const struct sac *s)
{
    ct_for_each_op (op, s->graph)
        if (op->section->part == CT_PART_F && op->type->flops && op->outs)
            return op->out[0]->dtype;
    return CT_F32;
}

int sac_find_rates(struct sac *s, struct ct_run *run)
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
    if (sac_config.measure && run && run->world > 1)
        return ct_fail(CT_ECONFIG,
                       "[sac] measure = true: %lld ranks must choose alike; measure on one rank, "
                       "and set tflops and memory_gbps",
                       (long long)run->world);
    s->device = sac_config.measure && run ? run->device : NULL;
    return 0;
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

/* ---- measuring ---- */

struct sac_measured {
    const struct ct_op *op;
    double seconds; /* below 0: it cannot be measured */
    struct sac_measured *next;
};

static bool same_shape(const struct ct_value *v, const struct ct_value *w)
{
    return (!v && !w) || (v && w && v->dtype == w->dtype && v->ndim == w->ndim &&
                          !memcmp(v->shape, w->shape, sizeof(*v->shape) * (size_t)v->ndim));
}

static bool same_call(const struct ct_op *a, const struct ct_op *b)
{
    if (a->type != b->type || a->ins != b->ins ||
        (a->type->attrs_size && memcmp(a->attrs, b->attrs, a->type->attrs_size) != 0))
        return false;
    for (int i = 0; i < a->ins; i++)
        if (!same_shape(a->in[i], b->in[i]))
            return false;
    return true;
}

/* Indices are 0: they are valid in any table. */
static double zero(const struct ct_value *v, int64_t i)
{
    (void)v;
    (void)i;
    return 0;
}

static int time_op(const struct sac *s, const struct ct_op *op, double *seconds)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_create(&arena, "measure");
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_F, "");
    struct ct_value **in = ct_arena_array(&arena, struct ct_value *, op->ins);
    struct ct_measured measured = {0};
    const struct ct_op *copy;
    int rc;

    for (int i = 0; i < op->ins; i++)
        if (op->in[i])
            in[i] = ct_graph_source(graph, CT_ROLE_INPUT, ct_arena_printf(&arena, "x%d", i),
                                    op->in[i]->dtype, op->in[i]->ndim, op->in[i]->shape);
    copy = ct_emit_type(&b, op->type, "y", in, op->ins, op->attrs);
    rc = copy ? 0 : b.status;
    for (int i = 0; rc == 0 && i < copy->outs; i++)
        ct_graph_fetch(graph, ct_arena_printf(&arena, "y%d", i), copy->out[i]);
    if (rc == 0)
        rc = ct_measure_graph(graph, s->device, zero, ENOUGH, &measured);
    ct_arena_finish(&arena);
    *seconds = measured.best;
    return rc;
}

/* Below 0: op cannot be run by itself. */
static double measured_seconds(struct sac *s, const struct ct_op *op)
{
    struct sac_measured *m = s->measured;

    while (m && !same_call(m->op, op))
        m = m->next;
    if (m)
        return m->seconds;
    m = ct_arena_new(&s->scratch, struct sac_measured);
    *m = (struct sac_measured){op, -1, s->measured};
    s->measured = m;
    if (time_op(s, op, &m->seconds) < 0) {
        ct_warn("sac: %s is not measured: %s", op->type->name, ct_error_message());
        m->seconds = -1;
    }
    return m->seconds;
}

static bool can_measure(const struct sac *s, const struct ct_op *op)
{
    for (int i = 0; i < op->ins; i++)
        if (ct_op_mutates(op, i) || (op->in[i] && op->in[i]->opaque_bytes))
            return false;
    return s->device && op->outs && !(op->type->flags & (CT_OP_EFFECT | CT_OP_SPACES));
}

double sac_seconds(struct sac *s, const struct ct_op *op)
{
    double measured =
        op->type->flags & CT_OP_VIEW || !can_measure(s, op) ? -1 : measured_seconds(s, op);
    double in = sum_bytes(s, op->in, op->ins), out = sum_bytes(s, op->out, op->outs);
    double seconds = longer(sac_flops(s, op) / s->rates.flops, (in + out) / s->rates.memory);

    if (measured >= 0 || op->type->flags & CT_OP_VIEW)
        return measured >= 0 ? measured : 0;
    if (op->type->collective && op->type->collective->sent) {
        double ranks = (double)ct_mesh_degree(&s->forward->mesh, ct_op_axes(op, "axes"));

        seconds = longer(seconds, op->type->collective->sent(in, out, ranks) / s->rates.link);
    }
    return seconds;
}
