/*
 * Choosing how an op is split.
 *
 * An op's factor rule ties the dimensions of its operands together. Each input in turn suggests
 * first how to split the factors; the result that moves the fewest bytes wins.
 *
 * Transforms decide how weights are split, and propagation how activations are: what is computed
 * from parameters alone costs a thousand times more to move, so that few tokens do not gather the
 * weights that a transform has split for good. Weights that are to move do so by a redistribution
 * with a given target, which has no choice to make. Parameters and states that an op updates never
 * move; an unplaced state goes where the op that updates it is.
 *
 * If an output goes to a redistribution with a given target (as gradients do on their way to their
 * parameters), the cost to get there counts, too. Axes that the inputs leave unused are then used
 * as in the target: that takes no more than a slice of an input.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/rule.h>

#include "shard/propagate.h"
#include "shard/redistribute.h"

#define WEIGHT_COST 1000.0

struct splits { /* for one op: axes by factor */
    uint8_t *count, (*axis)[CT_MAX_AXES];
    ct_axes *used, all; /* axes used by repetition, after those of none; by any factor */
    int repetitions;
};

/* The sharding that the only user of an output needs. */
struct target {
    bool known;
    struct ct_sharding to;
};

/* Ops with more inputs (optimizers) are tried with one order of inputs only. */
#define ORDERS_TRIED 16

static ct_axes axes_of(const struct splits *c, int factor)
{
    ct_axes axes = 0;

    for (int i = 0; i < c->count[factor]; i++)
        axes |= (ct_axes)1 << c->axis[factor][i];
    return axes;
}

/* Axes already used by factors, other than those of other repetitions: they share no operand. */
static ct_axes taken(const struct ct_rule *rule, const struct splits *c, int factor)
{
    int repetition = rule->factor[factor].repetition;

    return repetition < 0 ? c->all : c->used[0] | c->used[repetition + 1];
}

static void split_by(const struct ct_rule *rule, struct splits *c, int factor, int axis)
{
    ct_axes bit = (ct_axes)1 << axis;

    c->axis[factor][c->count[factor]++] = (uint8_t)axis;
    c->used[rule->factor[factor].repetition + 1] |= bit;
    c->all |= bit;
}

/* The second of tied factors counts groups of the first, which are its shards. Axes split the
   second into equal shards; they must split the first at the same groups. */
static bool divides(const struct propagation *p, const struct ct_rule *rule, ct_axes axes)
{
    int64_t many = rule->factor[rule->tie[0]].size, few = rule->factor[rule->tie[1]].size;
    int64_t degree = ct_mesh_degree(&p->graph->mesh, axes);

    return few % degree == 0 && (many % few == 0 || (few == degree && !(axes & (axes - 1))));
}

/* Whether these axes split a factor into equal shards of multiples, where it asks for that. */
static bool in_multiples(const struct propagation *p, const struct ct_factor *f, ct_axes axes)
{
    return f->multiple <= 1 ||
           (f->size > 0 && f->size % (ct_mesh_degree(&p->graph->mesh, axes) * f->multiple) == 0);
}

/* Split the factors of operand o as in its sharding, where that is still possible. */
static void follow(const struct propagation *p, const struct ct_rule *rule, struct splits *c, int o,
                   const struct ct_sharding *s)
{
    for (int d = 0; d < rule->operand[o].ndim; d++) {
        int f = rule->operand[o].factor[d], other = -1;

        if (rule->factor[f].kind == CT_FACTOR_WHOLE || c->count[f])
            continue;
        if (f == rule->tie[0] || f == rule->tie[1])
            other = f == rule->tie[0] ? rule->tie[1] : rule->tie[0];
        for (int i = 0; i < s->count[d]; i++) {
            int axis = s->axis[d][i];
            ct_axes bit = (ct_axes)1 << axis;

            if (taken(rule, c, f) & bit ||
                !in_multiples(p, &rule->factor[f], axes_of(c, f) | bit) ||
                (other >= 0 && !divides(p, rule, axes_of(c, f) | bit)))
                break;
            split_by(rule, c, f, axis);
            if (other >= 0)
                split_by(rule, c, other, axis);
        }
    }
}

/* Does each repetition have its own sum over this factor? */
static bool is_repeated_sum(const struct ct_factor *f)
{
    return f->kind == CT_FACTOR_REDUCTION && f->repetition >= 0;
}

/* Axes that split the sums of all repetitions. */
static ct_axes in_every_sum(const struct ct_rule *rule, const struct splits *c)
{
    ct_axes every = ~(ct_axes)0, *sums = c->used;
    int last = -1;

    memset(sums, 0, sizeof(*sums) * (size_t)c->repetitions);
    for (int f = 0; f < rule->count; f++)
        if (is_repeated_sum(&rule->factor[f])) {
            int repetition = rule->factor[f].repetition;

            sums[repetition] |= axes_of(c, f);
            last = repetition > last ? repetition : last;
        }
    for (int r = 0; r <= last; r++)
        every &= sums[r];
    return every;
}

