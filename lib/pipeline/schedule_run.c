/*
 * Dry runs of lists: each rank does its actions in order, as soon as it can.
 *
 * A rank has up to three lanes for its list: the main one, sends, receives. With one stream, all
 * actions are in the main lane. A compute action comes after its inputs, a send after what it
 * sends, and the two ends of a transfer are matched.
 */
#include "schedule_internal.h"

enum lane { LANE_MAIN, LANE_SENDS, LANE_RECEIVES };
#define LANES 3

static enum lane lane_of(const struct ct_dry_run *x, const struct ct_action *action)
{
    if (ct_action_receives(action) && x->mode != RUN_ONE_STREAM)
        return LANE_RECEIVES;
    return ct_action_sends(action) && x->mode == RUN_OWN_STREAMS ? LANE_SENDS : LANE_MAIN;
}

static int32_t item_of(const struct ct_dry_run *x, enum ct_event event, int stage, int microbatch)
{
    return x->first[x->schedule->rank_of[stage]] +
           ct_action_place(x->index, event, stage, microbatch);
}

static void comes_after(struct ct_dry_run *x, enum ct_event event, int stage, int microbatch,
                        double delay)
{
    ct_lanes_after(&x->lanes, item_of(x, event, stage, microbatch), delay);
}

/* An input from another stage: computed on this rank, received, or sent implicitly. */
static void after_input(struct ct_dry_run *x, const struct ct_action *a, int from)
{
    const struct ct_schedule *s = x->schedule;
    bool forward = a->type == CT_ACTION_F;
    bool local = s->rank_of[from] == s->rank_of[a->stage];

    if (s->communicates && !local)
        comes_after(x, forward ? EVENT_RECV_F : EVENT_RECV_B, a->stage, a->microbatch, 0);
    else
        comes_after(x, forward ? EVENT_F : EVENT_I, from, a->microbatch,
                    local || !x->costs ? 0 : x->costs->send);
}

static void after_inputs(struct ct_dry_run *x, const struct ct_action *a)
{
    switch (a->type) {
    case CT_ACTION_F:
        if (a->stage > 0)
            after_input(x, a, a->stage - 1);
        break;
    case CT_ACTION_W:
        comes_after(x, EVENT_I, a->stage, a->microbatch, 0);
        break;
    case CT_ACTION_I:
    case CT_ACTION_B:
        comes_after(x, EVENT_F, a->stage, a->microbatch, 0);
        if (a->stage < x->schedule->stages - 1)
            after_input(x, a, a->stage + 1);
        break;
    default:
        break;
    }
}

static double duration(const struct ct_costs *c, const struct ct_action *action)
{
    struct ct_action atom[3];
    int atoms = ct_action_atoms(action, atom);
    double sum = 0;

    if (ct_action_sends(action) || ct_action_receives(action))
        return c->send;
    for (int i = 0; i < atoms; i++)
        sum += ct_atom_cost(c, atom[i].type, atom[i].stage);
    return action->type == CT_ACTION_OVERLAP_F_B && c->overlap > 0 ? sum * c->overlap : sum;
}

/* main: the last item of the rank's main lane before this action; -1: none. */
static void add(struct ct_dry_run *x, int rank, const struct ct_action *action, int32_t *main)
{
    enum lane lane = lane_of(x, action);
    int32_t item = ct_lanes_add(&x->lanes, rank * LANES + (int)lane,
                                x->costs ? duration(x->costs, action) : 0);
    struct ct_action part[2];
    int parts = ct_action_parts(action, part);

    if (x->mode == RUN_RECEIVES_ASIDE && lane == LANE_RECEIVES && *main >= 0)
        ct_lanes_after(&x->lanes, *main, 0);
    if (ct_action_sends(action))
        comes_after(x, action->type == CT_ACTION_SEND_F ? EVENT_F : EVENT_I, action->stage,
                    action->microbatch, 0);
    for (int i = 0; i < parts; i++)
        after_inputs(x, &part[i]);
    if (lane == LANE_MAIN)
        *main = item;
}

static void add_all(struct ct_dry_run *x)
{
    const struct ct_schedule *s = x->schedule;

    for (int r = 0; r < s->ranks; r++) {
        int32_t main = -1;

        for (size_t i = 0; i < s->lists[r].count; i++)
            add(x, r, &s->lists[r].item[i], &main);
    }
}

/* Match the two ends of every transfer. */
static void join_transfers(struct ct_dry_run *x)
{
    const struct ct_schedule *s = x->schedule;

    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < s->lists[r].count; i++) {
            const struct ct_action *send = &s->lists[r].item[i];
            struct ct_action receive;

            if (!ct_action_sends(send))
                continue;
            receive = ct_action_partner(send);
            ct_lanes_match(
                &x->lanes, x->first[r] + (int32_t)i,
                item_of(x, ct_action_event(&receive), receive.stage, receive.microbatch));
        }
}

bool ct_dry_run(struct ct_dry_run *x, struct ct_arena *arena)
{
    const struct ct_schedule *s = x->schedule;

    x->first = ct_arena_array(arena, int32_t, s->ranks + 1);
    for (int r = 0; r < s->ranks; r++)
        x->first[r + 1] = x->first[r] + (int32_t)s->lists[r].count;
    ct_lanes_init(&x->lanes, arena, s->ranks * LANES);
    add_all(x);
    join_transfers(x);
    return ct_lanes_run(&x->lanes);
}

static void name_action(const void *client, int32_t item, struct ct_lane_name *name)
{
    const struct ct_dry_run *x = client;

    name->rank = x->lanes.item[item].lane / LANES;
    name->place = (size_t)(item - x->first[name->rank]);
    ct_action_print(&x->schedule->lists[name->rank].item[name->place], name->text,
                    sizeof(name->text));
}

int ct_dry_run_stuck(const struct ct_dry_run *x)
{
    return ct_lanes_stuck(&x->lanes, &(struct ct_lane_words){
                                         .title = !x->schedule->communicates ? ""
                                                  : x->mode == RUN_ONE_STREAM
                                                      ? " with one stream"
                                                      : " with streams of their own for transfers",
                                         .noun = "action",
                                         .name = name_action,
                                         .client = x});
}
