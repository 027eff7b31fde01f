/*
 * Opening a run: recipe to graph, graph to program, program to memory with weights in it.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>
#include <ctitan/rng.h>
#include <ctitan/run.h>
#include <ctitan/safetensors.h>

#include "actions.h"
#include "collective.h"
#include "compare.h"

double ct_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- what the recipe's plugins offer ---- */

static int find_offers(struct ct_run *run, bool train)
{
    const struct ct_offer *offer;
    int rc = ct_offer_find(CT_MODEL, ct_config.model.name, &offer);

    if (rc < 0)
        return ct_context(rc, "[model] name = %s", ct_config.model.name);
    run->model = offer->ops;
    rc = ct_offer_find(CT_DEVICE, NULL, &offer);
    if (rc < 0)
        return rc;
    run->device_ops = offer->ops;
    if (ct_offer_at(CT_TOKENIZER, 0)) {
        rc = ct_offer_find(CT_TOKENIZER, NULL, &offer);
        if (rc < 0)
            return rc;
        run->tokenizer = offer->ops;
    }
    if (!train)
        return 0;
    rc = ct_offer_find(CT_OPTIMIZER, NULL, &offer);
    if (rc < 0)
        return rc;
    run->optimizer = offer->ops;
    rc = ct_offer_find(CT_DATA, NULL, &offer);
    if (rc < 0)
        return rc;
    run->data_ops = offer->ops;
    return 0;
}

/* ---- mesh ---- */

static const char *const axis_order[] = {"pp", "dp_replicate", "dp_shard", "cp", "tp"};

/* Degrees that plugins ask for, in axis_order; -1: what is left. */
static void ask_degrees(int64_t *degrees)
{
    const struct ct_offer *offer;

    for (size_t i = 0; i < CT_COUNT(axis_order); i++)
        degrees[i] = 1;
    for (size_t n = 0; (offer = ct_offer_at(CT_AXES, n)); n++) {
        const struct ct_axes_ops *axes = offer->ops;
        int64_t asked[CT_COUNT(axis_order)];

        axes->degrees(asked);
        for (size_t k = 0; axes->names[k]; k++)
            for (size_t i = 0; i < CT_COUNT(axis_order); i++)
                if (!strcmp(axes->names[k], axis_order[i]))
                    degrees[i] = asked[k];
    }
}

static int make_mesh(struct ct_run *run)
{
    int64_t degrees[CT_COUNT(axis_order)], product = 1;
    int rest = -1;
    char text[160] = "";

    ask_degrees(degrees);
    for (size_t i = 0; i < CT_COUNT(axis_order); i++)
        if (degrees[i] < 0)
            rest = (int)i;
        else
            product *= degrees[i];
    if (rest >= 0) {
        degrees[rest] = run->world / product ? run->world / product : 1;
        product *= degrees[rest];
    }
    for (size_t i = 0; i < CT_COUNT(axis_order); i++) {
        size_t n = strlen(text);

        snprintf(text + n, sizeof(text) - n, "%s%s %lld", i ? " x " : "", axis_order[i],
                 (long long)degrees[i]);
        if (degrees[i] > 1)
            run->mesh.axis[run->mesh.count++] = (struct ct_axis){axis_order[i], degrees[i]};
    }
    if (product != run->world)
        return ct_fail(CT_ECONFIG,
                       "the mesh %s makes %lld ranks, but there are %lld: choose degrees that "
                       "multiply to that, or let plugin fsdp take what is left (shard_degree = -1)",
                       text, (long long)product, (long long)run->world);
    return 0;
}

static int64_t axis_degree(const struct ct_run *run, const char *name)
{
    int axis = ct_mesh_find(&run->mesh, name);

    return axis < 0 ? 1 : run->mesh.axis[axis].size;
}

/* Sequences in a microbatch over all data-parallel ranks, and microbatches in a step. */
static int batch_sizes(const struct ct_run *run, int64_t *batch, int *microbatches)
{
    const struct ct_training_config *t = &ct_config.training;
    int64_t dp = axis_degree(run, "dp_replicate") * axis_degree(run, "dp_shard");
    int64_t global = t->global_batch_size < 0 ? t->local_batch_size * dp : t->global_batch_size;
    int64_t size;
    int rc = ct_run_microbatch_size(run, &size);

    if (rc < 0)
        return rc;
    *batch = size * dp;
    if (global % (t->local_batch_size * dp))
        return ct_fail(
            CT_ECONFIG,
            "[training] global_batch_size = %lld is not a multiple of local_batch_size x "
            "data-parallel degree = %lld x %lld",
            (long long)global, (long long)t->local_batch_size, (long long)dp);
    *microbatches = (int)(global / *batch);
    return 0;
}

