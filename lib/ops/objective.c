/*
 * The objective of every run that names none: the mean cross entropy of the labels.
 */
#include <ctitan/lib/ops.h>
#include <ctitan/objective.h>

static int build(struct ct_objective *o)
{
    const int64_t shape[] = {o->request->batch, o->request->seq_len};
    struct ct_value *logits, *loss;
    struct ct_builder b;
    int rc = ct_objective_forward(o, CT_FORWARD_TRAINED, &logits);

    if (rc < 0)
        return rc;
    b = ct_objective_builder(o);
    loss = logits ? ct_cross_entropy(&b, "loss", logits, ct_input(&b, "labels", shape))
                  : ct_graph_unfetch(o->graph, "loss");
    ct_graph_fetch_mean(o->graph, "loss", loss, ct_input(&b, "valid_tokens", NULL));
    return b.status;
}

const struct ct_objective_ops ct_objective_cross_entropy = {
    .size = sizeof(struct ct_objective_ops), .build = build, .own_loss = true};
