/*
 * formula-kernels [--plugin FILE] [--except OP]... FUNCTIONS TABLE
 *
 * Writes kernels for the cpu from the formulas of op types, while a plugin is built. FUNCTIONS is a
 * source to be compiled once for each instruction set (lib/cpu.h), TABLE one to be compiled once:
 * it defines formula_kernels, for the plugin's offer {CT_KERNELS, "cpu", formula_kernels}. Without
 * --plugin the types are those of the libraries, else those that the plugin offers, which may have
 * been linked with an empty table. Gradients that follow from formulas are among them.
 *
 * A type gets a function for each dtype, each choice of its attributes that are truth values or
 * enumerations, and each set of optional inputs. Numbers are read when the kernel runs.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/plugin.h>
#include <ctitan/lib/app/check.h>
#include <ctitan/lib/ops.h>
#include <ctitan/lib/rows.h>

#define MOST_VARIANTS 64 /* of a type */
#define MOST_WORDS CT_COMPILED_INPUTS

struct writer {
    struct ct_arena arena;
    const char **except;
    int exceptions;
    /* The two files, and parts of them: the formulas, the variants of one. */
    FILE *functions, *table, *formulas, *list;
};

/* A type, and the samples that its variants are made from. */
struct subject {
    struct writer *w;
    const struct ct_op_type *type;
    const char *identifier;       /* the type's name in C */
    const char *word[MOST_WORDS]; /* "real[2,4,6]", by input */
    int words;
    int optional[MOST_WORDS], optionals; /* inputs that may be absent */
    int variants, ins, outs;
};

/* ---- samples ---- */

/* Inputs that are there, before anything else; then dimensions. */
static int worth(const char *inputs)
{
    int worth = 0;

    for (const char *c = inputs; *c; c++)
        worth += *c == '[' ? 100 : *c == ',';
    return worth;
}

/* The sample with most operands and dimensions: it tells rows and columns apart. */
static int choose_sample(struct subject *s)
{
    struct ct_sample *list;
    const char *best = NULL;
    char *copy, *rest;
    int rc = ct_samples_of(s->type, &s->w->arena, &list);

    if (rc < 0)
        return rc;
    for (; list->type; list++)
        if (!best || worth(list->inputs) > worth(best))
            best = list->inputs;
    copy = ct_arena_strdup(&s->w->arena, best ? best : "");
    for (char *at = strtok_r(copy, " ", &rest); at; at = strtok_r(NULL, " ", &rest)) {
        if (s->words == MOST_WORDS)
            return ct_fail(CT_EINVAL, "more than %d inputs", MOST_WORDS);
        s->word[s->words++] = at;
    }
    return 0;
}

/* Inputs with '?' in the signature. */
static void find_optional(struct subject *s)
{
    const char *end = strstr(s->type->signature, "->");
    int input = 0;

    for (const char *c = s->type->signature; c < end; c++) {
        if (*c == '?' && s->optionals < MOST_WORDS)
            s->optional[s->optionals++] = input;
        input += c[0] == ',' && c[1] == ' ';
    }
}

/* The inputs of the sample without those in the set of optional ones. */
static const char *inputs_without(const struct subject *s, int absent)
{
    const char *text = "";

    for (int i = 0; i < s->words; i++) {
        const char *word = s->word[i];

        for (int k = 0; k < s->optionals; k++)
            if (s->optional[k] == i && absent >> k & 1)
                word = "-";
        text = ct_arena_printf(&s->w->arena, "%s%s%s", text, i ? " " : "", word);
    }
    return text;
}

/* ---- choices ---- */

static int count_choices(const struct ct_option *o)
{
    int count = 1;

    if (o->type == CT_BOOL)
        return 2;
    for (const char *c = o->type == CT_ENUM ? o->choices : ""; *c; c++)
        count += *c == '|';
    return count;
}

/* All choices of all attributes, as one number each; too many where no digit names a choice. */
static int count_all_choices(const struct ct_op_type *type)
{
    int count = 1;

    for (const struct ct_option *o = type->attrs; o && o->name; o++)
        if (count <= MOST_VARIANTS)
            count *= count_choices(o) > 10 ? MOST_VARIANTS + 1 : count_choices(o);
    return count;
}

static const char *name_of_choice(struct subject *s, const struct ct_option *o, int choice)
{
    const char *at = o->type == CT_BOOL ? "false|true" : o->choices;

    for (; choice; choice--)
        at = strchr(at, '|') + 1;
    return ct_arena_printf(&s->w->arena, "%.*s", (int)strcspn(at, "|"), at);
}

