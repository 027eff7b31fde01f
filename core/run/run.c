/*
 * Opening a run: recipe to graphs (graphs.c), graph to program, program to memory that holds the
 * weights.
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

#include "base/log.h"
#include "ir/text/text.h"
#include "recipe/settings.h"
#include "run/mesh.h"
#include "run/open.h"
#include "run/open_data.h"
#include "run/size.h"
#include "run/stages.h"
#include "run/start.h"
#include "run/states.h"
#include "run/weights.h"

struct ct_config ct_config;

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

static int try_transforms(struct ct_run *run, struct ct_graph *graph, const char *behind,
                          struct ct_program **program)
{
    struct ct_pass_options options = {.training = true, .behind = behind};
    int microbatches, rc = run->device ? 0 : open_device(run, &(struct ct_run_options){0});
    int64_t batch;

    if (rc == 0)
        rc = ct_run_batch_sizes(run, &batch, &microbatches);
    if (rc == 0)
        rc = ct_run_transform(run, graph, &options);
    if (rc < 0)
        return rc;
    ct_graph_sweep(graph);
    return lower(run, graph, graph->arena, microbatches, true, false, program);
}

int ct_run_try(struct ct_run *run, struct ct_graph *graph, const char *behind,
               struct ct_program **program)
{
    int rc;

    ct_log_hush();
    rc = try_transforms(run, graph, behind, program);
    ct_log_unhush();
    return rc;
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
        return ct_context(rc, "%lld rank%s", (long long)run->world, ct_plural(run->world));
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
    int rc = ct_run_find_offers(run, !options->logits);

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

/* Only a warning: to train from new weights, only init_from is set to nothing. */
static int warn_of_ignore(struct ct_run *run, const struct ct_run_options *options)
{
    bool reads_folder = *ct_config.model.init_from || run->weight_set_count;

    (void)options;
    if (run->rank == 0 && *ct_config.model_ignore && !reads_folder)
        ct_warn("[model] ignore has no effect: set init_from");
    return 0;
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

/* Before the weights of a whole training would be lost at its end. */
static int check_saving(struct ct_run *run, const struct ct_run_options *options)
{
    const char *folder = ct_config.model.save_to;
    bool checks = *folder && run->model_ops->weights->check_save;

    (void)options;
    return checks ? ct_context(run->model_ops->weights->check_save(run, folder),
                               "[model] save_to = %s", folder)
                  : 0;
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
    {ct_run_open_graphs, CT_RUN_GRAPH, EACH, BY_STAGE, CT_START_GRAPH},
    {open_streams, CT_RUN_READY, EACH, BY_STAGE, NO_LAP},
    {join_ranks, CT_RUN_READY, EACH, ONCE, CT_START_COMPARE},
    {warn_of_ignore, CT_RUN_PROGRAM, TRAINING, ONCE, NO_LAP},
    {check_sizes, CT_RUN_PROGRAM, EACH, ONCE, NO_LAP},
    {open_stage_programs, CT_RUN_PROGRAM, EACH, BY_STAGE, NO_LAP},
    {tell_plan, CT_RUN_PROGRAM, EACH, ONCE, CT_START_LOWER},
    {check_saving, CT_RUN_READY, TRAINING, ONCE, NO_LAP},
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
    return ct_run_specialise(peer, *graph, true, (struct ct_pass_options){.training = training});
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
    ct_log_hush();
    rc = open_peer(peer);
    ct_log_unhush();
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
