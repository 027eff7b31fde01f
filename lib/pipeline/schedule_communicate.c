/*
 * Communication for compute actions.
 *
 * Transfers: the compute actions run on a clock with the given times, or with equal ones. The
 * result of an action is sent as soon as both ranks are between two actions: the SEND is appended
 * to one new list, the RECV to the other. So all lists agree with the order of these events, and
 * the two ends of each transfer are neighbours in it. Whoever runs the lists in order, with one
 * stream for each rank, can always do the next thing in that order. Neither end waits for the other
 * to finish an action unless it has nothing else to do. So if actions take these times, and
 * transfers none, one stream is as fast as several.
 *
 * This clock is no client of lanes.h. Lanes find when the items of given lists are done; here the
 * lists are still being made, and where a transfer stands in them depends on which ranks are
 * between two actions at that time.
 */
#include <assert.h>

#include <ctitan/error.h>

#include "schedule_internal.h"

/* Ticks of the shortest action. Times are whole numbers, so simultaneous ends are exactly equal. */
#define TICKS 1000

struct running {
    int64_t end;
    int rank;
};

struct clock {
    struct ct_schedule *schedule;
    struct ct_arena *scratch;
    const struct ct_costs *costs;
    double ticks;                       /* in a unit of the costs */
    struct ct_action_list *out;         /* by rank */
    size_t *next;                       /* by rank: index of its next action */
    bool *busy;                         /* by rank */
    bool *forward_done;                 /* by stage and microbatch */
    bool *forward_here, *backward_here; /* the stage has received its input */
    struct ct_action_list *pending; /* by rank: SENDs from it and to it that are not placed yet */
    struct running *heap;           /* running actions, the first to end in front */
    int runs;
    int *ended, ends; /* ranks whose action has just ended */
    int *idle, idles; /* ranks that may be able to start */
    bool *queued;     /* by rank: is in idle */
    int64_t now;
};

/* ---- running actions: a binary heap ---- */

static void begin(struct clock *x, int rank, int64_t end)
{
    int at = x->runs++;

    for (; at > 0 && x->heap[(at - 1) / 2].end > end; at = (at - 1) / 2)
        x->heap[at] = x->heap[(at - 1) / 2];
    x->heap[at] = (struct running){end, rank};
}

static int take_first(struct clock *x)
{
    int rank = x->heap[0].rank, at = 0, child;
    struct running last = x->heap[--x->runs];

    while ((child = 2 * at + 1) < x->runs) {
        child += child + 1 < x->runs && x->heap[child + 1].end < x->heap[child].end;
        if (x->heap[child].end >= last.end)
            break;
        x->heap[at] = x->heap[child];
        at = child;
    }
    x->heap[at] = last;
    return rank;
}

/* ---- the run ---- */

static size_t of(const struct clock *x, int stage, int microbatch)
{
    return (size_t)stage * (size_t)x->schedule->microbatches + (size_t)microbatch;
}

static bool can_start(const struct clock *x, const struct ct_action *action)
{
    struct ct_action part[2];
    int parts = ct_action_parts(action, part);
    bool ready = true;

    for (int p = 0; p < parts; p++) {
        int s = part[p].stage, m = part[p].microbatch;

        if (part[p].type == CT_ACTION_F)
            ready &= s == 0 || x->forward_here[of(x, s, m)];
        else if (part[p].type != CT_ACTION_W)
            ready &= x->forward_done[of(x, s, m)] &&
                     (s == x->schedule->stages - 1 || x->backward_here[of(x, s, m)]);
    }
    return ready;
}

static int64_t duration(const struct clock *x, const struct ct_action *action)
{
    struct ct_action atom[3];
    int atoms = ct_action_atoms(action, atom);
    int64_t sum = 0;

    for (int i = 0; i < atoms; i++)
        sum += (int64_t)(ct_atom_cost(x->costs, atom[i].type, atom[i].stage) * x->ticks + 0.5);
    return action->type == CT_ACTION_OVERLAP_F_B && x->costs->overlap > 0
               ? (int64_t)((double)sum * x->costs->overlap)
               : sum;
}

static void start(struct clock *x, int rank)
{
    const struct ct_action_list *list = &x->schedule->lists[rank];

    while (!x->busy[rank] && x->next[rank] < list->count) {
        const struct ct_action *action = &list->item[x->next[rank]];

        if (ct_action_computes(action)) {
            if (!can_start(x, action))
                return;
            x->busy[rank] = true;
            begin(x, rank, x->now + duration(x, action));
        }
        ct_action_append(x->schedule->arena, &x->out[rank], *action);
        x->next[rank]++;
    }
}

static void wake(struct clock *x, int rank)
{
    if (!x->queued[rank])
        x->idle[x->idles++] = rank;
    x->queued[rank] = true;
}

static bool *here(const struct clock *x, const struct ct_action *receive)
{
    return &(receive->type == CT_ACTION_RECV_F
                 ? x->forward_here
                 : x->backward_here)[of(x, receive->stage, receive->microbatch)];
}

static void make_available(struct clock *x, enum ct_action_type type, const struct ct_action *made)
{
    struct ct_schedule *s = x->schedule;
    struct ct_action send = {type, made->stage, made->microbatch, .microbatch_b = -1};
    struct ct_action receive = ct_action_partner(&send);
    int from = s->rank_of[send.stage], to = s->rank_of[receive.stage];

    if (from == to) {
        *here(x, &receive) = true;
        return;
    }
    ct_action_append(x->scratch, &x->pending[from], send);
    ct_action_append(x->scratch, &x->pending[to], send);
}

