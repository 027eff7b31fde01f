/*
 * Programs as text: a line of totals, then one for each instruction of init and of the step.
 */
#include <inttypes.h>

#include <ctitan/program.h>
#include <ctitan/text.h>

static const char *const categories[] = {
#define X(id, text) text,
    CT_CATEGORIES(X)
#undef X
};

const char *ct_category_name(enum ct_category category)
{
    return categories[category];
}

static void print_tensor(const struct ct_tensor *t, const struct ct_value *v, size_t offset,
                         FILE *out)
{
    if (t->ndim < 0) {
        fputs(" _", out);
        return;
    }
    fprintf(out, " %%%s@%zu", v->name, offset);
    if (!ct_tensor_is_dense(t) && !v->opaque_bytes) {
        fputc('(', out);
        for (int d = 0; d < t->ndim; d++)
            fprintf(out, "%s%" PRId64, d ? "," : "", t->stride[d]);
        fputc(')', out);
    }
}

static void print_instruction(const struct ct_program *p, const struct ct_instruction *i, size_t n,
                              FILE *out)
{
    const struct ct_launch *l = &i->lowered->launch;
    const char *item = i->item < 0 ? "-" : p->order.item[i->item].name;

    fprintf(out, "%5zu %-6s %-8s %-12s %s (%s)", n, item, ct_stream_name(i->stream),
            *i->op->region ? i->op->region : "-", i->op->type->name, i->lowered->kernel->name);
    for (int k = 0; k < l->outs; k++)
        print_tensor(&l->out[k], i->op->out[k], ct_instruction_offset(p, i, l->ins + k), out);
    fputs(" <-", out);
    for (int k = 0; k < l->ins; k++)
        print_tensor(&l->in[k], i->op->in[k], ct_instruction_offset(p, i, k), out);
    if (l->accumulate)
        fprintf(out, " accumulate %#x", l->accumulate);
    if (i->lowered->workspace)
        fprintf(out, " workspace@%zu", ct_instruction_offset(p, i, l->ins + l->outs));
    for (const int32_t *w = i->waits; w && *w >= 0; w++)
        fprintf(out, " wait %d", *w);
    if (i->signal >= 0)
        fprintf(out, " signal %d", i->signal);
    fputc('\n', out);
}

void ct_program_print(const struct ct_program *p, FILE *out)
{
    fprintf(out, "program: %d microbatches, %zu instructions, %zu buffers, %zu bytes\n",
            p->microbatches, p->step_count, p->buffer_count, p->memory.bytes);
    for (size_t n = 0; n < p->init_count; n++)
        print_instruction(p, &p->init[n], n, out);
    for (size_t n = 0; n < p->step_count; n++)
        print_instruction(p, &p->step[n], n, out);
}
