/*
 * Memory held by the actions of a rank: gathered parameters, and activations.
 */
#include <ctitan/error.h>

#include "schedule_internal.h"

/* ---- parameters ---- */

struct stage_state {
    bool whole, reduced;
};

static bool any(const struct ct_schedule *s, enum ct_action_type type, enum ct_action_type or_type)
{
    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < s->lists[r].count; i++)
            if (s->lists[r].item[i].type == type || s->lists[r].item[i].type == or_type)
                return true;
    return false;
}

static int complain(int rank, size_t place, const struct ct_action *action, const char *why)
{
    char text[64];

    ct_action_print(action, text, sizeof(text));
    return ct_fail(CT_EINVAL, "rank %d, action %zu: %s, but the stage %s", rank, place + 1, text,
                   why);
}

static const char *what_is_wrong(const struct ct_action *part, struct stage_state *stage,
                                 bool sharded)
{
    switch (part->type) {
    case CT_ACTION_UNSHARD:
        if (stage->whole)
            return "is unsharded already";
        stage->whole = true;
        return NULL;
    case CT_ACTION_RESHARD:
        if (!stage->whole)
            return "is not unsharded";
        stage->whole = false;
        return NULL;
    case CT_ACTION_REDUCE_GRAD:
        if (stage->reduced)
            return "is reduced already";
        stage->reduced = true;
        return NULL;
    case CT_ACTION_F:
    case CT_ACTION_I:
    case CT_ACTION_W:
    case CT_ACTION_B:
        if (sharded && !stage->whole)
            return "is not unsharded";
        if (stage->reduced)
            return "is reduced already";
        return NULL;
    default:
        return NULL;
    }
}

static int check_stages_at_end(const struct ct_schedule *s, const struct stage_state *stages,
                               bool reduces)
{
    for (int k = 0; k < s->stages; k++) {
        if (stages[k].whole)
            return ct_fail(CT_EINVAL, "stage %d: RESHARD is missing at the end of rank %d", k,
                           s->rank_of[k]);
        if (reduces && !stages[k].reduced)
            return ct_fail(CT_EINVAL, "stage %d: REDUCE_GRAD is missing on rank %d", k,
                           s->rank_of[k]);
    }
    return 0;
}

int ct_schedule_check_sharding(const struct ct_schedule *s, struct ct_arena *arena)
{
    struct stage_state *stages = ct_arena_array(arena, struct stage_state, s->stages);
    bool sharded = any(s, CT_ACTION_UNSHARD, CT_ACTION_RESHARD);
    bool reduces = any(s, CT_ACTION_REDUCE_GRAD, CT_ACTION_REDUCE_GRAD);

    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < s->lists[r].count; i++) {
            struct ct_action part[2];
            int parts = ct_action_parts(&s->lists[r].item[i], part);

            for (int p = 0; p < parts; p++) {
                const char *wrong = what_is_wrong(&part[p], &stages[part[p].stage], sharded);

                if (wrong)
                    return complain(r, i, &s->lists[r].item[i], wrong);
            }
        }
    return check_stages_at_end(s, stages, reduces);
}

/* ---- activations ---- */

static size_t bytes_of(const size_t *by_stage, int stage)
{
    return by_stage ? by_stage[stage] : 0;
}

static int check_rank(const struct ct_schedule *s, const struct ct_schedule_limits *limits, int r)
{
    size_t alive = 0;

    for (size_t i = 0; i < s->lists[r].count; i++) {
        struct ct_action part[2];
        int parts = ct_action_parts(&s->lists[r].item[i], part);

        for (int p = 0; p < parts; p++) {
            size_t until_i = bytes_of(limits->until_i, part[p].stage),
                   until_w = bytes_of(limits->until_w, part[p].stage);

            if (part[p].type == CT_ACTION_F)
                alive += until_i + until_w;
            if (alive > limits->room[r])
                return ct_fail(CT_EINVAL,
                               "rank %d: activations take %zu bytes in stage %d microbatch %d "
                               "(action %zu), and %zu are the limit",
                               r, alive, part[p].stage, part[p].microbatch, i + 1, limits->room[r]);
            if (part[p].type == CT_ACTION_I || part[p].type == CT_ACTION_B)
                alive -= until_i;
            if (part[p].type == CT_ACTION_W || part[p].type == CT_ACTION_B)
                alive -= until_w;
        }
    }
    return 0;
}

int ct_schedule_check_memory(const struct ct_schedule *s, const struct ct_schedule_limits *limits)
{
    int rc = 0;

    for (int r = 0; rc == 0 && r < s->ranks; r++)
        rc = check_rank(s, limits, r);
    return rc;
}
