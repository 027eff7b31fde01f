/*
 * The gradient of a model's loss against central differences, in float64, op by op through the
 * reference kernels. Each parameter is moved in a random direction of its own. Beside it, the
 * model's FLOPs are compared with those of its ops, and documents are kept apart.
 */
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/app/verify.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/objective.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>
#include <ctitan/rng.h>

#include "machine.h"

#define BATCH 2
#define TOKENS 8
#define MOST_PARAMETERS 400000
#define STEP 1e-5
#define TOLERANCE 2e-6
#define LEAST_FLOPS 0.5 /* of a model, over those of its ops */
#define MOST_FLOPS 2

static void fill_input(struct ct_trial *m, const struct ct_value *v, int64_t vocabulary)
{
    struct ct_tensor *t = ct_trial_tensor(m, v);

    for (int64_t i = 0; i < ct_tensor_count(t); i++) {
        double value = (double)(ct_philox(3, ct_rng_stream(v->name), (uint64_t)i).v[0] %
                                (uint64_t)(vocabulary > 0 ? vocabulary : 2));

        if (!strcmp(v->name, "positions"))
            value = (double)(i % TOKENS);
        else if (!strcmp(v->name, "documents"))
            value = 0;
        else if (!strcmp(v->name, "valid_tokens"))
            value = BATCH * TOKENS;
        ct_tensor_store(t, i, value);
    }
}

/* Inputs by `fill`. Parameters are near their initial values; norms' weights differ from 1. */
static void fill_values(struct ct_trial *m, int64_t vocabulary,
                        void (*fill)(struct ct_trial *m, const struct ct_value *v,
                                     int64_t vocabulary))
{
    for (size_t i = 0; i < m->graph->value_count; i++) {
        const struct ct_value *v = m->graph->values[i];

        if (v->role == CT_ROLE_INPUT || v->role == CT_ROLE_SCALAR)
            fill(m, v, vocabulary);
        else if (v->role == CT_ROLE_PARAM)
            for (int64_t k = 0; k < ct_tensor_count(ct_trial_tensor(m, v)); k++)
                ct_tensor_store(ct_trial_tensor(m, v), k,
                                (v->ndim == 1) + 0.1 * (double)ct_normal(5, ct_rng_stream(v->name),
                                                                         (uint64_t)k));
    }
}

/* A second parameter of one name is renamed NAME.2, and no file of weights has that. */
static int check_names(const struct ct_graph *graph)
{
    for (size_t i = 0; i < graph->value_count; i++) {
        const struct ct_value *v = graph->values[i], *first;
        const char *dot = v->role == CT_ROLE_PARAM ? strrchr(v->name, '.') : NULL;
        char name[256];

        if (!dot || dot[1] < '2' || dot[1] > '9' || dot[1 + strspn(dot + 1, "0123456789")] ||
            dot - v->name >= (int)sizeof(name))
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(dot - v->name), v->name);
        first = ct_graph_find(graph, name);
        if (first && first->role == CT_ROLE_PARAM)
            return ct_fail(CT_EINVAL,
                           "two parameters are called %s: each needs a name of its own, and one "
                           "that is used twice is created once",
                           name);
    }
    return 0;
}

/* The plan of tensor parallelism names every parameter, and says how it is split. */
static int check_plan(const struct ct_graph *graph, const struct ct_shard_rule *plan)
{
    for (size_t i = 0; plan && i < graph->value_count; i++) {
        const struct ct_value *v = graph->values[i];
        const struct ct_shard_rule *rule = plan;

        while (v->role == CT_ROLE_PARAM && rule->pattern && fnmatch(rule->pattern, v->name, 0))
            rule++;
        if (v->role != CT_ROLE_PARAM)
            continue;
        if (!rule->pattern)
            return ct_fail(CT_EINVAL, "no pattern of its shard_plan fits the parameter %s",
                           v->name);
        if (rule->how < CT_SHARD_COLWISE || rule->how > CT_SHARD_REPLICATE)
            return ct_fail(CT_EINVAL, "shard_plan: %s has how = %d, which is no CT_SHARD_..",
                           rule->pattern, (int)rule->how);
    }
    return 0;
}

/* The streams of the data source that is loaded; NULL: those of text. */
static int find_streams(struct ct_trial *m, const struct ct_data_stream **streams)
{
    const struct ct_data_request request = {.seq_len = TOKENS};
    const struct ct_offer *offer = ct_offer_at(CT_DATA, 0);
    const struct ct_data_ops *ops = offer ? offer->ops : NULL;

    *streams = NULL;
    return ops && ops->streams ? ct_data_streams(ops, &request, &m->arena, streams) : 0;
}

