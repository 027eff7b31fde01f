/*
 * Largest magnitudes that the op which writes the numbers finds, so that no pass of its own reads
 * them.
 *
 * NAME.largest is an op type that does what NAME does, and gives the largest magnitudes of the rows
 * of its first outputs, as these are stored. A device declares that it can do so by a kernel of
 * that name. Types of other plugins are found by their names, too; they must have all in-place
 * pairs of NAME.
 *
 * The transform comes after fuse, whose ops keep their pass. A pass stays, too, if it is in another
 * section, if a collective or a view lies between, or if numbers are read for magnitudes of columns
 * anyway.
 */
#include <math.h>
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/lib/norm.h>
#include <ctitan/op_author.h>

#include "float8.h"

#define SUFFIX ".largest"

/* ---- op types ---- */

/* Whether the names are NAME.largest and NAME. */
static bool is_named_after(const struct ct_op_type *writer, const struct ct_op_type *type)
{
    size_t length = strlen(type->name);

    return !strncmp(writer->name, type->name, length) && !strcmp(writer->name + length, SUFFIX);
}

static const struct ct_op_type *type_behind(const struct ct_op_type *writer)
{
    const struct ct_op_type *type;

    for (size_t i = 0; (type = ct_op_at(i)); i++)
        if (is_named_after(writer, type))
            return type;
    return NULL;
}

static double largest_of_row(const struct ct_tensor *t, int64_t row)
{
    int64_t columns = ct_columns(t);
    double most = 0;

    for (int64_t i = row * columns; i < (row + 1) * columns; i++)
        most = fmax(most, fabs(ct_tensor_load(t, i)));
    return most;
}

/* The call of the type behind, whose outputs are the first ones. op: room. */
static int call_behind(const struct ct_launch *l, struct ct_op *op, struct ct_launch *behind)
{
    *op = *l->op;
    op->type = type_behind(op->type);
    if (!op->type)
        return ct_fail(CT_ENOENT, "%s has no op type without %s", l->op->type->name, SUFFIX);
    op->outs = ct_op_count_outputs(op);
    *behind = *l;
    behind->op = op;
    behind->outs = op->outs;
    return 0;
}

/* The outputs anew, in the arena: not added to what was there. */
static int compute_alone(struct ct_launch behind, struct ct_arena *arena, struct ct_tensor *out)
{
    for (int i = 0; i < behind.outs; i++) {
        const struct ct_tensor *t = &behind.out[i];
        size_t bytes = (size_t)ct_tensor_count(t) * ct_dtype_size(t->dtype);

        out[i] = ct_tensor_dense(ct_arena_array(arena, double, bytes / sizeof(double) + 1),
                                 t->dtype, t->ndim, t->shape);
    }
    behind.out = out;
    behind.accumulate = 0;
    return behind.op->type->reference(&behind);
}

static int largest_reference(const struct ct_launch *l)
{
    struct ct_arena arena = {0};
    struct ct_tensor *out = ct_arena_array(&arena, struct ct_tensor, l->outs);
    struct ct_launch behind = {0};
    struct ct_op op;
    int rc = call_behind(l, &op, &behind);

    if (rc == 0)
        rc = compute_alone(behind, &arena, out);
    for (int k = behind.outs; rc == 0 && k < l->outs; k++)
        for (int64_t row = 0; row < ct_tensor_count(&l->out[k]); row++) {
            double before = l->accumulate >> k & 1 ? ct_tensor_load(&l->out[k], row) : 0;

            ct_tensor_store(&l->out[k], row, before + largest_of_row(&out[k - op.outs], row));
        }
    ct_arena_finish(&arena);
    return rc == 0 ? op.type->reference(&behind) : rc;
}

#define WRITER(of)                                                                                 \
    .size = sizeof(struct ct_op_type), .name = of SUFFIX,                                          \
    .summary = of ", and the largest magnitudes of rows", .reference = largest_reference
#define NORM .attrs = ct_rms_norm_attrs, .attrs_size = sizeof(struct ct_rms_norm)

const struct ct_op_type float8_op_writers[] = {
    {
        WRITER("rms_norm"),
        NORM,
        .signature = "x[.K] T, w[K] T -> y[.K] T, rstd[.] W, largest[.] f",
        .samples = "eps=0.01 offset=1: real[2,4,6] real[6]",
    },
    {
        WRITER("add_rms_norm"),
        NORM,
        .signature = "x[.K] T, r[.K] T, w[K] T -> y[.K] T, sum[.K] T, rstd[.] W, largest[.] f",
        .samples = "eps=0.01: real[2,4,6] real[2,4,6] real[6]",
    },
    {
        WRITER("rms_norm_grad"),
        .signature = "dy[.K] T, x[.K] T, w[K] T, rstd[.] W, ?dres[.K] T"
                     " -> dx[.K] T, dw[K] T, largest[.] f",
        .flags = CT_OP_ANY_DTYPE,
        .attrs = ct_rms_norm_grad_attrs,
        .attrs_size = sizeof(struct ct_rms_norm_grad),
        .samples = "real[2,4,6] real[2,4,6] real[6] statistic[2,4] real[2,4,6];"
                   " offset=1: real[2,4,6] real[2,4,6] real[6] statistic[2,4] -",
    },
    {
        WRITER("swiglu"),
        .signature = "gate[.k] T, up[.k] T -> y[.k] T, largest[.] f max",
        .samples = "real[2,4,6] real[2,4,6]",
    },
    {
        WRITER("swiglu_grad"),
        .signature = "dy[.k] T, gate[.k] T, up[.k] T"
                     " -> dgate[.k] T, dup[.k] T, largest_gate[.] f max, largest_up[.] f max",
        .inplace = (const int8_t[][2]){{0, 1}, {1, 2}, {-1, -1}},
        .samples = "real[2,4,6] real[2,4,6] real[2,4,6]",
    },
};

