/*
 * Gradients travel in bfloat16 with [fsdp] reduce_dtype = bfloat16.
 *
 * Each reduction of a parameter's gradient over ranks that have other data is done in bfloat16, and
 * gets a cast in front of it and one behind it. Both are in its section. So a gradient that is
 * reduced once a step is cast when its sum over the microbatches is whole, and shards that are
 * reduced in each microbatch are added up in float32, before replicas sum them in bfloat16 again.
 *
 *   W     d.w (float32) -> cast -> reduce_scatter -> cast -> a shard, summed over the microbatches
 *   post  that sum -> cast -> all_reduce over replicas -> cast -> the gradient (float32)
 *
 * Reductions are found behind sums, casts, concatenations and other linear ops that do not add up
 * rows. In front of any other op a sum over ranks may be one of activations, and stays float32. The
 * optimizer, the gradient's norm and sums along other axes (tp, pp) see float32. Parameters of
 * a fixed dtype are left out: their gradients may be counts.
 */
#include <ctitan/core_ops.h>
#include <ctitan/error.h>

#include "fsdp.h"

/* ---- which reductions ---- */

struct reductions {
    ct_axes data; /* axes that split the inputs */
    bool *found;  /* by id of an output */
    size_t ids;
};

static bool is_found(const struct reductions *r, const struct ct_value *v)
{
    return v->id < r->ids && r->found[v->id];
}

static bool sums_gradients(const struct reductions *r, const struct ct_op *op)
{
    return fsdp_reduces(op) && op->in[0]->dtype == CT_F32 && ct_op_axes(op, "axes") & r->data;
}

static int64_t elements(const struct ct_value *v)
{
    return ct_shape_count(v->ndim, v->shape);
}

/* Whether v, of op, has the elements of input i. Sums over rows have more elements in front, which
   are activations. */
static bool has_elements(const struct ct_op *op, const struct ct_value *v, int i)
{
    if (!op->in[i])
        return false;
    if (fsdp_reduces(op))
        return op->out[i] == v;
    return op->type->collective ||
           (op->type->flags & CT_OP_LINEAR && elements(op->in[i]) <= elements(v));
}

/* Follow a gradient back through its reductions and linear ops. */
static void find_behind(const struct reductions *r, const struct ct_value *v)
{
    const struct ct_op *op = v->producer;

    if (!op || is_found(r, v))
        return;
    if (sums_gradients(r, op))
        r->found[v->id] = true;
    for (int i = 0; i < op->ins; i++)
        if (has_elements(op, v, i))
            find_behind(r, op->in[i]);
}

static void find_reductions(const struct ct_graph *graph, struct reductions *r)
{
    for (size_t i = 0; i < graph->value_count; i++) {
        const struct ct_value *v = graph->values[i];

        if (v->role == CT_ROLE_INPUT)
            r->data |= ct_sharding_axes(&v->sharding);
    }
    for (size_t i = 0; i < graph->value_count; i++) {
        const struct ct_value *v = graph->values[i];

        if (v->role == CT_ROLE_PARAM && v->grad && !v->dtype_fixed)
            find_behind(r, v->grad);
    }
}

/* ---- casts ---- */

static struct ct_value *cast_to(struct ct_builder *b, struct ct_value *v, enum ct_dtype dtype,
                                int stream)
{
    struct ct_value *y = ct_cast(
        b, ct_arena_printf(b->graph->arena, "%s.%s", v->name, ct_dtype_name(dtype)), v, dtype);

    if (y) {
        y->sharding = v->sharding;
        y->producer->stream = stream;
    }
    return y;
}

/* The input of op in bfloat16: cast where it is made, which frees the float32, or, if it is a sum
   over the microbatches, in front of op. */
static struct ct_value *narrow(struct ct_graph *graph, struct ct_op *op, struct ct_value *v)
{
    struct ct_op *maker = v->producer;
    bool here = maker && maker->section == op->section;
    struct ct_builder b = here ? ct_builder_after(graph, maker) : ct_builder_before(graph, op);

    if (here && maker->type == &ct_op_cast && maker->in[0]->dtype == CT_BF16)
        return maker->in[0];
    b.why = "fsdp: reduce_dtype";
    b.marks = op->marks;
    return cast_to(&b, v, CT_BF16, here ? maker->stream : op->stream);
}

/* Make `out`, in float32, of the reduction's output. */
static int widen(struct ct_graph *graph, struct ct_op *reduction, int i, struct ct_value *out)
{
    struct ct_builder b = ct_builder_after(graph, reduction);
    struct ct_value *wide;

    reduction->out[i]->sharding = out->sharding;
    ct_value_rename(graph, reduction->out[i],
                    ct_arena_printf(graph->arena, "%s.bfloat16", out->name));
    b.why = "fsdp: reduce_dtype";
    b.marks = reduction->marks;
    wide = cast_to(&b, reduction->out[i], CT_F32, reduction->stream);
    if (wide)
        ct_op_set_output(wide->producer, 0, out);
    return b.status;
}

/* A reduction as op, of some of its values. */
static struct ct_op *emit_part(struct ct_graph *graph, struct ct_op *op, struct ct_value *const *in,
                               int count)
{
    struct ct_builder b = ct_builder_before(graph, op);
    struct ct_op *part;

    b.why = op->why;
    b.marks = op->marks;
    part = ct_emit_type(&b, op->type, NULL, in, count, op->attrs);
    if (part)
        part->stream = op->stream;
    return part;
}

/* Values of the bucket that were not found stay in a reduction of their own. */
static int reduce_narrow(struct ct_graph *graph, const struct reductions *r, struct ct_op *op)
{
    struct ct_value **in = ct_arena_array(graph->arena, struct ct_value *, op->ins);
    struct ct_value **out = ct_arena_array(graph->arena, struct ct_value *, op->ins);
    int count = 0, others = op->ins, rc = 0;
    struct ct_op *part;

    for (int i = 0; i < op->ins; i++) {
        bool found = is_found(r, op->out[i]);
        int at = found ? count++ : --others;

        in[at] = found ? narrow(graph, op, op->in[i]) : op->in[i];
        out[at] = op->out[i];
        if (!in[at])
            return CT_EINVAL;
    }
    part = emit_part(graph, op, in, count);
    for (int i = 0; part && rc == 0 && i < count; i++)
        rc = widen(graph, part, i, out[i]);
    if (part && count < op->ins) {
        part = emit_part(graph, op, in + count, op->ins - count);
        for (int i = count; part && i < op->ins; i++)
            ct_op_set_output(part, i - count, out[i]);
    }
    ct_graph_remove(graph, op);
    return part ? rc : CT_EINVAL;
}

static bool has_found(const struct reductions *r, const struct ct_op *op)
{
    for (int i = 0; i < op->outs; i++)
        if (is_found(r, op->out[i]))
            return true;
    return false;
}

int fsdp_reduce_dtype(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct reductions r = {.ids = graph->value_count};
    int rc = 0;

    (void)run;
    if (fsdp_config.reduce_dtype != FSDP_REDUCE_BFLOAT16)
        return 0;
    r.found = ct_arena_array(&scratch, bool, r.ids);
    find_reductions(graph, &r);
    ct_for_each_op_safe (op, graph)
        if (rc == 0 && op->type->collective && has_found(&r, op))
            rc = reduce_narrow(graph, &r, op);
    ct_graph_sweep(graph); /* casts to float32 and back */
    ct_arena_finish(&scratch);
    return rc;
}
