/*
 * The text form of graphs: printing and parsing.
 *
 *     graph "llama" seed=7
 *     mesh dp_shard=2 tp=2
 *     param %model.norm.weight : float32[256] [dp_shard]
 *     F layers.0 %layers.0.q, %layers.0.k = linear(%x, %wq, %wk) : bfloat16[8,256,256], ..
 *     I head %d.x = cast(%d.y) {dtype="float32"} : float32[8] ; needed by ..
 *     fetch loss = %loss
 *     grad %model.norm.weight = %d.model.norm.weight
 *
 *     section 1SEND_F part=F group=1
 *
 * An op's line begins with its section and region. "_" is an absent input and "-" an empty region.
 * "/gather" is a stream. "#recompute,save" are marks; a value's marks follow its sharding.
 * "float32!" is a dtype fixed by a transform. "opaque<N>" is a layout of N bytes. "chunks=0,3,1,2"
 * in the first line is the order of the sequence's chunks. The text after "; " says why the op is
 * there. Attributes with their default values are left out.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/op.h>

static const char *const streams[] = {"compute",  "gather", "reduce",  "p2p",  "copy_in",
                                      "copy_out", "send",   "receive", "chunk"};
_Static_assert(CT_COUNT(streams) == CT_STREAMS, "a name for each stream");

/* Is name that of a main section: a part, or a group's number and a part? */
static bool main_section(const char *name, enum ct_part *part, int *group)
{
    char *end;
    long number = strtol(name, &end, 10);

    *group = end == name ? CT_NO_GROUP : (int)number;
    for (int i = 0; i < CT_PARTS; i++)
        if (!strcmp(end, ct_part_name((enum ct_part)i))) {
            *part = (enum ct_part)i;
            return *group == CT_NO_GROUP || ct_part_is_microbatch(*part);
        }
    return false;
}

/* ---- printing ---- */

static void print_marks(ct_marks marks, FILE *out)
{
    const char *open = " #";

    for (int i = 0; i < CT_MARKS; i++)
        if (marks >> i & 1) {
            fprintf(out, "%s%s", open, ct_mark_name(i));
            open = ",";
        }
}

static void print_type(const struct ct_graph *graph, const struct ct_value *v, FILE *out)
{
    char sharding[256];

    fprintf(out, "%s%s[", ct_dtype_name(v->dtype), v->dtype_fixed ? "!" : "");
    for (int i = 0; i < v->ndim; i++)
        fprintf(out, "%s%" PRId64, i ? "," : "", v->shape[i]);
    fputc(']', out);
    if (v->opaque_bytes)
        fprintf(out, " opaque<%zu>", v->opaque_bytes);
    if (v->holders)
        fprintf(out, " held<%" PRIu64 ">", v->holders);
    if (ct_sharding_print(&v->sharding, &graph->mesh, v->ndim, sharding, sizeof(sharding)) > 0)
        fprintf(out, " %s", sharding);
    print_marks(v->marks, out);
}

/* Numbers and truth values are not quoted. */
static bool is_quoted(const struct ct_option *o)
{
    return o->type != CT_BOOL && o->type != CT_INT && o->type != CT_FLOAT;
}

static void print_attrs(const struct ct_graph *graph, const struct ct_op *op, FILE *out)
{
    const char *open = " {";

    for (const struct ct_option *o = op->type->attrs; o && o->name; o++) {
        char text[512];

        ct_attribute_format(&graph->mesh, op, o, text, sizeof(text));
        if (o->fallback && !strcmp(text, o->fallback))
            continue;
        fprintf(out, is_quoted(o) ? "%s%s=\"%s\"" : "%s%s=%s", open, o->name, text);
        open = ", ";
    }
    if (*open == ',')
        fputc('}', out);
}

static void print_op(const struct ct_graph *graph, const struct ct_op *op, FILE *out)
{
    fprintf(out, "%s %s", op->section->name, *op->region ? op->region : "-");
    if (op->stream)
        fprintf(out, " /%s", streams[op->stream]);
    print_marks(op->marks, out);
    for (int i = 0; i < op->outs; i++)
        fprintf(out, "%s%%%s", i ? ", " : " ", op->out[i]->name);
    fprintf(out, "%s%s(", op->outs ? " = " : " ", op->type->name);
    for (int i = 0; i < op->ins; i++)
        fprintf(out, op->in[i] ? "%s%%%s" : "%s_", i ? ", " : "", op->in[i] ? op->in[i]->name : "");
    fputc(')', out);
    print_attrs(graph, op, out);
    for (int i = 0; i < op->outs; i++) {
        fputs(i ? ", " : " : ", out);
        print_type(graph, op->out[i], out);
    }
    if (op->why)
        fprintf(out, " ; %s", op->why);
    fputc('\n', out);
}

