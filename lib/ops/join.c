/*
 * Two transforms, which replace several plain ops of a model by one op that does all of them. For
 * join_pointwise:
 *
 *   add, rms_norm            add_rms_norm: the sum is read once
 *   silu, mul                swiglu
 *
 * For join:
 *
 *   linear, linear, ..       one linear of several weights, where they have one input
 *   linear, cross_entropy    linear_cross_entropy, where nothing else uses the logits: they are
 *                            computed and consumed in chunks
 *
 * Ops of different stages are not joined, so the values that cross a split are those of the model.
 * The weights of one op have the same sharding, and linears the same marks. A sum and its norm may
 * be in two regions; the joined op then belongs to the norm's.
 *
 * A joined op takes the place of the first of its ops. Weights that are computed later (gathered,
 * say) are moved before it. It takes over the users and names of the ops' values.
 */
#include <string.h>

#include "list.h"

struct join {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct ct_users users; /* of the original graph */
    bool *gone;            /* by id of output 0: the op was already joined */
    uint32_t *place;       /* by value id: position of its producer, in steps of two; 0: a source */
    size_t count;          /* original number of values */
};

static void begin(struct join *j)
{
    uint32_t n = 0;

    j->count = j->graph->value_count;
    j->users = ct_graph_users(j->graph, &j->scratch);
    j->gone = ct_arena_array(&j->scratch, bool, j->count + 1);
    j->place = ct_arena_array(&j->scratch, uint32_t, j->count + 1);
    ct_for_each_op (op, j->graph) {
        n += 2;
        for (int i = 0; i < op->outs; i++)
            j->place[op->out[i]->id] = n;
    }
}

/* The op of this type in the original graph that computes v. */
static struct ct_op *maker(const struct join *j, const struct ct_value *v,
                           const struct ct_op_type *type)
{
    struct ct_op *op = v->producer;

    return op && op->type == type && v->id < j->count && !j->gone[op->out[0]->id] ? op : NULL;
}

static uint32_t user_count(const struct join *j, const struct ct_value *v)
{
    return j->users.first[v->id + 1] - j->users.first[v->id] + v->fetch_count;
}

static bool together(const struct ct_op *a, const struct ct_op *b)
{
    return a->section == b->section;
}

void ct_take_over(struct ct_graph *graph, struct ct_value *old, struct ct_value *by)
{
    const char *name = old->name;

    ct_value_replace(graph, old, by);
    ct_value_rename(graph, old, ct_arena_printf(graph->arena, "%s.joined", name));
    ct_value_rename(graph, by, name);
}

static void drop(struct join *j, struct ct_op *op)
{
    j->gone[op->out[0]->id] = true;
    ct_graph_remove(j->graph, op);
}

/* ---- values needed earlier ---- */

#define DEEP 4 /* longest chain of ops from a parameter to a weight: a gather, a cast, .. */

/* Is v available before op, or can the ops that compute it be moved there? */
static bool can_bring(const struct join *j, const struct ct_value *v, const struct ct_op *op,
                      int depth)
{
    const struct ct_op *from = v->producer;

    if (!from || (v->id < j->count && j->place[v->id] < j->place[op->out[0]->id]))
        return true;
    if (from == op || v->id >= j->count || depth == DEEP || !together(from, op))
        return false;
    for (int i = 0; i < from->ins; i++)
        if (ct_op_mutates(from, i) || (from->in[i] && !can_bring(j, from->in[i], op, depth + 1)))
            return false;
    return true;
}

static void bring(struct join *j, const struct ct_value *v, struct ct_op *op)
{
    struct ct_op *from = v->producer;

    if (!from || j->place[v->id] < j->place[op->out[0]->id])
        return;
    for (int i = 0; i < from->ins; i++)
        if (from->in[i])
            bring(j, from->in[i], op);
    ct_op_move(j->graph, from, op);
    for (int i = 0; i < from->outs; i++)
        j->place[from->out[i]->id] = j->place[op->out[0]->id] - 1;
}

/* ---- add, rms_norm ---- */

static int join_norm(struct join *j, struct ct_op *norm)
{
    struct ct_value *x = norm->in[0], *in[3] = {NULL, NULL, norm->in[1]};
    struct ct_op *add = maker(j, x, &ct_op_add), *joined;
    struct ct_builder b;

    if (!add || !together(add, norm) || j->users.op[j->users.first[x->id]] != norm ||
        !can_bring(j, in[2], add, 0))
        return 0;
    bring(j, in[2], add);
    memcpy(in, add->in, 2 * sizeof(*in));
    b = ct_builder_before(j->graph, add);
    b.region = norm->region;
    joined = ct_emit_type(&b, &ct_op_add_rms_norm, NULL, in, 3, norm->attrs);
    if (!joined)
        return b.status;
    ct_take_over(j->graph, norm->out[0], joined->out[0]);
    ct_take_over(j->graph, x, joined->out[1]);
    ct_take_over(j->graph, norm->out[1], joined->out[2]);
    drop(j, add);
    drop(j, norm);
    return 0;
}

/* ---- linear, linear, .. ---- */

#define MOST_LINEARS 32 /* in one op: the first 32 outputs of an op can be summed (op.h) */