#define NO_DOCUMENTS 1 /* the data has none */

/* Everything in float64. */
static int build(struct ct_trial *m, const struct ct_model_ops *ops, struct ct_model *model,
                 bool documents)
{
    const struct ct_model_request request = {
        .batch = BATCH, .seq_len = TOKENS, .documents = documents};
    struct ct_objective objective = {
        .request = &request, .model_ops = ops, .model = model, .ops = &ct_objective_cross_entropy};
    int64_t elements = 0;
    int rc;

    m->graph = objective.graph = ct_graph_create(&m->arena, "model");
    rc = find_streams(m, &m->graph->streams);
    if (rc == 0 && documents && !ct_graph_find_stream(m->graph, "documents"))
        return NO_DOCUMENTS;
    if (rc == 0)
        rc = ct_objective_build(&objective);
    if (rc == 0)
        rc = check_names(m->graph);
    if (rc == 0)
        rc = check_plan(m->graph, ops->shard_plan);
    for (size_t i = 0; rc == 0 && i < m->graph->value_count; i++) {
        struct ct_value *v = m->graph->values[i];

        if (ct_dtype_is_float(v->dtype))
            v->dtype = CT_F64;
        if (v->role == CT_ROLE_PARAM)
            elements += ct_shape_count(v->ndim, v->shape);
    }
    if (rc == 0 && elements > MOST_PARAMETERS)
        return ct_fail(CT_ECONFIG,
                       "the model has %lld parameters, but finite differences allow at most %d: "
                       "make it smaller with --set",
                       (long long)elements, MOST_PARAMETERS);
    if (rc == 0)
        rc = ct_graph_infer(m->graph);
    if (rc == 0)
        rc = ct_differentiate(m->graph);
    return rc == 0 ? ct_graph_verify(m->graph, NULL) : rc;
}

/* Run what the model computes for each microbatch: the loss, and then the gradients. */
static int run_microbatch(struct ct_trial *m, bool gradients)
{
    int rc = 0;

    ct_for_each_op (op, m->graph)
        if (rc == 0 &&
            (op->section->part == CT_PART_F || (op->section->part == CT_PART_PRE) ||
             (gradients && (op->section->part == CT_PART_I || op->section->part == CT_PART_W))))
            rc = ct_trial_run(m, op);
    return rc;
}

/* A gradient may make the loss, and its forward op be gone. */
static double loss(struct ct_trial *m)
{
    const struct ct_value *v = ct_graph_fetched(m->graph, "loss");

    if (run_microbatch(m, v->producer->section->part != CT_PART_F) < 0)
        return NAN;
    return ct_tensor_load(ct_trial_tensor(m, v), 0);
}

static double direction(const struct ct_value *v, int64_t element)
{
    return (double)ct_normal(11, ct_rng_stream(v->name), (uint64_t)element);
}

/* The product of v's direction and its gradient. */
static double slope(struct ct_trial *m, const struct ct_value *v)
{
    const struct ct_tensor *grad = v->grad ? ct_trial_tensor(m, v->grad) : NULL;
    double sum = 0;

    for (int64_t i = 0; grad && i < ct_tensor_count(grad); i++)
        sum += direction(v, i) * ct_tensor_load(grad, i);
    return sum;
}

/* Add step times the direction of v to it. */
static void move(struct ct_trial *m, const struct ct_value *v, double step)
{
    struct ct_tensor *t = ct_trial_tensor(m, v);

    for (int64_t i = 0; i < ct_tensor_count(t); i++)
        ct_tensor_store(t, i, ct_tensor_load(t, i) + step * direction(v, i));
}

/* got: the gradient in the direction of v, at the values that nothing has moved yet. */
static int check_parameter(struct ct_trial *m, const struct ct_value *v, double got)
{
    double scale = BATCH * TOKENS, above, below, want;

    got *= scale;
    move(m, v, STEP);
    above = loss(m);
    move(m, v, -2 * STEP);
    below = loss(m);
    move(m, v, STEP);
    want = (above - below) / (2 * STEP);
    if (fabs(got - want) <= TOLERANCE * (fabs(want) + scale))
        return 0;
    return ct_fail(CT_EINVAL,
                   "gradient of %s in a random direction: %.9g%s; by differences of the loss it is "
                   "%.9g",
                   v->name, got, v->grad ? "" : " (it has no gradient)", want);
}

/* Whether v has a derivative of the loss as gradient. A router's bias has none. */
static bool is_checked(const struct ct_value *v)
{
    if (v->role != CT_ROLE_PARAM)
        return false;
    return !v->grad || !v->grad->producer || v->grad->producer->type != &ct_op_expert_excess;
}

