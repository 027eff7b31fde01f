/*
 * Parts of the last dimension, and what multi-head latent attention makes of them (DeepSeek-AI
 * 2024): the keys of all heads share their last features.
 */
#include <string.h>

#include <ctitan/rule.h>

#include "list.h"

/* ---- split ---- */

static const struct ct_shape *widths_of(const struct ct_op *op)
{
    return &((const struct ct_split *)op->attrs)->widths;
}

static int64_t add_widths(const struct ct_shape *widths)
{
    int64_t sum = 0;

    for (int i = 0; i < widths->ndim; i++)
        sum += widths->size[i];
    return sum;
}

static int misfit(const struct ct_op *op, const struct ct_value *v)
{
    char text[160];

    ct_shape_print(widths_of(op), text, sizeof(text));
    return ct_fail(CT_EINVAL, "widths %s do not fit %%%s, whose last dimension has %lld", text,
                   v->name, (long long)v->shape[v->ndim - 1]);
}

static int split_infer(struct ct_op *op)
{
    const struct ct_value *x = op->in[0];
    int last = x->ndim - 1;

    if (add_widths(widths_of(op)) != x->shape[last])
        return misfit(op, x);
    for (int i = 0; i < op->outs; i++)
        op->out[i]->shape[last] = widths_of(op)->size[i];
    return 0;
}

/* Copy between columns of two matrices. */
static void copy_columns(double *to, int64_t to_step, const double *from, int64_t from_step,
                         int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * to_step, from + i * from_step, sizeof(*to) * (size_t)columns);
}

static int split_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[0]), rows = ct_rows(&l->in[0]), at = 0;

    for (int i = 0; i < l->outs; i++) {
        int64_t width = ct_columns(&l->out[i]);

        copy_columns(r.out[i], width, r.in[0] + at, n, rows, width);
        at += width;
    }
    return ct_reference_end(&r, 0);
}

static int split_vjp(struct ct_vjp *v)
{
    return ct_emit_gradients(v, &ct_op_split_grad, v->dout, v->op->outs, v->op->attrs, (int[]){0},
                             1);
}

static const struct ct_option split_attrs[] = {
    CT_OPT_SHAPE(struct ct_split, widths, "widths", NULL, "Widths of the parts, comma-separated"),
    {0}};

const struct ct_op_type ct_op_split = {
    .size = sizeof(struct ct_op_type),
    .name = "split",
    .summary = "parts of the last dimension",
    .signature = "x[.N] T -> *y[.M] T | *widths",
    .flags = CT_OP_LINEAR,
    .attrs = split_attrs,
    .attrs_size = sizeof(struct ct_split),
    .infer = split_infer,
    .vjp = split_vjp,
    .reference = split_reference,
    .samples = "@gradients=7 widths=3,1,2: real[2,4,6]; widths=2: real[2]",
};

/* ---- its gradient ---- */

/* The first input that is given, or -1. */
static int first_given(const struct ct_op *op)
{
    for (int i = 0; i < op->ins; i++)
        if (op->in[i])
            return i;
    return -1;
}

static bool is_part(const struct ct_value *dy, const struct ct_value *dx, int64_t width)
{
    int last = dx->ndim - 1;

    return dy->ndim == dx->ndim && dy->shape[last] == width &&
           !memcmp(dy->shape, dx->shape, sizeof(*dy->shape) * (size_t)last);
}

static int split_grad_infer(struct ct_op *op)
{
    const struct ct_shape *widths = widths_of(op);
    int given = first_given(op);
    struct ct_value *dx = op->out[0];

    if (op->ins != widths->ndim)
        return ct_fail(CT_EINVAL, "%d gradients of %d parts", op->ins, widths->ndim);
    if (given < 0 || op->in[given]->ndim == 0)
        return ct_fail(CT_EINVAL, "no gradient of a part is given");
    dx->ndim = op->in[given]->ndim;
    memcpy(dx->shape, op->in[given]->shape, sizeof(dx->shape));
    dx->shape[dx->ndim - 1] = add_widths(widths);
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && !is_part(op->in[i], dx, widths->size[i]))
            return misfit(op, op->in[i]);
    return 0;
}

/* The last dimensions are whole on every rank; all others are parallel. A signature cannot say so,
   as each input may be absent. */
