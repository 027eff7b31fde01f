/*
 * The list of the state that a run keeps from step to step. state.h reads and writes it.
 *
 * The list is made from the whole graph, after shardings are known and before a rank drops what it
 * does not hold, so that it is the same on all ranks.
 */
#include <string.h>
#include <sys/stat.h>

#include <ctitan/pass.h>
#include <ctitan/run.h>

#include "run/states.h"

static int note_states(struct ct_graph *graph, struct ct_run *run)
{
    if (run->states) /* validation's graph has the same parameters, and no others */
        return 0;
    run->states = ct_arena_array(&run->arena, struct ct_state, graph->value_count + 1);
    for (size_t i = 0; i < graph->value_count; i++) {
        const struct ct_value *v = graph->values[i];
        struct ct_state *state = &run->states[run->state_count];

        if (v->role != CT_ROLE_PARAM && v->role != CT_ROLE_STATE)
            continue;
        *state = (struct ct_state){.name = v->name,
                                   .role = v->set ? CT_ROLE_STATE : v->role,
                                   .set = v->set,
                                   .dtype = v->dtype,
                                   .ndim = v->ndim,
                                   .coding = v->coding,
                                   .sharding = v->sharding};
        memcpy(state->shape, v->shape, sizeof(state->shape));
        state->holders = graph->partition_axis < 0 ? (struct ct_ranks){0} : v->holders;
        if (ct_value_is_own_param(v) && !v->beside)
            run->parameters += ct_shape_count(v->ndim, v->shape);
        run->state_count++;
    }
    return 0;
}

const struct ct_transform ct_pass_states = {
    .size = sizeof(struct ct_transform),
    .name = "list",
    .summary = "notes every parameter and state, and which ranks have what of it",
    .phase = CT_PHASE_COLLECTIVE,
    .needs = (const char *const[]){"collectives", NULL},
    .gives = (const char *const[]){"listed", NULL},
    .evaluation = true,
    .apply = note_states,
    .required = true,
};

void ct_states_bind(struct ct_run *run)
{
    for (size_t i = 0; i < run->state_count; i++) {
        const struct ct_value *v = ct_graph_find(run->graph, run->states[i].name);

        run->states[i].value =
            v && (v->role == CT_ROLE_PARAM || v->role == CT_ROLE_STATE) ? v : NULL;
    }
}

void ct_run_foresee(struct ct_run *run, const struct ct_written *written)
{
    run->writes = ct_arena_grow(&run->arena, run->writes, &run->write_room, run->write_count + 1,
                                sizeof(*run->writes));
    run->writes[run->write_count++] = *written;
}

double ct_run_foreseen_last(const struct ct_run *run, const char *folder)
{
    struct stat here, there;
    double bytes = 0;

    for (size_t i = 0; i < run->write_count && stat(folder, &here) == 0; i++)
        if (run->writes[i].last && stat(run->writes[i].folder, &there) == 0 &&
            there.st_dev == here.st_dev)
            bytes += run->writes[i].bytes;
    return bytes;
}

void ct_run_keep(struct ct_run *run, const char *name, void *data, size_t bytes)
{
    run->kept = ct_arena_grow(&run->arena, run->kept, &run->kept_room, run->kept_count + 1,
                              sizeof(*run->kept));
    run->kept[run->kept_count++] = (struct ct_kept){name, data, bytes};
}
