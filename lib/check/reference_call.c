/*
 * Promises of a reference kernel: any strides, accumulation, outputs in the memory of inputs
 * where the type says so, any floating dtype, and its factors.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/rule.h>

#include "machine.h"

/* ---- calls ---- */

static struct ct_tensor copied(struct ct_trial *m, const struct ct_tensor *t)
{
    size_t bytes = ct_tensor_bytes(t);
    struct ct_tensor copy = *t;

    if (t->data) {
        copy.data = ct_arena_alloc(&m->arena, bytes + 8);
        memcpy(copy.data, t->data, bytes);
    }
    return copy;
}

int call_create(struct call *c, const struct ct_sample *s, enum ct_dtype dtype,
                const struct call *like)
{
    int rc;

    memset(c, 0, sizeof(*c));
    c->sample = s;
    rc = ct_trial_create(&c->m, s, dtype);
    if (rc < 0)
        return ct_context(CT_EINVAL, "%s(%s)", s->type, s->inputs);
    c->op = c->m.op;
    for (int i = 0; i < c->op->ins; i++) {
        if (!c->op->in[i])
            continue;
        c->in[i] = *ct_trial_tensor(&c->m, c->op->in[i]);
        for (int64_t k = 0; like && k < ct_tensor_count(&c->in[i]); k++)
            ct_tensor_store(&c->in[i], k, ct_tensor_load(&like->in[i], k));
        c->after[i] = copied(&c->m, &c->in[i]);
    }
    for (int i = 0; i < c->op->outs; i++)
        c->out[i] = *ct_trial_tensor(&c->m, c->op->out[i]);
    rc = launch(c->m.graph, NULL, 0, c->op, c->after, c->out, 0);
    return rc < 0 ? ct_context(CT_EINVAL, "%s(%s)", s->type, s->inputs) : 0;
}

void call_finish(struct call *c)
{
    ct_trial_finish(&c->m);
}

/* ---- sequences in another order ---- */

/* By operand and dimension: does it run along sequences, and do results depend on positions? */
static bool has_positions(const struct ct_rule *rule, int operand, int d)
{
    return rule->factor[rule->operand[operand].factor[d]].position;
}

void order_apply(struct ct_trial *m, const struct ct_rule *rule, int operand,
                 const struct ct_tensor *t)
{
    struct ct_tensor in_order = t->data ? copied(m, t) : *t;

    for (int64_t i = 0; t->data && i < ct_tensor_count(t); i++) {
        int64_t from = 0, step = 1, rest = i;

        for (int d = t->ndim - 1; d >= 0; d--) {
            int64_t at = rest % t->shape[d];

            if (has_positions(rule, operand, d))
                at = ct_graph_position(m->graph, t->shape[d], at);
            from += at * step;
            step *= t->shape[d];
            rest /= t->shape[d];
        }
        ct_tensor_store(t, i, ct_tensor_load(&in_order, from));
    }
}

/* Does the type take positions as an input that this call lacks? */
static bool lacks_positions(const struct ct_op *op)
{
    char name[64] = "";

    for (int i = 0; i < op->ins && !strstr(name, "position"); i++)
        if (op->in[i])
            ct_operand_name(op, i, name, sizeof(name));
    return strstr(op->type->signature, "position") && !strstr(name, "position");
}

int order_begin(struct ct_trial *m, struct ct_rule *rule)
{
    static const int32_t order[] = {1, 0};
    bool depends = false;
    int rc = ct_rule_apply(m->op, &m->arena, rule);

    if (rc < 0 || lacks_positions(m->op))
        return rc;
    for (int f = 0; f < rule->count; f++) {
        if (rule->factor[f].position && rule->factor[f].size % (int64_t)CT_COUNT(order))
            return 0;
        depends |= rule->factor[f].position;
    }
    if (!depends)
        return 0;
    m->graph->chunks = CT_COUNT(order);
    m->graph->chunk_order = order;
    return 1;
}

