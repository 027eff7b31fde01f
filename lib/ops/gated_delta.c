/*
 * The gated delta rule (Yang et al. 2024): each head has a state S[K, V], which forgets, is
 * corrected by what it predicts wrongly for a token's key, and is read by its query:
 *
 *     S <- exp(gate) S;  u = beta (v - k S);  S <- S + k^T u;  o = q S
 *
 * The state is zero before the first token of a document. Several heads of values share a head of
 * queries and keys, as in grouped attention. A sequence in segments (states.c) begins each with the
 * state that the one before left; what a segment does to a state is linear: S <- keeps S + gain.
 * With slots (struct ct_cache), `state` has S before and behind a row of tokens.
 */
#include <math.h>
#include <string.h>

#include "list.h"

/* Inputs, in the order of the op. Those of gated_delta_grad follow do, up to documents; behind
   these are the state before and the gradient of the state behind. */
enum { Q, KEY, VALUE, GATE, BETA, DOCUMENTS, STATE, SLOTS, BEFORE };

/* Sizes and operands. */
struct rule {
    int64_t batch, tokens, groups, heads, k, v;
    const double *q, *key, *value, *gate, *beta, *documents, *state, *after; /* NULL: none */
    bool given; /* there is a state before the first token */
};

static double *input(const struct ct_launch *l, const struct ct_reference *r, int i)
{
    return i < l->ins ? r->in[i] : NULL;
}

/* The sizes of keys [.., tokens, groups, k] and values. */
static struct rule sizes_of(const struct ct_tensor *key, const struct ct_tensor *value)
{
    const int64_t *k = key->shape + key->ndim - 3, *v = value->shape + value->ndim - 3;

    return (struct rule){.batch = ct_shape_count(key->ndim - 3, key->shape),
                         .tokens = k[0],
                         .groups = k[1],
                         .heads = v[1],
                         .k = k[2],
                         .v = v[2]};
}

/* q is input `at`. */
static struct rule rule_of(const struct ct_launch *l, const struct ct_reference *r, int at)
{
    struct rule d = sizes_of(&l->in[at + KEY], &l->in[at + VALUE]);

    d.q = r->in[at];
    d.key = r->in[at + KEY];
    d.value = r->in[at + VALUE];
    d.gate = r->in[at + GATE];
    d.beta = r->in[at + BETA];
    d.documents = input(l, r, at + DOCUMENTS);
    return d;
}

/* Rows of a token: number of its keys and queries, and of its values. */
static int64_t key_row(const struct rule *d, int64_t b, int64_t t, int64_t h)
{
    return (b * d->tokens + t) * d->groups + h / (d->heads / d->groups);
}

static int64_t value_row(const struct rule *d, int64_t b, int64_t t, int64_t h)
{
    return (b * d->tokens + t) * d->heads + h;
}

static bool begins(const struct rule *d, int64_t b, int64_t t)
{
    const double *documents = d->documents ? d->documents + b * d->tokens : NULL;

    return t == 0 ? !d->given : documents && documents[t] != documents[t - 1];
}

/* Copy a head's state from those of all [b, h, k, v]; NULL: zeros. */
static void begin(const struct rule *d, const double *states, int64_t b, int64_t h, double *s)
{
    size_t size = (size_t)(d->k * d->v);

    if (states)
        memcpy(s, states + (b * d->heads + h) * d->k * d->v, sizeof(*s) * size);
    else
        memset(s, 0, sizeof(*s) * size);
}

/* y[n] = x[m] a[m, n] */
static void row_times(const double *x, const double *a, int64_t m, int64_t n, double *y)
{
    memset(y, 0, sizeof(*y) * (size_t)n);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            y[j] += x[i] * a[i * n + j];
}

/* y[m] = a[m, n] x[n] */
static void times_column(const double *a, const double *x, int64_t m, int64_t n, double *y)
{
    for (int64_t i = 0; i < m; i++) {
        y[i] = 0;
        for (int64_t j = 0; j < n; j++)
            y[i] += a[i * n + j] * x[j];
    }
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* a[m, n] += x[m] y[n] */
static void add_outer(double *a, const double *x, const double *y, int64_t m, int64_t n)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            a[i * n + j] += x[i] * y[j];
}

/* One token: s[k, v] becomes the next state; u[v] is what is written, wrong[v] what was not
   predicted. */