/* Set attributes to choice number `number`: as text of a sample, and as a digit each. */
static void make_choices(struct subject *s, int number, const char **attrs, const char **digits)
{
    *attrs = *digits = "";
    for (const struct ct_option *o = s->type->attrs; o && o->name; o++) {
        int choice = number % count_choices(o);

        if (o->type != CT_BOOL && o->type != CT_ENUM)
            continue;
        number /= count_choices(o);
        *attrs = ct_arena_printf(&s->w->arena, "%s %s=%s", *attrs, o->name,
                                 name_of_choice(s, o, choice));
        *digits = ct_arena_printf(&s->w->arena, "%s%d", *digits, choice);
    }
}

/* ---- a variant ---- */

/* The node that an output stores: the store rounds it, after what is there has been added. */
static int stored(const struct ct_pointwise *p, int node)
{
    return p->node[node].kind == CT_POINTWISE_BF16 ? p->node[node].arg[0] : node;
}

/* Kernels have operands of float32 and bfloat16, and single numbers of float64. */
static int check_operands(const struct ct_op *op, const unsigned *level)
{
    if (op->ins > CT_COMPILED_INPUTS || op->outs > CT_COMPILED_OUTPUTS)
        return ct_fail(CT_EINVAL, "more than %d inputs or %d outputs", CT_COMPILED_INPUTS,
                       CT_COMPILED_OUTPUTS);
    for (int i = 0; i < op->ins + op->outs; i++) {
        const struct ct_value *v = i < op->ins ? op->in[i] : op->out[i - op->ins];

        if (v && v->dtype != CT_F32 && v->dtype != CT_BF16 && (v->dtype != CT_F64 || level[i]))
            return ct_fail(CT_EINVAL, "operand %d has the dtype %s", i, ct_dtype_name(v->dtype));
    }
    return 0;
}

/* The formula of op for any numbers, which are inputs behind op's own. */
static int read_program(struct subject *s, const struct ct_op *op, struct ct_rows_program *f)
{
    unsigned *level = ct_arena_array(&s->w->arena, unsigned, op->ins + op->outs);
    int in[CT_COMPILED_INPUTS], out[CT_COMPILED_OUTPUTS], *number, rc, i = 0;

    *f = (struct ct_rows_program){.p = {.arena = &s->w->arena}, .ins = op->ins, .outs = op->outs};
    for (const struct ct_option *o = op->type->attrs; o && o->name; o++)
        i++;
    number = ct_arena_array(&s->w->arena, int, i + 1);
    rc = ct_pointwise_levels(op, level);
    if (rc == 0)
        rc = check_operands(op, level);
    for (i = 0; rc == 0 && i < op->ins; i++) {
        in[i] = ct_pointwise_input(&f->p, i, level[i]);
        f->in_dtype[i] = op->in[i] ? op->in[i]->dtype : CT_F32;
    }
    i = 0;
    for (const struct ct_option *o = op->type->attrs; rc == 0 && o && o->name; o++, i++) {
        number[i] = -1;
        if (o->type != CT_FLOAT && o->type != CT_INT)
            continue;
        if (f->ins == CT_COMPILED_INPUTS)
            return ct_fail(CT_EINVAL, "too many inputs and numbers");
        f->in_dtype[f->ins] = CT_F32;
        number[i] = ct_pointwise_input(&f->p, f->ins++, 0);
    }
    if (rc == 0)
        rc = ct_pointwise_apply_any(&f->p, op, number, in, out);
    for (i = 0; rc == 0 && i < op->outs; i++) {
        f->out[i] = stored(&f->p, out[i]);
        f->out_dtype[i] = op->out[i]->dtype;
        if (f->p.node[f->out[i]].level != level[op->ins + i] || !level[op->ins + i])
            rc = ct_fail(CT_EINVAL, "output %d has other rows or columns than its formula", i);
        else if (level[op->ins + i] == CT_BY_COLUMN &&
                 f->p.node[f->out[i]].kind != CT_POINTWISE_COLUMN_SUM)
            rc = ct_fail(CT_EINVAL, "output %d is no sum over rows", i);
    }
    return rc;
}

static const char *dtypes_of(struct subject *s, const struct ct_op *op, const char *levels)
{
    const char *text = "";

    for (int i = 0; i < op->ins + op->outs; i++) {
        const struct ct_value *v = i < op->ins ? op->in[i] : op->out[i - op->ins];
        bool sum = i >= op->ins && levels[i] == '0' + CT_BY_COLUMN;

        text = ct_arena_printf(&s->w->arena, "%s%c", text,
                               !v                    ? '-'
                               : sum                 ? '*'
                               : v->dtype == CT_F32  ? 'f'
                               : v->dtype == CT_BF16 ? 'b'
                                                     : 'd');
    }
    return text;
}

