/*
 * A dry run of the programs of all ranks along an axis, to prove that they terminate.
 *
 * Schedules are proven before they are lowered; this checks the result. It covers every instruction
 * of every rank, streams, events (including waits for reused memory), and transfers that end only
 * when both sides are there. Ranks that differ along other axes run the same program, so
 * collectives without this axis cannot block; those along it wait for all.
 *
 * The host is assumed to wait as it does on a CPU: an instruction after a compute instruction in
 * the program is enqueued only when that is done. in_order: all streams act as one.
 *
 * Events that nothing signals are left to ct_program_verify.
 */
#include <ctitan/lib/pipeline.h>

#include "program_lanes.h"

int ct_programs_prove(const struct ct_program *const *programs, int count, int axis, bool in_order)
{
    struct ct_arena arena = {0};
    int64_t *ranks = ct_arena_array(&arena, int64_t, count);
    struct ct_program_lanes p = {.program = programs,
                                 .rank = ranks,
                                 .count = count,
                                 .in_order = in_order,
                                 .host_waits = true,
                                 .arena = &arena};
    int rc;

    /* Any pipeline will do: all have the same programs. */
    ct_mesh_group(&programs[0]->graph->mesh, 0, (ct_axes)1 << axis, ranks);
    rc = ct_program_lanes_build(&p);
    if (rc == 0 && !ct_lanes_run(&p.lanes))
        rc = ct_program_lanes_stuck(&p);
    ct_arena_finish(&arena);
    return rc;
}
