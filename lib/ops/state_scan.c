/*
 * The selective state space of Mamba-2 (Dao and Gu 2024). A head has a state [p, n], which decays
 * and takes in each token:
 *
 *     state = exp(dt A) state + dt x B^T,  y = state C + D x
 *
 * with A = -exp(a_log) and dt = softplus(dt + dt_bias) within limits. Consecutive heads share the B
 * and C of a group. A document begins with a state of zeros. Sequences may be fed in another order;
 * they are whole on every rank. With slots (struct ct_cache), `state` is the one before and behind
 * a row of tokens.
 */
#include <math.h>
#include <string.h>

#include "list.h"

enum { X, DT, A_LOG, B, C, D, DT_BIAS, DOCUMENTS, STATE, SLOTS };

static const struct ct_option scan_attrs[] = {
    CT_OPT_FLOAT(struct ct_state_scan, least, "least", "0", 0, 1e30, "Lower limit of dt"),
    CT_OPT_FLOAT(struct ct_state_scan, most, "most", "0", 0, 1e300, "Upper limit of dt; 0: none"),
    {0}};

/* Inputs of the scan; those of the gradient follow dy. */
struct scan {
    const struct ct_state_scan *how;
    int64_t batch, tokens, heads, size, groups, n;
    const double *in[DT_BIAS + 1], *documents; /* NULL: one document */
    int64_t *at;
    const struct ct_tensor *slots;
};

static struct scan scan_of(const struct ct_launch *l, struct ct_reference *r, int first)
{
    const struct ct_tensor *x = &l->in[first + X], *b = &l->in[first + B];
    struct scan s = {l->op->attrs, x->shape[0], x->shape[1], x->shape[2],
                     x->shape[3],  b->shape[2], b->shape[3], .at = NULL};

    for (int i = 0; i <= DT_BIAS; i++)
        s.in[i] = r->in[first + i];
    if (first + DOCUMENTS < l->ins)
        s.documents = r->in[first + DOCUMENTS];
    if (!first && SLOTS < l->ins)
        s.slots = &l->in[SLOTS];
    s.at = ct_arena_array(&r->arena, int64_t, s.tokens);
    ct_launch_order(l, l->op->in[first + X], 1, s.at);
    return s;
}

/* What a head does with a token. */
struct step {
    int64_t x, dt, b; /* indices in x (and y), dt, and B or C */
    double raw, dt_value, decay;
    bool begins, limited; /* a document; dt */
};

static struct step step_of(const struct scan *s, int64_t batch, int64_t head, int64_t position)
{
    int64_t token = batch * s->tokens + s->at[position];
    struct step t = {.dt = token * s->heads + head};
    double most = s->how->most > 0 ? s->how->most : INFINITY;

    t.x = t.dt * s->size;
    t.b = (token * s->groups + head / (s->heads / s->groups)) * s->n;
    t.raw = s->in[DT][t.dt] + s->in[DT_BIAS][head];
    t.dt_value = softplus_of(t.raw);
    t.limited = t.dt_value < s->how->least || t.dt_value > most;
    t.dt_value = t.dt_value < s->how->least ? s->how->least : t.dt_value > most ? most : t.dt_value;
    t.begins = position == 0
                   ? ct_slots_begin(s->slots, batch)
                   : s->documents && s->documents[token] !=
                                         s->documents[batch * s->tokens + s->at[position - 1]];
    t.decay = t.begins ? 0 : exp(-exp(s->in[A_LOG][head]) * t.dt_value);
    return t;
}

/* The next state [size, n]. */
static void advance(const struct scan *s, const struct step *t, const double *before, double *after)
{
    for (int64_t p = 0; p < s->size; p++)
        for (int64_t k = 0; k < s->n; k++)
            after[p * s->n + k] = (t->begins ? 0 : t->decay * before[p * s->n + k]) +
                                  t->dt_value * s->in[X][t->x + p] * s->in[B][t->b + k];
}

