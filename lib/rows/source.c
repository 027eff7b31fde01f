/*
 * A program as code, for any number of rows and columns, in the language of rows (lib/compiler.h).
 *
 * A pass is a loop over vectors of columns. Outputs with rows and columns are written in the last
 * pass, so an output may have the memory of an input. Sums over rows are added up in float32 for
 * the rows of one worker.
 */
#include <stdlib.h>
#include <string.h>

#include "source.h"

static bool is_loaded(const struct writer *w, int k, int pass)
{
    return w->common[k] || (w->buffer[k] >= 0 && w->passes[k] & ((1u << pass) - 1));
}

static void print(struct writer *w, int k)
{
    const bool wide = in_loop(w, k);
    const struct ct_pointwise_style style = {wide ? "w_" : "f_", 9, "f", w->use,
                                             wide ? "v_set" : NULL};

    ct_pointwise_print(&w->f->p, k, &style, w->out);
}

static const char *c_type(enum ct_dtype dtype)
{
    return dtype == CT_BF16 ? "uint16_t" : dtype == CT_F64 ? "double" : "float";
}

static const char *enumerator(enum ct_dtype dtype)
{
    return dtype == CT_BF16 ? "CT_BF16" : "CT_F32";
}

/* A number that is the same in all columns: an element of an input, or computed. */
static void define(struct writer *w, int k, const char *indent, const char *index)
{
    const struct ct_pointwise_node *n = &w->node[k];
    const char *name = ct_arena_printf(w->arena, "%c%d", n->level ? 'r' : 's', k);

    fprintf(w->out, "%sfloat %s = ", indent, name);
    if (n->kind != CT_POINTWISE_INPUT)
        print(w, k);
    else if (w->f->in_dtype[n->input] == CT_BF16)
        fprintf(w->out, "widen(in%d[%s])", n->input, index);
    else
        fprintf(w->out, "(float)in%d[%s]", n->input, index);
    fputs(";\n", w->out);
    w->use[k] = name;
}

/* A vector with the value of node k in these columns. What is rounded to bfloat16 has both forms:
   h is stored, and t computed with. */
static void define_vector(struct writer *w, int k, const char *indent)
{
    const struct ct_pointwise_node *n = &w->node[k];
    const char *name = ct_arena_printf(w->arena, "%c%d", n->level & CT_BY_ROW ? 't' : 'c', k);

    if (n->kind == CT_POINTWISE_INPUT) {
        fprintf(w->out, "%svf %s = v_get(%s, in%d, j, column_end);\n", indent, name,
                enumerator(w->f->in_dtype[n->input]), n->input);
    } else if (n->kind == CT_POINTWISE_BF16) {
        const char *from = w->use[n->arg[0]];

        fprintf(w->out, "%svh h%d = v_narrow(", indent, k);
        if (from)
            fputs(from, w->out);
        else
            print(w, n->arg[0]);
        fprintf(w->out, ");\n%svf %s = v_widen(h%d);\n", indent, name, k);
    } else {
        fprintf(w->out, "%svf %s = ", indent, name);
        print(w, k);
        fputs(";\n", w->out);
    }
    w->use[k] = name;
}

static int uses_in(const struct writer *w, int k, int pass)
{
    int uses = 0;

    for (size_t user = (size_t)k + 1; user < w->f->p.count; user++) {
        const struct ct_pointwise_node *n = &w->node[user];

        if (w->passes[user] & 1u << pass && !is_loaded(w, (int)user, pass))
            for (int i = 0; i < ct_pointwise_arguments(n->kind); i++)
                uses += n->arg[i] == k;
    }
    return uses;
}

static bool is_in(const int *list, int count, int k)
{
    while (count-- > 0)
        if (list[count] == k)
            return true;
    return false;
}

/* Is k a reduction of a row that this pass computes? */
static bool reduces_in(const struct writer *w, int k, int pass)
{
    return w->needed[k] && is_row_reduction(w, k) && w->stage[k] == pass + 1;
}

