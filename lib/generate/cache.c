/*
 * Caches of keys and values. A cache has a slot for each position of the context. In
 *
 *     o, lse = attention(q, k, v)
 *
 * k and v are those of the tokens that are fed. They are written into the slots of their positions,
 * and the queries, which are given their positions, see the slots up to these. Slots after the last
 * token may hold anything, because no query sees them before they are written. Tokens of a sequence
 * have different positions, or equal vectors: which of those with one position is kept is not said.
 * Documents that the graph computes, as chunks of a sequence, have caches, too; a sequence is one
 * document as it is fed.
 */
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/app/generate.h>
#include <ctitan/lib/ops.h>
#include <ctitan/op_author.h>
#include <ctitan/rule.h>

#include "cache.h"

bool ct_cache_wanted;

/* ---- the op ---- */

static int write_reference(const struct ct_launch *l)
{
    const struct ct_tensor *cache = &l->in[0], *x = &l->in[1], *positions = &l->in[2];
    size_t item = ct_dtype_size(x->dtype), bytes = (size_t)x->shape[3] * item;

    for (int64_t b = 0; b < x->shape[0]; b++)
        for (int64_t t = 0; t < x->shape[1]; t++) {
            double position = ct_tensor_load(positions, b * x->shape[1] + t);

            if (position < 0 || position >= (double)cache->shape[1])
                return ct_fail(CT_EINVAL, "position %.0f in a cache of %lld", position,
                               (long long)cache->shape[1]);
            for (int64_t g = 0; g < x->shape[2]; g++)
                memcpy((char *)cache->data +
                           (size_t)(b * cache->stride[0] + (int64_t)position * cache->stride[1] +
                                    g * cache->stride[2]) *
                               item,
                       (const char *)x->data +
                           (size_t)(b * x->stride[0] + t * x->stride[1] + g * x->stride[2]) * item,
                       bytes);
        }
    return 0;
}

const struct ct_op_type ct_op_cache_write = {
    .size = sizeof(struct ct_op_type),
    .name = "cache_write",
    .summary = "writes the vectors of tokens into the slots of their positions",
    .signature = "!cache[bSgd] A, x[btgd] A, positions[bt] i",
    .flags = CT_OP_MOVES,
    .reference = write_reference,
    .samples = "real[2,8,2,4] real[2,6,2,4] position[2,6]",
};

/* ---- the transform ---- */

/* The state "cache.layers.3.k_rope", with what `x` holds now in it. */
static struct ct_value *cached(struct ct_builder *b, struct ct_value *x, struct ct_value *positions)
{
    struct ct_graph *graph = b->graph;
    struct ct_builder init = ct_init_builder(graph);
    int64_t shape[4] = {x->shape[0], ct_config.training.seq_len, x->shape[2], x->shape[3]};
    const char *name = ct_arena_printf(graph->arena, "cache.%s", x->name);
    struct ct_value *cache = ct_graph_find(graph, name);

    if (cache)
        return cache;
    cache = ct_graph_source(graph, CT_ROLE_STATE, name, x->dtype, 4, shape);
    init.why = "cache of keys and values";
    if (ct_dtype_is_float(x->dtype))
        ct_init_constant(&init, cache, 0);
    ct_emit_type(b, &ct_op_cache_write, NULL, (struct ct_value *[]){cache, x, positions}, 3, NULL);
    if (b->status == 0)
        b->status = init.status;
    return cache;
}

/* The documents of all slots. */
static struct ct_value *cached_documents(struct ct_builder *b, struct ct_value *documents,
                                         struct ct_value *positions)
{
    int64_t shape[4] = {documents->shape[0], documents->shape[1], 1, 1};
    const char *name = ct_arena_printf(b->graph->arena, "%s.slots", documents->name);
    struct ct_value *x = ct_graph_find(b->graph, name), *cache;

    if (!x)
        x = ct_view(b, name, documents, 4, shape);
    cache = x ? cached(b, x, positions) : NULL;
    return cache ? ct_view(b, NULL, cache, 2, cache->shape) : NULL;
}

static int change_attention(struct ct_graph *graph, struct ct_op *op, struct ct_value *positions)
{
    struct ct_builder b = ct_builder_before(graph, op);
    struct ct_value *documents = ct_op_input(op, 3), *k_documents = NULL, *k, *v;

    if (!((const struct ct_attention *)op->attrs)->causal)
        return ct_fail(CT_ECONFIG, "%s sees later tokens, which rules out a cache: use --no-cache",
                       op->out[0]->name);
    b.why = "cache of keys and values";
    k = cached(&b, op->in[1], positions);
    v = cached(&b, op->in[2], positions);
    if (documents && documents->producer)
        k_documents = cached_documents(&b, documents, positions);
    else
        documents = NULL;
    ct_op_set_inputs(graph, op,
                     (struct ct_value *[]){op->in[0], k, v, documents, k_documents, positions}, 6);
    return b.status;
}

/* Give an op the positions of its tokens, if it depends on them. */
static int change_op(struct ct_graph *graph, struct ct_op *op, struct ct_value *positions)
{
    struct ct_arena arena = {0};
    struct ct_rule rule;
    bool depends = false;
    int rc;

    if (op->type == &ct_op_attention)
        return change_attention(graph, op, positions);
    if (ct_give_positions(graph, op, positions))
        return 0;
    rc = ct_rule_apply(op, &arena, &rule);
    for (int f = 0; rc == 0 && f < rule.count; f++)
        depends |= rule.factor[f].position;
    ct_arena_finish(&arena);
    return rc < 0 || !depends
               ? rc
               : ct_fail(CT_ECONFIG,
                         "%s depends on positions, which rules out a cache: use --no-cache",
                         op->type->name);
}

static int add_caches(struct ct_graph *graph, struct ct_run *run)
{
    const struct ct_value *tokens = ct_graph_find_input(graph, "tokens");
    struct ct_value *positions;
    int rc = 0;

    (void)run;
    if (!ct_cache_wanted)
        return 0;
    rc = ct_check_sequences(graph, "with a cache they are computed in parts; use --no-cache");
    if (rc == 0)
        rc = ct_graph_input(graph, "positions", tokens->shape, &positions);
    ct_for_each_op_safe (op, graph)
        if (rc == 0 && op->section->part == CT_PART_F)
            rc = change_op(graph, op, positions);
    return rc;
}

const struct ct_transform ct_cache = {
    .size = sizeof(struct ct_transform),
    .name = "cache",
    .summary = "keys and values of past tokens are kept in a cache",
    .phase = CT_PHASE_JOIN,
    .evaluation = true,
    .apply = add_caches,
};
