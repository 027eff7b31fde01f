/*
 * Graphs: building and editing.
 *
 * Ops are a doubly linked list, values an array by id; users are not stored but found by a scan or
 * an index (ct_graph_users), so that an edit has one place to get right.
 */
#include <assert.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/op.h>

#include "graph_names.h"

static const char *const part_names[] = {"init", "pre", "F", "I", "W", "post"};
static const char *const role_names[] = {"temp", "param", "state", "input", "scalar"};

const char *ct_part_name(enum ct_part part)
{
    return part_names[part];
}

const char *ct_role_name(enum ct_role role)
{
    return role_names[role];
}

bool ct_part_is_microbatch(enum ct_part part)
{
    return part == CT_PART_F || part == CT_PART_I || part == CT_PART_W;
}

struct ct_graph *ct_graph_create(struct ct_arena *arena, const char *name)
{
    struct ct_graph *graph = ct_arena_new(arena, struct ct_graph);

    graph->arena = arena;
    graph->name = ct_arena_strdup(arena, name);
    graph->stages = 1;
    graph->names = ct_names_create(arena);
    return graph;
}

static struct ct_value *value_new(struct ct_graph *graph, const char *name)
{
    struct ct_value *value = ct_arena_new(graph->arena, struct ct_value);

    graph->values = ct_arena_grow(graph->arena, graph->values, &graph->value_room,
                                  graph->value_count + 1, sizeof(*graph->values));
    value->id = (uint32_t)graph->value_count;
    value->name = ct_names_claim(graph->names, name, value);
    graph->values[graph->value_count++] = value;
    return value;
}

struct ct_value *ct_graph_source(struct ct_graph *graph, enum ct_role role, const char *name,
                                 enum ct_dtype dtype, int rank, const int64_t *shape)
{
    struct ct_value *value = value_new(graph, name);

    assert(rank >= 0 && rank <= CT_MAX_RANK);
    value->role = role;
    value->dtype = dtype;
    value->rank = rank;
    if (rank)
        memcpy(value->shape, shape, sizeof(*shape) * (size_t)rank);
    return value;
}

struct ct_value *ct_graph_find(const struct ct_graph *graph, const char *name)
{
    return ct_names_find(graph->names, name);
}

void ct_value_rename(struct ct_graph *graph, struct ct_value *value, const char *name)
{
    ct_names_release(graph->names, value->name);
    value->name = ct_names_claim(graph->names, name, value);
}

void ct_graph_fetch(struct ct_graph *graph, const char *name, struct ct_value *value)
{
    if (!value)
        return;
    graph->fetches = ct_arena_grow(graph->arena, graph->fetches, &graph->fetch_room,
                                   graph->fetch_count + 1, sizeof(*graph->fetches));
    graph->fetches[graph->fetch_count++] =
        (struct ct_fetch){ct_arena_strdup(graph->arena, name), value};
}

struct ct_value *ct_graph_fetched(const struct ct_graph *graph, const char *name)
{
    for (size_t i = 0; i < graph->fetch_count; i++)
        if (!strcmp(graph->fetches[i].name, name))
            return graph->fetches[i].value;
    return NULL;
}

struct ct_builder ct_builder_at_end(struct ct_graph *graph, enum ct_part part, const char *region)
{
    return (struct ct_builder){.graph = graph, .part = part, .region = region};
}

struct ct_builder ct_builder_before(struct ct_graph *graph, struct ct_op *op)
{
    return (struct ct_builder){
        .graph = graph, .before = op, .part = op->part, .region = op->region, .stage = op->stage};
}

struct ct_builder ct_builder_after(struct ct_graph *graph, struct ct_op *op)
{
    struct ct_builder b = ct_builder_before(graph, op);

    b.before = op->next;
    return b;
}

void ct_graph_insert(struct ct_graph *graph, struct ct_op *op, struct ct_op *before)
{
    op->next = before;
    op->prev = before ? before->prev : graph->last;
    *(op->prev ? &op->prev->next : &graph->first) = op;
    *(before ? &before->prev : &graph->last) = op;
}

int64_t ct_graph_position(const struct ct_graph *graph, int64_t tokens, int64_t index)
{
    int64_t chunk = graph->chunks ? tokens / graph->chunks : tokens;

    return graph->chunks ? graph->chunk_order[index / chunk] * chunk + index % chunk : index;
}

/* Name of output i: the caller's for the first, then with the type's suffixes. */
static const char *output_name(struct ct_builder *b, const struct ct_op *op, const char *name,
                               int i)
{
    struct ct_arena *arena = b->graph->arena;
    const char *suffix = op->type->outputs;
    size_t length;

    if (!name)
        name = *op->region ? ct_arena_printf(arena, "%s.%s", op->region, op->type->name)
                           : op->type->name;
    if (i == 0)
        return name;
    for (int skip = 1; suffix && skip < i; skip++) {
        suffix = strchr(suffix, ' ');
        suffix = suffix ? suffix + 1 : NULL;
    }
    if (!suffix)
        return ct_arena_printf(arena, "%s.%d", name, i);
    length = strcspn(suffix, " ");
    return ct_arena_printf(arena, "%s.%.*s", name, (int)length, suffix);
}