/* Keep the factor's first axes, as far as they are among these. */
static bool keep_axes(struct splits *c, int factor, ct_axes axes)
{
    for (int i = 0; i < c->count[factor]; i++)
        if (!(axes >> c->axis[factor][i] & 1)) {
            c->count[factor] = (uint8_t)i;
            return true;
        }
    return false;
}

/* A sum over repeated operands is pending over an axis only if every term is split by it. Which
   axes are used is not known afterwards. */
static void even_out(const struct ct_rule *rule, struct splits *c)
{
    bool dropped = true;

    while (dropped) {
        ct_axes every = in_every_sum(rule, c);

        dropped = false;
        for (int f = 0; f < rule->count; f++)
            dropped |= is_repeated_sum(&rule->factor[f]) && keep_axes(c, f, every);
    }
}

static void operand_sharding(const struct ct_rule *rule, const struct splits *c, int o,
                             struct ct_sharding *s)
{
    *s = (struct ct_sharding){0};
    for (int d = 0; d < rule->operand[o].ndim; d++) {
        int f = rule->operand[o].factor[d];

        s->count[d] = c->count[f];
        memcpy(s->axis[d], c->axis[f], c->count[f]);
    }
}

/* A state that takes the sharding that it is wanted in. */
static bool is_unplaced(const struct propagation *p, const struct ct_value *v)
{
    return v->marks & p->unplaced;
}

static double move_cost(const struct propagation *p, const struct ct_op *op, int i,
                        const struct ct_sharding *to)
{
    const struct ct_value *v = op->in[i];
    struct ct_steps steps;
    double bytes;

    if (ct_sharding_equal(&v->sharding, to) || ct_propagate_moved(p, v, to) || is_unplaced(p, v))
        return 0;
    if (ct_redistribute_steps(&p->graph->mesh, v->ndim, &v->sharding, to, &steps) < 0)
        return 1e300;
    bytes = 1 + ct_redistribute_bytes(&p->graph->mesh, v, &v->sharding, &steps);
    if (ct_op_mutates(op, i))
        return 1e200;
    return ct_propagate_is_weight(p, v) ? WEIGHT_COST * bytes : bytes;
}

static const struct ct_op *only_user(const struct ct_value *v)
{
    return !v->fetch_count && v->use_count == 1 ? v->first_use->op : NULL;
}

static bool same_shape(const struct ct_value *a, const struct ct_value *b)
{
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof(*a->shape) * (size_t)a->ndim);
}

/* The target of a redistribution that v reaches through linear ops. */
static struct target target_for(const struct ct_value *v)
{
    const struct ct_op *user = only_user(v);
    struct target target = {false};

    while (user && user->type->flags & CT_OP_LINEAR && same_shape(user->out[0], v))
        user = only_user(user->out[0]);
    if (user && user->type == &ct_op_redistribute)
        target = (struct target){true, ((const struct ct_redistribute *)user->attrs)->to.sharding};
    return target;
}

static double target_cost(const struct propagation *p, const struct ct_value *v,
                          const struct target *target, const struct ct_sharding *made)
{
    struct ct_steps steps;

    if (!target->known)
        return 0;
    if (ct_redistribute_steps(&p->graph->mesh, v->ndim, made, &target->to, &steps) < 0)
        return 1e300;
    return ct_redistribute_bytes(&p->graph->mesh, v, made, &steps);
}

/* The shardings of inputs and outputs under these splits, and the cost. */
static void evaluate(const struct propagation *p, const struct ct_op *op,
                     const struct ct_rule *rule, const struct splits *c,
                     const struct target *targets, struct choice *choice)
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
        if (rule->operand[op->ins + i].maximum)
            s->reduction = CT_REDUCE_MAX;
        choice->cost += target_cost(p, op->out[i], &targets[i], s);
    }
}

static struct ct_sharding unsplit(struct ct_sharding s, ct_axes axes)
{
    for (int d = 0; d < CT_MAX_DIMS; d++) {
        int count = 0;

        for (int i = 0; i < s.count[d]; i++)
            if (!(axes >> s.axis[d][i] & 1))
                s.axis[d][count++] = s.axis[d][i];
        s.count[d] = (uint8_t)count;
    }
    return s;
}

/* Axes over which all inputs are pending sums. No op passes on a pending maximum. */
static ct_axes common_pending(const struct ct_op *op)
{
    ct_axes pending = ~(ct_axes)0;

    for (int i = 0; i < op->ins; i++)
        if (op->in[i])
            pending &=
                op->in[i]->sharding.reduction == CT_REDUCE_SUM ? op->in[i]->sharding.unreduced : 0;
    return pending;
}

static void choice_init(struct propagation *p, const struct ct_op *op, struct choice *choice)
{
    choice->cost = 1e301;
    choice->in = ct_arena_array(&p->scratch, struct ct_sharding, op->ins);
    choice->out = ct_arena_array(&p->scratch, struct ct_sharding, op->outs);
}

