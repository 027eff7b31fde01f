/*
 * Lists run without work: each rank does its actions in order, as soon as it can.
 *
 * A rank has up to three lanes, which walk the same list, each stopping at its own actions: the
 * main one, sends, receives; with one stream, all actions are the main lane's. A compute action
 * needs its inputs. A transfer needs both its ends at the heads of their lanes, and what it sends.
 * Whatever the order in which ranks are looked at, the end is the same, and so are the times, as
 * each is the latest of those that it depends on.
 */
#include <string.h>

#include <ctitan/error.h>

#include "schedule_internal.h"

static const struct ct_action *item(const struct ct_dry_run *x, int rank, size_t place)
{
    return &x->schedule->lists[rank].item[place];
}

static enum ct_lane lane_of(const struct ct_dry_run *x, const struct ct_action *action)
{
    if (ct_action_receives(action) && x->mode != RUN_ONE_STREAM)
        return LANE_RECEIVES;
    return ct_action_sends(action) && x->mode == RUN_OWN_STREAMS ? LANE_SENDS : LANE_MAIN;
}

/* ---- what an action waits for ---- */

/* A lane of a rank that has to go on first; rank -1: nothing to wait for. */
struct blocker {
    int rank;
    enum ct_lane lane;
};

/* Something to be done before: when it was done, or who has not done it. */
static bool done(const struct ct_dry_run *x, enum ct_event event, int stage, int microbatch,
                 double more, double *time, struct blocker *blocker)
{
    int rank = x->schedule->rank_of[stage];
    int32_t place = ct_action_place(x->index, event, stage, microbatch);
    enum ct_lane lane = lane_of(x, item(x, rank, (size_t)place));

    if ((size_t)place >= x->next[rank][lane]) {
        *blocker = (struct blocker){rank, lane};
        return false;
    }
    if (x->costs && x->end[rank][place] + more > *time)
        *time = x->end[rank][place] + more;
    return true;
}

/* What another stage makes for this one: made on this rank, received, or sent somehow. */
static bool input_done(const struct ct_dry_run *x, const struct ct_action *a, int from,
                       double *time, struct blocker *blocker)
{
    const struct ct_schedule *s = x->schedule;
    bool forward = a->type == CT_ACTION_F;
    bool local = s->rank_of[from] == s->rank_of[a->stage];

    if (s->communicates && !local)
        return done(x, forward ? EVENT_RECV_F : EVENT_RECV_B, a->stage, a->microbatch, 0, time,
                    blocker);
    return done(x, forward ? EVENT_F : EVENT_I, from, a->microbatch,
                local || !x->costs ? 0 : x->costs->send, time, blocker);
}

static bool compute_ready(const struct ct_dry_run *x, const struct ct_action *a, double *time,
                          struct blocker *blocker)
{
    switch (a->type) {
    case CT_ACTION_F:
        return a->stage == 0 || input_done(x, a, a->stage - 1, time, blocker);
    case CT_ACTION_W:
        return done(x, EVENT_I, a->stage, a->microbatch, 0, time, blocker);
    case CT_ACTION_I:
    case CT_ACTION_B:
        return done(x, EVENT_F, a->stage, a->microbatch, 0, time, blocker) &&
               (a->stage == x->schedule->stages - 1 ||
                input_done(x, a, a->stage + 1, time, blocker));
    default:
        return true;
    }
}

static bool inputs_ready(const struct ct_dry_run *x, const struct ct_action *action, double *time,
                         struct blocker *blocker)
{
    struct ct_action part[2];
    int parts = ct_action_parts(action, part);

    for (int i = 0; i < parts; i++)
        if (!compute_ready(x, &part[i], time, blocker))
            return false;
    return true;
}

/* ---- going on ---- */

static void look_at(struct ct_dry_run *x, int rank)
{
    if (x->queued[rank])
        return;
    x->queued[rank] = true;
    x->todo[x->todos++] = rank;
}

/* Moves the lane to its next action behind the one at its place. */
static void advance(struct ct_dry_run *x, int rank, enum ct_lane lane)
{
    const struct ct_action_list *list = &x->schedule->lists[rank];
    size_t *next = &x->next[rank][lane];

    do
        ++*next;
    while (*next < list->count && lane_of(x, &list->item[*next]) != lane);
}

static void finish(struct ct_dry_run *x, int rank, enum ct_lane lane, double start, double end)
{
    size_t place = x->next[rank][lane];

    if (x->costs) {
        x->start[rank][place] = start;
        x->end[rank][place] = end;
        x->clock[rank][lane] = end;
    }
    advance(x, rank, lane);
}

