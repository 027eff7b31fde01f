/*
 * The transform "pack_weights", and the op types that it inserts into graphs.
 *
 * Every weight that a matrix product reads once per microbatch is packed once per step (part pre)
 * for each of its uses, because forward and backward need different layouts: by cpu.pack for one
 * use, by cpu.pack_both for two in one pass over the weight. A preceding cast is folded in: packing
 * reads the float32 parameter and rounds. The op that read the weight becomes its counterpart on
 * packed weights: linear -> cpu.linear.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/run.h>

#include "gemm.h"

/* ---- op types ---- */

struct pack_attrs {
    enum cpu_use use;
    enum ct_dtype dtype;
    bool round;
};

struct linear_attrs {
    struct ct_shape widths; /* of the outputs: "768,256,256" */
};

static int pack_infer(struct ct_op *op)
{
    int64_t rows = 0;

    for (int i = 0; i < op->ins; i++) {
        if (op->in[i]->ndim != 2 || op->in[i]->shape[1] != op->in[0]->shape[1])
            return ct_fail(CT_EINVAL, "weights of different widths, or no matrices");
        rows += op->in[i]->shape[0];
    }
    for (int i = 0; i < op->outs; i++) {
        op->out[i]->dtype = ((const struct pack_attrs *)op->attrs)->dtype;
        op->out[i]->ndim = 2;
        op->out[i]->shape[0] = rows;
        op->out[i]->shape[1] = op->in[0]->shape[1];
    }
    return 0;
}

#define PACK_ATTRS                                                                                 \
    CT_OPT_DTYPE(struct pack_attrs, dtype, "dtype", "float32", "Dtype of the elements"),           \
        CT_OPT_BOOL(struct pack_attrs, round, "round", "false",                                    \
                    "Elements are rounded to bfloat16, whatever dtype holds them")

const struct ct_op_type cpu_op_pack = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.pack",
    .summary = "weights in the layout of the CPU's matrix product, one below the other",
    .signature = "*w F -> packed F",
    .attrs =
        (const struct ct_option[]){CT_OPT_ENUM(struct pack_attrs, use, "use", "forward",
                                               "forward|backward", "Multiplied as w^T, or as w"),
                                   PACK_ATTRS,
                                   {0}},
    .attrs_size = sizeof(struct pack_attrs),
    .infer = pack_infer,
};

const struct ct_op_type cpu_op_pack_both = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.pack_both",
    .summary = "cpu.pack for both uses, in one pass over the weights",
    .signature = "*w F -> forward F, backward F",
    .attrs = (const struct ct_option[]){PACK_ATTRS, {0}},
    .attrs_size = sizeof(struct pack_attrs),
    .infer = pack_infer,
};

static int linear_infer(struct ct_op *op)
{
    const struct ct_shape *widths = &((const struct linear_attrs *)op->attrs)->widths;
    const struct ct_value *x = op->in[0], *packed = op->in[1];
    char text[160];
    int64_t sum = 0;

    for (int i = 0; i < op->outs; i++) {
        struct ct_value *y = op->out[i];

        y->ndim = x->ndim;
        memcpy(y->shape, x->shape, sizeof(y->shape));
        y->shape[y->ndim - 1] = widths->size[i];
        sum += widths->size[i];
    }
    if (sum == packed->shape[0] && x->shape[x->ndim - 1] == packed->shape[1])
        return 0;
    ct_shape_print(widths, text, sizeof(text));
    return ct_fail(CT_EINVAL, "widths %s do not fit the packed weights", text);
}

static int join_outputs(const struct ct_op *op, struct ct_value ***values)
{
    *values = op->out;
    return op->outs > 1 ? op->outs : 0;
}

static double linear_flops(const struct ct_op *op, const struct ct_tensor *in,
                           const struct ct_tensor *out)
{
    double sum = 0;

    for (int i = 0; i < op->outs; i++)
        sum += 2.0 * (double)ct_tensor_count(&in[0]) * (double)out[i].shape[out[i].ndim - 1];
    return sum;
}

const struct ct_op_type cpu_op_linear = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.linear",
    .summary = "linear on packed weights",
    .signature = "x T, packed F -> *y T | *widths",
    .attrs = (const struct ct_option[]){CT_OPT_SHAPE(struct linear_attrs, widths, "widths", NULL,
                                                     "Widths of the outputs, comma-separated"),
                                        {0}},
    .attrs_size = sizeof(struct linear_attrs),
    .infer = linear_infer,
    .flops = linear_flops,
    .join = join_outputs,
};