static void end(struct clock *x, int rank)
{
    struct ct_action part[2];
    int parts = ct_action_parts(&x->schedule->lists[rank].item[x->next[rank] - 1], part);

    x->busy[rank] = false;
    wake(x, rank);
    for (int p = 0; p < parts; p++) {
        bool forward = part[p].type == CT_ACTION_F;

        if (part[p].type == CT_ACTION_W)
            continue;
        if (forward)
            x->forward_done[of(x, part[p].stage, part[p].microbatch)] = true;
        if (forward ? part[p].stage + 1 < x->schedule->stages : part[p].stage > 0)
            make_available(x, forward ? CT_ACTION_SEND_F : CT_ACTION_SEND_B, &part[p]);
    }
}

/* Place a rank's transfers with others that are not busy either. */
static void transfer(struct clock *x, int rank)
{
    struct ct_schedule *s = x->schedule;
    struct ct_action_list *pending = &x->pending[rank];
    size_t kept = 0;

    for (size_t i = 0; i < pending->count; i++) {
        struct ct_action send = pending->item[i], receive = ct_action_partner(&send);
        int from = s->rank_of[send.stage], to = s->rank_of[receive.stage];

        if (*here(x, &receive))
            continue;
        if (x->busy[from] || x->busy[to]) {
            pending->item[kept++] = send;
            continue;
        }
        ct_action_append(s->arena, &x->out[from], send);
        ct_action_append(s->arena, &x->out[to], receive);
        *here(x, &receive) = true;
        wake(x, to);
    }
    pending->count = kept;
}

/* Even ranks go first; otherwise each would wait for the transfer of the rank before it. */
static void end_what_ends(struct clock *x)
{
    x->now = x->heap[0].end;
    for (x->ends = 0; x->runs && x->heap[0].end == x->now; x->ends++)
        x->ended[x->ends] = take_first(x);
    for (int i = 0; i < x->ends; i++)
        end(x, x->ended[i]);
    for (int odd = 0; odd < 2; odd++)
        for (int i = 0; i < x->ends; i++)
            if (x->ended[i] % 2 == odd)
                transfer(x, x->ended[i]);
}

static void run_clock(struct clock *x)
{
    for (int r = 0; r < x->schedule->ranks; r++)
        start(x, r);
    while (x->runs) {
        end_what_ends(x);
        for (int i = 0; i < x->idles; i++) {
            x->queued[x->idle[i]] = false;
            start(x, x->idle[i]);
        }
        x->idles = 0;
    }
}

/* Ticks in a unit of the costs. */
static double ticks_of(const struct ct_costs *costs, int stages)
{
    static const enum ct_action_type atoms[] = {CT_ACTION_F, CT_ACTION_I, CT_ACTION_W};
    double least = 0;

    for (size_t i = 0; i < CT_COUNT(atoms); i++)
        for (int s = 0; s < stages; s++) {
            double cost = ct_atom_cost(costs, atoms[i], s);

            if (cost > 0 && (least == 0 || cost < least))
                least = cost;
        }
    return least > 0 ? TICKS / least : 0;
}

static void make_clock(struct clock *x, struct ct_arena *scratch)
{
    struct ct_schedule *s = x->schedule;
    size_t each = (size_t)s->stages * (size_t)s->microbatches;

    x->out = ct_arena_array(scratch, struct ct_action_list, s->ranks);
    x->next = ct_arena_array(scratch, size_t, s->ranks);
    x->busy = ct_arena_array(scratch, bool, s->ranks);
    x->forward_done = ct_arena_array(scratch, bool, each);
    x->forward_here = ct_arena_array(scratch, bool, each);
    x->backward_here = ct_arena_array(scratch, bool, each);
    x->pending = ct_arena_array(scratch, struct ct_action_list, s->ranks);
    x->heap = ct_arena_array(scratch, struct running, s->ranks);
    x->ended = ct_arena_array(scratch, int, s->ranks);
    x->idle = ct_arena_array(scratch, int, s->ranks);
    x->queued = ct_arena_array(scratch, bool, s->ranks);
}

static void send_and_receive(struct ct_schedule *s, const struct ct_costs *costs,
                             struct ct_arena *scratch)
{
    static const struct ct_costs equal = {.forward = 1, .input = 1, .weight = 1};
    struct clock x = {.schedule = s, .scratch = scratch, .costs = costs ? costs : &equal};

    x.ticks = ticks_of(x.costs, s->stages);
    make_clock(&x, scratch);
    run_clock(&x);
    for (int r = 0; r < s->ranks; r++) {
        assert(x.next[r] == s->lists[r].count);
        s->lists[r] = x.out[r];
    }
}

/* ---- both ---- */

static int check_options(const struct ct_schedule *s, const struct ct_communicate_options *options)
{
    if (s->communicates)
        return ct_fail(CT_EINVAL, "%s has communication already", s->name);
    if (!options->unshard || options->unsharded_most > 1)
        return 0;
    if (options->unsharded_most < 1)
        return ct_fail(CT_EINVAL, "%s: %d stages unsharded at a time: at least one is required",
                       s->name, options->unsharded_most);
    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < s->lists[r].count; i++)
            if (s->lists[r].item[i].type == CT_ACTION_OVERLAP_F_B)
                return ct_fail(CT_EINVAL,
                               "%s overlaps two stages, which must be unsharded at the same time",
                               s->name);
    return 0;
}

int ct_schedule_communicate(struct ct_schedule *schedule,
                            const struct ct_communicate_options *options)
{
    struct ct_arena scratch = {0};
    int rc = check_options(schedule, options);

    if (rc == 0)
        rc = ct_schedule_verify(schedule, NULL, NULL);
    if (rc < 0)
        return rc;
    ct_schedule_shard(schedule, options, &scratch);
    send_and_receive(schedule, options->costs, &scratch);
    schedule->communicates = true;
    ct_arena_finish(&scratch);
    return 0;
}