static double duration(const struct ct_costs *c, const struct ct_action *action)
{
    struct ct_action atom[3];
    int atoms = ct_action_atoms(action, atom);
    double sum = 0;

    for (int i = 0; i < atoms; i++)
        sum += ct_atom_cost(c, atom[i].type, atom[i].stage);
    return action->type == CT_ACTION_OVERLAP_F_B && c->overlap > 0 ? sum * c->overlap : sum;
}

/* Those who may use what a compute action made, if nothing sends it. */
static void wake_neighbours(struct ct_dry_run *x, const struct ct_action *action)
{
    const struct ct_schedule *s = x->schedule;
    struct ct_action part[2];
    int parts = s->communicates ? 0 : ct_action_parts(action, part);

    for (int i = 0; i < parts; i++) {
        if (part[i].type == CT_ACTION_F && part[i].stage + 1 < s->stages)
            look_at(x, s->rank_of[part[i].stage + 1]);
        if ((part[i].type == CT_ACTION_I || part[i].type == CT_ACTION_B) && part[i].stage > 0)
            look_at(x, s->rank_of[part[i].stage - 1]);
    }
}

static bool try_main(struct ct_dry_run *x, int rank)
{
    const struct ct_action *action = item(x, rank, x->next[rank][LANE_MAIN]);
    double start = x->clock[rank][LANE_MAIN];
    struct blocker blocker;

    if (!inputs_ready(x, action, &start, &blocker))
        return false;
    finish(x, rank, LANE_MAIN, start, start + (x->costs ? duration(x->costs, action) : 0));
    wake_neighbours(x, action);
    return true;
}

/* What is sent is there. */
static bool sent_ready(const struct ct_dry_run *x, const struct ct_action *send, double *time,
                       struct blocker *blocker)
{
    return done(x, send->type == CT_ACTION_SEND_F ? EVENT_F : EVENT_I, send->stage,
                send->microbatch, 0, time, blocker);
}

/* Whether what has to be done before the transfer at a place begins is done. */
static bool may_begin(const struct ct_dry_run *x, int rank, enum ct_lane lane, size_t place)
{
    return x->mode != RUN_RECEIVES_ASIDE || lane != LANE_RECEIVES ||
           x->next[rank][LANE_MAIN] > place;
}

/* The rank of the other end, and whether that is at the head of its lane. */
static bool partner_ready(const struct ct_dry_run *x, const struct ct_action *partner,
                          struct blocker *where)
{
    int rank = x->schedule->rank_of[partner->stage];
    size_t place = (size_t)ct_action_place(x->index, ct_action_event(partner), partner->stage,
                                           partner->microbatch);

    *where = (struct blocker){rank, lane_of(x, partner)};
    return x->next[rank][where->lane] == place && may_begin(x, rank, where->lane, place);
}

static bool try_transfer(struct ct_dry_run *x, int rank, enum ct_lane lane)
{
    const struct ct_action *action = item(x, rank, x->next[rank][lane]);
    struct ct_action partner = ct_action_partner(action);
    const struct ct_action *send = ct_action_sends(action) ? action : &partner;
    double start = x->clock[rank][lane], end;
    struct blocker other, blocker;

    if (!may_begin(x, rank, lane, x->next[rank][lane]) || !partner_ready(x, &partner, &other) ||
        !sent_ready(x, send, &start, &blocker))
        return false;
    if (x->clock[other.rank][other.lane] > start)
        start = x->clock[other.rank][other.lane];
    end = start + (x->costs ? x->costs->send : 0);
    finish(x, rank, lane, start, end);
    finish(x, other.rank, other.lane, start, end);
    look_at(x, other.rank);
    return true;
}

static bool at_end(const struct ct_dry_run *x, int rank, enum ct_lane lane)
{
    return x->next[rank][lane] >= x->schedule->lists[rank].count;
}

static bool try_lane(struct ct_dry_run *x, int rank, enum ct_lane lane)
{
    const struct ct_action *action;

    if (at_end(x, rank, lane))
        return false;
    action = item(x, rank, x->next[rank][lane]);
    if (ct_action_sends(action) || ct_action_receives(action))
        return try_transfer(x, rank, lane);
    return try_main(x, rank);
}

static void go_on(struct ct_dry_run *x, int rank)
{
    bool moved;

    do {
        moved = false;
        for (enum ct_lane lane = 0; lane < LANES; lane++)
            while (try_lane(x, rank, lane))
                moved = true;
    } while (moved);
}

/* ---- the run ---- */