static int call_reorder(struct call *c)
{
    struct ct_rule rule;
    int rc = order_begin(&c->m, &rule);

    for (int i = 0; rc > 0 && i < c->op->ins; i++) {
        order_apply(&c->m, &rule, i, &c->in[i]);
        order_apply(&c->m, &rule, i, &c->after[i]);
    }
    for (int i = 0; rc > 0 && i < c->op->outs; i++)
        order_apply(&c->m, &rule, c->op->ins + i, &c->out[i]);
    return rc;
}

struct ct_tensor scattered(struct call *c, const struct ct_tensor *t)
{
    struct ct_tensor copy = *t;
    int64_t step = 3;

    if (!t->data || ct_dtype_bits(t->dtype) < 8) /* these are dense */
        return copy;
    for (int d = 0; d < t->ndim; d++) {
        copy.stride[d] = step;
        step = step * t->shape[d] + 1;
    }
    copy.data = ct_arena_alloc(&c->m.arena, (size_t)(step + 1) * 8);
    for (int64_t i = 0; i < ct_tensor_count(t); i++)
        ct_tensor_store(&copy, i, ct_tensor_load(t, i));
    return copy;
}

static void scatter_inputs(struct call *c, struct ct_tensor *in)
{
    for (int i = 0; i < c->op->ins; i++)
        in[i] = scattered(c, &c->in[i]);
}

static void set_all(const struct ct_tensor *t, double value)
{
    for (int64_t k = 0; k < ct_tensor_count(t); k++)
        ct_tensor_store(t, k, value);
}

/* ---- comparing ---- */

int expect(const struct call *c, const char *what, const char *kind, int operand,
           const struct ct_tensor *got, const struct ct_tensor *want, double offset,
           double tolerance)
{
    for (int64_t i = 0; i < ct_tensor_count(want); i++) {
        double g = ct_tensor_load(got, i), w = ct_tensor_load(want, i) + offset;

        if (isnan(w))
            return ct_fail(CT_EINVAL,
                           "%s(%s), %s %d, element %lld: the reference gives NaN on these inputs, "
                           "which the check made up; .samples of the type can name others, like "
                           "\"positive[2,3]\"",
                           c->sample->type, c->sample->inputs, kind, operand, (long long)i);
        if (g != w && !(fabs(g - w) <= tolerance * (1 + fabs(w))))
            return ct_fail(CT_EINVAL, "%s: %s(%s), %s %d, element %lld: %.9g, not %.9g", what,
                           c->sample->type, c->sample->inputs, kind, operand, (long long)i, g, w);
    }
    return 0;
}

static int expect_all(const struct call *c, const char *what, const struct ct_tensor *in,
                      const struct ct_tensor *out, uint32_t accumulate, double before)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < c->op->outs; i++) {
        enum ct_dtype dtype = out[i].dtype;
        /* An 8-bit result is rounded by up to a sixteenth or eighth of itself, and again when
           something that takes most of it away is added. */
        double exact = dtype == CT_E4M3   ? 0x1p-3
                       : dtype == CT_E5M2 ? 0x1p-2
                       : dtype == CT_F64  ? 1e-12
                                          : 1e-6;

        rc = expect(c, what, "output", i, &out[i], &c->out[i], accumulate >> i & 1 ? before : 0,
                    exact);
    }
    for (int i = 0; rc == 0 && in && i < c->op->ins; i++) {
        bool updated = ct_op_mutates(c->op, i);

        if (in[i].data)
            rc = expect(c, what,
                        updated ? "updated input" : "input, which is not declared as updated,", i,
                        &in[i], updated ? &c->after[i] : &c->in[i], 0,
                        in[i].dtype == CT_F64 ? 1e-12 : 1e-6);
    }
    return rc;
}

/* ---- strides and accumulation ---- */

static int run_scattered(struct call *c, const char *what, uint32_t accumulate, double before)
{
    struct ct_tensor in[CHECK_OPERANDS], out[CHECK_OPERANDS];
    const struct ct_op *op = c->op;
    int rc;

    scatter_inputs(c, in);
    for (int i = 0; i < op->outs; i++) {
        out[i] = scattered(c, &c->out[i]);
        if (!ct_dtype_is_float(out[i].dtype))
            accumulate &= ~(1u << i); /* nothing adds up integers */
        set_all(&out[i], before);
    }
    rc = launch(c->m.graph, NULL, 0, op, in, out, accumulate);
    return rc < 0 ? rc : expect_all(c, what, in, out, accumulate, before);
}

