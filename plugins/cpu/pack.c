/*
 * The transform "pack_weights", and the op types that it puts into graphs.
 *
 * Every weight that a matrix product reads once per microbatch is packed once per step (cpu.pack,
 * part pre) for each of its uses: forward and backward want different layouts. A cast in front of
 * it is folded in: the packing reads the float32 parameter and rounds on the way. The op that read
 * the weight becomes its twin on packed weights: linear -> cpu.linear.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/run.h>

#include "gemm.h"

/* ---- op types ---- */

struct pack_attrs {
    const char *use, *dtype;
    bool round;
};

struct linear_attrs {
    const char *widths; /* of the outputs: "768,256,256" */
};

static int pack_infer(struct ct_op *op)
{
    struct ct_value *out = op->out[0];
    int rc = ct_dtype_parse(ct_op_string(op, "dtype"), &out->dtype);

    if (rc < 0)
        return rc;
    out->rank = 2;
    out->shape[0] = 0;
    for (int i = 0; i < op->ins; i++) {
        if (op->in[i]->rank != 2 || op->in[i]->shape[1] != op->in[0]->shape[1])
            return ct_fail(CT_EINVAL, "weights of different widths, or no matrices");
        out->shape[0] += op->in[i]->shape[0];
        out->shape[1] = op->in[i]->shape[1];
    }
    return 0;
}

const struct ct_op_type cpu_op_pack = {
    .name = "cpu.pack",
    .summary = "weights in the layout of the CPU's matrix product, one below the other",
    .attrs =
        (const struct ct_option[]){
            CT_OPT_CHOICE(struct pack_attrs, use, "use", "forward", "forward|backward",
                          "Multiplied as w^T, or as w"),
            CT_OPT_STRING(struct pack_attrs, dtype, "dtype", "float32", "Dtype of the elements"),
            CT_OPT_BOOL(struct pack_attrs, round, "round", "false",
                        "Elements are rounded to bfloat16, whatever dtype holds them"),
            {0}},
    .attrs_size = sizeof(struct pack_attrs),
    .infer = pack_infer,
};

/* The next of the widths, or -1 at their end. */
static int64_t next_width(const char **text)
{
    char *end;
    long long width = strtoll(*text, &end, 10);

    if (end == *text)
        return -1;
    *text = *end == ',' ? end + 1 : end;
    return width;
}

static int count_widths(const struct ct_op *op)
{
    const char *text = ct_op_string(op, "widths");
    int count = 0;

    while (text && next_width(&text) >= 0)
        count++;
    return count;
}

static int linear_infer(struct ct_op *op)
{
    const struct ct_value *x = op->in[0], *packed = op->in[1];
    const char *text = ct_op_string(op, "widths");
    int64_t sum = 0;

    for (int i = 0; i < op->outs; i++) {
        struct ct_value *y = op->out[i];

        y->dtype = x->dtype;
        y->rank = x->rank;
        memcpy(y->shape, x->shape, sizeof(y->shape));
        y->shape[y->rank - 1] = next_width(&text);
        sum += y->shape[y->rank - 1];
    }
    if (sum != packed->shape[0] || x->shape[x->rank - 1] != packed->shape[1])
        return ct_fail(CT_EINVAL, "widths %s do not fit the packed weights",
                       ct_op_string(op, "widths"));
    return 0;
}

static int join_outputs(const struct ct_op *op, struct ct_value ***values)
{
    *values = op->out;
    return op->outs > 1 ? op->outs : 0;
}

static double linear_flops(const struct ct_tensor *in, const struct ct_tensor *out, int ins,
                           int outs)
{
    double sum = 0;

    (void)ins;
    for (int i = 0; i < outs; i++)
        sum += 2.0 * (double)ct_tensor_count(&in[0]) * (double)out[i].shape[out[i].rank - 1];
    return sum;
}

const struct ct_op_type cpu_op_linear = {
    .name = "cpu.linear",
    .summary = "linear on packed weights",
    .attrs = (const struct ct_option[]){CT_OPT_STRING(struct linear_attrs, widths, "widths", NULL,
                                                      "Widths of the outputs, comma-separated"),
                                        {0}},
    .attrs_size = sizeof(struct linear_attrs),
    .join = join_outputs,
    .count_outputs = count_widths,
    .infer = linear_infer,
    .flops = linear_flops,
};

static int linear_dx_infer(struct ct_op *op)
{
    const struct ct_value *dy = op->in[0], *packed = op->in[op->ins - 1];
    struct ct_value *dx = op->out[0];

    dx->dtype = dy->dtype;
    dx->rank = dy->rank;
    memcpy(dx->shape, dy->shape, sizeof(dx->shape));
    dx->shape[dx->rank - 1] = packed->shape[1];
    return 0;
}