static void advance(const struct rule *d, int64_t b, int64_t t, int64_t h, double *s, double *u,
                    double *wrong)
{
    int64_t row = value_row(d, b, t, h);
    const double *key = d->key + key_row(d, b, t, h) * d->k, *value = d->value + row * d->v;
    double decay = begins(d, b, t) ? 0 : exp(d->gate[row]);

    for (int64_t i = 0; i < d->k * d->v; i++)
        s[i] = decay > 0 ? decay * s[i] : 0;
    row_times(key, s, d->k, d->v, u);
    for (int64_t i = 0; i < d->v; i++) {
        wrong[i] = value[i] - u[i];
        u[i] = d->beta[row] * wrong[i];
    }
    add_outer(s, key, u, d->k, d->v);
}

static int gated_delta_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct rule d = rule_of(l, &r, 0);
    const struct ct_tensor *slots = SLOTS < l->ins ? &l->in[SLOTS] : NULL;
    double *s = ct_arena_array(&r.arena, double, d.k *d.v);
    double *u = ct_arena_array(&r.arena, double, 2 * d.v), *part = input(l, &r, STATE);

    d.state = part ? part : input(l, &r, BEFORE);

    for (int64_t i = 0; i < d.batch * d.heads; i++) {
        int64_t b = i / d.heads, h = i % d.heads;

        d.given = part ? !ct_slots_begin(slots, b) : d.state != NULL;
        begin(&d, d.state, b, h, s);
        for (int64_t t = 0; t < ct_slots_used(slots, b, d.tokens); t++) {
            advance(&d, b, t, h, s, u, u + d.v);
            row_times(d.q + key_row(&d, b, t, h) * d.k, s, d.k, d.v,
                      r.out[0] + value_row(&d, b, t, h) * d.v);
        }
        for (int64_t j = 0; part && j < d.k * d.v; j++)
            ct_tensor_store(&l->in[STATE], i * d.k * d.v + j, s[j]);
    }
    return ct_reference_end(&r, 0);
}

/* Products of a chunk of C tokens, for each token and head: with the state 3 K V in each of its two
   directions, with the chunk's other tokens K and V each, half of which are seen. */
static double rule_flops(const struct ct_tensor *in, int at, double times)
{
    struct rule d = sizes_of(&in[at + KEY], &in[at + VALUE]);
    double rows = (double)(d.batch * d.tokens * d.heads), K = (double)d.k, V = (double)d.v;
    double chunk = (double)(d.tokens < CT_DELTA_CHUNK ? d.tokens : CT_DELTA_CHUNK);

    return times * 2 * rows * (3 * K * V + chunk * (K + V));
}

static double gated_delta_flops(const struct ct_op *op, const struct ct_tensor *in,
                                const struct ct_tensor *out)
{
    (void)op;
    (void)out;
    return rule_flops(in, 0, 1);
}

static int gated_delta_infer(struct ct_op *op)
{
    return ct_check_part(op, STATE);
}

static int gated_delta_cache(struct ct_cache *c)
{
    const struct ct_value *k = c->op->in[1], *v = c->op->in[2], *gate = c->op->in[3];

    return ct_cache_recurrence(c, STATE, gate->dtype, 4,
                               (int64_t[]){v->shape[0], v->shape[2], k->shape[3], v->shape[3]});
}

static int gated_delta_vjp(struct ct_vjp *v)
{
    struct ct_value **in = v->op->in, *documents = ct_op_input(v->op, DOCUMENTS);
    struct ct_value *state = ct_op_input(v->op, BEFORE), *after = NULL;

    if (ct_check_whole(v->op, STATE) < 0)
        return CT_EINVAL;

    if (ct_states_are_passed(state))
        after =
            ct_fold_back(v->b, state,
                         ct_emit_type1(v->b, &ct_op_gated_delta_dstate,
                                       ct_arena_printf(v->b->graph->arena, "d.%s.own", state->name),
                                       (struct ct_value *[]){v->dout[0], in[Q], in[KEY], in[GATE],
                                                             in[BETA], documents},
                                       6, NULL));
    return ct_emit_gradients(v, &ct_op_gated_delta_grad,
                             (struct ct_value *[]){v->dout[0], in[Q], in[KEY], in[VALUE], in[GATE],
                                                   in[BETA], documents, state, after},
                             9, NULL, (int[]){Q, KEY, VALUE, GATE, BETA}, 5);
}

static int delta_carry(struct ct_builder *b, const char *name, const struct ct_op *op,
                       struct ct_value **keeps, struct ct_value **gain)
{
    struct ct_op *carry =
        ct_emit_type(b, &ct_op_gated_delta_carry, name,
                     (struct ct_value *[]){op->in[KEY], op->in[VALUE], op->in[GATE], op->in[BETA],
                                           ct_op_input(op, DOCUMENTS)},
                     5, NULL);

