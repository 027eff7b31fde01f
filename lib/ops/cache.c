/*
 * Caches: what ops along sequences keep of earlier tokens while sequences are generated in parts.
 *
 * That of attention has a slot for each position of the context. In
 *
 *     o, lse = attention(q, k, v)
 *
 * k and v are those of the tokens that are fed. They are written into the slots of their positions,
 * and the queries, which are given their positions, see the slots up to these. Slots after the last
 * token may hold anything, because no query sees them before they are written. Documents that the
 * graph computes, as chunks of a sequence, have slots, too; a sequence is one document as it is
 * fed. A recurrence (causal_conv, gated_delta, state_scan) keeps its state.
 */
#include <string.h>

#include "list.h"

/* ---- slots of tokens ---- */

/* Copy the vectors of token t of sequence b into a slot. */
static void write_slot(const struct ct_tensor *cache, int64_t slot, const struct ct_tensor *x,
                       int64_t b, int64_t t)
{
    size_t item = ct_dtype_size(x->dtype);
    char *to =
        (char *)cache->data + (size_t)(b * cache->stride[0] + slot * cache->stride[1]) * item;
    const char *from = (const char *)x->data + (size_t)(b * x->stride[0] + t * x->stride[1]) * item;

    for (int64_t i = 0; i < x->shape[2] * x->shape[3]; i++) {
        int64_t g = i / x->shape[3], d = i % x->shape[3];

        memcpy(to + (size_t)(g * cache->stride[2] + d * cache->stride[3]) * item,
               from + (size_t)(g * x->stride[2] + d * x->stride[3]) * item, item);
    }
}

static int write_reference(const struct ct_launch *l)
{
    const struct ct_tensor *cache = &l->in[0], *x = &l->in[1], *slots = &l->in[2];

    for (int64_t i = 0; i < x->shape[0] * x->shape[1]; i++) {
        int64_t slot = (int64_t)ct_tensor_load(slots, i);

        if (slot >= cache->shape[1])
            return ct_fail(CT_EINVAL, "slot %lld of a cache of %lld", (long long)slot,
                           (long long)cache->shape[1]);
        if (slot >= 0)
            write_slot(cache, slot, x, i / x->shape[1], i % x->shape[1]);
    }
    return 0;
}

const struct ct_op_type ct_op_cache_write = {
    .size = sizeof(struct ct_op_type),
    .name = "cache_write",
    .summary = "writes the vectors of tokens into their slots",
    .signature = "!cache[bSgd] A, x[bTgd] A, slots[bT] i",
    .flags = CT_OP_MOVES,
    .reference = write_reference,
    .samples = "real[2,8,2,4] real[2,6,2,4] position[2,6]",
};

int64_t ct_slots_used(const struct ct_tensor *slots, int64_t b, int64_t tokens)
{
    int64_t used = 0;

    if (!slots || !slots->data)
        return tokens;
    while (used < tokens && ct_tensor_load(slots, b * tokens + used) >= 0)
        used++;
    return used;
}

bool ct_slots_begin(const struct ct_tensor *slots, int64_t b)
{
    return !slots || !slots->data || ct_tensor_load(slots, b * slots->shape[1]) == 0;
}

/* ---- states ---- */

struct ct_value *ct_cache_state(struct ct_cache *c, const char *name, enum ct_dtype dtype, int ndim,
                                const int64_t *shape)
{
    struct ct_graph *graph = c->b->graph;
    struct ct_builder init = ct_init_builder(graph);
    struct ct_value *state;

    if (c->b->status < 0)
        return NULL;
    name = ct_arena_printf(graph->arena, "cache.%s", name);
    state = ct_graph_find(graph, name);
    if (state)
        return state;
    state = ct_graph_source(graph, CT_ROLE_STATE, name, dtype, ndim, shape);
    state->marks |= ct_mark(CT_MARK_UNPLACED);
    init.why = "cache of earlier tokens";
    if (ct_dtype_is_float(dtype))
        ct_init_constant(&init, state, 0);
    c->b->status = init.status;
    return state;
}

struct ct_value *ct_cache_tokens(struct ct_cache *c, const char *name, struct ct_value *x)
{
    const char *full = ct_arena_printf(c->b->graph->arena, "cache.%s", name);
    bool written = ct_graph_find(c->b->graph, full);
    struct ct_value *state;

    if (c->b->status < 0)
        return NULL;
    state = ct_cache_state(c, name, x->dtype, 4,
                           (int64_t[]){x->shape[0], c->context, x->shape[2], x->shape[3]});
    if (!written)
        ct_emit_type(c->b, &ct_op_cache_write, NULL, (struct ct_value *[]){state, x, c->slots}, 3,
                     NULL);
    return state;
}

/* ---- ops ---- */

int ct_cache_positions(struct ct_cache *c)
{
    ct_give_positions(c->b->graph, c->op, c->positions);
    return 0;
}

/* The documents of all slots. */
static struct ct_value *cached_documents(struct ct_cache *c, struct ct_value *documents)
{
    const char *name = ct_arena_printf(c->b->graph->arena, "%s.slots", documents->name);
    struct ct_value *x = ct_graph_find(c->b->graph, name), *cache;

    if (!x)
        x = ct_view(c->b, name, documents, 4,
                    (int64_t[]){documents->shape[0], documents->shape[1], 1, 1});
    cache = x ? ct_cache_tokens(c, name, x) : NULL;
    return cache ? ct_view(c->b, NULL, cache, 2, cache->shape) : NULL;
}

int ct_cache_attention(struct ct_cache *c)
{
    struct ct_op *op = c->op;
    struct ct_value *documents = ct_op_input(op, 3), *k_documents = NULL, *k, *v;

    if (!((const struct ct_attention *)op->attrs)->causal)
        return ct_fail(CT_ECONFIG, "%s sees later tokens, which rules out a cache: use --no-cache",
                       op->out[0]->name);
    k = ct_cache_tokens(c, op->in[1]->name, op->in[1]);
    v = ct_cache_tokens(c, op->in[2]->name, op->in[2]);
    if (documents && documents->producer)
        k_documents = cached_documents(c, documents);
    else
        documents = NULL;
    if (c->b->status == 0)
        ct_op_set_inputs(
            c->b->graph, op,
            (struct ct_value *[]){op->in[0], k, v, documents, k_documents, c->positions}, 6);
    return c->b->status;
}

int ct_cache_recurrence(struct ct_cache *c, int at, enum ct_dtype dtype, int ndim,
                        const int64_t *shape)
{
    struct ct_op *op = c->op;
    struct ct_value *in[CT_CACHE_INPUTS] = {NULL};

    if (ct_op_input(op, at - 1))
        return ct_fail(CT_ECONFIG, "%s has documents, which rules out a cache: use --no-cache",
                       op->out[0]->name);
    for (int i = 0; i < at - 1; i++)
        in[i] = ct_op_input(op, i);
    in[at] = ct_cache_state(c, op->out[0]->name, dtype, ndim, shape);
    in[at + 1] = c->slots;
    if (c->b->status == 0)
        ct_op_set_inputs(c->b->graph, op, in, at + 2);
    return c->b->status;
}

int ct_check_part(const struct ct_op *op, int at)
{
    if (!ct_op_input(op, at) == !ct_op_input(op, at + 1))
        return 0;
    return ct_fail(CT_EINVAL, "a state needs slots, and slots a state");
}

int ct_check_whole(const struct ct_op *op, int at)
{
    return ct_op_input(op, at) ? ct_fail(CT_EINVAL, "a part of a sequence has no gradient") : 0;
}
