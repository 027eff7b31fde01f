/*
 * Losses under tensor parallelism.
 *
 * Logits come from a linear layer whose weight is split by vocabulary. With loss parallelism each
 * rank reduces its shard of a token's logits to three numbers (largest, sum of exponentials, the
 * label's logit), and only those are gathered. Without it the logits are gathered, and so they are
 * for losses other than cross_entropy, which need a token's logits whole.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/names.h>
#include <ctitan/lib/ops.h>
#include <ctitan/log.h>
#include <ctitan/recipe.h>

#include "tp.h"

/* Logits with the whole vocabulary; other dimensions are split like the labels. */
static struct ct_value *gather_logits(struct ct_builder *b, struct ct_value *logits,
                                      const struct ct_value *labels)
{
    return ct_redistribute(b, "logits.whole", logits, &labels->sharding, NULL);
}

static struct ct_value *loss_on(struct ct_builder *b, struct ct_value *logits,
                                struct ct_value *labels)
{
    struct ct_value *shards;

    shards = tp_cross_entropy_partial(b, "loss.shards", logits, labels, tp_config.degree);
    return tp_cross_entropy_merge(b, "loss", shards, labels);
}

static int split_loss(struct ct_graph *graph, struct ct_op *op)
{
    struct ct_builder b = ct_builder_before(graph, op);
    struct ct_value *logits = op->in[0], *labels = op->in[1], *loss;

    b.why = "tp: the logits are split by vocabulary";
    if (!tp_config.loss_parallel) {
        ct_op_set_input(op, 0, gather_logits(&b, logits, labels));
        return b.status;
    }
    loss = loss_on(&b, logits, labels);
    if (!loss)
        return b.status;
    ct_value_replace(graph, op->out[0], loss);
    ct_graph_remove(graph, op);
    return 0;
}

/* Whether logits are split by vocabulary. */
static bool splits_logits(const struct ct_graph *graph)
{
    ct_for_each_op (op, graph) {
        const struct ct_value *w = op->type == &ct_op_linear ? op->in[1] : NULL;

        if (w && !strcmp(op->region, CT_REGION_HEAD) &&
            ct_sharding_axes(&w->sharding) >> tp_axis(graph) & 1)
            return true;
    }
    return false;
}

/* For the loss of graph, which is another one. */
static void tell_gathered(const struct ct_graph *graph, const struct ct_run *run)
{
    const struct ct_value *loss = ct_graph_fetched(graph, "loss");
    const char *source = ct_recipe_source(run->recipe, "tp", "loss_parallel");
    static bool told;

    if (!tp_config.loss_parallel || !loss || !splits_logits(graph) || told || run->rank)
        return;
    told = true;
    if (source)
        ct_warn("%s: [tp] loss_parallel = true has no effect: the logits are gathered, as the loss "
                "%s takes none that are split by vocabulary",
                source, loss->producer->type->name);
    else
        ct_info("tp: the logits are gathered, as the loss %s takes none that are split by "
                "vocabulary",
                loss->producer->type->name);
}

int tp_split_losses(struct ct_graph *graph, struct ct_run *run)
{
    bool found = false;

    if (tp_axis(graph) < 0)
        return 0;
    ct_for_each_op_safe (op, graph) {
        bool splits = op->type == &ct_op_cross_entropy;
        int rc = splits ? split_loss(graph, op) : 0;

        if (rc < 0)
            return rc;
        found |= splits;
    }
    if (!found && run)
        tell_gathered(graph, run);
    return 0;
}
