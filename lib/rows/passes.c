/*
 * Assigns a program's nodes to passes over a row, and picks the values that are buffered between.
 *
 * A row is passed over once for each reduction that depends on another, and once more. What a later
 * pass needs again is computed again, unless that costs much: then a buffer keeps it.
 */
#include <string.h>

#include "source.h"

int rows_sum_of(const struct writer *w, int i)
{
    int k = w->f->out[i];

    if (w->node[k].kind == CT_POINTWISE_BF16)
        k = w->node[k].arg[0];
    return is_column_sum(w, k) ? k : -1;
}

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

static void need_outputs(struct writer *w)
{
    w->needed = ct_arena_array(w->arena, bool, w->f->p.count);
    w->stage = ct_arena_array(w->arena, int, w->f->p.count);
    for (int i = 0; i < w->f->outs; i++)
        need(w, w->f->out[i]);
}

int ct_rows_count_passes(const struct ct_rows_program *f, struct ct_arena *arena)
{
    struct writer w = {.f = f, .node = f->p.node, .arena = arena};

    need_outputs(&w);
    return w.last + 1;
}

static void need_in(struct writer *w, int k, int pass)
{
    const struct ct_pointwise_node *n = &w->node[k];
    bool loaded = w->common[k] || (w->buffer[k] >= 0 && w->passes[k]);

    if (!in_loop(w, k) || w->passes[k] & 1u << pass)
        return;
    w->passes[k] |= 1u << pass;
    if (loaded)
        return;
    for (int i = 0; i < ct_pointwise_arguments(n->kind); i++)
        need_in(w, n->arg[i], pass);
}

int rows_ends(const struct writer *w, int pass, int *end)
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
    int *end = ct_arena_array(w->arena, int, w->f->p.count + CT_COMPILED_OUTPUTS);

    memset(w->passes, 0, sizeof(*w->passes) * w->f->p.count);
    for (int pass = 0; pass <= w->last; pass++)
        for (int i = rows_ends(w, pass, end); i-- > 0;)
            need_in(w, end[i], pass);
}

#define WORTH_A_BUFFER 6

/* About how many instructions compute node k in a later pass again; not counted beyond what is
   worth a buffer. */
static int cost(const struct writer *w, int k)
{
    const struct ct_pointwise_node *n = &w->node[k];
    int sum = n->kind == CT_POINTWISE_BF16                                 ? 2
              : n->kind == CT_POINTWISE_INPUT                              ? 1
              : n->kind >= CT_POINTWISE_EXP && n->kind <= CT_POINTWISE_COS ? 16
                                                                           : 1;

    if (!in_loop(w, k))
        return 0;
    if (w->common[k])
        return 1;
    if (n->kind == CT_POINTWISE_INPUT && w->f->in_dtype[n->input] == CT_BF16)
        sum++;
    for (int i = 0; i < ct_pointwise_arguments(n->kind) && sum < WORTH_A_BUFFER; i++)
        sum += cost(w, n->arg[i]);
    return sum;
}

/* From the results down: what only a buffered value needs is not computed again. */
static void find_buffers(struct writer *w)
{
    for (size_t k = 0; k < w->f->p.count; k++)
        w->buffer[k] = -1;
    find_passes(w);
    if (!(w->flags & CT_ROWS_KEPT))
        return;
    for (int k = (int)w->f->p.count; k-- > 0;)
        if ((w->passes[k] & (w->passes[k] - 1)) && cost(w, k) >= WORTH_A_BUFFER) {
            w->buffer[k] = w->buffers++;
            find_passes(w);
        }
}

#define WORTH_ONE_LOOP 3

/* By node: does it depend on a sum over rows? */
static const bool *find_summed(const struct writer *w)
{
    bool *summed = ct_arena_array(w->arena, bool, w->f->p.count);

    for (int k = 0; k < (int)w->f->p.count; k++) {
        const struct ct_pointwise_node *n = &w->node[k];

        summed[k] = is_column_sum(w, k);
        for (int i = 0; i < ct_pointwise_arguments(n->kind); i++)
            summed[k] |= summed[n->arg[i]];
    }
    return summed;
}

static bool is_used_by_rows(const struct writer *w, int k)
{
    for (size_t user = (size_t)k + 1; user < w->f->p.count; user++)
        for (int i = 0; i < ct_pointwise_arguments(w->node[user].kind); i++)
            if (w->needed[user] && w->node[user].level == WHOLE && w->node[user].arg[i] == k)
                return true;
    return false;
}

/* Weights that are widened, and what costs more than to load it. */
static bool is_common(const struct writer *w, int k, const bool *summed)
{
    const struct ct_pointwise_node *n = &w->node[k];

    if (!(w->flags & CT_ROWS_KEPT) || !w->needed[k] || n->level != CT_BY_COLUMN || summed[k] ||
        !is_used_by_rows(w, k))
        return false;
    return n->kind == CT_POINTWISE_INPUT ? w->f->in_dtype[n->input] == CT_BF16
                                         : cost(w, k) >= WORTH_ONE_LOOP;
}

/* A value's cost is that of all that it is made of: each is looked at before its arguments. */
static void find_common(struct writer *w)
{
    const bool *summed = find_summed(w);

    for (int k = (int)w->f->p.count; k-- > 0;)
        w->common[k] = is_common(w, k, summed);
}

static void give_buffers(struct writer *w)
{
    for (int k = 0; k < (int)w->f->p.count; k++)
        if (w->common[k] && w->passes[k])
            w->buffer[k] = w->buffers++;
}

void rows_find_passes(struct writer *w)
{
    const struct ct_rows_program *f = w->f;

    need_outputs(w);
    w->passes = ct_arena_array(w->arena, uint32_t, f->p.count);
    w->buffer = ct_arena_array(w->arena, int, f->p.count);
    w->common = ct_arena_array(w->arena, bool, f->p.count);
    for (int i = 0; i < f->outs; i++)
        w->sums += rows_sum_of(w, i) >= 0;
    find_common(w);
    find_buffers(w);
    give_buffers(w);
}
