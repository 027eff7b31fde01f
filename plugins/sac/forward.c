/* The candidates: the values of the forward, by layers. */
#include <ctype.h>
#include <string.h>

#include <ctitan/error.h>

#include "sac.h"

bool sac_is_backward(const struct ct_op *op)
{
    return op->section->part == CT_PART_I || op->section->part == CT_PART_W;
}

/* ---- ops of several outputs ---- */

static void set_output(struct ct_graph *graph, struct ct_value *from, struct ct_value *to)
{
    struct ct_op *op = from->producer;

    for (int i = 0; i < op->outs; i++)
        if (op->out[i] == from)
            ct_op_set_output(op, i, to);
    ct_value_replace(graph, from, to);
}

int sac_take_apart(struct ct_graph *graph, struct ct_op *op)
{
    struct ct_value **out = ct_arena_array(graph->arena, struct ct_value *, op->outs);
    struct ct_builder b = ct_builder_before(graph, op);
    int rc = op->type->apart(&b, op, out);

    for (int i = 0; rc == 0 && i < op->outs; i++)
        set_output(graph, out[i], op->out[i]);
    if (rc == 0)
        ct_graph_remove(graph, op);
    return rc;
}

static int take_all_apart(struct sac *s)
{
    int rc = 0;

    ct_for_each_op_safe (op, s->forward)
        if (rc == 0 && op->section->part == CT_PART_F && op->type->apart && op->outs > 1)
            rc = sac_take_apart(s->forward, op);
    return rc;
}

/* ---- layers ---- */

static bool crosses(const struct ct_value *v, const struct ct_op *op)
{
    return v && v->producer && v->producer->section == op->section &&
           v->producer->region != op->region;
}

/* The only other region whose results op takes; NULL: none or several. */
static const char *source(const struct sac *s, const struct ct_op *op)
{
    const char *region = NULL;

    for (int i = 0; i < op->ins; i++) {
        if (!op->in[i] || !s->may[op->in[i]->id])
            continue;
        if (!crosses(op->in[i], op) || (region && op->in[i]->producer->region != region))
            return NULL;
        region = op->in[i]->producer->region;
    }
    return region;
}

/* Bytes of v if op is its only user after its region. */
static size_t taken(const struct sac *s, const struct ct_value *v, const struct ct_op *op)
{
    ct_for_each_use (use, v)
        if (use->op != op && !sac_is_backward(use->op) && use->op->region != v->producer->region)
            return 0;
    return ct_value_bytes(s->forward, v, s->rank);
}

/* Move a sum at the entry of a layer to the layer whose output it is. */
static void move_entry(struct sac *s, struct ct_op *op)
{
    const char *region = source(s, op);
    size_t in = 0, out = 0;

    if (!region)
        return;
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && s->may[op->in[i]->id])
            in += taken(s, op->in[i], op);
    for (int i = 0; i < op->outs; i++)
        out += ct_value_bytes(s->forward, op->out[i], s->rank);
    if (out <= in)
        op->region = region;
}

/* "layers.3" */
static bool repeats(const char *region)
{
    const char *dot = strrchr(region, '.');

    if (!dot || !dot[1])
        return false;
    while (isdigit((unsigned char)*++dot))
        ;
    return !*dot;
}

static int layer_of(struct sac *s, const struct ct_op *op, size_t *room)
{
    int n = s->layers - 1;

    if (!repeats(op->region))
        return -1;
    while (n >= 0 && (s->layer[n].name != op->region || s->layer[n].group != op->section->group))
        n--;
    if (n >= 0)
        return n;
    s->layer = ct_arena_grow(&s->scratch, s->layer, room, (size_t)s->layers + 1, sizeof(*s->layer));
    s->layer[s->layers] = (struct sac_layer){op->region, op->section->group};
    return s->layers++;
}

/* ---- values ---- */

static bool is_pure(const struct ct_op *op)
{
    for (int i = 0; i < op->ins; i++)
        if (ct_op_mutates(op, i))
            return false;
    return !(op->type->flags & (CT_OP_EFFECT | CT_OP_RENDEZVOUS));
}

/* True for values that depend on the data, not on parameters alone (such as gathered ones). A value
   from another stage depends on it. */
static bool is_activation(const bool *active, const struct ct_op *op)
{
    if (op->type->flags & CT_OP_RENDEZVOUS)
        return true;
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && (op->in[i]->role == CT_ROLE_INPUT || active[op->in[i]->id]))
            return true;
    return false;
}

/* A weight, there once a step or gathered in each microbatch. */
static bool is_weight(const struct ct_value *v)
{
    while (v->producer && v->producer->type->flags & CT_OP_COLLECTIVE && v->producer->ins)
        v = v->producer->in[0];
    return !v->producer || v->producer->section->part == CT_PART_PRE;
}

/* A copy of a weight that the forward makes, such as a quantised one: as large as the weight. The
   weight itself is not among the values to decide on: fsdp gathers it again. */
