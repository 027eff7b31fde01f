/*
 * An objective, and data for it: distillation from the largest logits of a teacher, which were
 * stored with the data (Hinton et al. 2015).
 *
 * The streams teacher_ids and teacher_logits have the k largest logits of the teacher for each
 * token. With p their softmax, and q that of the student over the whole vocabulary, the loss of a
 * token is the sum of p log(p / q). The loss of a step is the mean over the tokens of the global
 * batch whose label is not masked, as that of cross_entropy. With k = 1 the two are equal.
 *
 * The data are arithmetic sequences. Their teacher is sure of the next token, but for a little.
 */
#include <math.h>
#include <stdlib.h>

#include <ctitan/objective.h>
#include <ctitan/op_author.h>
#include <ctitan/plugin.h>
#include <ctitan/rng.h>

#define MASKED (-100)
#define MODULUS 97
#define MOST_K 64

static struct config {
    int64_t k;
} config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct config, k, "k", "4", 1, MOST_K, "Logits of the teacher for each token"), {0}};

/* ---- the op: any dtype and strides, in double ---- */

static int forward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t v = ct_columns(&l->in[0]), k = ct_columns(&l->in[2]);

    for (int64_t i = 0; i < ct_rows(&l->in[0]); i++) {
        const double *logits = r.in[0] + i * v, *ids = r.in[2] + i * k, *teacher = r.in[3] + i * k;
        double of_teacher = ct_log_sum_exp(teacher, k);

        r.out[1][i] = ct_log_sum_exp(logits, v);
        for (int64_t n = 0; r.in[1][i] != MASKED && n < k; n++)
            *r.out[0] += exp(teacher[n] - of_teacher) *
                         (teacher[n] - of_teacher + r.out[1][i] - logits[(int64_t)ids[n]]);
    }
    return ct_reference_end(&r, 0);
}

static int backward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t v = ct_columns(&l->in[1]), k = ct_columns(&l->in[3]);

    for (int64_t i = 0; i < ct_rows(&l->in[1]); i++) {
        const double *ids = r.in[3] + i * k, *teacher = r.in[4] + i * k;
        double of_teacher = ct_log_sum_exp(teacher, k), *d = r.out[0] + i * v;

        if (r.in[2][i] == MASKED)
            continue;
        for (int64_t n = 0; n < v; n++)
            d[n] = *r.in[0] * exp(r.in[1][i * v + n] - r.in[5][i]);
        for (int64_t n = 0; n < k; n++)
            d[(int64_t)ids[n]] -= *r.in[0] * exp(teacher[n] - of_teacher);
    }
    return ct_reference_end(&r, 0);
}

static int vjp(struct ct_vjp *v);

/* Capital letters are whole on every rank: the vocabulary, and a token's teacher. */
static const struct ct_op_type op_type = {
    .size = sizeof(struct ct_op_type),
    .name = "distill",
    .summary = "sum over tokens of the divergence from the largest logits of a teacher",
    .signature = "logits[.V] T, labels[.] i, ids[.K] i, teacher[.K] f -> loss[] W, lse[.] W",
    .vjp = vjp,
    .reference = forward,
    .samples = "@flops=0: real[2,4,6] small[2,4] small[2,4,4] factor[2,4,4]",
};

static const struct ct_op_type grad_type = {
    .size = sizeof(struct ct_op_type),
    .name = "distill_grad",
    .summary = "gradient of distill",
    .signature = "dloss[] F, logits[.V] T, labels[.] i, ids[.K] i, teacher[.K] f, lse[.] W -> "
                 "dlogits[.V] T",
    .reference = backward,
};

static int vjp(struct ct_vjp *v)
{
    const struct ct_op *op = v->op;

    if (!v->dout[0])
        return 0;
    return ct_emit_gradients(
        v, &grad_type,
        (struct ct_value *[]){v->dout[0], op->in[0], op->in[1], op->in[2], op->in[3], op->out[1]},
        6, NULL, (int[]){0}, 1);
}

/* ---- the objective ---- */

static int build(struct ct_objective *o)
{
    const int64_t shape[] = {o->request->batch, o->request->seq_len, config.k};
    struct ct_value *logits, *loss;
    int rc = ct_objective_forward(o, CT_FORWARD_TRAINED, &logits);
    struct ct_builder b = ct_objective_builder(o);

    if (rc < 0)
        return rc;
    loss = ct_emit_type1(&b, &op_type, "loss",
                         (struct ct_value *[]){logits, ct_input(&b, "labels", shape),
                                               ct_input_tensor(&b, "teacher_ids", 3, shape),
                                               ct_input_tensor(&b, "teacher_logits", 3, shape)},
                         4, NULL);
    ct_graph_fetch_mean(o->graph, "loss", loss, ct_input(&b, "valid_tokens", NULL));
    return b.status;
}

static const struct ct_objective_ops objective = {.size = sizeof(struct ct_objective_ops),
                                                  .build = build};

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
        {size, "teacher_ids", CT_I32, 2, {request->seq_len, config.k}, 0, "its likeliest tokens"},
        {size, "teacher_logits", CT_F32, 2, {request->seq_len, config.k}, 0, "their logits"},
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
    int32_t *ids = sample[2];
    float *teacher = sample[3];

    for (int64_t i = 0; i < data->request.seq_len; i++) {
        if (tokens)
            tokens[i] = (int32_t)at;
        at = (at + difference) % MODULUS;
        if (labels)
            labels[i] = i % 7 == 6 ? MASKED : (int32_t)at;
        for (int64_t n = 0; n < config.k; n++) {
            if (ids)
                ids[i * config.k + n] = (int32_t)((at + (uint64_t)n) % MODULUS);
            if (teacher)
                teacher[i * config.k + n] = n ? -(float)n : 2;
        }
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

CT_PLUGIN(.name = "distill", .version = "1.0",
          .summary = "Objective: the largest logits of a teacher, and data that has them",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_OBJECTIVE, "distill", &objective}, {CT_DATA, "distill", &data},
                              {CT_OP, "distill", &op_type}, {CT_OP, "distill_grad", &grad_type}));
