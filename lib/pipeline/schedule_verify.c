/*
 * Proof that a schedule is correct. Rules are checked from simple to global, and each may rely on
 * those before it. The first broken rule gives the message.
 */
#include <string.h>

#include <ctitan/error.h>

#include "schedule_internal.h"

struct proof {
    const struct ct_schedule *schedule;
    struct ct_action_index index;
    struct ct_arena *scratch;
};

static int32_t place(const struct proof *x, enum ct_event event, int stage, int microbatch)
{
    return ct_action_place(&x->index, event, stage, microbatch);
}

/* ---- every microbatch passes through every stage ---- */

static int missing(const struct proof *x, const char *what, int stage, int microbatch)
{
    return ct_fail(CT_EINVAL, "stage %d microbatch %d: %s is missing on rank %d", stage, microbatch,
                   what, x->schedule->rank_of[stage]);
}

static int out_of_order(const struct proof *x, const char *first, int32_t first_place,
                        const char *second, int32_t second_place, int stage, int microbatch)
{
    return ct_fail(CT_EINVAL,
                   "stage %d microbatch %d: %s (action %d of rank %d) must come before %s (action "
                   "%d)",
                   stage, microbatch, first, first_place + 1, x->schedule->rank_of[stage], second,
                   second_place + 1);
}

static int check_microbatch(const struct proof *x, int stage, int m)
{
    int32_t f = place(x, EVENT_F, stage, m), i = place(x, EVENT_I, stage, m),
            w = place(x, EVENT_W, stage, m);
    bool whole = i == w;

    if (f < 0)
        return missing(x, "F", stage, m);
    if (x->schedule->forward_only)
        return i < 0 && w < 0
                   ? 0
                   : ct_fail(CT_EINVAL, "stage %d microbatch %d: a backward among forwards", stage,
                             m);
    if (i < 0 && w < 0)
        return missing(x, "B (or I and W)", stage, m);
    if (i < 0 || w < 0)
        return missing(x, i < 0 ? "I" : "W", stage, m);
    if (i <= f)
        return out_of_order(x, "F", f, whole ? "B" : "I", i, stage, m);
    if (!whole && w <= i)
        return out_of_order(x, "I", i, "W", w, stage, m);
    return 0;
}

static int check_complete(const struct proof *x)
{
    int rc = 0;

    for (int s = 0; rc == 0 && s < x->schedule->stages; s++)
        for (int m = 0; rc == 0 && m < x->schedule->microbatches; m++)
            rc = check_microbatch(x, s, m);
    return rc;
}

/* ---- every transfer has both ends, between producer and consumer ---- */

struct link {
    enum ct_event made, send, receive; /* the same event uses it, on the other stage */
    const char *made_name, *send_name, *receive_name;
    int step; /* from the producing stage to the consuming one */
};

static const struct link links[] = {
    {EVENT_F, EVENT_SEND_F, EVENT_RECV_F, "F", "SEND_F", "RECV_F", 1},
    {EVENT_I, EVENT_SEND_B, EVENT_RECV_B, "the backward", "SEND_B", "RECV_B", -1},
};

static int check_unneeded(const struct proof *x, int32_t at, const char *name, int stage, int m)
{
    if (at < 0)
        return 0;
    return ct_fail(CT_EINVAL,
                   "rank %d, action %d: %d%s%d: there is nothing to transfer: the neighbour of "
                   "stage %d is on the same rank, or there is none",
                   x->schedule->rank_of[stage], at + 1, stage, name, m, stage);
}

/* Check a stage's sends. */
static int check_sent(const struct proof *x, const struct link *k, int stage, int m)
{
    const int *rank_of = x->schedule->rank_of;
    int to = stage + k->step;
    int32_t send = place(x, k->send, stage, m), made = place(x, k->made, stage, m);

    if (to < 0 || to >= x->schedule->stages || rank_of[to] == rank_of[stage] ||
        (x->schedule->forward_only && k->step < 0))
        return check_unneeded(x, send, k->send_name, stage, m);
    if (send < 0)
        return missing(x, k->send_name, stage, m);
    if (send <= made)
        return out_of_order(x, k->made_name, made, k->send_name, send, stage, m);
    return 0;
}