/* Print the sections whose names do not determine their part and group. */
static void print_sections(const struct ct_graph *graph, FILE *out)
{
    if (graph->partition_axis >= 0)
        fprintf(out, "partition %s\n", graph->mesh.axis[graph->partition_axis].name);
    for (size_t i = 0; i < graph->section_count; i++) {
        const struct ct_section *s = graph->sections[i];
        enum ct_part part;
        int group;

        if (main_section(s->name, &part, &group))
            continue;
        fprintf(out, "section %s part=%s", s->name, ct_part_name(s->part));
        if (s->group >= 0)
            fprintf(out, " group=%d", s->group);
        fputc('\n', out);
    }
}

void ct_graph_print(const struct ct_graph *graph, FILE *out)
{
    fprintf(out, "graph \"%s\"", graph->name);
    if (graph->seed)
        fprintf(out, " seed=%" PRIu64, graph->seed);
    if (graph->update_by_region)
        fputs(" update=region", out);
    for (int i = 0; i < graph->chunks; i++)
        fprintf(out, "%s%" PRId32, i ? "," : " chunks=", graph->chunk_order[i]);
    fputc('\n', out);
    if (graph->mesh.count) {
        fputs("mesh", out);
        for (int i = 0; i < graph->mesh.count; i++)
            fprintf(out, " %s=%" PRId64, graph->mesh.axis[i].name, graph->mesh.axis[i].size);
        fputc('\n', out);
    }
    print_sections(graph, out);
    for (size_t i = 0; i < graph->value_count; i++) {
        const struct ct_value *v = graph->values[i];

        if (v->producer)
            continue;
        fprintf(out, "%s %%%s%s : ", ct_role_name(v->role), v->name,
                v->space == CT_SPACE_HOST ? " host" : "");
        print_type(graph, v, out);
        fputc('\n', out);
    }
    ct_for_each_op (op, graph)
        print_op(graph, op, out);
    for (size_t i = 0; i < graph->fetch_count; i++)
        fprintf(out, "fetch %s = %%%s\n", graph->fetches[i].name, graph->fetches[i].value->name);
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->grad)
            fprintf(out, "grad %%%s = %%%s\n", graph->values[i]->name,
                    graph->values[i]->grad->name);
}

char *ct_graph_text(const struct ct_graph *graph, struct ct_arena *arena)
{
    char *text, *copy;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    ct_graph_print(graph, out);
    fclose(out);
    copy = ct_arena_copy(arena, text, size + 1);
    free(text);
    return copy;
}

/* ---- parsing ---- */

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

static int64_t number(struct parser *p)
{
    char *end;
    long long n;

    skip_space(p);
    errno = 0;
    n = strtoll(p->at, &end, 10);
    if (end == p->at || n < 0 || errno)
        return fault(p, "a number");
    p->at = end;
    return n;
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
    if (take(p, "held<")) {
        v->holders = (uint64_t)number(p);
        need(p, ">");
    }
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
    for (int i = 0; i < CT_STREAMS; i++)
        if (take(p, streams[i]))
            return i;
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

static void parse_op(struct parser *p, const struct ct_section *section)
{
    struct ct_builder b = {.graph = p->graph, .section = section};
    struct line_op line = {0}, *l = &line;
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
    name = word(p, "(", "an op type");
    if (p->status < 0)
        return;
    type = ct_op_find(name);
    if (!type) {
        p->status = ct_fail(CT_EINVAL, "no op type named %s is registered", name);
        return;
    }
    parse_operands(p, l);
    attrs = ct_arena_alloc(p->graph->arena, type->attrs_size + 1);
    if (p->status == 0 && type->attrs)
        p->status = ct_attributes_reset(type->attrs, attrs);
    parse_attrs(p, type, attrs);
    if (p->status < 0 || !(op = emit_named(p, &b, name, l, attrs)))
        return;
    op->stream = stream;
    parse_results(p, op, l);
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
    char *name = word(p, "=", "a name");

    need(p, "=");
    ct_graph_fetch(p->graph, name ? name : "", value_used(p));
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
    if (!main_section(part, &which, &none) || none != CT_NO_GROUP)
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

    if (known || !main_section(name, &part, &group))
        return known;
    return ct_graph_section(p->graph, part, group);
}

static void parse_head(struct parser *p)
{
    need(p, "\"");
    p->graph->name = quoted(p);
    if (take(p, "seed="))
        p->graph->seed = (uint64_t)number(p);
    p->graph->update_by_region = take(p, "update=region");
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
