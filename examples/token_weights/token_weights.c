/*
 * An objective, and data for it: the cross entropy of each token counts as much as its weight, a
 * stream of the data, says.
 *
 * The loss is sum(weight loss) / sum(weight), over the tokens of the global batch whose label is
 * not masked. The sum of the weights is known before the step, as it is counted in the data.
 *
 * The data are arithmetic sequences, whose second token, which nothing foretells, has the weight
 * 0.1. The others have weights from 1 to 2.
 */
#include <math.h>
#include <stdlib.h>

#include <ctitan/objective.h>
#include <ctitan/op_author.h>
#include <ctitan/plugin.h>
#include <ctitan/rng.h>

#define MASKED (-100)
#define MODULUS 97

static struct config {
    bool uniform;
} config;

static const struct ct_option options[] = {
    CT_OPT_BOOL(struct config, uniform, "uniform", "false",
                "All weights of the data are 1, as if it had none"),
    {0}};

/* ---- the op: any dtype and strides, in double ---- */

static int forward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t v = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < ct_rows(&l->in[0]); i++) {
        const double *logits = r.in[0] + i * v;

        r.out[1][i] = ct_log_sum_exp(logits, v);
        if (r.in[1][i] != MASKED)
            r.out[0][0] += r.in[2][i] * (r.out[1][i] - logits[(int64_t)r.in[1][i]]);
    }
    return ct_reference_end(&r, 0);
}

static int backward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t v = ct_columns(&l->in[1]);

    for (int64_t i = 0; i < ct_rows(&l->in[1]); i++) {
        double *d = r.out[0] + i * v, scale = r.in[0][0] * r.in[3][i];

        for (int64_t k = 0; r.in[2][i] != MASKED && k < v; k++)
            d[k] = scale * (exp(r.in[1][i * v + k] - r.in[4][i]) - (k == (int64_t)r.in[2][i]));
    }
    return ct_reference_end(&r, 0);
}

static int vjp(struct ct_vjp *v);

/* Logits are needed with the whole vocabulary, V; batch and sequence may be split. */
static const struct ct_op_type op_type = {
    .size = sizeof(struct ct_op_type),
    .name = "token_weights",
    .summary = "sum of token cross entropies, weighted",
    .signature = "logits[.V] T, labels[.] i, weights[.] f -> loss[] W, lse[.] W",
    .vjp = vjp,
    .reference = forward,
};

static const struct ct_op_type grad_type = {
    .size = sizeof(struct ct_op_type),
    .name = "token_weights_grad",
    .summary = "gradient of token_weights",
    .signature = "dloss[] F, logits[.V] T, labels[.] i, weights[.] f, lse[.] W -> dlogits[.V] T",
    .reference = backward,
};

static int vjp(struct ct_vjp *v)
{
    const struct ct_op *op = v->op;

    if (!v->dout[0])
        return 0;
    return ct_emit_gradients(
        v, &grad_type,
        (struct ct_value *[]){v->dout[0], op->in[0], op->in[1], op->in[2], op->out[1]}, 5, NULL,
        (int[]){0}, 1);
}

/* ---- the objective ---- */

static int build(struct ct_objective *o)
{
    const int64_t shape[] = {o->request->batch, o->request->seq_len};
    struct ct_value *logits, *loss;
    int rc = ct_objective_forward(o, CT_FORWARD_TRAINED, &logits);
    struct ct_builder b = ct_objective_builder(o);

    if (rc < 0)
        return rc;
    loss = ct_emit_type1(&b, &op_type, "loss",
                         (struct ct_value *[]){logits, ct_input(&b, "labels", shape),
                                               ct_input(&b, "weights", shape)},
                         3, NULL);
    ct_graph_fetch_mean(o->graph, "loss", loss, ct_input(&b, "weight_sum", NULL));
    return b.status;
}

/* A rank calls it for its part of each sample. */
static double sum_weights(const void *const *data, int64_t elements)
{
    const int32_t *labels = data[0];
    const float *weights = data[1];
    double sum = 0;

    for (int64_t i = 0; i < elements; i++)
        sum += labels[i] == MASKED ? 0 : (double)weights[i];
    return sum;
}

static const char *const counted[] = {"labels", "weights", NULL};

static const struct ct_count counts[] = {{.size = sizeof(struct ct_count),
                                          .name = "weight_sum",
                                          .summary = "weights of the labels that are not masked",
                                          .streams = counted,
                                          .count = sum_weights},
                                         {0}};

static const struct ct_objective_ops objective = {
    .size = sizeof(struct ct_objective_ops), .build = build, .counts = counts};

/* ---- the data ---- */

struct ct_data {
    struct ct_data_request request;
};

static int list_streams(const struct ct_data_request *request, struct ct_arena *arena,
                        const struct ct_data_stream **streams)
{
    const size_t size = sizeof(struct ct_data_stream);
    const struct ct_data_stream list[] = {
        {size, "tokens", CT_I32, 1, {request->seq_len}, 0, "the tokens"},
        {size, "labels", CT_I32, 1, {request->seq_len}, 0, "the token that follows each"},
        {size, "weights", CT_F32, 1, {request->seq_len}, 0, "weight of each label"},
        {0}};

    *streams = ct_arena_copy(arena, list, sizeof(list));
    return 0;
}

static int open_data(const struct ct_data_request *request, struct ct_data **data)
{
    *data = malloc(sizeof(**data));
    if (!*data)
        return ct_fail(CT_ENOMEM, "a data source");
    (*data)->request = *request;
    return 0;
}

static void close_data(struct ct_data *data)
{
    free(data);
}

/* sample[i] is NULL where nobody takes the stream. */
static int read_sample(struct ct_data *data, int64_t index, void *const *sample)
{
    struct ct_philox random =
        ct_philox(data->request.seed, data->request.validation, (uint64_t)index);
    uint64_t at = random.v[0] % MODULUS, difference = random.v[1] % MODULUS;
    int32_t *tokens = sample[0], *labels = sample[1];
    float *weights = sample[2];

    for (int64_t i = 0; i < data->request.seq_len; i++) {
        if (tokens)
            tokens[i] = (int32_t)at;
        at = (at + difference) % MODULUS;
        if (labels)
            labels[i] = i % 7 == 6 ? MASKED : (int32_t)at;
        if (weights)
            weights[i] = config.uniform ? 1 : i < 1 ? 0.1f : 1 + 0.5f * (float)(i % 3);
    }
    return 0;
}

static int64_t vocabulary(struct ct_data *data)
{
    (void)data;
    return MODULUS;
}

static const struct ct_data_ops data = {.size = sizeof(struct ct_data_ops),
                                        .open = open_data,
                                        .close = close_data,
                                        .vocabulary = vocabulary,
                                        .streams = list_streams,
                                        .read_streams = read_sample};

CT_PLUGIN(.name = "token_weights", .version = "1.0",
          .summary = "Objective: cross entropy with a weight for each token, and data with weights",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_OBJECTIVE, "token_weights", &objective},
                              {CT_DATA, "token_weights", &data}, {CT_OP, "token_weights", &op_type},
                              {CT_OP, "token_weights_grad", &grad_type}));
