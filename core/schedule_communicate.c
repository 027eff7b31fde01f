/*
 * Communication for compute actions.
 *
 * Transfers: the compute actions are run on a clock on which they take the times they are said to,
 * or all the same. What an action made is sent as soon as both ranks are between two actions: the
 * SEND goes to the end of one new list, the RECV to the end of the other. So all lists agree with
 * the order in which this happened, and each transfer's ends are neighbours in it: whoever runs the
 * lists in order, one stream for each rank, can always do the next thing in that order. Neither end
 * waits for the other to finish an action unless it has nothing else to do, so that where actions
 * take these times, and transfers none, one stream is as fast as several.
 */
#include <assert.h>

#include <ctitan/error.h>

#include "schedule_internal.h"

/* ---- UNSHARD, RESHARD, REDUCE_GRAD: each rank for itself ---- */

struct sharding {
    struct ct_arena *scratch;
    const struct ct_communicate_options *options;
    struct ct_action_list *out;
    size_t *next_use; /* by stage: place in the list, or NEVER */
    bool *whole;      /* by stage */
    int *soonest;     /* the rank's stages, by their next use */
    int count;
};
#define NEVER ((size_t)-1)

static void add(struct ct_arena *arena, struct ct_action_list *list, enum ct_action_type type,
                int stage)
{
    ct_action_append(arena, list, (struct ct_action){type, stage, -1, .microbatch_b = -1});
}

/* following[2 i + part]: the place of the next action on the stage of part of action i. */
static size_t *following_uses(struct sharding *x, const struct ct_action_list *list)
{
    size_t *following = ct_arena_array(x->scratch, size_t, 2 * list->count + 1);

    for (int k = 0; k < x->count; k++)
        x->next_use[x->soonest[k]] = NEVER;
    for (size_t i = list->count; i-- > 0;) {
        struct ct_action part[2];
        int parts = ct_action_parts(&list->item[i], part);

        for (int p = 0; p < parts; p++)
            following[2 * i + (size_t)p] = x->next_use[part[p].stage];
        for (int p = 0; p < parts; p++)
            x->next_use[part[p].stage] = i;
    }
    return following;
}

/* The rank's stages, those that are used sooner first; equal uses in the order of stages. */
static void sort_by_use(struct sharding *x)
{
    for (int k = 1; k < x->count; k++) {
        int stage = x->soonest[k], at = k;

        for (; at > 0; at--) {
            int other = x->soonest[at - 1];

            if (x->next_use[other] < x->next_use[stage] ||
                (x->next_use[other] == x->next_use[stage] && other < stage))
                break;
            x->soonest[at] = other;
        }
        x->soonest[at] = stage;
    }
}

/* Keep the stages that come next, and no others. */
static void evict_and_fetch(struct sharding *x, struct ct_arena *arena)
{
    sort_by_use(x);
    for (int fetch = 0; fetch < 2; fetch++)
        for (int k = 0; k < x->count; k++) {
            int s = x->soonest[k];
            bool wanted = x->next_use[s] != NEVER && k < x->options->unsharded_most;

            if (wanted == x->whole[s] || wanted != fetch)
                continue;
            add(arena, x->out, wanted ? CT_ACTION_UNSHARD : CT_ACTION_RESHARD, s);
            x->whole[s] = wanted;
        }
}

static void reduce_where_done(struct sharding *x, struct ct_arena *arena, const struct ct_action *a,
                              const size_t *following)
{
    struct ct_action part[2];
    int parts = ct_action_parts(a, part);

    for (int p = 0; p < parts; p++)
        if (following[p] == NEVER && (part[p].type == CT_ACTION_B || part[p].type == CT_ACTION_W))
            add(arena, x->out, CT_ACTION_REDUCE_GRAD, part[p].stage);
}