static int check_received(const struct proof *x, const struct link *k, int stage, int m)
{
    const int *rank_of = x->schedule->rank_of;
    int from = stage - k->step;
    int32_t receive = place(x, k->receive, stage, m), used = place(x, k->made, stage, m);

    if (from < 0 || from >= x->schedule->stages || rank_of[from] == rank_of[stage] ||
        (x->schedule->forward_only && k->step < 0))
        return check_unneeded(x, receive, k->receive_name, stage, m);
    if (receive < 0)
        return missing(x, k->receive_name, stage, m);
    if (receive >= used)
        return out_of_order(x, k->receive_name, receive, k->made_name, used, stage, m);
    return 0;
}

static int check_transfers(const struct proof *x)
{
    int rc = 0;

    for (size_t k = 0; k < CT_COUNT(links); k++)
        for (int s = 0; s < x->schedule->stages; s++)
            for (int m = 0; rc == 0 && m < x->schedule->microbatches; m++) {
                rc = check_sent(x, &links[k], s, m);
                if (rc == 0)
                    rc = check_received(x, &links[k], s, m);
            }
    return rc;
}

static int check_no_transfers(const struct proof *x)
{
    for (int r = 0; r < x->schedule->ranks; r++)
        for (size_t i = 0; i < x->schedule->lists[r].count; i++) {
            const struct ct_action *action = &x->schedule->lists[r].item[i];
            char text[64];

            if (ct_action_computes(action))
                continue;
            ct_action_print(action, text, sizeof(text));
            return ct_fail(CT_EINVAL, "rank %d, action %zu: %s among compute actions", r, i + 1,
                           text);
        }
    return 0;
}

/* ---- messages between two ranks are sent and received in the same order ---- */

/* Numbers of transfers of one kind between the same two ranks, by stage and microbatch. */
struct numbers {
    int *sent, *received;
};

struct order {
    const struct proof *x;
    struct numbers forward, backward; /* by the sending stage */
    int *count[2];                    /* by the other rank: sent to it, received from it */
};

/* The transfer's number as counted by its sender or its receiver. */
static int *number_of(struct order *o, const struct ct_action *transfer)
{
    struct ct_action send = ct_action_sends(transfer) ? *transfer : ct_action_partner(transfer);
    struct numbers *n = send.type == CT_ACTION_SEND_F ? &o->forward : &o->backward;
    size_t at = (size_t)send.stage * (size_t)o->x->schedule->microbatches + (size_t)send.microbatch;

    return ct_action_sends(transfer) ? &n->sent[at] : &n->received[at];
}

static void count_messages(struct order *o, int rank)
{
    const struct ct_schedule *s = o->x->schedule;
    const struct ct_action_list *list = &s->lists[rank];

    for (int receiving = 0; receiving < 2; receiving++)
        memset(o->count[receiving], 0, sizeof(int) * (size_t)s->ranks);
    for (size_t i = 0; i < list->count; i++) {
        const struct ct_action *action = &list->item[i];
        int other;

        if (!ct_action_sends(action) && !ct_action_receives(action))
            continue;
        other = s->rank_of[ct_action_partner(action).stage];
        *number_of(o, action) = o->count[ct_action_receives(action)][other]++;
    }
}

static int check_number(struct order *o, const struct ct_action *send)
{
    const struct ct_schedule *s = o->x->schedule;
    struct ct_action receive = ct_action_partner(send);
    int sent = *number_of(o, send), received = *number_of(o, &receive);
    char send_text[64], receive_text[64];

    if (sent == received)
        return 0;
    ct_action_print(send, send_text, sizeof(send_text));
    ct_action_print(&receive, receive_text, sizeof(receive_text));
    return ct_fail(
        CT_EINVAL,
        "%s is message %d from rank %d to rank %d, but rank %d takes message %d there in "
        "%s",
        send_text, sent + 1, s->rank_of[send->stage], s->rank_of[receive.stage],
        s->rank_of[receive.stage], received + 1, receive_text);
}

