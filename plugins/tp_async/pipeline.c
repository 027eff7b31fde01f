/*
 * Parts of pipelines: GEMMs, and sums of them, on some of their rows.
 */
#include <string.h>

#include <ctitan/rule.h>

#include "tp_async.h"

uint64_t async_row_inputs(const struct ct_op *op)
{
    struct ct_arena scratch = {0};
    struct ct_rule rule;
    uint64_t inputs = 0;

    if (op->type->flops && op->outs && op->ins <= 64 && op->out[0]->ndim == 3 &&
        ct_rule_apply(op, &scratch, &rule) == 0)
        for (int i = 0; i < op->ins; i++) {
            const struct ct_rule_operand *in = &rule.operand[i], *out = &rule.operand[op->ins];

            if (in->ndim == 3 && in->factor[0] == out->factor[0] && in->factor[1] == out->factor[1])
                inputs |= (uint64_t)1 << i;
        }
    ct_arena_finish(&scratch);
    return inputs;
}

const char *async_named(const struct async_pipeline *p, const struct ct_value *v, const char *what,
                        int number)
{
    return number < 0 ? ct_arena_printf(p->work->graph->arena, "%s.%s", v->name, what)
                      : ct_arena_printf(p->work->graph->arena, "%s.%s%d", v->name, what, number);
}

struct ct_value *async_view(struct async_pipeline *p, struct ct_value *v, int ndim,
                            const int64_t *shape, struct ct_sharding sharding)
{
    struct seen *seen = p->seen;
    struct ct_value *view;

    while (seen && (seen->value != v || seen->view->ndim != ndim ||
                    memcmp(seen->view->shape, shape, sizeof(*shape) * (size_t)ndim)))
        seen = seen->next;
    if (seen)
        return seen->view;
    view = ct_view(&p->b, async_named(p, v, "view", -1), v, ndim, shape);
    if (!view)
        return NULL;
    view->sharding = sharding;
    seen = ct_arena_new(&p->scratch, struct seen);
    *seen = (struct seen){v, view, p->seen};
    p->seen = seen;
    return view;
}

struct ct_op *async_product(struct async_pipeline *p, const struct ct_op *op,
                            struct ct_value *first, int which)
{
    struct ct_value **in = ct_arena_array(&p->scratch, struct ct_value *, op->ins);
    uint64_t rows = async_row_inputs(op);
    struct ct_op *copy;

    memcpy(in, op->in, sizeof(*in) * (size_t)op->ins);
    for (int i = 0; i < op->ins; i++)
        if (rows >> i & 1)
            in[i] = i == 0 && first ? first : p->take(p, op->in[i], which);
    if (p->b.status)
        return NULL;
    copy = ct_op_clone(&p->b, op, in, ct_arena_printf(p->work->graph->arena, "chunk%d", which));
    for (int i = 0; copy && i < copy->outs; i++)
        copy->out[i]->sharding = p->divide(p, &op->out[i]->sharding);
    return copy;
}

static struct ct_value *add(struct async_pipeline *p, const struct ct_op *op, int which)
{
    struct ct_value *terms[2] = {async_sum(p, op->in[0], which), async_sum(p, op->in[1], which)};
    struct ct_value *sum =
        ct_add(&p->b, async_named(p, op->out[0], "chunk", which), terms[0], terms[1]);

    if (sum)
        sum->sharding = terms[0]->sharding;
    return sum;
}

struct ct_value *async_sum(struct async_pipeline *p, const struct ct_value *v, int which)
{
    const struct ct_op *op = v->producer, *copy;

    if (op->type == &ct_op_add)
        return add(p, op, which);
    copy = async_product(p, op, NULL, which);
    return copy ? copy->out[0] : NULL;
}

void async_deliver(struct async_pipeline *p, struct ct_value *value, struct ct_value *old)
{
    const char *name = old->name;
    struct ct_value *whole = ct_view(&p->b, NULL, value, old->ndim, old->shape);

    if (!whole)
        return;
    whole->sharding = old->sharding;
    whole->marks = old->marks;
    ct_value_replace(p->work->graph, old, whole);
    ct_value_rename(p->work->graph, old, async_named(p, old, "at_once", -1));
    ct_value_rename(p->work->graph, whole, name);
}

/* ---- the end ---- */

int async_end_gather(struct async_pipeline *p)
{
    for (int k = 0; p->b.status == 0 && k < p->work->products; k++)
        ct_graph_remove(p->work->graph, p->work->product[k]);
    if (p->b.status == 0)
        ct_graph_remove(p->work->graph, p->work->collective);
    ct_arena_finish(&p->scratch);
    return p->b.status;
}

static void remove_sum(struct ct_graph *graph, struct ct_op *op)
{
    struct ct_op *terms[2] = {NULL, NULL};

    for (int i = 0; op->type == &ct_op_add && i < 2; i++)
        terms[i] = op->in[i]->producer;
    ct_graph_remove(graph, op);
    for (int i = 0; i < 2; i++)
        if (terms[i] && terms[i]->in_graph)
            remove_sum(graph, terms[i]);
}

int async_end_scatter(struct async_pipeline *p, struct ct_op *sum)
{
    if (p->b.status == 0) {
        ct_graph_remove(p->work->graph, p->work->collective);
        remove_sum(p->work->graph, sum);
    }
    ct_arena_finish(&p->scratch);
    return p->b.status;
}