/* Gradients are added up over microbatches and users. */
static unsigned flags_of(const struct ct_op_type *type)
{
    return type->vjp ? CT_ROWS_KEPT : CT_ROWS_KEPT | CT_ROWS_ADDED;
}

static int write_variant(struct subject *s, const struct ct_op *op, const char *choices)
{
    struct ct_rows_program f;
    struct ct_rows_code code;
    char *levels;
    int rc = read_program(s, op, &f);

    if (rc < 0)
        return rc;
    if (ct_rows_count_passes(&f, &s->w->arena) > CT_ROWS_PASSES)
        return ct_fail(CT_EINVAL, "more than %d passes over a row", CT_ROWS_PASSES);
    ct_rows_write(&f, flags_of(s->type), &s->w->arena, &code);
    fprintf(s->w->functions,
            "#undef ROW_KERNEL\n#define ROW_KERNEL static ROW_FUNCTION(%s_%d)\n%s\n", s->identifier,
            s->variants, code.text);
    levels = ct_arena_printf(&s->w->arena, "%.*s%s", op->ins, code.levels, code.levels + f.ins);
    s->ins = op->ins;
    s->outs = op->outs;
    fprintf(s->w->list, "    {\"%s\", \"%s\", \"%s\", {%s_%d, %d, %d, %s}},\n",
            dtypes_of(s, op, levels), levels, choices, s->identifier, s->variants++, code.buffers,
            code.sums, code.flat ? "true" : "false");
    return 0;
}

static int try_variant(struct subject *s, int absent, int choice, enum ct_dtype dtype)
{
    struct ct_sample sample = {.type = s->type->name, .inputs = inputs_without(s, absent)};
    struct ct_trial trial;
    const char *digits;
    int rc;

    make_choices(s, choice, &sample.attrs, &digits);
    rc = ct_trial_create(&trial, &sample, dtype);
    if (rc == 0)
        rc = write_variant(s, trial.op, digits);
    ct_trial_finish(&trial);
    return rc;
}

/* ---- types ---- */

static int write_variants(struct subject *s)
{
    int choices = count_all_choices(s->type), rc = choose_sample(s);

    find_optional(s);
    if (rc == 0 && ((choices << s->optionals) * 2 > MOST_VARIANTS))
        rc = ct_fail(CT_EINVAL, "its choices and optional inputs make more than %d variants",
                     MOST_VARIANTS);
    for (int absent = 0; rc == 0 && absent < 1 << s->optionals; absent++)
        for (int choice = 0; rc == 0 && choice < choices; choice++) {
            rc = try_variant(s, absent, choice, CT_F32);
            if (rc == 0)
                rc = try_variant(s, absent, choice, CT_BF16);
        }
    return rc;
}

static bool is_excepted(const struct writer *w, const char *op)
{
    for (int i = 0; i < w->exceptions; i++)
        if (!strcmp(w->except[i], op))
            return true;
    return false;
}

/* "lora_magnify" of "lora.magnify" */
static const char *identifier_of(struct writer *w, const char *name)
{
    char *text = ct_arena_strdup(&w->arena, name);

    for (char *c = text; *c; c++)
        if (!isalnum((unsigned char)*c))
            *c = '_';
    return text;
}

static int write_type(struct writer *w, const struct ct_op_type *type)
{
    struct subject s = {
        .w = w, .type = ct_op_type_whole(type), .identifier = identifier_of(w, type->name)};
    char *variants = NULL;
    size_t size;
    int rc;

    if (!s.type->pointwise || is_excepted(w, type->name))
        return 0;
    w->list = open_memstream(&variants, &size);
    rc = write_variants(&s);
    fclose(w->list);
    fprintf(w->functions, "static const struct ct_rows_variant %s_variants[] = {\n%s    {0}};\n\n",
            s.identifier, variants);
    free(variants);
    fprintf(w->formulas, "    {\"%s\", %d, %d, %s_variants},\n", type->name, s.ins, s.outs,
            s.identifier);
    fprintf(w->table,
            "    CT_KERNEL(\"%s\", #isa, CT_KERNEL_STRIDED%s, accepts_##isa, prepare_##isa, "
            "ct_rows_run), \\\n",
            type->name, flags_of(s.type) & CT_ROWS_ADDED ? " | CT_KERNEL_ACCUMULATES" : "");
    return rc < 0 ? ct_context(rc, "op type %s", type->name) : 0;
}