/* ---- FLOPs ---- */

/* FLOPs that its ops count for each token, forward and backward. */
static double counted_flops(const struct ct_graph *graph)
{
    double sum = 0;

    ct_for_each_op (op, graph)
        if (op->section->part != CT_PART_INIT && op->section->part != CT_PART_POST)
            sum += ct_op_flops(graph, op, -1);
    return sum / (BATCH * TOKENS);
}

static int check_model_flops(const struct ct_graph *graph, const struct ct_model_ops *ops,
                             const struct ct_model *model)
{
    double whole = NAN, halved = NAN, counted = counted_flops(graph);

    if (!ops->flops_per_token) /* a plugin without it is not loaded */
        return 0;
    ops->flops_per_token(model, TOKENS, &whole, &halved);
    if (!isfinite(whole) || !isfinite(halved) || halved <= 0 || halved > whole)
        return ct_fail(CT_EINVAL,
                       "`flops_per_token` gives %g, and %g with attention halved: expected "
                       "positive numbers, the second no larger than the first",
                       whole, halved);
    if (whole > MOST_FLOPS * counted || whole < LEAST_FLOPS * counted)
        return ct_fail(CT_EINVAL,
                       "`flops_per_token` gives %g for sequences of %d tokens, and the ops of the "
                       "model count %g: MFU would be wrong",
                       whole, TOKENS, counted);
    return 0;
}

/* ---- documents ---- */

#define FIRST 3 /* tokens of the first document of each sequence */

static void fill_documents(struct ct_trial *m, const struct ct_value *v, int64_t vocabulary)
{
    struct ct_tensor *t = ct_trial_tensor(m, v);

    fill_input(m, v, vocabulary);
    for (int64_t i = 0; i < ct_tensor_count(t); i++) {
        bool first = i % TOKENS < FIRST;

        if (!strcmp(v->name, "documents"))
            ct_tensor_store(t, i, first ? 4 : 7);
        else if (!strcmp(v->name, "positions"))
            ct_tensor_store(t, i, (double)(i % TOKENS - (first ? 0 : FIRST)));
        else if (!strcmp(v->name, "labels") && first)
            ct_tensor_store(t, i, -100);
    }
}

/* Whether tokens of one document change the loss of another's. */
static int check_documents(const struct ct_model_ops *ops, struct ct_model *model)
{
    struct ct_trial m = {0};
    int64_t vocabulary = ops->vocabulary(model);
    const struct ct_value *tokens;
    double before, after;
    int rc = build(&m, ops, model, true);

    if (rc == 0)
        fill_values(&m, vocabulary, fill_documents);
    tokens = rc == 0 ? ct_graph_find(m.graph, "tokens") : NULL;
    if (tokens) {
        struct ct_tensor *t = ct_trial_tensor(&m, tokens);

        before = loss(&m);
        for (int64_t i = 0; i < ct_tensor_count(t); i++)
            if (i % TOKENS < FIRST)
                ct_tensor_store(t, i, fmod(ct_tensor_load(t, i) + 1, (double)vocabulary));
        after = loss(&m);
        if (!(fabs(after - before) <= 1e-9 * fabs(before)))
            rc = ct_fail(CT_EINVAL,
                         "tokens of one document change the loss of the next one, from %.9g to "
                         "%.9g: a model whose tokens see each other takes the input \"documents\" "
                         "where it is requested",
                         before, after);
    }
    ct_trial_finish(&m);
    return rc < 0 ? ct_context(rc, "with documents") : 0; /* or NO_DOCUMENTS */
}

int ct_check_model(const struct ct_model_ops *ops, struct ct_model *model)
{
    struct ct_trial m = {0};
    double *got;
    int rc = build(&m, ops, model, false), checked = 0;

    if (rc == 0)
        rc = check_model_flops(m.graph, ops, model);
    if (rc == 0)
        fill_values(&m, ops->vocabulary(model), fill_input);
    if (rc == 0)
        rc = run_microbatch(&m, true);
    got = ct_arena_array(&m.arena, double, m.graph->value_count + 1);
    for (size_t i = 0; rc == 0 && i < m.graph->value_count; i++)
        got[i] = is_checked(m.graph->values[i]) ? slope(&m, m.graph->values[i]) : 0;
    for (size_t i = 0; rc == 0 && i < m.graph->value_count; i++)
        if (is_checked(m.graph->values[i])) {
            rc = check_parameter(&m, m.graph->values[i], got[i]);
            checked++;
        }
    ct_trial_finish(&m);
    if (rc == 0)
        rc = check_documents(ops, model);
    return rc < 0 ? rc : checked;
}
