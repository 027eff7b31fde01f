/*
 * Graphs: building.
 *
 * Ops are a doubly linked list, values an array indexed by id. edit.c changes both, and maintains
 * the uses of each value.
 */
#include <assert.h>
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/op.h>

#include "ir/graph_internal.h"
#include "ir/graph_names.h"
#include "ir/signature.h"

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
    graph->partition_axis = -1;
    graph->names = ct_names_create(arena);
    return graph;
}

struct ct_value *ct_value_new(struct ct_graph *graph, const char *name)
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
                                 enum ct_dtype dtype, int ndim, const int64_t *shape)
{
    struct ct_value *value = ct_value_new(graph, name);

    assert(ndim >= 0 && ndim <= CT_MAX_DIMS);
    value->role = role;
    value->dtype = dtype;
    value->ndim = ndim;
    if (ndim)
        memcpy(value->shape, shape, sizeof(*shape) * (size_t)ndim);
    return value;
}

struct ct_value *ct_graph_find(const struct ct_graph *graph, const char *name)
{
    return ct_names_find(graph->names, name);
}

bool ct_value_is_own_param(const struct ct_value *value)
{
    return value->role == CT_ROLE_PARAM && !value->set;
}

const char *ct_value_model_name(const struct ct_value *value)
{
    return value->set ? value->name + strlen(value->set->name) + 1 : value->name;
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
        (struct ct_fetch){.name = ct_arena_strdup(graph->arena, name), .value = value};
    value->fetch_count++;
}

/* Number of the fetch of this name; fetch_count: there is none. */
static size_t fetch_index(const struct ct_graph *graph, const char *name)
{
    size_t i = 0;

    while (i < graph->fetch_count && strcmp(graph->fetches[i].name, name) != 0)
        i++;
    return i;
}

struct ct_value *ct_graph_fetched(const struct ct_graph *graph, const char *name)
{
    size_t i = fetch_index(graph, name);

    return i < graph->fetch_count ? graph->fetches[i].value : NULL;
}

const char *ct_graph_fetched_over(const struct ct_graph *graph, const char *name)
{
    size_t i = fetch_index(graph, name);

    return i < graph->fetch_count ? graph->fetches[i].over : NULL;
}

void ct_graph_fetch_mean(struct ct_graph *graph, const char *name, struct ct_value *value,
                         struct ct_value *over)
{
    if (!value || !over)
        return;
    ct_graph_fetch(graph, name, value);
    graph->fetches[graph->fetch_count - 1].over = ct_arena_strdup(graph->arena, over->name);
    if (!ct_graph_fetched(graph, over->name))
        ct_graph_fetch(graph, over->name, over);
}

void ct_graph_fetch_loss(struct ct_graph *graph, const char *name, struct ct_value *value,
                         struct ct_value *over, double weight)
{
    size_t number = graph->fetch_count;

    ct_graph_fetch_mean(graph, name, value, over);
    if (number < graph->fetch_count)
        graph->fetches[number].weight = weight;
}

struct ct_value *ct_graph_unfetch(struct ct_graph *graph, const char *name)
{
    size_t i = graph->fetch_count, left;
    struct ct_value *value;

    while (i > 0 && strcmp(graph->fetches[i - 1].name, name) != 0)
        i--;
    if (i-- == 0)
        return NULL;
    value = graph->fetches[i].value;
    left = --graph->fetch_count - i;
    memmove(&graph->fetches[i], &graph->fetches[i + 1], sizeof(*graph->fetches) * left);
    value->fetch_count--;
    return value;
}

/* ---- sections ---- */

const struct ct_section *ct_graph_section_find(const struct ct_graph *graph, const char *name)
{
    for (size_t i = 0; i < graph->section_count; i++)
        if (!strcmp(graph->sections[i]->name, name))
            return graph->sections[i];
    return NULL;
}

/* The name of the main section of a part and group. */
static const char *main_name(enum ct_part part, int group, char name[32])
{
    snprintf(name, 32, "%d%s", group, part_names[part]);
    return ct_part_is_microbatch(part) && group >= 0 ? name : part_names[part];
}

const struct ct_section *ct_graph_section_named(struct ct_graph *graph, const char *name,
                                                enum ct_part part, int group)
{
    const struct ct_section *known = ct_graph_section_find(graph, name);
    struct ct_section *section;
    char main[32];

    if (known)
        return known;
    section = ct_arena_new(graph->arena, struct ct_section);
    *section = (struct ct_section){.name = ct_arena_strdup(graph->arena, name),
                                   .part = part,
                                   .group = group,
                                   .id = (uint32_t)graph->section_count,
                                   .main = !strcmp(name, main_name(part, group, main))};
    graph->sections = ct_arena_grow(graph->arena, graph->sections, &graph->section_room,
                                    graph->section_count + 1, sizeof(*graph->sections));
    return graph->sections[graph->section_count++] = section;
}

const struct ct_section *ct_graph_section(struct ct_graph *graph, enum ct_part part, int group)
{
    char name[32];

    return ct_graph_section_named(graph, main_name(part, group, name), part,
                                  ct_part_is_microbatch(part) && group >= 0 ? group : CT_NO_GROUP);
}

void ct_op_set_part(struct ct_graph *graph, struct ct_op *op, enum ct_part part)
{
    op->section = ct_graph_section(graph, part, op->section->group);
}

void ct_builder_set_part(struct ct_builder *b, enum ct_part part)
{
    b->section = ct_graph_section(b->graph, part, b->section->group);
}