static struct ct_op *op_new(struct ct_builder *b, const struct ct_op_type *type,
                            struct ct_value *const *in, int ins, const void *attrs)
{
    struct ct_arena *arena = b->graph->arena;
    struct ct_op *op = ct_arena_new(arena, struct ct_op);

    op->type = type;
    op->region = ct_names_intern(b->graph->names, b->region ? b->region : "");
    op->part = b->part;
    op->stage = b->stage;
    op->why = b->why;
    op->ins = ins;
    op->in = ct_arena_copy(arena, in, sizeof(*in) * (size_t)ins);
    if (type->attrs_size)
        op->attrs = attrs ? ct_arena_copy(arena, attrs, type->attrs_size)
                          : ct_arena_alloc(arena, type->attrs_size);
    return op;
}

struct ct_op *ct_emit(struct ct_builder *b, const char *type_name, const char *name,
                      struct ct_value *const *in, int ins, const void *attrs)
{
    const struct ct_op_type *type;
    struct ct_op *op;

    if (b->status < 0)
        return NULL;
    type = ct_op_find(type_name);
    if (!type) {
        b->status = ct_fail(CT_EINVAL, "no op type named %s is registered", type_name);
        return NULL;
    }
    op = op_new(b, type, in, ins, attrs);
    if (!attrs && type->attrs) {
        b->status = ct_options_reset(type->attrs, op->attrs);
        if (b->status < 0)
            return NULL;
    }
    op->outs = ct_op_count_outputs(op);
    op->out = ct_arena_array(b->graph->arena, struct ct_value *, op->outs);
    for (int i = 0; i < op->outs; i++) {
        op->out[i] = value_new(b->graph, output_name(b, op, name, i));
        op->out[i]->producer = op;
    }
    b->status = ct_op_infer(op);
    if (b->status < 0)
        return NULL;
    ct_graph_insert(b->graph, op, b->before);
    return op;
}

struct ct_value *ct_emit1(struct ct_builder *b, const char *type, const char *name,
                          struct ct_value *const *in, int ins, const void *attrs)
{
    struct ct_op *op = ct_emit(b, type, name, in, ins, attrs);

    return op ? op->out[0] : NULL;
}

int ct_graph_infer(struct ct_graph *graph)
{
    ct_for_each_op (op, graph) {
        int rc = ct_op_infer(op);

        if (rc < 0)
            return rc;
    }
    return 0;
}

void ct_graph_remove(struct ct_graph *graph, struct ct_op *op)
{
    *(op->prev ? &op->prev->next : &graph->first) = op->next;
    *(op->next ? &op->next->prev : &graph->last) = op->prev;
}

void ct_op_set_input(struct ct_op *op, int index, struct ct_value *value)
{
    assert(index >= 0 && index < op->ins);
    op->in[index] = value;
}

void ct_graph_replace(struct ct_graph *graph, struct ct_value *old, struct ct_value *value)
{
    ct_for_each_op (op, graph) {
        if (op == value->producer)
            continue;
        for (int i = 0; i < op->ins; i++)
            if (op->in[i] == old)
                op->in[i] = value;
    }
    for (size_t i = 0; i < graph->fetch_count; i++)
        if (graph->fetches[i].value == old)
            graph->fetches[i].value = value;
}

struct ct_op *ct_graph_only_user(const struct ct_graph *graph, const struct ct_value *value)
{
    struct ct_op *user = NULL;

    for (size_t i = 0; i < graph->fetch_count; i++)
        if (graph->fetches[i].value == value)
            return NULL;
    ct_for_each_op (op, graph)
        for (int i = 0; i < op->ins; i++) {
            if (op->in[i] != value)
                continue;
            if (user && user != op)
                return NULL;
            user = op;
        }
    return user;
}

struct ct_users ct_graph_users(const struct ct_graph *graph, struct ct_arena *arena)
{
    size_t n = graph->value_count;
    struct ct_users users = {ct_arena_array(arena, uint32_t, n + 2), NULL};
    uint32_t *next = users.first + 1;

    ct_for_each_op (op, graph)
        for (int i = 0; i < op->ins; i++)
            if (op->in[i])
                next[op->in[i]->id + 1]++;
    for (size_t i = 1; i <= n; i++)
        next[i] += next[i - 1];
    users.op = ct_arena_array(arena, struct ct_op *, next[n] + 1);
    ct_for_each_op (op, graph)
        for (int i = 0; i < op->ins; i++)
            if (op->in[i])
                users.op[next[op->in[i]->id]++] = op;
    return users;
}

static bool mutates_anything(const struct ct_op *op)
{
    for (int i = 0; i < op->ins; i++)
        if (ct_op_mutates(op, i))
            return true;
    return false;
}

/* Needed: an effect, a parameter's gradient, or an output that a fetch or a needed op takes. One
   walk from the end does. */
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
