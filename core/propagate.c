/*
 * Propagation: every value gets its sharding, and collectives appear where shardings meet.
 *
 * Ops are visited once, in order. An op's factor rule ties the dimensions of its operands together;
 * the ways to cut the factors that its inputs suggest are tried (each input taken first once), and
 * the one that moves the fewest bytes wins. Weights do not move for activations: what is made from
 * parameters alone is a thousand times dearer. A value redistributed once is not redistributed the
 * same way again. Parameters and states that an op updates never move.
 *
 * Where an output goes to a redistribution with a given target (that is how gradients meet their
 * parameters), what it costs to get there counts, too, and axes that the inputs leave over are used
 * as the target has them: that takes no more than a slice of an input.
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
    size_t count, weight_room;
    struct ct_users users; /* as they were at first: right for ops that are still to come */
    bool *fetched;         /* by id */
    ct_axes data;          /* axes that cut the inputs of the step */
};

struct cuts { /* of one op: axes by factor */
    uint8_t *count, (*axis)[CT_MAX_AXES];
};

struct choice {
    double cost;
    struct ct_sharding *in, *out;
};

/* How the only user of an output wants it. */
struct wish {
    bool known;
    struct ct_sharding to;
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

/* Axes that cut something else: all, but for factors of other repetitions, which never meet. */
static ct_axes taken(const struct ct_rule *rule, const struct cuts *c, int factor)
{
    int repetition = rule->factor[factor].repetition;
    ct_axes axes = 0;

    for (int f = 0; f < rule->count; f++)
        if (repetition < 0 || rule->factor[f].repetition < 0 ||
            rule->factor[f].repetition == repetition)
            axes |= axes_of(c, f);
    return axes;
}

/* Tied factors are cut into equal pieces: the one that is a multiple of the other follows. */
static bool divides(const struct propagation *p, const struct ct_rule *rule, ct_axes axes)
{
    return rule->factor[rule->tie[1]].size % ct_mesh_degree(&p->graph->mesh, axes) == 0;
}

/* Cut the factors of operand o as its sharding does, where that is still possible. */
static void adopt(const struct propagation *p, const struct ct_rule *rule, struct cuts *c, int o,
                  const struct ct_sharding *s)
{
    for (int d = 0; d < rule->operand[o].rank; d++) {
        int f = rule->operand[o].factor[d], other = -1;

        if (rule->factor[f].kind == CT_FACTOR_WHOLE || c->count[f])
            continue;
        if (f == rule->tie[0] || f == rule->tie[1])
            other = f == rule->tie[0] ? rule->tie[1] : rule->tie[0];
        for (int i = 0; i < s->count[d]; i++) {
            int axis = s->axis[d][i];
            ct_axes bit = (ct_axes)1 << axis;

            if (taken(rule, c, f) & bit || (other >= 0 && !divides(p, rule, axes_of(c, f) | bit)))
                break;
            c->axis[f][c->count[f]++] = (uint8_t)axis;
            if (other >= 0)
                c->axis[other][c->count[other]++] = (uint8_t)axis;
        }
    }
}

/* Is it a sum of its own in each repetition? */
static bool is_repeated_sum(const struct ct_factor *f)
{
    return f->kind == CT_FACTOR_REDUCTION && f->repetition >= 0;
}

/* Do the sums of all repetitions have the axis? */
static bool in_every_sum(const struct ct_rule *rule, const struct cuts *c, ct_axes bit)
{
    int last = -1;

    for (int f = 0; f < rule->count; f++)
        if (is_repeated_sum(&rule->factor[f]) && rule->factor[f].repetition > last)
            last = rule->factor[f].repetition;
    for (int r = 0; r <= last; r++) {
        bool has = false;

        for (int f = 0; f < rule->count; f++)
            has |= is_repeated_sum(&rule->factor[f]) && rule->factor[f].repetition == r &&
                   axes_of(c, f) & bit;
        if (!has)
            return false;
    }
    return true;
}

/* Take an axis, and those inside it, away from a factor. */
static bool drop_axis(struct cuts *c, int factor, int axis)
{
    for (int i = 0; i < c->count[factor]; i++)
        if (c->axis[factor][i] == axis) {
            c->count[factor] = (uint8_t)i;
            return true;
        }
    return false;
}

/* A sum over repeated operands is pending over an axis only if every term is cut by it. */
static void even_out(const struct ct_rule *rule, struct cuts *c)
{
    bool dropped = true;

    while (dropped) {
        dropped = false;
        for (int axis = 0; axis < CT_MAX_AXES; axis++)
            for (int f = 0; f < rule->count && !in_every_sum(rule, c, (ct_axes)1 << axis); f++)
                dropped |= is_repeated_sum(&rule->factor[f]) && drop_axis(c, f, axis);
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

static bool is_weight(const struct propagation *p, const struct ct_value *v)
{
    return v->id < p->weight_room && p->weight[v->id];
}

static void set_weight(struct propagation *p, const struct ct_value *v)
{
    p->weight = ct_arena_grow(&p->scratch, p->weight, &p->weight_room, (size_t)v->id + 1,
                              sizeof(*p->weight));
    p->weight[v->id] = true;
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
    return is_weight(p, v) ? WEIGHT_COST * bytes : bytes;
}

static const struct ct_op *only_user(const struct propagation *p, const struct ct_value *v)
{
    bool one = v->id < p->count && !p->fetched[v->id] &&
               p->users.first[v->id + 1] - p->users.first[v->id] == 1;

    return one ? p->users.op[p->users.first[v->id]] : NULL;
}

static bool same_shape(const struct ct_value *a, const struct ct_value *b)
{
    return a->rank == b->rank && !memcmp(a->shape, b->shape, sizeof(*a->shape) * (size_t)a->rank);
}

/* Along linear ops to a redistribution with a given target. */
static struct wish wish_for(const struct propagation *p, const struct ct_value *v)
{
    const struct ct_op *user = only_user(p, v);
    struct wish wish = {false};
    const char *end;

    while (user && user->type->flags & CT_OP_LINEAR && same_shape(user->out[0], v))
        user = only_user(p, user->out[0]);
    if (user && !strcmp(user->type->name, "redistribute"))
        wish.known =
            ct_sharding_parse(ct_op_string(user, "to"), &p->graph->mesh, &wish.to, &end) == 0;
    return wish;
}

static double wish_cost(const struct propagation *p, const struct ct_value *v,
                        const struct wish *wish, const struct ct_sharding *made)
{
    struct ct_steps steps;

    if (!wish->known)
        return 0;
    if (ct_redistribute_steps(&p->graph->mesh, v->rank, made, &wish->to, &steps) < 0)
        return 1e300;
    return ct_redistribute_bytes(&p->graph->mesh, v, made, &steps);
}

/* Inputs and outputs under these cuts, and the cost. */
static void evaluate(const struct propagation *p, const struct ct_op *op,
                     const struct ct_rule *rule, const struct cuts *c, const struct wish *wishes,
                     struct choice *choice)
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
        choice->cost += wish_cost(p, op->out[i], &wishes[i], s);
    }
}

/* Linear ops on pending sums leave them pending: the sum is made once, later. */
static void pass_pending(const struct propagation *p, const struct ct_op *op,
                         const struct wish *wish, struct choice *best)
{
    bool linear = op->type->flags & CT_OP_LINEAR;
    ct_axes pending = linear ? op->in[0]->sharding.unreduced : 0;
    struct ct_sharding out;
    double cost;

    if (!pending)
        return;
    out = best->out[0];
    out.unreduced |= pending;
    cost = wish_cost(p, op->out[0], wish, &out);
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
    best->out[0] = out;
}

static void choice_init(struct propagation *p, const struct ct_op *op, struct choice *choice)
{
    choice->cost = 1e301;
    choice->in = ct_arena_array(&p->scratch, struct ct_sharding, op->ins);
    choice->out = ct_arena_array(&p->scratch, struct ct_sharding, op->outs);
}

/* What may suggest first how to cut: an input, or nobody in particular, or a wish. */
#define NOBODY (-1)
#define WISH (-2)

/* An output whose dimension no input has is made in the pieces that are wanted, even if inputs must
   be gathered for that, but for the axes of the data: what is made of data stays with it. */
static void adopt_first(const struct propagation *p, const struct ct_op *op,
                        const struct ct_rule *rule, const struct wish *wishes, struct cuts *c)
{
    for (int i = 0; i < op->outs; i++) {
        struct ct_sharding to = wishes[i].to;

        for (int d = 0; d < CT_MAX_RANK; d++)
            for (int k = 0; k < to.count[d]; k++)
                if (p->data >> to.axis[d][k] & 1)
                    to.count[d] = (uint8_t)k;
        if (wishes[i].known)
            adopt(p, rule, c, op->ins + i, &to);
    }
}

/* Cut what the operands suggest: what is updated in place first, then `first`, then the other
   inputs, last the wishes. */
static void suggest(struct propagation *p, const struct ct_op *op, const struct ct_rule *rule,
                    const struct wish *wishes, int first, struct cuts *c)
{
    c->count = ct_arena_array(&p->scratch, uint8_t, rule->count);
    c->axis = ct_arena_alloc(&p->scratch, sizeof(*c->axis) * (size_t)rule->count);
    for (int i = 0; i < op->ins; i++)
        if (ct_op_mutates(op, i))
            adopt(p, rule, c, i, &op->in[i]->sharding);
    if (first == WISH)
        adopt_first(p, op, rule, wishes, c);
    if (first >= 0)
        adopt(p, rule, c, first, &op->in[first]->sharding);
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && i != first && !ct_op_mutates(op, i))
            adopt(p, rule, c, i, &op->in[i]->sharding);
    for (int i = 0; i < op->outs; i++)
        if (wishes[i].known)
            adopt(p, rule, c, op->ins + i, &wishes[i].to);
    if (op->outs)
        even_out(rule, c);
}