/* Returns whether there are any. */
static bool begin_reductions(struct writer *w, int pass)
{
    bool any = false;

    for (int k = 0; k < (int)w->f->p.count; k++) {
        if (!reduces_in(w, k, pass))
            continue;
        if (w->node[k].kind == CT_POINTWISE_ROW_MAX)
            fprintf(w->out, "        PARTS(part%d, -INFINITY);\n", k);
        else
            fprintf(w->out, "        PARTS(part%d, 0);\n", k);
        any = true;
    }
    return any;
}

static void end_reductions(struct writer *w, int pass)
{
    for (int k = 0; k < (int)w->f->p.count; k++)
        if (reduces_in(w, k, pass))
            fprintf(w->out, "        float r%d = %s(part%d)%s;\n", k,
                    w->node[k].kind == CT_POINTWISE_ROW_MAX ? "largest" : "total", k,
                    w->node[k].kind == CT_POINTWISE_ROW_MEAN ? " / (float)columns" : "");
}

static void write_ends(struct writer *w, int pass, const char *indent)
{
    int sum = 0;

    for (int k = 0; k < (int)w->f->p.count; k++) {
        const char *value = w->needed[k] ? w->use[w->node[k].arg[0]] : NULL;

        if (!reduces_in(w, k, pass))
            continue;
        if (w->node[k].kind == CT_POINTWISE_ROW_MAX)
            fprintf(w->out,
                    "%spart%d[s] = v_max(part%d[s], first(%s, column_end - j, -INFINITY));\n",
                    indent, k, k, value);
        else
            fprintf(w->out, "%spart%d[s] += first(%s, column_end - j, 0);\n", indent, k, value);
    }
    for (int i = 0; i < w->f->outs; i++) {
        int k = w->f->out[i], summed = rows_sum_of(w, i);

        if (summed >= 0 && w->stage[summed] == pass)
            fprintf(w->out,
                    "%sv_put(CT_F32, sum%d, j, column_end, v_get(CT_F32, sum%d, j, "
                    "column_end) + %s);\n",
                    indent, sum, sum, w->use[w->node[summed].arg[0]]);
        sum += summed >= 0;
        if (pass != w->last || w->node[k].level != WHOLE)
            continue;
        if (w->flags & CT_ROWS_ADDED)
            fprintf(
                w->out,
                "%sv_put(%s, out%d, j, column_end, ADDS(%d) ? v_get(%s, out%d, j, column_end) + "
                "%s : %s);\n",
                indent, enumerator(w->f->out_dtype[i]), i, i, enumerator(w->f->out_dtype[i]), i,
                w->use[k], w->use[k]);
        else if (w->node[k].kind == CT_POINTWISE_BF16 && !is_loaded(w, k, pass))
            fprintf(w->out, "%sput_narrow(out%d, j, column_end, h%d);\n", indent, i, k);
        else
            fprintf(w->out, "%sv_put(%s, out%d, j, column_end, %s);\n", indent,
                    enumerator(w->f->out_dtype[i]), i, w->use[k]);
    }
}

static void write_buffer(struct writer *w, int k, const char *indent)
{
    fprintf(w->out, "%sv_put(CT_F32, buffer%d, j, column_end, %s);\n", indent, w->buffer[k],
            w->use[k]);
}

static void write_vectors(struct writer *w, int pass, const int *end, int count, const char *indent)
{
    for (int k = 0; k < (int)w->f->p.count; k++) {
        if (!(w->passes[k] & 1u << pass))
            continue;
        if (is_loaded(w, k, pass)) {
            w->use[k] = ct_arena_printf(w->arena, "t%d", k);
            fprintf(w->out, "%svf t%d = v_get(CT_F32, buffer%d, j, column_end);\n", indent, k,
                    w->buffer[k]);
        } else if (w->node[k].kind == CT_POINTWISE_INPUT || is_in(end, count, k) ||
                   w->buffer[k] >= 0 || uses_in(w, k, pass) > 1) {
            define_vector(w, k, indent);
            if (w->buffer[k] >= 0)
                write_buffer(w, k, indent);
        }
    }
}

/* At the end of a loop over columns. */
static void forget_vectors(struct writer *w)
{
    for (int k = 0; k < (int)w->f->p.count; k++)
        if (in_loop(w, k))
            w->use[k] = NULL;
}

