/*
 * The order of a step on this rank: the actions of a schedule, as sections of the graph.
 *
 * The schedule's plugin or a file gives compute actions; lib/pipeline adds communication and proves
 * the lists of all ranks. "2F3" then runs section 2F for microbatch 3, "2B3" sections 2I and 2W
 * together, "1UNSHARD" section 1UNSHARD, and so on. RESHARD frees the results of UNSHARD.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugin.h>

#include "pp.h"

int pp_find_schedule(const struct ct_schedule_ops **ops)
{
    const struct ct_offer *offer;
    int rc = ct_offer_find(CT_SCHEDULE, pp_config.schedule, &offer);

    *ops = NULL;
    if (rc == 0)
        rc = ct_schedule_offered(offer, ops);
    return rc < 0 ? ct_context(rc, "[pp] schedule = %s", pp_config.schedule) : 0;
}

static int64_t microbatch_size(void)
{
    return pp_config.degree > 1 ? pp_config.microbatch_size : 0;
}

/* ---- the schedule of all ranks ---- */

/* Stages must be on the same ranks in the file as in the placement, which has their parameters. */
static int check_placement(const struct pp_stages *stages, const struct ct_schedule *schedule)
{
    for (int s = 0; s < stages->count; s++)
        if (schedule->rank_of[s] != stages->rank_of[s])
            return ct_fail(CT_ECONFIG,
                           "%s: stage %d is in row %d, but [pp] schedule = %s places it on rank %d",
                           pp_config.schedule_csv, s, schedule->rank_of[s], pp_config.schedule,
                           stages->rank_of[s]);
    return 0;
}

static int read_schedule(const struct pp_stages *stages, const struct ct_schedule_request *request,
                         struct ct_schedule **schedule)
{
    int rc = ct_schedule_read_csv(request->arena, pp_config.schedule_csv, request->ranks,
                                  request->stages, request->microbatches, schedule);

    if (rc == 0)
        rc = check_placement(stages, *schedule);
    return rc < 0 ? ct_context(rc, "[pp] schedule_csv") : 0;
}

static struct ct_schedule_request request_for(const struct pp_stages *stages, int microbatches,
                                              struct ct_arena *arena)
{
    return (struct ct_schedule_request){.ranks = stages->ranks,
                                        .stages = stages->count,
                                        .microbatches = microbatches,
                                        .arena = arena};
}

/* Makes the schedule of a training step's batch, before communication is added. */
static int make_schedule(const struct pp_stages *stages, int microbatches, struct ct_arena *arena,
                         struct ct_schedule **schedule)
{
    struct ct_schedule_request request = request_for(stages, microbatches, arena);
    const struct ct_schedule_ops *ops;
    int rc = pp_find_schedule(&ops);

    if (rc < 0)
        return rc;
    return *pp_config.schedule_csv
               ? read_schedule(stages, &request, schedule)
               : ct_schedule_generate(ops, pp_config.schedule, &request, schedule);
}

/* Microbatches of one batch in training, without accumulation. */
static int batch_microbatches(void)
{
    return (int)(ct_config.training.local_batch_size / pp_config.microbatch_size);
}

/* If a rank has more stages than this, not all are kept gathered all the time, as in torch. */
#define UNSHARDED_MOST 3

static int communicate(const struct ct_run *run, struct ct_schedule *schedule)
{
    struct ct_communicate_options options = {.unshard = schedule->stages >
                                                        UNSHARDED_MOST * schedule->ranks,
                                             .unsharded_most = UNSHARDED_MOST,
                                             .reduce_grad = !schedule->forward_only};
    int rc = schedule->communicates ? 0 : ct_schedule_communicate(schedule, &options);

    if (rc == 0 && !run->device->in_order && !schedule->own_streams)
        rc = ct_schedule_prefetch(schedule);
    return rc == 0 ? ct_schedule_verify(schedule, NULL, NULL) : rc;
}

/* ---- from actions to sections ---- */

/* Names of the sections that an action runs, without the stage's number; the second may be NULL. */
static const char *const sections_of[CT_ACTION_TYPES][2] = {
    [CT_ACTION_F] = {"F"},
    [CT_ACTION_I] = {"I"},
    [CT_ACTION_W] = {"W"},
    [CT_ACTION_B] = {"I", "W"},
    [CT_ACTION_UNSHARD] = {"UNSHARD"},
    [CT_ACTION_RESHARD] = {"UNSHARD"},
    [CT_ACTION_SEND_F] = {"SEND_F"},
    [CT_ACTION_RECV_F] = {"RECV_F"},
    [CT_ACTION_SEND_B] = {"SEND_B"},
    [CT_ACTION_RECV_B] = {"RECV_B"},
    [CT_ACTION_REDUCE_GRAD] = {"REDUCE_GRAD"},
    [CT_ACTION_OVERLAP_F_B] = {"F"},
};

