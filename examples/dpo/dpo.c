/*
 * An objective for preference pairs, and data for it: direct preference optimization (Rafailov et
 * al. 2023).
 *
 * A pair is two samples, one after the other: the prompt with the answer that is preferred, and
 * with the one that is not. With the log-probability p of an answer, and that of the model that
 * training began with, r, the loss of a pair is
 *
 *     -log sigmoid(beta ((p - r) of the preferred - (p - r) of the other))
 *
 * and the loss of a step is the mean over the pairs of the global batch. r comes from a second
 * forward pass without what is trained (lora's adapters), or is stored with the data.
 *
 * A line of the data's file is "prompt ; preferred ; other", tokens as numbers; "; r r" may follow.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/objective.h>
#include <ctitan/op_author.h>
#include <ctitan/plugin.h>

#define MASKED (-100)

static struct config {
    const char *path;
    double beta;
    const char *reference;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, path, "path", NULL, "File of pairs"),
    CT_OPT_FLOAT(struct config, beta, "beta", "0.1", 1e-6, 1e6, "How far the model may move"),
    CT_OPT_CHOICE(struct config, reference, "reference", "pass", "pass|stored",
                  "Log-probabilities of the reference: a second forward pass, or the data's"),
    {0}};

/* ---- the log-probability of an answer: the sum over its tokens ---- */

static int logp_forward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t v = ct_columns(&l->in[0]), tokens = l->in[1].shape[1];

    for (int64_t i = 0; i < ct_rows(&l->in[0]); i++) {
        const double *logits = r.in[0] + i * v;

        r.out[1][i] = ct_log_sum_exp(logits, v);
        if (r.in[1][i] != MASKED)
            r.out[0][i / tokens] += logits[(int64_t)r.in[1][i]] - r.out[1][i];
    }
    return ct_reference_end(&r, 0);
}

static int logp_backward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t v = ct_columns(&l->in[1]), tokens = l->in[2].shape[1];

    for (int64_t i = 0; i < ct_rows(&l->in[1]); i++)
        for (int64_t k = 0; r.in[2][i] != MASKED && k < v; k++)
            r.out[0][i * v + k] = r.in[0][i / tokens] * ((k == (int64_t)r.in[2][i]) -
                                                         exp(r.in[1][i * v + k] - r.in[3][i]));
    return ct_reference_end(&r, 0);
}

static int logp_vjp(struct ct_vjp *v);

/* t is in inputs only: where ranks split the sequence, each has a part of the sum. */
static const struct ct_op_type logp_type = {
    .size = sizeof(struct ct_op_type),
    .name = "sequence_logp",
    .summary = "log-probability of the unmasked labels of each sequence",
    .signature = "logits[btV] T, labels[bt] i -> logp[b] W, lse[bt] W",
    .vjp = logp_vjp,
    .reference = logp_forward,
};

static const struct ct_op_type logp_grad_type = {
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
    return ct_emit_gradients(v, &logp_grad_type,
                             (struct ct_value *[]){v->dout[0], op->in[0], op->in[1], op->out[1]}, 4,
                             NULL, (int[]){0}, 1);
}

/* ---- the loss of pairs ---- */

struct preference {
    double beta;
};

static const struct ct_option preference_options[] = {
    CT_OPT_FLOAT(struct preference, beta, "beta", "0.1", 0, 1e6, "Scale of the rewards"), {0}};

static double beta_of(const struct ct_launch *l)
{
    return ((const struct preference *)l->op->attrs)->beta;
}

/* -log sigmoid(x) */
static double softplus(double x)
{
    return x > 0 ? log1p(exp(-x)) : log1p(exp(x)) - x;
}

static int preference_forward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < l->in[0].shape[0]; i++) {
        double chosen = beta_of(l) * (r.in[0][2 * i] - r.in[1][2 * i]);
        double rejected = beta_of(l) * (r.in[0][2 * i + 1] - r.in[1][2 * i + 1]);

        *r.out[0] += softplus(chosen - rejected);
        *r.out[1] += chosen;
        *r.out[2] += rejected;
        *r.out[3] += chosen > rejected;
    }
    return ct_reference_end(&r, 0);
}

static int preference_backward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < l->in[1].shape[0]; i++) {
        double margin = beta_of(l) *
                        (r.in[1][2 * i] - r.in[2][2 * i] - r.in[1][2 * i + 1] + r.in[2][2 * i + 1]);
        double d = -*r.in[0] * beta_of(l) / (1 + exp(margin));

        r.out[0][2 * i] = r.out[1][2 * i + 1] = d;
        r.out[0][2 * i + 1] = r.out[1][2 * i] = -d;
    }
    return ct_reference_end(&r, 0);
}

static int preference_vjp(struct ct_vjp *v);

