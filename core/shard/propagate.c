/*
 * Propagation gives every value its sharding, and inserts collectives where shardings differ.
 *
 * Ops are visited once, in order; propagate_choose.c decides how each is split. An input with
 * another sharding is redistributed before the op, and later ops that need the same sharding reuse
 * the result.
 *
 * One run after differentiation covers forward, backward and optimizer. So the dual sharding of a
 * gradient needs no rule of its own: it follows from the factor rules of the backward's ops.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/op.h>
#include <ctitan/pass.h>

#include "shard/propagate.h"
#include "shard/redistribute.h"

struct ct_value *ct_propagate_moved(const struct propagation *p, const struct ct_value *v,
                                    const struct ct_sharding *to)
{
    if (v->id >= p->count)
        return NULL;
    for (struct moved *m = p->moved[v->id]; m; m = m->next)
        if (ct_sharding_equal(&m->to, to))
            return m->value;
    return NULL;
}

bool ct_propagate_is_weight(const struct propagation *p, const struct ct_value *v)
{
    return v->id < p->weight_room && p->weight[v->id];
}

static void set_weight(struct propagation *p, const struct ct_value *v)
{
    p->weight = ct_arena_grow(&p->scratch, p->weight, &p->weight_room, (size_t)v->id + 1,
                              sizeof(*p->weight));
    p->weight[v->id] = true;
}

static struct ct_value *emit_steps(struct ct_builder *b, struct ct_value *v,
                                   const struct ct_steps *steps, const char *name)
{
    for (int i = 0; v && i < steps->count; i++) {
        const struct ct_step *s = &steps->step[i];
        struct ct_collective_attrs attrs = {
            .axes = s->axes, .dim = s->dim, .to = s->to, .reduction = s->reduction};

        v = ct_emit_type1(b, s->op, ct_arena_printf(b->graph->arena, "%s.%s", name, s->op->name),
                          &v, 1, &attrs);
        if (v)
            v->sharding = s->after;
    }
    return v;
}

/* Where to insert a redistribution for op: a value available once a step is moved once a step. */
static struct ct_builder place(const struct propagation *p, struct ct_op *op,
                               const struct ct_value *v)
{
    struct ct_builder b = ct_builder_before(p->graph, op);
    bool once = !v->producer || v->producer->section->part == CT_PART_PRE;

    if (once && v->role != CT_ROLE_INPUT && ct_part_is_microbatch(op->section->part)) {
        b = v->producer ? ct_builder_after(p->graph, v->producer) : ct_pre_builder(p->graph);
        ct_builder_set_part(&b, CT_PART_PRE);
        b.region = op->region;
    }
    return b;
}

static void remember(struct propagation *p, const struct ct_value *v, const struct ct_sharding *to,
                     struct ct_value *value)
{
    struct moved *m;

    if (v->id >= p->count)
        return;
    m = ct_arena_new(&p->scratch, struct moved);
    *m = (struct moved){*to, value, p->moved[v->id]};
    p->moved[v->id] = m;
}

/* A value moved for a later part is needed in an earlier one, as W runs after all of I. */
static void make_earlier(struct ct_graph *graph, const struct ct_value *from,
                         struct ct_value *there, enum ct_part part)
{
    for (; there != from; there = there->producer->in[0])
        if (there->producer->section->part > part)
            ct_op_set_part(graph, there->producer, part);
}

static int move_input(struct propagation *p, struct ct_op *op, int i, const struct ct_sharding *to,
                      const char *why)
{
    struct ct_value *v = op->in[i], *there = ct_propagate_moved(p, v, to);
    struct ct_steps steps;
    struct ct_builder b;
    int rc;

    if (ct_sharding_equal(&v->sharding, to))
        return 0;
    if (!there) {
        if (ct_op_mutates(op, i))
            return ct_fail(CT_EINVAL, "%s would have to move %%%s, which it updates in place",
                           op->type->name, v->name);
        rc = ct_redistribute_steps(&p->graph->mesh, v->ndim, &v->sharding, to, &steps);
        if (rc < 0)
            return ct_context(rc, "%%%s for %s", v->name, op->type->name);
        b = place(p, op, v);
        b.why = why;
        there = emit_steps(&b, v, &steps, v->name);
        if (!there)
            return b.status;
        remember(p, v, to, there);
    }
    make_earlier(p->graph, v, there, op->section->part);
    ct_op_set_input(op, i, there);
    return 0;
}

