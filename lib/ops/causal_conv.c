/*
 * A convolution of each channel along its sequence that sees no later token (Gu and Dao 2023): the
 * last column of a channel's weights belongs to the token itself. Tokens before the first one of a
 * document are zeros. Sequences may be fed in another order; they are whole on every rank.
 *
 * With slots (struct ct_cache), the state has what the last tokens before this row were, of which
 * the last one is behind the others.
 */
#include <string.h>

#include "list.h"

void ct_launch_order(const struct ct_launch *l, const struct ct_value *v, int dim, int64_t *at)
{
    int64_t tokens = v->shape[dim];

    for (int64_t i = 0; i < tokens; i++)
        at[l->graph ? ct_graph_position(l->graph, tokens, i) : i] = i;
}

int64_t ct_taps(const int32_t *documents, const int64_t *at, int64_t position, int64_t most)
{
    int64_t count = 1;

    while (count < most && count <= position &&
           (!documents || documents[at[position - count]] == documents[at[position]]))
        count++;
    return count;
}

/* Tokens in the order of their positions, and what they see. */
struct conv {
    int64_t batch, tokens, channels, size;
    const int64_t *at;        /* by position: index of the token */
    const int32_t *documents; /* of all sequences; NULL: one each */
};

enum { DOCUMENTS = 3, STATE, SLOTS };

/* x is input `at`; documents are the input `more`. */
static struct conv conv_of(const struct ct_launch *l, struct ct_reference *r, int at, int more)
{
    const struct ct_tensor *x = &l->in[at], *w = &l->in[at + 1];
    int64_t count = x->shape[0] * x->shape[1], *order;
    const double *given = more < l->ins ? r->in[more] : NULL;
    int32_t *documents = given ? ct_arena_array(&r->arena, int32_t, count) : NULL;

    for (int64_t i = 0; given && i < count; i++)
        documents[i] = (int32_t)given[i];
    order = ct_arena_array(&r->arena, int64_t, x->shape[1]);
    ct_launch_order(l, l->op->in[at], 1, order);
    return (struct conv){x->shape[0], x->shape[1], x->shape[2], w->shape[1], order, documents};
}

static const int32_t *documents_of(const struct conv *c, int64_t b)
{
    return c->documents ? c->documents + b * c->tokens : NULL;
}

static int64_t row_of(const struct conv *c, int64_t b, int64_t position)
{
    return (b * c->tokens + c->at[position]) * c->channels;
}

/* The vector j tokens before position p of sequence b, which the state has before position 0. */
static double *tap(const struct conv *c, const struct ct_reference *r, int64_t b, int64_t p,
                   int64_t j)
{
    if (j <= p)
        return r->in[0] + row_of(c, b, p - j);
    return r->in[STATE] + (b * (c->size - 1) + c->size - 1 + p - j) * c->channels;
}

static void convolve(const struct conv *c, const struct ct_reference *r, int64_t b, int64_t p,
                     int64_t taps)
{
    const double *w = r->in[1], *bias = r->launch->ins > 2 ? r->in[2] : NULL;
    double *y = r->out[0] + row_of(c, b, p);

    for (int64_t k = 0; k < c->channels; k++)
        y[k] = bias ? bias[k] : 0;
    for (int64_t j = 0; j < taps; j++)
        for (int64_t k = 0; k < c->channels; k++)
            y[k] += w[k * c->size + c->size - 1 - j] * tap(c, r, b, p, j)[k];
}

/* Tokens in a row, and the state before and behind them. */
static void convolve_part(const struct conv *c, const struct ct_reference *r, int64_t b)
{
    const struct ct_launch *l = r->launch;
    int64_t used = ct_slots_used(&l->in[SLOTS], b, c->tokens), rows = c->size - 1;
    double *state = r->in[STATE] + b * rows * c->channels;

    if (ct_slots_begin(&l->in[SLOTS], b))
        memset(state, 0, sizeof(*state) * (size_t)(rows * c->channels));
    for (int64_t p = 0; p < used; p++)
        convolve(c, r, b, p, c->size);
    for (int64_t i = 0; used && i < rows * c->channels; i++) {
        state[i] = tap(c, r, b, used, rows - i / c->channels)[i % c->channels];
        ct_tensor_store(&l->in[STATE], b * rows * c->channels + i, state[i]);
    }
}

static int causal_conv_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct conv c = conv_of(l, &r, 0, DOCUMENTS);
    bool part = l->ins > STATE && r.in[STATE];

    for (int64_t b = 0; part && b < c.batch; b++)
        convolve_part(&c, &r, b);
    for (int64_t i = 0; !part && i < c.batch * c.tokens; i++) {
        int64_t b = i / c.tokens, p = i % c.tokens;

        convolve(&c, &r, b, p, ct_taps(documents_of(&c, b), c.at, p, c.size));
    }
    return ct_reference_end(&r, 0);
}

