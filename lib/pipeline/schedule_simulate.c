/*
 * Runs a schedule on a virtual clock, and tracks the activations alive as its lists run.
 */
#include <ctitan/error.h>

#include "schedule_internal.h"

static double *peaks(const struct ct_schedule *s, struct ct_arena *arena, bool at_w)
{
    double *peak = ct_arena_array(arena, double, s->ranks);

    for (int r = 0; r < s->ranks; r++) {
        double alive = 0;

        for (size_t i = 0; i < s->lists[r].count; i++) {
            struct ct_action part[2];
            int parts = ct_action_parts(&s->lists[r].item[i], part);

            for (int p = 0; p < parts; p++) {
                alive += part[p].type == CT_ACTION_F;
                peak[r] = alive > peak[r] ? alive : peak[r];
                alive -= part[p].type == CT_ACTION_B ||
                         part[p].type == (at_w ? CT_ACTION_W : CT_ACTION_I);
            }
        }
    }
    return peak;
}

static void measure(const struct ct_schedule *s, struct ct_simulation *result,
                    struct ct_arena *arena)
{
    double busiest = 0;

    result->busy = ct_arena_array(arena, double, s->ranks);
    for (int r = 0; r < s->ranks; r++) {
        for (size_t i = 0; i < s->lists[r].count; i++) {
            if (ct_action_computes(&s->lists[r].item[i]))
                result->busy[r] += result->end[r][i] - result->start[r][i];
            if (result->end[r][i] > result->makespan)
                result->makespan = result->end[r][i];
        }
        busiest = result->busy[r] > busiest ? result->busy[r] : busiest;
    }
    result->bubble = result->makespan - busiest;
    result->fraction = result->makespan > 0 ? result->bubble / result->makespan : 0;
}

static void take_times(const struct ct_dry_run *run, struct ct_simulation *result,
                       struct ct_arena *arena)
{
    const struct ct_schedule *s = run->schedule;

    result->start = ct_arena_array(arena, double *, s->ranks);
    result->end = ct_arena_array(arena, double *, s->ranks);
    for (int r = 0; r < s->ranks; r++) {
        result->start[r] = ct_arena_array(arena, double, s->lists[r].count + 1);
        result->end[r] = ct_arena_array(arena, double, s->lists[r].count + 1);
        for (size_t i = 0; i < s->lists[r].count; i++) {
            result->start[r][i] = run->lanes.item[run->first[r] + (int32_t)i].start;
            result->end[r][i] = run->lanes.item[run->first[r] + (int32_t)i].end;
        }
    }
}

int ct_schedule_simulate(const struct ct_schedule *schedule, const struct ct_costs *costs,
                         struct ct_arena *arena, struct ct_simulation *simulation)
{
    struct ct_arena scratch = {0};
    struct ct_action_index index;
    struct ct_dry_run run = {.schedule = schedule,
                             .index = &index,
                             .costs = costs,
                             .mode = costs->one_stream ? RUN_ONE_STREAM : RUN_OWN_STREAMS};
    int rc = ct_schedule_check_actions(schedule, &scratch, &index);

    *simulation = (struct ct_simulation){0};
    if (rc == 0)
        rc = ct_dry_run(&run, &scratch) ? 0 : ct_dry_run_stuck(&run);
    if (rc == 0) {
        take_times(&run, simulation, arena);
        simulation->peak_freed_at_i = peaks(schedule, arena, false);
        simulation->peak_freed_at_w = peaks(schedule, arena, true);
        measure(schedule, simulation, arena);
    }
    ct_arena_finish(&scratch);
    return rc < 0 ? ct_context(rc, "%s", schedule->name) : 0;
}
