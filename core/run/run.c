/*
 * Opening a run: recipe to graph, graph to program, program to memory that holds the weights.
 */
#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/calling.h>
#include <ctitan/collective.h>
#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/plugins.h>
#include <ctitan/recipe.h>
#include <ctitan/run.h>

#include "ir/text/text.h"
#include "run/mesh.h"
#include "run/open_data.h"
#include "run/size.h"
#include "run/stages.h"
#include "run/start.h"
#include "run/states.h"
#include "run/weights.h"

struct ct_config ct_config;

/* ---- the offers of the recipe's plugins ---- */

/* The optimizer of the parameters that no other one takes. */
static int choose_optimizer(struct ct_run *run)
{
    const struct ct_offer *offer, *rest = NULL;

    for (size_t i = 0; (offer = ct_offer_at(CT_OPTIMIZER, i)); i++) {
        if (((const struct ct_optimizer_ops *)offer->ops)->takes)
            continue;
        if (rest)
            return ct_fail(CT_ECONFIG,
                           "%s and %s are both loaded, and each updates all parameters: take one "
                           "out of [plugins] load",
                           rest->name, offer->name);
        rest = offer;
    }
    if (!rest && (offer = ct_offer_at(CT_OPTIMIZER, 0)))
        return ct_fail(CT_ECONFIG,
                       "%s updates some of the parameters only: load another optimizer for the "
                       "rest",
                       offer->name);
    if (!rest)
        return ct_offer_find(CT_OPTIMIZER, NULL, &offer);
    run->optimizer = rest->ops;
    return 0;
}

/* The offer of the plugin of this kind. NULL: none does and none is needed, or *rc says
   why there is none. */
static const void *offered(enum ct_kind kind, bool needed, int *rc)
{
    const struct ct_offer *offer;

    if (*rc < 0 || (!needed && !ct_offer_at(kind, 0)))
        return NULL;
    *rc = ct_offer_find(kind, NULL, &offer);
    return *rc < 0 ? NULL : offer->ops;
}

static int choose_objective(struct ct_run *run)
{
    const char *name = ct_config.objective ? ct_config.objective : "", *fallback;
    const struct ct_objective_ops *ops = ct_objective_default(&fallback);
    const struct ct_offer *offer;
    int rc;

    run->objective = ops;
    if (ops && (!*name || !strcmp(name, fallback)))
        return 0;
    rc = ct_offer_find(CT_OBJECTIVE, *name ? name : NULL, &offer);
    if (rc < 0)
        return ct_context(rc, "[objective] name = %s", name);
    run->objective = offer->ops;
    return 0;
}

static int find_offers(struct ct_run *run, bool train)
{
    const struct ct_offer *offer;
    const char *name = ct_config.model.name;
    int rc = ct_offer_find(CT_MODEL, *name ? name : NULL, &offer);

    if (rc < 0)
        return *name ? ct_context(rc, "[model] name = %s", name) : rc;
    ct_config.model.name = offer->name;
    run->model_ops = offer->ops;
    run->device_ops = offered(CT_DEVICE, true, &rc);
    run->tokenizer = offered(CT_TOKENIZER, false, &rc);
    if (rc < 0 || !train)
        return rc;
    run->lr_schedule = offered(CT_LR_SCHEDULE, false, &rc);
    rc = rc < 0 ? rc : choose_optimizer(run);
    rc = rc < 0 ? rc : choose_objective(run);
    run->data_ops = offered(CT_DATA, true, &rc);
    return rc;
}

/* ---- graph ---- */

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

