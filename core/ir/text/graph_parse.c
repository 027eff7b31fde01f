/*
 * The text form of graphs (graph_print.c), parsed.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/op.h>

#include "ir/text/text.h"

struct parser {
    struct ct_graph *graph;
    const char *at; /* in the line */
    int status;
};

static void skip_space(struct parser *p)
{
    while (*p->at == ' ' || *p->at == '\t')
        p->at++;
}

static int fault(struct parser *p, const char *expected)
{
    if (p->status == 0)
        p->status = ct_fail(CT_EINVAL, "expected %s at \"%.30s\"", expected, p->at);
    return p->status;
}

static bool take(struct parser *p, const char *token)
{
    size_t n = strlen(token);

    skip_space(p);
    if (p->status < 0 || strncmp(p->at, token, n))
        return false;
    p->at += n;
    return true;
}

static void need(struct parser *p, const char *token)
{
    if (!take(p, token))
        fault(p, token);
}

/* Characters up to one of `stops`, white space or the end; NULL if there are none. */
static char *word(struct parser *p, const char *stops, const char *expected)
{
    const char *begin;
    char *text;

    skip_space(p);
    begin = p->at;
    while (*p->at && !isspace((unsigned char)*p->at) && !strchr(stops, *p->at))
        p->at++;
    if (p->status < 0 || p->at == begin) {
        fault(p, expected);
        return NULL;
    }
    text = ct_arena_copy(p->graph->arena, begin, (size_t)(p->at - begin) + 1);
    text[p->at - begin] = '\0';
    return text;
}

static uint64_t bits(struct parser *p)
{
    char *end;
    uint64_t n;

    skip_space(p);
    errno = 0;
    n = strtoull(p->at, &end, 10);
    if (end == p->at || *p->at == '-' || errno)
        return (uint64_t)fault(p, "a number");
    p->at = end;
    return n;
}

/* "9,1>": words of a set of ranks. */
static struct ct_ranks parse_ranks(struct parser *p)
{
    uint64_t *word = NULL;
    size_t count = 0, room = 0;

    do {
        word = ct_arena_grow(p->graph->arena, word, &room, count + 1, sizeof(*word));
        word[count++] = bits(p);
    } while (p->status == 0 && take(p, ","));
    need(p, ">");
    return (struct ct_ranks){word, (int)count};
}

static int64_t number(struct parser *p)
{
    uint64_t n = bits(p);

    return n <= INT64_MAX ? (int64_t)n : fault(p, "a number");
}

static ct_marks parse_marks(struct parser *p)
{
    ct_marks marks = 0;

    if (!take(p, "#"))
        return 0;
    do {
        const char *name = word(p, ",%=:;", "a mark");
        ct_marks mark = name ? ct_mark(name) : 0;

        if (name && !mark)
            p->status = CT_EINVAL;
        marks |= mark;
    } while (p->status == 0 && *p->at == ',' && p->at[1] != ' ' && take(p, ","));
    return marks;
}

static void parse_type(struct parser *p, struct ct_value *v)
{
    char *name = word(p, "[!,", "a dtype");

    if (!name)
        return;
    if (ct_dtype_parse(name, &v->dtype) < 0) {
        p->status = CT_EINVAL;
        return;
    }
    v->dtype_fixed = take(p, "!");
    need(p, "[");
    v->ndim = 0;
    while (p->status == 0 && !take(p, "]")) {
        if (v->ndim == CT_MAX_DIMS) {
            fault(p, "at most 6 dimensions");
            return;
        }
        v->shape[v->ndim++] = number(p);
        take(p, ",");
    }
    if (take(p, "opaque<")) {
        v->opaque_bytes = (size_t)number(p);
        need(p, ">");
    }
    if (take(p, "held<"))
        v->holders = parse_ranks(p);
    skip_space(p);
    if (p->status == 0 && (*p->at == '[' || *p->at == '+' || !strncmp(p->at, "max{", 4)))
        p->status = ct_sharding_parse(p->at, &p->graph->mesh, &v->sharding, &p->at);
    v->marks = parse_marks(p);
}

static char *value_name(struct parser *p)
{
    need(p, "%");
    return p->status < 0 ? NULL : word(p, ",()=:", "a name");
}

static struct ct_value *value_used(struct parser *p)
{
    char *name = value_name(p);
    struct ct_value *value = name ? ct_graph_find(p->graph, name) : NULL;

    if (name && !value)
        p->status = ct_fail(CT_EINVAL, "%%%s is used but not defined", name);
    return value;
}

/* The text after an opening quote, up to the closing one. */
static char *quoted(struct parser *p)
{
    size_t n = strcspn(p->at, "\"");
    char *text = ct_arena_printf(p->graph->arena, "%.*s", (int)n, p->at);

    p->at += n;
    need(p, "\"");
    return text;
}

