/*
 * A program as C, for any number of rows and columns.
 *
 * A row is passed over once for each reduction that depends on another, and once more. A pass is a
 * loop over the columns, which the compiler turns into vector instructions. What a later pass needs
 * again is computed again, unless it costs a function call: then a buffer keeps it. Outputs with
 * rows and columns are written in the last pass, so an output may have the memory of an input.
 * Sums over rows are added up in float32 for the rows of one call.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuse.h"

#define WHOLE (CT_BY_ROW | CT_BY_COLUMN)

/* Functions of one element. exp: 2^n e^r with |r| <= log(2) / 2, Taylor's series. tanh and erf:
   series near 0, else by exp. */
static const char prelude[] =
    "#include <math.h>\n"
    "#include <stdint.h>\n"
    "#include <string.h>\n"
    "\n"
    "struct operand {\n"
    "    void *data;\n"
    "    int64_t stride;\n"
    "};\n"
    "union bits {\n"
    "    float f;\n"
    "    uint32_t u;\n"
    "};\n"
    "\n"
    "static inline float widen(uint16_t h)\n"
    "{\n"
    "    return (union bits){.u = (uint32_t)h << 16}.f;\n"
    "}\n"
    "\n"
    "/* To nearest even; NaN stays NaN. */\n"
    "static inline float f_bfloat16(float x)\n"
    "{\n"
    "    uint32_t u = (union bits){x}.u, even = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000;\n"
    "\n"
    "    return (union bits){.u = x == x ? even : u | 0x400000}.f;\n"
    "}\n"
    "\n"
    "static inline uint16_t narrow(float rounded)\n"
    "{\n"
    "    return (uint16_t)((union bits){rounded}.u >> 16);\n"
    "}\n"
    "\n"
    "static inline float f_min(float a, float b)\n"
    "{\n"
    "    return a < b ? a : b;\n"
    "}\n"
    "\n"
    "static inline float f_max(float a, float b)\n"
    "{\n"
    "    return a > b ? a : b;\n"
    "}\n"
    "\n"
    "static inline float f_exp(float x)\n"
    "{\n"
    "    float y = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x;\n"
    "    float shifted = y * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;\n"
    "    float r = y - n * 0.693359375f + n * 2.12194440e-4f;\n"
    "    int32_t whole = (int32_t)(union bits){shifted}.u - 0x4b400000, half = whole >> 1;\n"
    "    float a = (union bits){.u = (uint32_t)(half + 127) << 23}.f;\n"
    "    float b = (union bits){.u = (uint32_t)(whole - half + 127) << 23}.f;\n"
    "    float e = 1.0f / 5040;\n"
    "\n"
    "    e = e * r + 1.0f / 720;\n"
    "    e = e * r + 1.0f / 120;\n"
    "    e = e * r + 1.0f / 24;\n"
    "    e = e * r + 1.0f / 6;\n"
    "    e = e * r + 0.5f;\n"
    "    e = e * r + 1.0f;\n"
    "    e = e * r + 1.0f;\n"
    "    return x == x ? e * a * b : x;\n"
    "}\n"
    "\n"
    "static inline float f_tanh(float x)\n"
    "{\n"
    "    float z = x * x, e = f_exp(2.0f * (x < 0 ? -x : x)), far = 1.0f - 2.0f / (e + 1.0f);\n"
    "    float near = 62.0f / 2835 - z * (1382.0f / 155925);\n"
    "\n"
    "    near = x - x * z * (1.0f / 3 - z * (2.0f / 15 - z * (17.0f / 315 - z * near)));\n"
    "    return z < 0.09f ? near : x < 0 ? -far : far;\n"
    "}\n"
    "\n"
    "static inline float f_erf(float x)\n"
    "{\n"
    "    float z = x * x, size = x < 0 ? -x : x, t = 1.0f / (1.0f + 0.5f * size);\n"
    "    float near = 7.87587507e-05f, far = 0.120390737f;\n"
    "\n"
    "    near = near * z - 0.000801686429f;\n"
    "    near = near * z + 0.00518908742f;\n"
    "    near = near * z - 0.026854212f;\n"
    "    near = near * z + 0.112835947f;\n"
    "    near = near * z - 0.376126267f;\n"
    "    near = near * z + 1.12837917f;\n"
    "    far = far * t - 0.474831869f;\n"
    "    far = far * t + 0.568621674f;\n"
    "    far = far * t - 0.107932638f;\n"
    "    far = far * t + 0.349864193f;\n"
    "    far = far * t + 0.259106898f;\n"
    "    far = far * t + 0.285001936f;\n"
    "    far = 1.0f - f_exp(-z) * (far * t - 0.000159982596f);\n"
    "    return size < 1.0f ? x * near : x < 0 ? -far : far;\n"
    "}\n"
    "\n"
    "#define f_log logf\n"
    "#define f_sin sinf\n"
    "#define f_cos cosf\n"
    "#define f_sqrt sqrtf\n"
    "#define f_abs fabsf\n"
    "#define f_pow powf\n"
    "\n";

