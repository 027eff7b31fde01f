/*
 * Graphs: editing.
 *
 * Every input of an op in the list is an element of its value's list of uses. Only link_use and
 * unlink_use change these lists. The cost of an edit is proportional to the uses that it changes.
 */
#include <assert.h>

#include <ctitan/op.h>

#include "ir/graph_names.h"

/* ---- uses ---- */

static void link_use(struct ct_op *op, int index)
{
    struct ct_value *v = op->in[index];
    struct ct_use *use = &op->use[index];

    if (!v)
        return;
    *use = (struct ct_use){op, index, v->last_use, NULL};
    *(v->last_use ? &v->last_use->next : &v->first_use) = use;
    v->last_use = use;
    v->use_count++;
}

static void unlink_use(struct ct_op *op, int index)
{
    struct ct_value *v = op->in[index];
    struct ct_use *use = &op->use[index];

    if (!v)
        return;
    *(use->prev ? &use->prev->next : &v->first_use) = use->next;
    *(use->next ? &use->next->prev : &v->last_use) = use->prev;
    v->use_count--;
}

static void link_uses(struct ct_op *op)
{
    for (int i = 0; i < op->ins; i++)
        link_use(op, i);
}

static void unlink_uses(struct ct_op *op)
{
    for (int i = 0; i < op->ins; i++)
        unlink_use(op, i);
}

/* ---- the list of ops ---- */

static void take_out(struct ct_graph *graph, struct ct_op *op)
{
    if (graph->last_init == op)
        graph->last_init = op->prev;
    *(op->prev ? &op->prev->next : &graph->first) = op->next;
    *(op->next ? &op->next->prev : &graph->last) = op->prev;
}

static void put_in(struct ct_graph *graph, struct ct_op *op, struct ct_op *before)
{
    if (before && before->section->part == CT_PART_INIT && op->section->part != CT_PART_INIT)
        graph->last_init = NULL;
    op->next = before;
    op->prev = before ? before->prev : graph->last;
    *(op->prev ? &op->prev->next : &graph->first) = op;
    *(before ? &before->prev : &graph->last) = op;
}

void ct_graph_remove(struct ct_graph *graph, struct ct_op *op)
{
    assert(op->in_graph);
    unlink_uses(op);
    take_out(graph, op);
    op->in_graph = false;
}

void ct_graph_insert(struct ct_graph *graph, struct ct_op *op, struct ct_op *before)
{
    assert(!op->in_graph);
    put_in(graph, op, before);
    link_uses(op);
    op->in_graph = true;
}

void ct_op_move(struct ct_graph *graph, struct ct_op *op, struct ct_op *before)
{
    if (op == before)
        return;
    take_out(graph, op);
    put_in(graph, op, before);
}

/* ---- operands ---- */

void ct_op_set_input(struct ct_op *op, int index, struct ct_value *value)
{
    assert(index >= 0 && index < op->ins);
    if (op->in_graph)
        unlink_use(op, index);
    op->in[index] = value;
    if (op->in_graph)
        link_use(op, index);
}

void ct_op_set_inputs(struct ct_graph *graph, struct ct_op *op, struct ct_value *const *in, int ins)
{
    if (op->in_graph)
        unlink_uses(op);
    op->in = ct_arena_copy(graph->arena, in, sizeof(*in) * (size_t)ins);
    op->use = ct_arena_array(graph->arena, struct ct_use, ins);
    op->ins = ins;
    if (op->in_graph)
        link_uses(op);
}

void ct_op_become(struct ct_graph *graph, struct ct_op *op, const struct ct_op_type *type,
                  struct ct_value *const *in, int ins, const void *attrs)
{
    ct_op_set_inputs(graph, op, in, ins);
    op->type = type;
    op->attrs = NULL;
    if (type->attrs_size)
        op->attrs = attrs ? ct_arena_copy(graph->arena, attrs, type->attrs_size)
                          : ct_arena_alloc(graph->arena, type->attrs_size);
}

void ct_op_set_output(struct ct_op *op, int index, struct ct_value *value)
{
    assert(index >= 0 && index < op->outs);
    op->out[index] = value;
    value->producer = op;
}

/* ---- values ---- */