static void parse_attrs(struct parser *p, const struct ct_op_type *type, void *attrs)
{
    if (!take(p, "{"))
        return;
    while (p->status == 0 && !take(p, "}")) {
        char *name = word(p, "=,}", "an attribute"), *value;

        need(p, "=");
        if (p->status < 0)
            return;
        if (take(p, "\"")) {
            value = quoted(p);
        } else {
            value = word(p, ",}", "a value");
        }
        if (p->status == 0 && !type->attrs)
            p->status = ct_fail(CT_EINVAL, "%s has no attributes", type->name);
        if (p->status == 0)
            p->status =
                ct_attribute_set(&p->graph->mesh, type->attrs, attrs, name, value, type->name);
        take(p, ",");
    }
}

struct line_op {
    char **names;
    struct ct_value **in;
    size_t names_room, in_room;
    int outs, ins;
};

static void parse_operands(struct parser *p, struct line_op *l)
{
    need(p, "(");
    while (p->status == 0 && !take(p, ")")) {
        l->in = ct_arena_grow(p->graph->arena, l->in, &l->in_room, (size_t)l->ins + 1,
                              sizeof(struct ct_value *));
        l->in[l->ins++] = take(p, "_") ? NULL : value_used(p);
        take(p, ",");
    }
}

/* Outputs get the names and types of the text. The verifier finds a dtype or shape that infer would
   not give. */
static void parse_results(struct parser *p, struct ct_op *op, const struct line_op *l)
{
    if (op->outs != l->outs) {
        p->status =
            ct_fail(CT_EINVAL, "%s has %d outputs, not %d", op->type->name, op->outs, l->outs);
        return;
    }
    if (op->outs)
        need(p, ":");
    for (int i = 0; i < op->outs && p->status == 0; i++) {
        if (i)
            need(p, ",");
        parse_type(p, op->out[i]);
        if (p->status == 0 && strcmp(op->out[i]->name, l->names[i]))
            p->status = ct_fail(CT_EINVAL, "%%%s is defined twice", l->names[i]);
    }
    if (take(p, ";")) {
        skip_space(p);
        op->why = ct_arena_strdup(p->graph->arena, p->at);
        p->at += strlen(p->at);
    }
}

static int stream_number(struct parser *p)
{
    const char *begin = p->at, *name = word(p, "%=:;#", "a stream");
    int number = name ? ct_stream_find(name) : 0;

    if (number >= 0)
        return number;
    p->at = begin;
    return fault(p, "a stream");
}

/* Like ct_emit, but with the name of every output given. */
static struct ct_op *emit_named(struct parser *p, struct ct_builder *b, const char *type,
                                const struct line_op *l, const void *attrs)
{
    struct ct_op *op = ct_emit(b, type, l->outs ? l->names[0] : NULL, l->in, l->ins, attrs);

    if (!op) {
        p->status = b->status;
        return NULL;
    }
    for (int i = 1; i < op->outs && i < l->outs; i++)
        ct_value_rename(p->graph, op->out[i], l->names[i]);
    return op;
}

static void parse_names(struct parser *p, struct line_op *l)
{
    skip_space(p);
    while (p->status == 0 && *p->at == '%') {
        l->names = ct_arena_grow(p->graph->arena, l->names, &l->names_room, (size_t)l->outs + 1,
                                 sizeof(char *));
        l->names[l->outs++] = value_name(p);
        if (!take(p, ","))
            break;
        skip_space(p);
    }
    if (l->outs)
        need(p, "=");
}

static void parse_op(struct parser *p, const struct ct_section *section)
{
    struct ct_builder b = {.graph = p->graph, .section = section};
    struct line_op l = {0};
    const struct ct_op_type *type;
    int stream = 0;
    struct ct_op *op;
    void *attrs;
    char *name;

    b.region = word(p, "%", "a region");
    if (b.region && !strcmp(b.region, "-"))
        b.region = "";
    if (take(p, "/"))
        stream = stream_number(p);
    b.marks = parse_marks(p);
    parse_names(p, &l);
    name = word(p, "(", "an op type");
    if (p->status < 0)
        return;
    type = ct_op_find(name);
    if (!type) {
        p->status = ct_fail(CT_EINVAL, "no op type named %s is registered", name);
        return;
    }
    parse_operands(p, &l);
    attrs = ct_arena_alloc(p->graph->arena, type->attrs_size + 1);
    if (p->status == 0 && type->attrs)
        p->status = ct_attributes_reset(type->attrs, attrs);
    parse_attrs(p, type, attrs);
    if (p->status < 0 || !(op = emit_named(p, &b, name, &l, attrs)))
        return;
    op->stream = stream;
    parse_results(p, op, &l);
}

static void parse_source(struct parser *p, enum ct_role role)
{
    char *name = value_name(p);
    enum ct_space space = take(p, "host") ? CT_SPACE_HOST : CT_SPACE_DEVICE;
    struct ct_value *v;

    need(p, ":");
    if (p->status < 0)
        return;
    v = ct_graph_source(p->graph, role, name, CT_F32, 0, NULL);
    v->space = space;
    if (strcmp(v->name, name))
        p->status = ct_fail(CT_EINVAL, "%%%s is defined twice", name);
    else
        parse_type(p, v);
    if (take(p, "sequence="))
        v->sequence = take(p, "-1") ? -1 : (int)number(p);
}

