/*
 * Receives posted ahead of their use. A receive that moves towards the front of its list waits for
 * less than before, and only its consumer waits for it. So a schedule that cannot deadlock with
 * separate streams for transfers still cannot.
 */
#include <ctitan/error.h>

#include "schedule_internal.h"

static enum ct_event consumer_event(const struct ct_action *receive)
{
    return receive->type == CT_ACTION_RECV_F ? EVENT_F : EVENT_I;
}

/* Position of the compute action before the one at `at`; 0 if there is none. */
static size_t compute_before(const struct ct_action_list *list, size_t at)
{
    while (at > 0 && !ct_action_computes(&list->item[--at]))
        ;
    return at;
}

/*
 * place[i]: the action that the receive at i is to precede. Receives keep their order, and none
 * moves back. A receive posted sooner waits for less, and only its consumer waits for it.
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