/* ---- graph ---- */

static void set_parameter_dtype(struct ct_graph *graph, enum ct_dtype dtype)
{
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM)
            graph->values[i]->dtype = dtype;
}

static int transform(struct ct_run *run, struct ct_graph *graph,
                     const struct ct_pass_options *options)
{
    const struct ct_transform *list[64] = {&ct_pass_precision, &ct_pass_differentiate,
                                           &ct_pass_update,    &ct_pass_collect,
                                           &ct_pass_propagate, &ct_pass_localise};
    const struct ct_offer *offer;
    size_t count = 6;

    for (size_t n = 0; (offer = ct_offer_at(CT_TRANSFORM, n)); n++) {
        if (count == CT_COUNT(list))
            return ct_fail(CT_ECONFIG, "more than %zu transforms", CT_COUNT(list));
        list[count++] = offer->ops;
    }
    return ct_passes_run(graph, list, count, run, options);
}

static void dump_built(const struct ct_graph *graph, const struct ct_pass_options *options)
{
    const char *which = options->dump ? options->dump_after : NULL;

    if (!which || (strcmp(which, "all") && strcmp(which, "changed") && strcmp(which, "build")))
        return;
    fprintf(options->dump, "# as built by model %s\n", ct_config.model.name);
    ct_graph_print(graph, options->dump);
    fputc('\n', options->dump);
}

static int build_graph(struct ct_run *run, const struct ct_model_request *request,
                       struct ct_pass_options options, struct ct_graph **graph)
{
    enum ct_dtype dtype;
    int rc = ct_dtype_parse(ct_config.training.dtype, &dtype);

    if (rc < 0)
        return rc;
    *graph = ct_graph_create(&run->arena, ct_config.model.name);
    (*graph)->mesh = run->mesh;
    (*graph)->seed = (uint64_t)ct_config.training.seed;
    rc = run->model->build(*graph, request);
    if (rc < 0)
        return ct_context(rc, "building model %s", ct_config.model.name);
    if (!request->logits)
        ct_graph_fetch(*graph, "valid_tokens",
                       ct_graph_source(*graph, CT_ROLE_SCALAR, "valid_tokens", CT_F32, 0, NULL));
    set_parameter_dtype(*graph, dtype);
    rc = ct_graph_infer(*graph);
    if (rc < 0)
        return rc;
    dump_built(*graph, &options);
    rc = transform(run, *graph, &options);
    if (rc == 0)
        ct_graph_sweep(*graph);
    return rc;
}

static int open_graphs(struct ct_run *run, const struct ct_run_options *options, int *microbatches)
{
    struct ct_model_request request = {.seq_len = ct_config.training.seq_len,
                                       .logits = options->logits};
    struct ct_pass_options passes = options->passes;
    int rc = batch_sizes(run, &request.batch, microbatches);

    if (rc < 0)
        return rc;
    if (options->logits)
        request.batch = *microbatches = 1;
    request.documents = run->data_ops && run->data_ops->has_documents();
    passes.training = !options->logits;
    rc = build_graph(run, &request, passes, &run->graph);
    if (rc < 0)
        return rc;
    if (options->logits || !ct_config.validation.freq)
        return 0;
    passes = (struct ct_pass_options){.training = false};
    rc = build_graph(run, &request, passes, &run->validation_graph);
    return rc < 0 ? ct_context(rc, "the graph for validation") : 0;
}

/* ---- program ---- */

static int lower(struct ct_run *run, struct ct_graph *graph, int microbatches, bool training,
                 bool borrow, struct ct_program **program)
{
    struct ct_action_list *actions = ct_arena_new(&run->arena, struct ct_action_list);
    struct ct_communicator *communicator = run->communicator.comm ? &run->communicator : NULL;
    struct ct_lower_request request = {.graph = graph,
                                       .actions = actions,
                                       .microbatches = microbatches,
                                       .device = run->device,
                                       .communicator = communicator,
                                       .rank = run->rank,
                                       .borrow = borrow,
                                       .arena = &run->arena};
    int rc = ct_run_actions(run, graph, microbatches, training, actions);

    if (rc == 0 && communicator)
        rc = ct_communicator_pairs(communicator, &run->mesh, run->rank, graph->peers,
                                   graph->peer_count);
    return rc == 0 ? ct_lower(&request, program) : rc;
}