static int scan_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct scan s = scan_of(l, &r, 0);
    double *state = ct_arena_array(&r.arena, double, s.size *s.n);

    for (int64_t row = 0; row < s.batch * s.heads; row++) {
        int64_t b = row / s.heads, h = row % s.heads, size = s.size * s.n;

        if (s.slots)
            memcpy(state, r.in[STATE] + row * size, sizeof(*state) * (size_t)size);
        for (int64_t i = 0; i < ct_slots_used(s.slots, b, s.tokens); i++) {
            struct step t = step_of(&s, b, h, i);

            advance(&s, &t, state, state);
            for (int64_t p = 0; p < s.size; p++) {
                double sum = s.in[D][h] * s.in[X][t.x + p];

                for (int64_t k = 0; k < s.n; k++)
                    sum += state[p * s.n + k] * s.in[C][t.b + k];
                r.out[0][t.x + p] = sum;
            }
        }
        for (int64_t j = 0; s.slots && j < size; j++)
            ct_tensor_store(&l->in[STATE], row * size + j, state[j]);
    }
    return ct_reference_end(&r, 0);
}

/* By chunks of q tokens: C B^T and its product with x, C times the state, and x^T B. */

static double scan_flops_of(const struct ct_tensor *x, const struct ct_tensor *b)
{
    double rows = (double)ct_tensor_count(x) / (double)x->shape[3];
    double tokens = (double)x->shape[1], q = tokens < CT_SCAN_CHUNK ? tokens : CT_SCAN_CHUNK;
    double p = (double)x->shape[3], n = (double)b->shape[3];

    return rows * (q * (n + p) + 4 * p * n);
}

static double scan_flops(const struct ct_op *op, const struct ct_tensor *in,
                         const struct ct_tensor *out)
{
    (void)op, (void)out;
    return scan_flops_of(&in[X], &in[B]);
}

static int scan_infer(struct ct_op *op)
{
    return ct_check_part(op, STATE);
}

static int scan_cache(struct ct_cache *c)
{
    const struct ct_value *x = c->op->in[X], *b = c->op->in[B];

    return ct_cache_recurrence(c, STATE, x->dtype == CT_F64 ? CT_F64 : CT_F32, 4,
                               (int64_t[]){x->shape[0], x->shape[2], x->shape[3], b->shape[3]});
}

static int scan_vjp(struct ct_vjp *v)
{
    struct ct_value *in[DOCUMENTS + 2] = {v->dout[0]};

    if (ct_check_whole(v->op, STATE) < 0)
        return CT_EINVAL;

    for (int i = 0; i <= DOCUMENTS; i++)
        in[1 + i] = ct_op_input(v->op, i);
    return ct_emit_gradients(v, &ct_op_state_scan_grad, in, DOCUMENTS + 2, v->op->attrs,
                             (int[]){X, DT, A_LOG, B, C, D, DT_BIAS}, DT_BIAS + 1);
}

const struct ct_op_type ct_op_state_scan = {
    .size = sizeof(struct ct_op_type),
    .name = "state_scan",
    .summary = "selective state space: a state for each head that decays and takes in tokens",
    .signature = "x[bThP] T, dt[bTh] T, a_log[h] T, B[bTgN] T, C[bTgN] T, D[h] T, dt_bias[h] T, "
                 "?documents[bT] i, ?!state[bhPN] W, ?slots[bT] i -> y[bThP] T | h:g, @T",
    .infer = scan_infer,
    .cache = scan_cache,
    .attrs = scan_attrs,
    .attrs_size = sizeof(struct ct_state_scan),
    .vjp = scan_vjp,
    .flops = scan_flops,
    .reference = scan_reference,
    .samples =
        "@inner_roundings=1 @flops=1960: real[2,5,4,3] real[2,5,4] real[4] real[2,5,2,2] "
        "real[2,5,2,2] "
        "real[4] real[4];"
        " @inner_roundings=1 @flops=2048 least=0.3 most=1.1: real[2,8,2,2] real[2,8,2] real[2] "
        "real[2,8,1,3] real[2,8,1,3] real[2] real[2] document[2,8]",
};

/* ---- gradient ---- */

/* Add the gradients of one token; `gradient` is that of the state after it, and becomes that of
   the state before. */
