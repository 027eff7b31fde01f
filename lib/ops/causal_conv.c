/*
 * A convolution of each channel along its sequence that sees no later token (Gu and Dao 2023): the
 * last column of a channel's weights belongs to the token itself. Tokens before the first one of a
 * document are zeros. A sequence in segments (states.c) begins each with the last inputs of the
 * segment before. With slots (struct ct_cache), the state has what the last tokens before this row
 * were, of which the last one is behind the others.
 */
#include <string.h>

#include "list.h"

/* How many tokens, itself among them and `most` at most, a token sees that sees no later ones and
   no other documents. documents: by token; NULL: one. before: there are so many tokens of the first
   one's document in front of it. */
static int64_t taps_of(const int32_t *documents, int64_t token, int64_t most, int64_t before)
{
    int64_t count = 1;

    while (count < most && count <= token &&
           (!documents || documents[token - count] == documents[token]))
        count++;
    if (count > token && count < most)
        count = count + before < most ? count + before : most;
    return count;
}

/* Inputs; the gradient has dy, x, w, documents, before, and the gradient of the state behind. */
enum { X, W, BIAS, DOCUMENTS, STATE, SLOTS, BEFORE };

struct conv {
    int64_t batch, tokens, channels, size;
    const int32_t *documents; /* of all sequences; NULL: one each */
    const double *x, *state;  /* state [batch, size - 1, channels]; NULL: zeros */
};

static double *input(const struct ct_launch *l, const struct ct_reference *r, int i)
{
    return i < l->ins ? r->in[i] : NULL;
}

/* x is [.., tokens, channels]; documents are the input `more`. */
static struct conv conv_of(const struct ct_launch *l, struct ct_reference *r,
                           const struct ct_tensor *x, int64_t size, int more)
{
    const int64_t *shape = x->shape + x->ndim - 2;
    struct conv c = {ct_shape_count(x->ndim - 2, x->shape), shape[0], shape[1], size};
    const double *given = input(l, r, more);
    int32_t *documents;

    if (given) {
        documents = ct_arena_array(&r->arena, int32_t, c.batch * c.tokens);
        for (int64_t i = 0; i < c.batch * c.tokens; i++)
            documents[i] = (int32_t)given[i];
        c.documents = documents;
    }
    return c;
}

/* How many tokens one sees, itself among them; those of the state count. */
static int64_t taps(const struct conv *c, int64_t b, int64_t token, bool state)
{
    return taps_of(c->documents ? c->documents + b * c->tokens : NULL, token, c->size,
                   state ? c->size - 1 : 0);
}

/* Row of a token; of one before the first, in the state. */
static int64_t row_of(const struct conv *c, int64_t b, int64_t token)
{
    return token < 0 ? (b * (c->size - 1) + c->size - 1 + token) * c->channels
                     : (b * c->tokens + token) * c->channels;
}

static const double *input_at(const struct conv *c, int64_t b, int64_t token)
{
    return (token < 0 ? c->state : c->x) + row_of(c, b, token);
}

static void convolve(const struct conv *c, const struct ct_reference *r, int64_t b, int64_t t,
                     int64_t count)
{
    const double *w = r->in[W], *bias = input(r->launch, r, BIAS);
    double *y = r->out[0] + row_of(c, b, t);

    for (int64_t k = 0; k < c->channels; k++)
        y[k] = bias ? bias[k] : 0;
    for (int64_t j = 0; j < count; j++)
        for (int64_t k = 0; k < c->channels; k++)
            y[k] += w[k * c->size + c->size - 1 - j] * input_at(c, b, t - j)[k];
}

/* Tokens in a row, and the state before and behind them. */
static void convolve_part(struct conv *c, const struct ct_reference *r, int64_t b)
{
    const struct ct_launch *l = r->launch;
    int64_t used = ct_slots_used(&l->in[SLOTS], b, c->tokens), rows = c->size - 1;
    double *state = r->in[STATE] + b * rows * c->channels;

    c->state = r->in[STATE];
    if (ct_slots_begin(&l->in[SLOTS], b))
        memset(state, 0, sizeof(*state) * (size_t)(rows * c->channels));
    for (int64_t t = 0; t < used; t++)
        convolve(c, r, b, t, c->size);
    for (int64_t i = 0; used && i < rows * c->channels; i++) {
        state[i] = input_at(c, b, used - rows + i / c->channels)[i % c->channels];
        ct_tensor_store(&l->in[STATE], b * rows * c->channels + i, state[i]);
    }
}

