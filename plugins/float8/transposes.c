/*
 * Operands in the layout that products read, on devices with kernels for it: those that are summed
 * over along their rows are stored transposed.
 *
 * The cast that makes an operand writes its transpose too, where nothing lies between: a collective
 * moves straight codes, and these are transposed behind it, once for all products. Where the
 * straight codes are for products of the cast's own section alone, as those of an input are for the
 * forward, the transpose is kept for the backward instead of them. Otherwise they are kept anyway,
 * for layers that are computed again, and are transposed in front of the first product that needs
 * it. A weight that is cast once a step is transposed once a step.
 *
 * All of it happens when everything else has been decided, so it changes no sharding, nothing of
 * what is computed again, and no collective.
 */
#include <string.h>

#include "float8.h"

struct laying {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct ct_value **transposed; /* by id of what they are the transposes of */
    size_t room;
    int status;
};

/* Where the transpose of v is noted. Values are made on the way, so the array grows; a place is
   written before the next is asked for. */
static struct ct_value **transposed_of(struct laying *l, const struct ct_value *v)
{
    if (v->id >= l->room) {
        struct ct_value **old = l->transposed;
        size_t room = 2 * ((size_t)v->id + 1);

        l->transposed = ct_arena_array(&l->scratch, struct ct_value *, room);
        if (old)
            memcpy(l->transposed, old, l->room * sizeof(struct ct_value *));
        l->room = room;
    }
    return &l->transposed[v->id];
}

/* The products whose operands are not blocks. */
static bool is_product(const struct ct_op *op)
{
    return (op->type == &float8_op_linear || op->type == &float8_op_dx ||
            op->type == &float8_op_dw) &&
           op->ins >= 4 && !((const struct float8_product *)op->attrs)->block;
}

static bool wants_transposed(const struct ct_op *op, int input)
{
    return is_product(op) &&
           ((op->type == &float8_op_dx && input == 1) || (op->type == &float8_op_dw && input <= 1));
}

static bool is_once_a_step(const struct ct_section *section)
{
    return section->part == CT_PART_PRE;
}

/* ---- casts ---- */

/* Whether the cast of q may write the transpose: then no other section keeps the straight codes
   beside it, but for a cast that is made once a step. */
static bool may_write(const struct ct_value *q)
{
    const struct ct_op *cast = q->producer;

    if (!cast || cast->type != &float8_op_quantise || q->fetch_count)
        return false;
    ct_for_each_use (use, q)
        if (!wants_transposed(use->op, use->index) && use->op->section != cast->section &&
            !is_once_a_step(cast->section))
            return false;
    return true;
}

static bool is_needed_straight(const struct ct_value *q)
{
    ct_for_each_use (use, q)
        if (!wants_transposed(use->op, use->index))
            return true;
    return false;
}

static struct ct_sharding transposed_sharding(const struct ct_value *q)
{
    struct ct_sharding s = q->sharding;

    for (int d = 0; d < q->ndim; d++) {
        int from = d ? d - 1 : q->ndim - 1;

        s.count[d] = q->sharding.count[from];
        memcpy(s.axis[d], q->sharding.axis[from], sizeof(s.axis[d]));
    }
    return s;
}

/* `by` takes the place of old; a sweep drops what made old. */
static void take_over(struct laying *l, struct ct_value *old, struct ct_value *by)
{
    const char *name = old->name;

    by->sharding = old->sharding;
    by->marks = old->marks;
    ct_value_replace(l->graph, old, by);
    ct_value_rename(l->graph, old, "replaced");
    ct_value_rename(l->graph, by, name);
}

static struct ct_value *write_both(struct laying *l, struct ct_builder *b, struct ct_value *q)
{
    struct ct_op *op =
        ct_emit_type(b, &float8_op_quantise_both, q->name, q->producer->in, 2, q->producer->attrs);

    if (!op)
        return NULL;
    op->out[1]->sharding = transposed_sharding(q);
    *transposed_of(l, op->out[0]) = op->out[1];
    take_over(l, q, op->out[0]);
    return op->out[1];
}