static void step_back(const struct scan *s, const struct step *t, int64_t head, const double *dy,
                      const double *before, double *gradient, double *const *out)
{
    double a = -exp(s->in[A_LOG][head]), d_dt = 0, d_decay = 0;

    dy += t->x;
    for (int64_t p = 0; p < s->size; p++) {
        double x = s->in[X][t->x + p], dx = s->in[D][head] * dy[p];

        out[D][head] += dy[p] * x;
        for (int64_t k = 0; k < s->n; k++) {
            int64_t i = p * s->n + k;
            double b = s->in[B][t->b + k], g = gradient[i] + dy[p] * s->in[C][t->b + k];

            out[C][t->b + k] +=
                dy[p] * ((t->begins ? 0 : t->decay * before[i]) + t->dt_value * x * b);
            dx += t->dt_value * g * b;
            out[B][t->b + k] += t->dt_value * g * x;
            d_dt += g * x * b;
            d_decay += t->begins ? 0 : g * before[i];
            gradient[i] = t->begins ? 0 : t->decay * g;
        }
        out[X][t->x + p] += dx;
    }
    out[A_LOG][head] += d_decay * t->decay * t->dt_value * a;
    d_dt = t->limited ? 0 : (d_dt + d_decay * t->decay * a) * sigmoid_of(t->raw);
    out[DT][t->dt] += d_dt;
    out[DT_BIAS][head] += d_dt;
}

static int scan_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct scan s = scan_of(l, &r, 1);
    int64_t state = s.size * s.n;
    double *states = ct_arena_array(&r.arena, double, (s.tokens + 1) * state);
    double *gradient = ct_arena_array(&r.arena, double, state);

    for (int64_t row = 0; row < s.batch * s.heads; row++) {
        int64_t b = row / s.heads, h = row % s.heads;

        for (int64_t i = 0; i < s.tokens; i++) {
            struct step t = step_of(&s, b, h, i);

            advance(&s, &t, states + i * state, states + (i + 1) * state);
        }
        for (int64_t i = 0; i < state; i++)
            gradient[i] = 0;
        for (int64_t i = s.tokens; i-- > 0;) {
            struct step t = step_of(&s, b, h, i);

            step_back(&s, &t, h, r.in[0], states + i * state, gradient, r.out);
        }
    }
    return ct_reference_end(&r, 0);
}

static double scan_grad_flops(const struct ct_op *op, const struct ct_tensor *in,
                              const struct ct_tensor *out)
{
    (void)op, (void)out;
    return 3 * scan_flops_of(&in[1 + X], &in[1 + B]);
}

const struct ct_op_type ct_op_state_scan_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "state_scan_grad",
    .summary = "gradient of state_scan",
    .signature = "dy[bThP] T, x[bThP] T, dt[bTh] T, a_log[h] T, B[bTgN] T, C[bTgN] T, D[h] T, "
                 "dt_bias[h] T, ?documents[bT] i -> dx[bThP] T, ddt[bTh] T, da_log[h] T, "
                 "dB[bTgN] T, dC[bTgN] T, dD[h] T, ddt_bias[h] T | h:g, @T",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = scan_attrs,
    .attrs_size = sizeof(struct ct_state_scan),
    .flops = scan_grad_flops,
    .reference = scan_grad_reference,
    .samples = "@inner_roundings=1 @flops=3888 least=0.3 most=1.1: real[2,6,2,2] real[2,6,2,2] "
               "real[2,6,2] "
               "real[2] real[2,6,1,3] real[2,6,1,3] real[2] real[2] document[2,6];"
               " @inner_roundings=1 @flops=5880: real[2,5,4,3] real[2,5,4,3] real[2,5,4] real[4] "
               "real[2,5,2,2] real[2,5,2,2] real[4] real[4]",
};

struct ct_value *ct_state_scan(struct ct_builder *b, const char *name,
                               const struct ct_state_inputs *in, struct ct_value *documents,
                               const struct ct_state_scan *how)
{
    struct ct_value *all[] = {in->x, in->dt, in->a_log,   in->b,
                              in->c, in->d,  in->dt_bias, documents};

    return ct_emit_type1(b, &ct_op_state_scan, name, all, (int)CT_COUNT(all), how);
}
