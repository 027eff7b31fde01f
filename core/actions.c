/*
 * From a schedule to the actions of one rank.
 */
#include <ctitan/error.h>
#include <ctitan/plugin.h>
#include <ctitan/schedule.h>

#include "actions.h"

static const struct ct_pipeline_ops *pipeline(const struct ct_run *run)
{
    const struct ct_offer *offer = ct_offer_at(CT_PIPELINE, 0);

    return offer && ct_mesh_find(&run->mesh, "pp") >= 0 ? offer->ops : NULL;
}

int ct_run_microbatch_size(const struct ct_run *run, int64_t *size)
{
    const struct ct_pipeline_ops *ops = pipeline(run);
    int64_t batch = ct_config.training.local_batch_size;

    *size = ops ? ops->microbatch_size() : batch;
    if (batch % *size)
        return ct_fail(CT_ECONFIG,
                       "[training] local_batch_size = %lld is not a multiple of [pp] "
                       "microbatch_size = %lld",
                       (long long)batch, (long long)*size);
    return 0;
}

/* The schedule of one batch again and again, each time for the next microbatches; gradients are
   reduced the last time. */
static void repeat(struct ct_arena *arena, const struct ct_action_list *once, int times,
                   int microbatches, struct ct_action_list *actions)
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
            ct_action_append(arena, actions, a);
        }
}

/* Gathered parameters of more stages than these are not kept all the time, as in torch. */
#define UNSHARDED_MOST 3

static int communicate(struct ct_run *run, struct ct_schedule *schedule)
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

static int pipeline_actions(struct ct_run *run, const struct ct_graph *graph, int microbatches,
                            bool training, struct ct_action_list *actions)
{
    int axis = ct_mesh_find(&graph->mesh, "pp"), times = 1, each = microbatches, rc;
    struct ct_schedule_request request = {
        .ranks = (int)graph->mesh.axis[axis].size, .stages = graph->stages, .arena = &run->arena};
    int64_t me = ct_mesh_coordinate(&graph->mesh, run->rank, axis), size;
    struct ct_schedule *schedule;

    rc = ct_run_microbatch_size(run, &size);
    if (rc == 0 && training) {
        each = (int)(ct_config.training.local_batch_size / size);
        times = microbatches / each;
        rc = pipeline(run)->schedule(graph, each, &run->arena, &schedule);
    } else if (rc == 0) {
        request.microbatches = microbatches;
        rc = ct_schedule_forward_only(&request, graph->stage_rank, &schedule);
    }
    if (rc == 0)
        rc = communicate(run, schedule);
    if (rc < 0)
        return ct_context(rc, "the schedule of %d microbatches", each);
    repeat(&run->arena, &schedule->lists[me], times, each, actions);
    return 0;
}

int ct_run_actions(struct ct_run *run, const struct ct_graph *graph, int microbatches,
                   bool training, struct ct_action_list *actions)
{
    struct ct_schedule_request request = {
        .ranks = 1, .stages = 1, .microbatches = microbatches, .arena = &run->arena};

    if (graph->stage_rank)
        return pipeline_actions(run, graph, microbatches, training, actions);
    (training ? ct_schedule_trivial : ct_schedule_forward)(&request, actions);
    return 0;
}
