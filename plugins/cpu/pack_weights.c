/*
 * The transform "pack_weights".
 *
 * Every weight that a matrix product reads once per microbatch is packed once per step (part pre)
 * for each of its uses, because forward and backward need different layouts: by cpu.pack for one
 * use, by cpu.pack_both for two in one pass over the weight. A preceding cast is folded in: packing
 * reads the float32 parameter and rounds. The op that read the weight becomes its counterpart on
 * packed weights: linear -> cpu.linear.
 *
 * A packed matrix of parameters that no step changes becomes a state, which cpu.pack_into makes in
 * the init part. Weights that are gathered or loaded within a microbatch are not packed.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/run.h>

#include "pack_weights.h"

/* A run of the transform. */
struct packer {
    struct ct_graph *graph;
    struct ct_run *run;
    struct ct_builder before_microbatches;
    bool trains; /* a step of training: parameters that it does not update never change */
};

/* The value that is packed for a weight: the input of its cast in `pre`, or the weight itself. */
struct source {
    struct ct_value *value;
    enum ct_dtype dtype; /* dtype in the product */
};

static bool find_source(const struct ct_value *w, struct source *source)
{
    const struct ct_op *maker = w->producer;

    *source = (struct source){(struct ct_value *)w, w->dtype};
    if (!cpu_is_compute_dtype(w->dtype) || w->ndim != 2 || w->opaque_bytes)
        return false;
    if (maker && maker->section->part != CT_PART_PRE)
        return false;
    if (maker && maker->type == &ct_op_cast && maker->in[0]->dtype == CT_F32)
        source->value = maker->in[0];
    return w->role != CT_ROLE_INPUT;
}

/* This rank's shape of a value. */
static void local_shape(const struct ct_graph *graph, const struct ct_run *run,
                        const struct ct_value *v, int64_t *local)
{
    ct_sharding_local(&v->sharding, &graph->mesh, run->rank, v->ndim, v->shape, local, NULL);
}

/* Whether the weights fit into one packed matrix. */
static int try_packing(const struct packer *p, const struct cpu_pack_attrs *attrs,
                       const struct source *source, int count, size_t *bytes)
{
    enum cpu_use use = attrs->use;
    int64_t n[CPU_MAX_WEIGHTS], stride[CPU_MAX_WEIGHTS], sum = 0, local[CT_MAX_DIMS];
    struct cpu_packing *packing;
    struct cpu_packing_spec spec = {.use = {use == CPU_FORWARD, use == CPU_BACKWARD},
                                    .count = count,
                                    .n = n,
                                    .stride = stride,
                                    .from = source->value->dtype,
                                    .dtype = source->dtype};
    int rc = cpu_gemm_start();

    for (int i = 0; i < count; i++) {
        local_shape(p->graph, p->run, source[i].value, local);
        n[i] = local[0];
        spec.k = stride[i] = local[1];
        sum += n[i];
    }
    if (rc >= 0)
        rc = cpu_packing_prepare(&spec, &packing);
    return rc < 0 ? rc : cpu_packed_bytes(use, sum, spec.k, spec.dtype, bytes);
}

static bool equal_sources(const struct ct_op *pack, const struct source *source, int count)
{
    for (int i = 0; i < count; i++)
        if (pack->ins != count || pack->in[i] != source[i].value)
            return false;
    return true;
}

/* An op that packs these weights, for whatever use. */
static struct ct_op *find_pack(const struct cpu_pack_attrs *attrs, const struct source *source,
                               int count)
{
    ct_for_each_use (use, source->value) {
        const struct cpu_pack_attrs *a = use->op->attrs;

        if ((use->op->type == &cpu_op_pack || use->op->type == &cpu_op_pack_both) &&
            a->dtype == attrs->dtype && equal_sources(use->op, source, count))
            return use->op;
    }
    return NULL;
}

static const char *packed_name(const struct packer *p, const struct ct_value *weight,
                               enum cpu_use use)
{
    return ct_arena_printf(p->graph->arena, "%s.packed.%s", weight->name,
                           use == CPU_FORWARD ? "forward" : "backward");
}

static struct ct_value *finish_packed(struct ct_value *packed, const struct ct_op *pack,
                                      size_t bytes)
{
    packed->opaque_bytes = bytes;
    if (pack->ins == 1)
        packed->sharding = pack->in[0]->sharding;
    return packed;
}

static struct ct_value *emit_pack(struct packer *p, const struct cpu_pack_attrs *attrs,
                                  const struct source *source, int count, size_t bytes)
{
    struct ct_builder b = p->before_microbatches;
    struct ct_value *in[CPU_MAX_WEIGHTS];
    struct ct_op *op;

    for (int i = 0; i < count; i++)
        in[i] = source[i].value;
    for (int i = 0; i < count; i++) /* late or repeated gathers are packed there */
        if (in[i]->producer && in[i]->producer->section->group >= 0)
            b.section = in[i]->producer->section;
    op = ct_emit_type(&b, &cpu_op_pack, packed_name(p, in[0], attrs->use), in, count, attrs);
    p->before_microbatches.status = b.status;
    return op ? finish_packed(op->out[0], op, bytes) : NULL;
}

