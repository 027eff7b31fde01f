/*
 * A program as a formula.
 */
#include <stdio.h>
#include <stdlib.h>

#include <ctitan/lib/rows.h>

/* Nodes that the outputs need, and how often each is an argument. */
static void count_uses(const struct ct_rows_program *f, int node, int *uses)
{
    const struct ct_pointwise_node *n = &f->p.node[node];

    if (uses[node]++)
        return;
    for (int i = 0; i < ct_pointwise_arguments(n->kind); i++)
        count_uses(f, n->arg[i], uses);
}

char *ct_rows_text(const struct ct_rows_program *f, struct ct_arena *arena)
{
    int *uses = ct_arena_array(arena, int, f->p.count);
    const char **use = ct_arena_array(arena, const char *, f->p.count);
    const struct ct_pointwise_style style = {"", 17, NULL, use};
    const char *separator = "";
    char *text = NULL, *copy;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    for (int i = 0; i < f->outs; i++)
        count_uses(f, f->out[i], uses);
    for (size_t k = 0; k < f->p.count; k++) {
        const struct ct_pointwise_node *n = &f->p.node[k];

        if (n->kind == CT_POINTWISE_INPUT)
            use[k] = ct_arena_printf(arena, "%c%d", CT_ROWS_LEVELS[n->level], n->input);
        if (uses[k] < 2 || ct_pointwise_arguments(n->kind) == 0)
            continue;
        fprintf(out, "%st%zu = ", separator, k);
        ct_pointwise_print(&f->p, (int)k, &style, out);
        use[k] = ct_arena_printf(arena, "t%zu", k);
        separator = "; ";
    }
    for (int i = 0; i < f->outs; i++, separator = "; ") {
        fprintf(out, "%sy%d = ", separator, i);
        if (use[f->out[i]])
            fputs(use[f->out[i]], out);
        else
            ct_pointwise_print(&f->p, f->out[i], &style, out);
    }
    fclose(out);
    copy = ct_arena_strdup(arena, text);
    free(text);
    return copy;
}