#define MOST_PASSES 32

struct writer {
    const struct fuse_program *f;
    const struct ct_pointwise_node *node;
    struct ct_arena *arena;
    FILE *out;
    const char **use; /* by node: its name in C where it has one */
    bool *needed;     /* by node: an output depends on it */
    int *stage; /* by node: the first pass in which it is known; of a reduction, the pass after
                         its own */
    uint32_t *passes; /* by node: the passes that need it inside their loop */
    int *buffer;      /* by node: number of the buffer that keeps it; -1: none */
    int buffers, sums, last;
};

static bool in_loop(const struct writer *w, int k)
{
    return w->node[k].level & CT_BY_COLUMN;
}

static bool is_row_reduction(const struct writer *w, int k)
{
    return w->node[k].kind >= CT_POINTWISE_ROW_SUM && w->node[k].kind < CT_POINTWISE_COLUMN_SUM;
}

static bool is_column_sum(const struct writer *w, int k)
{
    return w->node[k].kind == CT_POINTWISE_COLUMN_SUM;
}

/* The sum over rows that output i is, rounded or not; -1: it is none. */
static int sum_of(const struct writer *w, int i)
{
    int k = w->f->out[i];

    if (w->node[k].kind == CT_POINTWISE_BF16)
        k = w->node[k].arg[0];
    return is_column_sum(w, k) ? k : -1;
}

/* ---- what is computed in which pass ---- */

static void need(struct writer *w, int k)
{
    const struct ct_pointwise_node *n = &w->node[k];

    if (w->needed[k])
        return;
    w->needed[k] = true;
    for (int i = 0; i < ct_pointwise_arguments(n->kind); i++) {
        need(w, n->arg[i]);
        if (w->stage[k] < w->stage[n->arg[i]])
            w->stage[k] = w->stage[n->arg[i]];
    }
    if (w->last < w->stage[k])
        w->last = w->stage[k];
    if (is_row_reduction(w, k))
        w->stage[k]++;
}

static void need_in(struct writer *w, int k, int pass)
{
    const struct ct_pointwise_node *n = &w->node[k];

    if (!in_loop(w, k) || w->passes[k] & 1u << pass)
        return;
    if (w->buffer[k] >= 0 && w->passes[k]) {
        w->passes[k] |= 1u << pass;
        return;
    }
    w->passes[k] |= 1u << pass;
    for (int i = 0; i < ct_pointwise_arguments(n->kind); i++)
        need_in(w, n->arg[i], pass);
}

/* What a pass ends with: arguments of its reductions, and in the last one the outputs. */
static int ends(const struct writer *w, int pass, int *end)
{
    int count = 0;

    for (int k = 0; k < (int)w->f->p.count; k++)
        if (w->needed[k] && ((is_row_reduction(w, k) && w->stage[w->node[k].arg[0]] == pass) ||
                             (is_column_sum(w, k) && w->stage[k] == pass)))
            end[count++] = w->node[k].arg[0];
    for (int i = 0; pass == w->last && i < w->f->outs; i++)
        if (w->node[w->f->out[i]].level == WHOLE)
            end[count++] = w->f->out[i];
    return count;
}

static void find_passes(struct writer *w)
{
    int *end = ct_arena_array(w->arena, int, w->f->p.count + FUSE_MOST_OUTPUTS);

    memset(w->passes, 0, sizeof(*w->passes) * w->f->p.count);
    for (int pass = 0; pass <= w->last; pass++)
        for (int i = ends(w, pass, end); i-- > 0;)
            need_in(w, end[i], pass);
}

static bool calls_a_function(enum ct_pointwise_kind kind)
{
    return kind >= CT_POINTWISE_EXP && kind <= CT_POINTWISE_COS;
}

static void find_buffers(struct writer *w)
{
    for (size_t k = 0; k < w->f->p.count; k++)
        w->buffer[k] = -1;
    find_passes(w);
    for (size_t k = 0; k < w->f->p.count; k++)
        if ((w->passes[k] & (w->passes[k] - 1)) && calls_a_function(w->node[k].kind))
            w->buffer[k] = w->buffers++;
    if (w->buffers)
        find_passes(w);
}

/* ---- text ---- */

