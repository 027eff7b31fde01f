/* Operands as the reference leaves them. */
#include <math.h>
#include <string.h>

#include <ctitan/lib/app/check.h>

#include "tensors.h"

static struct ct_tensor copy_of(struct ct_arena *arena, const struct ct_tensor *t,
                                enum ct_check_inputs inputs, int operand)
{
    int64_t n = ct_tensor_count(t);
    bool real = ct_dtype_is_float(t->dtype);
    enum ct_dtype dtype = real && inputs != CT_CHECK_ROUNDED ? CT_F64 : t->dtype;
    struct ct_tensor copy =
        ct_tensor_dense(ct_arena_alloc(arena, (size_t)n * 8 + 8), dtype, t->ndim, t->shape);

    if (dtype == CT_F64)
        ct_check_read(t, copy.data);
    else
        tensor_copy(&copy, t);
    if (real && inputs == CT_CHECK_DISTURBED)
        ct_check_disturb(copy.data, n, operand);
    for (int64_t i = 0; real && inputs == CT_CHECK_SIZES && i < n; i++)
        ((double *)copy.data)[i] = fabs(((double *)copy.data)[i]);
    return copy;
}

int ct_check_reference(const struct ct_check_case *c, enum ct_check_inputs inputs,
                       struct ct_arena *arena, struct ct_tensor *operands)
{
    const struct ct_op *op = c->op;
    struct ct_launch launch = {.op = op,
                               .out = operands,
                               .in = operands + op->outs,
                               .ins = op->ins,
                               .outs = op->outs,
                               .graph = c->graph};

    for (int i = 0; i < op->outs + op->ins; i++)
        if (tensor_operand(op, i))
            operands[i] = copy_of(arena, &c->value[tensor_operand(op, i)->id], inputs, i);
    return op->type->reference(&launch);
}

int ct_check_expect(const struct ct_check_case *c, struct ct_arena *arena,
                    struct ct_check_expected **expected)
{
    int n = c->op->outs + c->op->ins, rc = 0;
    int last = c->only_nan ? CT_CHECK_EXACT : CT_CHECK_DISTURBED;
    struct ct_tensor *operands[CT_CHECK_DISTURBED + 1];

    *expected = ct_arena_array(arena, struct ct_check_expected, n + 1);
    for (int p = CT_CHECK_EXACT; rc >= 0 && p <= last; p++) {
        operands[p] = ct_arena_array(arena, struct ct_tensor, n + 1);
        rc = ct_check_reference(c, (enum ct_check_inputs)p, arena, operands[p]);
    }
    for (int i = 0; rc >= 0 && i < n; i++) {
        struct ct_check_expected *e = &(*expected)[i];

        if (!tensor_operand(c->op, i))
            continue;
        e->exact = operands[CT_CHECK_EXACT][i];
        e->largest = tensor_largest(&e->exact, arena);
        if (c->only_nan)
            continue;
        e->rounded = operands[CT_CHECK_ROUNDED][i];
        e->sensitivity = tensor_difference(&e->exact, &operands[CT_CHECK_DISTURBED][i], arena);
    }
    return rc;
}