static struct ct_value *write_one(struct laying *l, struct ct_builder *b, struct ct_value *q,
                                  const struct ct_op_type *type)
{
    bool cast = type == &float8_op_quantise_transposed;
    const char *name = ct_arena_printf(l->graph->arena, "%s.transposed", q->name);
    struct ct_value *transposed = ct_emit_type1(b, type, name, cast ? q->producer->in : &q,
                                                cast ? 2 : 1, cast ? q->producer->attrs : NULL);

    if (transposed)
        transposed->sharding = transposed_sharding(q);
    return transposed;
}

static struct ct_value *write_by_cast(struct laying *l, struct ct_value *q)
{
    struct ct_builder b = ct_builder_before(l->graph, q->producer);
    struct ct_value *transposed;

    b.why = "float8: a cast writes what products read";
    b.marks = q->producer->marks;
    transposed = is_needed_straight(q) ? write_both(l, &b, q)
                                       : write_one(l, &b, q, &float8_op_quantise_transposed);
    l->status = b.status;
    return transposed;
}

/* ---- rows and columns with scales of their own ---- */

static struct ct_op *made_by(const struct ct_value *v, const struct ct_op_type *type)
{
    return v->producer && v->producer->type == type ? v->producer : NULL;
}

/* Largest magnitudes that the cast's scales follow from, with no collective between; NULL: none. */
static struct ct_op *amax_behind(const struct ct_op *cast)
{
    struct ct_op *scale = made_by(cast->in[1], &float8_op_scale);
    struct ct_op *amax = scale ? made_by(scale->in[0], &float8_op_amax) : NULL;

    return amax && amax->in[0] == cast->in[0] ? amax : NULL;
}

static bool has_grid(const struct ct_value *x, const struct ct_value *grid, bool rows)
{
    for (int d = 0; d < x->ndim; d++)
        if (grid->shape[d] != ((d + 1 < x->ndim) == rows ? x->shape[d] : 1))
            return false;
    return grid->ndim == x->ndim;
}

/* Whether a cast of rows (or of columns) makes codes for products that read that layout alone. */
static bool is_cast(const struct ct_op *op, bool rows)
{
    if (op->type != &float8_op_quantise || !has_grid(op->in[0], op->in[1], rows) ||
        !amax_behind(op) || op->out[0]->fetch_count || !op->out[0]->use_count)
        return false;
    ct_for_each_use (use, op->out[0])
        if (wants_transposed(use->op, use->index) == rows)
            return false;
    return true;
}

/* Whether the cast of columns may be made beside `first`, the cast of rows. From the forward, the
   backward then keeps the transpose in place of the numbers, so nothing else may need these there.
   Gradients are not asked: part W follows I at once in most schedules. Where it needs the numbers,
   too (a bias), the transpose waits beside them, a byte for each element, and saves a reading. */
static bool may_be_earlier(const struct ct_op *cast, const struct ct_op *first)
{
    const struct ct_op *amax = amax_behind(cast);

    if (cast->section->group != first->section->group || cast->section->part < first->section->part)
        return false;
    if (first->section->part != CT_PART_F || cast->section == first->section)
        return true;
    ct_for_each_use (use, cast->in[0])
        if (use->op != cast && use->op != amax && use->op->section != first->section)
            return false;
    return true;
}

static bool have_same_rules(const struct ct_op *cast, const struct ct_op *other)
{
    const struct float8_quantise *codes = cast->attrs, *other_codes = other->attrs;
    const struct float8_scale *scale = cast->in[1]->producer->attrs,
                              *other_scale = other->in[1]->producer->attrs;

    return codes->dtype == other_codes->dtype && scale->largest == other_scale->largest &&
           scale->rule == other_scale->rule;
}

/* The cast of columns that takes the numbers of this cast of rows, by the same rules; NULL: none.
 */
static struct ct_op *sibling(const struct ct_op *rows)
{
    ct_for_each_use (use, rows->in[0])
        if (is_cast(use->op, false) && may_be_earlier(use->op, rows) &&
            have_same_rules(use->op, rows))
            return use->op;
    return NULL;
}

