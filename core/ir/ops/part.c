/*
 * Parts of a value along one unsplit dimension: narrow takes one out, pad puts one among
 * zeros, concat joins several.
 */
#include <inttypes.h>
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/op_author.h>
#include <ctitan/rule.h>

static int check_dim(const struct ct_value *x, int64_t dim)
{
    return dim < x->ndim ? 0
                         : ct_fail(CT_EINVAL, "dim = %" PRId64 ", but x %%%s has %d dimensions",
                                   dim, x->name, x->ndim);
}

/* Dimension dim is whole on every rank; all others are parallel. */
static int part_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    int dim = (int)ct_op_int(op, "dim"), ndim = op->in[0]->ndim, count = op->ins + op->outs;

    rule->factor = ct_arena_array(arena, struct ct_factor, ndim + count);
    rule->count = ndim + count - 1;
    for (int f = 0; f < rule->count; f++)
        rule->factor[f] = (struct ct_factor){.letter = '.', .repetition = -1, .index = f};
    for (int i = 0; i < count; i++) {
        const struct ct_value *v = i < op->ins ? op->in[i] : op->out[i - op->ins];

        rule->operand[i].ndim = ndim;
        for (int d = 0; d < ndim; d++) {
            int f = d != dim ? d : i ? ndim + i - 1 : dim;

            rule->operand[i].factor[d] = f;
            rule->factor[f].kind = d == dim ? CT_FACTOR_WHOLE : CT_FACTOR_PARALLEL;
            rule->factor[f].size = v->shape[d];
            rule->factor[f].operand = d == dim ? i : 0;
        }
    }
    return 0;
}

static int copy_parts(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct ct_tensor *whole = l->ins == 1 ? l->in : l->out;

    for (int i = 0, dim; i < l->ins; i++) {
        const struct ct_tensor *part = l->ins == 1 ? l->out : l->in + i;
        int64_t from = l->op->type->part(l->op, l->mesh, l->rank, i, &dim);
        int64_t inner = ct_shape_count(whole->ndim - dim - 1, whole->shape + dim + 1);
        size_t elements = (size_t)(part->shape[dim] * inner);

        for (int64_t k = 0; k < ct_shape_count(dim, whole->shape); k++) {
            int64_t there = (k * whole->shape[dim] + from) * inner, here = k * (int64_t)elements;

            if (l->ins == 1)
                memcpy(r.out[0] + here, r.in[0] + there, sizeof(double) * elements);
            else
                memcpy(r.out[0] + there, r.in[i] + here, sizeof(double) * elements);
        }
    }
    return ct_reference_end(&r, 0);
}

#define DIM(T) CT_OPT_INT(T, dim, "dim", "0", 0, CT_MAX_DIMS - 1, "Along this dimension")

/* ---- narrow ---- */

static int narrow_infer(struct ct_op *op)
{
    const struct ct_narrow *attrs = op->attrs;
    const struct ct_value *x = op->in[0];
    struct ct_value *y = op->out[0];

    if (check_dim(x, attrs->dim) < 0)
        return CT_EINVAL;
    if (attrs->from < 0 || attrs->size < 0 || attrs->from > x->shape[attrs->dim] - attrs->size)
        return ct_fail(CT_EINVAL,
                       "%" PRId64 " from %" PRId64 " on: dimension %" PRId64
                       " of x %%%s has %" PRId64,
                       attrs->size, attrs->from, attrs->dim, x->name, x->shape[attrs->dim]);
    y->ndim = x->ndim;
    memcpy(y->shape, x->shape, sizeof(y->shape));
    y->shape[attrs->dim] = attrs->size;
    return 0;
}

static int64_t narrow_part(const struct ct_op *op, const struct ct_mesh *mesh, int64_t rank, int i,
                           int *dim)
{
    const struct ct_narrow *attrs = op->attrs;

    (void)mesh, (void)rank, (void)i;
    *dim = (int)attrs->dim;
    return attrs->from;
}

static int narrow_vjp(struct ct_vjp *v)
{
    const struct ct_narrow *attrs = v->op->attrs;

    if (v->wanted[0])
        v->din[0] = ct_pad(v->b, ct_gradient_name(v, 0), v->dout[0], (int)attrs->dim, attrs->from,
                           v->op->in[0]->shape[attrs->dim]);
    return v->b->status;
}

const struct ct_op_type ct_op_narrow = {
    .size = sizeof(struct ct_op_type),
    .name = "narrow",
    .summary = "a part of a dimension",
    .signature = "x A -> y A",
    .flags = CT_OP_LINEAR,
    .attrs =
        (const struct ct_option[]){
            DIM(struct ct_narrow),
            CT_OPT_INT(struct ct_narrow, from, "from", "0", 0, 0x1p62, "Its first index"),
            CT_OPT_INT(struct ct_narrow, size, "size", "1", 0, 0x1p62, "How many"),
            {0}},
    .attrs_size = sizeof(struct ct_narrow),
    .infer = narrow_infer,
    .factors = part_factors,
    .vjp = narrow_vjp,
    .reference = copy_parts,
    .collective = &ct_collective_narrow,
    .part = narrow_part,
    .samples = "dim=1 from=1 size=2: real[2,4,3];"
               " from=1 size=0: real[2]",
};

struct ct_value *ct_narrow(struct ct_builder *b, const char *name, struct ct_value *x, int dim,
                           int64_t from, int64_t size)
{
    return ct_emit_type1(b, &ct_op_narrow, name, &x, 1, &(struct ct_narrow){dim, from, size});
}

/* ---- pad ---- */

