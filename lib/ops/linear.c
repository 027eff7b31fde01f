/*
 * Linear layers: one input times one or several weights, and their gradients.
 *
 * Several weights in one op are one matrix product if the device can make them, and the outputs,
 * contiguous; `join` asks for that.
 */
#include <string.h>

#include "list.h"

/* A matrix of doubles: element (i, j) is at[i * row + j * column]. */
struct matrix {
    const double *at;
    int64_t row, column;
};

/* c[m, n] += a[m, k] b[k, n], c dense */
static void multiply(int64_t m, int64_t n, int64_t k, struct matrix a, struct matrix b, double *c)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t l = 0; l < k; l++)
            for (int64_t j = 0; j < n; j++)
                c[i * n + j] += a.at[i * a.row + l * a.column] * b.at[l * b.row + j * b.column];
}

/* Values to join: none if it is only one. */
static int if_several(struct ct_value **values, int count, struct ct_value ***several)
{
    *several = values;
    return count > 1 ? count : 0;
}

/* ---- linear ---- */

static int linear_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t m = ct_rows(&l->in[0]), k = ct_columns(&l->in[0]);

    for (int i = 0; i < l->outs; i++)
        multiply(m, ct_columns(&l->out[i]), k, (struct matrix){r.in[0], k, 1},
                 (struct matrix){r.in[1 + i], 1, k}, r.out[i]);
    return ct_reference_end(&r, 0);
}

static double linear_flops(const struct ct_op *op, const struct ct_tensor *in,
                           const struct ct_tensor *out)
{
    double sum = 0;

    for (int i = 0; i < op->outs; i++)
        sum += 2.0 * (double)ct_tensor_count(&in[0]) * (double)ct_columns(&out[i]);
    return sum;
}

static int linear_join(const struct ct_op *op, struct ct_value ***values)
{
    return if_several(op->out, op->outs, values);
}

/* dx = sum of dy_i w_i, over the outputs that have a gradient */
static void linear_vjp_input(struct ct_vjp *v)
{
    struct ct_value **in = ct_arena_array(v->b->graph->arena, struct ct_value *, 2 * v->op->outs);
    int count = 0, n = 0;

    for (int i = 0; i < v->op->outs; i++)
        count += v->dout[i] != NULL;
    for (int i = 0; i < v->op->outs; i++)
        if (v->dout[i]) {
            in[n] = v->dout[i];
            in[count + n++] = v->op->in[1 + i];
        }
    v->din[0] = ct_emit_type1(v->b, &ct_op_linear_dx, ct_gradient_name(v, 0), in, 2 * count, NULL);
}

static void linear_vjp_weights(struct ct_vjp *v)
{
    struct ct_value **in = ct_arena_array(v->b->graph->arena, struct ct_value *, v->op->ins);
    int *inputs = ct_arena_array(v->b->graph->arena, int, v->op->outs), count = 0;

    in[0] = v->op->in[0];
    for (int i = 0; i < v->op->outs; i++)
        if (v->dout[i] && v->wanted[1 + i]) {
            inputs[count] = 1 + i;
            in[1 + count++] = v->dout[i];
        }
    if (count)
        ct_emit_gradients(v, &ct_op_linear_dw, in, 1 + count, NULL, inputs, count);
}

static int linear_vjp(struct ct_vjp *v)
{
    if (v->wanted[0])
        linear_vjp_input(v);
    linear_vjp_weights(v);
    return v->b->status;
}

static int linear_apart(struct ct_builder *b, const struct ct_op *op, struct ct_value **out)
{
    for (int i = 0; i < op->outs; i++)
        out[i] = ct_emit_type1(b, &ct_op_linear, NULL,
                               (struct ct_value *[]){op->in[0], op->in[1 + i]}, 2, NULL);
    return b->status;
}

const struct ct_op_type ct_op_linear = {
    .size = sizeof(struct ct_op_type),
    .name = "linear",
    .summary = "y = x w^T, for one or several w",
    .signature = "x[.k] T, *w[nk] T -> *y[.n] T",
    .vjp = linear_vjp,
    .flops = linear_flops,
    .reference = linear_reference,
    .join = linear_join,
    .apart = linear_apart,
    .samples = "real[4,6] real[2,6];"
               " @gradients=7: real[2,4,6] real[8,6] real[2,6] real[4,6]",
};