/* Let an op that packs for one use pack for the other, too. */
static struct ct_value *pack_both(struct packer *p, struct ct_op *one, enum cpu_use other,
                                  size_t bytes)
{
    struct ct_builder b = ct_builder_before(p->graph, one);
    struct ct_op *both;

    b.why = one->why;
    both = ct_emit_type(&b, &cpu_op_pack_both, NULL, one->in, one->ins, one->attrs);
    p->before_microbatches.status = b.status;
    if (!both)
        return NULL;
    ct_op_set_output(both, !other, one->out[0]);
    ct_graph_remove(p->graph, one);
    ct_value_rename(p->graph, both->out[other], packed_name(p, both->in[0], other));
    return finish_packed(both->out[other], both, bytes);
}

/* Weights packed for a use, or NULL if they should stay unpacked. The op that packs them is there
   already if their op was cloned (recomputation), the weight is tied, or for the other use. */
static struct ct_value *packed_for(struct packer *p, enum cpu_use use, struct ct_value *const *w,
                                   int count)
{
    struct source source[CPU_MAX_WEIGHTS];
    struct cpu_pack_attrs attrs = {.use = use};
    struct ct_op *op;
    size_t bytes;

    if (count < 1 || count > CPU_MAX_WEIGHTS)
        return NULL;
    for (int i = 0; i < count; i++)
        if (!find_source(w[i], &source[i]) || source[i].dtype != source[0].dtype ||
            source[i].value->dtype != source[0].value->dtype)
            return NULL;
    attrs.dtype = source->dtype;
    op = find_pack(&attrs, source, count);
    if (op && op->type == &cpu_op_pack_both)
        return op->out[use];
    if (op && ((const struct cpu_pack_attrs *)op->attrs)->use == use)
        return op->out[0];
    if (try_packing(p, &attrs, source, count, &bytes) < 0)
        return NULL;
    return op ? pack_both(p, op, use, bytes) : emit_pack(p, &attrs, source, count, bytes);
}

/* Turn the op into its counterpart in place: its outputs keep their names and users. */
static void become(struct packer *p, struct ct_op *op, const struct ct_op_type *type,
                   struct ct_value *const *in, int ins, const void *attrs)
{
    ct_op_become(p->graph, op, type, in, ins, attrs);
    op->why = "weights are packed once per step";
}

/* The largest power of two that divides the rows of this rank's part of a weight. */
static int64_t whole_rows(const struct packer *p, const struct ct_value *w)
{
    int64_t local[CT_MAX_DIMS];

    local_shape(p->graph, p->run, w, local);
    return local[0] & -local[0];
}