/* Linear ops pass on pending sums; the reduction happens once, later. */
static void pass_pending(struct propagation *p, const struct ct_op *op,
                         const struct target *targets, struct choice *best)
{
    ct_axes pending = op->type->flags & CT_OP_LINEAR ? common_pending(op) : 0;
    struct choice with;

    if (!pending)
        return;
    choice_init(p, op, &with);
    with.cost = 0;
    for (int i = 0; i < op->outs; i++) {
        with.out[i] = unsplit(best->out[i], pending);
        with.out[i].unreduced |= pending;
        with.cost += target_cost(p, op->out[i], &targets[i], &with.out[i]);
    }
    for (int i = 0; i < op->ins; i++) {
        if (!op->in[i])
            continue;
        if (ct_dtype_size(op->out[0]->dtype) < ct_dtype_size(op->in[i]->dtype))
            return;
        with.in[i] = unsplit(best->in[i], pending);
        with.in[i].unreduced = pending;
        with.cost += move_cost(p, op, i, &with.in[i]);
    }
    if (with.cost < best->cost)
        *best = with;
}

/* The first to suggest a split: an input, or nobody, or a target. */
#define NOBODY (-1)
#define TARGET (-2)

/* If no input has an output's dimension, it is computed in the target's shards, even if inputs must
   be gathered. Axes of the data are excluded: what is computed from data stays with it. */
static void follow_first(const struct propagation *p, const struct ct_op *op,
                         const struct ct_rule *rule, const struct target *targets, struct splits *c)
{
    for (int i = 0; i < op->outs; i++) {
        struct ct_sharding to = targets[i].to;

        for (int d = 0; d < CT_MAX_DIMS; d++)
            for (int k = 0; k < to.count[d]; k++)
                if (p->data >> to.axis[d][k] & 1)
                    to.count[d] = (uint8_t)k;
        if (targets[i].known)
            follow(p, rule, c, op->ins + i, &to);
    }
}

/* Split as the operands suggest: those updated in place, then `first`, then the other inputs, and
   last the targets. */
static void suggest(struct propagation *p, const struct ct_op *op, const struct ct_rule *rule,
                    const struct target *targets, int first, struct splits *c)
{
    c->count = ct_arena_array(&p->scratch, uint8_t, rule->count);
    c->axis = ct_arena_alloc(&p->scratch, sizeof(*c->axis) * (size_t)rule->count);
    c->repetitions = 0;
    for (int f = 0; f < rule->count; f++)
        if (rule->factor[f].repetition >= c->repetitions)
            c->repetitions = rule->factor[f].repetition + 1;
    c->used = ct_arena_array(&p->scratch, ct_axes, c->repetitions + 1);
    c->all = 0;
    for (int i = 0; i < op->ins; i++)
        if (ct_op_mutates(op, i))
            follow(p, rule, c, i, &op->in[i]->sharding);
    if (first == TARGET)
        follow_first(p, op, rule, targets, c);
    if (first >= 0)
        follow(p, rule, c, first, &op->in[first]->sharding);
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && i != first && !ct_op_mutates(op, i))
            follow(p, rule, c, i, &op->in[i]->sharding);
    for (int i = 0; i < op->outs; i++)
        if (targets[i].known)
            follow(p, rule, c, op->ins + i, &targets[i].to);
    if (op->outs)
        even_out(rule, c);
}

/* Can `first` suggest a split? */
static bool may_be_first(const struct ct_op *op, const struct ct_rule *rule, int first)
{
    bool output_only = false;

    if (first >= 0)
        return op->in[first] && !ct_op_mutates(op, first);
    for (int f = 0; f < rule->count; f++)
        output_only |= rule->factor[f].operand >= op->ins;
    return first == NOBODY || output_only;
}

int ct_propagate_choose(struct propagation *p, const struct ct_op *op, struct choice *best)
{
    int orders = op->ins > ORDERS_TRIED ? 0 : op->ins;
    struct target *targets = ct_arena_array(&p->scratch, struct target, op->outs + 1);
    struct choice trial;
    struct ct_rule rule;
    int rc;

    if (ct_op_type_whole(op->type)->place) {
        choice_init(p, op, best);
        return ct_op_type_whole(op->type)->place(op, &p->graph->mesh, best->in, best->out);
    }
    rc = ct_rule_apply(op, &p->scratch, &rule);
    if (rc < 0)
        return rc;
    for (int i = 0; i < op->outs; i++)
        targets[i] = target_for(op->out[i]);
    choice_init(p, op, best);
    choice_init(p, op, &trial);
    for (int i = NOBODY; i <= orders; i++) {
        int first = i < orders ? i : TARGET;
        struct splits c;

        if (!may_be_first(op, &rule, first))
            continue;
        suggest(p, op, &rule, targets, first, &c);
        evaluate(p, op, &rule, &c, targets, &trial);
        if (trial.cost < best->cost) {
            struct choice worse = *best;

            *best = trial;
            trial = worse;
        }
    }
    pass_pending(p, op, targets, best);
    return 0;
}
