/*
 * Ulysses (Jacobs et al. 2023): ranks exchange tokens for heads before attention and back after it,
 * by all-to-all. In between, each rank has all tokens of its heads and runs ordinary attention.
 */
#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "cp.h"

/* Shardings of q, k, v and o outside attention and during attention. */
struct places {
    struct ct_sharding by_token, by_head;
};

static struct places places_of(const struct ct_graph *graph, ct_axes split)
{
    struct ct_sharding tokens = ct_graph_sequence_sharding(graph), heads = tokens;

    heads.count[1] = 0;
    for (int axis = 0; axis < graph->mesh.count; axis++)
        if (split >> axis & 1) {
            ct_sharding_split(&tokens, 2, axis);
            ct_sharding_split(&heads, 2, axis);
        }
    ct_sharding_split(&heads, 2, cp_axis(graph));
    return (struct places){tokens, heads};
}

/* Where key/value heads are fewer than ranks, ranks get copies of them. */
static int share_heads(struct ct_graph *graph, struct ct_op *op, ct_axes split)
{
    int64_t ranks = ct_mesh_degree(&graph->mesh, split), heads = op->in[0]->shape[2];

    if (heads % (cp_config.degree * ranks) == 0)
        return ct_share_heads(graph, op, cp_config.degree * ranks, split,
                              "cp: ranks outnumber key/value heads, and get copies of them");
    return ct_fail(CT_ECONFIG,
                   "[cp] method = ulysses: %lld heads cannot be divided among %lld ranks of cp x "
                   "%lld of other axes; use ring or allgather",
                   (long long)heads, (long long)cp_config.degree, (long long)ranks);
}

static struct ct_value *move(struct ct_builder *b, struct ct_value *x, const char *suffix,
                             const struct ct_sharding *to, const struct ct_sharding *gradient)
{
    return ct_redistribute(b, ct_arena_printf(b->graph->arena, "%s.%s", x->name, suffix), x, to,
                           gradient);
}

int cp_exchange_heads(struct ct_graph *graph, struct ct_op *op, ct_axes split)
{
    struct places at = places_of(graph, split);
    struct ct_builder before, after;
    struct ct_value *result, *o;
    int rc = share_heads(graph, op, split);

    if (rc == 0)
        rc = ct_attention_result(op, &result);
    if (rc < 0)
        return rc;
    before = ct_builder_before(graph, op);
    after = ct_builder_after(graph, result->producer);
    before.why = "cp: tokens are traded for heads";
    after.why = "cp: heads are traded for tokens";
    for (int i = 0; i < 3; i++)
        ct_op_set_input(op, i, move(&before, op->in[i], "heads", &at.by_head, &at.by_token));
    o = move(&after, result, "tokens", &at.by_token, &at.by_head);
    if (before.status < 0 || !o)
        return before.status < 0 ? before.status : after.status;
    ct_value_replace(graph, result, o);
    return 0;
}