static int join_inputs(const struct ct_op *op, struct ct_value ***values)
{
    *values = op->in;
    return op->ins > 2 ? op->ins - 1 : 0;
}

static double linear_dx_flops(const struct ct_tensor *in, const struct ct_tensor *out, int ins,
                              int outs)
{
    double sum = 0;

    (void)outs;
    for (int i = 0; i + 1 < ins; i++)
        sum += 2.0 * (double)ct_tensor_count(&in[i]) * (double)out[0].shape[out[0].rank - 1];
    return sum;
}

const struct ct_op_type cpu_op_linear_dx = {
    .name = "cpu.linear_dx",
    .summary = "linear_dx on packed weights: *dy, packed -> dx",
    .join = join_inputs,
    .infer = linear_dx_infer,
    .flops = linear_dx_flops,
};

static void scalar_loss(struct ct_value *loss)
{
    loss->dtype = CT_F32;
    loss->rank = 0;
}

static int loss_infer(struct ct_op *op)
{
    scalar_loss(op->out[0]);
    return 0;
}

static double loss_flops(const struct ct_tensor *in, const struct ct_tensor *out, int ins, int outs)
{
    (void)out;
    (void)ins;
    (void)outs;
    return 2.0 * (double)ct_tensor_count(&in[0]) * (double)in[1].shape[0];
}

const struct ct_op_type cpu_op_loss = {
    .name = "cpu.linear_cross_entropy",
    .summary = "linear_cross_entropy on packed weights: x, packed, labels -> loss",
    .infer = loss_infer,
    .flops = loss_flops,
};

static int three_outputs(const struct ct_op *op)
{
    (void)op;
    return 3;
}

static int loss_grad_infer(struct ct_op *op)
{
    const struct ct_value *x = op->in[1], *packed = op->in[2];
    struct ct_value *dx = op->out[0], *dw = op->out[1];

    dx->dtype = dw->dtype = x->dtype;
    dx->rank = x->rank;
    memcpy(dx->shape, x->shape, sizeof(dx->shape));
    dw->rank = 2;
    memcpy(dw->shape, packed->shape, sizeof(dw->shape));
    scalar_loss(op->out[2]);
    return 0;
}

static double loss_grad_flops(const struct ct_tensor *in, const struct ct_tensor *out, int ins,
                              int outs)
{
    return 3 * loss_flops(in + 1, out, ins, outs);
}

const struct ct_op_type cpu_op_loss_grad = {
    .name = "cpu.linear_cross_entropy_grad",
    .summary = "linear_cross_entropy_grad on packed weights: dloss, x, packed forward, packed "
               "backward, labels -> dx, dw, loss",
    .outputs = "dw loss",
    .flags = CT_OP_ANY_DTYPE,
    .count_outputs = three_outputs,
    .infer = loss_grad_infer,
    .flops = loss_grad_flops,
};

/* ---- the transform ---- */

struct packer {
    struct ct_graph *graph;
    struct ct_run *run;
    struct ct_builder before_microbatches;
};

/* What is packed for a weight: the value that a cast in `pre` reads, or the weight itself. */
struct source {
    struct ct_value *value;
    enum ct_dtype dtype; /* that the product sees */
};

static bool find_source(const struct ct_value *w, struct source *source)
{
    const struct ct_op *maker = w->producer;

    *source = (struct source){(struct ct_value *)w, w->dtype};
    if (!cpu_is_compute_dtype(w->dtype) || w->rank != 2 || w->opaque_bytes)
        return false;
    if (maker && maker->part != CT_PART_PRE)
        return false;
    if (maker && !strcmp(maker->type->name, "cast") && maker->in[0]->dtype == CT_F32)
        source->value = maker->in[0];
    return w->role != CT_ROLE_INPUT;
}

static void local_shape(const struct packer *p, const struct ct_value *v, int64_t *local)
{
    ct_sharding_local(&v->sharding, &p->graph->mesh, p->run->rank, v->rank, v->shape, local, NULL);
}