static void shard_rank(struct sharding *x, struct ct_arena *arena,
                       const struct ct_action_list *list)
{
    size_t *following = following_uses(x, list);

    for (size_t i = 0; i < list->count; i++) {
        struct ct_action part[2];
        int parts = ct_action_parts(&list->item[i], part);

        if (x->options->unshard)
            evict_and_fetch(x, arena);
        ct_action_append(arena, x->out, list->item[i]);
        for (int p = 0; p < parts; p++)
            x->next_use[part[p].stage] = following[2 * i + (size_t)p];
        if (x->options->reduce_grad)
            reduce_where_done(x, arena, &list->item[i], &following[2 * i]);
    }
    if (x->options->unshard)
        evict_and_fetch(x, arena);
}

static void shard(struct ct_schedule *s, const struct ct_communicate_options *options,
                  struct ct_arena *scratch)
{
    struct sharding x = {.scratch = scratch, .options = options};

    x.next_use = ct_arena_array(scratch, size_t, s->stages);
    x.whole = ct_arena_array(scratch, bool, s->stages);
    x.soonest = ct_arena_array(scratch, int, s->stages);
    for (int r = 0; r < s->ranks; r++) {
        struct ct_action_list out = {0};

        x.out = &out;
        x.count = 0;
        for (int stage = 0; stage < s->stages; stage++)
            if (s->rank_of[stage] == r)
                x.soonest[x.count++] = stage;
        shard_rank(&x, s->arena, &s->lists[r]);
        s->lists[r] = out;
    }
}

/* ---- transfers ---- */

/* Ticks of the shortest action: times are whole numbers, so that what ends together does so
 * exactly. */
#define TICKS 1000

struct running {
    int64_t end;
    int rank;
};

struct clock {
    struct ct_schedule *schedule;
    struct ct_arena *scratch;
    int64_t *ticks[3];                  /* of F, I, W, by stage */
    double overlap;                     /* share that OVERLAP_F_B takes of its F + B */
    struct ct_action_list *out;         /* by rank */
    size_t *next;                       /* by rank: place of its next action */
    bool *busy;                         /* by rank */
    bool *forward_done;                 /* by stage and microbatch */
    bool *forward_here, *backward_here; /* what the stage needs for it has come */
    struct ct_action_list *pending; /* by rank: SENDs, its own and those to it, not placed yet */
    struct running *heap;           /* what runs, the first to end in front */
    int runs;
    int *ended, ends; /* ranks whose action has just ended */
    int *idle, idles; /* ranks that may be able to start */
    bool *queued;     /* by rank: is among these */
    int64_t now;
};

/* ---- what runs: a binary heap ---- */

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
    struct ct_action part[2];
    int parts = ct_action_parts(action, part);
    int64_t sum = 0;

    for (int p = 0; p < parts; p++) {
        int s = part[p].stage;

        if (part[p].type == CT_ACTION_F)
            sum += x->ticks[0][s];
        if (part[p].type == CT_ACTION_I || part[p].type == CT_ACTION_B)
            sum += x->ticks[1][s];
        if (part[p].type == CT_ACTION_W || part[p].type == CT_ACTION_B)
            sum += x->ticks[2][s];
    }
    return parts == 2 ? (int64_t)((double)sum * x->overlap) : sum;
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

/* Transfers of a rank between two actions with others that are. */
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

/* Even ranks first: else each would wait for the transfer of the rank before it. */
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

static double cost_of(const struct ct_costs *c, int part, int stage)
{
    const double *by_stage[] = {c->forward_of, c->input_of, c->weight_of};
    double same[] = {c->forward, c->input, c->weight};

    return by_stage[part] ? by_stage[part][stage] : same[part];
}