/* ---- building ---- */

struct ct_builder ct_builder_at_end(struct ct_graph *graph, enum ct_part part, const char *region)
{
    return (struct ct_builder){
        .graph = graph, .section = ct_graph_section(graph, part, CT_NO_GROUP), .region = region};
}

struct ct_builder ct_builder_before(struct ct_graph *graph, struct ct_op *op)
{
    return (struct ct_builder){
        .graph = graph, .before = op, .section = op->section, .region = op->region};
}

struct ct_builder ct_builder_after(struct ct_graph *graph, struct ct_op *op)
{
    struct ct_builder b = ct_builder_before(graph, op);

    b.before = op->next;
    return b;
}

struct ct_builder ct_init_builder(struct ct_graph *graph)
{
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_INIT, "");
    struct ct_op *next = graph->last_init ? graph->last_init->next : graph->first;

    for (; next && next->section->part == CT_PART_INIT; next = next->next)
        graph->last_init = next;
    b.before = next;
    return b;
}

struct ct_builder ct_pre_builder(struct ct_graph *graph)
{
    struct ct_builder b = ct_init_builder(graph);

    ct_builder_set_part(&b, CT_PART_PRE);
    return b;
}

int64_t ct_graph_position(const struct ct_graph *graph, int64_t tokens, int64_t index)
{
    int64_t chunk = graph->chunks ? tokens / graph->chunks : tokens;

    return graph->chunks ? graph->chunk_order[index / chunk] * chunk + index % chunk : index;
}

/* Name of output i: the caller's for the first; the others add the operand's name as a suffix. */
static const char *output_name(struct ct_builder *b, const struct ct_expansion *x,
                               const struct ct_op *op, const char *name, int i)
{
    struct ct_arena *arena = b->graph->arena;
    const struct ct_term *term;
    int repetition;

    if (!name)
        name = *op->region ? ct_arena_printf(arena, "%s.%s", op->region, op->type->name)
                           : op->type->name;
    if (i == 0)
        return name;
    term = ct_signature_term(x, op->ins + i, &repetition);
    if (repetition >= 0)
        return ct_arena_printf(arena, "%s.%d", name, i);
    return ct_arena_printf(arena, "%s.%s", name, term->name);
}

struct ct_op *ct_op_new(struct ct_builder *b, const struct ct_op_type *type,
                        struct ct_value *const *in, int ins, const void *attrs)
{
    struct ct_arena *arena = b->graph->arena;
    struct ct_op *op = ct_arena_new(arena, struct ct_op);

    op->type = type;
    op->region = ct_names_intern(b->graph->names, b->region ? b->region : "");
    op->section = b->section;
    op->why = b->why;
    op->marks = b->marks;
    op->ins = ins;
    op->in = ct_arena_copy(arena, in, sizeof(*in) * (size_t)ins);
    op->use = ct_arena_array(arena, struct ct_use, ins);
    if (type->attrs_size)
        op->attrs = attrs ? ct_arena_copy(arena, attrs, type->attrs_size)
                          : ct_arena_alloc(arena, type->attrs_size);
    return op;
}

static int make_outputs(struct ct_builder *b, struct ct_op *op, const char *name)
{
    struct ct_expansion x;

    op->outs = ct_op_count_outputs(op);
    op->out = ct_arena_array(b->graph->arena, struct ct_value *, op->outs);
    if (op->outs && ct_signature_expand(op, &x) < 0)
        op->outs = 1;
    for (int i = 0; i < op->outs; i++) {
        op->out[i] = ct_value_new(b->graph, output_name(b, &x, op, name, i));
        op->out[i]->producer = op;
    }
    return ct_op_infer(op);
}

static int emit(struct ct_builder *b, const struct ct_op_type *type, const char *name,
                struct ct_value *const *in, int ins, const void *attrs, struct ct_op **op)
{
    int rc = ct_op_need(type);

    if (rc < 0)
        return rc;
    *op = ct_op_new(b, type, in, ins, attrs);
    if (!attrs && type->attrs)
        rc = ct_attributes_reset(type->attrs, (*op)->attrs);
    return rc < 0 ? rc : make_outputs(b, *op, name);
}

struct ct_op *ct_emit_type(struct ct_builder *b, const struct ct_op_type *type, const char *name,
                           struct ct_value *const *in, int ins, const void *attrs)
{
    struct ct_op *op;

    if (b->status < 0)
        return NULL;
    b->status = emit(b, type, name, in, ins, attrs, &op);
    if (b->status < 0)
        return NULL;
    ct_graph_insert(b->graph, op, b->before);
    return op;
}

struct ct_value *ct_emit_type1(struct ct_builder *b, const struct ct_op_type *type,
                               const char *name, struct ct_value *const *in, int ins,
                               const void *attrs)
{
    struct ct_op *op = ct_emit_type(b, type, name, in, ins, attrs);

    return op ? op->out[0] : NULL;
}

struct ct_op *ct_emit(struct ct_builder *b, const char *type_name, const char *name,
                      struct ct_value *const *in, int ins, const void *attrs)
{
    const struct ct_op_type *type;

    if (b->status < 0)
        return NULL;
    type = ct_op_find(type_name);
    if (type)
        return ct_emit_type(b, type, name, in, ins, attrs);
    b->status = ct_fail(CT_EINVAL, "no op type named %s is registered", type_name);
    return NULL;
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