/* Microbatches of one batch, without accumulation. */
static int batch_microbatches(const struct ct_run *run)
{
    int64_t size = 1;

    return ct_run_microbatch_size(run, &size) < 0
               ? 1
               : (int)(ct_config.training.local_batch_size / size);
}

/* Validation runs where training keeps nothing between two steps. */
static void make_room(size_t *bytes, const struct ct_memory *training,
                      const struct ct_memory *validation)
{
    if (*bytes < training->persistent + validation->bytes)
        *bytes = training->persistent + validation->bytes;
}

static int open_programs(struct ct_run *run, const struct ct_run_options *options, int microbatches)
{
    int rc = lower(run, run->graph, microbatches, !options->logits, false, &run->program);

    if (rc < 0)
        return ct_context(rc, "lowering");
    run->arena_bytes = run->program->memory.bytes;
    run->offloaded_bytes = run->program->offloaded.bytes;
    if (!run->validation_graph)
        return 0;
    rc = lower(run, run->validation_graph, batch_microbatches(run), false, true,
               &run->validation_program);
    if (rc < 0)
        return ct_context(rc, "lowering for validation");
    make_room(&run->arena_bytes, &run->program->memory, &run->validation_program->memory);
    make_room(&run->offloaded_bytes, &run->program->offloaded, &run->validation_program->offloaded);
    return 0;
}

/* ---- weights ---- */

static int load_weight(struct ct_run *run, const struct ct_weights *weights,
                       const struct ct_value *param)
{
    const struct ct_weight *w = ct_weights_find(weights, param->name);
    struct ct_tensor t = ct_executor_tensor(run->executor, param, -1);
    size_t bytes = (size_t)ct_tensor_count(&t) * ct_dtype_size(t.dtype);
    int64_t local[CT_MAX_RANK], offset[CT_MAX_RANK];
    void *host;
    int rc;

    if (!w)
        return ct_fail(CT_ENOENT, "no tensor %s in it", param->name);
    if (w->rank != param->rank ||
        memcmp(w->shape, param->shape, sizeof(*w->shape) * (size_t)w->rank))
        return ct_fail(CT_EINVAL, "tensor %s has another shape than the model's", param->name);
    ct_sharding_local(&param->sharding, &run->mesh, run->rank, param->rank, param->shape, local,
                      offset);
    host = malloc(bytes ? bytes : 1);
    if (!host)
        return ct_fail(CT_ENOMEM, "%zu bytes to read %s", bytes, param->name);
    rc = ct_weights_read(w, offset, local, t.dtype, host);
    if (rc == 0)
        rc = ct_executor_write(run->executor, param, -1, host, bytes);
    free(host);
    return rc;
}

/* Of the whole model, this rank's or not. */
static bool is_parameter(const struct ct_run *run, const char *name)
{
    for (size_t i = 0; i < run->weight_count; i++)
        if (!strcmp(run->weights[i].name, name))
            return true;
    return false;
}

static int load_weights(struct ct_run *run, const char *folder)
{
    struct ct_weights *weights;
    int rc = ct_weights_open(folder, &weights);

    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < run->graph->value_count; i++)
        if (run->graph->values[i]->role == CT_ROLE_PARAM)
            rc = load_weight(run, weights, run->graph->values[i]);
    for (size_t i = 0; rc == 0 && i < ct_weights_count(weights); i++)
        if (!is_parameter(run, ct_weights_at(weights, i)->name))
            ct_warn("%s: tensor %s is not used by the model", folder,
                    ct_weights_at(weights, i)->name);
    ct_weights_close(weights);
    return rc < 0 ? ct_context(rc, "[model] init_from = %s", folder) : 0;
}

static int open_memory(struct ct_run *run)
{
    struct ct_executor_memory memory = {.bytes = run->arena_bytes,
                                        .offloaded = run->offloaded_bytes};
    int rc = 0;

    if (run->communicator.comm && run->communicator.ops->reserve && run->device->host_memory)
        rc = run->communicator.ops->reserve(run->communicator.comm, run->arena_bytes, &memory.base);
    if (rc == 0)
        rc = ct_executor_create(run->program, run->device, &memory, &run->executor);
    if (rc == 0)
        rc = ct_executor_init(run->executor);
    if (rc == 0 && *ct_config.model.init_from)
        rc = load_weights(run, ct_config.model.init_from);
    if (rc == 0 && run->validation_program)
        rc = ct_executor_create_borrowing(run->validation_program, run->executor,
                                          &run->validation_executor);
    return rc;
}

