/*
 * Tensor parallelism (Shoeybi et al. 2019; sequence parallelism: Korthikanti et al. 2022).
 *
 * The model's plan gives the split of each weight; everything else follows from the factor rules.
 * Heads and hidden features are split, products over split features are pending sums, and those are
 * all-reduced where they are needed whole. Sequence parallelism is one more annotation: the
 * embedding's output is split along the sequence. The residual stream inherits that split, pending
 * sums are reduce-scattered into it, and inputs of linear layers are gathered from it.
 */
#include <fnmatch.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/plugin.h>

#include "tp.h"

struct tp_config tp_config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct tp_config, degree, "degree", "1", 1, 1 << 16,
               "Ranks that share each layer's weights"),
    CT_OPT_BOOL(struct tp_config, sequence_parallel, "sequence_parallel", "true",
                "Split the residual stream along the sequence between the layers' products"),
    CT_OPT_BOOL(struct tp_config, regather, "regather", "true",
                "With sequence_parallel: keep only shards of the linear layers' inputs for the "
                "backward, and gather them again"),
    CT_OPT_BOOL(
        struct tp_config, loss_parallel, "loss_parallel", "true",
        "Compute the cross entropy on logits that are split by vocabulary, instead of gathering "
        "them; other losses gather them"),
    {0}};

int tp_axis(const struct ct_graph *graph)
{
    return ct_mesh_find(&graph->mesh, "tp");
}

/* ---- weights ---- */

static const struct ct_shard_rule *find_rule(const struct ct_shard_rule *plan, const char *name)
{
    for (; plan->pattern; plan++)
        if (!fnmatch(plan->pattern, name, 0))
            return plan;
    return NULL;
}

static int place_parameter(const struct ct_graph *graph, const struct ct_shard_rule *plan,
                           struct ct_value *param)
{
    const struct ct_shard_rule *rule = find_rule(plan, ct_value_model_name(param));
    int first = param->ndim > 2 ? param->ndim - 2 : 0;
    int dim = rule && rule->how == CT_SHARD_ROWWISE ? first + 1 : first;

    if (!rule)
        return ct_fail(CT_EINVAL, "the model's tensor-parallel plan does not mention %s",
                       param->name);
    if (rule->how < CT_SHARD_COLWISE || rule->how > CT_SHARD_REPLICATE)
        return ct_fail(CT_EINVAL,
                       "the model's tensor-parallel plan has how = %d for %s, which is no "
                       "CT_SHARD_..",
                       (int)rule->how, rule->pattern);
    if (rule->how == CT_SHARD_REPLICATE)
        return 0;
    if (param->shape[dim] < tp_config.degree)
        return ct_fail(CT_ECONFIG,
                       "[tp] degree = %lld leaves ranks without a part of %s, whose dimension %d "
                       "is %lld: choose a smaller one",
                       (long long)tp_config.degree, param->name, dim, (long long)param->shape[dim]);
    ct_sharding_split(&param->sharding, dim, tp_axis(graph));
    return 0;
}

/* Heads are not divided. Where key/value heads are fewer than ranks, ranks have copies of them. */
static int share_heads(struct ct_graph *graph)
{
    ct_axes axes = (ct_axes)1 << tp_axis(graph);
    int rc = 0;

    ct_for_each_op_safe (op, graph) {
        if (op->type != &ct_op_attention || rc < 0)
            continue;
        if (op->in[0]->shape[2] % tp_config.degree)
            return ct_fail(CT_ECONFIG,
                           "[tp] degree = %lld does not divide %lld heads: choose one that does",
                           (long long)tp_config.degree, (long long)op->in[0]->shape[2]);
        rc = ct_share_heads(graph, op, tp_config.degree, axes,
                            "tp: ranks outnumber key/value heads, and have copies of them");
    }
    return rc;
}

static int place(struct ct_graph *graph, struct ct_run *run)
{
    int rc;

    if (tp_axis(graph) < 0)
        return 0;
    if (!run->model_ops->shard_plan)
        return ct_fail(CT_ECONFIG, "this model has no tensor-parallel plan");
    rc = share_heads(graph);
    for (size_t i = 0; rc == 0 && i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM)
            rc = place_parameter(graph, run->model_ops->shard_plan, graph->values[i]);
    return rc;
}

