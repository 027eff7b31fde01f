/*
 * Actions and schedules: their text, like "2B3", their lists, and the checks of what is asked for.
 */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugin.h>

#include "schedule_internal.h"

_Thread_local struct ct_generation *ct_generation;

static const char *const type_names[] = {
#define X(id, text) text,
    CT_ACTIONS(X)
#undef X
};

int ct_schedule_offered(const struct ct_offer *offer, const struct ct_schedule_ops **ops)
{
    size_t least = offsetof(struct ct_schedule_ops, generate) + sizeof((*ops)->generate);
    const void *widened;
    int rc = ct_struct_widen(offer->ops, least, sizeof(**ops), &widened);

    *ops = rc < 0 ? NULL : widened;
    if (rc < 0)
        return ct_context(rc, "the schedule %s: struct ct_schedule_ops", offer->name);
    return (*ops)->generate
               ? 0
               : ct_fail(CT_EINVAL, "the schedule %s: its `generate` is not set", offer->name);
}

static bool takes_microbatch(enum ct_action_type type)
{
    return type != CT_ACTION_UNSHARD && type != CT_ACTION_RESHARD && type != CT_ACTION_REDUCE_GRAD;
}

void ct_action_append(struct ct_arena *arena, struct ct_action_list *list, struct ct_action action)
{
    if (ct_generation && list->count == ct_generation->most)
        longjmp(ct_generation->stop, 1);
    list->item =
        ct_arena_grow(arena, list->item, &list->room, list->count + 1, sizeof(*list->item));
    list->item[list->count++] = action;
}

int ct_action_print(const struct ct_action *action, char *text, size_t room)
{
    const char *type = type_names[action->type];

    if (action->type == CT_ACTION_OVERLAP_F_B)
        return snprintf(text, room, "(%dF%d;%dB%d)%s", action->stage, action->microbatch,
                        action->stage_b, action->microbatch_b, type);
    if (takes_microbatch(action->type))
        return snprintf(text, room, "%d%s%d", action->stage, type, action->microbatch);
    return snprintf(text, room, "%d%s", action->stage, type);
}

static int number(const char **at, const char *what, const char *text, int *value)
{
    int64_t v = 0;

    if (!isdigit((unsigned char)**at))
        return ct_fail(CT_EINVAL, "action '%.40s': expected the number of a %s at '%.20s'", text,
                       what, *at);
    for (; isdigit((unsigned char)**at); ++*at) {
        v = v * 10 + (**at - '0');
        if (v > INT_MAX)
            return ct_fail(CT_EINVAL, "action '%.40s': the number of the %s is too large", text,
                           what);
    }
    *value = (int)v;
    return 0;
}

/* Parse the longest type name at *at. */
static int type_at(const char **at, const char *text, enum ct_action_type *type)
{
    size_t longest = 0;

    for (int i = 0; i < CT_ACTION_TYPES; i++) {
        size_t length = strlen(type_names[i]);

        if (length <= longest || strncmp(*at, type_names[i], length))
            continue;
        longest = length;
        *type = (enum ct_action_type)i;
    }
    if (!longest)
        return ct_fail(CT_EINVAL, "action '%.40s': no type of action at '%.20s'", text, *at);
    *at += longest;
    return 0;
}

/* A single action: "2F0", "1UNSHARD". */
static int parse_single(const char **at, const char *text, struct ct_action *action)
{
    int rc = number(at, "stage", text, &action->stage);

    action->microbatch = -1;
    action->microbatch_b = -1;
    if (rc == 0)
        rc = type_at(at, text, &action->type);
    if (rc == 0 && action->type == CT_ACTION_OVERLAP_F_B)
        return ct_fail(CT_EINVAL, "action '%.40s': %s is written (1F0;0B0)%s", text,
                       type_names[action->type], type_names[action->type]);
    if (rc == 0 && takes_microbatch(action->type))
        rc = number(at, "microbatch", text, &action->microbatch);
    return rc;
}

/* "(1F0;0B0)OVERLAP_F_B", as torch writes it. */
static int parse_pair(const char **at, const char *text, struct ct_action *action)
{
    struct ct_action backward = {0};
    enum ct_action_type type = CT_ACTION_F;
    int rc;

    ++*at;
    rc = parse_single(at, text, action);
    if (rc == 0 && *(*at)++ != ';')
        return ct_fail(CT_EINVAL, "action '%.40s': expected ';' after the forward", text);
    if (rc == 0)
        rc = parse_single(at, text, &backward);
    if (rc == 0 && *(*at)++ != ')')
        return ct_fail(CT_EINVAL, "action '%.40s': expected ')' after the backward", text);
    if (rc == 0)
        rc = type_at(at, text, &type);
    if (rc < 0)
        return rc;
    if (type != CT_ACTION_OVERLAP_F_B || action->type != CT_ACTION_F ||
        backward.type != CT_ACTION_B)
        return ct_fail(CT_EINVAL, "action '%.40s': a pair is an F and a B, in %s", text,
                       type_names[CT_ACTION_OVERLAP_F_B]);
    action->type = type;
    action->stage_b = backward.stage;
    action->microbatch_b = backward.microbatch;
    return 0;
}

int ct_action_parse(const char *text, struct ct_action *action)
{
    const char *at = text;
    int rc;

    *action = (struct ct_action){0};
    rc = *at == '(' ? parse_pair(&at, text, action) : parse_single(&at, text, action);
    if (rc == 0 && *at)
        return ct_fail(CT_EINVAL, "action '%.40s': '%.20s' after its end", text, at);
    return rc;
}

void ct_schedule_add(const struct ct_schedule_request *request, struct ct_action_list *list,
                     enum ct_action_type type, int stage, int microbatch)
{
    ct_action_append(request->arena, list,
                     (struct ct_action){type, stage, microbatch, .microbatch_b = -1});
}

void ct_schedule_trivial(const struct ct_schedule_request *request, struct ct_action_list *list)
{
    for (int m = 0; m < request->microbatches; m++) {
        for (int s = 0; s < request->stages; s++)
            ct_schedule_add(request, list, CT_ACTION_F, s, m);
        for (int s = request->stages - 1; s >= 0; s--)
            ct_schedule_add(request, list, CT_ACTION_B, s, m);
    }
}

void ct_schedule_forward(const struct ct_schedule_request *request, struct ct_action_list *list)
{
    for (int m = 0; m < request->microbatches; m++)
        for (int s = 0; s < request->stages; s++)
            ct_schedule_add(request, list, CT_ACTION_F, s, m);
}