/* One reading for all scales, and one for both casts. */
static void join_casts(struct laying *l, struct ct_op *rows, struct ct_op *columns)
{
    struct ct_value *of_rows = rows->in[1], *of_columns = columns->in[1];
    struct ct_builder b = ct_builder_before(l->graph, of_rows->producer);
    struct ct_op *scales, *casts = NULL;

    b.why = "float8: one reading for rows and columns";
    b.marks = rows->marks;
    scales = ct_emit_type(&b, &float8_op_line_scales, of_rows->name, rows->in, 1,
                          of_rows->producer->attrs);
    if (scales) {
        scales->out[1]->sharding = of_rows->sharding;
        scales->out[3]->sharding = of_columns->sharding;
        take_over(l, of_rows, scales->out[0]);
        take_over(l, of_columns, scales->out[2]);
        b.before = rows;
        casts = ct_emit_type(&b, &float8_op_quantise_both, rows->out[0]->name,
                             (struct ct_value *[]){rows->in[0], scales->out[0], scales->out[2]}, 3,
                             rows->attrs);
    }
    l->status = b.status;
    if (!casts)
        return;
    casts->out[1]->sharding = transposed_sharding(columns->out[0]);
    take_over(l, rows->out[0], casts->out[0]);
    *transposed_of(l, columns->out[0]) = casts->out[1];
}

static void join_all_casts(struct laying *l)
{
    ct_for_each_op (op, l->graph) {
        struct ct_op *columns = l->status == 0 && is_cast(op, true) ? sibling(op) : NULL;

        if (columns && !*transposed_of(l, columns->out[0]))
            join_casts(l, op, columns);
    }
}

/* ---- maxima of rows and columns, where ranks agree on some ---- */

static bool finds_maxima(const struct ct_op *op, bool rows)
{
    return op->type == &float8_op_amax && op->out[0]->use_count &&
           has_grid(op->in[0], op->out[0], rows);
}

/* The op that finds the maxima of the other lines of the same numbers; NULL: none. */
static struct ct_op *other_maxima(const struct ct_op *op, bool rows)
{
    ct_for_each_use (use, op->in[0])
        if (finds_maxima(use->op, !rows) && use->op->section->group == op->section->group)
            return use->op;
    return NULL;
}

/* first: in the graph. Its maxima may be for a later section than the other's. */
static void join_maxima(struct laying *l, struct ct_op *first, struct ct_op *other, bool rows)
{
    struct ct_builder b = ct_builder_before(l->graph, first);
    struct ct_op *both;

    if (other->section->part < first->section->part)
        b.section = other->section;
    b.why = "float8: one reading for the magnitudes of rows and columns";
    b.marks = first->marks;
    both = ct_emit_type(&b, &float8_op_amax_both, first->out[0]->name, first->in, 1, NULL);
    l->status = b.status;
    if (!both)
        return;
    take_over(l, first->out[0], both->out[!rows]);
    take_over(l, other->out[0], both->out[rows]);
}

/* Behind join_all_casts, which leaves those whose casts are apart. */
static void join_all_maxima(struct laying *l)
{
    ct_for_each_op (op, l->graph) {
        bool rows = finds_maxima(op, true);
        struct ct_op *other =
            l->status == 0 && (rows || finds_maxima(op, false)) ? other_maxima(op, rows) : NULL;

        if (other)
            join_maxima(l, op, other, rows);
    }
}

/* ---- codes that are transposed ---- */

static struct ct_value *transpose(struct laying *l, struct ct_op *op, struct ct_value *q)
{
    bool once = q->producer && is_once_a_step(q->producer->section);
    struct ct_builder b =
        once ? ct_builder_after(l->graph, q->producer) : ct_builder_before(l->graph, op);
    struct ct_value *transposed;

    b.why = "float8: codes are transposed for products";
    transposed = write_one(l, &b, q, &float8_op_transpose);
    l->status = b.status;
    return transposed;
}

/* Whether v is made before op in each microbatch. */
static bool is_there(const struct ct_value *v, const struct ct_op *op)
{
    const struct ct_section *made = v->producer->section;

    return is_once_a_step(made) ||
           (made->group == op->section->group && made->part <= op->section->part);
}