static const struct ct_transform placement = {
    .size = sizeof(struct ct_transform),
    .name = "tp",
    .summary = "splits weights as the model's plan says",
    .phase = CT_PHASE_SHARD,
    .gives = (const char *const[]){"placed", NULL},
    .evaluation = true,
    .apply = place,
};

/* ---- sequence ---- */

static int split_sequence(struct ct_graph *graph, struct ct_op *embedding)
{
    struct ct_value *x = embedding->out[0], *split;
    struct ct_builder b = ct_builder_after(graph, embedding);
    struct ct_sharding to = embedding->in[0]->sharding; /* of the tokens: batch and sequence */
    int64_t shards = 1;

    ct_sharding_split(&to, 1, tp_axis(graph));
    for (int i = 0; i < to.count[1]; i++)
        shards *= graph->mesh.axis[to.axis[1][i]].size;
    if (x->shape[1] < shards && !ct_graph_fetched(graph, "loss"))
        return 0; /* generate feeds single tokens, which stay whole */
    if (x->shape[1] < shards)
        return ct_fail(CT_ECONFIG,
                       "[tp] sequence_parallel: seq_len = %lld leaves some of %lld ranks without a "
                       "token: set sequence_parallel = false",
                       (long long)x->shape[1], (long long)shards);
    b.why = "tp: splits the residual stream along the sequence";
    split = ct_redistribute(&b, ct_arena_printf(graph->arena, "%s.split", x->name), x, &to, NULL);
    if (!split)
        return b.status;
    ct_value_replace(graph, x, split);
    return 0;
}

/* Each pass of the model has embeddings, and so have predictions of tokens further ahead. */
static int sequence(struct ct_graph *graph, struct ct_run *run)
{
    bool found = false;
    int rc = 0;

    (void)run;
    if (tp_axis(graph) < 0 || !tp_config.sequence_parallel)
        return 0;
    ct_for_each_op_safe (op, graph) {
        if (rc < 0 || op->type != &ct_op_embedding || op->in[0]->ndim != 2)
            continue;
        rc = split_sequence(graph, op);
        found = true;
    }
    return found ? rc
                 : ct_fail(CT_ECONFIG,
                           "[tp] sequence_parallel: the model has no embedding to begin with");
}

static const struct ct_transform sequence_parallel = {
    .size = sizeof(struct ct_transform),
    .name = "tp.sequence",
    .summary = "splits the residual stream along the sequence",
    .phase = CT_PHASE_SHARD,
    .after = (const char *const[]){"batch", "sequence", NULL},
    .evaluation = true,
    .apply = sequence,
};

static const struct ct_transform loss = {
    .size = sizeof(struct ct_transform),
    .name = "tp.loss",
    .summary = "computes the loss on logits that are split by vocabulary",
    .phase = CT_PHASE_SHARD,
    .after = (const char *const[]){"placed", "batch", "sequence", NULL},
    .evaluation = true,
    .apply = tp_split_losses,
};

static const struct ct_transform again = {
    .size = sizeof(struct ct_transform),
    .name = "tp.regather",
    .summary = "gathers inputs that are split along the sequence again for the backward",
    .phase = CT_PHASE_MEMORY,
    .gives = CT_NAMES("regathered"),
    .after = CT_NAMES("recomputed"),
    .apply = tp_regather,
};

/* ---- axis ---- */

static int64_t degree(void)
{
    return tp_config.degree;
}

static const struct ct_axis_ops axis = {
    .size = sizeof(struct ct_axis_ops),
    .place = 500,
    .degree = degree,
    .splits_heads = true,
};

CT_PLUGIN(.name = "tp", .version = "1.0", .summary = "Tensor, sequence and loss parallelism",
          .options = options, .config = &tp_config, .config_size = sizeof(tp_config),
          .offers = CT_OFFERS(
              {CT_AXIS, "tp", &axis},
              {CT_OP, "cross_entropy_partial", &tp_op_cross_entropy_partial},
              {CT_OP, "cross_entropy_partial_grad", &tp_op_cross_entropy_partial_grad},
              {CT_OP, "cross_entropy_merge", &tp_op_cross_entropy_merge},
              {CT_OP, "cross_entropy_merge_grad", &tp_op_cross_entropy_merge_grad},
              {CT_TRANSFORM, "tp", &placement}, {CT_TRANSFORM, "tp.sequence", &sequence_parallel},
              {CT_TRANSFORM, "tp.loss", &loss}, {CT_TRANSFORM, "tp.regather", &again}));