/* The order in which weights lie side by side: only the last may end within a panel. */
static void order_weights(const struct packer *p, struct ct_value *const *w, int count, int *order)
{
    for (int i = 0; i < count; i++) {
        int at = i;

        for (; at > 0 && whole_rows(p, w[i]) > whole_rows(p, w[order[at - 1]]); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

static void pack_linear(struct packer *p, struct ct_op *op)
{
    struct cpu_linear_attrs attrs = {.widths = {.ndim = op->outs}};
    struct ct_value *w[CPU_MAX_WEIGHTS] = {NULL}, *out[CPU_MAX_WEIGHTS], *packed;
    int count = op->ins - 1, order[CPU_MAX_WEIGHTS];

    if (count > CPU_MAX_WEIGHTS || count > CT_MAX_DIMS)
        return;
    order_weights(p, op->in + 1, count, order);
    for (int i = 0; i < count; i++) {
        w[i] = op->in[1 + order[i]];
        out[i] = op->out[order[i]];
        attrs.widths.size[i] = out[i]->shape[out[i]->ndim - 1];
    }
    packed = packed_for(p, CPU_FORWARD, w, count);
    if (!packed)
        return;
    become(p, op, &cpu_op_linear, (struct ct_value *[]){op->in[0], packed}, 2, &attrs);
    for (int i = 0; i < count; i++)
        ct_op_set_output(op, i, out[i]);
}

static void pack_linear_dx(struct packer *p, struct ct_op *op)
{
    int count = op->ins / 2, order[CPU_MAX_WEIGHTS];
    struct ct_value *w[CPU_MAX_WEIGHTS] = {NULL}, *in[CPU_MAX_WEIGHTS + 1];

    if (count > CPU_MAX_WEIGHTS)
        return;
    order_weights(p, op->in + count, count, order);
    for (int i = 0; i < count; i++) {
        in[i] = op->in[order[i]];
        w[i] = op->in[count + order[i]];
    }
    in[count] = packed_for(p, CPU_BACKWARD, w, count);
    if (in[count])
        become(p, op, &cpu_op_linear_dx, in, count + 1, NULL);
}

static void pack_loss(struct packer *p, struct ct_op *op)
{
    struct ct_value *packed = packed_for(p, CPU_FORWARD, op->in + 1, 1);

    if (packed)
        become(p, op, &cpu_op_loss, (struct ct_value *[]){op->in[0], packed, op->in[2]}, 3, NULL);
}

static void pack_loss_grad(struct packer *p, struct ct_op *op)
{
    bool dw = op->type == &ct_op_linear_cross_entropy_grad;
    struct ct_value *forward = packed_for(p, CPU_FORWARD, op->in + 2, 1);
    struct ct_value *backward = forward ? packed_for(p, CPU_BACKWARD, op->in + 2, 1) : NULL;

    if (backward)
        become(p, op, dw ? &cpu_op_loss_grad : &cpu_op_loss_dx,
               (struct ct_value *[]){op->in[0], op->in[1], forward, backward, op->in[3]}, 5, NULL);
}

/* ---- states ---- */

/* True if the packed matrix is of parameters, each once. */
static bool is_of_parameters(const struct ct_op *pack)
{
    for (int i = 0; i < pack->ins; i++) {
        if (pack->in[i]->role != CT_ROLE_PARAM || pack->in[i]->space != CT_SPACE_DEVICE)
            return false;
        for (int k = 0; k < i; k++)
            if (pack->in[k] == pack->in[i])
                return false;
    }
    return true;
}

/* A step changes no parameter of the packed matrix. */
static bool is_frozen(const struct packer *p, const struct ct_op *pack)
{
    for (int i = 0; i < pack->ins; i++)
        if (ct_updater(pack->in[i]))
            return false;
    return p->trains;
}

static struct ct_value *new_state(struct ct_graph *graph, const struct ct_op *pack,
                                  const struct ct_value *packed)
{
    struct ct_value *state =
        ct_graph_source(graph, CT_ROLE_STATE, ct_arena_printf(graph->arena, "cpu.%s", packed->name),
                        packed->dtype, packed->ndim, packed->shape);

    state->opaque_bytes = packed->opaque_bytes;
    state->sharding = packed->sharding;
    state->holders = pack->in[0]->holders;
    state->dtype_fixed = true;
    return state;
}

/* Make an output of pack, whose parameters no step changes, a state. */
static void keep(struct packer *p, struct ct_builder *init, struct ct_op *pack, int output)
{
    struct cpu_pack_attrs attrs = *(const struct cpu_pack_attrs *)pack->attrs;
    struct ct_value *packed = pack->out[output], *in[CPU_MAX_WEIGHTS + 1];

    attrs.use = pack->outs > 1 ? (enum cpu_use)output : attrs.use;
    in[0] = new_state(p->graph, pack, packed);
    memcpy(in + 1, pack->in, sizeof(*in) * (size_t)pack->ins);
    ct_emit_type(init, &cpu_op_pack_into, NULL, in, pack->ins + 1, &attrs);
    ct_value_replace(p->graph, packed, in[0]);
}

static int keep_states(struct packer *p)
{
    struct ct_builder init = ct_init_builder(p->graph);

    init.why = "no step changes the weights";
    ct_for_each_op (op, p->graph)
        if (op->type == &cpu_op_pack || op->type == &cpu_op_pack_both)
            for (int i = 0; i < op->outs && is_of_parameters(op) && is_frozen(p, op); i++)
                keep(p, &init, op, i);
    return init.status;
}

static int pack_weights(struct ct_graph *graph, struct ct_run *run)
{
    static const struct {
        const struct ct_op_type *type;
        void (*pack)(struct packer *, struct ct_op *);
    } twins[] = {{&ct_op_linear, pack_linear},
                 {&ct_op_linear_dx, pack_linear_dx},
                 {&ct_op_linear_cross_entropy, pack_loss},
                 {&ct_op_linear_cross_entropy_grad, pack_loss_grad},
                 {&ct_op_linear_cross_entropy_dx, pack_loss_grad}};
    struct packer p = {.graph = graph,
                       .run = run,
                       .before_microbatches = ct_builder_at_end(graph, CT_PART_PRE, ""),
                       .trains = ct_graph_fetched(graph, "grad_norm") != NULL};
    int rc;

    if (!cpu_config.pack_weights || run->device_ops->open != cpu_device_ops.open)
        return 0;
    p.before_microbatches.why = "weights are packed once per step";
    p.before_microbatches.before = graph->first;
    while (p.before_microbatches.before &&
           p.before_microbatches.before->section->part <= CT_PART_PRE)
        p.before_microbatches.before = p.before_microbatches.before->next;
    ct_for_each_op (op, graph)
        for (size_t i = 0; ct_part_is_microbatch(op->section->part) && i < CT_COUNT(twins); i++)
            if (op->type == twins[i].type) {
                twins[i].pack(&p, op);
                break;
            }
    rc = keep_states(&p);
    ct_graph_sweep(graph);
    return rc < 0 ? rc : p.before_microbatches.status;
}

const struct ct_transform cpu_pack_weights = {
    .size = sizeof(struct ct_transform),
    .name = "pack_weights",
    .summary = "weights in the layout of the CPU's matrix product, renewed once per step",
    .phase = CT_PHASE_FUSE,
    .gives = (const char *const[]){"packed", "preferred", NULL},
    .evaluation = true,
    .apply = pack_weights,
};
