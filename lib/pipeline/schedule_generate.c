/*
 * Whole schedules, from a plugin or of forwards alone.
 */
#include <limits.h>
#include <string.h>

#include <ctitan/error.h>

#include "schedule_internal.h"

/* In a list, of each stage and microbatch. F, I and W are 3; what is repeated a few times has more
   telling errors. */
#define MOST_ACTIONS 64

int ct_schedule_looped(int stage, int ranks, int stages)
{
    (void)stages;
    return stage % ranks;
}

int ct_schedule_v(int stage, int ranks, int stages)
{
    int place = stage % ranks;

    (void)stages;
    return stage / ranks % 2 ? ranks - 1 - place : place;
}

static int check_request(const struct ct_schedule_request *r)
{
    if (r->ranks < 1 || r->stages < 1 || r->microbatches < 1)
        return ct_fail(CT_ECONFIG, "%d ranks, %d stages, %d microbatches: each must be at least 1",
                       r->ranks, r->stages, r->microbatches);
    if ((int64_t)r->stages * r->microbatches > INT_MAX / 8)
        return ct_fail(CT_ECONFIG, "%d stages of %d microbatches are too many actions", r->stages,
                       r->microbatches);
    return 0;
}

static int check_stages(const struct ct_schedule_ops *ops, const char *name,
                        const struct ct_schedule_request *r)
{
    int least = ops->stages_per_rank_min ? ops->stages_per_rank_min : 1;
    int most = ops->stages_per_rank_max, each = r->stages / r->ranks;

    if (r->stages % r->ranks)
        return ct_fail(CT_ECONFIG,
                       "%s: %d stages on %d ranks: the number of stages must be a multiple of the "
                       "ranks",
                       name, r->stages, r->ranks);
    if (least == most && each != least)
        return ct_fail(CT_ECONFIG, "%s has %d stage%s on each rank: %d on %d ranks, not %d", name,
                       least, ct_plural(least), least * r->ranks, r->ranks, r->stages);
    if (each < least)
        return ct_fail(CT_ECONFIG,
                       "%s needs at least %d stages on each rank: %d on %d ranks, not %d", name,
                       least, least * r->ranks, r->ranks, r->stages);
    if (most && each > most)
        return ct_fail(CT_ECONFIG, "%s has at most %d stages on each rank: %d on %d ranks, not %d",
                       name, most, most * r->ranks, r->ranks, r->stages);
    return 0;
}

static struct ct_schedule *make(const struct ct_schedule_request *request, const char *name,
                                int *rank_of)
{
    struct ct_schedule *s = ct_arena_new(request->arena, struct ct_schedule);

    s->name = ct_arena_strdup(request->arena, name);
    s->ranks = request->ranks;
    s->stages = request->stages;
    s->microbatches = request->microbatches;
    s->arena = request->arena;
    s->lists = ct_arena_array(request->arena, struct ct_action_list, request->ranks);
    s->rank_of = rank_of;
    return s;
}

static int place_stages(const struct ct_schedule_ops *ops, const struct ct_schedule_request *r,
                        int *rank_of)
{
    for (int s = 0; s < r->stages; s++) {
        rank_of[s] = (ops->placement ? ops->placement : ct_schedule_looped)(s, r->ranks, r->stages);
        if (rank_of[s] < 0 || rank_of[s] >= r->ranks)
            return ct_fail(CT_EINVAL, "stage %d is placed on rank %d of %d", s, rank_of[s],
                           r->ranks);
    }
    return 0;
}

static int generate(const struct ct_schedule_ops *ops, const struct ct_schedule_request *r,
                    struct ct_action_list *lists)
{
    struct ct_generation call = {.most =
                                     (size_t)r->stages * (size_t)r->microbatches * MOST_ACTIONS};
    struct ct_generation *outer = ct_generation; /* `generate` may call that of another schedule */
    int rc;

    ct_generation = &call;
    if (setjmp(call.stop))
        rc = ct_fail(CT_EINVAL,
                     "`generate` adds more than %zu actions to a list, and does not end: %d stages "
                     "of %d microbatches have %d: F, I and W of each",
                     call.most, r->stages, r->microbatches, 3 * r->stages * r->microbatches);
    else
        rc = ops->generate(r, lists);
    ct_generation = outer;
    return rc;
}

int ct_schedule_generate(const struct ct_schedule_ops *ops, const char *name,
                         const struct ct_schedule_request *request, struct ct_schedule **schedule)
{
    int *rank_of, rc = check_request(request);

    if (rc == 0)
        rc = check_stages(ops, name, request);
    if (rc < 0)
        return rc;
    rank_of = ct_arena_array(request->arena, int, request->stages);
    rc = place_stages(ops, request, rank_of);
    if (rc < 0)
        return ct_context(rc, "%s", name);
    *schedule = make(request, name, rank_of);
    rc = generate(ops, request, (*schedule)->lists);
    return rc < 0 ? ct_context(rc, "%s", name) : 0;
}

/*
 * Rounds have as many microbatches as there are ranks, each through all stages: ranks with several
 * stages are then busy as soon as ranks with one.
 */
static void fill_forwards(struct ct_schedule *s)
{
    for (int first = 0; first < s->microbatches; first += s->ranks)
        for (int stage = 0; stage < s->stages; stage++)
            for (int m = first; m < first + s->ranks && m < s->microbatches; m++)
                ct_action_append(s->arena, &s->lists[s->rank_of[stage]],
                                 (struct ct_action){CT_ACTION_F, stage, m, .microbatch_b = -1});
}

int ct_schedule_forward_only(const struct ct_schedule_request *request, const int *rank_of,
                             struct ct_schedule **schedule)
{
    int rc = check_request(request);

    if (rc < 0)
        return rc;
    for (int s = 0; s < request->stages; s++)
        if (rank_of[s] < 0 || rank_of[s] >= request->ranks)
            return ct_fail(CT_EINVAL, "stage %d is placed on rank %d of %d", s, rank_of[s],
                           request->ranks);
    *schedule =
        make(request, "forward_only",
             ct_arena_copy(request->arena, rank_of, sizeof(*rank_of) * (size_t)request->stages));
    (*schedule)->forward_only = true;
    fill_forwards(*schedule);
    return 0;
}
