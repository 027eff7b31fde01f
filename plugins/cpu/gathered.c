/*
 * Weights that a microbatch gathers from shards (fsdp): each rank packs its shard, and packed
 * shards are gathered in the place of plain ones. That sends as many bytes, and packs nothing in a
 * microbatch. A shard is packed for the product of all; products read shards one behind the other,
 * and have the bits of those of whole weights.
 *
 * Shards must be whole panels and steps, all equal, and for one op: with recomputation, and in the
 * last region, one gather may be for two uses. The weights of an op must be gathered by one op, as
 * with [fsdp] bucket = unit. All ranks of a gather must pack alike (agreement.c).
 */
#include <stdio.h>

#include <ctitan/core_ops.h>

#include "agreement.h"
#include "pack.h"
#include "products/choice.h"
#include "products/unit.h"

/* The output of gather that w is, or -1. */
static int output_of(const struct ct_op *gather, const struct ct_value *w)
{
    int i = gather->outs - 1;

    while (i >= 0 && gather->out[i] != w)
        i--;
    return i;
}

static bool is_in_panels(const struct cpu_packer *p, const struct ct_value *shard,
                         const struct ct_value *w, int64_t shards)
{
    int64_t part[CT_MAX_DIMS], whole[CT_MAX_DIMS];

    cpu_local_shape(p->graph, p->run, shard, part);
    cpu_local_shape(p->graph, p->run, w, whole);
    return part[0] * shards == whole[0] && part[0] % CPU_PANEL == 0 && whole[1] % CPU_PANEL == 0;
}

/* How many shards op's weights are gathered from, in whole panels, by one op and for op alone; else
   0. output: which of the gather's a weight is. */
static int64_t find_shards(const struct cpu_packer *p, const struct ct_op *op,
                           struct ct_value *const *w, int count, int *output)
{
    const struct ct_op *gather = w[0]->producer;
    const struct ct_collective_attrs *how;
    int64_t shards;

    if (!gather || gather->type != &ct_op_all_gather || count > CT_MAX_DIMS ||
        !ct_part_is_microbatch(gather->section->part))
        return 0;
    how = gather->attrs;
    shards = how->dim == 0 ? ct_mesh_degree(&p->graph->mesh, how->axes) : 0;
    for (int i = 0; shards && i < count; i++) {
        output[i] = output_of(gather, w[i]);
        if (output[i] < 0 || w[i]->ndim != 2 || !cpu_is_compute_dtype(w[i]->dtype) ||
            ct_value_only_user(w[i]) != op || !is_in_panels(p, gather->in[output[i]], w[i], shards))
            return 0;
    }
    return shards;
}

/* Of the weights, one below the other. */
struct size {
    int64_t n, k;
};

static struct size size_of(const struct cpu_packer *p, struct ct_value *const *w, int count)
{
    int64_t local[CT_MAX_DIMS];
    struct size size = {0};

    for (int i = 0; i < count; i++) {
        cpu_local_shape(p->graph, p->run, w[i], local);
        size.n += local[0];
        size.k = local[1];
    }
    return size;
}

/* Whether own kernels multiply them. */
static bool choose(const struct cpu_packer *p, enum cpu_use use, const struct size *size,
                   enum ct_dtype dtype, int64_t shards)
{
    if (dtype != cpu_packed_type(dtype) || cpu_gemm_start() < 0)
        return false;
    if (cpu_config.products == CPU_PRODUCTS_AUTO && !cpu_on_one_machine(p->run))
        return false;
    return cpu_choose_panels(use, size->n, size->k, shards, dtype);
}

/* All ranks of the gather must do the same. */
static int note(const struct cpu_packer *p, enum cpu_use use, const struct size *size,
                enum ct_dtype dtype, bool packed)
{
    char name[64];

    snprintf(name, sizeof(name), "%s weights of %lldx%lld, %s",
             use == CPU_FORWARD ? "gathered" : "backward gathered", (long long)size->n,
             (long long)size->k, ct_dtype_name(dtype));
    return cpu_note_choice(p->run, name, packed);
}

/* Put a gather of a packed shard, for all these outputs, in the place of one of plain shards. */
static struct ct_value *replace(struct cpu_packer *p, struct ct_op *gather, const int *output,
                                int count, struct ct_value *shard, int64_t shards)
{
    struct ct_graph *graph = p->graph;
    const struct ct_value *w = gather->out[output[0]];
    struct ct_value **in = ct_arena_array(graph->arena, struct ct_value *, gather->ins);
    struct ct_value **out = ct_arena_array(graph->arena, struct ct_value *, gather->outs);
    struct ct_value *packed;
    struct ct_op *op;
    int others = 0;

    for (int i = 0; i < gather->ins; i++) {
        bool replaced = false;

        for (int k = 0; k < count; k++)
            replaced |= output[k] == i;
        if (!replaced) {
            in[others] = gather->in[i];
            out[others++] = gather->out[i];
        }
    }
    in[others] = shard;
    op = cpu_emit_for(graph, gather, gather, &ct_op_all_gather, in, others + 1, gather->attrs,
                      "shards of weights are packed once per step, and gathered so");
    if (!op)
        return NULL;
    for (int i = 0; i < others; i++)
        ct_op_set_output(op, i, out[i]);
    packed = op->out[others];
    ct_value_rename(graph, packed, ct_arena_printf(graph->arena, "%s.all_gather", shard->name));
    packed->sharding = w->sharding;
    packed->opaque_bytes = shard->opaque_bytes * (size_t)shards;
    if (p->before_microbatches.before == gather)
        p->before_microbatches.before = op;
    ct_graph_remove(graph, gather);
    return packed;
}

struct ct_value *cpu_gather_packed(struct cpu_packer *p, const struct ct_op *op, enum cpu_use use,
                                   struct ct_value *const *w, int count, int64_t *shards)
{
    struct ct_op *gather = w[0]->producer;
    enum ct_dtype dtype = w[0]->dtype;
    struct ct_value *plain[CPU_MAX_WEIGHTS], *shard = NULL;
    int output[CPU_MAX_WEIGHTS];
    int64_t all = find_shards(p, op, w, count, output);
    struct size size;

    if (!all)
        return NULL;
    for (int i = 0; i < count; i++)
        plain[i] = gather->in[output[i]];
    size = size_of(p, w, count);
    if (choose(p, use, &size, dtype, all))
        shard = cpu_packed_part(p, use, all, plain, count);
    if (note(p, use, &size, dtype, shard) < 0 || !shard)
        return NULL;
    *shards = all;
    return replace(p, gather, output, count, shard, all);
}
