/*
 * Context parallelism: the sequence is split over `cp`.
 *
 * All ops except attention work on each token separately, so their shardings follow from the split
 * of the inputs. Each attention op receives the positions of its queries and keys, so that it can
 * work on shards. The methods differ in how attention gets keys and values:
 *
 *   allgather   the factor rule needs keys and values whole, so propagation gathers them and
 *               scatters their gradients (Llama 3: Dubey et al. 2024)
 *   ulysses     each rank gets all tokens of some heads, by all-to-all (Jacobs et al. 2023)
 *   ring        keys and values travel round the ranks, block by block (Liu et al. 2023)
 *
 * Ops whose tokens see earlier ones through a state alone (recurrences, causal convolutions) work
 * on the segments of each rank, with states that pass from one to the next (states.c).
 *
 * With causal attention, later tokens cost more. Head-tail balancing splits the sequence into 2 x
 * degree chunks and gives rank r the chunks r and 2 x degree - 1 - r. Where documents share a
 * sequence, each begins at no cost again, so this is done in each of many stretches of the sequence
 * (`pairs`), and a document that is longer than a stretch is shared alike. Sequences are fed in an
 * order that makes the chunks of a rank adjacent. Ops that depend on positions say so in their
 * signatures and take them as an input; ops that would be wrong are rejected.
 */
#include <stdio.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/plugin.h>
#include <ctitan/text.h>

#include "cp.h"

#define PART 64 /* tokens where documents share a sequence: a tile of attention */

struct cp_config cp_config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct cp_config, degree, "degree", "1", 1, 1 << 16,
               "Ranks that share each sequence"),
    CT_OPT_ENUM(struct cp_config, method, "method", "ring", "ring|allgather|ulysses",
                "How attention reaches keys on other ranks"),
    CT_OPT_ENUM(struct cp_config, load_balancer, "load_balancer", "headtail", "headtail|none",
                "headtail: give each rank an early and a late part of the sequence; none: one "
                "shard; no effect with ulysses"),
    CT_OPT_INT(struct cp_config, pairs, "pairs", "0", 0, 1 << 20,
               "With headtail, pairs of an early and a late part that each rank has; 0: one, or, "
               "where documents share a sequence, as many as have parts of 64 tokens"),
    {0}};

int cp_axis(const struct ct_graph *graph)
{
    return ct_mesh_find(&graph->mesh, "cp");
}

/* ---- inputs ---- */

static bool is_headtail(void)
{
    return cp_config.method != CP_ULYSSES && cp_config.load_balancer == CP_HEADTAIL;
}

/* Segments of recurrences wait for each other, so those have as few as possible. */
static bool has_recurrence(struct ct_graph *graph)
{
    ct_for_each_op (op, graph)
        if (ct_op_type_whole(op->type)->recurrence)
            return true;
    return false;
}

static int64_t pairs(struct ct_graph *graph)
{
    int64_t tokens = ct_graph_seq_len(graph), least = 2 * cp_config.degree * PART;

    if (cp_config.pairs)
        return cp_config.pairs;
    if (!ct_graph_find_input(graph, "documents") || has_recurrence(graph) || tokens % least)
        return 1;
    return tokens / least;
}

/* With ulysses every rank has all tokens of its heads: their order balances nothing. */
static int64_t chunks(struct ct_graph *graph)
{
    return is_headtail() ? 2 * cp_config.degree * pairs(graph) : cp_config.degree;
}

static int check_length(int64_t tokens, int64_t count)
{
    char how_many[48] = "", balancer[16];

    if (cp_config.pairs && !is_headtail())
        return ct_fail(CT_ECONFIG, "[cp] pairs = %lld has no effect with %s: unset it",
                       (long long)cp_config.pairs,
                       cp_config.method == CP_ULYSSES ? "method = ulysses"
                                                      : "load_balancer = none");
    if (tokens % count == 0)
        return 0;
    if (cp_config.pairs)
        snprintf(how_many, sizeof(how_many), ", pairs = %lld", (long long)cp_config.pairs);
    ct_option_format(ct_option_find(options, "load_balancer"), &cp_config, balancer,
                     sizeof(balancer));
    return ct_fail(CT_ECONFIG,
                   "[training] seq_len = %lld is not a multiple of %lld, as [cp] degree = %lld "
                   "with load_balancer = %s%s needs",
                   (long long)tokens, (long long)count, (long long)cp_config.degree, balancer,
                   how_many);
}

/* Stretch by stretch, of which rank r has the parts r and 2 x degree - 1 - r. */
static void balance(struct ct_graph *graph, int32_t count)
{
    int32_t stretch = 2 * (int32_t)cp_config.degree, of_rank = count / (int32_t)cp_config.degree;
    int32_t *order;

    if (!is_headtail())
        return;
    order = ct_arena_array(graph->arena, int32_t, count);
    for (int32_t i = 0; i < count; i++) {
        int32_t rank = i / of_rank, part = i % of_rank;

        order[i] = part / 2 * stretch + (part % 2 ? stretch - 1 - rank : rank);
    }
    graph->chunks = count;
    graph->chunk_order = order;
}