static int check_message_order(struct proof *x)
{
    const struct ct_schedule *s = x->schedule;
    size_t each = (size_t)s->stages * (size_t)s->microbatches;
    struct order o = {.x = x};
    int rc = 0;

    o.forward.sent = ct_arena_array(x->scratch, int, each);
    o.forward.received = ct_arena_array(x->scratch, int, each);
    o.backward.sent = ct_arena_array(x->scratch, int, each);
    o.backward.received = ct_arena_array(x->scratch, int, each);
    for (int receiving = 0; receiving < 2; receiving++)
        o.count[receiving] = ct_arena_array(x->scratch, int, s->ranks);
    for (int r = 0; r < s->ranks; r++)
        count_messages(&o, r);
    for (int r = 0; rc == 0 && r < s->ranks; r++)
        for (size_t i = 0; rc == 0 && i < s->lists[r].count; i++)
            if (ct_action_sends(&s->lists[r].item[i]))
                rc = check_number(&o, &s->lists[r].item[i]);
    return rc;
}

/* ---- runs ---- */

static int check_run(const struct proof *x, enum ct_run_mode mode)
{
    struct ct_dry_run run = {.schedule = x->schedule, .index = &x->index, .mode = mode};

    return ct_dry_run(&run, x->scratch) ? 0 : ct_dry_run_stuck(&run);
}

/* ---- all ---- */

int ct_schedule_check_actions(const struct ct_schedule *schedule, struct ct_arena *arena,
                              struct ct_action_index *index)
{
    int rc = ct_action_index_make(schedule, arena, index);
    struct proof x = {schedule, *index, arena};

    if (rc == 0)
        rc = check_complete(&x);
    if (rc == 0)
        rc = schedule->communicates ? check_transfers(&x) : check_no_transfers(&x);
    return rc;
}

static int prove(struct proof *x, const struct ct_schedule_limits *limits)
{
    const struct ct_schedule *s = x->schedule;
    int rc = ct_schedule_check_actions(s, x->scratch, &x->index);

    if (rc == 0)
        rc = check_message_order(x);
    if (rc == 0)
        rc = ct_schedule_check_sharding(s, x->scratch);
    if (rc == 0)
        rc = check_run(x, RUN_RECEIVES_ASIDE);
    if (rc == 0 && s->communicates && !s->own_streams)
        rc = check_run(x, RUN_ONE_STREAM);
    if (rc == 0 && limits)
        rc = ct_schedule_check_memory(s, limits);
    return rc;
}

static void print_proof(const struct ct_schedule *s, bool memory, FILE *out)
{
    size_t compute = 0, transfers = 0, others = 0;

    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < s->lists[r].count; i++) {
            const struct ct_action *action = &s->lists[r].item[i];

            compute += ct_action_computes(action);
            transfers += ct_action_sends(action);
            others += !ct_action_computes(action) && !ct_action_sends(action) &&
                      !ct_action_receives(action);
        }
    fprintf(out, "%zu compute actions, each on its rank and after the actions that it needs\n",
            compute);
    if (s->communicates)
        fprintf(out,
                "%zu transfers, each with both ends; messages between two ranks in one order\n",
                transfers);
    if (others)
        fprintf(out, "%zu times UNSHARD, RESHARD or REDUCE_GRAD, as the stages require\n", others);
    fprintf(out, "no deadlock%s%s\n",
            s->communicates ? " with streams of their own for transfers" : "",
            s->communicates && !s->own_streams ? ", nor with one stream" : "");
    if (memory)
        fprintf(out, "activations within their limits on every rank\n");
}

int ct_schedule_verify(const struct ct_schedule *schedule, const struct ct_schedule_limits *limits,
                       FILE *report)
{
    struct ct_arena scratch = {0};
    struct proof x = {.schedule = schedule, .scratch = &scratch};
    int rc = prove(&x, limits);

    ct_arena_finish(&scratch);
    if (rc < 0)
        return ct_context(rc, "%s", schedule->name);
    if (report)
        print_proof(schedule, limits, report);
    return 0;
}
