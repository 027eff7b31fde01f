/*
 * The selective state space of Mamba-2 (Dao and Gu 2024). A head has a state [p, n], which decays
 * and takes in each token:
 *
 *     state = exp(dt A) state + dt x B^T,  y = state C + D x
 *
 * with A = -exp(a_log) and dt = softplus(dt + dt_bias) within limits. Consecutive heads share the B
 * and C of a group. A document begins with a state of zeros. A sequence in segments (states.c)
 * begins each with the state that the one before left; a segment makes keeps state + gain of it.
 * With slots (struct ct_cache), `state` is the one before and behind a row of tokens.
 */
#include <math.h>

#include "list.h"

/* Inputs. Those of the gradient follow dy, up to documents; behind these are the state before and
   the gradient of the state behind. */
enum { X, DT, A_LOG, B, C, D, DT_BIAS, DOCUMENTS, STATE, SLOTS, BEFORE };

static const struct ct_option scan_attrs[] = {
    CT_OPT_FLOAT(struct ct_state_scan, least, "least", "0", 0, 1e30, "Lower limit of dt"),
    CT_OPT_FLOAT(struct ct_state_scan, most, "most", "0", 0, 1e300, "Upper limit of dt; 0: none"),
    {0}};

struct scan {
    const struct ct_state_scan *how;
    int64_t batch, tokens, heads, size, groups, n;
    const double *in[DOCUMENTS + 1]; /* NULL: absent */
    bool given;                      /* there is a state before the first token */
};

/* x is [.., tokens, heads, size], b is [.., tokens, groups, n]. */
static struct scan sizes_of(const struct ct_launch *l, const struct ct_tensor *x,
                            const struct ct_tensor *b)
{
    const int64_t *of_x = x->shape + x->ndim - 3, *of_b = b->shape + b->ndim - 3;

    return (struct scan){.how = l->op->attrs,
                         .batch = ct_shape_count(x->ndim - 3, x->shape),
                         .tokens = of_x[0],
                         .heads = of_x[1],
                         .size = of_x[2],
                         .groups = of_b[1],
                         .n = of_b[2]};
}

static double *input(const struct ct_launch *l, const struct ct_reference *r, int i)
{
    return i < l->ins ? r->in[i] : NULL;
}

static struct scan scan_of(const struct ct_launch *l, const struct ct_reference *r, int first)
{
    struct scan s = sizes_of(l, &l->in[first + X], &l->in[first + B]);

    for (int i = 0; i <= DOCUMENTS; i++)
        s.in[i] = input(l, r, first + i);
    return s;
}

/* One token's step of a head. */
struct step {
    int64_t x, dt, b; /* indices in x (and y), dt, and B or C */
    double raw, dt_value, decay;
    bool begins, limited; /* a document; dt */
};

static struct step step_of(const struct scan *s, int64_t batch, int64_t head, int64_t position)
{
    int64_t token = batch * s->tokens + position;
    struct step t = {.dt = token * s->heads + head};
    double most = s->how->most > 0 ? s->how->most : INFINITY;

    t.x = t.dt * s->size;
    t.b = (token * s->groups + head / (s->heads / s->groups)) * s->n;
    t.raw = s->in[DT][t.dt] + s->in[DT_BIAS][head];
    t.dt_value = softplus_of(t.raw);
    t.limited = t.dt_value < s->how->least || t.dt_value > most;
    t.dt_value = t.dt_value < s->how->least ? s->how->least : t.dt_value > most ? most : t.dt_value;
    t.begins = position == 0
                   ? !s->given
                   : s->in[DOCUMENTS] && s->in[DOCUMENTS][token] != s->in[DOCUMENTS][token - 1];
    t.decay = t.begins ? 0 : exp(-exp(s->in[A_LOG][head]) * t.dt_value);
    return t;
}