/* Can the weights lie in one packed matrix? Asks oneDNN. */
static int try_packing(const struct packer *p, enum cpu_use use, const struct source *source,
                       int count, size_t *bytes)
{
    int64_t n[CPU_MAX_WEIGHTS], stride[CPU_MAX_WEIGHTS], sum = 0, local[CT_MAX_RANK];
    struct cpu_packing *packing;
    struct cpu_packing_spec spec = {.use = use,
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

/* A pack op that is there already: the op was cloned (recomputation), or the weight is tied. */
static struct ct_value *find_packed(const struct packer *p, const struct pack_attrs *attrs,
                                    const struct source *source, int count)
{
    ct_for_each_op (op, p->graph) {
        const struct pack_attrs *a = op->attrs;

        if (op->type == &cpu_op_pack && !strcmp(a->use, attrs->use) &&
            !strcmp(a->dtype, attrs->dtype) && a->round == attrs->round &&
            equal_sources(op, source, count))
            return op->out[0];
    }
    return NULL;
}

static struct ct_value *emit_pack(struct packer *p, const struct pack_attrs *attrs,
                                  const struct source *source, int count, size_t bytes)
{
    struct ct_value *in[CPU_MAX_WEIGHTS], *packed;
    const char *name;

    for (int i = 0; i < count; i++)
        in[i] = source[i].value;
    name = ct_arena_printf(p->graph->arena, "%s.packed.%s", in[0]->name, attrs->use);
    packed = ct_emit1(&p->before_microbatches, "cpu.pack", name, in, count, attrs);
    if (packed) {
        packed->opaque_bytes = bytes;
        if (count == 1)
            packed->sharding = in[0]->sharding;
    }
    return packed;
}

/* The weights w, packed for a use; NULL where they had better stay as they are. */
static struct ct_value *packed_for(struct packer *p, enum cpu_use use, struct ct_value *const *w,
                                   int count)
{
    struct source source[CPU_MAX_WEIGHTS];
    struct pack_attrs attrs = {.use = use == CPU_FORWARD ? "forward" : "backward"};
    struct ct_value *packed;
    enum ct_dtype dtype;
    size_t bytes;

    if (count < 1 || count > CPU_MAX_WEIGHTS)
        return NULL;
    for (int i = 0; i < count; i++)
        if (!find_source(w[i], &source[i]) || source[i].dtype != source[0].dtype ||
            source[i].value->dtype != source[0].value->dtype)
            return NULL;
    dtype = cpu_packed_type(source->dtype);
    attrs.dtype = ct_dtype_name(dtype);
    attrs.round = dtype == CT_F32 && source->dtype == CT_BF16 && source->value->dtype == CT_F32;
    packed = find_packed(p, &attrs, source, count);
    if (packed)
        return packed;
    if (try_packing(p, use, source, count, &bytes) < 0)
        return NULL;
    return emit_pack(p, &attrs, source, count, bytes);
}

/* The op becomes its twin in place: its outputs keep their names and users. */
static void become(struct packer *p, struct ct_op *op, const struct ct_op_type *type,
                   struct ct_value *const *in, int ins, const void *attrs)
{
    struct ct_arena *arena = p->graph->arena;

    op->type = type;
    op->in = ct_arena_copy(arena, in, sizeof(*in) * (size_t)ins);
    op->ins = ins;
    op->attrs = type->attrs_size ? ct_arena_copy(arena, attrs, type->attrs_size) : NULL;
    op->why = "weights are packed once per step";
}

static void pack_linear(struct packer *p, struct ct_op *op)
{
    struct ct_value *packed = packed_for(p, CPU_FORWARD, op->in + 1, op->ins - 1);
    char *widths = NULL;

    if (!packed)
        return;
    for (int i = 0; i < op->outs; i++)
        widths = ct_arena_printf(p->graph->arena, "%s%s%lld", i ? widths : "", i ? "," : "",
                                 (long long)op->out[i]->shape[op->out[i]->rank - 1]);
    become(p, op, &cpu_op_linear, (struct ct_value *[]){op->in[0], packed}, 2,
           &(struct linear_attrs){widths});
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
        const char *type;
        void (*pack)(struct packer *, struct ct_op *);
    } twins[] = {{"linear", pack_linear},
                 {"linear_dx", pack_linear_dx},
                 {"linear_cross_entropy", pack_loss},
                 {"linear_cross_entropy_grad", pack_loss_grad}};
    struct packer p = {graph, run, ct_builder_at_end(graph, CT_PART_PRE, "")};

    if (!cpu_config.pack_weights || run->device_ops != &cpu_device_ops)
        return 0;
    p.before_microbatches.why = "weights are packed once per step";
    p.before_microbatches.before = graph->first;
    while (p.before_microbatches.before && p.before_microbatches.before->part <= CT_PART_PRE)
        p.before_microbatches.before = p.before_microbatches.before->next;
    ct_for_each_op (op, graph)
        for (size_t i = 0; ct_part_is_microbatch(op->part) && i < CT_COUNT(twins); i++)
            if (!strcmp(op->type->name, twins[i].type)) {
                twins[i].pack(&p, op);
                break;
            }
    ct_graph_sweep(graph);
    return p.before_microbatches.status;
}

const struct ct_transform cpu_pack_weights = {
    .name = "pack_weights",
    .summary = "weights in the layout of the CPU's matrix product, renewed once per step",
    .phase = CT_PHASE_FUSE,
    .evaluation = true,
    .apply = pack_weights,
};
