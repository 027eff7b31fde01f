/*
 * Copies of ops, and of whole graphs.
 */
#include <string.h>

#include "ir/graph_internal.h"
#include "ir/graph_names.h"

static void forget_uses(struct ct_value *v)
{
    v->first_use = v->last_use = NULL;
    v->use_count = 0;
}

/* ---- an op ---- */

/* A new value with the same layout as v. */
static struct ct_value *value_like(struct ct_graph *graph, const struct ct_value *v,
                                   const char *suffix)
{
    struct ct_value *copy =
        ct_value_new(graph, ct_arena_printf(graph->arena, "%s.%s", v->name, suffix));
    const char *name = copy->name;
    uint32_t id = copy->id;

    *copy = *v;
    copy->name = name;
    copy->id = id;
    forget_uses(copy);
    copy->producer = NULL;
    copy->fetch_count = 0;
    copy->grad = copy->grad_of = copy->next_grad = NULL;
    return copy;
}

struct ct_op *ct_op_clone(struct ct_builder *b, const struct ct_op *op, struct ct_value *const *in,
                          const char *suffix)
{
    struct ct_op *copy;

    if (b->status < 0)
        return NULL;
    copy = ct_op_new(b, op->type, in ? in : op->in, op->ins, op->attrs);
    copy->why = b->why ? b->why : op->why;
    copy->stream = op->stream;
    copy->marks |= op->marks;
    copy->outs = op->outs;
    copy->out = ct_arena_array(b->graph->arena, struct ct_value *, op->outs);
    for (int i = 0; i < op->outs; i++)
        ct_op_set_output(copy, i, value_like(b->graph, op->out[i], suffix));
    b->status = in ? ct_op_infer(copy) : 0;
    if (b->status < 0)
        return NULL;
    ct_graph_insert(b->graph, copy, b->before);
    return copy;
}

/* ---- a graph ---- */

struct cloning {
    struct ct_graph *to;
    struct ct_value *values; /* by id */
};

static struct ct_value *same(const struct cloning *c, const struct ct_value *v)
{
    return v ? &c->values[v->id] : NULL;
}

static void clone_values(struct cloning *c, const struct ct_graph *from)
{
    struct ct_graph *to = c->to;

    c->values = ct_arena_array(to->arena, struct ct_value, from->value_count);
    to->values = ct_arena_array(to->arena, struct ct_value *, from->value_count);
    to->value_room = to->value_count = from->value_count;
    for (size_t i = 0; i < from->value_count; i++) {
        to->values[i] = &c->values[i];
        c->values[i] = *from->values[i];
        forget_uses(&c->values[i]);
        c->values[i].producer = NULL;
        c->values[i].grad = same(c, from->values[i]->grad);
        c->values[i].grad_of = same(c, from->values[i]->grad_of);
        c->values[i].next_grad = same(c, from->values[i]->next_grad);
    }
}

static struct ct_value **same_values(const struct cloning *c, struct ct_value *const *v, int count)
{
    struct ct_value **copy = ct_arena_array(c->to->arena, struct ct_value *, count);

    for (int i = 0; i < count; i++)
        copy[i] = same(c, v[i]);
    return copy;
}

static void clone_sections(struct cloning *c, const struct ct_graph *from)
{
    struct ct_graph *to = c->to;

    to->sections = ct_arena_array(to->arena, struct ct_section *, from->section_count);
    to->section_room = to->section_count;
    for (size_t i = 0; i < from->section_count; i++)
        to->sections[i] = ct_arena_copy(to->arena, from->sections[i], sizeof(**from->sections));
}

static void clone_op(struct cloning *c, const struct ct_op *op)
{
    struct ct_op *copy = ct_arena_copy(c->to->arena, op, sizeof(*op));

    copy->section = c->to->sections[op->section->id];
    copy->region = ct_names_intern(c->to->names, op->region);
    copy->in = same_values(c, op->in, op->ins);
    copy->out = same_values(c, op->out, op->outs);
    copy->use = ct_arena_array(c->to->arena, struct ct_use, op->ins);
    if (op->attrs)
        copy->attrs = ct_arena_copy(c->to->arena, op->attrs, op->type->attrs_size);
    for (int i = 0; i < copy->outs; i++)
        copy->out[i]->producer = copy;
    copy->in_graph = false;
    ct_graph_insert(c->to, copy, NULL);
}

struct ct_graph *ct_graph_clone(const struct ct_graph *from, struct ct_arena *arena)
{
    struct ct_graph *to = ct_arena_copy(arena, from, sizeof(*from));
    struct cloning c = {.to = to};

    to->arena = arena;
    to->first = to->last = to->last_init = NULL;
    clone_values(&c, from);
    clone_sections(&c, from);
    to->names = ct_names_clone(from->names, arena, to->values);
    ct_for_each_op (op, from)
        clone_op(&c, op);
    to->fetches = ct_arena_copy(arena, from->fetches, sizeof(*to->fetches) * from->fetch_count);
    to->fetch_room = to->fetch_count;
    for (size_t i = 0; i < to->fetch_count; i++)
        to->fetches[i].value = same(&c, from->fetches[i].value);
    return to;
}
