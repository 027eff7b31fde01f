/*
 * The gated delta rule (Yang et al. 2024): each head has a state S[K, V], which forgets, is
 * corrected by what it predicts wrongly for a token's key, and is read by its query:
 *
 *     S <- exp(gate) S;  u = beta (v - k S);  S <- S + k^T u;  o = q S
 *
 * The state is zero before the first token of a document. Several heads of values share a head of
 * queries and keys, as in grouped attention. Sequences may be fed in another order; they are whole
 * on every rank. With slots (struct ct_cache), `state` has S before and behind a row of tokens.
 */
#include <math.h>
#include <string.h>

#include "list.h"

enum { DOCUMENTS = 5, STATE, SLOTS };

/* Sizes and operands; q is input `at`. */
struct rule {
    int64_t batch, tokens, groups, heads, k, v;
    const double *q, *key, *value, *gate, *beta, *documents;
    int64_t *at; /* by position: index of the token */
    const struct ct_tensor *slots;
};

static struct rule rule_of(const struct ct_launch *l, struct ct_reference *r, int at)
{
    const struct ct_tensor *q = &l->in[at], *v = &l->in[at + 2];
    struct rule d = {.batch = q->shape[0],
                     .tokens = q->shape[1],
                     .groups = q->shape[2],
                     .heads = v->shape[2],
                     .k = q->shape[3],
                     .v = v->shape[3],
                     .q = r->in[at],
                     .key = r->in[at + 1],
                     .value = r->in[at + 2],
                     .gate = r->in[at + 3],
                     .beta = r->in[at + 4],
                     .documents = at + DOCUMENTS < l->ins ? r->in[at + DOCUMENTS] : NULL,
                     .slots = at == 0 && SLOTS < l->ins ? &l->in[SLOTS] : NULL};

    d.at = ct_arena_array(&r->arena, int64_t, d.tokens);
    ct_launch_order(l, l->op->in[at], 1, d.at);
    return d;
}

/* Rows of a token: number of its keys and queries, and of its values. */
static int64_t key_row(const struct rule *d, int64_t b, int64_t t, int64_t h)
{
    return (b * d->tokens + d->at[t]) * d->groups + h / (d->heads / d->groups);
}

static int64_t value_row(const struct rule *d, int64_t b, int64_t t, int64_t h)
{
    return (b * d->tokens + d->at[t]) * d->heads + h;
}

static bool begins(const struct rule *d, int64_t b, int64_t t)
{
    const double *documents = d->documents ? d->documents + b * d->tokens : NULL;

    if (t == 0)
        return ct_slots_begin(d->slots, b);
    return documents && documents[d->at[t]] != documents[d->at[t - 1]];
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
    double *s = ct_arena_array(&r.arena, double, d.k *d.v);
    double *u = ct_arena_array(&r.arena, double, 2 * d.v);

    for (int64_t i = 0; i < d.batch * d.heads; i++) {
        int64_t b = i / d.heads, h = i % d.heads, size = d.k * d.v;

        memset(s, 0, sizeof(*s) * (size_t)size);
        if (d.slots)
            memcpy(s, r.in[STATE] + i * size, sizeof(*s) * (size_t)size);
        for (int64_t t = 0; t < ct_slots_used(d.slots, b, d.tokens); t++) {
            advance(&d, b, t, h, s, u, u + d.v);
            row_times(d.q + key_row(&d, b, t, h) * d.k, s, d.k, d.v,
                      r.out[0] + value_row(&d, b, t, h) * d.v);
        }
        for (int64_t j = 0; d.slots && j < size; j++)
            ct_tensor_store(&l->in[STATE], i * size + j, s[j]);
    }
    return ct_reference_end(&r, 0);
}

/* Products of a chunk of C tokens, for each token and head: with the state 3 K V in each of its two
   directions, with the chunk's other tokens K and V each, half of which are seen. */
static double rule_flops(const struct ct_tensor *in, int at, double times)
{
    const struct ct_tensor *k = &in[at + 1], *v = &in[at + 2];
    double rows = (double)(v->shape[0] * v->shape[1] * v->shape[2]);
    double K = (double)k->shape[3], V = (double)v->shape[3];
    double chunk = (double)(v->shape[1] < CT_DELTA_CHUNK ? v->shape[1] : CT_DELTA_CHUNK);

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
    struct ct_value **in = v->op->in;

    if (ct_check_whole(v->op, STATE) < 0)
        return CT_EINVAL;

    return ct_emit_gradients(v, &ct_op_gated_delta_grad,
                             (struct ct_value *[]){v->dout[0], in[0], in[1], in[2], in[3], in[4],
                                                   ct_op_input(v->op, DOCUMENTS)},
                             7, NULL, (int[]){0, 1, 2, 3, 4}, 5);
}

const struct ct_op_type ct_op_gated_delta = {
    .size = sizeof(struct ct_op_type),
    .name = "gated_delta",
    .summary = "gated delta rule: a state of each head that is corrected by each token",
    .signature = "q[bTgK] T, k[bTgK] T, v[bThV] T, gate[bTh] W, beta[bTh] W, ?documents[bT] i, "
                 "?!state[bhKV] W, ?slots[bT] i -> o[bThV] T | h:g, @T",
    .flags = CT_OP_ANY_DTYPE,
    .infer = gated_delta_infer,
    .cache = gated_delta_cache,
    .vjp = gated_delta_vjp,
    .flops = gated_delta_flops,
    .reference = gated_delta_reference,
    .samples =
        "@flops=3744: real[2,6,2,3] real[2,6,2,3] real[2,6,2,4] statistic[2,6,2] statistic[2,6,2];"
        " @flops=3200: real[1,8,1,2] real[1,8,1,2] real[1,8,2,6] statistic[1,8,2] statistic[1,8,2] "
        "document[1,8]",
};

/* The states before each token, [tokens][k v]; s is where the first one is. */
static void keep_states(const struct rule *d, int64_t b, int64_t h, double *s, double *u)
{
    int64_t size = d->k * d->v;

    memset(s, 0, sizeof(*s) * (size_t)size);
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

    for (int64_t i = 0; i < d.batch * d.heads; i++) {
        double *ds = s + size * d.tokens;

        keep_states(&d, i / d.heads, i % d.heads, s, room);
        memset(ds, 0, sizeof(*ds) * (size_t)size);
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
        "do[bThV] T, q[bTgK] T, k[bTgK] T, v[bThV] T, gate[bTh] W, beta[bTh] W, ?documents[bT] i "
        "-> dq[bTgK] T, dk[bTgK] T, dv[bThV] T, dgate[bTh] W, dbeta[bTh] W | h:g, @T",
    .flags = CT_OP_ANY_DTYPE,
    .flops = gated_delta_grad_flops,
    .reference = gated_delta_grad_reference,
    .samples =
        "@flops=11232: real[2,6,2,4] real[2,6,2,3] real[2,6,2,3] real[2,6,2,4] statistic[2,6,2] "
        "statistic[2,6,2];"
        " @flops=9600: real[1,8,2,6] real[1,8,1,2] real[1,8,1,2] real[1,8,2,6] statistic[1,8,2] "
        "statistic[1,8,2] document[1,8]",
};

struct ct_value *ct_gated_delta(struct ct_builder *b, const char *name, struct ct_value *q,
                                struct ct_value *k, struct ct_value *v, struct ct_value *gate,
                                struct ct_value *beta, struct ct_value *documents)
{
    return ct_emit_type1(b, &ct_op_gated_delta, name,
                         (struct ct_value *[]){q, k, v, gate, beta, documents}, 6, NULL);
}