/* Copy a head's state from those of all [b, h, size, n]; NULL: zeros. */
static void begin(const struct scan *s, const double *states, int64_t row, double *state)
{
    for (int64_t i = 0; i < s->size * s->n; i++)
        state[i] = states ? states[row * s->size * s->n + i] : 0;
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
    const struct ct_tensor *slots = SLOTS < l->ins ? &l->in[SLOTS] : NULL;
    double *state = ct_arena_array(&r.arena, double, s.size *s.n), *part = input(l, &r, STATE);
    const double *before = part ? part : input(l, &r, BEFORE);

    for (int64_t row = 0; row < s.batch * s.heads; row++) {
        int64_t b = row / s.heads, h = row % s.heads, size = s.size * s.n;

        s.given = part ? !ct_slots_begin(slots, b) : before != NULL;
        begin(&s, before, row, state);
        for (int64_t i = 0; i < ct_slots_used(slots, b, s.tokens); i++) {
            struct step t = step_of(&s, b, h, i);

            advance(&s, &t, state, state);
            for (int64_t p = 0; p < s.size; p++) {
                double sum = s.in[D][h] * s.in[X][t.x + p];

                for (int64_t k = 0; k < s.n; k++)
                    sum += state[p * s.n + k] * s.in[C][t.b + k];
                r.out[0][t.x + p] = sum;
            }
        }
        for (int64_t j = 0; part && j < size; j++)
            ct_tensor_store(&l->in[STATE], row * size + j, state[j]);
    }
    return ct_reference_end(&r, 0);
}

/* By chunks of q tokens: C B^T and its product with x, C times the state, and x^T B. */

static double scan_flops_of(const struct ct_tensor *x, const struct ct_tensor *b)
{
    double tokens = (double)x->shape[x->ndim - 3], p = (double)x->shape[x->ndim - 1];
    double rows = (double)ct_tensor_count(x) / p, n = (double)b->shape[b->ndim - 1];
    double q = tokens < CT_SCAN_CHUNK ? tokens : CT_SCAN_CHUNK;

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
    struct ct_value *in[DOCUMENTS + 4] = {v->dout[0]}, **from = v->op->in;
    struct ct_value *state = ct_op_input(v->op, BEFORE);

    if (ct_check_whole(v->op, STATE) < 0)
        return CT_EINVAL;
    for (int i = 0; i <= DOCUMENTS; i++)
        in[1 + i] = ct_op_input(v->op, i);
    in[2 + DOCUMENTS] = state;
    if (ct_states_are_passed(state))
        in[3 + DOCUMENTS] = ct_fold_back(
            v->b, state,
            ct_emit_type1(v->b, &ct_op_state_scan_dstate,
                          ct_arena_printf(v->b->graph->arena, "d.%s.own", state->name),
                          (struct ct_value *[]){v->dout[0], from[DT], from[A_LOG], from[C],
                                                from[DT_BIAS], ct_op_input(v->op, DOCUMENTS)},
                          6, v->op->attrs));
    return ct_emit_gradients(v, &ct_op_state_scan_grad, in, DOCUMENTS + 4, v->op->attrs,
                             (int[]){X, DT, A_LOG, B, C, D, DT_BIAS}, DT_BIAS + 1);
}

static int scan_carry(struct ct_builder *b, const char *name, const struct ct_op *op,
                      struct ct_value **keeps, struct ct_value **gain)
{
    struct ct_op *carry =
        ct_emit_type(b, &ct_op_state_scan_carry, name,
                     (struct ct_value *[]){op->in[X], op->in[DT], op->in[A_LOG], op->in[B],
                                           op->in[DT_BIAS], ct_op_input(op, DOCUMENTS)},
                     6, op->attrs);

    *keeps = carry ? carry->out[0] : NULL;
    *gain = carry ? carry->out[1] : NULL;
    return b->status;
}

static const struct ct_recurrence scan_recurrence = {
    .size = sizeof(struct ct_recurrence),
    .documents = DOCUMENTS,
    .state = BEFORE,
    .carry = scan_carry,
};