/* Is there anything that could suggest first? */
static bool may_be_first(const struct ct_op *op, const struct ct_rule *rule, int first)
{
    bool output_only = false;

    if (first >= 0)
        return op->in[first] && !ct_op_mutates(op, first);
    for (int f = 0; f < rule->count; f++)
        output_only |= rule->factor[f].operand >= op->ins;
    return first == NOBODY || output_only;
}

static int choose(struct propagation *p, const struct ct_op *op, struct choice *best)
{
    int orders = op->ins > ORDERS_TRIED ? 0 : op->ins;
    struct wish *wishes = ct_arena_array(&p->scratch, struct wish, op->outs + 1);
    struct choice trial;
    struct ct_rule rule;
    int rc = ct_rule_apply(op, &p->scratch, &rule);

    if (rc < 0)
        return rc;
    for (int i = 0; i < op->outs; i++)
        wishes[i] = wish_for(p, op->out[i]);
    choice_init(p, op, best);
    choice_init(p, op, &trial);
    for (int i = NOBODY; i <= orders; i++) {
        int first = i < orders ? i : WISH;
        struct cuts c;

        if (!may_be_first(op, &rule, first))
            continue;
        suggest(p, op, &rule, wishes, first, &c);
        evaluate(p, op, &rule, &c, wishes, &trial);
        if (trial.cost < best->cost) {
            struct choice worse = *best;

            *best = trial;
            trial = worse;
        }
    }
    pass_pending(p, op, wishes, best);
    return 0;
}