static int check_strides(const struct ct_sample *s)
{
    struct call c;
    int rc = call_create(&c, s, CT_F64, NULL);

    if (rc == 0)
        rc = run_scattered(&c, "with strides", 0, NAN);
    if (rc == 0)
        rc = run_scattered(&c, "accumulating", ~0u, 0.75);
    if (rc == 0)
        rc = run_scattered(&c, "accumulating", 1, -2);
    call_finish(&c);
    return rc == 0 ? 3 : rc;
}

static int check_order(const struct ct_sample *s)
{
    struct call c;
    int rc = call_create(&c, s, CT_F64, NULL);

    if (rc == 0)
        rc = call_reorder(&c);
    if (rc > 0) {
        rc = run_scattered(&c, "with sequences in another order (ct_launch_position)", 0, NAN);
        rc = rc < 0 ? rc : 1;
    }
    call_finish(&c);
    return rc;
}

/* ---- in place ---- */

static int in_place_once(struct call *c, const int8_t pair[2])
{
    struct ct_tensor in[CHECK_OPERANDS], out[CHECK_OPERANDS];
    int rc;

    if (pair[0] >= c->op->outs || pair[1] >= c->op->ins || !c->in[pair[1]].data)
        return 0;
    scatter_inputs(c, in);
    for (int i = 0; i < c->op->outs; i++)
        out[i] = scattered(c, &c->out[i]);
    if (in[pair[1]].dtype != out[pair[0]].dtype)
        return 0;
    out[pair[0]] = in[pair[1]];
    rc = launch(c->m.graph, NULL, 0, c->op, in, out, 0);
    return rc < 0 ? rc : expect_all(c, "in place", NULL, out, 0, 0);
}

static int check_in_place(const struct ct_sample *s)
{
    const struct ct_op_type *type = ct_op_find(s->type);
    int rc = 0, checked = 0;

    for (const int8_t(*pair)[2] = type->inplace; rc == 0 && pair && (*pair)[0] >= 0; pair++) {
        struct call c;

        rc = call_create(&c, s, CT_F64, NULL);
        if (rc == 0)
            rc = in_place_once(&c, *pair);
        call_finish(&c);
        checked++;
    }
    return rc < 0 ? rc : checked;
}

/* ---- dtypes ---- */

/* The same inputs, rounded, in float64 and in bfloat16. */
static int check_bfloat16(const struct ct_sample *s)
{
    struct call narrow = {0}, wide = {0};
    int rc = call_create(&narrow, s, CT_BF16, NULL);

    if (rc == 0)
        rc = call_create(&wide, s, CT_F64, &narrow);
    for (int i = 0; rc == 0 && i < wide.op->outs; i++)
        rc = expect(&narrow, "in bfloat16", "output", i, &narrow.out[i], &wide.out[i], 0, 0x1p-6);
    call_finish(&wide);
    call_finish(&narrow);
    return rc < 0 ? rc : 1;
}

/* ---- factors ---- */

static const struct ct_mesh two = {1, {{"two", 2}}};

/* Is factor f, or what is split with it, factor g? */
static bool is_split(const struct ct_rule *rule, int f, int g)
{
    const struct ct_factor *a = &rule->factor[f], *b = &rule->factor[g];

    if (f == g)
        return true;
    if ((f == rule->tie[0] && g == rule->tie[1]) || (f == rule->tie[1] && g == rule->tie[0]))
        return true;
    return a->kind == CT_FACTOR_REDUCTION && a->letter == b->letter && a->index == b->index &&
           b->kind == CT_FACTOR_REDUCTION;
}

static struct ct_value *value_at(const struct ct_op *op, int i)
{
    return i < op->ins ? op->in[i] : op->out[i - op->ins];
}

