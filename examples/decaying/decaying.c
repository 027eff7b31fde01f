/*
 * An op with a recurrence along the sequence: y[t] = rate y[t - 1] + x[t], for each feature. It
 * needs whole sequences in training ("@T"), and says by `cache` what it keeps of earlier tokens
 * while `generate` feeds them in parts. A model adds it with ct_emit1(b, "decaying", name, &x, 1,
 * &attrs).
 */
#include <ctitan/lib/ops.h>
#include <ctitan/op_author.h>
#include <ctitan/plugin.h>

struct attrs {
    double rate;
};

static const struct ct_option attrs[] = {
    CT_OPT_FLOAT(struct attrs, rate, "rate", "0.9", 0, 1, "Share of the sum that a token keeps"),
    {0}};

enum { X, STATE, SLOTS };

/* Sequences x[b, t, n], by positions: `forwards`, or from the last token to the first. */
static void sum(const struct ct_launch *l, struct ct_reference *r, bool forwards)
{
    const struct ct_tensor *x = &l->in[X], *slots = l->ins > SLOTS ? &l->in[SLOTS] : NULL;
    int64_t tokens = x->shape[1], n = x->shape[2];
    int64_t *at = ct_arena_array(&r->arena, int64_t, tokens);
    double rate = ((const struct attrs *)l->op->attrs)->rate;

    ct_launch_order(l, l->op->in[X], 1, at);
    for (int64_t row = 0; row < x->shape[0] * n; row++) {
        int64_t b = row / n, used = ct_slots_used(slots, b, tokens);
        double y = slots && !ct_slots_begin(slots, b) ? r->in[STATE][row] : 0;

        for (int64_t i = 0; i < used; i++) {
            int64_t t = at[forwards ? i : used - 1 - i];

            y = rate * y + r->in[X][(b * tokens + t) * n + row % n];
            r->out[0][(b * tokens + t) * n + row % n] = y;
        }
        if (slots)
            ct_tensor_store(&l->in[STATE], row, y);
    }
}

static int forward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    sum(l, &r, true);
    return ct_reference_end(&r, 0);
}

static int backward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    sum(l, &r, false);
    return ct_reference_end(&r, 0);
}

/* The state of a sequence is its last y. It lies where x does: tp, say, splits the features. */
static int cache(struct ct_cache *c)
{
    struct ct_value *x = c->op->in[X], *in[] = {x, NULL, c->slots};

    in[STATE] =
        ct_cache_state(c, c->op->out[0]->name, x->dtype, 2, (int64_t[]){x->shape[0], x->shape[2]});
    if (c->b->status == 0)
        ct_op_set_inputs(c->b->graph, c->op, in, 3);
    return c->b->status;
}

static int vjp(struct ct_vjp *v);

/* T is whole on every rank, and the result depends on positions: cp may feed sequences in another
   order, which ct_launch_order undoes. The state is updated in place, where there is one. */
static const struct ct_op_type op_type = {
    .size = sizeof(struct ct_op_type),
    .name = "decaying",
    .summary = "sum of tokens, which decays",
    .signature = "x[bTn] T, ?!state[bn] T, ?slots[bT] i -> y[bTn] T | @T",
    .attrs = attrs,
    .attrs_size = sizeof(struct attrs),
    .vjp = vjp,
    .cache = cache,
    .reference = forward,
    .samples = "real[2,8,4]; rate=0.5: real[1,6,2]",
};

static const struct ct_op_type grad_type = {
    .size = sizeof(struct ct_op_type),
    .name = "decaying_grad",
    .summary = "gradient of decaying",
    .signature = "dy[bTn] T -> dx[bTn] T | @T",
    .attrs = attrs,
    .attrs_size = sizeof(struct attrs),
    .reference = backward,
};

static int vjp(struct ct_vjp *v)
{
    return ct_emit_gradients(v, &grad_type, v->dout, 1, v->op->attrs, (int[]){0}, 1);
}

CT_PLUGIN(.name = "decaying", .version = "1.0", .summary = "Op: a sum along sequences that decays",
          .offers = CT_OFFERS({CT_OP, "decaying", &op_type}, {CT_OP, "decaying_grad", &grad_type}));