static void write_pass(struct writer *w, int pass)
{
    int *end = ct_arena_array(w->arena, int, w->f->p.count + CT_COMPILED_OUTPUTS);
    int count = rows_ends(w, pass, end);
    const char *indent = "            ";

    if (!count)
        return;
    if (begin_reductions(w, pass)) {
        fputs("        FOR_STEPS(j, s) {\n", w->out);
    } else {
        fputs("        FOR_COLUMNS(j) {\n", w->out);
    }
    write_vectors(w, pass, end, count, indent);
    write_ends(w, pass, indent);
    fprintf(w->out, "%s}\n", indent + 4);
    end_reductions(w, pass);
    forget_vectors(w);
}

/* Writes values that a row has one of: known before pass `stage`, or all results after the last. */
static void write_row_values(struct writer *w, int stage)
{
    for (int k = 0; k < (int)w->f->p.count; k++) {
        if (!w->needed[k] || w->node[k].level != CT_BY_ROW || w->stage[k] != stage)
            continue;
        if (is_row_reduction(w, k))
            w->use[k] = ct_arena_printf(w->arena, "r%d", k);
        else
            define(w, k, "        ", "i");
    }
}

static bool is_read(const struct writer *w, int input)
{
    for (size_t k = 0; k < w->f->p.count; k++)
        if (w->needed[k] && w->node[k].kind == CT_POINTWISE_INPUT && w->node[k].input == input)
            return true;
    return false;
}

static unsigned input_level(const struct writer *w, int input)
{
    for (size_t k = 0; k < w->f->p.count; k++)
        if (w->needed[k] && w->node[k].kind == CT_POINTWISE_INPUT && w->node[k].input == input)
            return w->node[k].level;
    return 0;
}

/* Pointers of operands that differ by row (by_row), or of those that do not. */
static void write_pointers(struct writer *w, bool by_row)
{
    const char *indent = by_row ? "        " : "    ";

    for (int i = 0; i < w->f->ins; i++)
        if (is_read(w, i) && (input_level(w, i) == WHOLE) == by_row)
            fprintf(w->out,
                    by_row ? "%sconst %s *in%d = (const %s *)in[%d].data + i * in[%d].stride;\n"
                           : "%sconst %s *in%d = (const %s *)in[%d].data;\n",
                    indent, c_type(w->f->in_dtype[i]), i, c_type(w->f->in_dtype[i]), i, i);
    for (int i = 0; i < w->f->outs; i++) {
        unsigned level = w->node[w->f->out[i]].level;

        if (level != CT_BY_COLUMN && (level == WHOLE) == by_row)
            fprintf(w->out,
                    by_row ? "%s%s *out%d = (%s *)out[%d].data + i * out[%d].stride;\n"
                           : "%s%s *out%d = (%s *)out[%d].data;\n",
                    indent, c_type(w->f->out_dtype[i]), i, c_type(w->f->out_dtype[i]), i, i);
    }
}

/* By node: is a buffer of a value that all rows have in common made of it? */
static const bool *find_parts_of_common(const struct writer *w)
{
    bool *part = ct_arena_array(w->arena, bool, w->f->p.count);

    for (int k = (int)w->f->p.count; k-- > 0;) {
        const struct ct_pointwise_node *n = &w->node[k];

        part[k] |= w->common[k] && w->buffer[k] >= 0;
        for (int i = 0; part[k] && i < ct_pointwise_arguments(n->kind); i++)
            part[n->arg[i]] |= in_loop(w, n->arg[i]);
    }
    return part;
}

/* Fills the buffers of values that all rows have in common. */
static void write_common(struct writer *w)
{
    const bool *part = find_parts_of_common(w);
    bool any = false;

    for (int k = 0; k < (int)w->f->p.count; k++) {
        if (!part[k])
            continue;
        if (!any)
            fputs("    FOR_COLUMNS(j) {\n", w->out);
        any = true;
        define_vector(w, k, "        ");
        if (w->buffer[k] >= 0)
            write_buffer(w, k, "        ");
    }
    if (any)
        fputs("    }\n", w->out);
    forget_vectors(w);
}