/* C: both of a pair, on one rank. */
static const struct ct_op_type preference_type = {
    .size = sizeof(struct ct_op_type),
    .name = "preference",
    .summary = "sum of the losses of pairs of log-probabilities (DPO), and of their rewards",
    .signature = "policy[pC] T, reference[pC] T -> loss[] T, chosen[] T, rejected[] T, right[] T",
    .attrs = preference_options,
    .attrs_size = sizeof(struct preference),
    .vjp = preference_vjp,
    .reference = preference_forward,
    .samples = "real[3,2] real[3,2]",
};

static const struct ct_op_type preference_grad_type = {
    .size = sizeof(struct ct_op_type),
    .name = "preference_grad",
    .summary = "gradient of preference",
    .signature = "dloss[] T, policy[pC] T, reference[pC] T -> dpolicy[pC] T, dreference[pC] T",
    .attrs = preference_options,
    .attrs_size = sizeof(struct preference),
    .reference = preference_backward,
    .samples = "real[] real[3,2] real[3,2]",
};

static int preference_vjp(struct ct_vjp *v)
{
    const struct ct_op *op = v->op;

    if (!v->dout[0])
        return 0;
    return ct_emit_gradients(v, &preference_grad_type,
                             (struct ct_value *[]){v->dout[0], op->in[0], op->in[1]}, 3, op->attrs,
                             (int[]){0, 1}, 2);
}

/* ---- the objective ---- */

/* [pairs, 2] */
static struct ct_value *answers(struct ct_objective *o, struct ct_builder *b, const char *name,
                                struct ct_value *logits)
{
    const int64_t shape[] = {o->request->batch, o->request->seq_len};
    struct ct_value *in[] = {logits, ct_input(b, "labels", shape)};
    struct ct_value *logp = ct_emit_type1(b, &logp_type, name, in, 2, NULL);

    return ct_view(b, NULL, logp, 2, (int64_t[]){o->request->batch / 2, 2});
}

/* What the model that training began with gives. */
static int find_reference(struct ct_objective *o, struct ct_value **reference)
{
    struct ct_value *logits;
    struct ct_builder b;
    int rc = 0;

    if (strcmp(config.reference, "stored") == 0) {
        b = ct_objective_builder(o);
        logits = ct_input_tensor(&b, "reference", 1, &o->request->batch);
        *reference = ct_view(&b, NULL, logits, 2, (int64_t[]){o->request->batch / 2, 2});
        return b.status;
    }
    rc = ct_objective_forward(o, CT_FORWARD_REFERENCE, &logits);
    if (rc < 0)
        return rc;
    b = ct_objective_builder(o);
    *reference = answers(o, &b, "reference_logp", logits);
    return b.status;
}

static int build(struct ct_objective *o)
{
    struct ct_value *logits, *policy, *reference, *over;
    struct ct_builder b;
    struct ct_op *op;
    int rc;

    if (o->request->batch % 2)
        return ct_fail(CT_ECONFIG,
                       "dpo: a microbatch has %lld sequences, which are no pairs: "
                       "expected an even number",
                       (long long)o->request->batch);
    rc = ct_objective_forward(o, CT_FORWARD_TRAINED, &logits);
    if (rc < 0)
        return rc;
    b = ct_objective_builder(o);
    policy = answers(o, &b, "policy_logp", logits);
    rc = b.status < 0 ? b.status : find_reference(o, &reference);
    if (rc < 0)
        return rc;
    b = ct_objective_builder(o);
    op = ct_emit_type(&b, &preference_type, "loss", (struct ct_value *[]){policy, reference}, 2,
                      &(struct preference){config.beta});
    over = ct_input(&b, "pairs", NULL);
    if (!op || !over)
        return b.status;
    ct_graph_fetch_mean(o->graph, "loss", op->out[0], over);
    ct_graph_fetch_mean(o->graph, "reward_chosen", op->out[1], over);
    ct_graph_fetch_mean(o->graph, "reward_rejected", op->out[2], over);
    ct_graph_fetch_mean(o->graph, "accuracy", op->out[3], over);
    return 0;
}

static const struct ct_count counts[] = {{.size = sizeof(struct ct_count),
                                          .name = "pairs",
                                          .summary = "pairs of the step",
                                          .per_sample = 0.5},
                                         {0}};

static const struct ct_objective_ops objective = {
    .size = sizeof(struct ct_objective_ops), .build = build, .counts = counts};

/* ---- the data ---- */

#define MOST_LINE 65536

struct pair {
    int32_t *prompt, *answer[2];
    int64_t prompt_size, answer_size[2];
    float reference[2];
};

struct ct_data {
    struct ct_arena arena;
    int64_t seq_len;
    struct pair *pair;
    size_t count, room;
};