const struct ct_op_type ct_op_state_scan = {
    .size = sizeof(struct ct_op_type),
    .name = "state_scan",
    .summary = "selective state space: a state for each head that decays and takes in tokens",
    .signature = "x[.ThP] T, dt[.Th] T, a_log[h] T, B[.TgN] T, C[.TgN] T, D[h] T, dt_bias[h] T, "
                 "?documents[.T] i, ?!state[.hPN] W, ?slots[.T] i, ?before[.hPN] W "
                 "-> y[.ThP] T | h:g",
    .infer = scan_infer,
    .cache = scan_cache,
    .recurrence = &scan_recurrence,
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
        "real[2,8,1,3] real[2,8,1,3] real[2] real[2] document[2,8];"
        " @inner_roundings=1 @flops=1408: real[2,2,4,2,2] real[2,2,4,2] real[2] real[2,2,4,1,3] "
        "real[2,2,4,1,3] real[2] real[2] packed[2,2,4] - - given[2,2,2,2,3]",
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
    const double *before = input(l, &r, 2 + DOCUMENTS), *after = input(l, &r, 3 + DOCUMENTS);

    s.given = before != NULL;
    for (int64_t row = 0; row < s.batch * s.heads; row++) {
        int64_t b = row / s.heads, h = row % s.heads;

        begin(&s, before, row, states);
        for (int64_t i = 0; i < s.tokens; i++) {
            struct step t = step_of(&s, b, h, i);

            advance(&s, &t, states + i * state, states + (i + 1) * state);
        }
        begin(&s, after, row, gradient);
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
    .signature = "dy[.ThP] T, x[.ThP] T, dt[.Th] T, a_log[h] T, B[.TgN] T, C[.TgN] T, D[h] T, "
                 "dt_bias[h] T, ?documents[.T] i, ?before[.hPN] W, ?dafter[.hPN] W "
                 "-> dx[.ThP] T, ddt[.Th] T, da_log[h] T, dB[.TgN] T, dC[.TgN] T, dD[h] T, "
                 "ddt_bias[h] T | h:g",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = scan_attrs,
    .attrs_size = sizeof(struct ct_state_scan),
    .flops = scan_grad_flops,
    .reference = scan_grad_reference,
    .samples = "@inner_roundings=1 @flops=3888 least=0.3 most=1.1: real[2,6,2,2] real[2,6,2,2] "
               "real[2,6,2] "
               "real[2] real[2,6,1,3] real[2,6,1,3] real[2] real[2] document[2,6];"
               " @inner_roundings=1 @flops=5880: real[2,5,4,3] real[2,5,4,3] real[2,5,4] real[4] "
               "real[2,5,2,2] real[2,5,2,2] real[4] real[4];"
               " @inner_roundings=1 @flops=4224: real[2,2,4,2,2] real[2,2,4,2,2] real[2,2,4,2] "
               "real[2] real[2,2,4,1,3] real[2,2,4,1,3] real[2] real[2] packed[2,2,4] "
               "given[2,2,2,2,3] given[2,2,2,2,3]",
};

/* ---- segments ---- */

static int scan_carry_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct scan s = sizes_of(l, &l->in[0], &l->in[3]);
    int64_t state = s.size * s.n;

    s.in[X] = r.in[0];
    s.in[DT] = r.in[1];
    s.in[A_LOG] = r.in[2];
    s.in[B] = r.in[3];
    s.in[DT_BIAS] = r.in[4];
    s.in[DOCUMENTS] = input(l, &r, 5);
    s.given = true;
    for (int64_t row = 0; row < s.batch * s.heads; row++) {
        r.out[0][row] = 1;
        for (int64_t i = 0; i < s.tokens; i++) {
            struct step t = step_of(&s, row / s.heads, row % s.heads, i);

            advance(&s, &t, r.out[1] + row * state, r.out[1] + row * state);
            r.out[0][row] *= t.decay;
        }
    }
    return ct_reference_end(&r, 0);
}