/* A type of the plugin, and its gradient if that follows from the formula. */
static int write_offered(struct writer *w, const struct ct_op_type *type)
{
    const struct ct_op_type *whole = ct_op_type_whole(type), *gradient;
    int rc = write_type(w, type);

    if (rc < 0 || !whole->pointwise || whole->vjp != ct_pointwise_vjp)
        return rc;
    gradient = ct_pointwise_gradient(type);
    return gradient ? write_type(w, gradient) : CT_EINVAL;
}

static int write_plugin(struct writer *w, const struct ct_plugin *plugin)
{
    int rc = 0;

    for (const struct ct_offer *o = plugin->offers; rc == 0 && o && o->name; o++)
        if (o->kind == CT_OP)
            rc = write_offered(w, o->ops);
    return rc;
}

static int write_libraries(struct writer *w)
{
    const struct ct_op_type *type;
    int rc = 0;

    for (size_t i = 0; rc == 0 && (type = ct_op_at(i)); i++)
        rc = write_type(w, type);
    return rc;
}

/* ---- the files ---- */

static const char functions_begin[] =
    "/* Written by formula-kernels from the formulas of op types. */\n"
    "#include <ctitan/lib/cpu/rows.h>\n\n";

static const char table_begin[] =
    "/* Written by formula-kernels: a table of the kernels of all instruction sets. */\n"
    "#include <ctitan/lib/cpu.h>\n"
    "#include <ctitan/lib/rows.h>\n\n"
    "#define LIST(isa) \\\n"
    "    extern const struct ct_rows_formula formulas_##isa[]; \\\n"
    "    static bool accepts_##isa(const struct ct_prepare *p) \\\n"
    "    { \\\n"
    "        return cpu_may_##isa() && ct_rows_accepts(formulas_##isa, p); \\\n"
    "    } \\\n"
    "    static int prepare_##isa(struct ct_prepare *p) \\\n"
    "    { \\\n"
    "        return ct_rows_prepare(formulas_##isa, p); \\\n"
    "    }\n"
    "CPU_FOR_EACH_ISA(LIST)\n\n"
    "#define KERNELS(isa) \\\n";

static const char table_end[] = "\n"
                                "const struct ct_kernel formula_kernels[] = "
                                "{CPU_FOR_EACH_ISA(KERNELS){0}};\n";

static int write_files(struct writer *w, const struct ct_plugin *plugin, const char *functions,
                       const char *table)
{
    char *text[3] = {NULL};
    size_t size[3];
    int rc;

    w->functions = open_memstream(&text[0], &size[0]);
    w->table = open_memstream(&text[1], &size[1]);
    w->formulas = open_memstream(&text[2], &size[2]);
    fputs(functions_begin, w->functions);
    fputs(table_begin, w->table);
    rc = plugin ? write_plugin(w, plugin) : write_libraries(w);
    fputs(table_end, w->table);
    fclose(w->formulas);
    fprintf(w->functions,
            "extern const struct ct_rows_formula CPU_ISA(formulas)[];\n"
            "const struct ct_rows_formula CPU_ISA(formulas)[] = {\n%s    {0}};\n",
            text[2]);
    fclose(w->functions);
    fclose(w->table);
    if (rc == 0)
        rc = ct_file_write(functions, text[0], size[0]);
    if (rc == 0)
        rc = ct_file_write(table, text[1], size[1]);
    for (int i = 0; i < 3; i++)
        free(text[i]);
    return rc;
}

/* ---- the program ---- */

static int open_plugin(const char *path, const struct ct_plugin **plugin)
{
    int rc = ct_ops_register();

    if (rc == 0 && path)
        rc = ct_plugin_open(path, plugin);
    if (rc == 0 && path)
        rc = ct_plugin_register(*plugin);
    return rc;
}

int main(int argc, char **argv)
{
    const struct ct_plugin *plugin = NULL;
    const char *path = NULL;
    struct writer w = {0};
    int rc, at = 1;

    w.except = ct_arena_array(&w.arena, const char *, argc);
    for (; at + 1 < argc && *argv[at] == '-'; at += 2)
        if (!strcmp(argv[at], "--plugin"))
            path = argv[at + 1];
        else if (!strcmp(argv[at], "--except"))
            w.except[w.exceptions++] = argv[at + 1];
        else
            break;
    if (argc - at != 2 || *argv[at] == '-') {
        fputs("usage: formula-kernels [--plugin FILE] [--except OP]... FUNCTIONS TABLE\n", stderr);
        return 2;
    }
    rc = open_plugin(path, &plugin);
    if (rc == 0)
        rc = write_files(&w, plugin, argv[at], argv[at + 1]);
    if (rc < 0)
        fprintf(stderr, "formula-kernels: %s\n", ct_error_message());
    ct_arena_finish(&w.arena);
    return rc < 0;
}