static bool is_loaded(const struct writer *w, int k, int pass)
{
    return w->buffer[k] >= 0 && w->passes[k] & ((1u << pass) - 1);
}

static void print(struct writer *w, int k, const char *prefix)
{
    const struct ct_pointwise_style style = {prefix, 9, "f", w->use};

    ct_pointwise_print(&w->f->p, k, &style, w->out);
}

static const char *c_type(enum ct_dtype dtype)
{
    return dtype == CT_BF16 ? "uint16_t" : dtype == CT_F64 ? "double" : "float";
}

/* An element of input i, at `index`. */
static const char *element(struct writer *w, int i, const char *index)
{
    return ct_arena_printf(w->arena,
                           w->f->in_dtype[i] == CT_BF16  ? "widen(in%d[%s])"
                           : w->f->in_dtype[i] == CT_F64 ? "(float)in%d[%s]"
                                                         : "in%d[%s]",
                           i, index);
}

/* A constant with the value of node k: an element of an input, or computed. */
static void define(struct writer *w, int k, const char *indent, const char *index)
{
    static const char letters[] = {'s', 'c', 'r', 't'};
    const struct ct_pointwise_node *n = &w->node[k];
    const char *name = ct_arena_printf(w->arena, "%c%d", letters[n->level], k);

    fprintf(w->out, "%sfloat %s = ", indent, name);
    if (n->kind == CT_POINTWISE_INPUT)
        fputs(element(w, n->input, index), w->out);
    else
        print(w, k, "f_");
    fputs(";\n", w->out);
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

static void write_pragma(struct writer *w, int pass)
{
    fputs("        #pragma omp simd", w->out);
    for (int k = 0; k < (int)w->f->p.count; k++)
        if (w->needed[k] && is_row_reduction(w, k) && w->stage[k] == pass + 1)
            fprintf(w->out, " reduction(%s : r%d)",
                    w->node[k].kind == CT_POINTWISE_ROW_MAX ? "max" : "+", k);
    fputc('\n', w->out);
}

static void write_ends(struct writer *w, int pass)
{
    int sum = 0;

    for (int k = 0; k < (int)w->f->p.count; k++) {
        const char *value = w->needed[k] ? w->use[w->node[k].arg[0]] : NULL;

        if (!w->needed[k] || !is_row_reduction(w, k) || w->stage[k] != pass + 1)
            continue;
        if (w->node[k].kind == CT_POINTWISE_ROW_MAX)
            fprintf(w->out, "            r%d = f_max(r%d, %s);\n", k, k, value);
        else
            fprintf(w->out, "            r%d += %s;\n", k, value);
    }
    for (int i = 0; i < w->f->outs; i++) {
        int k = w->f->out[i], summed = sum_of(w, i);

        if (summed >= 0 && w->stage[summed] == pass)
            fprintf(w->out, "            sum%d[j] += %s;\n", sum, w->use[w->node[summed].arg[0]]);
        sum += summed >= 0;
        if (pass == w->last && w->node[k].level == WHOLE)
            fprintf(w->out,
                    w->f->out_dtype[i] == CT_BF16 ? "            out%d[j] = narrow(%s);\n"
                                                  : "            out%d[j] = %s;\n",
                    i, w->use[k]);
    }
}

static void write_pass(struct writer *w, int pass)
{
    int *end = ct_arena_array(w->arena, int, w->f->p.count + FUSE_MOST_OUTPUTS);
    int count = ends(w, pass, end);

    if (!count)
        return;
    write_pragma(w, pass);
    fputs("        for (int64_t j = column; j < column_end; j++) {\n", w->out);
    for (int k = 0; k < (int)w->f->p.count; k++) {
        if (!(w->passes[k] & 1u << pass))
            continue;
        if (is_loaded(w, k, pass)) {
            w->use[k] = ct_arena_printf(w->arena, "buffer%d[j]", w->buffer[k]);
        } else if (w->node[k].kind == CT_POINTWISE_INPUT || is_in(end, count, k) ||
                   w->buffer[k] >= 0 || uses_in(w, k, pass) > 1) {
            define(w, k, "            ", "j");
            if (w->buffer[k] >= 0)
                fprintf(w->out, "            buffer%d[j] = %s;\n", w->buffer[k], w->use[k]);
        }
    }
    write_ends(w, pass);
    fputs("        }\n", w->out);
    for (int k = 0; k < (int)w->f->p.count; k++)
        if (in_loop(w, k))
            w->use[k] = NULL;
}

/* What has one value for a row: known before pass `stage`, or all results after the last one. */
static void write_row_values(struct writer *w, int stage)
{
    for (int k = 0; k < (int)w->f->p.count; k++) {
        const struct ct_pointwise_node *n = &w->node[k];

        if (!w->needed[k] || n->level != CT_BY_ROW || w->stage[k] != stage)
            continue;
        if (n->kind == CT_POINTWISE_ROW_MEAN)
            fprintf(w->out, "        r%d /= (float)(column_end - column);\n", k);
        if (is_row_reduction(w, k))
            w->use[k] = ct_arena_printf(w->arena, "r%d", k);
        else
            define(w, k, "        ", "i");
    }
    for (int k = 0; k < (int)w->f->p.count; k++)
        if (w->needed[k] && is_row_reduction(w, k) && w->stage[k] == stage + 1)
            fprintf(w->out, "        float r%d = %s;\n", k,
                    w->node[k].kind == CT_POINTWISE_ROW_MAX ? "-INFINITY" : "0.0f");
}

static unsigned input_level(const struct writer *w, int input)
{
    for (size_t k = 0; k < w->f->p.count; k++)
        if (w->needed[k] && w->node[k].kind == CT_POINTWISE_INPUT && w->node[k].input == input)
            return w->node[k].level;
    return 0;
}

/* Pointers of operands that begin anew in each row (by_row), or do not. */
static void write_pointers(struct writer *w, bool by_row)
{
    const char *indent = by_row ? "        " : "    ";

    for (int i = 0; i < w->f->ins; i++)
        if ((input_level(w, i) == WHOLE) == by_row)
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

static void write_function(struct writer *w, bool flat)
{
    fputs("void fused(const struct operand *in, const struct operand *out, int64_t row, int64_t "
          "row_end,\n           int64_t column, int64_t column_end, float *scratch, float *sums)\n"
          "{\n",
          w->out);
    write_pointers(w, false);
    if (!flat)
        fputs("    int64_t columns = column_end - column;\n", w->out);
    for (int i = 0; i < w->buffers; i++)
        fprintf(w->out, "    float *buffer%d = scratch + %d * columns;\n", i, i);
    for (int i = 0; i < w->sums; i++)
        fprintf(w->out, "    float *sum%d = sums + %d * columns;\n", i, i);
    for (int k = 0; k < (int)w->f->p.count; k++)
        if (w->needed[k] && w->node[k].level == 0 && w->node[k].kind != CT_POINTWISE_NUMBER)
            define(w, k, "    ", "0");
    fputs("\n    (void)scratch;\n    (void)sums;\n", w->out);
    if (!flat)
        fputs("    (void)columns;\n", w->out);
    fputs("    for (int64_t i = row; i < row_end; i++) {\n", w->out);
    write_pointers(w, true);
    for (int pass = 0; pass <= w->last; pass++) {
        write_row_values(w, pass);
        write_pass(w, pass);
    }
    write_row_values(w, w->last + 1);
    for (int i = 0; i < w->f->outs; i++)
        if (w->node[w->f->out[i]].level == CT_BY_ROW)
            fprintf(w->out,
                    w->f->out_dtype[i] == CT_BF16 ? "        out%d[i] = narrow(%s);\n"
                                                  : "        out%d[i] = %s;\n",
                    i, w->use[w->f->out[i]]);
    fputs("    }\n}\n", w->out);
}

static bool is_flat(const struct writer *w)
{
    for (size_t k = 0; k < w->f->p.count; k++)
        if (w->needed[k] && w->node[k].level && w->node[k].level != WHOLE)
            return false;
    return true;
}

void fuse_write(const struct fuse_program *f, struct ct_arena *arena, struct fuse_code *code)
{
    struct writer w = {.f = f, .node = f->p.node, .arena = arena};
    char *text = NULL;
    size_t size;

    w.use = ct_arena_array(arena, const char *, f->p.count);
    w.needed = ct_arena_array(arena, bool, f->p.count);
    w.stage = ct_arena_array(arena, int, f->p.count);
    w.passes = ct_arena_array(arena, uint32_t, f->p.count);
    w.buffer = ct_arena_array(arena, int, f->p.count);
    for (int i = 0; i < f->outs; i++) {
        need(&w, f->out[i]);
        w.sums += sum_of(&w, i) >= 0;
    }
    find_buffers(&w);
    w.out = open_memstream(&text, &size);
    fprintf(w.out, "/* %s */\n", fuse_text(f, arena));
    fputs(prelude, w.out);
    write_function(&w, is_flat(&w));
    fclose(w.out);
    *code = (struct fuse_code){.text = ct_arena_strdup(arena, text),
                               .buffers = w.buffers,
                               .sums = w.sums,
                               .flat = is_flat(&w),
                               .passes = w.last + 1};
    free(text);
}