static void parse_mesh(struct parser *p)
{
    struct ct_mesh *mesh = &p->graph->mesh;

    for (skip_space(p); *p->at && p->status == 0; skip_space(p)) {
        char *name = word(p, "=", "an axis");

        need(p, "=");
        if (p->status < 0)
            return;
        if (mesh->count == CT_MAX_AXES) {
            fault(p, "at most 8 axes");
            return;
        }
        mesh->axis[mesh->count++] = (struct ct_axis){name, number(p)};
    }
}

static void parse_fetch(struct parser *p)
{
    char *name = word(p, "=", "a name"), *over, *weight, *end;

    need(p, "=");
    ct_graph_fetch(p->graph, name ? name : "", value_used(p));
    if (take(p, "/") && (over = word(p, "", "a name")))
        p->graph->fetches[p->graph->fetch_count - 1].over = over;
    if (take(p, "*") && (weight = word(p, "", "a number"))) {
        p->graph->fetches[p->graph->fetch_count - 1].weight = strtod(weight, &end);
        if (*end)
            fault(p, "a number");
    }
}

static void parse_grad(struct parser *p)
{
    struct ct_value *value = value_used(p), *grad;

    need(p, "=");
    grad = value_used(p);
    if (value)
        ct_value_set_grad(value, grad);
}

static void parse_chunks(struct parser *p)
{
    int32_t *order = NULL;
    size_t room = 0;

    do {
        order = ct_arena_grow(p->graph->arena, order, &room, (size_t)p->graph->chunks + 1,
                              sizeof(*order));
        order[p->graph->chunks++] = (int32_t)number(p);
    } while (take(p, ","));
    p->graph->chunk_order = order;
}

static void parse_section(struct parser *p)
{
    char *name = word(p, "", "a section"), *part;
    enum ct_part which;
    int group = CT_NO_GROUP, none;

    need(p, "part=");
    part = word(p, "", "a part");
    if (take(p, "group="))
        group = (int)number(p);
    if (p->status < 0)
        return;
    if (!ct_text_main_section(part, &which, &none) || none != CT_NO_GROUP)
        fault(p, "a part of the step");
    else
        ct_graph_section_named(p->graph, name, which, group);
}

static void parse_partition(struct parser *p)
{
    char *name = word(p, "", "an axis");

    if (name)
        p->graph->partition_axis = ct_mesh_find(&p->graph->mesh, name);
    if (name && p->graph->partition_axis < 0)
        p->status = ct_fail(CT_EINVAL, "the mesh has no axis %s", name);
}

/* The section named at the start of an op's line, or NULL. */
static const struct ct_section *section_called(struct parser *p, const char *name)
{
    const struct ct_section *known = ct_graph_section_find(p->graph, name);
    enum ct_part part;
    int group;

    if (known || !ct_text_main_section(name, &part, &group))
        return known;
    return ct_graph_section(p->graph, part, group);
}

static void parse_head(struct parser *p)
{
    need(p, "\"");
    p->graph->name = quoted(p);
    if (take(p, "seed="))
        p->graph->seed = bits(p);
    if (take(p, "chunks="))
        parse_chunks(p);
}

static void parse_line(struct parser *p)
{
    if (take(p, "graph "))
        parse_head(p);
    else if (take(p, "mesh "))
        parse_mesh(p);
    else if (take(p, "section "))
        parse_section(p);
    else if (take(p, "partition "))
        parse_partition(p);
    else if (take(p, "fetch "))
        parse_fetch(p);
    else if (take(p, "grad "))
        parse_grad(p);
    else {
        char *first = word(p, "", "a line of a graph");

        for (int i = CT_ROLE_PARAM; first && i <= CT_ROLE_SCALAR; i++)
            if (!strcmp(first, ct_role_name((enum ct_role)i))) {
                parse_source(p, (enum ct_role)i);
                first = NULL;
            }
        if (first && section_called(p, first))
            parse_op(p, section_called(p, first));
        else if (first)
            p->status = ct_fail(CT_EINVAL, "a line cannot begin with \"%s\"", first);
    }
    skip_space(p);
    if (p->status == 0 && *p->at)
        fault(p, "the end of the line");
}

struct ct_graph *ct_graph_parse(struct ct_arena *arena, const char *text)
{
    struct parser p = {.graph = ct_graph_create(arena, "")};
    char *copy = ct_arena_strdup(arena, text), *line;

    for (int n = 1; (line = strsep(&copy, "\n")); n++) {
        p.at = line;
        skip_space(&p);
        if (*p.at == '\0' || *p.at == '#')
            continue;
        parse_line(&p);
        if (p.status < 0) {
            ct_context(p.status, "line %d", n);
            return NULL;
        }
    }
    return p.graph;
}
