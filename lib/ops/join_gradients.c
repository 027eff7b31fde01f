/*
 * The transform "join_gradients": experts_dx and experts_dw of the same operands become
 * experts_grad, which computes the hidden layers once. So do types that take their place and are
 * named after them: float8.experts_dx and the others.
 *
 * It runs when everything else has been decided, so that ops are told apart as long as it matters
 * what is a gradient of weights. Where a rank may run W later than I (zero-bubble schedules), they
 * stay apart: nothing has to be kept from one to the other.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>

#include "list.h"

static int backward_is_split(struct ct_graph *graph, bool *split)
{
    const struct ct_offer *offer = ct_offer_at(CT_ORDER, 0);
    const struct ct_order_ops *ops;
    int rc = offer ? ct_offer_find(CT_ORDER, NULL, &offer) : 0;

    *split = false;
    if (rc < 0 || !offer)
        return rc;
    ops = offer->ops;
    *split = true;
    return ops->splits_backward ? ops->splits_backward(graph, split) : 0;
}

static int place_of(const struct ct_value *v)
{
    int i = 0;

    while (v->producer->out[i] != v)
        i++;
    return i;
}

/* An op whose outputs are its inputs, elsewhere or in another dtype. */
static bool copies(const struct ct_op *op)
{
    return op && op->ins == op->outs &&
           (op->type == &ct_op_all_gather || op->type == &ct_op_cast ||
            op->type->flags & CT_OP_SPACES);
}

static bool alike(const struct ct_value *a, const struct ct_value *b)
{
    return a->dtype == b->dtype && ct_sharding_equal(&a->sharding, &b->sharding) &&
           copies(a->producer) && copies(b->producer) && a->producer->type == b->producer->type;
}

static bool are_copies(const struct ct_value *a, const struct ct_value *b)
{
    while (a && b && a != b && alike(a, b)) {
        const struct ct_value *from = a->producer->in[place_of(a)];

        b = b->producer->in[place_of(b)];
        a = from;
    }
    return a == b;
}

/* The same op on the same operands: one was computed again. */
static bool repeats(const struct ct_op *a, const struct ct_op *b)
{
    if (!a || !b || a->type != b->type || a->ins != b->ins || a->outs != 1 ||
        (a->type->attrs_size && memcmp(a->attrs, b->attrs, a->type->attrs_size)))
        return false;
    for (int i = 0; i < a->ins; i++)
        if (ct_op_mutates(a, i) || !are_copies(a->in[i], b->in[i]))
            return false;
    return true;
}

bool ct_copies_of_one(const struct ct_value *a, const struct ct_value *b)
{
    return are_copies(a, b) ||
           (a && b && a->dtype == b->dtype && ct_sharding_equal(&a->sharding, &b->sharding) &&
            repeats(a->producer, b->producer));
}

static bool same_operands(const struct ct_op *a, const struct ct_op *b)
{
    if (a->ins != b->ins || memcmp(a->attrs, b->attrs, a->type->attrs_size) ||
        a->section->group != b->section->group)
        return false;
    for (int i = 0; i < a->ins; i++)
        if (!ct_copies_of_one(a->in[i], b->in[i]))
            return false;
    return true;
}

/* The type of another gradient of the same mixtures as type, a gradient of weights; NULL: type is
   none, or there is no other. */
static const struct ct_op_type *sibling(const struct ct_op_type *type, const char *gradient)
{
    const char *of_weights = ct_op_experts_dw.name;
    size_t length = strlen(type->name), own = strlen(of_weights);
    char name[64];

    if (length < own || strcmp(type->name + length - own, of_weights) != 0 ||
        (size_t)snprintf(name, sizeof(name), "%.*s%s", (int)(length - own), type->name, gradient) >=
            sizeof(name))
        return NULL;
    return ct_op_find(name);
}

/* The gradients of tokens that go with those of weights; NULL: there are none. */
static struct ct_op *partner_of(const struct ct_op *dw)
{
    const struct ct_op_type *dx = sibling(dw->type, ct_op_experts_dx.name);

    ct_for_each_use (use, dw->in[0])
        if (dx && use->op->type == dx && same_operands(use->op, dw))
            return use->op;
    return NULL;
}

/* The same with all that is known of `old` by now. */
static void take_over(struct ct_graph *graph, struct ct_value *old, struct ct_value *by)
{
    by->dtype = old->dtype;
    by->dtype_fixed = old->dtype_fixed;
    by->sharding = old->sharding;
    by->marks = old->marks;
    ct_take_over(graph, old, by);
}

/* dx comes before dw, and so do the operands. */
static int join(struct ct_graph *graph, struct ct_op *dx, struct ct_op *dw,
                const struct ct_op_type *type)
{
    struct ct_builder b = ct_builder_before(graph, dx);
    struct ct_op *op;

    b.why = "gradients of tokens and of weights begin with the same work";
    op = ct_emit_type(&b, type, NULL, dx->in, dx->ins, dx->attrs);
    for (int i = 0; op && i < op->outs; i++)
        take_over(graph, i < dx->outs ? dx->out[i] : dw->out[i - dx->outs], op->out[i]);
    if (op) {
        ct_graph_remove(graph, dx);
        ct_graph_remove(graph, dw);
    }
    return b.status;
}

static int join_gradients(struct ct_graph *graph, struct ct_run *run)
{
    bool split = false, asked = false;
    int rc = 0;

    (void)run;
    ct_for_each_op_safe (op, graph) {
        const struct ct_op_type *type = sibling(op->type, ct_op_experts_grad.name);
        struct ct_op *dx = type ? partner_of(op) : NULL;

        if (!dx)
            continue;
        if (!asked)
            rc = backward_is_split(graph, &split);
        asked = true;
        if (rc == 0 && !split)
            rc = join(graph, dx, op, type);
        if (rc < 0 || split)
            break;
    }
    if (rc == 0 && asked)
        ct_graph_sweep(graph); /* of dw's own copies of its operands */
    return rc;
}

const struct ct_transform ct_join_gradients = {
    .size = sizeof(struct ct_transform),
    .name = "join_gradients",
    .summary = "gradients of experts towards tokens and weights become one op",
    .phase = CT_PHASE_FUSE,
    .gives = (const char *const[]){"joined_gradients", NULL},
    .apply = join_gradients,
};