/* Split every dimension of every operand that has factor f. */
static void split(const struct ct_op *op, const struct ct_rule *rule, int f)
{
    for (int i = 0; i < op->ins + op->outs; i++) {
        struct ct_value *v = value_at(op, i);

        if (v)
            v->sharding = (struct ct_sharding){0};
        for (int d = 0; d < rule->operand[i].ndim; d++)
            if (is_split(rule, f, rule->operand[i].factor[d]))
                ct_sharding_split(&v->sharding, d, 0);
    }
}

/* The elements of t from `offset` on, in a dense tensor of this shape. */
static struct ct_tensor copied_shard(struct call *c, const struct ct_tensor *t,
                                     const int64_t *shape, const int64_t *offset)
{
    struct ct_tensor shard = ct_tensor_dense(NULL, t->dtype, t->ndim, shape);

    shard.data = ct_arena_alloc(&c->m.arena, ct_tensor_bytes(&shard) + 8);
    for (int64_t i = 0; i < ct_tensor_count(&shard); i++) {
        int64_t at = 0, rest = i, step = 1;

        for (int d = t->ndim - 1; d >= 0; rest /= shape[d--]) {
            at += (offset[d] + rest % shape[d]) * step;
            step *= t->shape[d];
        }
        ct_tensor_store(&shard, i, ct_tensor_load(t, at));
    }
    return shard;
}

/* The shard of t that a rank holds, in place; of elements smaller than a byte, a copy. */
static struct ct_tensor shard_of(struct call *c, const struct ct_tensor *t,
                                 const struct ct_value *v, int rank)
{
    int64_t offset[CT_MAX_DIMS], at = 0;
    struct ct_tensor shard = *t;

    if (!t->data)
        return shard;
    ct_sharding_local(&v->sharding, &two, rank, t->ndim, t->shape, shard.shape, offset);
    if (ct_dtype_bits(t->dtype) < 8)
        return copied_shard(c, t, shard.shape, offset);
    for (int d = 0; d < t->ndim; d++)
        at += offset[d] * t->stride[d];
    shard.data = (char *)t->data + at * (int64_t)ct_dtype_size(t->dtype);
    return shard;
}

/* An operand that a rank updates whole is the rank's own, and so the same on both. */
static bool is_own(const struct ct_op *op, int i)
{
    return op->in[i] && ct_op_mutates(op, i) && ct_sharding_is_replicated(&op->in[i]->sharding);
}

static void raise_to(const struct ct_tensor *t, const struct ct_tensor *part)
{
    for (int64_t k = 0; k < ct_tensor_count(t); k++)
        ct_tensor_store(t, k, fmax(ct_tensor_load(t, k), ct_tensor_load(part, k)));
}

/* Two ranks with a shard each compute shards of the whole. */
static int check_factor(struct call *c, const struct ct_rule *rule, int f)
{
    struct ct_tensor in[CHECK_OPERANDS], out[CHECK_OPERANDS];
    struct ct_tensor all_in[CHECK_OPERANDS], all_out[CHECK_OPERANDS];
    const struct ct_op *op = c->op;
    uint32_t reduced = 0, raised = 0; /* sums over the ranks, maxima over them */
    char what[64];
    int rc = 0;

    if (rule->factor[f].letter == '.')
        snprintf(what, sizeof(what), "leading dimension %d split over two ranks",
                 rule->factor[f].index);
    else
        snprintf(what, sizeof(what), "factor %c split over two ranks", rule->factor[f].letter);
    split(op, rule, f);
    scatter_inputs(c, all_in);
    for (int i = 0; i < op->outs; i++) {
        bool reduces = ct_rule_reduces(rule, op, f, i);
        bool maximum = rule->operand[op->ins + i].maximum;

        all_out[i] = scattered(c, &c->out[i]);
        set_all(&all_out[i], !reduces ? NAN : maximum ? -INFINITY : 0);
        *(maximum ? &raised : &reduced) |= (uint32_t)reduces << i;
    }
    for (int rank = 0; rc == 0 && rank < 2; rank++) {
        for (int i = 0; i < op->ins; i++) {
            if (is_own(op, i))
                all_in[i] = scattered(c, &c->in[i]);
            in[i] = op->in[i] ? shard_of(c, &all_in[i], op->in[i], rank) : all_in[i];
        }
        for (int i = 0; i < op->outs; i++) {
            out[i] = raised >> i & 1 ? scattered(c, &c->out[i])
                                     : shard_of(c, &all_out[i], op->out[i], rank);
            if (raised >> i & 1)
                set_all(&out[i], NAN);
        }
        rc = launch(c->m.graph, &two, rank, op, in, out, reduced);
        for (int i = 0; rc == 0 && i < op->ins; i++)
            if (is_own(op, i))
                rc = expect(c, what, "updated input, which each rank has whole,", i, &in[i],
                            &c->after[i], 0, in[i].dtype == CT_F64 ? 1e-12 : 1e-6);
        for (int i = 0; rc == 0 && i < op->outs; i++)
            if (raised >> i & 1)
                raise_to(&all_out[i], &out[i]);
    }
    return rc < 0 ? rc : expect_all(c, what, all_in, all_out, 0, 0);
}

