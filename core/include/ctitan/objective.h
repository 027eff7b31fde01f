/*
 * Objectives: the loss that is trained, made from what a model hands out and from the streams of
 * the data.
 *
 * An objective runs the model's forward (ct_objective_forward), declares the inputs that it uses
 * (input.h), and emits ops from the logits to a scalar, which it fetches as "loss" with what
 * divides it (ct_graph_fetch_mean). A value that is fetched is summed over the microbatches and the
 * ranks, so the loss is
 *
 *     sum over the global batch / count over the global batch
 *
 * whatever the mesh, the microbatching and the accumulation, and so are its gradients. The count is
 * known before the first microbatch, as it is counted in the data: the objective names what it
 * counts (struct ct_count). A second term with a count of its own is multiplied by the quotient of
 * the counts, which are scalars of the graph like others.
 *
 *     static int build(struct ct_objective *o)
 *     {
 *         struct ct_value *logits, *loss;
 *         int rc = ct_objective_forward(o, CT_FORWARD_TRAINED, &logits);
 *         struct ct_builder b = ct_objective_builder(o);
 *         ..
 *         loss = ct_cross_entropy(&b, "loss", logits, ct_input(&b, "labels", shape));
 *         ct_graph_fetch_mean(o->graph, "loss", loss, ct_input(&b, "valid_tokens", NULL));
 *         return b.status;
 *     }
 *
 * Other scalars that it fetches are metrics of the run (struct ct_metric, run.h).
 */
#ifndef CT_OBJECTIVE_H
#define CT_OBJECTIVE_H

#include <ctitan/model.h>

CT_BEGIN_DECLS

/* Weights of a forward pass. */
enum ct_forward {
    CT_FORWARD_TRAINED, /* those that are trained */
    /* The parameters that the run began with. Ops have the mark CT_REFERENCE: techniques that add
       to a model what is trained, such as adapters, leave them alone. No gradient flows into this
       pass. */
    CT_FORWARD_REFERENCE,
};

/* The loss of one graph while it is built. */
struct ct_objective {
    struct ct_graph *graph;
    const struct ct_model_request *request; /* batch, seq_len and documents */
    const struct ct_model_ops *model_ops;
    struct ct_model *model;
    const struct ct_objective_ops *ops;
    int passes;         /* forward passes so far */
    const char *region; /* of the logits */
    bool validation;    /* the graph is that of validation, whose loss may be another one */
};

/* In the graph of validation, the mark of the logits of the pass with the weights that are trained:
   what evaluates a model finds them by it, whatever the objective. */
#define CT_MARK_LOGITS "logits"

struct ct_objective_ops {
    size_t size; /* of this struct */
    /* Emit everything from the model to the loss. */
    int (*build)(struct ct_objective *objective);
    /* The counts that the objective divides by, ended by {0}. NULL: ct_default_counts. */
    const struct ct_count *counts;
    /* It takes a model that makes a loss of its own, and leaves that as it is. */
    bool own_loss;
};

/*
 * Emit the forward of the model, once, or once for each kind of weights. *logits: [batch, seq_len,
 * vocabulary]; NULL for a model with a loss of its own, if the objective has `own_loss`. Hidden
 * states are the inputs of the op that makes the logits. CT_EINVAL: what the model built is no
 * forward.
 *
 * Emit passes without a gradient first, and what is needed of their logits at once: their memory is
 * free again before the trained pass begins. What they compute is called "reference.NAME", or by
 * the name of their set.
 */
CT_API int ct_objective_forward(struct ct_objective *objective, enum ct_forward weights,
                                struct ct_value **logits);
/* Emit the forward of the model with a second set of weights (graph.h). Its ops have the mark
   CT_REFERENCE, too, and no gradient flows into it. The set lives as long as the run. Passes with
   the same set share its parameters. CT_EINVAL: as above. */
CT_API int ct_objective_forward_set(struct ct_objective *objective, const struct ct_weight_set *set,
                                    struct ct_value **logits);
/* Adds ops behind the forward, where its logits are. */
CT_API struct ct_builder ct_objective_builder(const struct ct_objective *objective);

/* Whether the recipe's [objective] names this one. */
CT_API bool ct_objective_is(const char *name);

/* For programs: build the loss with the objective's `ops`. CT_EINVAL: it fetches no loss. */
CT_API int ct_objective_build(struct ct_objective *objective);
/* For libraries: the objective of recipes that name none. */
CT_API void ct_objective_register(const char *name, const struct ct_objective_ops *ops);
/* The default objective. Its name is stored in *name; NULL: there is none. */
CT_API const struct ct_objective_ops *ct_objective_default(const char **name);

CT_END_DECLS

#endif
