/*
 * The ops that a rank runs for a mixture.
 *
 * Forward: rows of tokens, with their choices, go to the ranks of their experts; experts run on
 * what has come; a token's rows return and are summed. A row travels once to a rank, however many
 * of its experts the token has chosen, and what they give is summed there.
 *
 * Buffers hold what balanced choices need, times [ep] buffer. Rows beyond that go in further
 * rounds, as many as all tokens to one rank would need; rounds without rows send nothing. The rows
 * of the first round are kept for the backward; those of later rounds are sent again.
 *
 * Backward: rows of dy go the same way, and rows of dx return.
 */
#include <string.h>

#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "ep.h"

#define MAX_ROUNDS 64

/* The rows of a value that were sent in a round. */
struct sent {
    const struct ct_value *from;
    const struct ct_section *section;
    int64_t round;
    struct ct_value *rows;
    struct sent *next;
};

/* A value in 8 bits. */
struct quantised {
    const struct ct_value *from;
    const struct ct_section *section;
    struct ct_op *op;
    struct quantised *next;
};

/* The numbers of the rows of some choices. */
struct route {
    const struct ct_value *ids;
    struct ct_value *slot, *rows;
    struct sent *sent;
    struct quantised *quantised;
    struct route *next;
};

struct expansion {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct route *routes;
    bool agreed;
};

/* One op that is being replaced. */
struct mixture {
    struct expansion *x;
    struct ct_builder b;
    struct ct_op *op;
    struct ct_value **in; /* from EP_X on */
    int ins;
    struct ep_route route;
    struct ep_round round; /* of number 0 */
    int64_t rounds;
    struct ct_sharding home, there; /* of rows, at their tokens and at their experts */
    struct ct_sharding tokens;      /* sums: as tokens, pending over axes of the hidden layers */
    struct route *known;
};

/* ---- sizes and shardings ---- */

/* The share of tokens that need a rank, if all choices are equally likely. */
static double share(int64_t experts, int64_t each, int64_t k)
{
    double none = 1;

    for (int64_t i = 0; i < k && i < experts; i++)
        none *= experts - each > i ? (double)(experts - each - i) / (double)(experts - i) : 0;
    return 1 - none;
}

/* Tokens of the rank that has most. */
static int64_t tokens_of(const struct ct_graph *graph, const struct ct_value *x)
{
    int64_t local[CT_MAX_DIMS];

    ct_sharding_local(&x->sharding, &graph->mesh, 0, x->ndim, x->shape, local, NULL);
    return ct_shape_count(x->ndim - 1, local);
}

static int size_rounds(struct mixture *m)
{
    const struct ct_graph *graph = m->x->graph;
    int64_t tokens = tokens_of(graph, m->in[EP_X]), experts = m->in[EP_GATE]->shape[0];
    int64_t k = m->in[EP_IDS]->shape[m->in[EP_IDS]->ndim - 1];
    int64_t most = ct_shard_begin(experts, m->route.ranks, 1); /* of the first rank, as any other */
    double rows = ep_config.buffer * (double)tokens * share(experts, most, k);

    m->round.capacity = rows < (double)tokens ? (int64_t)rows + 1 : tokens;
    m->rounds = (tokens + m->round.capacity - 1) / m->round.capacity;
    return m->rounds <= MAX_ROUNDS
               ? 0
               : ct_fail(CT_ECONFIG,
                         "[ep] buffer = %g: %lld tokens could need %lld rounds of %lld; %d are "
                         "allowed",
                         ep_config.buffer, (long long)tokens, (long long)m->rounds,
                         (long long)m->round.capacity, MAX_ROUNDS);
}

