/*
 * An objective: cross entropy whose labels have weights, the data's stream "weights".
 *
 * The loss of a step is the sum over the global batch of weight times cross entropy, divided by the
 * sum of the weights, whatever the mesh, the packing and the accumulation. Labels that are masked
 * have none.
 */
#include <math.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/objective.h>
#include <ctitan/op_author.h>
#include <ctitan/plugin.h>

#include "weighted.h"

enum { LOGITS, LABELS, WEIGHTS };

/* ---- the op: any dtype and strides, in double ---- */

static int reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t v = ct_columns(&l->in[LOGITS]);
    int rc = 0;

    for (int64_t i = 0; rc >= 0 && i < ct_rows(&l->in[LOGITS]); i++) {
        const double *logits = r.in[LOGITS] + i * v;

        r.out[1][i] = ct_log_sum_exp(logits, v);
        if (r.in[LABELS][i] == CT_MASKED)
            continue;
        rc = ct_checked_index(r.in[LABELS], i, v, "label");
        if (rc >= 0)
            *r.out[0] += r.in[WEIGHTS][i] * (r.out[1][i] - logits[(int64_t)r.in[LABELS][i]]);
    }
    return ct_reference_end(&r, rc < 0 ? rc : 0);
}

/* Gradient of cross_entropy, whose rows get their weights. */
static int vjp(struct ct_vjp *v)
{
    const struct ct_op *op = v->op;
    struct ct_value *rows, *weights = op->in[WEIGHTS];

    if (!v->dout[0] || !v->wanted[LOGITS])
        return 0;
    rows = ct_emit_type1(
        v->b, &ct_op_cross_entropy_grad, NULL,
        (struct ct_value *[]){v->dout[0], op->in[LOGITS], op->in[LABELS], op->out[1]}, 4, NULL);
    if (weights->dtype != op->out[1]->dtype)
        weights = ct_cast(v->b, NULL, weights, op->out[1]->dtype);
    v->din[LOGITS] = ct_emit_type1(v->b, &ct_op_scale_rows, ct_gradient_name(v, LOGITS),
                                   (struct ct_value *[]){rows, weights}, 2, NULL);
    return v->b->status;
}

static const struct ct_op_type type = {
    .size = sizeof(struct ct_op_type),
    .name = "weighted_cross_entropy",
    .summary = "sum of token cross entropies of logits, each times a weight",
    .signature = "logits[.V] T, labels[.] i, weights[.] f -> loss[] W, lse[.] W",
    .vjp = vjp,
    .reference = reference,
    .samples = "real[2,4,6] label[2,4] factor[2,4]",
};

/* ---- the kernel for CPUs ---- */

static float at(const struct ct_tensor *t, int64_t i)
{
    return t->dtype == CT_F32 ? ((const float *)t->data)[i]
                              : ct_bf16_to_f32(((const uint16_t *)t->data)[i]);
}

/* Rows begin to end of lse. */
static void sum_rows(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    const struct ct_tensor *logits = &l->in[LOGITS];
    int64_t v = ct_columns(logits);

    for (int64_t i = begin; i < end; i++) {
        float most = -INFINITY;
        double sum = 0;

        for (int64_t k = 0; k < v; k++)
            most = fmaxf(most, at(logits, i * v + k));
        for (int64_t k = 0; k < v; k++)
            sum += expf(at(logits, i * v + k) - most);
        ((float *)l->out[1].data)[i] = most + (float)log(sum);
    }
}

static bool accepts(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[LOGITS].dtype;

    return (dtype == CT_F32 || dtype == CT_BF16) && p->out[1].dtype == CT_F32;
}

static int run_weighted(const struct ct_launch *l)
{
    const int32_t *labels = l->in[LABELS].data;
    const float *weights = l->in[WEIGHTS].data, *lse = l->out[1].data;
    int64_t rows = ct_rows(&l->in[LOGITS]), v = ct_columns(&l->in[LOGITS]);
    double loss = 0;

    ct_parallel(l, rows, sum_rows, (void *)(uintptr_t)l);
    for (int64_t i = 0; i < rows; i++) {
        if (labels[i] == CT_MASKED)
            continue;
        if (labels[i] < 0 || labels[i] >= v)
            return ct_fail(CT_EINVAL, "label %d of token %lld: expected 0 to %lld, or %d",
                           labels[i], (long long)i, (long long)v - 1, CT_MASKED);
        loss += (double)weights[i] * ((double)lse[i] - at(&l->in[LOGITS], i * v + labels[i]));
    }
    ct_tensor_store(&l->out[0], 0, loss);
    return 0;
}

static const struct ct_kernel kernels[] = {
    CT_KERNEL("weighted_cross_entropy", "rows", 0, accepts, NULL, run_weighted), {0}};

/* ---- the objective ---- */

static int build(struct ct_objective *o)
{
    const int64_t shape[] = {o->request->batch, o->request->seq_len};
    struct ct_value *logits, *loss;
    int rc = ct_objective_forward(o, CT_FORWARD_TRAINED, &logits);
    struct ct_builder b;

    if (rc < 0)
        return rc;
    b = ct_objective_builder(o);
    loss = ct_emit_type1(&b, &type, "loss",
                         (struct ct_value *[]){logits, ct_input(&b, "labels", shape),
                                               ct_input(&b, "weights", shape)},
                         3, NULL);
    ct_graph_fetch_mean(o->graph, "loss", loss, ct_input(&b, "label_weights", NULL));
    return b.status;
}

/* A rank calls it for its part of each sample. */
static double sum_weights(const void *const *data, int64_t elements)
{
    const int32_t *labels = data[0];
    const float *weights = data[1];
    double sum = 0;

    for (int64_t i = 0; i < elements; i++)
        sum += labels[i] == CT_MASKED ? 0 : (double)weights[i];
    return sum;
}

static const char *const counted[] = {"labels", "weights", NULL};

static const struct ct_count counts[] = {{.size = sizeof(struct ct_count),
                                          .name = "label_weights",
                                          .summary = "weights of the labels that are not masked",
                                          .streams = counted,
                                          .count = sum_weights},
                                         {0}};

static const struct ct_objective_ops objective = {
    .size = sizeof(struct ct_objective_ops), .build = build, .counts = counts};

CT_PLUGIN(.name = "weighted", .version = "1.0",
          .summary = "Objective: cross entropy with a weight for each label",
          .offers = CT_OFFERS({CT_OBJECTIVE, "weighted", &objective},
                              {CT_OP, "weighted_cross_entropy", &type},
                              {CT_KERNELS, "cpu", kernels}, {CT_CODE, "cuda", &weighted_cuda_code},
                              {CT_KERNELS, "cuda", weighted_cuda_kernels}));
