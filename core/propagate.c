/*
 * Propagation: every value gets its sharding, and collectives appear where shardings meet.
 *
 * Ops are visited once, in order. An op's factor rule ties the dimensions of its operands together;
 * the ways to cut the factors that its inputs suggest are tried (each input taken first once), and
 * the one that moves the fewest bytes wins. Weights do not move for activations: what is made from
 * parameters alone is a thousand times dearer. A value redistributed once is not redistributed the
 * same way again. Parameters and states that an op updates never move.
 *
 * One run after differentiation covers forward, backward and optimizer, so the dual sharding of a
 * gradient is not a rule of its own: it follows from the factor rules of the backward's ops.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/pass.h>
#include <ctitan/rule.h>
#include <ctitan/run.h>

#include "redistribute.h"

#define WEIGHT_COST 1000.0

/* A value in another sharding than it was made in. */
struct moved {
    struct ct_sharding to;
    struct ct_value *value;
    struct moved *next;
};

struct propagation {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct moved **moved; /* by id */
    bool *weight;         /* by id */
    size_t count;
};

struct cuts { /* of one op: axes by factor */
    uint8_t *count, (*axis)[CT_MAX_AXES];
};

struct choice {
    double cost;
    struct ct_sharding *in, *out;
};

/* Ops of more inputs (optimizers) are looked at in one order of inputs only. */
#define ORDERS_TRIED 16

static struct ct_value *already_moved(const struct propagation *p, const struct ct_value *v,
                                      const struct ct_sharding *to)
{
    if (v->id >= p->count)
        return NULL;
    for (struct moved *m = p->moved[v->id]; m; m = m->next)
        if (ct_sharding_equal(&m->to, to))
            return m->value;
    return NULL;
}

static ct_axes axes_of(const struct cuts *c, int factor)
{
    ct_axes axes = 0;

    for (int i = 0; i < c->count[factor]; i++)
        axes |= (ct_axes)1 << c->axis[factor][i];
    return axes;
}

/* Axes in use on any operand that has the factor. */
static ct_axes taken(const struct ct_rule *rule, const struct cuts *c, int operands, int factor)
{
    ct_axes axes = 0;

    for (int o = 0; o < operands; o++) {
        bool has = false;

        for (int d = 0; d < rule->operand[o].rank; d++)
            has |= rule->operand[o].factor[d] == factor;
        for (int d = 0; has && d < rule->operand[o].rank; d++)
            axes |= axes_of(c, rule->operand[o].factor[d]);
    }
    return axes;
}

static bool divides(const struct propagation *p, const struct ct_rule *rule, int factor,
                    int64_t degree)
{
    (void)p;
    return rule->factor[factor].size % degree == 0;
}

/* Cut the factors of operand o as its sharding does, where that is still possible. */
static void adopt(const struct propagation *p, const struct ct_rule *rule, struct cuts *c, int o,
                  int operands, const struct ct_sharding *s)
{
    for (int d = 0; d < rule->operand[o].rank; d++) {
        int f = rule->operand[o].factor[d], other = -1;

        if (rule->factor[f].kind == CT_FACTOR_WHOLE || c->count[f])
            continue;
        if (f == rule->tie[0] || f == rule->tie[1])
            other = f == rule->tie[0] ? rule->tie[1] : rule->tie[0];
        for (int i = 0; i < s->count[d]; i++) {
            int axis = s->axis[d][i];
            ct_axes bit = (ct_axes)1 << axis, used = taken(rule, c, operands, f);

            if (other >= 0)
                used |= taken(rule, c, operands, other);
            if (used & bit)
                break;
            if (other >= 0 &&
                !divides(p, rule, other,
                         ct_mesh_degree(&p->graph->mesh, axes_of(c, other) | bit)))
                break;
            c->axis[f][c->count[f]++] = (uint8_t)axis;
            if (other >= 0)
                c->axis[other][c->count[other]++] = (uint8_t)axis;
        }
    }
}

/* A sum over repeated operands is pending over an axis only if every term is cut by it. */
static void even_out(const struct ct_rule *rule, struct cuts *c)
{
    int last = -1;

    for (int f = 0; f < rule->count; f++)
        if (rule->factor[f].kind == CT_FACTOR_REDUCTION && rule->factor[f].repetition > last)
            last = rule->factor[f].repetition;
    for (int a = 0; a < CT_MAX_AXES && last >= 0; a++) {
        ct_axes bit = (ct_axes)1 << a;
        bool all = true;

        for (int r = 0; all && r <= last; r++) {
            bool some = false;

            for (int f = 0; f < rule->count; f++)
                some |= rule->factor[f].repetition == r &&
                        rule->factor[f].kind == CT_FACTOR_REDUCTION && axes_of(c, f) & bit;
            all = some;
        }
        for (int f = 0; !all && f < rule->count; f++)
            if (rule->factor[f].repetition >= 0 &&
                rule->factor[f].kind == CT_FACTOR_REDUCTION && axes_of(c, f) & bit)
                c->count[f] = 0;
    }
}