static void prepare(struct ct_dry_run *x, struct ct_arena *arena)
{
    int ranks = x->schedule->ranks;

    x->next = ct_arena_alloc(arena, sizeof(*x->next) * (size_t)ranks);
    x->clock = ct_arena_alloc(arena, sizeof(*x->clock) * (size_t)ranks);
    x->todo = ct_arena_array(arena, int, ranks);
    x->queued = ct_arena_array(arena, bool, ranks);
    x->todos = 0;
    for (int r = ranks - 1; r >= 0; r--) {
        for (enum ct_lane lane = 0; lane < LANES; lane++) {
            x->next[r][lane] = (size_t)-1;
            advance(x, r, lane);
        }
        look_at(x, r);
    }
}

bool ct_dry_run(struct ct_dry_run *x, struct ct_arena *arena)
{
    prepare(x, arena);
    while (x->todos) {
        int rank = x->todo[--x->todos];

        x->queued[rank] = false;
        go_on(x, rank);
    }
    for (int r = 0; r < x->schedule->ranks; r++)
        for (enum ct_lane lane = 0; lane < LANES; lane++)
            if (!at_end(x, r, lane))
                return false;
    return true;
}

/* ---- who waits for whom ---- */

/* A lane that is stuck waits for one other, so that following it ends in a circle. */
static struct blocker waits_for(const struct ct_dry_run *x, int rank, enum ct_lane lane)
{
    const struct ct_action *action = item(x, rank, x->next[rank][lane]);
    struct ct_action partner;
    struct blocker blocker = {rank, lane};
    double time = 0;

    if (!ct_action_sends(action) && !ct_action_receives(action)) {
        inputs_ready(x, action, &time, &blocker);
        return blocker;
    }
    if (!may_begin(x, rank, lane, x->next[rank][lane]))
        return (struct blocker){rank, LANE_MAIN};
    partner = ct_action_partner(action);
    if (ct_action_sends(action) && !sent_ready(x, action, &time, &blocker))
        return blocker;
    partner_ready(x, &partner, &blocker);
    return blocker;
}

static int lane_number(struct blocker b)
{
    return b.rank * LANES + (int)b.lane;
}

/* The number of steps of the circle that begins at b, if b is in one that steps have not met. */
static int circle_from(const struct ct_dry_run *x, struct blocker b, int *seen, int mark,
                       struct blocker *in_circle)
{
    int length = 0;
    struct blocker at;

    while (!seen[lane_number(b)]) {
        seen[lane_number(b)] = mark;
        b = waits_for(x, b.rank, b.lane);
    }
    if (seen[lane_number(b)] != mark)
        return 0;
    *in_circle = at = b;
    do {
        at = waits_for(x, at.rank, at.lane);
        length++;
    } while (lane_number(at) != lane_number(b));
    return length;
}

static struct blocker shortest_circle(const struct ct_dry_run *x, struct ct_arena *arena,
                                      int *length)
{
    int *seen = ct_arena_array(arena, int, x->schedule->ranks *LANES), mark = 0;
    struct blocker best = {-1, LANE_MAIN}, in_circle;

    *length = 0;
    for (int r = 0; r < x->schedule->ranks; r++)
        for (enum ct_lane lane = 0; lane < LANES; lane++) {
            int steps = at_end(x, r, lane)
                            ? 0
                            : circle_from(x, (struct blocker){r, lane}, seen, ++mark, &in_circle);

            if (steps && (!*length || steps < *length)) {
                *length = steps;
                best = in_circle;
            }
        }
    return best;
}

/* At most this many waits of a circle are told. */
#define TOLD 8

int ct_dry_run_stuck(const struct ct_dry_run *x, struct ct_arena *arena)
{
    char text[1536] = "", name[64];
    size_t used = 0;
    int length;
    struct blocker at = shortest_circle(x, arena, &length);

    for (int i = 0; i < length && i < TOLD; i++) {
        struct blocker next = waits_for(x, at.rank, at.lane);

        ct_action_print(item(x, at.rank, x->next[at.rank][at.lane]), name, sizeof(name));
        used += (size_t)snprintf(text + used, sizeof(text) - used,
                                 "%srank %d cannot do %s (action %zu) ", i ? ", " : "", at.rank,
                                 name, x->next[at.rank][at.lane] + 1);
        ct_action_print(item(x, next.rank, x->next[next.rank][next.lane]), name, sizeof(name));
        used += (size_t)snprintf(text + used, sizeof(text) - used, "before rank %d gets past %s",
                                 next.rank, name);
        at = next;
    }
    if (length > TOLD)
        snprintf(text + used, sizeof(text) - used, ", and so on, a circle of %d", length);
    return ct_fail(CT_EINVAL, "deadlock%s: %s",
                   !x->schedule->communicates  ? ""
                   : x->mode == RUN_ONE_STREAM ? " with one stream"
                                               : " with streams of their own for transfers",
                   text);
}