static int split_grad_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    int given = first_given(op), last = op->out[0]->ndim - 1, count = op->ins + 1;

    rule->count = last + count;
    rule->factor = ct_arena_array(arena, struct ct_factor, rule->count);
    for (int d = 0; d < last; d++)
        rule->factor[d] = (struct ct_factor){.letter = '.',
                                             .repetition = -1,
                                             .index = d,
                                             .size = op->out[0]->shape[d],
                                             .operand = given};
    for (int i = 0; i < count; i++) {
        const struct ct_value *v = i < op->ins ? op->in[i] : op->out[0];

        rule->factor[last + i] = (struct ct_factor){.letter = 'N',
                                                    .repetition = -1,
                                                    .kind = CT_FACTOR_WHOLE,
                                                    .size = v ? v->shape[last] : -1,
                                                    .operand = i};
        rule->operand[i].ndim = v ? last + 1 : -1;
        for (int d = 0; d <= last; d++)
            rule->operand[i].factor[d] = d < last ? d : last + i;
    }
    return 0;
}

static int split_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->out[0]), rows = ct_rows(&l->out[0]), at = 0;

    for (int i = 0; i < l->ins; i++) {
        int64_t width = widths_of(l->op)->size[i];

        if (r.in[i])
            copy_columns(r.out[0] + at, n, r.in[i], width, rows, width);
        at += width;
    }
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_split_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "split_grad",
    .summary = "gradient of split: the parts together, zero where one is absent",
    .signature = "*?dy T -> dx T",
    .flags = CT_OP_LINEAR,
    .attrs = split_attrs,
    .attrs_size = sizeof(struct ct_split),
    .infer = split_grad_infer,
    .factors = split_grad_factors,
    .reference = split_grad_reference,
    .samples = "widths=3,2: real[2,4,3] real[2,4,2]; widths=2,4: - real[2,4]",
};

void ct_split(struct ct_builder *b, const char *const *names, struct ct_value *x,
              const int64_t *widths, int count, struct ct_value **y)
{
    const struct ct_split attrs = {ct_shape_of(count, widths)};
    struct ct_op *op = ct_emit_type(b, &ct_op_split, names[0], &x, 1, &attrs);

    for (int i = 0; i < count; i++) {
        y[i] = op ? op->out[i] : NULL;
        if (op && i > 0)
            ct_value_rename(b->graph, y[i], names[i]);
    }
}

/* ---- expand_latent ---- */

static int expand_latent_infer(struct ct_op *op)
{
    int64_t keys = ((const struct ct_expand_latent *)op->attrs)->keys, size = op->in[0]->shape[3];

    if (keys >= size)
        return ct_fail(CT_EINVAL, "keys = %lld, but a head of kv %%%s has %lld features",
                       (long long)keys, op->in[0]->name, (long long)size);
    op->out[0]->shape[3] = keys + op->in[1]->shape[2];
    op->out[1]->shape[3] = size - keys;
    return 0;
}

static int expand_latent_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t keys = ((const struct ct_expand_latent *)l->op->attrs)->keys;
    int64_t rows = ct_rows(&l->in[0]), heads = l->in[0].shape[2];
    int64_t n = ct_columns(&l->in[0]), shared = ct_columns(&l->in[1]);
    int64_t k = keys + shared, v = n - keys;

    copy_columns(r.out[0], k, r.in[0], n, rows, keys);
    copy_columns(r.out[1], v, r.in[0] + keys, n, rows, v);
    for (int64_t h = 0; h < heads; h++)
        copy_columns(r.out[0] + h * k + keys, heads * k, r.in[1], shared, rows / heads, shared);
    return ct_reference_end(&r, 0);
}

static int expand_latent_vjp(struct ct_vjp *v)
{
    const struct ct_expand_latent_grad attrs = {
        ((const struct ct_expand_latent *)v->op->attrs)->keys, v->op->out[1]->shape[3],
        v->op->in[1]->shape[2]};

    return ct_emit_gradients(v, &ct_op_expand_latent_grad, v->dout, 2, &attrs, (int[]){0, 1}, 2);
}