static int place(struct mixture *m)
{
    const struct ct_mesh *mesh = &m->x->graph->mesh;
    const struct ct_value *x = m->in[EP_X];
    int ep = ct_mesh_find(mesh, "ep");
    ct_axes axes = ct_sharding_axes(&x->sharding);

    m->round.axes = (ct_axes)1 << ep;
    m->round.agreed = m->x->agreed;
    m->round.ranks = m->route.ranks = mesh->axis[ep].size;
    m->round.shards = ct_mesh_degree(mesh, axes);
    m->route.groups = m->round.shards / m->route.ranks;
    m->route.experts = m->in[EP_GATE]->shape[0];
    for (int axis = 0; axis < mesh->count; axis++)
        if (axis != ep && axes >> axis & 1)
            ct_sharding_split(&m->there, 0, axis);
    m->home = m->there;
    ct_sharding_split(&m->home, 0, ep);
    ct_sharding_split(&m->there, 1, ep);
    m->tokens = x->sharding;
    for (int i = 0; i < m->in[EP_GATE]->sharding.count[1]; i++)
        m->tokens.unreduced |= (ct_axes)1 << m->in[EP_GATE]->sharding.axis[1][i];
    return size_rounds(m);
}

static int begin(struct expansion *x, struct ct_op *op, struct mixture *m)
{
    int at = ep_first_input(op);

    *m = (struct mixture){.x = x,
                          .b = ct_builder_before(x->graph, op),
                          .op = op,
                          .in = op->in + at,
                          .ins = op->ins - at};
    m->b.why = "ep: tokens go to the ranks of their experts, and their sums return";
    return place(m);
}

static const char *name(const struct mixture *m, const char *what, int64_t round)
{
    return ct_arena_printf(m->x->graph->arena, "%s.%s%lld", m->op->out[0]->name, what,
                           (long long)round);
}

static struct ct_value *placed(struct ct_value *v, const struct ct_sharding *sharding,
                               ct_axes unreduced)
{
    v->sharding = *sharding;
    v->sharding.unreduced = unreduced;
    return v;
}

/* ---- rows on their way ---- */

static struct ep_round numbered(const struct mixture *m, int64_t round)
{
    struct ep_round r = m->round;

    r.round = round;
    return r;
}

/* The largest number of rows between any two ranks is the same for all of them. */
static int find_route(struct mixture *m)
{
    struct ct_graph *graph = m->x->graph;
    struct ct_sharding groups = m->there;
    struct ct_op *op;

    for (m->known = m->x->routes; m->known; m->known = m->known->next)
        if (m->known->ids == m->in[EP_IDS])
            return 0;
    op = ct_emit_type(&m->b, &ep_route, name(m, "slot", 0), &m->in[EP_IDS], 1, &m->route);
    if (!op)
        return m->b.status;
    m->known = ct_arena_new(&m->x->scratch, struct route);
    *m->known = (struct route){.ids = m->in[EP_IDS], .slot = op->out[0], .next = m->x->routes};
    m->x->routes = m->known;
    placed(op->out[0], &m->in[EP_IDS]->sharding, 0);
    op->out[0]->sharding.count[op->out[0]->ndim - 1] = 0;
    groups.count[1] = 0;
    placed(op->out[1], &groups, m->round.axes)->sharding.reduction = CT_REDUCE_MAX;
    m->known->rows = op->out[1];
    if (m->x->agreed) {
        op = ct_all_reduce(&m->b, ct_arena_printf(graph->arena, "%s.agreed", op->out[1]->name),
                           &op->out[1], 1, m->round.axes, CT_REDUCE_MAX);
        m->known->rows = op ? placed(op->out[0], &groups, 0) : NULL;
    }
    return m->b.status;
}

/* Send rows of a round home or there. */
static struct ct_value *exchange(struct mixture *m, const char *what, struct ct_value *rows,
                                 int64_t round, const struct ct_sharding *to)
{
    struct ep_round attrs = numbered(m, round);
    struct ct_value *v = rows
                             ? ct_emit_type1(&m->b, &ep_exchange, name(m, what, round),
                                             (struct ct_value *[]){m->known->rows, rows}, 2, &attrs)
                             : NULL;

    return v ? placed(v, to, rows->sharding.unreduced) : NULL;
}

static struct sent *find_sent(const struct mixture *m, const struct ct_value *from, int64_t round)
{
    struct sent *s = m->known->sent;

