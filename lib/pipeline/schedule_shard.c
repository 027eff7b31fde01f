/*
 * Gathers parameters before use, frees them when other stages come first, and reduces gradients
 * once they are whole. Ranks are independent: the lists of others do not matter.
 */
#include "schedule_internal.h"

struct sharding {
    struct ct_arena *scratch;
    const struct ct_communicate_options *options;
    struct ct_action_list *out;
    size_t *next_use; /* by stage: position in the list, or NEVER */
    bool *whole;      /* by stage */
    int *soonest;     /* the rank's stages, sorted by next use */
    int count;
};
#define NEVER ((size_t)-1)

static void add(struct ct_arena *arena, struct ct_action_list *list, enum ct_action_type type,
                int stage)
{
    ct_action_append(arena, list, (struct ct_action){type, stage, -1, .microbatch_b = -1});
}

/* following[2 i + part]: the position of the next action on the stage of part of action i. */
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

/* Sort the rank's stages by next use; ties by stage. */
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

/* Keep unsharded the stages used next, and no others. */
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

void ct_schedule_shard(struct ct_schedule *s, const struct ct_communicate_options *options,
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