/* ---- inserting ---- */

static const char *axes_text(const struct ct_graph *g, const struct ct_step *s)
{
    const char *text = "";

    for (int i = 0; i < s->count; i++)
        text =
            ct_arena_printf(g->arena, "%s%s%s", text, i ? "." : "", g->mesh.axis[s->axis[i]].name);
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

/* A value that was moved for a later part is needed in an earlier one, too: W comes after all of I.
 */
static void make_earlier(const struct ct_value *from, struct ct_value *there, enum ct_part part)
{
    for (; there != from; there = there->producer->in[0])
        if (there->producer->part > part)
            there->producer->part = part;
}

static int move_input(struct propagation *p, struct ct_op *op, int i, const struct ct_sharding *to,
                      const char *why)
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
    make_earlier(v, there, op->part);
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
    for (struct ct_value *v = there; is_weight(p, x) && v != x; v = v->producer->in[0])
        set_weight(p, v);
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
    for (size_t i = 0; i < p->count; i++)
        if (p->graph->values[i]->role == CT_ROLE_PARAM)
            set_weight(p, p->graph->values[i]);
    ct_for_each_op (op, p->graph) {
        bool weight = op->ins > 0 && op->part <= CT_PART_F &&
                      (op->part == CT_PART_PRE || !strcmp(op->type->name, "redistribute"));

        for (int i = 0; i < op->ins; i++)
            weight &= op->in[i] && is_weight(p, op->in[i]);
        for (int i = 0; weight && i < op->outs; i++)
            set_weight(p, op->out[i]);
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
        int rc = ct_redistribute_steps(&p->graph->mesh, f->value->rank, &f->value->sharding, &whole,
                                       &steps);

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

static void look_ahead(struct propagation *p)
{
    p->users = ct_graph_users(p->graph, &p->scratch);
    p->fetched = ct_arena_array(&p->scratch, bool, p->count);
    for (size_t i = 0; i < p->graph->fetch_count; i++)
        p->fetched[p->graph->fetches[i].value->id] = true;
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
    p.moved = ct_arena_array(&p.scratch, struct moved *, p.count);
    mark_weights(&p);
    look_ahead(&p);
    share_count(graph);
    ct_for_each_op_safe (op, graph) {
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
    .after = (const char *const[]){"collected", NULL},
    .evaluation = true,
    .apply = propagate,
};
