/*
 * FLOPs that an op type counts, against its signature. A matrix product shows there: two inputs
 * share a factor that an output lacks, and each has a factor that the other lacks. It takes two
 * FLOPs for each combination of their factors. Ops repeat products (a gradient makes the forward
 * again) or skip parts of them (a causal mask), but not ten times.
 */
#include <math.h>

#include <ctitan/error.h>
#include <ctitan/rule.h>

#include "machine.h"

/* FLOPs of a type, over those of its signature's products: 0.25 for scales that are multiplied by
   blocks, 3 where a gradient makes the forward again. */
#define LEAST 0.2
#define MOST 4

static uint64_t factors_of(const struct ct_rule *rule, int operand)
{
    uint64_t set = 0;

    for (int d = 0; d < rule->operand[operand].ndim; d++) {
        int f = rule->operand[operand].factor[d];

        f = f == rule->tie[1] ? rule->tie[0] : f; /* each of the second goes with some of it */
        set |= (uint64_t)1 << f;
    }
    return set;
}

/* FLOPs of the product of two inputs; 0: they are not multiplied as matrices. */
static double product(const struct ct_rule *rule, const struct ct_op *op, int a, int b)
{
    uint64_t of_a = factors_of(rule, a), of_b = factors_of(rule, b), missing = 0;
    double flops = 2;

    for (int i = 0; i < op->outs; i++)
        missing |= ~factors_of(rule, op->ins + i);
    if (!(of_a & of_b & missing) || !(of_a & ~of_b) || !(of_b & ~of_a))
        return 0;
    for (int f = 0; f < rule->count; f++)
        if ((of_a | of_b) >> f & 1)
            flops *= (double)rule->factor[f].size;
    return flops;
}

static double products(const struct ct_rule *rule, const struct ct_op *op)
{
    double sum = 0;

    for (int b = 0; rule->count <= 64 && b < op->ins; b++)
        for (int a = 0; a < b; a++)
            if (op->in[a] && op->in[b] && ct_dtype_is_float(op->in[a]->dtype) &&
                ct_dtype_is_float(op->in[b]->dtype))
                sum += product(rule, op, a, b);
    return sum;
}

static int compare(const struct ct_sample *s, const struct ct_op *op, double flops, double want)
{
    const char *name = s->type, *inputs = s->inputs;

    if (s->counted && flops == s->flops)
        return 1;
    if (s->counted)
        return ct_fail(CT_EINVAL, "%s(%s): `flops` says %g, and the sample @flops=%g", name, inputs,
                       flops, s->flops);
    if (!op->type->flops && want > 0)
        return ct_fail(CT_EINVAL,
                       "%s(%s): its signature multiplies matrices, about %g FLOPs, and it has no "
                       "`flops`: it would count as none; if that is right, say so in .samples: "
                       "\"@flops=0: %s\"",
                       name, inputs, want, inputs);
    if (op->type->flops && want <= 0)
        return ct_fail(CT_EINVAL,
                       "%s(%s): `flops` says %g, and its signature shows no product of matrices: "
                       "give the number for each sample in .samples, like \"@flops=%g: %s\"",
                       name, inputs, flops, flops, inputs);
    if (want > 0 && (flops > MOST * want || flops < LEAST * want))
        return ct_fail(CT_EINVAL,
                       "%s(%s): `flops` says %g, and the products of its signature take %g; if "
                       "that is right, say so in .samples: \"@flops=%g: %s\"",
                       name, inputs, flops, want, flops, inputs);
    return 1;
}

int check_flops(const struct ct_sample *s)
{
    struct ct_rule rule = {.count = 0};
    double flops = 0, want = 0;
    struct call c;
    int rc = call_create(&c, s, CT_F64, NULL);

    if (rc == 0)
        rc = ct_rule_apply(c.op, &c.m.arena, &rule);
    if (rc == 0 && rule.count)
        want = products(&rule, c.op);
    if (rc == 0 && c.op->type->flops)
        flops = c.op->type->flops(c.op, c.in, c.out);
    if (rc == 0 && (!isfinite(flops) || flops < 0))
        rc = ct_fail(CT_EINVAL, "%s(%s): `flops` says %g", s->type, s->inputs, flops);
    else if (rc == 0 && (c.op->type->flops || want > 0))
        rc = compare(s, c.op, flops, want);
    call_finish(&c);
    return rc;
}