static void give_positions(struct ct_graph *graph, struct ct_op *op, struct ct_value *positions)
{
    struct ct_value *documents = ct_op_input(op, 3);

    if (ct_give_positions(graph, op, positions) || op->type != &ct_op_attention)
        return;
    ((struct ct_attention *)op->attrs)->known = 1;
    ct_op_set_inputs(graph, op,
                     (struct ct_value *[]){op->in[0], op->in[1], op->in[2], documents, documents,
                                           positions, positions},
                     3 + CP_OPTIONAL);
}

static int split_inputs(struct ct_graph *graph, struct ct_run *run)
{
    const int64_t shape[] = {ct_graph_batch(graph), ct_graph_seq_len(graph)};
    const struct ct_value *first = ct_graph_sequence_input(graph);
    struct ct_value *positions;
    int64_t count;
    int rc;

    (void)run;
    if (cp_axis(graph) < 0)
        return 0;
    if (!first)
        return ct_fail(CT_ECONFIG,
                       "[cp] degree = %lld: the model has no input that runs along "
                       "sequences",
                       (long long)cp_config.degree);
    count = chunks(graph);
    rc = check_length(shape[1], count);
    if (rc < 0)
        return rc;
    balance(graph, (int32_t)count);
    rc = cp_pass_states(graph, count);
    if (rc == 0 && graph->chunks)
        rc = ct_check_sequences(graph, "[cp] load_balancer = headtail feeds sequences in another "
                                       "order; load_balancer = none keeps the order");
    if (rc < 0)
        return rc;
    rc = ct_graph_input(graph, "positions", shape, &positions);
    if (rc < 0)
        return rc;
    positions->sharding = ct_graph_sequence_sharding(graph);
    for (size_t i = 0; i < graph->value_count; i++) {
        struct ct_value *v = graph->values[i];

        if (ct_input_sequence(v) > 0)
            ct_sharding_split(&v->sharding, ct_input_sequence(v), cp_axis(graph));
    }
    ct_for_each_op (op, graph)
        give_positions(graph, op, positions);
    return 0;
}

static const struct ct_transform inputs = {
    .size = sizeof(struct ct_transform),
    .name = "cp.inputs",
    .summary = "splits sequences over context-parallel ranks, and feeds positions",
    .phase = CT_PHASE_SHARD,
    .gives = CT_NAMES("sequence"),
    .after = CT_NAMES("batch"),
    .evaluation = true,
    .apply = split_inputs,
};

/* ---- attention ---- */

static int change_attention(struct ct_graph *graph, struct ct_run *run)
{
    int rc = 0;

    if (cp_axis(graph) < 0 || cp_config.method == CP_ALL_GATHER)
        return 0;
    ct_for_each_op_safe (op, graph) {
        if (rc < 0 || op->type != &ct_op_attention)
            continue;
        if (cp_config.method == CP_ULYSSES)
            rc = cp_exchange_heads(graph, op, run ? run->head_axes : 0);
        else
            cp_make_ring(graph, op);
    }
    return rc;
}

static const struct ct_transform attention = {
    .size = sizeof(struct ct_transform),
    .name = "cp.attention",
    .summary = "makes attention reach the keys on other ranks",
    .phase = CT_PHASE_SHARD,
    .needs = CT_NAMES("sequence"),
    .after = CT_NAMES("batch", "placed"),
    .evaluation = true,
    .apply = change_attention,
    .required = true,
};

static const struct ct_transform rings = {
    .size = sizeof(struct ct_transform),
    .name = "cp.ring",
    .summary = "expands ring attention into rotations of keys and values, with attention on blocks "
               "in between",
    .phase = CT_PHASE_OVERLAP,
    .evaluation = true,
    .apply = cp_expand_rings,
    .required = true,
};

/* ---- axis ---- */

static int64_t degree(void)
{
    return cp_config.degree;
}

static const struct ct_axis_ops axis = {
    .size = sizeof(struct ct_axis_ops),
    .place = 400,
    .degree = degree,
};

CT_PLUGIN(.name = "cp", .version = "1.0",
          .summary = "Context parallelism: ring, all-gather or Ulysses attention",
          .options = options, .config = &cp_config, .config_size = sizeof(cp_config),
          .offers = CT_OFFERS({CT_AXIS, "cp", &axis}, {CT_TRANSFORM, "cp.inputs", &inputs},
                              {CT_TRANSFORM, "cp.attention", &attention},
                              {CT_TRANSFORM, "cp.ring", &rings},
                              {CT_OP, "attention_merge", &cp_attention_merge},
                              {CT_OP, "ring_attention", &cp_ring_attention},
                              {CT_OP, "ring_attention_grad", &cp_ring_attention_grad}));
