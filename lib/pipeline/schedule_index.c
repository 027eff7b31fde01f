/*
 * Positions of each microbatch's actions. All other code about schedules looks positions up in this
 * table instead of searching lists.
 */
#include <ctitan/error.h>

#include "schedule_internal.h"

bool ct_action_computes(const struct ct_action *action)
{
    switch (action->type) {
    case CT_ACTION_F:
    case CT_ACTION_I:
    case CT_ACTION_W:
    case CT_ACTION_B:
    case CT_ACTION_OVERLAP_F_B:
        return true;
    default:
        return false;
    }
}

bool ct_action_sends(const struct ct_action *action)
{
    return action->type == CT_ACTION_SEND_F || action->type == CT_ACTION_SEND_B;
}

bool ct_action_receives(const struct ct_action *action)
{
    return action->type == CT_ACTION_RECV_F || action->type == CT_ACTION_RECV_B;
}

int ct_action_parts(const struct ct_action *action, struct ct_action part[2])
{
    part[0] = *action;
    if (action->type != CT_ACTION_OVERLAP_F_B)
        return 1;
    part[0].type = CT_ACTION_F;
    part[1] = (struct ct_action){CT_ACTION_B, action->stage_b, action->microbatch_b};
    return 2;
}

int ct_action_atoms(const struct ct_action *action, struct ct_action atom[3])
{
    struct ct_action part[2];
    int parts = ct_action_parts(action, part), atoms = 0;

    for (int p = 0; ct_action_computes(action) && p < parts; p++) {
        atom[atoms++] = part[p];
        if (part[p].type != CT_ACTION_B)
            continue;
        atom[atoms - 1].type = CT_ACTION_I;
        atom[atoms++] = (struct ct_action){CT_ACTION_W, part[p].stage, part[p].microbatch};
    }
    return atoms;
}

double ct_atom_cost(const struct ct_costs *costs, enum ct_action_type atom, int stage)
{
    switch (atom) {
    case CT_ACTION_F:
        return costs->forward_of ? costs->forward_of[stage] : costs->forward;
    case CT_ACTION_I:
        return costs->input_of ? costs->input_of[stage] : costs->input;
    default:
        return costs->weight_of ? costs->weight_of[stage] : costs->weight;
    }
}

struct ct_action ct_action_partner(const struct ct_action *transfer)
{
    struct ct_action partner = *transfer;

    switch (transfer->type) {
    case CT_ACTION_SEND_F:
        partner.type = CT_ACTION_RECV_F;
        partner.stage++;
        break;
    case CT_ACTION_RECV_F:
        partner.type = CT_ACTION_SEND_F;
        partner.stage--;
        break;
    case CT_ACTION_SEND_B:
        partner.type = CT_ACTION_RECV_B;
        partner.stage--;
        break;
    default:
        partner.type = CT_ACTION_SEND_B;
        partner.stage++;
    }
    return partner;
}

enum ct_event ct_action_event(const struct ct_action *action)
{
    switch (action->type) {
    case CT_ACTION_F:
        return EVENT_F;
    case CT_ACTION_W:
        return EVENT_W;
    case CT_ACTION_SEND_F:
        return EVENT_SEND_F;
    case CT_ACTION_RECV_F:
        return EVENT_RECV_F;
    case CT_ACTION_SEND_B:
        return EVENT_SEND_B;
    case CT_ACTION_RECV_B:
        return EVENT_RECV_B;
    default:
        return EVENT_I;
    }
}

static int32_t *place_of(const struct ct_action_index *index, enum ct_event event, int stage,
                         int microbatch)
{
    return &index->at[event]
                     [(size_t)stage * (size_t)index->schedule->microbatches + (size_t)microbatch];
}

int32_t ct_action_place(const struct ct_action_index *index, enum ct_event event, int stage,
                        int microbatch)
{
    return *place_of(index, event, stage, microbatch);
}

static int enter(struct ct_action_index *index, enum ct_event event, const struct ct_action *action,
                 int rank, size_t place)
{
    int32_t *at = place_of(index, event, action->stage, action->microbatch);
    const struct ct_action_list *list = &index->schedule->lists[rank];
    char text[64], first[64];

    if (*at < 0) {
        *at = (int32_t)place;
        return 0;
    }
    ct_action_print(action, text, sizeof(text));
    ct_action_print(&list->item[*at], first, sizeof(first));
    return ct_fail(CT_EINVAL, "rank %d: %s (action %zu) was already done by %s (action %d)", rank,
                   text, place + 1, first, *at + 1);
}

static int check_range(const struct ct_schedule *s, const struct ct_action *action, int rank,
                       size_t place)
{
    bool repeats =
        ct_action_computes(action) || ct_action_sends(action) || ct_action_receives(action);
    char text[64], why[64];

    if (action->stage < 0 || action->stage >= s->stages)
        snprintf(why, sizeof(why), "stages are 0 to %d", s->stages - 1);
    else if (s->rank_of[action->stage] != rank)
        snprintf(why, sizeof(why), "stage %d is on rank %d", action->stage,
                 s->rank_of[action->stage]);
    else if (repeats && (action->microbatch < 0 || action->microbatch >= s->microbatches))
        snprintf(why, sizeof(why), "microbatches are 0 to %d", s->microbatches - 1);
    else
        return 0;
    ct_action_print(action, text, sizeof(text));
    return ct_fail(CT_EINVAL, "rank %d, action %zu: %s: %s", rank, place + 1, text, why);
}

static int index_action(struct ct_action_index *index, const struct ct_action *action, int rank,
                        size_t place)
{
    struct ct_action part[2];
    int parts = ct_action_parts(action, part), rc = 0;

    for (int i = 0; rc == 0 && i < parts; i++) {
        rc = check_range(index->schedule, &part[i], rank, place);
        if (rc < 0 || part[i].type == CT_ACTION_UNSHARD || part[i].type == CT_ACTION_RESHARD ||
            part[i].type == CT_ACTION_REDUCE_GRAD)
            continue;
        rc = enter(index, ct_action_event(&part[i]), &part[i], rank, place);
        if (rc == 0 && part[i].type == CT_ACTION_B)
            rc = enter(index, EVENT_W, &part[i], rank, place);
    }
    return rc;
}

int ct_action_index_make(const struct ct_schedule *schedule, struct ct_arena *arena,
                         struct ct_action_index *index)
{
    size_t places = (size_t)schedule->stages * (size_t)schedule->microbatches;
    int rc = 0;

    index->schedule = schedule;
    for (int e = 0; e < EVENTS; e++) {
        index->at[e] = ct_arena_array(arena, int32_t, places);
        for (size_t i = 0; i < places; i++)
            index->at[e][i] = -1;
    }
    for (int r = 0; r < schedule->ranks; r++)
        for (size_t i = 0; rc == 0 && i < schedule->lists[r].count; i++)
            rc = index_action(index, &schedule->lists[r].item[i], r, i);
    return rc;
}