static void write_row_result(const struct writer *w, int i, bool narrow)
{
    const char *value = w->use[w->f->out[i]];

    fprintf(w->out, "            out%d[i] = %s", i, narrow ? "narrow(" : "");
    if (w->flags & CT_ROWS_ADDED)
        fprintf(w->out,
                narrow ? "(ADDS(%d) ? widen(out%d[i]) : 0) + " : "(ADDS(%d) ? out%d[i] : 0) + ", i,
                i);
    fprintf(w->out, "%s%s;\n", value, narrow ? ")" : "");
}

static void write_row_results(const struct writer *w)
{
    bool any = false;

    for (int i = 0; i < w->f->outs; i++) {
        if (w->node[w->f->out[i]].level != CT_BY_ROW)
            continue;
        if (!any)
            fputs("        ROW_RESULTS {\n", w->out);
        write_row_result(w, i, w->f->out_dtype[i] == CT_BF16);
        any = true;
    }
    if (any)
        fputs("        }\n", w->out);
}

static bool needs_columns(const struct writer *w)
{
    bool counts = w->buffers || w->sums;

    for (size_t k = 0; k < w->f->p.count; k++)
        counts |= w->needed[k] && (w->node[k].kind == CT_POINTWISE_ROW_MEAN ||
                                   w->node[k].kind == CT_POINTWISE_COLUMNS);
    return counts;
}

static void write_function(struct writer *w)
{
    fputs("ROW_KERNEL\n{\n", w->out);
    write_pointers(w, false);
    if (needs_columns(w))
        fputs("    int64_t columns = column_end - column;\n", w->out);
    for (int i = 0; i < w->buffers; i++)
        fprintf(w->out, "    float *buffer%d = scratch + %d * columns;\n", i, i);
    for (int i = 0; i < w->sums; i++)
        fprintf(w->out, "    float *sum%d = SUM(%d);\n", i, i);
    for (int k = 0; k < (int)w->f->p.count; k++)
        if (w->needed[k] && w->node[k].level == 0 && w->node[k].kind != CT_POINTWISE_NUMBER)
            define(w, k, "    ", "0");
    fputs("\n", w->out);
    write_common(w);
    fputs("    FOR_ROWS(i) {\n", w->out);
    write_pointers(w, true);
    for (int pass = 0; pass <= w->last; pass++) {
        write_row_values(w, pass);
        write_pass(w, pass);
    }
    write_row_values(w, w->last + 1);
    write_row_results(w);
    fputs("    }\n}\n", w->out);
}

static bool is_flat(const struct writer *w)
{
    for (size_t k = 0; k < w->f->p.count; k++)
        if (w->needed[k] && w->node[k].level && w->node[k].level != WHOLE)
            return false;
    return true;
}

static char *write_levels(const struct writer *w)
{
    char *levels = ct_arena_alloc(w->arena, (size_t)(w->f->ins + w->f->outs) + 1);

    for (int i = 0; i < w->f->ins; i++)
        levels[i] = (char)('0' + input_level(w, i));
    for (int i = 0; i < w->f->outs; i++)
        levels[w->f->ins + i] = (char)('0' + w->node[w->f->out[i]].level);
    return levels;
}

void ct_rows_write(const struct ct_rows_program *f, unsigned flags, struct ct_arena *arena,
                   struct ct_rows_code *code)
{
    struct writer w = {.f = f, .node = f->p.node, .arena = arena, .flags = flags};
    char *text = NULL;
    size_t size;

    w.use = ct_arena_array(arena, const char *, f->p.count);
    rows_find_passes(&w);
    w.out = open_memstream(&text, &size);
    fprintf(w.out, "/* %s */\n", ct_rows_text(f, arena));
    write_function(&w);
    fclose(w.out);
    *code = (struct ct_rows_code){.text = ct_arena_strdup(arena, text),
                                  .levels = write_levels(&w),
                                  .buffers = w.buffers,
                                  .sums = w.sums,
                                  .flat = is_flat(&w)};
    free(text);
}