static void operand_sharding(const struct ct_rule *rule, const struct cuts *c, int o,
                             struct ct_sharding *s)
{
    *s = (struct ct_sharding){0};
    for (int d = 0; d < rule->operand[o].rank; d++) {
        int f = rule->operand[o].factor[d];

        s->count[d] = c->count[f];
        memcpy(s->axis[d], c->axis[f], c->count[f]);
    }
}

static double move_cost(const struct propagation *p, const struct ct_op *op, int i,
                        const struct ct_sharding *to)
{
    const struct ct_value *v = op->in[i];
    struct ct_steps steps;
    double bytes;

    if (ct_sharding_equal(&v->sharding, to) || already_moved(p, v, to))
        return 0;
    if (ct_redistribute_steps(&p->graph->mesh, v->rank, &v->sharding, to, &steps) < 0)
        return 1e300;
    bytes = 1 + ct_redistribute_bytes(&p->graph->mesh, v, &v->sharding, &steps);
    if (ct_op_mutates(op, i))
        return 1e200;
    return v->id < p->count && p->weight[v->id] ? WEIGHT_COST * bytes : bytes;
}

/* Inputs and outputs under these cuts, and the cost. */
static void evaluate(const struct propagation *p, const struct ct_op *op,
                     const struct ct_rule *rule, const struct cuts *c, struct choice *choice)
{
    choice->cost = 0;
    for (int i = 0; i < op->ins; i++) {
        if (!op->in[i])
            continue;
        operand_sharding(rule, c, i, &choice->in[i]);
        choice->cost += move_cost(p, op, i, &choice->in[i]);
    }
    for (int i = 0; i < op->outs; i++) {
        struct ct_sharding *s = &choice->out[i];

        operand_sharding(rule, c, op->ins + i, s);
        for (int f = 0; f < rule->count; f++)
            if (ct_rule_reduces(rule, op, f, i))
                s->unreduced |= axes_of(c, f);
    }
}

/* Linear ops on pending sums leave them pending: the sum is made once, later. */
static void pass_pending(const struct propagation *p, const struct ct_op *op, struct choice *best)
{
    ct_axes pending = op->ins ? op->in[0]->sharding.unreduced : 0;
    double cost = 0;

    if (!(op->type->flags & CT_OP_LINEAR) || !pending)
        return;
    for (int i = 0; i < op->ins; i++) {
        struct ct_sharding to = best->in[i];

        if (op->in[i]->sharding.unreduced != pending ||
            ct_dtype_size(op->out[0]->dtype) < ct_dtype_size(op->in[i]->dtype) ||
            (ct_sharding_axes(&to) & pending))
            return;
        to.unreduced = pending;
        cost += move_cost(p, op, i, &to);
    }
    if (cost >= best->cost)
        return;
    best->cost = cost;
    for (int i = 0; i < op->ins; i++)
        best->in[i].unreduced = pending;
    best->out[0].unreduced |= pending;
}

static void choice_init(struct propagation *p, const struct ct_op *op, struct choice *choice)
{
    choice->cost = 1e301;
    choice->in = ct_arena_array(&p->scratch, struct ct_sharding, op->ins);
    choice->out = ct_arena_array(&p->scratch, struct ct_sharding, op->outs);
}

/* Cut what the inputs suggest: what is updated in place first, then input `first`, then the rest. */
static void suggest(struct propagation *p, const struct ct_op *op, const struct ct_rule *rule,
                    int first, struct cuts *c)
{
    int operands = op->ins + op->outs;

    c->count = ct_arena_array(&p->scratch, uint8_t, rule->count);
    c->axis = ct_arena_alloc(&p->scratch, sizeof(*c->axis) * (size_t)rule->count);
    for (int i = 0; i < op->ins; i++)
        if (ct_op_mutates(op, i))
            adopt(p, rule, c, i, operands, &op->in[i]->sharding);
    if (first >= 0)
        adopt(p, rule, c, first, operands, &op->in[first]->sharding);
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && i != first && !ct_op_mutates(op, i))
            adopt(p, rule, c, i, operands, &op->in[i]->sharding);
    even_out(rule, c);
}