static int causal_conv_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct conv c = conv_of(l, &r, &l->in[X], l->in[W].shape[1], DOCUMENTS);
    bool part = input(l, &r, STATE);

    c.x = r.in[X];
    c.state = input(l, &r, BEFORE);
    for (int64_t b = 0; part && b < c.batch; b++)
        convolve_part(&c, &r, b);
    for (int64_t i = 0; !part && i < c.batch * c.tokens; i++)
        convolve(&c, &r, i / c.tokens, i % c.tokens, taps(&c, i / c.tokens, i % c.tokens, c.state));
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
    struct ct_value *documents = ct_op_input(op, DOCUMENTS), *state = ct_op_input(op, BEFORE);
    struct ct_value *after = NULL;

    if (ct_check_whole(op, STATE) < 0)
        return CT_EINVAL;

    if (ct_states_are_passed(state))
        after = ct_fold_back(
            v->b, state,
            ct_emit_type1(v->b, &ct_op_causal_conv_dstate,
                          ct_arena_printf(v->b->graph->arena, "d.%s.own", state->name),
                          (struct ct_value *[]){v->dout[0], op->in[W], documents}, 3, NULL));
    return ct_emit_gradients(
        v, &ct_op_causal_conv_grad,
        (struct ct_value *[]){v->dout[0], op->in[X], op->in[W], documents, state, after}, 6, NULL,
        (int[]){X, W, BIAS}, ct_op_input(op, BIAS) ? 3 : 2);
}

static int64_t conv_least(const struct ct_op *op)
{
    return op->in[W]->shape[1] - 1;
}

static int conv_carry(struct ct_builder *b, const char *name, const struct ct_op *op,
                      struct ct_value **keeps, struct ct_value **gain)
{
    *keeps = *gain = NULL;
    if (conv_least(op) > 0)
        *gain = ct_emit_type1(b, &ct_op_causal_conv_carry, name,
                              (struct ct_value *[]){op->in[X], ct_op_input(op, DOCUMENTS)}, 2,
                              &(struct ct_conv_carry){conv_least(op)});
    return b->status;
}

static const struct ct_recurrence conv_recurrence = {
    .size = sizeof(struct ct_recurrence),
    .documents = DOCUMENTS,
    .state = BEFORE,
    .least = conv_least,
    .carry = conv_carry,
};

const struct ct_op_type ct_op_causal_conv = {
    .size = sizeof(struct ct_op_type),
    .name = "causal_conv",
    .summary = "convolution of each channel with the tokens before, in its document",
    .signature = "x[.Tc] T, w[cK] T, ?bias[c] T, ?documents[.T] i, ?!state[.Jc] T, "
                 "?slots[.T] i, ?before[.HMc] T -> y[.Tc] T",
    .infer = causal_conv_infer,
    .cache = causal_conv_cache,
    .recurrence = &conv_recurrence,
    .vjp = causal_conv_vjp,
    .flops = causal_conv_flops,
    .reference = causal_conv_reference,
    .samples = "@flops=384: real[2,8,4] real[4,3] real[4] document[2,8];"
               " @flops=480: real[2,6,5] real[5,4] - -;"
               " @flops=96: real[2,6,2] real[2,2] real[2] packed[2,6];"
               " @flops=72: real[1,2,6] real[6,3] real[6];"
               " @flops=384: real[2,2,4,4] real[4,3] - document[2,2,4] - - "
               "fixed[2,2,1,2,4]",
};

/* dx takes the gradient of the state behind, whose rows are the last document's last tokens. */
static void add_after(const struct conv *c, const double *after, double *dx)
{
    for (int64_t b = 0; after && b < c->batch; b++) {
        int64_t last = taps_of(c->documents ? c->documents + b * c->tokens : NULL, c->tokens - 1,
                               c->size - 1, 0);

        for (int64_t t = c->tokens - last; t < c->tokens; t++)
            for (int64_t k = 0; k < c->channels; k++)
                dx[row_of(c, b, t) + k] += after[row_of(c, b, t - c->tokens) + k];
    }
}

static int causal_conv_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct conv c = conv_of(l, &r, &l->in[1], l->in[2].shape[1], 3);
    const double *w = r.in[2];

    c.x = r.in[1];
    c.state = input(l, &r, 4);
    for (int64_t i = 0; i < c.batch * c.tokens; i++) {
        int64_t b = i / c.tokens, t = i % c.tokens, count = taps(&c, b, t, c.state);
        const double *dy = r.in[0] + row_of(&c, b, t);

        for (int64_t k = 0; k < c.channels; k++)
            r.out[2][k] += dy[k];
        for (int64_t j = 0; j < count; j++)
            for (int64_t k = 0; k < c.channels; k++) {
                int64_t of_w = k * c.size + c.size - 1 - j;

                if (j <= t)
                    r.out[0][row_of(&c, b, t - j) + k] += w[of_w] * dy[k];
                r.out[1][of_w] += dy[k] * input_at(&c, b, t - j)[k];
            }
    }
    add_after(&c, input(l, &r, 5), r.out[0]);
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
    .signature = "dy[.Tc] T, x[.Tc] T, w[cK] T, ?documents[.T] i, ?before[.HMc] T, ?dafter[.HMc] W "
                 "-> dx[.Tc] T, dw[cK] T, dbias[c] T",
    .flags = CT_OP_ANY_DTYPE,
    .flops = causal_conv_grad_flops,
    .reference = causal_conv_grad_reference,
    .samples = "@flops=768: real[2,8,4] real[2,8,4] real[4,3] document[2,8];"
               " @flops=960: real[2,6,5] real[2,6,5] real[5,4] -;"
               " @flops=192: real[2,6,2] real[2,6,2] real[2,2] packed[2,6];"
               " @flops=768: real[2,2,4,4] real[2,2,4,4] real[4,3] document[2,2,4] "
               "real[2,2,1,2,4] given[2,2,1,2,4]",
};