/* The rule has the dimensions that the operands have. */
static int check_rule(const struct call *c, const struct ct_rule *rule)
{
    for (int i = 0; i < c->op->ins + c->op->outs; i++) {
        const struct ct_value *v = value_at(c->op, i);
        const struct ct_rule_operand *operand = &rule->operand[i];
        char name[64];

        ct_operand_name(c->op, i, name, sizeof(name));
        if (operand->ndim != (v ? v->ndim : -1))
            return ct_fail(CT_EINVAL, "%s(%s): the rule gives %s %d dimensions, and it has %d",
                           c->sample->type, c->sample->inputs, name, operand->ndim,
                           v ? v->ndim : -1);
        for (int d = 0; d < operand->ndim; d++) {
            int64_t size = rule->factor[operand->factor[d]].size;

            if (size != v->shape[d] && (size >= 0 || i < c->op->ins))
                return ct_fail(CT_EINVAL, "%s(%s): dimension %d of %s is %lld, and its factor %lld",
                               c->sample->type, c->sample->inputs, d, name, (long long)v->shape[d],
                               (long long)size);
        }
    }
    return 0;
}

/* Tied factors are split where the second's shards are equal, and groups of the first; those with a
   multiple in multiples; all others anywhere. */
static bool may_split(const struct ct_rule *rule, int f)
{
    int64_t few;

    if (rule->factor[f].kind == CT_FACTOR_WHOLE || rule->factor[f].size == 1)
        return false;
    if (rule->factor[f].multiple > 1 && rule->factor[f].size % (2 * rule->factor[f].multiple))
        return false;
    if (f != rule->tie[0] && f != rule->tie[1])
        return true;
    few = rule->factor[rule->tie[1]].size;
    return few == 2 || (few % 2 == 0 && rule->factor[rule->tie[0]].size % few == 0);
}

/* Every factor that may be split in two is. */
static int check_factors(const struct ct_sample *s)
{
    struct ct_rule rule;
    struct call c;
    int rc = call_create(&c, s, CT_F64, NULL), checked = 0;

    if (rc == 0)
        rc = ct_rule_apply(c.op, &c.m.arena, &rule);
    if (rc == 0 && rule.count)
        rc = check_rule(&c, &rule);
    for (int f = 0; rc == 0 && f < rule.count; f++)
        if (may_split(&rule, f) && rule.factor[f].letter != s->replaced) {
            rc = check_factor(&c, &rule, f);
            checked++;
        }
    call_finish(&c);
    return rc < 0 ? rc : checked;
}

const struct ct_op_check ct_op_checks[] = {{"strides and accumulation", check_strides},
                                           {"outputs in place of inputs", check_in_place},
                                           {"bfloat16", check_bfloat16},
                                           {"shards of each factor", check_factors},
                                           {"sequences in another order", check_order},
                                           {"gradients by differences", check_gradients},
                                           {"FLOPs", check_flops},
                                           {0}};