void ct_graph_set_fetch(struct ct_graph *graph, size_t index, struct ct_value *value)
{
    assert(index < graph->fetch_count);
    graph->fetches[index].value->fetch_count--;
    graph->fetches[index].value = value;
    value->fetch_count++;
}

void ct_value_set_grad(struct ct_value *value, struct ct_value *grad)
{
    struct ct_value **link = value->grad ? &value->grad->grad_of : NULL;

    while (link && *link != value)
        link = &(*link)->next_grad;
    if (link)
        *link = value->next_grad;
    value->grad = grad;
    value->next_grad = grad ? grad->grad_of : NULL;
    if (grad)
        grad->grad_of = value;
}

void ct_value_replace(struct ct_graph *graph, struct ct_value *old, struct ct_value *value)
{
    assert(old != value);
    ct_for_each_use_safe (use, old)
        if (use->op != value->producer)
            ct_op_set_input(use->op, use->index, value);
    for (size_t i = 0; old->fetch_count && i < graph->fetch_count; i++)
        if (graph->fetches[i].value == old)
            ct_graph_set_fetch(graph, i, value);
    while (old->grad_of)
        ct_value_set_grad(old->grad_of, value);
}

struct ct_op *ct_value_only_user(const struct ct_value *value)
{
    struct ct_op *user = value->first_use ? value->first_use->op : NULL;

    if (value->fetch_count)
        return NULL;
    ct_for_each_use (use, value)
        if (use->op != user)
            return NULL;
    return user;
}

struct ct_users ct_graph_users(const struct ct_graph *graph, struct ct_arena *arena)
{
    struct ct_users users = {ct_arena_array(arena, uint32_t, graph->value_count + 1), NULL};
    uint32_t *at = ct_arena_array(arena, uint32_t, graph->value_count + 1);

    for (size_t i = 0; i < graph->value_count; i++)
        users.first[i + 1] = users.first[i] + graph->values[i]->use_count;
    users.op = ct_arena_array(arena, struct ct_op *, users.first[graph->value_count] + 1);
    ct_for_each_op (op, graph)
        for (int i = 0; i < op->ins; i++)
            if (op->in[i]) {
                uint32_t id = op->in[i]->id;

                users.op[users.first[id] + at[id]++] = op;
            }
    return users;
}

/* ---- sweeping ---- */

static bool mutates_anything(const struct ct_op *op)
{
    for (int i = 0; i < op->ins; i++)
        if (ct_op_mutates(op, i))
            return true;
    return false;
}

/* An op is needed if it has an effect, computes a parameter's gradient, or feeds a fetch or a
   needed op. One walk from the end finds all. */
static void mark_needed(struct ct_graph *graph, bool *needed)
{
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->grad)
            needed[i] = needed[graph->values[i]->grad->id] = true;
    for (size_t i = 0; i < graph->fetch_count; i++)
        needed[graph->fetches[i].value->id] = true;
    for (struct ct_op *op = graph->last; op; op = op->prev) {
        bool keep = op->type->flags & CT_OP_EFFECT || mutates_anything(op);

        for (int i = 0; i < op->outs; i++)
            keep |= needed[op->out[i]->id];
        if (!keep) {
            ct_graph_remove(graph, op);
            continue;
        }
        for (int i = 0; i < op->outs; i++)
            needed[op->out[i]->id] = true;
        for (int i = 0; i < op->ins; i++)
            if (op->in[i])
                needed[op->in[i]->id] = true;
    }
}

void ct_graph_sweep(struct ct_graph *graph)
{
    struct ct_arena scratch = {0};
    bool *needed = ct_arena_array(&scratch, bool, graph->value_count + 1);
    size_t kept = 0;

    mark_needed(graph, needed);
    for (size_t i = 0; i < graph->value_count; i++) {
        struct ct_value *value = graph->values[i];

        if (!needed[i] && value->role != CT_ROLE_INPUT && value->role != CT_ROLE_SCALAR) {
            ct_names_release(graph->names, value->name);
            continue;
        }
        graph->values[kept] = value;
        value->id = (uint32_t)kept++;
    }
    graph->value_count = kept;
    ct_arena_finish(&scratch);
}