static int linear_dx_infer(struct ct_op *op)
{
    const struct ct_value *dy = op->in[0], *packed = op->in[op->ins - 1];
    struct ct_value *dx = op->out[0];

    dx->ndim = dy->ndim;
    memcpy(dx->shape, dy->shape, sizeof(dx->shape));
    dx->shape[dx->ndim - 1] = packed->shape[1];
    return 0;
}

static int join_inputs(const struct ct_op *op, struct ct_value ***values)
{
    *values = op->in;
    return op->ins > 2 ? op->ins - 1 : 0;
}

static double linear_dx_flops(const struct ct_op *op, const struct ct_tensor *in,
                              const struct ct_tensor *out)
{
    double sum = 0;

    for (int i = 0; i + 1 < op->ins; i++)
        sum += 2.0 * (double)ct_tensor_count(&in[i]) * (double)out[0].shape[out[0].ndim - 1];
    return sum;
}

const struct ct_op_type cpu_op_linear_dx = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.linear_dx",
    .summary = "linear_dx on packed weights",
    .signature = "*dy T, packed F -> dx T",
    .infer = linear_dx_infer,
    .flops = linear_dx_flops,
    .join = join_inputs,
};

static int loss_infer(struct ct_op *op)
{
    op->out[0]->ndim = 0;
    return 0;
}

static double loss_flops(const struct ct_op *op, const struct ct_tensor *in,
                         const struct ct_tensor *out)
{
    (void)op;
    (void)out;
    return 2.0 * (double)ct_tensor_count(&in[0]) * (double)in[1].shape[0];
}

const struct ct_op_type cpu_op_loss = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.linear_cross_entropy",
    .summary = "linear_cross_entropy on packed weights",
    .signature = "x T, packed F, labels i -> loss W",
    .infer = loss_infer,
    .flops = loss_flops,
};

static int loss_grad_infer(struct ct_op *op)
{
    const struct ct_value *x = op->in[1], *packed = op->in[2];
    struct ct_value *dx = op->out[0], *dw = op->out[1];

    dx->ndim = x->ndim;
    memcpy(dx->shape, x->shape, sizeof(dx->shape));
    dw->ndim = 2;
    memcpy(dw->shape, packed->shape, sizeof(dw->shape));
    op->out[2]->ndim = 0;
    return 0;
}

static double loss_grad_flops(const struct ct_op *op, const struct ct_tensor *in,
                              const struct ct_tensor *out)
{
    return 3 * loss_flops(op, in + 1, out);
}

const struct ct_op_type cpu_op_loss_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.linear_cross_entropy_grad",
    .summary = "linear_cross_entropy_grad on packed weights, for the forward and the backward",
    .signature = "dloss F, x T, forward F, backward F, labels i -> dx T, dw T, loss W",
    .flags = CT_OP_ANY_DTYPE,
    .infer = loss_grad_infer,
    .flops = loss_grad_flops,
};

/* ---- the transform ---- */

