/*
 * Values that cross the boundaries between pipeline stages: sends and receives.
 *
 * In the microbatches a value is passed on from stage to stage, so that ranks communicate only with
 * their neighbours, as schedules expect. After them it goes directly to the rank that needs it.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "pp.h"

/* ---- from stage to stage ---- */

/* The ops of one direction: forward values go up, gradients down. */
struct direction {
    enum ct_part part;
    int step; /* +1: to later stages */
    /* By stage: of the pass, or where there are none (a head whose gradient computes the loss, too)
       the op of another pass beside which they would be; NULL: the stage is not on this rank. */
    struct ct_op **first, **last;
};

static bool of_pass(const struct direction *d, const struct ct_op *op)
{
    return d->part == CT_PART_F ? op->section->part == CT_PART_F
                                : op->section->part == CT_PART_I || op->section->part == CT_PART_W;
}

static void find_pass(struct pp_local *c, struct direction *d)
{
    struct ct_op **beside = ct_arena_array(&c->scratch, struct ct_op *, c->stages.count);

    d->first = ct_arena_array(&c->scratch, struct ct_op *, c->stages.count);
    d->last = ct_arena_array(&c->scratch, struct ct_op *, c->stages.count);
    ct_for_each_op (op, c->graph) {
        int stage = op->section->group;

        if (!ct_part_is_microbatch(op->section->part))
            continue;
        if (!beside[stage] || d->step < 0)
            beside[stage] = op;
        if (!of_pass(d, op))
            continue;
        if (!d->first[stage])
            d->first[stage] = op;
        d->last[stage] = op;
    }
    for (int s = 0; s < c->stages.count; s++)
        if (!d->first[s])
            d->first[s] = d->last[s] = beside[s];
}

/* The section of a stage's transfers in one direction: "1SEND_F", "0RECV_B". */
static const struct ct_section *transfers(struct pp_local *c, const struct direction *d, int stage,
                                          const char *what)
{
    char name[32];

    snprintf(name, sizeof(name), "%d%s_%s", stage, what, d->step > 0 ? "F" : "B");
    return ct_graph_section_named(c->graph, name, d->part, stage);
}

static struct ct_builder in_stage(struct pp_local *c, const struct direction *d, int stage,
                                  bool front)
{
    struct ct_op *at = front ? d->first[stage] : d->last[stage];
    struct ct_builder b = front ? ct_builder_before(c->graph, at) : ct_builder_after(c->graph, at);

    b.section = transfers(c, d, stage, front ? "RECV" : "SEND");
    b.why = d->step > 0 ? "an earlier stage makes it, a later one uses it"
                        : "the gradient of what an earlier stage made";
    return b;
}

static void replace_in_stage(const struct ct_value *v, int stage, struct ct_value *here)
{
    ct_for_each_use_safe (use, v)
        if (ct_part_is_microbatch(use->op->section->part) && use->op->section->group == stage)
            ct_op_set_input(use->op, use->index, here);
}

/* Pass v on to stage `last`, from neighbour to neighbour. */
static int send_on(struct pp_local *c, const struct direction *d, struct ct_value *v, int last)
{
    const int *rank = c->stages.rank_of;
    struct ct_value *here = v;
    int rc = 0;

    for (int s = v->producer->section->group; rc == 0 && s != last; s += d->step) {
        int from = rank[s], to = rank[s + d->step];
        struct ct_builder b;

        if (from == c->me && to != c->me) {
            b = in_stage(c, d, s, false);
            rc = ct_send(&b, v, here, from, to);
            d->last[s] = d->last[s]->next;
        }
        if (to != c->me)
            continue;
        if (from != c->me) {
            b = in_stage(c, d, s + d->step, true);
            here =
                ct_receive(&b, ct_arena_printf(c->graph->arena, "%s.stage%d", v->name, s + d->step),
                           v, from, to);
            if (!here)
                return b.status;
        }
        if (here != v)
            replace_in_stage(v, s + d->step, here);
    }
    return rc;
}