static int transform(struct ct_run *run, struct ct_graph *graph,
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

/* Turn the graph shared by all ranks into this rank's. trained: its inputs are those of training,
   not those of generating. */
static int specialise_graph(struct ct_run *run, struct ct_graph *graph, bool trained,
                            struct ct_pass_options options)
{
    int rc;

    options.range = CT_PASSES_OF_ONE_RANK;
    rc = transform(run, graph, &options);
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
    rc = transform(run, *graph, &options);
    if (rc == 0 && common)
        *common = ct_graph_clone(*graph, &run->arena);
    return rc == 0 ? specialise_graph(run, *graph, !request->logits || request->documents, options)
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

static int open_graphs(struct ct_run *run, const struct ct_run_options *options)
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

/* ---- device ---- */

static int open_device(struct ct_run *run, const struct ct_run_options *options)
{
    struct ct_device_request request = {.local_rank = options->local_rank,
                                        .local_ranks =
                                            options->local_ranks ? options->local_ranks : 1};

    int rc = run->device_ops->open(&request, &run->device);

    if (rc == 0)
        run->device->ops = run->device_ops; /* in this build's layout */
    return rc;
}

/* ---- program ---- */

static int lower(struct ct_run *run, struct ct_graph *graph, struct ct_arena *arena,
                 int microbatches, bool training, bool borrow, struct ct_program **program)
{
    struct ct_order *order = ct_arena_new(arena, struct ct_order);
    struct ct_communicator *communicator = run->communicator.comm ? &run->communicator : NULL;
    struct ct_lower_request request = {.graph = graph,
                                       .order = order,
                                       .microbatches = microbatches,
                                       .device = run->device,
                                       .communicator = communicator,
                                       .rank = run->rank,
                                       .borrow = borrow,
                                       .arena = arena,
                                       .repeatable = ct_config.deterministic};
    const struct ct_order_ops *ops;
    double beside = 0;
    int rc = ct_run_find_order(&ops);

    if (rc == 0)
        rc = ct_run_check_size(graph, microbatches, &beside);
    if (rc == 0 && ops)
        rc = ops->order(run, graph, microbatches, training, arena, order);
    else if (rc == 0)
        ct_order_default(graph, microbatches, arena, order);
    if (rc == 0 && communicator)
        rc = ct_communicator_open(communicator, graph, run->rank, &run->arena);
    return rc == 0 ? ct_lower(&request, program) : rc;
}

int ct_run_try(struct ct_run *run, struct ct_graph *graph, const char *behind,
               struct ct_program **program)
{
    struct ct_pass_options options = {.training = true, .behind = behind};
    int microbatches, rc = run->device ? 0 : open_device(run, &(struct ct_run_options){0});
    int64_t batch;

    if (rc == 0)
        rc = ct_run_batch_sizes(run, &batch, &microbatches);
    if (rc == 0)
        rc = transform(run, graph, &options);
    if (rc < 0)
        return rc;
    ct_graph_sweep(graph);
    return lower(run, graph, graph->arena, microbatches, true, false, program);
}

/* Microbatches of one batch, without accumulation. */
static int batch_microbatches(void)
{
    int64_t size = 1;

    return ct_run_microbatch_size(&size) < 0 ? 1
                                             : (int)(ct_config.training.local_batch_size / size);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The memory of a run has room for the largest of its programs. Validation may use that in which
   training keeps nothing between steps. */
static void make_room(size_t *bytes, const struct ct_memory *training,
                      const struct ct_memory *validation)
{
    *bytes = larger(*bytes, training->bytes);
    if (validation)
        *bytes = larger(*bytes, training->persistent + validation->bytes);
}

static int validation_microbatches(bool logits)
{
    return logits ? 1 : batch_microbatches();
}

static int open_programs(struct ct_run *run, bool logits, int microbatches)
{
    int rc = lower(run, run->graph, &run->arena, microbatches, !logits, false, &run->program);

    if (rc < 0)
        return ct_context(rc, "lowering");
    run->program->run = run;
    make_room(&run->arena_bytes, &run->program->memory, NULL);
    make_room(&run->host_bytes, &run->program->host, NULL);
    if (!run->validation_graph)
        return 0;
    rc = lower(run, run->validation_graph, &run->arena, validation_microbatches(logits), false,
               true, &run->validation_program);
    if (rc < 0)
        return ct_context(rc, "lowering the second graph");
    run->validation_program->run = run;
    make_room(&run->arena_bytes, &run->program->memory, &run->validation_program->memory);
    make_room(&run->host_bytes, &run->program->host, &run->validation_program->host);
    return 0;
}

/* ---- memory ---- */

static const char *weights_folder(const struct ct_run_options *options)
{
    return options->weights ? options->weights : ct_config.model.init_from;
}

static int load_weights(struct ct_run *run, const struct ct_run_options *options)
{
    const char *folder = weights_folder(options);
    int rc = *folder ? run->model_ops->weights->load(run, folder) : 0;

    if (rc < 0 && options->weights)
        return ct_context(rc, "%s", folder);
    return rc < 0 ? ct_context(rc, "[model] init_from = %s", folder) : 0;
}

static int open_validation_executor(struct ct_run *run)
{
    return run->validation_program
               ? ct_executor_create_borrowing(run->validation_program, run->executor,
                                              &run->validation_executor)
               : 0;
}

static int open_memory(struct ct_run *run, const struct ct_run_options *options)
{
    struct ct_executor_memory memory = {.bytes = run->arena_bytes, .host = run->host_bytes};
    int rc = 0;

    if (run->communicator.comm && run->communicator.ops->reserve && run->device->host_memory)
        rc = run->communicator.ops->reserve(run->communicator.comm, run->arena_bytes, &memory.base);
    if (rc == 0)
        rc = ct_executor_create(run->program, run->device, &memory, &run->executor);
    if (rc == 0)
        rc = ct_executor_init(run->executor);
    if (rc == 0)
        rc = load_weights(run, options);
    if (rc == 0)
        rc = ct_run_load_sets(run);
    if (rc == 0)
        rc = open_validation_executor(run);
    return rc;
}

/* The executors of a later stage, in the memory of the first. */
static int open_executors(struct ct_run *run, const struct ct_run_options *options)
{
    struct ct_executor_memory memory = {.owner = ct_run_first_executor(run)};
    int rc = 0;

    (void)options;
    if (run->stage)
        rc = ct_executor_create(run->program, run->device, &memory, &run->executor);
    if (rc < 0)
        return ct_context(rc, "a stage trains the same weights with the same optimizer");
    return run->stage ? open_validation_executor(run) : 0;
}

/* ---- the whole ---- */

static const int self[] = {0};

static int open_communicator(struct ct_run *run, const struct ct_run_options *options)
{
    struct ct_comm_request request = {.rank = (int)run->rank,
                                      .world = (int)run->world,
                                      .local_rank = options->local_rank,
                                      .local_ranks = options->local_ranks,
                                      .job = options->job,
                                      .timeout = ct_run_start_timeout(),
                                      .interface = ct_config.comm.interface};
    int64_t *ranks = ct_arena_array(&run->arena, int64_t, run->world);
    const struct ct_offer *offer;
    int rc;

    if (run->world == 1) {
        run->world_group = ct_arena_new(&run->arena, struct ct_group);
        *run->world_group = (struct ct_group){.name = "world", .size = 1, .ranks = self};
        return 0;
    }
    rc = ct_offer_find(CT_COMMUNICATOR, NULL, &offer);
    if (rc < 0)
        return ct_context(rc, "%lld ranks", (long long)run->world);
    run->communicator.ops = offer->ops;
    rc = run->communicator.ops->open(&request, &run->communicator.comm);
    if (rc < 0)
        return rc;
    run->communicator.comm->ops = run->communicator.ops; /* in this build's layout */
    for (int64_t i = 0; i < run->world; i++)
        ranks[i] = i;
    return run->communicator.ops->group(run->communicator.comm, ranks, (int)run->world, "world",
                                        &run->world_group);
}

struct ct_group *ct_run_world(const struct ct_run *run)
{
    return run->world_group;
}

/* Runs with a group of all ranks. */
static struct ct_run *open_runs;
static pthread_mutex_t open_runs_lock = PTHREAD_MUTEX_INITIALIZER;

static void list(struct ct_run *run)
{
    pthread_mutex_lock(&open_runs_lock);
    run->next_open = open_runs;
    open_runs = run;
    pthread_mutex_unlock(&open_runs_lock);
}

static void unlist(const struct ct_run *run)
{
    struct ct_run **at = &open_runs;

    pthread_mutex_lock(&open_runs_lock);
    while (*at && *at != run)
        at = &(*at)->next_open;
    if (*at)
        *at = run->next_open;
    pthread_mutex_unlock(&open_runs_lock);
}

struct ct_run *ct_run_of_world(const struct ct_group *world)
{
    struct ct_run *run;

    pthread_mutex_lock(&open_runs_lock);
    for (run = open_runs; run && run->world_group != world;)
        run = run->next_open;
    pthread_mutex_unlock(&open_runs_lock);
    return run;
}

static int compare_ranks(struct ct_run *run, const struct ct_run_options *options)
{
    const char *folder = weights_folder(options);
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    int rc = out ? 0 : ct_fail(CT_ENOMEM, "what is compared of %s", folder);

    if (out && *folder && run->world > 1)
        rc = run->model_ops->weights->identify(folder, out);
    if (rc == 0)
        rc = ct_run_identify_sets(run, out);
    if (out && fclose(out) && rc == 0)
        rc = ct_fail(CT_ENOMEM, "what is compared of %s", folder);
    rc = rc < 0 || run->world == 1 ? rc : ct_recipe_compare(run, text);
    free(text);
    return rc;
}

static int join_ranks(struct ct_run *run, const struct ct_run_options *options)
{
    int rc = open_communicator(run, options);

    ct_run_lap(run, CT_START_RENDEZVOUS);
    if (rc < 0)
        return rc;
    list(run);
    return run->world > 1 || run->weight_set_count ? compare_ranks(run, options) : 0;
}

static int fire(struct ct_run *run, enum ct_event event)
{
    return ct_hook_fire(&(struct ct_event_data){.event = event, .run = run});
}

/* Check that the model can do what the recipe asks for. */
static int check_weights(const struct ct_run *run, const struct ct_run_options *options)
{
    bool loads = options->weights || *ct_config.model.init_from;
    bool saves = *ct_config.model.save_to && !options->logits;
    const char *key = loads ? "init_from" : "save_to";

    if (options->depth < CT_RUN_READY)
        return 0;
    if ((loads || saves) && !run->model_ops->weights)
        return ct_fail(CT_ECONFIG,
                       "[model] %s: the model %s has no format of weights (`weights` of struct "
                       "ct_model_ops)",
                       key, ct_config.model.name);
    return 0;
}

/* A model may choose its description by its sizes, when it is created. */
static int check_description(const struct ct_run *run, const struct ct_run_options *options)
{
    if (options->depth < CT_RUN_READY || options->logits || !*ct_config.model.save_to ||
        run->model_ops->description)
        return 0;
    return ct_fail(CT_ECONFIG,
                   "[model] save_to: the model %s does not describe its folders (`description` of "
                   "struct ct_model_ops)",
                   ct_config.model.name);
}

/* ---- stages ---- */

typedef int open_part(struct ct_run *run, const struct ct_run_options *options);

/* Open a part of all stages. The run then has the first one again. */
static int open_stages(struct ct_run *run, const struct ct_run_options *options, open_part *open)
{
    int rc = 0;

    for (size_t k = 0; rc == 0 && k < ct_run_stage_count(run); k++) {
        rc = ct_run_turn_to_stage(run, k);
        if (rc == 0)
            rc = ct_run_name_stage(run, open(run, options));
    }
    if (rc == 0)
        rc = ct_run_turn_to_stage(run, 0);
    if (rc == 0 && run->graph)
        ct_states_bind(run);
    return rc;
}

static int open_data(struct ct_run *run, const struct ct_run_options *options)
{
    (void)options;
    return ct_run_open_stage_data(run);
}

static int open_streams(struct ct_run *run, const struct ct_run_options *options)
{
    (void)options;
    return ct_run_open_streams(run);
}

static int find_microbatches(struct ct_run *run, const struct ct_run_options *options,
                             int *microbatches)
{
    int64_t batch;

    *microbatches = 1;
    return options->logits ? 0 : ct_run_batch_sizes(run, &batch, microbatches);
}

/* Add the bytes of the stage's programs. */
static int add_sizes(struct ct_run *run, const struct ct_run_options *options, double *bytes)
{
    int microbatches, rc = find_microbatches(run, options, &microbatches);

    if (rc == 0)
        rc = ct_run_check_size(run->graph, microbatches, bytes);
    return rc == 0 && run->validation_graph
               ? ct_run_check_size(run->validation_graph, validation_microbatches(options->logits),
                                   bytes)
               : rc;
}

/* The programs of all stages are there at once. */
static int check_sizes(struct ct_run *run, const struct ct_run_options *options)
{
    double bytes = 0;
    int rc = 0;

    for (size_t k = 0; rc == 0 && k < ct_run_stage_count(run); k++) {
        rc = ct_run_turn_to_stage(run, k);
        if (rc == 0)
            rc = ct_run_name_stage(run, add_sizes(run, options, &bytes));
    }
    return rc == 0 ? ct_run_turn_to_stage(run, 0) : rc;
}

static int open_stage_programs(struct ct_run *run, const struct ct_run_options *options)
{
    int microbatches, rc = find_microbatches(run, options, &microbatches);

    if (rc == 0)
        rc = open_programs(run, options->logits, microbatches);
    if (rc == 0 && run->stage && run->rank == 0 && options->depth == CT_RUN_READY)
        ct_info("the stage from step %lld on is planned: %s; %.1f MiB per rank",
                (long long)ct_stage_at(run->stage)->begin, ct_stage_at(run->stage)->what,
                (double)run->program->memory.bytes / 0x1p20);
    return rc;
}

/* ---- parts of opening ---- */

static int tell_open(struct ct_run *run, const struct ct_run_options *options)
{
    (void)options;
    return fire(run, CT_EVENT_RUN_OPEN);
}

static int open_offers(struct ct_run *run, const struct ct_run_options *options)
{
    int rc = find_offers(run, !options->logits);

    if (rc == 0 && ct_config.deterministic)
        rc = ct_plugin_check_repeatable();
    if (rc == 0)
        ct_run_make_stages(run);
    return rc < 0 ? rc : check_weights(run, options);
}

static int open_mesh(struct ct_run *run, const struct ct_run_options *options)
{
    int rc = !options->logits || run->world > 1 ? ct_run_make_mesh(run) : 0;

    return rc < 0 || options->logits ? rc : ct_run_fit_batch(run);
}

static int open_model(struct ct_run *run, const struct ct_run_options *options)
{
    int rc = run->model_ops->create(run, &run->model);

    return rc < 0 ? rc : check_description(run, options);
}

static int open_tokenizer(struct ct_run *run, const struct ct_run_options *options)
{
    (void)options;
    return run->tokenizer && run->tokenizer->open ? run->tokenizer->open() : 0;
}

static int tell_plan(struct ct_run *run, const struct ct_run_options *options)
{
    if (run->validation_graph && !options->logits)
        ct_run_keep(run, "validation.best", &run->best, sizeof(run->best));
    if (!options->logits) /* also without stages, which may be added or removed later */
        ct_run_keep(run, "stage.samples_since", &run->samples_since, sizeof(run->samples_since));
    return fire(run, CT_EVENT_PLAN_READY);
}

static int tell_ready(struct ct_run *run, const struct ct_run_options *options)
{
    int rc = fire(run, CT_EVENT_RUN_LOAD);

    (void)options;
    return rc < 0 ? rc : fire(run, CT_EVENT_RUN_READY);
}

/* A checkpoint may have left fewer samples than there were when the data was opened. */
static int check_loaded(struct ct_run *run, const struct ct_run_options *options)
{
    int rc = ct_run_check_sets(run);

    (void)options;
    return rc < 0 || !run->data || run->progress.step == 1 ? rc : ct_run_count_epochs(run);
}

#define NO_LAP CT_START_PART_COUNT

/* Opening a run, part by part. */
static const struct {
    open_part *open;
    enum ct_run_depth least; /* a run of this depth has the part */
    enum { EACH, TRAINING } runs;
    enum { ONCE, BY_STAGE } stages;
    enum ct_start_part lap; /* which the part ends */
} parts[] = {
    {tell_open, CT_RUN_READY, TRAINING, ONCE, NO_LAP},
    {open_offers, CT_RUN_MODEL, EACH, ONCE, NO_LAP},
    {open_mesh, CT_RUN_MODEL, EACH, ONCE, NO_LAP},
    {open_model, CT_RUN_MODEL, EACH, ONCE, NO_LAP},
    {open_tokenizer, CT_RUN_READY, EACH, ONCE, NO_LAP},
    {open_data, CT_RUN_READY, TRAINING, BY_STAGE, NO_LAP},
    {open_device, CT_RUN_PROGRAM, EACH, ONCE, NO_LAP}, /* transforms may ask for its threads */
    {open_graphs, CT_RUN_GRAPH, EACH, BY_STAGE, CT_START_GRAPH},
    {open_streams, CT_RUN_READY, EACH, BY_STAGE, NO_LAP},
    {join_ranks, CT_RUN_READY, EACH, ONCE, CT_START_COMPARE},
    {check_sizes, CT_RUN_PROGRAM, EACH, ONCE, NO_LAP},
    {open_stage_programs, CT_RUN_PROGRAM, EACH, BY_STAGE, NO_LAP},
    {tell_plan, CT_RUN_PROGRAM, EACH, ONCE, CT_START_LOWER},
    {open_memory, CT_RUN_READY, EACH, ONCE, NO_LAP},
    {open_executors, CT_RUN_READY, EACH, BY_STAGE, CT_START_WEIGHTS},
    {tell_ready, CT_RUN_READY, EACH, ONCE, CT_START_LOAD},
    {check_loaded, CT_RUN_READY, EACH, ONCE, NO_LAP},
};

static int open_run(struct ct_run *run, const struct ct_run_options *options)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < CT_COUNT(parts); i++) {
        if (options->depth < parts[i].least || (parts[i].runs == TRAINING && options->logits))
            continue;
        rc = parts[i].stages == BY_STAGE ? open_stages(run, options, parts[i].open)
                                         : parts[i].open(run, options);
        if (parts[i].lap != NO_LAP)
            ct_run_lap(run, parts[i].lap);
    }
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
    run->progress.step = 1;
    run->loss_limit = run->norm_limit = INFINITY;
    rc = open_run(run, options);
    if (rc < 0 && options->depth == CT_RUN_READY)
        ct_hook_fire_failure(run, NULL, rc);
    if (rc < 0) {
        ct_run_close(run);
        return rc;
    }
    *out = run;
    return 0;
}

/* ---- another rank ---- */

static int open_peer_graph(struct ct_run *peer, const struct ct_graph *common, bool training,
                           struct ct_graph **graph)
{
    if (!common)
        return 0;
    *graph = ct_graph_clone(common, &peer->arena);
    return specialise_graph(peer, *graph, true, (struct ct_pass_options){.training = training});
}

static int open_peer(struct ct_run *peer)
{
    int rc = open_peer_graph(peer, peer->common_graph, true, &peer->graph);

    if (rc == 0)
        rc = open_peer_graph(peer, peer->common_validation_graph, false, &peer->validation_graph);
    if (rc < 0)
        return rc;
    peer->states =
        ct_arena_copy(&peer->arena, peer->states, sizeof(*peer->states) * peer->state_count);
    ct_states_bind(peer);
    return open_programs(peer, false, peer->peer_of->program->microbatches);
}

int ct_run_open_peer(const struct ct_run *run, int64_t rank, struct ct_run **out)
{
    struct ct_run *peer = malloc(sizeof(*peer));
    int rc;

    assert(run->common_graph && run->program && !run->executor);
    if (!peer)
        return ct_fail(CT_ENOMEM, "a run");
    *peer = *run;
    peer->arena = (struct ct_arena){0};
    peer->peer_of = run;
    peer->rank = rank;
    peer->graph = peer->validation_graph = NULL;
    peer->program = peer->validation_program = NULL;
    peer->arena_bytes = peer->host_bytes = 0;
    rc = open_peer(peer);
    if (rc < 0) {
        ct_run_close(peer);
        return ct_context(rc, "rank %lld", (long long)rank);
    }
    *out = peer;
    return 0;
}

/* ---- the end ---- */

static void close_own(struct ct_run *run)
{
    unlist(run);
    ct_run_close_executors(run);
    if (run->communicator.comm)
        run->communicator.ops->close(run->communicator.comm);
    ct_run_close_stages(run);
    if (run->device)
        run->device_ops->close(run->device);
    if (run->model && run->model_ops->destroy)
        run->model_ops->destroy(run->model);
}

void ct_run_close(struct ct_run *run)
{
    if (!run)
        return;
    if (!run->peer_of)
        close_own(run);
    ct_arena_finish(&run->arena);
    free(run);
}
