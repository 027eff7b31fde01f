/*
 * Looks up rows of a table by token. If the table is split by rows, a rank has those of its tokens
 * that its shard holds; the others are zero, and the ranks' results add up to the whole.
 */
#include <string.h>

#include <ctitan/lib/ops.h>

#include "list.h"

/* The row of this rank's shard of table for token i; -1: another rank holds it. */
static int local_row(const struct ct_launch *l, const double *tokens, int64_t i,
                     const struct ct_value *table, int64_t rows, int64_t *row)
{
    int rc = ct_checked_index(tokens, i, table->shape[0], "token");

    *row = (int64_t)tokens[i] - ct_launch_offset(l, table, 0);
    if (*row < 0 || *row >= rows)
        *row = -1;
    return rc;
}

static int embedding_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t width = ct_columns(&l->in[1]), row;
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < ct_tensor_count(&l->in[0]); i++) {
        rc = local_row(l, r.in[0], i, l->op->in[1], l->in[1].shape[0], &row);
        if (rc == 0 && row >= 0)
            memcpy(r.out[0] + i * width, r.in[1] + row * width, sizeof(double) * (size_t)width);
    }
    return ct_reference_end(&r, rc);
}

static int check_padding(int64_t padding, int64_t rows)
{
    if (padding >= rows)
        return ct_fail(CT_EINVAL, "padding = %lld: the table has %lld rows", (long long)padding,
                       (long long)rows);
    return 0;
}

static int embedding_infer(struct ct_op *op)
{
    return check_padding(((const struct ct_embedding *)op->attrs)->padding, op->in[1]->shape[0]);
}

static int embedding_vjp(struct ct_vjp *v)
{
    int64_t padding = ((const struct ct_embedding *)v->op->attrs)->padding;

    return ct_emit_gradients(
        v, &ct_op_embedding_grad, (struct ct_value *[]){v->dout[0], v->op->in[0]}, 2,
        &(struct ct_embedding_grad){v->op->in[1]->shape[0], padding}, (int[]){1}, 1);
}

const struct ct_op_type ct_op_embedding = {
    .size = sizeof(struct ct_op_type),
    .name = "embedding",
    .summary = "rows of a table, by token",
    .signature = "tokens[.] i, table[vn] T -> y[.n] T",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = (const struct ct_option[]){CT_OPT_INT(struct ct_embedding, padding, "padding", "-1",
                                                   -1, 0x1p31,
                                                   "Token whose row gets no gradient; "
                                                   "-1: none"),
                                        {0}},
    .attrs_size = sizeof(struct ct_embedding),
    .infer = embedding_infer,
    .vjp = embedding_vjp,
    .reference = embedding_reference,
    .samples = "index[2,4] real[6,4]",
};

static int embedding_grad_infer(struct ct_op *op)
{
    const struct ct_embedding_grad *g = op->attrs;

    if (g->rows <= 0)
        return ct_fail(CT_EINVAL, "rows = %lld: expected at least 1", (long long)g->rows);
    op->out[0]->shape[0] = g->rows;
    return check_padding(g->padding, g->rows);
}

static int embedding_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t width = ct_columns(&l->out[0]), row;
    int64_t padding = ((const struct ct_embedding_grad *)l->op->attrs)->padding;
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < ct_tensor_count(&l->in[1]); i++) {
        rc = local_row(l, r.in[1], i, l->op->out[0], l->out[0].shape[0], &row);
        if (rc == 0 && (int64_t)r.in[1][i] == padding)
            continue;
        for (int64_t k = 0; rc == 0 && row >= 0 && k < width; k++)
            r.out[0][row * width + k] += r.in[0][i * width + k];
    }
    return ct_reference_end(&r, rc);
}

const struct ct_op_type ct_op_embedding_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "embedding_grad",
    .summary = "gradient of embedding: the rows of dy, added up by token",
    .signature = "dy[.n] T, tokens[.] i -> dtable[vn] T",
    .flags = CT_OP_ANY_DTYPE,
    .attrs =
        (const struct ct_option[]){CT_OPT_INT(struct ct_embedding_grad, rows, "rows", NULL, 1,
                                              0x1p53, "Rows of the table: the vocabulary"),
                                   CT_OPT_INT(struct ct_embedding_grad, padding, "padding", "-1",
                                              -1, 0x1p31, "Token that adds nothing; -1: none"),
                                   {0}},
    .attrs_size = sizeof(struct ct_embedding_grad),
    .infer = embedding_grad_infer,
    .reference = embedding_grad_reference,
    .samples = "rows=6: real[2,4,4] index[2,4];"
               " rows=6 padding=1: real[2,4,4] index[2,4]",
};

struct ct_value *ct_padded_embedding(struct ct_builder *b, const char *name,
                                     struct ct_value *tokens, struct ct_value *table,
                                     int64_t padding)
{
    return ct_emit_type1(b, &ct_op_embedding, name, (struct ct_value *[]){tokens, table}, 2,
                         &(struct ct_embedding){padding});
}

struct ct_value *ct_embedding(struct ct_builder *b, const char *name, struct ct_value *tokens,
                              struct ct_value *table)
{
    return ct_padded_embedding(b, name, tokens, table, -1);
}