static int list_streams(const struct ct_data_request *request, struct ct_arena *arena,
                        const struct ct_data_stream **streams)
{
    const size_t size = sizeof(struct ct_data_stream);
    const struct ct_data_stream list[] = {
        {size, "tokens", CT_I32, 1, {request->seq_len}, 0, "prompt and answer"},
        {size, "labels", CT_I32, 1, {request->seq_len}, 0, "the next token, of answers alone"},
        {size, "reference", CT_F32, 0, {0}, -1, "log-probability of the reference"},
        {0}};

    *streams = ct_arena_copy(arena, list, sizeof(list));
    return 0;
}

/* Numbers up to the next ';'. */
static int32_t *read_tokens(struct ct_arena *arena, char **at, int64_t *size)
{
    size_t room = 0;
    int32_t *tokens = NULL;
    char *end;

    for (*size = 0;; *at = end) {
        long token = strtol(*at, &end, 10);

        if (end == *at)
            break;
        tokens = ct_arena_grow(arena, tokens, &room, (size_t)*size + 1, sizeof(*tokens));
        tokens[(*size)++] = (int32_t)token;
    }
    *at += strspn(*at, " ;");
    return tokens;
}

static int read_pair(struct ct_data *data, char *line)
{
    struct pair p = {0};

    p.prompt = read_tokens(&data->arena, &line, &p.prompt_size);
    for (int i = 0; i < 2; i++) {
        p.answer[i] = read_tokens(&data->arena, &line, &p.answer_size[i]);
        if (!p.prompt_size || !p.answer_size[i] || p.prompt_size + p.answer_size[i] > data->seq_len)
            return ct_fail(CT_ECONFIG,
                           "%s: pair %zu is empty, or longer than [training] seq_len = "
                           "%lld",
                           config.path, data->count, (long long)data->seq_len);
    }
    for (int i = 0; i < 2; i++)
        p.reference[i] = strtof(line, &line);
    data->pair =
        ct_arena_grow(&data->arena, data->pair, &data->room, data->count + 1, sizeof(*data->pair));
    data->pair[data->count++] = p;
    return 0;
}

static void close_data(struct ct_data *data)
{
    ct_arena_finish(&data->arena);
    free(data);
}

static int open_data(const struct ct_data_request *request, struct ct_data **out)
{
    struct ct_data *data = calloc(1, sizeof(*data));
    FILE *in = fopen(config.path, "r");
    static char line[MOST_LINE];
    int rc = data && in ? 0 : ct_fail(CT_ECONFIG, "[dpo] path = %s: cannot be read", config.path);

    if (data)
        data->seq_len = request->seq_len;
    while (rc == 0 && fgets(line, sizeof(line), in))
        rc = read_pair(data, line);
    if (in)
        fclose(in);
    if (rc == 0 && !data->count)
        rc = ct_fail(CT_ECONFIG, "[dpo] path = %s: no pairs", config.path);
    if (rc < 0 && data)
        close_data(data);
    else
        *out = data;
    return rc;
}

/* Samples 2i and 2i + 1 are pair i. */
static int read_sample(struct ct_data *data, int64_t index, void *const *sample)
{
    const struct pair *p = &data->pair[(size_t)(index / 2) % data->count];
    const int32_t *answer = p->answer[index % 2];
    int64_t size = p->answer_size[index % 2];

    for (int64_t i = 0; i < data->seq_len; i++) {
        int64_t at = i - p->prompt_size;

        if (sample[0])
            ((int32_t *)sample[0])[i] = at < 0 ? p->prompt[i] : at < size ? answer[at] : 0;
        if (sample[1])
            ((int32_t *)sample[1])[i] = at + 1 >= 0 && at + 1 < size ? answer[at + 1] : MASKED;
    }
    if (sample[2])
        *(float *)sample[2] = p->reference[index % 2];
    return 0;
}

static int64_t vocabulary(struct ct_data *data)
{
    (void)data;
    return 0;
}

static const struct ct_data_ops data = {.size = sizeof(struct ct_data_ops),
                                        .open = open_data,
                                        .close = close_data,
                                        .vocabulary = vocabulary,
                                        .streams = list_streams,
                                        .read_streams = read_sample};

CT_PLUGIN(.name = "dpo", .version = "1.0",
          .summary = "Objective: preference pairs (DPO), and data of pairs", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_OBJECTIVE, "dpo", &objective}, {CT_DATA, "dpo", &data},
                              {CT_OP, "sequence_logp", &logp_type},
                              {CT_OP, "sequence_logp_grad", &logp_grad_type},
                              {CT_OP, "preference", &preference_type},
                              {CT_OP, "preference_grad", &preference_grad_type}));