/* ---- the transform ---- */

static bool has_pair(const struct ct_op_type *type, const int8_t *pair)
{
    for (int i = 0; type->inplace && type->inplace[i][0] >= 0; i++)
        if (!memcmp(type->inplace[i], pair, sizeof(*type->inplace)))
            return true;
    return false;
}

/* Whether outputs of the writer may lie wherever those of the type may: else memory would grow. */
static bool has_pairs_of(const struct ct_op_type *writer, const struct ct_op_type *type)
{
    for (int i = 0; type->inplace && type->inplace[i][0] >= 0; i++)
        if (!has_pair(writer, type->inplace[i]))
            return false;
    return true;
}

/* NULL: none, or the device has no kernel for it. */
static const struct ct_op_type *writer_of(const struct ct_op_type *type)
{
    const struct ct_op_type *writer;

    for (size_t i = 0; (writer = ct_op_at(i)); i++)
        if (is_named_after(writer, type) && has_pairs_of(writer, type))
            return ct_device_runs(writer, 0) ? writer : NULL;
    return NULL;
}

static bool is_whole(const struct ct_op *amax)
{
    return ct_shape_count(amax->out[0]->ndim, amax->out[0]->shape) == 1;
}

static bool is_by_row(const struct ct_op *amax)
{
    const struct ct_value *v = amax->in[0], *out = amax->out[0];

    return out->ndim == v->ndim && out->shape[v->ndim - 1] == 1 &&
           !memcmp(out->shape, v->shape, sizeof(*v->shape) * (size_t)(v->ndim - 1));
}

/* Whether float8_lay_out finds those of rows in the reading of v for columns. */
static bool is_read_by_column(const struct ct_value *v)
{
    ct_for_each_use (use, v)
        if (use->op->type == &float8_op_amax && !is_whole(use->op) && !is_by_row(use->op))
            return true;
    return false;
}

/* Whether the use finds largest magnitudes that follow from those of rows, where v is written. */
static bool is_pass(const struct ct_use *use, const struct ct_value *v)
{
    const struct ct_op *op = use->op;

    return op->type == &float8_op_amax && op->section == v->producer->section &&
           (is_whole(op) || (is_by_row(op) && !is_read_by_column(v)));
}

static struct ct_op *pass_over(const struct ct_value *v)
{
    ct_for_each_use (use, v)
        if (is_pass(use, v))
            return use->op;
    return NULL;
}

static bool has_pass(const struct ct_op *op)
{
    for (int i = 0; i < op->outs; i++)
        if (pass_over(op->out[i]))
            return true;
    return false;
}

/* Where columns are split, those of a shard: a pending maximum. */
static struct ct_sharding row_sharding(const struct ct_value *v)
{
    struct ct_sharding s = v->sharding;
    int last = v->ndim - 1;

    for (int i = 0; i < s.count[last]; i++)
        s.unreduced |= (ct_axes)1 << s.axis[last][i];
    s.count[last] = 0;
    s.reduction = CT_REDUCE_MAX;
    return s;
}

static void read_instead(struct ct_graph *graph, struct ct_value *v, struct ct_value *largest)
{
    struct ct_op *pass;

    largest->sharding = row_sharding(v);
    ct_value_rename(graph, largest, ct_arena_printf(graph->arena, "%s.largest", v->name));
    while ((pass = pass_over(v))) {
        const struct ct_value *out = pass->out[0];

        if (is_whole(pass))
            ct_op_set_inputs(graph, pass, &largest, 1);
        else
            ct_op_become(graph, pass, &ct_op_view, &largest, 1,
                         &(struct ct_view){ct_shape_of(out->ndim, out->shape)});
    }
}

static int replace_writer(struct ct_graph *graph, struct ct_op *op, const struct ct_op_type *type)
{
    struct ct_builder b = ct_builder_before(graph, op);
    struct ct_op *writer;
    int outs = op->outs;

    b.why = "float8: finds largest magnitudes, too";
    b.marks = op->marks;
    writer = ct_emit_type(&b, type, op->out[0]->name, op->in, op->ins, op->attrs);
    if (!writer)
        return b.status;
    for (int i = 0; i < outs; i++)
        ct_op_set_output(writer, i, op->out[i]);
    ct_graph_remove(graph, op);
    for (int k = outs; k < writer->outs; k++)
        read_instead(graph, writer->out[k - outs], writer->out[k]);
    return 0;
}

int float8_find_where_written(struct ct_graph *graph, struct ct_run *run)
{
    int rc = 0;

    (void)run;
    ct_for_each_op_safe (op, graph) {
        const struct ct_op_type *type = has_pass(op) ? writer_of(op->type) : NULL;

        if (rc == 0 && type)
            rc = replace_writer(graph, op, type);
    }
    return rc;
}