/* ---- data ---- */

static int open_data(struct ct_run *run)
{
    struct ct_data_request request = {.seq_len = ct_config.training.seq_len,
                                      .seed = (uint64_t)ct_config.training.seed,
                                      .tokenizer = run->tokenizer};
    int64_t need, have = run->model->vocabulary();
    int rc = run->data_ops->open(&request, &run->data);

    if (rc < 0)
        return rc;
    need = run->data_ops->vocabulary(run->data);
    if (need > have)
        return ct_fail(CT_ECONFIG, "the data needs a vocabulary of %lld, the model has %lld",
                       (long long)need, (long long)have);
    request.validation = true;
    return ct_config.validation.freq ? run->data_ops->open(&request, &run->validation_data) : 0;
}

/* ---- the whole ---- */

static int open_device(struct ct_run *run, const struct ct_run_options *options)
{
    struct ct_device_request request = {.local_rank = options->local_rank,
                                        .local_ranks =
                                            options->local_ranks ? options->local_ranks : 1};

    return run->device_ops->open(&request, &run->device);
}

static int open_communicator(struct ct_run *run, const struct ct_run_options *options)
{
    struct ct_comm_request request = {.rank = (int)run->rank,
                                      .world = (int)run->world,
                                      .local_rank = options->local_rank,
                                      .local_ranks = options->local_ranks,
                                      .job = options->job,
                                      .timeout = ct_config.comm.timeout};
    const struct ct_offer *offer;
    int rc;

    if (run->world == 1)
        return 0;
    rc = ct_offer_find(CT_COMMUNICATOR, NULL, &offer);
    if (rc < 0)
        return ct_context(rc, "%lld ranks", (long long)run->world);
    run->communicator.ops = offer->ops;
    run->communicator.groups = ct_arena_new(&run->arena, struct ct_communicator_groups);
    rc = run->communicator.ops->open(&request, &run->communicator.comm);
    return rc < 0 ? rc : ct_run_compare(run);
}

static int open_run(struct ct_run *run, const struct ct_run_options *options)
{
    int microbatches = 1, rc = find_offers(run, !options->logits);

    if (rc == 0 && !options->logits)
        rc = make_mesh(run);
    if (rc == 0)
        rc = run->model->configure(run);
    if (rc == 0 && options->depth == CT_RUN_READY && !options->logits)
        rc = open_data(run);
    if (rc == 0 && options->depth > CT_RUN_GRAPH)
        rc = open_device(run, options); /* first: its transforms may ask how many threads it has */
    if (rc == 0)
        rc = open_graphs(run, options, &microbatches);
    if (rc < 0 || options->depth == CT_RUN_GRAPH)
        return rc;
    if (options->depth == CT_RUN_READY)
        rc = open_communicator(run, options);
    if (rc == 0)
        rc = open_programs(run, options, microbatches);
    if (rc < 0 || options->depth == CT_RUN_PROGRAM)
        return rc;
    rc = open_memory(run);
    if (rc == 0 && ct_hook_wanted(CT_EVENT_PLAN_READY))
        rc = ct_hook_fire(&(struct ct_event_data){.event = CT_EVENT_PLAN_READY, .run = run});
    return rc;
}

int ct_run_open(struct ct_recipe *recipe, const struct ct_run_options *options, struct ct_run **out)
{
    struct ct_run *run = calloc(1, sizeof(*run));
    int rc;

    if (!run)
        return ct_fail(CT_ENOMEM, "a run");
    run->recipe = recipe;
    run->rank = options->rank;
    run->world = options->world ? options->world : 1;
    run->start_time = ct_now();
    rc = open_run(run, options);
    if (rc < 0) {
        ct_run_close(run);
        return rc;
    }
    *out = run;
    return 0;
}

void ct_run_close(struct ct_run *run)
{
    if (!run)
        return;
    ct_executor_destroy(run->validation_executor);
    ct_executor_destroy(run->executor);
    if (run->communicator.comm)
        run->communicator.ops->close(run->communicator.comm);
    if (run->validation_data)
        run->data_ops->close(run->validation_data);
    if (run->data)
        run->data_ops->close(run->data);
    if (run->device)
        run->device_ops->close(run->device);
    ct_arena_finish(&run->arena);
    free(run);
}