static int one_factor(struct ct_op *op)
{
    struct ct_value *keeps = op->out[0];

    keeps->shape[keeps->ndim - 1] = keeps->shape[keeps->ndim - 2] = 1;
    return 0;
}

/* For each token, x B^T. */
static double state_flops(const struct ct_op *op, const struct ct_tensor *in,
                          const struct ct_tensor *out)
{
    double rows = (double)ct_tensor_count(&in[0]);

    (void)op;
    (void)out;
    return 2 * rows * (double)in[3].shape[in[3].ndim - 1];
}

const struct ct_op_type ct_op_state_scan_carry = {
    .size = sizeof(struct ct_op_type),
    .name = "state_scan_carry",
    .summary = "what segments do to the state of state_scan: keeps state + gain",
    .signature = "x[.ThP] T, dt[.Th] T, a_log[h] T, B[.TgN] T, dt_bias[h] T, ?documents[.T] i "
                 "-> keeps[.hQR] W, gain[.hPN] W | h:g",
    .attrs = scan_attrs,
    .attrs_size = sizeof(struct ct_state_scan),
    .infer = one_factor,
    .flops = state_flops,
    .reference = scan_carry_reference,
    .samples = "@inner_roundings=1 @flops=480: real[2,5,4,3] real[2,5,4] real[4] real[2,5,2,2] "
               "real[4];"
               " @inner_roundings=1 @flops=384 least=0.3 most=1.1: real[2,2,4,2,2] real[2,2,4,2] "
               "real[2] real[2,2,4,1,3] real[2] packed[2,2,4]",
};

static int scan_dstate_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct scan s = sizes_of(l, &l->in[0], &l->in[3]);
    int64_t state = s.size * s.n;

    s.in[DT] = r.in[1];
    s.in[A_LOG] = r.in[2];
    s.in[C] = r.in[3];
    s.in[DT_BIAS] = r.in[4];
    s.in[DOCUMENTS] = input(l, &r, 5);
    s.given = true;
    for (int64_t row = 0; row < s.batch * s.heads; row++)
        for (int64_t i = s.tokens; i-- > 0;) {
            struct step t = step_of(&s, row / s.heads, row % s.heads, i);
            double *gradient = r.out[0] + row * state;

            for (int64_t k = 0; k < state; k++)
                gradient[k] =
                    t.decay * (gradient[k] + r.in[0][t.x + k / s.n] * s.in[C][t.b + k % s.n]);
        }
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_state_scan_dstate = {
    .size = sizeof(struct ct_op_type),
    .name = "state_scan_dstate",
    .summary = "gradient of the state before a segment, from the segment alone",
    .signature = "dy[.ThP] T, dt[.Th] T, a_log[h] T, C[.TgN] T, dt_bias[h] T, ?documents[.T] i "
                 "-> dstate[.hPN] W | h:g",
    .attrs = scan_attrs,
    .attrs_size = sizeof(struct ct_state_scan),
    .flops = state_flops,
    .reference = scan_dstate_reference,
    .samples = "@inner_roundings=1 @flops=480: real[2,5,4,3] real[2,5,4] real[4] real[2,5,2,2] "
               "real[4];"
               " @inner_roundings=1 @flops=384 least=0.3 most=1.1: real[2,2,4,2,2] real[2,2,4,2] "
               "real[2] real[2,2,4,1,3] real[2] packed[2,2,4]",
};

struct ct_value *ct_state_scan(struct ct_builder *b, const char *name,
                               const struct ct_state_inputs *in, struct ct_value *documents,
                               const struct ct_state_scan *how)
{
    struct ct_value *all[] = {in->x, in->dt, in->a_log,   in->b,
                              in->c, in->d,  in->dt_bias, documents};

    return ct_emit_type1(b, &ct_op_state_scan, name, all, (int)CT_COUNT(all), how);
}