static bool joins(const struct join *j, const struct ct_op *first, const struct ct_op *op)
{
    return op->type == &ct_op_linear && op->ins == 2 && !j->gone[op->out[0]->id] &&
           op->in[0] == first->in[0] && op->in[1] != first->in[0] && together(first, op) &&
           op->region == first->region && op->marks == first->marks &&
           ct_sharding_equal(&op->in[1]->sharding, &first->in[1]->sharding) &&
           can_bring(j, op->in[1], first, 0);
}

static int make_one_linear(struct join *j, struct ct_op *const *ops, int count)
{
    struct ct_value **in = ct_arena_array(&j->scratch, struct ct_value *, count + 1);
    struct ct_builder b = ct_builder_before(j->graph, ops[0]);
    struct ct_op *joined;

    in[0] = ops[0]->in[0];
    for (int i = 0; i < count; i++) {
        in[1 + i] = ops[i]->in[1];
        bring(j, in[1 + i], ops[0]);
    }
    joined = ct_emit_type(&b, &ct_op_linear, NULL, in, count + 1, NULL);
    for (int i = 0; joined && i < count; i++) {
        ct_take_over(j->graph, ops[i]->out[0], joined->out[i]);
        drop(j, ops[i]);
    }
    return b.status;
}

/* Join linears that use one value. */
static int join_linears(struct join *j, size_t value)
{
    uint32_t from = j->users.first[value], to = j->users.first[value + 1];
    struct ct_op *ops[MOST_LINEARS];
    int rc = 0;

    for (uint32_t i = from; rc == 0 && i < to; i++) {
        int count = 0;

        for (uint32_t k = i; k < to && count < MOST_LINEARS; k++)
            if (joins(j, j->users.op[i], j->users.op[k]))
                ops[count++] = j->users.op[k];
        if (count > 1 && ops[0] == j->users.op[i])
            rc = make_one_linear(j, ops, count);
    }
    return rc;
}

/* ---- silu, mul ---- */

static int join_silu(struct join *j, struct ct_op *mul)
{
    struct ct_builder b = ct_builder_before(j->graph, mul);
    int gate = maker(j, mul->in[0], &ct_op_silu) ? 0 : 1;
    struct ct_op *silu = maker(j, mul->in[gate], &ct_op_silu);
    struct ct_value *joined;

    if (!silu || !together(silu, mul) || user_count(j, silu->out[0]) != 1)
        return 0;
    joined = ct_swiglu(&b, NULL, silu->in[0], mul->in[1 - gate]);
    if (!joined)
        return b.status;
    ct_take_over(j->graph, mul->out[0], joined);
    drop(j, silu);
    drop(j, mul);
    return 0;
}

/* ---- linear, cross_entropy ---- */

static int join_loss(struct join *j, struct ct_op *loss)
{
    struct ct_builder b = ct_builder_before(j->graph, loss);
    struct ct_op *linear = maker(j, loss->in[0], &ct_op_linear);
    struct ct_value *joined;

    if (!linear || linear->outs > 1 || !together(linear, loss) ||
        user_count(j, linear->out[0]) != 1 || user_count(j, loss->out[1]))
        return 0;
    joined = ct_linear_cross_entropy(&b, NULL, linear->in[0], linear->in[1], loss->in[1]);
    if (!joined)
        return b.status;
    ct_take_over(j->graph, loss->out[0], joined);
    drop(j, linear);
    drop(j, loss);
    return 0;
}

/* ---- all ---- */

static int join_pointwise_op(struct join *j, struct ct_op *op)
{
    if (op->type == &ct_op_rms_norm)
        return join_norm(j, op);
    return op->type == &ct_op_mul ? join_silu(j, op) : 0;
}

static int join_product(struct join *j, struct ct_op *op)
{
    return op->type == &ct_op_cross_entropy ? join_loss(j, op) : 0;
}

static int join(struct ct_graph *graph, int (*join_op)(struct join *, struct ct_op *), bool linears)
{
    struct join j = {.graph = graph};
    int rc = 0;

    begin(&j);
    ct_for_each_op_safe (op, graph)
        if (rc == 0)
            rc = join_op(&j, op);
    for (size_t i = 0; linears && rc == 0 && i < j.count; i++)
        rc = join_linears(&j, i);
    ct_arena_finish(&j.scratch);
    if (rc == 0)
        ct_graph_sweep(graph);
    return rc;
}

static int join_pointwise(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    return join(graph, join_pointwise_op, false);
}

static int join_products(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    return join(graph, join_product, true);
}

const struct ct_transform ct_join_pointwise = {
    .size = sizeof(struct ct_transform),
    .name = "join_pointwise",
    .summary = "sums and their norms, silu and mul, become one op each",
    .phase = CT_PHASE_JOIN,
    .gives = (const char *const[]){"joined_pointwise", NULL},
    .evaluation = true,
    .apply = join_pointwise,
};

const struct ct_transform ct_join = {
    .size = sizeof(struct ct_transform),
    .name = "join",
    .summary = "matrix products with one input, or a head and its loss, become one op",
    .phase = CT_PHASE_JOIN,
    .after = (const char *const[]){"joined_pointwise", NULL},
    .evaluation = true,
    .apply = join_products,
};