/* By value: the stage farthest from its producer that needs it; -1: it is not sent. */
static int find_sent_on(struct pp_local *c, const struct direction *d, int *farthest)
{
    ct_for_each_op (op, c->graph)
        for (int i = 0; ct_part_is_microbatch(op->section->part) && i < op->ins; i++) {
            const struct ct_value *v = op->in[i];
            const struct ct_op *maker = v ? v->producer : NULL;
            int way = maker ? (op->section->group - maker->section->group) * d->step : 0;

            if (!maker || op->section->group == maker->section->group || !of_pass(d, maker))
                continue;
            if (way < 0 || maker->section->part != d->part)
                return ct_fail(
                    CT_EINVAL,
                    "%%%s is made in stage %d, part %s, and used by %s in stage %d: values "
                    "of part F go to later stages, those of part I to earlier ones",
                    v->name, maker->section->group, ct_part_name(maker->section->part),
                    op->type->name, op->section->group);
            if (farthest[v->id] < 0 || (op->section->group - farthest[v->id]) * d->step > 0)
                farthest[v->id] = op->section->group;
        }
    return 0;
}

static int send_on_all(struct pp_local *c, enum ct_part part, int step)
{
    struct direction d = {.part = part, .step = step};
    size_t count = c->graph->value_count;
    int *farthest = ct_arena_array(&c->scratch, int, count + 1), rc;

    memset(farthest, -1, sizeof(*farthest) * count);
    find_pass(c, &d);
    rc = find_sent_on(c, &d, farthest);
    for (size_t i = 0; rc == 0 && i < count; i++)
        if (farthest[i] >= 0)
            rc = send_on(c, &d, c->graph->values[i], farthest[i]);
    return rc;
}

int pp_forward_values(struct pp_local *c)
{
    int rc = send_on_all(c, CT_PART_F, 1);

    return rc == 0 ? send_on_all(c, CT_PART_I, -1) : rc;
}

/* ---- after the microbatches ---- */

static bool add_message(struct pp_local *c, struct ct_value *v, int to, struct ct_op *user)
{
    for (size_t i = 0; i < c->messages; i++)
        if (c->message[i].value == v && c->message[i].to == to)
            return false;
    c->message = ct_arena_grow(&c->scratch, c->message, &c->message_room, c->messages + 1,
                               sizeof(*c->message));
    c->message[c->messages++] =
        (struct pp_message){v, user, pp_ranks_next(c, pp_where(c, v), 0), to};
    return true;
}

/* A value that a rank needs and lacks comes from a rank that has it, which then needs it too. */
static bool find_messages_of(struct pp_local *c, struct ct_op *op)
{
    uint64_t *keepers = c->set[0], *wanters = c->set[1];
    bool found = false;

    pp_keepers(c, op, keepers);
    for (int i = 0; i < op->ins; i++) {
        struct ct_value *v = op->in[i];

        if (!v)
            continue;
        pp_ranks_copy(c, wanters, keepers);
        pp_limit_to_wanters(c, op, v, wanters);
        for (int to = -1; (to = pp_ranks_next(c, wanters, to + 1)) >= 0 && to < c->stages.ranks;)
            if (!pp_ranks_have(pp_where(c, v), to))
                found |= add_message(c, v, to, op);
    }
    return found;
}

static bool find_more_messages(struct pp_local *c)
{
    bool found = false;

    pp_find_needed(c);
    ct_for_each_op (op, c->graph)
        if (op->section->part == CT_PART_POST)
            found |= find_messages_of(c, op);
    return found;
}

/* The list is the same on all ranks. */
void pp_find_messages(struct pp_local *c)
{
    while (find_more_messages(c))
        ;
}

static void replace_after(const struct ct_value *v, struct ct_value *here)
{
    ct_for_each_use_safe (use, v)
        if (use->op->section->part == CT_PART_POST)
            ct_op_set_input(use->op, use->index, here);
}

static struct ct_builder in_front_of_user(struct pp_local *c, const struct pp_message *m)
{
    struct ct_builder b = ct_builder_before(c->graph, m->user);

    ct_builder_set_part(&b, CT_PART_POST);
    b.why = "several stages have a part of it";
    return b;
}

/* Each message is placed in front of its first user, on both ranks, so both have the same order. */
int pp_exchange(struct pp_local *c)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < c->messages; i++) {
        struct pp_message *m = &c->message[i];
        struct ct_builder b = in_front_of_user(c, m);
        struct ct_value *here;

        if (m->from == c->me)
            rc = ct_send(&b, m->value, m->value, m->from, m->to);
        if (m->to != c->me)
            continue;
        here =
            ct_receive(&b, ct_arena_printf(c->graph->arena, "%s.from%d", m->value->name, m->from),
                       m->value, m->from, m->to);
        if (!here)
            return b.status;
        replace_after(m->value, here);
    }
    return rc;
}