static int choose(struct propagation *p, const struct ct_op *op, struct choice *best)
{
    int orders = op->ins > ORDERS_TRIED ? 0 : op->ins;
    struct choice trial;
    struct ct_rule rule;
    int rc = ct_rule_apply(op, &p->scratch, &rule);

    if (rc < 0)
        return rc;
    choice_init(p, op, best);
    choice_init(p, op, &trial);
    for (int first = -1; first < orders; first++) {
        struct cuts c;

        if (first >= 0 && (!op->in[first] || ct_op_mutates(op, first)))
            continue;
        suggest(p, op, &rule, first, &c);
        evaluate(p, op, &rule, &c, &trial);
        if (trial.cost < best->cost) {
            struct choice worse = *best;

            *best = trial;
            trial = worse;
        }
    }
    pass_pending(p, op, best);
    return 0;
}

/* ---- inserting ---- */

static const char *axes_text(const struct ct_graph *g, const struct ct_step *s)
{
    const char *text = "";

    for (int i = 0; i < s->count; i++)
        text = ct_arena_printf(g->arena, "%s%s%s", text, i ? "." : "",
                               g->mesh.axis[s->axis[i]].name);
    return text;
}

struct step_attrs {
    const char *axes;
    int64_t dim, to;
};

static struct ct_value *emit_steps(struct ct_builder *b, struct ct_value *v,
                                   const struct ct_steps *steps, const char *name)
{
    for (int i = 0; v && i < steps->count; i++) {
        const struct ct_step *s = &steps->step[i];
        struct step_attrs attrs = {axes_text(b->graph, s), s->dim, s->to};

        v = ct_emit1(b, s->op, ct_arena_printf(b->graph->arena, "%s.%s", name, s->op), &v, 1,
                     &attrs);
        if (v)
            v->sharding = s->after;
    }
    return v;
}

/* Where a redistribution for op belongs: what is there once a step is moved once a step. */
static struct ct_builder place(const struct propagation *p, struct ct_op *op,
                               const struct ct_value *v)
{
    struct ct_builder b = ct_builder_before(p->graph, op);
    bool once = !v->producer || v->producer->part == CT_PART_PRE;

    if (once && v->role != CT_ROLE_INPUT && ct_part_is_microbatch(op->part)) {
        b = v->producer ? ct_builder_after(p->graph, v->producer)
                        : ct_builder_before(p->graph, p->graph->first);
        b.part = CT_PART_PRE;
        b.region = op->region;
        b.stage = op->stage;
    }
    return b;
}

static void remember(struct propagation *p, const struct ct_value *v,
                     const struct ct_sharding *to, struct ct_value *value)
{
    struct moved *m;

    if (v->id >= p->count)
        return;
    m = ct_arena_new(&p->scratch, struct moved);
    *m = (struct moved){*to, value, p->moved[v->id]};
    p->moved[v->id] = m;
}

static int move_input(struct propagation *p, struct ct_op *op, int i,
                      const struct ct_sharding *to, const char *why)
{
    struct ct_value *v = op->in[i], *there = already_moved(p, v, to);
    struct ct_steps steps;
    struct ct_builder b;
    int rc;

    if (ct_sharding_equal(&v->sharding, to))
        return 0;
    if (!there) {
        if (ct_op_mutates(op, i))
            return ct_fail(CT_EINVAL, "%s would have to move %%%s, which it updates in place",
                           op->type->name, v->name);
        rc = ct_redistribute_steps(&p->graph->mesh, v->rank, &v->sharding, to, &steps);
        if (rc < 0)
            return ct_context(rc, "%%%s for %s", v->name, op->type->name);
        b = place(p, op, v);
        b.why = why;
        there = emit_steps(&b, v, &steps, v->name);
        if (!there)
            return b.status;
        remember(p, v, to, there);
    }
    op->in[i] = there;
    return 0;
}

static const char *explain(const struct propagation *p, const struct ct_op *op,
                           const struct ct_value *v, const struct ct_sharding *to)
{
    char from[160], target[160];

    ct_sharding_print(&v->sharding, &p->graph->mesh, v->rank, from, sizeof(from));
    ct_sharding_print(to, &p->graph->mesh, v->rank, target, sizeof(target));
    return ct_arena_printf(p->graph->arena, "%s needs %%%s as %s, it is %s", op->type->name,
                           v->name, *target ? target : "replicated", *from ? from : "replicated");
}