    while (s &&
           (s->from != from || s->round != round || (round > 0 && s->section != m->op->section)))
        s = s->next;
    return s;
}

/* The rows of a round at their experts, as they are. */
static struct ct_value *move(struct mixture *m, const char *what, struct ct_value *value,
                             int64_t round)
{
    struct ep_round attrs = numbered(m, round);
    struct ct_value *rows =
        ct_emit_type1(&m->b, &ep_pack, name(m, what, round),
                      (struct ct_value *[]){m->known->rows, m->known->slot, value}, 3, &attrs);

    return rows ? exchange(m, what, placed(rows, &m->home, 0), round, &m->there) : NULL;
}

/* One op for all rounds of a section; another section quantises again, as it sends again. */
static struct ct_op *quantise_once(struct mixture *m, struct ct_value *value)
{
    struct quantised *n = m->known->quantised;

    while (n && (n->from != value || n->section != m->op->section))
        n = n->next;
    if (n)
        return n->op;
    n = ct_arena_new(&m->x->scratch, struct quantised);
    *n = (struct quantised){
        .from = value,
        .section = m->op->section,
        .op = ct_emit_type(&m->b, &ep_quantise, name(m, "quantise", 0), &value, 1, NULL),
        .next = m->known->quantised};
    for (int i = 0; n->op && i < 2; i++)
        placed(n->op->out[i], &value->sharding, 0);
    m->known->quantised = n;
    return n->op;
}

/* The same in 8 bits. */
static struct ct_value *move_quantised(struct mixture *m, const char *what, struct ct_value *value,
                                       int64_t round)
{
    struct ct_op *op = quantise_once(m, value);
    struct ct_value *part[2], *rows;

    for (int i = 0; i < 2; i++)
        part[i] = op ? move(m, what, op->out[i], round) : NULL;
    if (!part[0] || !part[1])
        return NULL;
    rows = ct_emit_type1(&m->b, &ep_dequantise, name(m, what, round), part, 2,
                         &(struct ep_dequantise){value->dtype});
    return rows ? placed(rows, &m->there, 0) : NULL;
}

/* The rows of a round at their experts. */
static struct ct_value *send(struct mixture *m, const char *what, struct ct_value *value,
                             int64_t round)
{
    struct sent *s = find_sent(m, value, round);
    bool quantises = ep_config.dispatch == EP_FLOAT8 && (!strcmp(what, "x") || !strcmp(what, "dy"));

    if (s)
        return s->rows;
    s = ct_arena_new(&m->x->scratch, struct sent);
    *s = (struct sent){value, m->op->section, round, NULL, m->known->sent};
    s->rows = quantises ? move_quantised(m, what, value, round) : move(m, what, value, round);
    m->known->sent = s;
    return s->rows;
}

/* ---- sums ---- */

static void widen(struct ct_value *v)
{
    if (ct_dtype_size(v->dtype) >= ct_dtype_size(CT_F32))
        return;
    v->dtype = CT_F32;
    v->dtype_fixed = true;
}

/* Sums over earlier rounds are at least float32; the last round gives the dtype of old. */
static struct ct_value *sum(struct mixture *m, struct ct_value *rows, struct ct_value *previous,
                            int64_t round, const struct ct_value *old)
{
    struct ep_round attrs = numbered(m, round);
    struct ct_value *v = ct_emit_type1(
        &m->b, &ep_sum,
        ct_arena_printf(m->x->graph->arena, "%s.sum%lld", old->name, (long long)round),
        (struct ct_value *[]){m->known->rows, m->known->slot, rows, previous}, 4, &attrs);

    if (!v)
        return NULL;
    if (round + 1 < m->rounds) {
        widen(v);
    } else if (v->dtype != old->dtype) {
        v->dtype = old->dtype;
        v->dtype_fixed = true;
    }
    return placed(v, &m->tokens, m->tokens.unreduced);
}

static void deliver(struct mixture *m, struct ct_value *value, struct ct_value *old)
{
    const char *text = old->name;

    ct_value_replace(m->x->graph, old, value);
    ct_value_rename(m->x->graph, old, ct_arena_printf(m->x->graph->arena, "%s.ep", text));
    ct_value_rename(m->x->graph, value, text);
}