struct packer {
    struct ct_graph *graph;
    struct ct_run *run;
    struct ct_builder before_microbatches;
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

static void local_shape(const struct packer *p, const struct ct_value *v, int64_t *local)
{
    ct_sharding_local(&v->sharding, &p->graph->mesh, p->run->rank, v->ndim, v->shape, local, NULL);
}

/* Ask oneDNN whether the weights fit into one packed matrix. */
static int try_packing(const struct packer *p, enum cpu_use use, const struct source *source,
                       int count, size_t *bytes)
{
    int64_t n[CPU_MAX_WEIGHTS], stride[CPU_MAX_WEIGHTS], sum = 0, local[CT_MAX_DIMS];
    struct cpu_packing *packing;
    struct cpu_packing_spec spec = {.use = {use == CPU_FORWARD, use == CPU_BACKWARD},
                                    .count = count,
                                    .n = n,
                                    .stride = stride,
                                    .from = source->value->dtype,
                                    .to = cpu_packed_type(source->dtype)};
    int rc = cpu_gemm_start();

    for (int i = 0; i < count; i++) {
        local_shape(p, source[i].value, local);
        n[i] = local[0];
        spec.k = stride[i] = local[1];
        sum += n[i];
    }
    if (rc >= 0)
        rc = cpu_packing_prepare(&spec, &packing);
    return rc < 0 ? rc : cpu_packed_bytes(use, sum, spec.k, spec.to, bytes);
}

static bool equal_sources(const struct ct_op *pack, const struct source *source, int count)
{
    for (int i = 0; i < count; i++)
        if (pack->ins != count || pack->in[i] != source[i].value)
            return false;
    return true;
}

/* An op that packs these weights, for whatever use. */
static struct ct_op *find_pack(const struct packer *p, const struct pack_attrs *attrs,
                               const struct source *source, int count)
{
    ct_for_each_op (op, p->graph) {
        const struct pack_attrs *a = op->attrs;

        if ((op->type == &cpu_op_pack || op->type == &cpu_op_pack_both) &&
            a->dtype == attrs->dtype && a->round == attrs->round &&
            equal_sources(op, source, count))
            return op;
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

static struct ct_value *emit_pack(struct packer *p, const struct pack_attrs *attrs,
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

/* The weights w packed for a use, or NULL if they should stay unpacked. What packs them is already
   there if the op was cloned (recomputation), the weight is tied, or for the other use. */
static struct ct_value *packed_for(struct packer *p, enum cpu_use use, struct ct_value *const *w,
                                   int count)
{
    struct source source[CPU_MAX_WEIGHTS];
    struct pack_attrs attrs = {.use = use};
    struct ct_op *op;
    size_t bytes;

    if (count < 1 || count > CPU_MAX_WEIGHTS)
        return NULL;
    for (int i = 0; i < count; i++)
        if (!find_source(w[i], &source[i]) || source[i].dtype != source[0].dtype ||
            source[i].value->dtype != source[0].value->dtype)
            return NULL;
    attrs.dtype = cpu_packed_type(source->dtype);
    attrs.round =
        attrs.dtype == CT_F32 && source->dtype == CT_BF16 && source->value->dtype == CT_F32;
    op = find_pack(p, &attrs, source, count);
    if (op && op->type == &cpu_op_pack_both)
        return op->out[use];
    if (op && ((const struct pack_attrs *)op->attrs)->use == use)
        return op->out[0];
    if (try_packing(p, use, source, count, &bytes) < 0)
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

static void pack_linear(struct packer *p, struct ct_op *op)
{
    struct linear_attrs attrs = {.widths = {.ndim = op->outs}};
    struct ct_value *packed;

    if (op->outs > CT_MAX_DIMS)
        return;
    packed = packed_for(p, CPU_FORWARD, op->in + 1, op->ins - 1);
    if (!packed)
        return;
    for (int i = 0; i < op->outs; i++)
        attrs.widths.size[i] = op->out[i]->shape[op->out[i]->ndim - 1];
    become(p, op, &cpu_op_linear, (struct ct_value *[]){op->in[0], packed}, 2, &attrs);
}

static void pack_linear_dx(struct packer *p, struct ct_op *op)
{
    int count = op->ins / 2;
    struct ct_value *in[CPU_MAX_WEIGHTS + 1];
    struct ct_value *packed = packed_for(p, CPU_BACKWARD, op->in + count, count);

    if (!packed)
        return;
    memcpy(in, op->in, sizeof(*in) * (size_t)count);
    in[count] = packed;
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
    struct ct_value *forward = packed_for(p, CPU_FORWARD, op->in + 2, 1);
    struct ct_value *backward = forward ? packed_for(p, CPU_BACKWARD, op->in + 2, 1) : NULL;

    if (backward)
        become(p, op, &cpu_op_loss_grad,
               (struct ct_value *[]){op->in[0], op->in[1], forward, backward, op->in[3]}, 5, NULL);
}

static int pack_weights(struct ct_graph *graph, struct ct_run *run)
{
    static const struct {
        const struct ct_op_type *type;
        void (*pack)(struct packer *, struct ct_op *);
    } twins[] = {{&ct_op_linear, pack_linear},
                 {&ct_op_linear_dx, pack_linear_dx},
                 {&ct_op_linear_cross_entropy, pack_loss},
                 {&ct_op_linear_cross_entropy_grad, pack_loss_grad}};
    struct packer p = {graph, run, ct_builder_at_end(graph, CT_PART_PRE, "")};

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
    ct_graph_sweep(graph);
    return p.before_microbatches.status;
}

const struct ct_transform cpu_pack_weights = {
    .size = sizeof(struct ct_transform),
    .name = "pack_weights",
    .summary = "weights in the layout of the CPU's matrix product, renewed once per step",
    .phase = CT_PHASE_FUSE,
    .gives = (const char *const[]){"preferred", NULL},
    .evaluation = true,
    .apply = pack_weights,
};
