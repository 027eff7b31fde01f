/*
 * The text form of graphs, as it is printed.
 *
 *     graph "llama" seed=7
 *     mesh dp_shard=2 tp=2
 *     param %model.norm.weight : float32[256] [dp_shard]
 *     F layers.0 %layers.0.q, %layers.0.k = linear(%x, %wq, %wk) : bfloat16[8,256,256], ..
 *     I head %d.x = cast(%d.y) {dtype="float32"} : float32[8] ; needed by ..
 *     fetch loss = %loss / valid_tokens
 *     grad %model.norm.weight = %d.model.norm.weight
 *
 *     section 1SEND_F part=F group=1
 *
 * An op's line begins with its section and region. "_" is an absent input and "-" an empty region.
 * "/gather" is a stream. "#recompute,save" are marks; a value's marks follow its sharding.
 * "float32!" is a dtype fixed by a transform. "opaque<N>" is a layout of N bytes. "chunks=0,3,1,2"
 * in the first line is the order of the sequence's chunks. "sequence=2" behind an input is the
 * dimension that runs along sequences (-1: none), where that is not dimension 1. The host divides a
 * fetch by the one whose name is behind "/", and is a part of what is differentiated where "*"
 * and a number follow. The text after "; " says why the op is there.
 * Attributes with their default values are left out.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/op.h>

#include "ir/text/text.h"

bool ct_text_main_section(const char *name, enum ct_part *part, int *group)
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
    for (int i = 0; i < v->holders.words; i++)
        fprintf(out, "%s%" PRIu64, i ? "," : " held<", v->holders.word[i]);
    if (v->holders.words)
        fputc('>', out);
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
    struct ct_arena scratch = {0};
    const char *open = " {";

    for (const struct ct_option *o = op->type->attrs; o && o->name; o++) {
        char shortened[512], *text = shortened;
        int length = ct_attribute_format(&graph->mesh, op, o, text, sizeof(shortened));

        if (length >= (int)sizeof(shortened)) {
            text = ct_arena_alloc(&scratch, (size_t)length + 1);
            ct_attribute_format(&graph->mesh, op, o, text, (size_t)length + 1);
        }
        if (o->fallback && !strcmp(text, o->fallback))
            continue;
        fprintf(out, is_quoted(o) ? "%s%s=\"%s\"" : "%s%s=%s", open, o->name, text);
        open = ", ";
    }
    if (*open == ',')
        fputc('}', out);
    ct_arena_finish(&scratch);
}

static void print_op(const struct ct_graph *graph, const struct ct_op *op, FILE *out)
{
    fprintf(out, "%s %s", op->section->name, *op->region ? op->region : "-");
    if (op->stream)
        fprintf(out, " /%s", ct_stream_name(op->stream));
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

        if (ct_text_main_section(s->name, &part, &group))
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
        if (v->sequence)
            fprintf(out, " sequence=%d", v->sequence);
        fputc('\n', out);
    }
    ct_for_each_op (op, graph)
        print_op(graph, op, out);
    for (size_t i = 0; i < graph->fetch_count; i++) {
        const struct ct_fetch *f = &graph->fetches[i];

        fprintf(out, "fetch %s = %%%s%s%s", f->name, f->value->name, f->over ? " / " : "",
                f->over ? f->over : "");
        if (f->weight != 0)
            fprintf(out, " * %.17g", f->weight);
        fputc('\n', out);
    }
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