static const char *explain(const struct propagation *p, const struct ct_op *op,
                           const struct ct_value *v, const struct ct_sharding *to)
{
    char from[160], target[160];

    ct_sharding_print(&v->sharding, &p->graph->mesh, v->ndim, from, sizeof(from));
    ct_sharding_print(to, &p->graph->mesh, v->ndim, target, sizeof(target));
    return ct_arena_printf(p->graph->arena, "%s needs %%%s as %s, it is %s", op->type->name,
                           v->name, *target ? target : "replicated", *from ? from : "replicated");
}

/* A redistribution without a reason returns a gradient to its value's sharding. */
static const char *explain_target(const struct propagation *p, const struct ct_op *op)
{
    const struct ct_redistribute *attrs = op->attrs;
    const struct ct_value *x = op->in[0];
    char from[160], to[160];

    if (op->why)
        return op->why;
    ct_sharding_print(&x->sharding, &p->graph->mesh, x->ndim, from, sizeof(from));
    ct_sharding_print(&attrs->to.sharding, &p->graph->mesh, x->ndim, to, sizeof(to));
    return ct_arena_printf(p->graph->arena, "a gradient lies as its value does: %s; it is %s",
                           *to ? to : "replicated", *from ? from : "replicated");
}

/* An explicit redistribution: its target is given. */
static int resolve(struct propagation *p, struct ct_op *op)
{
    struct ct_value *x = op->in[0], *y = op->out[0], *there;
    struct ct_builder b = ct_builder_before(p->graph, op);
    const struct ct_sharding *to = &((const struct ct_redistribute *)op->attrs)->to.sharding;
    struct ct_steps steps;
    int rc = ct_redistribute_steps(&p->graph->mesh, x->ndim, &x->sharding, to, &steps);

    if (rc < 0)
        return ct_context(rc, "%%%s", y->name);
    b.why = explain_target(p, op);
    b.marks = op->marks;
    there = emit_steps(&b, x, &steps, x->name);
    if (!there)
        return b.status;
    if (there != x)
        remember(p, x, to, there);
    ct_value_replace(p->graph, y, there);
    there->marks |= y->marks;
    for (struct ct_value *v = there; ct_propagate_is_weight(p, x) && v != x; v = v->producer->in[0])
        set_weight(p, v);
    ct_graph_remove(p->graph, op);
    return 0;
}

static void settle_states(const struct propagation *p, struct ct_op *op, const struct choice *best)
{
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && op->in[i]->marks & p->unplaced && ct_op_mutates(op, i)) {
            op->in[i]->sharding = best->in[i];
            op->in[i]->marks &= ~p->unplaced;
        }
}

static int visit(struct propagation *p, struct ct_op *op)
{
    struct choice best;
    int rc = ct_propagate_choose(p, op, &best);

    if (rc == 0)
        settle_states(p, op, &best);
    for (int i = 0; rc == 0 && i < op->ins; i++)
        if (op->in[i] && !ct_sharding_equal(&op->in[i]->sharding, &best.in[i]))
            rc = move_input(p, op, i, &best.in[i], explain(p, op, op->in[i], &best.in[i]));
    for (int i = 0; rc == 0 && i < op->outs; i++)
        op->out[i]->sharding = best.out[i];
    return rc;
}