static struct ct_span span_of(const struct ct_graph *graph, enum ct_action_type type, int stage,
                              int microbatch)
{
    struct ct_span span = {.microbatch = microbatch};
    char name[32];

    for (int i = 0, n = 0; i < 2 && sections_of[type][i]; i++) {
        const struct ct_section *section;

        snprintf(name, sizeof(name), "%d%s", stage, sections_of[type][i]);
        section = ct_graph_section_find(graph, name);
        if (section)
            span.section[n++] = section;
    }
    return span;
}

static struct ct_order_item item_of(const struct ct_graph *graph, const struct ct_action *a,
                                    struct ct_arena *arena)
{
    struct ct_order_item item = {.run = span_of(graph, a->type, a->stage, a->microbatch),
                                 .beside = {.microbatch = -1},
                                 .release = a->type == CT_ACTION_RESHARD};
    char text[64];

    if (a->type == CT_ACTION_OVERLAP_F_B)
        item.beside = span_of(graph, CT_ACTION_B, a->stage_b, a->microbatch_b);
    ct_action_print(a, text, sizeof(text));
    item.name = ct_arena_strdup(arena, text);
    return item;
}

/* Append the schedule of one batch several times, each time for the next microbatches. Gradients
   are reduced the last time. */
static void append_times(const struct ct_graph *graph, const struct ct_action_list *once, int times,
                         int microbatches, struct ct_arena *arena, struct ct_order *order)
{
    for (int t = 0; t < times; t++)
        for (size_t i = 0; i < once->count; i++) {
            struct ct_action a = once->item[i];

            if (a.type == CT_ACTION_REDUCE_GRAD && t < times - 1)
                continue;
            if (a.microbatch >= 0)
                a.microbatch += t * microbatches;
            if (a.microbatch_b >= 0)
                a.microbatch_b += t * microbatches;
            ct_order_append(arena, order, item_of(graph, &a, arena));
        }
}

static int schedule_of(const struct ct_run *run, const struct pp_stages *stages, int microbatches,
                       bool training, struct ct_arena *arena, struct ct_schedule **schedule)
{
    struct ct_schedule_request request = request_for(stages, microbatches, arena);
    int rc = training ? make_schedule(stages, microbatches, arena, schedule)
                      : ct_schedule_forward_only(&request, stages->rank_of, schedule);

    if (rc == 0)
        rc = communicate(run, *schedule);
    return rc < 0 ? ct_context(rc, "the schedule of %d microbatches", microbatches) : 0;
}

/* A step of several accumulated batches repeats the schedule for each. */
static int make_order(const struct ct_run *run, struct ct_graph *graph, int microbatches,
                      bool training, struct ct_arena *arena, struct ct_order *order)
{
    int axis = graph->partition_axis, each = microbatches, rc;
    struct ct_schedule *schedule;
    struct pp_stages stages;

    if (axis < 0) {
        ct_order_default(graph, microbatches, arena, order);
        return 0;
    }
    rc = pp_stages_of(graph, arena, &stages);
    if (training)
        each = batch_microbatches();
    if (rc == 0)
        rc = schedule_of(run, &stages, each, training, arena, &schedule);
    if (rc < 0)
        return rc;
    append_times(graph, &schedule->lists[ct_mesh_coordinate(&graph->mesh, run->rank, axis)],
                 microbatches / each, each, arena, order);
    return 0;
}

static bool has_weights_alone(const struct ct_schedule *schedule)
{
    for (int rank = 0; rank < schedule->ranks; rank++)
        for (size_t i = 0; i < schedule->lists[rank].count; i++)
            if (schedule->lists[rank].item[i].type == CT_ACTION_W)
                return true;
    return false;
}

static int splits_backward(struct ct_graph *graph, bool *splits)
{
    struct ct_arena scratch = {0};
    struct pp_stages stages;
    struct ct_schedule *schedule;
    int rc;

    *splits = false;
    if (graph->partition_axis < 0)
        return 0;
    rc = pp_stages_of(graph, &scratch, &stages);
    if (rc == 0)
        rc = make_schedule(&stages, batch_microbatches(), &scratch, &schedule);
    if (rc == 0)
        *splits = has_weights_alone(schedule);
    ct_arena_finish(&scratch);
    return rc;
}

const struct ct_order_ops pp_order = {
    .size = sizeof(struct ct_order_ops),
    .microbatch_size = microbatch_size,
    .order = make_order,
    .splits_backward = splits_backward,
};