/* ---- segments ---- */

static int causal_conv_carry_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t size = ((const struct ct_conv_carry *)l->op->attrs)->tokens + 1;
    struct conv c = conv_of(l, &r, &l->in[0], size, 1);

    for (int64_t b = 0; b < c.batch; b++) {
        int64_t last =
            taps_of(c.documents ? c.documents + b * c.tokens : NULL, c.tokens - 1, size - 1, 0);

        for (int64_t t = c.tokens - last; t < c.tokens; t++)
            memcpy(r.out[0] + row_of(&c, b, t - c.tokens), r.in[0] + row_of(&c, b, t),
                   sizeof(double) * (size_t)c.channels);
    }
    return ct_reference_end(&r, 0);
}

/* [.., 1, rows, c] for x [.., c] */
static void set_tail(struct ct_value *tail, int64_t rows)
{
    tail->shape[tail->ndim - 3] = 1;
    tail->shape[tail->ndim - 2] = rows;
}

static int conv_carry_infer(struct ct_op *op)
{
    set_tail(op->out[0], ((const struct ct_conv_carry *)op->attrs)->tokens);
    return 0;
}

static const struct ct_option conv_carry_attrs[] = {
    CT_OPT_INT(struct ct_conv_carry, tokens, "tokens", "1", 1, 1 << 16, "So many of the last"),
    {0},
};

const struct ct_op_type ct_op_causal_conv_carry = {
    .size = sizeof(struct ct_op_type),
    .name = "causal_conv_carry",
    .summary = "the last tokens of each segment; zeros for those of other documents than the last",
    .signature = "x[.Tc] T, ?documents[.T] i -> tail[.HMc] T",
    .attrs = conv_carry_attrs,
    .attrs_size = sizeof(struct ct_conv_carry),
    .infer = conv_carry_infer,
    .reference = causal_conv_carry_reference,
    .samples = "tokens=3: real[2,2,4,4] packed[2,2,4]; tokens=2: real[2,4,6]",
};

static int causal_conv_dstate_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct conv c = conv_of(l, &r, &l->in[0], l->in[1].shape[1], 2);

    for (int64_t i = 0; i < c.batch * c.tokens; i++) {
        int64_t b = i / c.tokens, t = i % c.tokens;

        for (int64_t j = t + 1; j < taps(&c, b, t, true); j++)
            for (int64_t k = 0; k < c.channels; k++)
                r.out[0][row_of(&c, b, t - j) + k] +=
                    r.in[1][k * c.size + c.size - 1 - j] * r.in[0][row_of(&c, b, t) + k];
    }
    return ct_reference_end(&r, 0);
}

static int conv_dstate_infer(struct ct_op *op)
{
    set_tail(op->out[0], op->in[1]->shape[1] - 1);
    return 0;
}

static double conv_dstate_flops(const struct ct_op *op, const struct ct_tensor *in,
                                const struct ct_tensor *out)
{
    (void)op;
    (void)in;
    return (double)ct_tensor_count(&out[0]) * (double)in[1].shape[1];
}

const struct ct_op_type ct_op_causal_conv_dstate = {
    .size = sizeof(struct ct_op_type),
    .name = "causal_conv_dstate",
    .summary = "gradient of the tokens before a segment, from the segment alone",
    .signature = "dy[.Tc] T, w[cK] T, ?documents[.T] i -> dstate[.HMc] W",
    .infer = conv_dstate_infer,
    .flops = conv_dstate_flops,
    .reference = causal_conv_dstate_reference,
    .samples =
        "@flops=96: real[2,2,4,4] real[4,3] packed[2,2,4]; @flops=144: real[2,4,6] real[6,4]",
};

struct ct_value *ct_causal_conv(struct ct_builder *b, const char *name, struct ct_value *x,
                                struct ct_value *w, struct ct_value *bias,
                                struct ct_value *documents)
{
    return ct_emit_type1(b, &ct_op_causal_conv, name, (struct ct_value *[]){x, w, bias, documents},
                         4, NULL);
}
