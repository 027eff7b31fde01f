/*
 * Losses under tensor parallelism.
 *
 * The fused loss wants its weight whole. It is taken apart: logits come out of a linear layer, cut
 * by vocabulary. With loss parallelism each rank then condenses its piece of a token's logits to
 * three numbers (largest, sum of exponentials, the label's logit), and only those are gathered.
 * Without it the logits are.
 */
#include <string.h>

#include <ctitan/error.h>

#include "tp.h"

struct partial {
    int64_t pieces;
};

struct redistribute {
    const char *to;
    const char *gradient;
};

/* Logits with the vocabulary whole, cut otherwise as the labels are. */
static struct ct_value *gather_logits(struct ct_builder *b, struct ct_value *logits,
                                      const struct ct_value *labels)
{
    char text[256];

    ct_sharding_print(&labels->sharding, &b->graph->mesh, logits->rank, text, sizeof(text));
    return ct_emit1(b, "redistribute", "logits.whole", &logits, 1,
                    &(struct redistribute){ct_arena_strdup(b->graph->arena, text), ""});
}

static struct ct_value *loss_on(struct ct_builder *b, struct ct_value *logits,
                                struct ct_value *labels)
{
    struct partial attrs = {tp_config.degree};
    struct ct_value *pieces;

    if (!tp_config.loss_parallel)
        return ct_cross_entropy(b, "loss", gather_logits(b, logits, labels), labels);
    pieces = ct_emit1(b, "cross_entropy_partial", "loss.pieces",
                      (struct ct_value *[]){logits, labels}, 2, &attrs);
    return ct_emit1(b, "cross_entropy_merge", "loss", (struct ct_value *[]){pieces, labels}, 2,
                    NULL);
}

static int split_loss(struct ct_graph *graph, struct ct_op *op)
{
    struct ct_builder b = ct_builder_before(graph, op);
    struct ct_value *logits, *loss;

    b.why = "tp: the weight is cut by vocabulary";
    logits = ct_linear(&b, "logits", op->in[0], op->in[1]);
    loss = logits ? loss_on(&b, logits, op->in[2]) : NULL;
    if (!loss)
        return b.status;
    ct_graph_replace(graph, op->out[0], loss);
    ct_graph_remove(graph, op);
    return 0;
}

int tp_split_losses(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    if (tp_axis(graph) < 0)
        return 0;
    ct_for_each_op_safe (op, graph) {
        int rc = strcmp(op->type->name, "linear_cross_entropy") ? 0 : split_loss(graph, op);

        if (rc < 0)
            return rc;
    }
    return 0;
}