    *keeps = carry ? carry->out[0] : NULL;
    *gain = carry ? carry->out[1] : NULL;
    return b->status;
}

static const struct ct_recurrence delta_recurrence = {
    .size = sizeof(struct ct_recurrence),
    .documents = DOCUMENTS,
    .state = BEFORE,
    .carry = delta_carry,
};

const struct ct_op_type ct_op_gated_delta = {
    .size = sizeof(struct ct_op_type),
    .name = "gated_delta",
    .summary = "gated delta rule: a state of each head that is corrected by each token",
    .signature = "q[.TgK] T, k[.TgK] T, v[.ThV] T, gate[.Th] W, beta[.Th] W, ?documents[.T] i, "
                 "?!state[.hKV] W, ?slots[.T] i, ?before[.hKV] W -> o[.ThV] T | h:g",
    .flags = CT_OP_ANY_DTYPE,
    .infer = gated_delta_infer,
    .cache = gated_delta_cache,
    .recurrence = &delta_recurrence,
    .vjp = gated_delta_vjp,
    .flops = gated_delta_flops,
    .reference = gated_delta_reference,
    .samples =
        "@flops=3744: real[2,6,2,3] real[2,6,2,3] real[2,6,2,4] statistic[2,6,2] statistic[2,6,2];"
        " @flops=3200: real[1,8,1,2] real[1,8,1,2] real[1,8,2,6] statistic[1,8,2] statistic[1,8,2] "
        "document[1,8];"
        " @flops=2176: real[2,1,4,1,2] real[2,1,4,1,2] real[2,1,4,2,6] statistic[2,1,4,2] "
        "statistic[2,1,4,2] document[2,1,4] - - given[2,1,2,2,6]",
};

/* The states before each token, [tokens][k v]; s is where the first one is. */
static void keep_states(const struct rule *d, int64_t b, int64_t h, double *s, double *u)
{
    int64_t size = d->k * d->v;

    begin(d, d->state, b, h, s);
    for (int64_t t = 0; t + 1 < d->tokens; t++) {
        memcpy(s + size, s, sizeof(*s) * (size_t)size);
        s += size;
        advance(d, b, t, h, s, u, u + d->v);
    }
}

/* One token of one head, backwards. before: the state before it; s: room for one; ds: the gradient
   of the state after it, then of that before it. */
static void retreat(const struct rule *d, struct ct_reference *r, int64_t b, int64_t t, int64_t h,
                    const double *before, double *s, double *ds, double *room)
{
    int64_t row = value_row(d, b, t, h), of_key = key_row(d, b, t, h), size = d->k * d->v;
    const double *key = d->key + of_key * d->k, *d_o = r->in[0] + row * d->v;
    double *u = room, *wrong = u + d->v, *du = wrong + d->v, *dk = du + d->v;
    double decay = begins(d, b, t) ? 0 : exp(d->gate[row]);

    memcpy(s, before, sizeof(*s) * (size_t)size);
    advance(d, b, t, h, s, u, wrong);
    times_column(s, d_o, d->k, d->v, dk);
    for (int64_t i = 0; i < d->k; i++)
        r->out[0][of_key * d->k + i] += dk[i];
    add_outer(ds, d->q + of_key * d->k, d_o, d->k, d->v);
    row_times(key, ds, d->k, d->v, du);
    times_column(ds, u, d->k, d->v, dk);
    for (int64_t i = 0; i < d->k; i++)
        r->out[1][of_key * d->k + i] += dk[i];
    r->out[4][row] += dot(du, wrong, d->v);
    for (int64_t i = 0; i < d->v; i++)
        r->out[2][row * d->v + i] += du[i] *= d->beta[row];
    times_column(before, du, d->k, d->v, dk);
    for (int64_t i = 0; i < d->k; i++)
        r->out[1][of_key * d->k + i] -= decay > 0 ? decay * dk[i] : 0;
    for (int64_t i = 0; i < d->v; i++)
        du[i] = -du[i];
    add_outer(ds, key, du, d->k, d->v);
    if (decay > 0)
        r->out[3][row] += decay * dot(ds, before, size);
    for (int64_t i = 0; i < size; i++)
        ds[i] = decay > 0 ? decay * ds[i] : 0;
}

