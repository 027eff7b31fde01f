#include <math.h>

#include "dpo.h"

/* ---- the log-probability of an answer: the sum over its tokens ---- */

static int logp_forward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t v = ct_columns(&l->in[0]), tokens = l->in[1].shape[1];

    for (int64_t i = 0; i < ct_rows(&l->in[0]); i++) {
        const double *logits = r.in[0] + i * v;

        r.out[1][i] = ct_log_sum_exp(logits, v);
        if (r.in[1][i] != CT_MASKED)
            r.out[0][i / tokens] += logits[(int64_t)r.in[1][i]] - r.out[1][i];
    }
    return ct_reference_end(&r, 0);
}

static int logp_backward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t v = ct_columns(&l->in[1]), tokens = l->in[2].shape[1];

    for (int64_t i = 0; i < ct_rows(&l->in[1]); i++)
        for (int64_t k = 0; r.in[2][i] != CT_MASKED && k < v; k++)
            r.out[0][i * v + k] = r.in[0][i / tokens] * ((k == (int64_t)r.in[2][i]) -
                                                         exp(r.in[1][i * v + k] - r.in[3][i]));
    return ct_reference_end(&r, 0);
}

static int logp_vjp(struct ct_vjp *v);

/* t is in inputs only: where ranks split the sequence, each has a part of the sum. */
const struct ct_op_type dpo_logp_type = {
    .size = sizeof(struct ct_op_type),
    .name = "sequence_logp",
    .summary = "log-probability of the unmasked labels of each sequence",
    .signature = "logits[btV] T, labels[bt] i -> logp[b] W, lse[bt] W",
    .vjp = logp_vjp,
    .reference = logp_forward,
};

const struct ct_op_type dpo_logp_grad_type = {
    .size = sizeof(struct ct_op_type),
    .name = "sequence_logp_grad",
    .summary = "gradient of sequence_logp",
    .signature = "dlogp[b] W, logits[btV] T, labels[bt] i, lse[bt] W -> dlogits[btV] T",
    .reference = logp_backward,
};

static int logp_vjp(struct ct_vjp *v)
{
    const struct ct_op *op = v->op;

    if (!v->dout[0])
        return 0;
    return ct_emit_gradients(v, &dpo_logp_grad_type,
                             (struct ct_value *[]){v->dout[0], op->in[0], op->in[1], op->out[1]}, 4,
                             NULL, (int[]){0}, 1);
}