/* ---- its gradients ---- */

static int linear_dx_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t m = ct_rows(&l->out[0]), k = ct_columns(&l->out[0]);
    int count = l->ins / 2;

    for (int i = 0; i < count; i++) {
        int64_t n = ct_columns(&l->in[i]);

        multiply(m, k, n, (struct matrix){r.in[i], n, 1}, (struct matrix){r.in[count + i], k, 1},
                 r.out[0]);
    }
    return ct_reference_end(&r, 0);
}

static double linear_dx_flops(const struct ct_op *op, const struct ct_tensor *in,
                              const struct ct_tensor *out)
{
    double sum = 0;

    for (int i = 0; i < op->ins / 2; i++)
        sum += 2.0 * (double)ct_tensor_count(&in[i]) * (double)ct_columns(&out[0]);
    return sum;
}

static int linear_dx_join(const struct ct_op *op, struct ct_value ***values)
{
    return if_several(op->in, op->ins / 2, values);
}

const struct ct_op_type ct_op_linear_dx = {
    .size = sizeof(struct ct_op_type),
    .name = "linear_dx",
    .summary = "gradient of linear for its input: sum of dy w",
    .signature = "*dy[.n] T, *w[nk] T -> dx[.k] T",
    .flops = linear_dx_flops,
    .reference = linear_dx_reference,
    .join = linear_dx_join,
    .samples = "real[4,8] real[8,6];"
               " real[2,4,8] real[2,4,2] real[8,6] real[2,6]",
};

static int linear_dw_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t m = ct_rows(&l->in[0]), k = ct_columns(&l->in[0]);

    for (int i = 0; i < l->outs; i++) {
        int64_t n = ct_columns(&l->in[1 + i]);

        multiply(n, k, m, (struct matrix){r.in[1 + i], 1, n}, (struct matrix){r.in[0], k, 1},
                 r.out[i]);
    }
    return ct_reference_end(&r, 0);
}

static double linear_dw_flops(const struct ct_op *op, const struct ct_tensor *in,
                              const struct ct_tensor *out)
{
    double sum = 0;

    for (int i = 0; i < op->outs; i++)
        sum += 2.0 * (double)ct_tensor_count(&in[0]) * (double)out[i].shape[0];
    return sum;
}

static int linear_dw_join(const struct ct_op *op, struct ct_value ***values)
{
    return if_several(op->in + 1, op->ins - 1, values);
}

const struct ct_op_type ct_op_linear_dw = {
    .size = sizeof(struct ct_op_type),
    .name = "linear_dw",
    .summary = "gradient of linear for its weights: dw = dy^T x, for each dy",
    .signature = "x[.k] T, *dy[.n] T -> *dw[nk] T",
    .flags = CT_OP_ANY_DTYPE,
    .flops = linear_dw_flops,
    .reference = linear_dw_reference,
    .join = linear_dw_join,
    .samples = "real[2,4,6] real[2,4,8] real[2,4,2]",
};

/* ---- for model authors ---- */

struct ct_value *ct_linear(struct ct_builder *b, const char *name, struct ct_value *x,
                           struct ct_value *w)
{
    return ct_emit_type1(b, &ct_op_linear, name, (struct ct_value *[]){x, w}, 2, NULL);
}

void ct_linears(struct ct_builder *b, const char *const *names, struct ct_value *x,
                struct ct_value *const *w, int count, struct ct_value **y)
{
    struct ct_value **in = ct_arena_array(b->graph->arena, struct ct_value *, count + 1);
    struct ct_op *op;

    in[0] = x;
    memcpy(in + 1, w, sizeof(*w) * (size_t)count);
    op = ct_emit_type(b, &ct_op_linear, names[0], in, count + 1, NULL);
    for (int i = 0; i < count; i++) {
        y[i] = op ? op->out[i] : NULL;
        if (op && i > 0)
            ct_value_rename(b->graph, y[i], names[i]);
    }
}