/* The transpose of q that the product `op` reads: a known one, or one that is made now. */
static struct ct_value *find_or_transpose(struct laying *l, struct ct_op *op, struct ct_value *q)
{
    struct ct_value *known = *transposed_of(l, q);

    if (known && is_there(known, op))
        return known;
    known = may_write(q) ? write_by_cast(l, q) : transpose(l, op, q);
    *transposed_of(l, q) = known;
    return known;
}

/* ---- inverses ---- */

static bool is_one(const struct ct_value *scale)
{
    return ct_shape_count(scale->ndim, scale->shape) == 1;
}

/* The op that finds the magnitudes makes the scales of them, if nothing else uses these. */
static struct ct_op *emit_inverse(struct laying *l, struct ct_op *scale)
{
    const struct ct_op *amax = made_by(scale->in[0], &float8_op_amax);
    struct ct_builder b = ct_builder_before(l->graph, scale);
    struct ct_op *op;

    b.why = scale->why;
    b.marks = scale->marks;
    if (amax && amax->section == scale->section && ct_value_only_user(scale->in[0]))
        op = ct_emit_type(
            &b, &float8_op_amax_scale, scale->out[0]->name, amax->in, 1,
            &(struct float8_amax_scale){((const struct float8_amax *)amax->attrs)->grid,
                                        *(const struct float8_scale *)scale->attrs});
    else
        op = ct_emit_type(&b, &float8_op_scale_both, scale->out[0]->name, scale->in, 1,
                          scale->attrs);
    l->status = b.status;
    return op;
}

/* The op that makes the scale makes its inverse, too. NULL: it comes from elsewhere. */
static struct ct_value *inverse_of(struct laying *l, struct ct_value *scale)
{
    struct ct_op *op = scale->producer;

    if (op && op->type == &float8_op_scale) {
        op = emit_inverse(l, op);
        if (!op)
            return NULL;
        op->out[1]->sharding = scale->sharding;
        take_over(l, scale, op->out[0]);
    }
    if (op && op->type == &float8_op_line_scales)
        return op->out[scale == op->out[0] ? 1 : 3];
    return op && (op->type == &float8_op_scale_both || op->type == &float8_op_amax_scale)
               ? op->out[1]
               : NULL;
}

/* A product with one scale for the whole of an operand and scales for rows of the other repeats
   the one inverse itself. */
static bool add_inverses(struct laying *l, const struct ct_op *op, struct ct_value **inverse)
{
    if (op->ins > 4 || is_one(op->in[2]) != is_one(op->in[3]))
        return false;
    inverse[0] = inverse_of(l, op->in[2]);
    inverse[1] = inverse[0] ? inverse_of(l, op->in[3]) : NULL;
    return inverse[1];
}

/* ---- products ---- */

static void lay_out(struct laying *l, struct ct_op *op)
{
    struct float8_product attrs = *(const struct float8_product *)op->attrs;
    struct ct_value *in[6] = {NULL};
    bool inverses = add_inverses(l, op, in + 4);

    for (int i = 0; l->status == 0 && i < 2 && !attrs.transposed; i++)
        in[i] = wants_transposed(op, i) ? find_or_transpose(l, op, op->in[i]) : NULL;
    if (l->status < 0)
        return;
    for (int i = 0; i < op->ins; i++)
        in[i] = in[i] ? in[i] : op->in[i];
    attrs.transposed |= op->type != &float8_op_linear;
    ct_op_become(l->graph, op, op->type, in, inverses ? 6 : op->ins, &attrs);
}

/* ---- the transform ---- */

int float8_lay_out(struct ct_graph *graph, struct ct_run *run)
{
    struct laying l = {.graph = graph};

    (void)run;
    if (!ct_device_runs(&float8_op_quantise_both, 0))
        return 0;
    join_all_casts(&l);
    join_all_maxima(&l);
    ct_for_each_op (op, graph)
        if (l.status == 0 && is_product(op))
            lay_out(&l, op);
    ct_arena_finish(&l.scratch);
    if (l.status == 0)
        ct_graph_sweep(graph);
    return l.status;
}