static double causal_conv_flops(const struct ct_op *op, const struct ct_tensor *in,
                                const struct ct_tensor *out)
{
    (void)op;
    return 2.0 * (double)ct_tensor_count(&out[0]) * (double)in[1].shape[1];
}

static int causal_conv_infer(struct ct_op *op)
{
    const struct ct_value *state = ct_op_input(op, STATE);

    if (state && state->shape[1] != op->in[1]->shape[1] - 1)
        return ct_fail(CT_EINVAL, "a state of %lld tokens for weights of %lld",
                       (long long)state->shape[1], (long long)op->in[1]->shape[1]);
    return ct_check_part(op, STATE);
}

static int causal_conv_cache(struct ct_cache *c)
{
    const struct ct_value *x = c->op->in[0], *w = c->op->in[1];

    if (w->shape[1] == 1)
        return 0;
    return ct_cache_recurrence(c, STATE, x->dtype, 3,
                               (int64_t[]){x->shape[0], w->shape[1] - 1, x->shape[2]});
}

static int causal_conv_vjp(struct ct_vjp *v)
{
    struct ct_op *op = v->op;
    bool bias = ct_op_input(op, 2) != NULL;

    if (ct_check_whole(op, STATE) < 0)
        return CT_EINVAL;
    return ct_emit_gradients(
        v, &ct_op_causal_conv_grad,
        (struct ct_value *[]){v->dout[0], op->in[0], op->in[1], ct_op_input(op, 3)}, 4, NULL,
        (int[]){0, 1, 2}, bias ? 3 : 2);
}

const struct ct_op_type ct_op_causal_conv = {
    .size = sizeof(struct ct_op_type),
    .name = "causal_conv",
    .summary = "convolution of each channel with the tokens before, in its document",
    .signature = "x[bTc] T, w[cK] T, ?bias[c] T, ?documents[bT] i, ?!state[bJc] T, "
                 "?slots[bT] i -> y[bTc] T | @T",
    .infer = causal_conv_infer,
    .cache = causal_conv_cache,
    .vjp = causal_conv_vjp,
    .flops = causal_conv_flops,
    .reference = causal_conv_reference,
    .samples = "@flops=384: real[2,8,4] real[4,3] real[4] document[2,8];"
               " @flops=480: real[2,6,5] real[5,4] - -;"
               " @flops=96: real[2,6,2] real[2,2] real[2] packed[2,6];"
               " @flops=72: real[1,2,6] real[6,3] real[6]",
};

static int causal_conv_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct conv c = conv_of(l, &r, 1, 3);
    const double *x = r.in[1], *w = r.in[2];

    for (int64_t i = 0; i < c.batch * c.tokens; i++) {
        int64_t b = i / c.tokens, p = i % c.tokens;
        int64_t taps = ct_taps(documents_of(&c, b), c.at, p, c.size);
        const double *dy = r.in[0] + row_of(&c, b, p);

        for (int64_t k = 0; k < c.channels; k++)
            r.out[2][k] += dy[k];
        for (int64_t j = 0; j < taps; j++)
            for (int64_t k = 0; k < c.channels; k++) {
                int64_t from = row_of(&c, b, p - j) + k, of_w = k * c.size + c.size - 1 - j;

                r.out[0][from] += w[of_w] * dy[k];
                r.out[1][of_w] += dy[k] * x[from];
            }
    }
    return ct_reference_end(&r, 0);
}

static double causal_conv_grad_flops(const struct ct_op *op, const struct ct_tensor *in,
                                     const struct ct_tensor *out)
{
    (void)op;
    (void)out;
    return 4.0 * (double)ct_tensor_count(&in[1]) * (double)in[2].shape[1];
}

const struct ct_op_type ct_op_causal_conv_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "causal_conv_grad",
    .summary = "gradient of causal_conv",
    .signature = "dy[bTc] T, x[bTc] T, w[cK] T, ?documents[bT] i "
                 "-> dx[bTc] T, dw[cK] T, dbias[c] T | @T",
    .flags = CT_OP_ANY_DTYPE,
    .flops = causal_conv_grad_flops,
    .reference = causal_conv_grad_reference,
    .samples = "@flops=768: real[2,8,4] real[2,8,4] real[4,3] document[2,8];"
               " @flops=960: real[2,6,5] real[2,6,5] real[5,4] -;"
               " @flops=192: real[2,6,2] real[2,6,2] real[2,2] packed[2,6]",
};

struct ct_value *ct_causal_conv(struct ct_builder *b, const char *name, struct ct_value *x,
                                struct ct_value *w, struct ct_value *bias,
                                struct ct_value *documents)
{
    return ct_emit_type1(b, &ct_op_causal_conv, name, (struct ct_value *[]){x, w, bias, documents},
                         4, NULL);
}