static int gated_delta_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct rule d = rule_of(l, &r, 1);
    int64_t size = d.k * d.v;
    double *s = ct_arena_array(&r.arena, double, size *(d.tokens + 2));
    double *room = ct_arena_array(&r.arena, double, 3 * d.v + d.k);

    d.state = input(l, &r, 2 + DOCUMENTS);
    d.after = input(l, &r, 3 + DOCUMENTS);
    d.given = d.state != NULL;
    for (int64_t i = 0; i < d.batch * d.heads; i++) {
        double *ds = s + size * d.tokens;

        keep_states(&d, i / d.heads, i % d.heads, s, room);
        begin(&d, d.after, i / d.heads, i % d.heads, ds);
        for (int64_t t = d.tokens - 1; t >= 0; t--)
            retreat(&d, &r, i / d.heads, t, i % d.heads, s + t * size, ds + size, ds, room);
    }
    return ct_reference_end(&r, 0);
}

static double gated_delta_grad_flops(const struct ct_op *op, const struct ct_tensor *in,
                                     const struct ct_tensor *out)
{
    (void)op;
    (void)out;
    return rule_flops(in, 1, 3);
}

const struct ct_op_type ct_op_gated_delta_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "gated_delta_grad",
    .summary = "gradient of gated_delta",
    .signature =
        "do[.ThV] T, q[.TgK] T, k[.TgK] T, v[.ThV] T, gate[.Th] W, beta[.Th] W, ?documents[.T] i, "
        "?before[.hKV] W, ?dafter[.hKV] W "
        "-> dq[.TgK] T, dk[.TgK] T, dv[.ThV] T, dgate[.Th] W, dbeta[.Th] W | h:g",
    .flags = CT_OP_ANY_DTYPE,
    .flops = gated_delta_grad_flops,
    .reference = gated_delta_grad_reference,
    .samples =
        "@flops=11232: real[2,6,2,4] real[2,6,2,3] real[2,6,2,3] real[2,6,2,4] statistic[2,6,2] "
        "statistic[2,6,2];"
        " @flops=9600: real[1,8,2,6] real[1,8,1,2] real[1,8,1,2] real[1,8,2,6] statistic[1,8,2] "
        "statistic[1,8,2] document[1,8];"
        " @flops=6528: real[2,1,4,2,6] real[2,1,4,1,2] real[2,1,4,1,2] real[2,1,4,2,6] "
        "statistic[2,1,4,2] statistic[2,1,4,2] document[2,1,4] given[2,1,2,2,6] given[2,1,2,2,6]",
};

/* ---- segments ---- */

/* x[k, n], the columns of keeps and gain, behind the whole segment. room[2 n] */
static void carry_head(const struct rule *d, int64_t b, int64_t h, double *x, double *room)
{
    int64_t n = d->k + d->v;

    memset(x, 0, sizeof(*x) * (size_t)(d->k * n));
    for (int64_t i = 0; i < d->k; i++)
        x[i * n + i] = 1;
    for (int64_t t = 0; t < d->tokens; t++) {
        int64_t row = value_row(d, b, t, h);
        const double *key = d->key + key_row(d, b, t, h) * d->k;
        double decay = begins(d, b, t) ? 0 : exp(d->gate[row]);

        for (int64_t i = 0; i < d->k * n; i++)
            x[i] *= decay;
        row_times(key, x, d->k, n, room);
        for (int64_t i = 0; i < n; i++)
            room[n + i] =
                d->beta[row] * ((i < d->k ? 0 : d->value[row * d->v + i - d->k]) - room[i]);
        add_outer(x, key, room + n, d->k, n);
    }
}

static int gated_delta_carry_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct rule d = sizes_of(&l->in[0], &l->in[1]);
    int64_t n = d.k + d.v;
    double *x = ct_arena_array(&r.arena, double, n *(d.k + 2));

    d.key = r.in[0];
    d.value = r.in[1];
    d.gate = r.in[2];
    d.beta = r.in[3];
    d.documents = input(l, &r, 4);
    d.given = true;
    for (int64_t i = 0; i < d.batch * d.heads; i++) {
        carry_head(&d, i / d.heads, i % d.heads, x, x + d.k * n);
        for (int64_t j = 0; j < d.k; j++) {
            memcpy(r.out[0] + (i * d.k + j) * d.k, x + j * n, sizeof(*x) * (size_t)d.k);
            memcpy(r.out[1] + (i * d.k + j) * d.v, x + j * n + d.k, sizeof(*x) * (size_t)d.v);
        }
    }
    return ct_reference_end(&r, 0);
}