/* `type` on the rows of a round, dy first for gradients. Its outputs have the dtypes of the op. */
static struct ct_op *run_experts(struct mixture *m, const struct ct_op_type *type, int64_t round)
{
    static const char *const names[] = {"x", "weights", "ids"};
    int at = ep_first_input(m->op);
    struct ct_value *in[1 + EP_INPUTS];
    struct ct_op *op;

    if (at)
        in[0] = send(m, "dy", m->op->in[0], round);
    for (int i = 0; i < EP_GATE; i++)
        in[at + i] = send(m, names[i], m->in[i], round);
    memcpy(in + at + EP_GATE, m->in + EP_GATE, (size_t)(m->ins - EP_GATE) * sizeof(*in));
    op = m->b.status < 0
             ? NULL
             : ct_emit_type(&m->b, type, name(m, "rows", round), in, at + m->ins, m->op->attrs);
    for (int i = 0; op && i < op->outs; i++) {
        const struct ct_value *old = m->op->out[i];

        op->out[i]->dtype = old->dtype;
        op->out[i]->dtype_fixed = old->dtype_fixed;
        if (type == &ct_op_experts_dw)
            op->out[i]->sharding = old->sharding;
        else
            placed(op->out[i], &m->there, m->tokens.unreduced);
    }
    return op;
}

/* ---- expansions ---- */

/* y of experts, or dx and dweights of experts_dx. */
static int expand_tokens(struct mixture *m, const struct ct_op_type *type)
{
    struct ct_value *result[2] = {NULL};
    int outs = m->op->outs;

    for (int64_t round = 0; round < m->rounds && m->b.status == 0; round++) {
        struct ct_op *op = run_experts(m, type, round);

        for (int i = 0; op && i < outs; i++)
            result[i] = sum(m, exchange(m, "back", op->out[i], round, &m->home), result[i], round,
                            m->op->out[i]);
    }
    for (int i = 0; m->b.status == 0 && i < outs; i++)
        deliver(m, result[i], m->op->out[i]);
    return m->b.status;
}

static int expand_weights(struct mixture *m)
{
    struct ct_value *result[EP_INPUTS - EP_GATE] = {NULL};
    int outs = m->op->outs;

    for (int64_t round = 0; round < m->rounds && m->b.status == 0; round++) {
        struct ct_op *op = run_experts(m, &ct_op_experts_dw, round);

        for (int i = 0; op && i < outs; i++) {
            struct ct_value *more =
                round ? ct_add(&m->b, name(m, "sum", round), result[i], op->out[i]) : op->out[i];

            result[i] =
                more ? placed(more, &m->op->out[i]->sharding, m->op->out[i]->sharding.unreduced)
                     : NULL;
        }
    }
    for (int i = 0; m->b.status == 0 && i < outs; i++)
        deliver(m, result[i], m->op->out[i]);
    return m->b.status;
}

static int expand(struct expansion *x, struct ct_op *op)
{
    struct mixture m;
    int rc = begin(x, op, &m);

    if (rc == 0)
        rc = find_route(&m);
    if (rc < 0)
        return rc;
    if (op->type == &ep_experts_dw)
        rc = expand_weights(&m);
    else
        rc = expand_tokens(&m, op->type == &ep_experts ? &ct_op_experts : &ct_op_experts_dx);
    if (rc == 0)
        ct_graph_remove(x->graph, op);
    return rc;
}

int ep_expand(struct ct_graph *graph, struct ct_run *run)
{
    struct expansion x = {.graph = graph, .agreed = !run->device || run->device->host_memory};
    int rc = 0;

    ct_for_each_op_safe (op, graph) {
        if (op->type == &ep_experts || op->type == &ep_experts_dx || op->type == &ep_experts_dw)
            rc = expand(&x, op);
        if (rc < 0)
            break;
    }
    ct_arena_finish(&x.scratch);
    return rc;
}