static bool is_copy_of_weight(const struct ct_op *op, const bool *active, const struct ct_value *v)
{
    const struct ct_value *of = op->ins ? op->in[0] : NULL;

    return of && is_weight(of) && !(op->type->flags & CT_OP_COLLECTIVE) &&
           !is_activation(active, op) && is_pure(op) && v->ndim == of->ndim &&
           !memcmp(v->shape, of->shape, sizeof(*v->shape) * (size_t)v->ndim);
}

static void describe(struct sac *s)
{
    bool *active = ct_arena_array(&s->scratch, bool, s->forward->value_count);
    size_t room = 0;

    for (size_t i = 0; i < s->forward->value_count; i++)
        s->root[i] = s->forward->values[i];
    ct_for_each_op (op, s->forward) {
        bool is = op->section->part == CT_PART_F && is_activation(active, op);

        for (int i = 0; i < op->outs; i++) {
            active[op->out[i]->id] = is;
            s->may[op->out[i]->id] = is && is_pure(op);
        }
        if (op->type->flags & CT_OP_VIEW)
            s->root[op->out[0]->id] = s->root[op->in[0]->id];
        if (is)
            move_entry(s, op);
    }
    ct_for_each_op (op, s->forward)
        for (int i = 0; op->section->part == CT_PART_F && i < op->outs; i++) {
            s->layer_of[op->out[i]->id] = layer_of(s, op, &room);
            s->may[op->out[i]->id] |= is_copy_of_weight(op, active, op->out[i]);
        }
}

/* ---- values that other transforms recompute ---- */

/* Does b compute what a computes, from the same values? */
static bool computes_again(const struct ct_op *a, const struct ct_op *b)
{
    return a != b && a->type == b->type && a->ins == b->ins && a->outs == b->outs &&
           !memcmp(a->in, b->in, sizeof(*a->in) * (size_t)a->ins) &&
           (!a->type->attrs_size || !memcmp(a->attrs, b->attrs, a->type->attrs_size));
}

/* The op of the forward that an op of the backward repeats; NULL: none. */
static const struct ct_op *original(const struct ct_op *op)
{
    if (op->ins == 0 || op->outs == 0 || !op->in[0])
        return NULL;
    ct_for_each_use (use, op->in[0])
        if (use->op->section->part == CT_PART_F && computes_again(use->op, op))
            return use->op;
    return NULL;
}

/* Another transform lets the backward recompute something. Take that over, so that it is recomputed
   once, from kept values. */
static void take_over(struct sac *s, struct ct_op *again, const struct ct_op *op)
{
    for (int i = 0; i < op->outs; i++) {
        s->must[op->out[i]->id] = true;
        s->stream[op->out[i]->id] = again->stream;
        ct_value_replace(s->graph, again->out[i], op->out[i]);
        ct_value_rename(s->graph, again->out[i], "replaced"); /* frees its name for the clone */
    }
    ct_graph_remove(s->graph, again);
}

static void take_over_all(struct sac *s)
{
    ct_for_each_op_safe (op, s->graph) {
        const struct ct_op *first = sac_is_backward(op) ? original(op) : NULL;

        if (first)
            take_over(s, op, first);
    }
}

/* ---- the whole ---- */

/* The first rank of this rank's stage. Sizes, and so decisions, are the same on all its ranks. */
static int64_t first_of_stage(struct sac *s, const struct ct_run *run)
{
    const struct ct_mesh *mesh = &s->graph->mesh;
    int axis = s->graph->partition_axis;
    ct_axes axes = axis < 0 ? CT_ALL_AXES : ~((ct_axes)1 << axis);
    int64_t *ranks = ct_arena_array(&s->scratch, int64_t, ct_mesh_degree(mesh, axes) + 1);

    ct_mesh_group(mesh, run ? run->rank : 0, axes, ranks);
    return ranks[0];
}

int sac_begin(struct sac *s, struct ct_graph *graph, const struct ct_run *run)
{
    size_t count;
    int rc;

    *s = (struct sac){.graph = graph, .count = graph->value_count};
    s->rank = first_of_stage(s, run);
    s->must = ct_arena_array(&s->scratch, bool, s->count + 1);
    s->stream = ct_arena_array(&s->scratch, int, s->count + 1);
    take_over_all(s);
    s->forward = ct_graph_clone(graph, &s->scratch);
    rc = take_all_apart(s);
    count = s->forward->value_count + 1;
    s->layer_of = ct_arena_array(&s->scratch, int, count);
    s->root = ct_arena_array(&s->scratch, struct ct_value *, count);
    s->may = ct_arena_array(&s->scratch, bool, count);
    s->kept = ct_arena_array(&s->scratch, bool, count);
    s->may_leave = ct_arena_array(&s->scratch, bool, count);
    s->away = ct_arena_array(&s->scratch, bool, count);
    memset(s->layer_of, -1, sizeof(*s->layer_of) * count);
    if (rc == 0)
        describe(s);
    return rc;
}

void sac_finish(struct sac *s)
{
    ct_arena_finish(&s->scratch);
}