static int pad_infer(struct ct_op *op)
{
    const struct ct_pad *attrs = op->attrs;
    const struct ct_value *x = op->in[0];
    struct ct_value *y = op->out[0];

    if (check_dim(x, attrs->dim) < 0)
        return CT_EINVAL;
    if (attrs->from < 0 || attrs->from > attrs->size - x->shape[attrs->dim])
        return ct_fail(CT_EINVAL,
                       "dimension %" PRId64 " of x %%%s has %" PRId64 ": it does not fit into "
                       "%" PRId64 " from %" PRId64 " on",
                       attrs->dim, x->name, x->shape[attrs->dim], attrs->size, attrs->from);
    y->ndim = x->ndim;
    memcpy(y->shape, x->shape, sizeof(y->shape));
    y->shape[attrs->dim] = attrs->size;
    return 0;
}

static int pad_vjp(struct ct_vjp *v)
{
    const struct ct_pad *attrs = v->op->attrs;

    if (v->wanted[0])
        v->din[0] = ct_narrow(v->b, ct_gradient_name(v, 0), v->dout[0], (int)attrs->dim,
                              attrs->from, v->op->in[0]->shape[attrs->dim]);
    return v->b->status;
}

static int pad_reference(const struct ct_launch *l)
{
    const struct ct_pad *attrs = l->op->attrs;
    struct ct_reference r = ct_reference_begin(l);
    const struct ct_tensor *x = l->in, *y = l->out;
    int64_t inner = ct_shape_count(x->ndim - (int)attrs->dim - 1, x->shape + attrs->dim + 1);
    int64_t run = x->shape[attrs->dim] * inner;

    for (int64_t k = 0; k < ct_shape_count((int)attrs->dim, x->shape); k++)
        memcpy(r.out[0] + (k * y->shape[attrs->dim] + attrs->from) * inner, r.in[0] + k * run,
               sizeof(double) * (size_t)run);
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_pad = {
    .size = sizeof(struct ct_op_type),
    .name = "pad",
    .summary = "a dimension with zeros before and behind it",
    .signature = "x A -> y A",
    .flags = CT_OP_LINEAR,
    .attrs =
        (const struct ct_option[]){
            DIM(struct ct_pad),
            CT_OPT_INT(struct ct_pad, from, "from", "0", 0, 0x1p62, "Where x begins"),
            CT_OPT_INT(struct ct_pad, size, "size", "1", 0, 0x1p62, "Indices, with the zeros"),
            {0}},
    .attrs_size = sizeof(struct ct_pad),
    .infer = pad_infer,
    .factors = part_factors,
    .vjp = pad_vjp,
    .reference = pad_reference,
    .collective = &ct_collective_pad,
    .samples = "dim=1 from=1 size=5: real[2,3,4];"
               " from=2 size=4: real[2,3]; dim=1 size=4: real[3,2]; size=2: real[2]",
};

struct ct_value *ct_pad(struct ct_builder *b, const char *name, struct ct_value *x, int dim,
                        int64_t from, int64_t size)
{
    return ct_emit_type1(b, &ct_op_pad, name, &x, 1, &(struct ct_pad){dim, from, size});
}

/* ---- concat ---- */

static int concat_infer(struct ct_op *op)
{
    int64_t dim = ((const struct ct_concat *)op->attrs)->dim;
    const struct ct_value *x = op->in[0];
    struct ct_value *y = op->out[0];

    if (check_dim(x, dim) < 0)
        return CT_EINVAL;
    y->ndim = x->ndim;
    memcpy(y->shape, x->shape, sizeof(y->shape));
    for (int i = 1; i < op->ins; i++) {
        const struct ct_value *other = op->in[i];

        for (int d = 0; d < x->ndim || d < other->ndim; d++)
            if (x->ndim != other->ndim || (d != dim && other->shape[d] != x->shape[d]))
                return ct_fail(CT_EINVAL, "x %%%s and %%%s differ in more than dimension %" PRId64,
                               x->name, other->name, dim);
        y->shape[dim] += other->shape[dim];
    }
    return 0;
}

static int64_t concat_part(const struct ct_op *op, const struct ct_mesh *mesh, int64_t rank, int i,
                           int *dim)
{
    int64_t at = 0;

    (void)mesh, (void)rank;
    *dim = (int)((const struct ct_concat *)op->attrs)->dim;
    while (i-- > 0)
        at += op->in[i]->shape[*dim];
    return at;
}

static int concat_vjp(struct ct_vjp *v)
{
    int dim = (int)((const struct ct_concat *)v->op->attrs)->dim;
    int64_t at = 0;

    for (int i = 0; i < v->op->ins; at += v->op->in[i++]->shape[dim])
        if (v->wanted[i])
            v->din[i] = ct_narrow(v->b, ct_gradient_name(v, i), v->dout[0], dim, at,
                                  v->op->in[i]->shape[dim]);
    return v->b->status;
}

const struct ct_op_type ct_op_concat = {
    .size = sizeof(struct ct_op_type),
    .name = "concat",
    .summary = "values one behind the other along a dimension",
    .signature = "*x A -> y A",
    .flags = CT_OP_LINEAR,
    .attrs = (const struct ct_option[]){DIM(struct ct_concat), {0}},
    .attrs_size = sizeof(struct ct_concat),
    .infer = concat_infer,
    .factors = part_factors,
    .vjp = concat_vjp,
    .reference = copy_parts,
    .collective = &ct_collective_concat,
    .part = concat_part,
    .samples = "dim=1: real[2,4,3] real[2,1,3] real[2,2,3];"
               " real[2]",
};

struct ct_value *ct_concat(struct ct_builder *b, const char *name, struct ct_value *const *x,
                           int count, int dim)
{
    return ct_emit_type1(b, &ct_op_concat, name, x, count, &(struct ct_concat){dim});
}