static void make_ticks(struct clock *x, const struct ct_costs *costs)
{
    static const struct ct_costs equal = {.forward = 1, .input = 1, .weight = 1};
    double least = 0;

    costs = costs ? costs : &equal;
    x->overlap = costs->overlap > 0 ? costs->overlap : 1;
    for (int part = 0; part < 3; part++)
        for (int s = 0; s < x->schedule->stages; s++) {
            double cost = cost_of(costs, part, s);

            if (cost > 0 && (least == 0 || cost < least))
                least = cost;
        }
    for (int part = 0; part < 3; part++) {
        x->ticks[part] = ct_arena_array(x->scratch, int64_t, x->schedule->stages);
        for (int s = 0; s < x->schedule->stages && least > 0; s++)
            x->ticks[part][s] = (int64_t)(cost_of(costs, part, s) / least * TICKS + 0.5);
    }
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
    struct clock x = {.schedule = s, .scratch = scratch};

    make_clock(&x, scratch);
    make_ticks(&x, costs);
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
        return ct_fail(CT_EINVAL, "%s: %d stages unsharded at a time: at least one is needed",
                       s->name, options->unsharded_most);
    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < s->lists[r].count; i++)
            if (s->lists[r].item[i].type == CT_ACTION_OVERLAP_F_B)
                return ct_fail(CT_EINVAL,
                               "%s overlaps two stages: both must be unsharded at a time", s->name);
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
    shard(schedule, options, &scratch);
    send_and_receive(schedule, options->costs, &scratch);
    schedule->communicates = true;
    ct_arena_finish(&scratch);
    return 0;
}

/* ---- prefetching ---- */

static enum ct_event consumer_event(const struct ct_action *receive)
{
    return receive->type == CT_ACTION_RECV_F ? EVENT_F : EVENT_I;
}

/* The place of the compute action before the one at `at`; 0 if there is none. */
static size_t compute_before(const struct ct_action_list *list, size_t at)
{
    while (at > 0 && !ct_action_computes(&list->item[--at]))
        ;
    return at;
}

/*
 * place[i]: in front of which action the receive at i is to stand. Receives keep their order, and
 * none moves back: one that is asked for sooner waits for less, and nothing but its consumer waits
 * for it.
 */
static size_t *receive_places(const struct ct_action_list *list,
                              const struct ct_action_index *index, struct ct_arena *scratch)
{
    size_t *place = ct_arena_array(scratch, size_t, list->count + 1), latest = list->count;

    for (size_t i = list->count; i-- > 0;) {
        const struct ct_action *receive = &list->item[i];
        size_t wanted;

        if (!ct_action_receives(receive))
            continue;
        wanted = compute_before(list, (size_t)ct_action_place(index, consumer_event(receive),
                                                              receive->stage, receive->microbatch));
        latest = wanted < latest ? wanted : latest;
        place[i] = latest < i ? latest : i;
    }
    return place;
}

static void move_receives(struct ct_arena *arena, struct ct_action_list *list, const size_t *place)
{
    struct ct_action_list out = {0};
    size_t receive = 0;

    for (size_t i = 0; i < list->count; i++) {
        for (; receive < list->count; receive++) {
            if (!ct_action_receives(&list->item[receive]))
                continue;
            if (place[receive] > i)
                break;
            ct_action_append(arena, &out, list->item[receive]);
        }
        if (!ct_action_receives(&list->item[i]))
            ct_action_append(arena, &out, list->item[i]);
    }
    *list = out;
}

int ct_schedule_prefetch(struct ct_schedule *schedule)
{
    struct ct_arena scratch = {0};
    struct ct_action_index index;
    int rc = ct_schedule_verify(schedule, NULL, NULL);

    if (rc == 0 && !schedule->communicates)
        rc = ct_fail(CT_EINVAL, "%s: there is no communication to prefetch", schedule->name);
    if (rc == 0)
        rc = ct_action_index_make(schedule, &scratch, &index);
    for (int r = 0; rc == 0 && r < schedule->ranks; r++) {
        struct ct_action_list *list = &schedule->lists[r];

        move_receives(schedule->arena, list, receive_places(list, &index, &scratch));
    }
    if (rc == 0)
        schedule->own_streams = true;
    ct_arena_finish(&scratch);
    return rc;
}
