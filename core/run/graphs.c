/*
 * The graphs of a run: built by the objective and the model, then transformed, first as all ranks
 * have them, then as this one does.
 */
#include <string.h>

#include <ctitan/calling.h>
#include <ctitan/error.h>
#include <ctitan/objective.h>
#include <ctitan/plugins.h>
#include <ctitan/run.h>

#include "ir/text/text.h"
#include "run/open.h"
#include "run/open_data.h"
#include "run/states.h"
#include "run/weights.h"

/* Weights of a second set are not updated: the dtype that they are computed with is enough. */
static void set_parameter_dtypes(struct ct_graph *graph)
{
    enum ct_dtype dtype = ct_config.training.dtype;
    enum ct_dtype computed = ct_config.training.mixed_precision_param;

    if (ct_dtype_size(computed) > ct_dtype_size(dtype))
        computed = dtype;
    for (size_t i = 0; i < graph->value_count; i++) {
        struct ct_value *v = graph->values[i];

        if (v->role == CT_ROLE_PARAM && !v->dtype_fixed)
            v->dtype = v->set ? computed : dtype;
    }
}

#define TRANSFORMS 256 /* of a run, at most */

static int append(const struct ct_transform **list, size_t *count, const struct ct_transform *added)
{
    if (*count == TRANSFORMS)
        return ct_fail(CT_ECONFIG, "more than %d transforms: load fewer plugins", TRANSFORMS);
    list[(*count)++] = added;
    return 0;
}

/* Remove the transforms that [training] skip lists. */
static int leave_out(const struct ct_transform **list, size_t *count)
{
    const char *at = ct_config.training.skip ? ct_config.training.skip : "";
    size_t n, i;

    for (at += strspn(at, ", "); *at; at += strspn(at, ", ")) {
        n = strcspn(at, ", ");
        for (i = 0; i < *count && (strlen(list[i]->name) != n || memcmp(list[i]->name, at, n));)
            i++;
        if (i == *count)
            return ct_fail(CT_ECONFIG, "[training] skip: there is no transform %.*s", (int)n, at);
        if (list[i]->required)
            return ct_fail(CT_ECONFIG, "[training] skip: no run can do without %.*s", (int)n, at);
        memmove(&list[i], &list[i + 1], sizeof(*list) * (--*count - i));
        at += n;
    }
    return 0;
}

int ct_run_transform(struct ct_run *run, struct ct_graph *graph,
                     const struct ct_pass_options *options)
{
    const struct ct_transform *list[TRANSFORMS] = {&ct_pass_differentiate, &ct_pass_propagate,
                                                   &ct_pass_states};
    const struct ct_transform *registered;
    const struct ct_offer *offer;
    size_t count = 3;
    int rc = 0;

    for (size_t n = 0; rc == 0 && (registered = ct_transform_at(n)); n++)
        rc = append(list, &count, registered);
    for (size_t n = 0; rc == 0 && (offer = ct_offer_at(CT_TRANSFORM, n)); n++)
        rc = append(list, &count, offer->ops);
    if (rc == 0)
        rc = leave_out(list, &count);
    return rc < 0 ? rc : ct_passes_run(graph, list, count, run, options);
}

/* Check what generating needs from a model. */
static int check_model(const struct ct_graph *graph, const struct ct_model_request *request)
{
    const struct ct_value *tokens = ct_graph_find_input(graph, "tokens");
    const struct ct_value *logits = ct_graph_fetched(graph, "logits");

    if (!graph->first)
        return ct_fail(CT_EINVAL, "it has no op");
    if (!tokens)
        return ct_fail(CT_EINVAL, "it declares no input \"tokens\"");
    if (tokens->ndim != 2 || tokens->shape[0] != request->batch ||
        tokens->shape[1] != request->seq_len)
        return ct_fail(CT_EINVAL, "its input \"tokens\" is not [%lld, %lld]",
                       (long long)request->batch, (long long)request->seq_len);
    if (!logits || !logits->producer)
        return ct_fail(CT_EINVAL, "it fetches no \"logits\"");
    if (logits->ndim != 3)
        return ct_fail(CT_EINVAL, "its \"logits\" has %d dimensions, not 3", logits->ndim);
    return ct_graph_check_inputs(graph, request->documents);
}

static int build_logits(struct ct_run *run, struct ct_graph *graph,
                        const struct ct_model_request *request)
{
    struct ct_calling before = ct_calling_begin("model", NULL);
    int rc = run->model_ops->build(run->model, graph, request);

    ct_calling_end(&before);
    return rc < 0 ? rc : check_model(graph, request);
}

static int build_loss(struct ct_run *run, struct ct_graph *graph,
                      const struct ct_model_request *request, bool training)
{
    struct ct_objective objective = {.graph = graph,
                                     .request = request,
                                     .model_ops = run->model_ops,
                                     .model = run->model,
                                     .ops = run->objective,
                                     .validation = !training};
    int rc = ct_objective_build(&objective);

    return rc < 0 ? rc : ct_graph_check_inputs(graph, true);
}