static int square_keeps(struct ct_op *op)
{
    struct ct_value *keeps = op->out[0];

    keeps->shape[keeps->ndim - 1] = keeps->shape[keeps->ndim - 2];
    return 0;
}

/* Products of each token with the state, in both directions, and with its chunk's other tokens. */
static double gated_delta_carry_flops(const struct ct_op *op, const struct ct_tensor *in,
                                      const struct ct_tensor *out)
{
    struct rule d = sizes_of(&in[0], &in[1]);
    double rows = (double)(d.batch * d.tokens * d.heads), K = (double)d.k, n = (double)(d.k + d.v);
    double chunk = (double)(d.tokens < CT_DELTA_CHUNK ? d.tokens : CT_DELTA_CHUNK);

    (void)op;
    (void)out;
    return rows * (4 * K * n + chunk * (K + n));
}

const struct ct_op_type ct_op_gated_delta_carry = {
    .size = sizeof(struct ct_op_type),
    .name = "gated_delta_carry",
    .summary = "what segments do to the state of gated_delta: keeps state + gain",
    .signature = "k[.TgK] T, v[.ThV] T, gate[.Th] W, beta[.Th] W, ?documents[.T] i "
                 "-> keeps[.hKJ] W, gain[.hKV] W | h:g",
    .infer = square_keeps,
    .flops = gated_delta_carry_flops,
    .reference = gated_delta_carry_reference,
    .samples = "@flops=1728: real[2,2,3,1,2] real[2,2,3,2,4] statistic[2,2,3,2] statistic[2,2,3,2];"
               " @flops=896: real[2,4,2,2] real[2,4,2,2] statistic[2,4,2] statistic[2,4,2] "
               "document[2,4]",
};

static int gated_delta_dstate_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct rule d = sizes_of(&l->in[1], &l->in[0]);
    double *u = ct_arena_array(&r.arena, double, d.v);

    d.documents = input(l, &r, 5);
    d.given = true;
    for (int64_t i = 0; i < d.batch * d.heads; i++) {
        double *ds = r.out[0] + i * d.k * d.v;

        for (int64_t t = d.tokens - 1; t >= 0; t--) {
            int64_t b = i / d.heads, row = value_row(&d, b, t, i % d.heads);
            int64_t of_key = key_row(&d, b, t, i % d.heads) * d.k;
            double decay = begins(&d, b, t) ? 0 : exp(r.in[3][row]);

            add_outer(ds, r.in[1] + of_key, r.in[0] + row * d.v, d.k, d.v);
            row_times(r.in[2] + of_key, ds, d.k, d.v, u);
            for (int64_t j = 0; j < d.v; j++)
                u[j] *= -r.in[4][row];
            add_outer(ds, r.in[2] + of_key, u, d.k, d.v);
            for (int64_t j = 0; j < d.k * d.v; j++)
                ds[j] *= decay;
        }
    }
    return ct_reference_end(&r, 0);
}

static double gated_delta_dstate_flops(const struct ct_op *op, const struct ct_tensor *in,
                                       const struct ct_tensor *out)
{
    (void)op;
    (void)out;
    return rule_flops((const struct ct_tensor[]){in[1], in[1], in[0]}, 0, 1);
}

const struct ct_op_type ct_op_gated_delta_dstate = {
    .size = sizeof(struct ct_op_type),
    .name = "gated_delta_dstate",
    .summary = "gradient of the state before a segment, from the segment alone",
    .signature = "do[.ThV] T, q[.TgK] T, k[.TgK] T, gate[.Th] W, beta[.Th] W, ?documents[.T] i "
                 "-> dstate[.hKV] W | h:g",
    .flops = gated_delta_dstate_flops,
    .reference = gated_delta_dstate_reference,
    .samples = "@flops=2176: real[2,4,2,6] real[2,4,1,2] real[2,4,1,2] statistic[2,4,2] "
               "statistic[2,4,2] document[2,4];"
               " @flops=2176: real[2,1,4,2,6] real[2,1,4,2,2] real[2,1,4,2,2] statistic[2,1,4,2] "
               "statistic[2,1,4,2]",
};

struct ct_value *ct_gated_delta(struct ct_builder *b, const char *name, struct ct_value *q,
                                struct ct_value *k, struct ct_value *v, struct ct_value *gate,
                                struct ct_value *beta, struct ct_value *documents)
{
    return ct_emit_type1(b, &ct_op_gated_delta, name,
                         (struct ct_value *[]){q, k, v, gate, beta, documents}, 6, NULL);
}