/* Marks values that are computed from parameters alone: casts, quantised copies, gathers. */
static void mark_weights(struct propagation *p)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->graph->values[i]->role == CT_ROLE_PARAM)
            set_weight(p, p->graph->values[i]);
    ct_for_each_op (op, p->graph) {
        bool weight = op->ins > 0 && op->section->part < CT_PART_POST;

        for (int i = 0; i < op->ins; i++)
            weight &= op->in[i] && ct_propagate_is_weight(p, op->in[i]);
        for (int i = 0; weight && i < op->outs; i++)
            set_weight(p, op->out[i]);
    }
}

/* Gather fetches, as the host reads whole values. */
static int gather_fetches(struct propagation *p)
{
    const struct ct_sharding whole = {0};

    for (size_t i = 0; i < p->graph->fetch_count; i++) {
        struct ct_fetch *f = &p->graph->fetches[i];
        struct ct_builder b = ct_builder_at_end(p->graph, CT_PART_POST, "");
        struct ct_steps steps;
        struct ct_value *read;
        int rc = ct_redistribute_steps(&p->graph->mesh, f->value->ndim, &f->value->sharding, &whole,
                                       &steps);

        if (rc < 0)
            return rc;
        b.why = "the host reads it";
        read = emit_steps(&b, f->value, &steps, f->value->name);
        if (!read)
            return b.status;
        ct_graph_set_fetch(p->graph, i, read);
    }
    return 0;
}

/* The axes over which samples are split. */
static ct_axes batch_axes(const struct ct_graph *graph)
{
    struct ct_sharding batch = {0};

    for (size_t i = 0; i < graph->value_count; i++) {
        const struct ct_value *v = graph->values[i];

        if (v->role != CT_ROLE_INPUT || !v->ndim)
            continue;
        batch.count[0] = v->sharding.count[0];
        memcpy(batch.axis[0], v->sharding.axis[0], sizeof(batch.axis[0]));
        break;
    }
    return ct_sharding_axes(&batch);
}

/* Each rank counts in the data that it is fed: counts are unreduced. */
static void share_counts(struct ct_graph *graph)
{
    for (const struct ct_count *c = ct_graph_counts(graph); c->name; c++) {
        struct ct_value *count = ct_graph_find_input(graph, c->name);
        const struct ct_value *in = c->streams ? ct_graph_find_input(graph, c->streams[0]) : NULL;

        if (count && (in || !c->streams))
            count->sharding.unreduced = in ? ct_sharding_axes(&in->sharding) : batch_axes(graph);
    }
}

static void find_data(struct propagation *p)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->graph->values[i]->role == CT_ROLE_INPUT)
            p->data |= ct_sharding_axes(&p->graph->values[i]->sharding);
}

static int propagate(struct ct_graph *graph, struct ct_run *run)
{
    struct propagation p = {.graph = graph, .count = graph->value_count};
    int rc = 0;

    (void)run;
    if (graph->mesh.count == 0)
        return 0;
    p.unplaced = ct_mark(CT_MARK_UNPLACED);
    p.moved = ct_arena_array(&p.scratch, struct moved *, p.count);
    mark_weights(&p);
    find_data(&p);
    share_counts(graph);
    ct_for_each_op_safe (op, graph) {
        if (op->section->part == CT_PART_INIT)
            continue;
        rc = op->type == &ct_op_redistribute ? resolve(&p, op) : visit(&p, op);
        if (rc < 0)
            break;
    }
    if (rc == 0)
        rc = gather_fetches(&p);
    ct_arena_finish(&p.scratch);
    return rc;
}

const struct ct_transform ct_pass_propagate = {
    .size = sizeof(struct ct_transform),
    .name = "propagate",
    .summary = "gives every value its sharding and inserts the collectives that follow",
    .phase = CT_PHASE_COLLECTIVE,
    .gives = (const char *const[]){"collectives", NULL},
    .after = (const char *const[]){"collected", NULL},
    .evaluation = true,
    .apply = propagate,
    .required = true,
};