/* The graph as built by the model. */
static int build_graph(struct ct_run *run, const struct ct_model_request *request, bool training,
                       struct ct_graph **graph)
{
    int rc;

    *graph = ct_graph_create(&run->arena, ct_config.model.name);
    (*graph)->mesh = run->mesh;
    (*graph)->seed = (uint64_t)ct_config.training.seed;
    (*graph)->streams = request->logits ? NULL : run->streams;
    rc = request->logits ? build_logits(run, *graph, request)
                         : build_loss(run, *graph, request, training);
    if (rc < 0)
        return ct_context(rc, "model %s", ct_config.model.name);
    rc = ct_run_note_sets(run, *graph, request);
    if (rc == 0)
        set_parameter_dtypes(*graph);
    return rc < 0 ? rc : ct_graph_infer(*graph);
}

int ct_run_specialise(struct ct_run *run, struct ct_graph *graph, bool trained,
                      struct ct_pass_options options)
{
    int rc;

    options.range = CT_PASSES_OF_ONE_RANK;
    rc = ct_run_transform(run, graph, &options);
    if (rc < 0)
        return rc;
    ct_graph_sweep(graph);
    return ct_graph_check_inputs(graph, trained);
}

/* common: where to store a copy of the graph shared by all ranks, or NULL. */
static int open_graph(struct ct_run *run, const struct ct_model_request *request,
                      struct ct_pass_options options, struct ct_graph **common,
                      struct ct_graph **graph)
{
    int rc = build_graph(run, request, options.training, graph);

    if (rc < 0)
        return rc;
    if (options.dump)
        ct_dump_built(options.dump, *graph);
    options.range = CT_PASSES_OF_ALL_RANKS;
    rc = ct_run_transform(run, *graph, &options);
    if (rc == 0 && common)
        *common = ct_graph_clone(*graph, &run->arena);
    return rc == 0 ? ct_run_specialise(run, *graph, !request->logits || request->documents, options)
                   : rc;
}

/* An axis that does not multiply the batch splits the sequences of one microbatch. Kernels need not
 * take a batch without sequences, as the last rank may have it. */
static int check_batch(const struct ct_run *run)
{
    for (size_t i = 0; i < run->graph->value_count; i++) {
        const struct ct_value *v = run->graph->values[i];
        int64_t local[CT_MAX_DIMS];

        if (v->role != CT_ROLE_INPUT || !v->ndim)
            continue;
        ct_sharding_local(&v->sharding, &run->mesh, run->world - 1, v->ndim, v->shape, local, NULL);
        if (!local[0])
            return ct_fail(
                CT_ECONFIG,
                "the sequences of a microbatch, %lld, are split over more ranks, and the "
                "last has none: raise [training] local_batch_size or "
                "microbatch_size",
                (long long)v->shape[0]);
    }
    return 0;
}

static bool has_stream(const struct ct_run *run, const char *name)
{
    const struct ct_data_stream *s = run->streams;

    while (s->name && strcmp(s->name, name) != 0)
        s++;
    return s->name;
}

int ct_run_open_graphs(struct ct_run *run, const struct ct_run_options *options)
{
    struct ct_model_request request = {.seq_len = ct_config.training.seq_len,
                                       .logits = options->logits};
    struct ct_pass_options passes = options->passes;
    int64_t dp = ct_mesh_degree(&run->mesh, run->batch_axes);
    int microbatches;
    int rc = options->logits ? 0 : ct_run_batch_sizes(run, &request.batch, &microbatches);

    if (rc < 0)
        return rc;
    if (run->stage)
        passes.dump = NULL;
    if (options->logits) {
        request.batch = ((options->sequences ? options->sequences : 1) + dp - 1) / dp * dp;
        request.seq_len = options->tokens ? options->tokens : request.seq_len;
    }
    if (run->data_ops)
        rc = ct_run_find_streams(run);
    if (rc < 0)
        return rc;
    request.documents = run->data_ops ? has_stream(run, "documents") : options->documents;
    passes.training = !options->logits;
    rc = open_graph(run, &request, passes, options->peers ? &run->common_graph : NULL, &run->graph);
    if (rc == 0 && !options->logits)
        rc = check_batch(run);
    if (rc < 0)
        return rc;
    ct_states_bind(run);
    if (options->logits ? !options->tokens : !ct_config.validation.freq)
        return 0;
    if (options->logits)
        request.seq_len = 1;
    passes = (struct ct_pass_options){.training = false};
    rc = open_graph(run, &request, passes, options->peers ? &run->common_validation_graph : NULL,
                    &run->validation_graph);
    return rc < 0 ? ct_context(rc, "the second graph") : 0;
}