/* An explicit redistribution: its target is given. */
static int resolve(struct propagation *p, struct ct_op *op)
{
    struct ct_value *x = op->in[0], *y = op->out[0], *there;
    struct ct_builder b = ct_builder_before(p->graph, op);
    struct ct_sharding to;
    struct ct_steps steps;
    const char *end;
    int rc = ct_sharding_parse(ct_op_string(op, "to"), &p->graph->mesh, &to, &end);

    if (rc == 0)
        rc = ct_redistribute_steps(&p->graph->mesh, x->rank, &x->sharding, &to, &steps);
    if (rc < 0)
        return ct_context(rc, "%%%s", y->name);
    b.why = op->why;
    there = emit_steps(&b, x, &steps, x->name);
    if (!there)
        return b.status;
    if (there != x)
        remember(p, x, &to, there);
    ct_graph_replace(p->graph, y, there);
    for (size_t i = 0; i < p->graph->value_count; i++)
        if (p->graph->values[i]->grad == y)
            p->graph->values[i]->grad = there;
    if (x->id < p->count && p->weight[x->id] && there->id < p->count)
        p->weight[there->id] = true;
    ct_graph_remove(p->graph, op);
    return 0;
}

static int visit(struct propagation *p, struct ct_op *op)
{
    struct choice best;
    int rc = choose(p, op, &best);

    for (int i = 0; rc == 0 && i < op->ins; i++)
        if (op->in[i] && !ct_sharding_equal(&op->in[i]->sharding, &best.in[i]))
            rc = move_input(p, op, i, &best.in[i], explain(p, op, op->in[i], &best.in[i]));
    for (int i = 0; rc == 0 && i < op->outs; i++)
        op->out[i]->sharding = best.out[i];
    return rc;
}

static void mark_weights(struct propagation *p)
{
    p->weight = ct_arena_array(&p->scratch, bool, p->count);
    for (size_t i = 0; i < p->count; i++)
        p->weight[i] = p->graph->values[i]->role == CT_ROLE_PARAM;
    ct_for_each_op(op, p->graph)
    {
        bool weight = op->ins > 0 && op->part <= CT_PART_F &&
                      (op->part == CT_PART_PRE || !strcmp(op->type->name, "redistribute"));

        for (int i = 0; i < op->ins; i++)
            weight &= op->in[i] && p->weight[op->in[i]->id];
        for (int i = 0; weight && i < op->outs; i++)
            p->weight[op->out[i]->id] = true;
    }
}

/* The host reads whole values. */
static int gather_fetches(struct propagation *p)
{
    const struct ct_sharding whole = {0};

    for (size_t i = 0; i < p->graph->fetch_count; i++) {
        struct ct_fetch *f = &p->graph->fetches[i];
        struct ct_builder b = ct_builder_at_end(p->graph, CT_PART_POST, "");
        struct ct_steps steps;
        int rc = ct_redistribute_steps(&p->graph->mesh, f->value->rank, &f->value->sharding,
                                       &whole, &steps);

        if (rc < 0)
            return rc;
        b.why = "the host reads it";
        f->value = emit_steps(&b, f->value, &steps, f->value->name);
        if (!f->value)
            return b.status;
    }
    return 0;
}

/* Each rank counts the labels that it is fed. */
static void share_count(struct ct_graph *graph)
{
    const struct ct_value *labels = ct_graph_find(graph, "labels");
    struct ct_value *count = ct_graph_find(graph, "valid_tokens");

    if (labels && count)
        count->sharding.unreduced = ct_sharding_axes(&labels->sharding);
}

static int propagate(struct ct_graph *graph, struct ct_run *run)
{
    struct propagation p = {.graph = graph, .count = graph->value_count};
    int rc = 0;

    (void)run;
    if (graph->mesh.count == 0)
        return 0;
    p.moved = ct_arena_array(&p.scratch, struct moved *, p.count);
    mark_weights(&p);
    share_count(graph);
    ct_for_each_op_safe(op, graph)
    {
        if (op->part == CT_PART_INIT)
            continue;
        rc = strcmp(op->type->name, "redistribute") ? visit(&p, op) : resolve(&p, op);
        if (rc < 0)
            break;
    }
    if (rc == 0)
        rc = gather_fetches(&p);
    ct_arena_finish(&p.scratch);
    return rc;
}

const struct ct_transform ct_pass_propagate = {
    .name = "propagate",
    .summary = "gives every value its sharding and inserts the collectives that follow",
    .phase = CT_PHASE_COLLECTIVE,
    .gives = (const char *const[]){"collectives", NULL},
    .evaluation = true,
    .apply = propagate,
};