const struct ct_op_type ct_op_expand_latent = {
    .size = sizeof(struct ct_op_type),
    .name = "expand_latent",
    .summary = "keys, whose last features all heads share, and values",
    .signature = "kv[bthN] T, shared[btR] T -> k[bthK] T, v[bthV] T",
    .flags = CT_OP_LINEAR,
    .attrs = (const struct ct_option[]){CT_OPT_INT(struct ct_expand_latent, keys, "keys", "1", 1,
                                                   0x1p53, "Features of a head's key in kv"),
                                        {0}},
    .attrs_size = sizeof(struct ct_expand_latent),
    .infer = expand_latent_infer,
    .vjp = expand_latent_vjp,
    .reference = expand_latent_reference,
    .samples = "@gradients=3 keys=2: real[2,4,2,5] real[2,4,4]",
};

struct ct_value *ct_expand_latent(struct ct_builder *b, const char *const names[2],
                                  struct ct_value *kv, struct ct_value *shared, int64_t keys,
                                  struct ct_value **v)
{
    struct ct_op *op =
        ct_emit_type(b, &ct_op_expand_latent, names[0], (struct ct_value *[]){kv, shared}, 2,
                     &(struct ct_expand_latent){keys});

    *v = op ? op->out[1] : NULL;
    if (op)
        ct_value_rename(b->graph, op->out[1], names[1]);
    return op ? op->out[0] : NULL;
}

/* ---- its gradient ---- */

static int check_head(const struct ct_value *gradient, int64_t size)
{
    if (!gradient || gradient->shape[3] == size)
        return 0;
    return ct_fail(CT_EINVAL, "a head of %%%s has %lld features, not %lld", gradient->name,
                   (long long)gradient->shape[3], (long long)size);
}

static int expand_latent_grad_infer(struct ct_op *op)
{
    const struct ct_expand_latent_grad *a = op->attrs;

    if (first_given(op) < 0)
        return ct_fail(CT_EINVAL, "neither dk nor dv is given");
    if (check_head(ct_op_input(op, 0), a->keys + a->shared) < 0 ||
        check_head(ct_op_input(op, 1), a->values) < 0)
        return CT_EINVAL;
    op->out[0]->shape[3] = a->keys + a->values;
    op->out[1]->shape[2] = a->shared;
    return 0;
}

static int expand_latent_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct ct_expand_latent_grad *a = l->op->attrs;
    int64_t rows = ct_rows(&l->out[0]), heads = l->out[0].shape[2];
    int64_t n = a->keys + a->values, k = a->keys + a->shared;
    const double *dk = r.in[0], *dv = l->ins > 1 ? r.in[1] : NULL;

    if (dk)
        copy_columns(r.out[0], n, dk, k, rows, a->keys);
    if (dv)
        copy_columns(r.out[0] + a->keys, n, dv, a->values, rows, a->values);
    for (int64_t row = 0; dk && row < rows; row++)
        for (int64_t i = 0; i < a->shared; i++)
            r.out[1][row / heads * a->shared + i] += dk[row * k + a->keys + i];
    return ct_reference_end(&r, 0);
}

static const struct ct_option expand_latent_grad_attrs[] = {
    CT_OPT_INT(struct ct_expand_latent_grad, keys, "keys", "1", 1, 0x1p53,
               "Features of a head's key in kv"),
    CT_OPT_INT(struct ct_expand_latent_grad, values, "values", "1", 1, 0x1p53,
               "Features of a head's value"),
    CT_OPT_INT(struct ct_expand_latent_grad, shared, "shared", "1", 1, 0x1p53,
               "Features of the keys that all heads share"),
    {0}};

const struct ct_op_type ct_op_expand_latent_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "expand_latent_grad",
    .summary = "gradient of expand_latent",
    .signature = "?dk[bthK] T, ?dv[bthV] T -> dkv[bthN] T, dshared[btR] T",
    .flags = CT_OP_LINEAR,
    .attrs = expand_latent_grad_attrs,
    .attrs_size = sizeof(struct ct_expand_latent_grad),
    .infer = expand_latent_grad_infer,
    .reference = expand_latent_grad_reference,
    .samples = "@flops=0 keys=2 values=3 shared=4: real[2,4,2,6] real[2,4,2,3];"
               "keys=2 values=3 shared=4: real[2,4,2,6] -;"
               "keys=2 values=3 shared=4: - real[2,4,2,3]",
};
