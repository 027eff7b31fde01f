/*
 * All layers of a rank: choose what to keep within a number of bytes, with the least recomputation
 * time.
 *
 * Each layer has a front (pareto.c), shared by identical layers. Choosing one point of each front
 * is a multiple-choice knapsack. It is solved for every size at once, over STEPS steps of bytes.
 * Each step holds the fastest choice that ends in it, with its exact bytes. The result is within a
 * step of the best, and never exceeds its bytes.
 */
#include <string.h>

#include <ctitan/device/device.h>

#include "sac.h"

#define STEPS 4096

/* ---- layers as problems ---- */

/* Bytes of the needed results, times the number of microbatches that hold them at a time. */
static size_t held_bytes(const struct sac *s, const struct ct_op *op, const struct sac_flight *f)
{
    size_t bytes = 0;

    for (int i = 0; i < op->outs; i++) {
        const struct ct_value *v = op->out[i];
        int in_flight = s->use[v->id] == SAC_USED_BY_I ? f->until_i : f->until_w;

        if (s->use[v->id])
            bytes += ct_value_bytes(s->forward, v, s->rank) * (size_t)in_flight;
    }
    return bytes;
}

/* Record a use of v, directly or through a view. */
static void note_use(struct sac *s, const struct ct_value *v, enum sac_use use)
{
    enum sac_use *of = &s->use[s->root[v->id]->id];

    if (use > *of)
        *of = use;
}

static void find_uses(struct sac *s)
{
    s->use = ct_arena_array(&s->scratch, enum sac_use, s->forward->value_count + 1);
    ct_for_each_op (op, s->forward)
        for (int i = 0; i < op->ins; i++) {
            if (!op->in[i] || op->type->flags & CT_OP_VIEW)
                continue;
            if (op->section->part == CT_PART_I)
                note_use(s, op->in[i], SAC_USED_BY_I);
            else if (op->section->part == CT_PART_W)
                note_use(s, op->in[i], SAC_USED_BY_W);
            else if (op->section->part == CT_PART_F)
                note_use(s, op->in[i], SAC_USED_BY_F);
        }
}

static bool used_by_backward(const struct sac *s, const struct ct_op *op)
{
    for (int i = 0; i < op->outs; i++)
        if (s->use[op->out[i]->id] >= SAC_USED_BY_I)
            return true;
    return false;
}

/* Values that leave their layer, directly or as a view, are always kept. */
static bool *find_boundary(struct sac *s)
{
    bool *leaves = ct_arena_array(&s->scratch, bool, s->forward->value_count + 1);

    for (size_t i = 0; i < s->forward->value_count; i++)
        if (s->layer_of[i] >= 0 && sac_leaves(s, s->forward->values[i]))
            leaves[s->root[i]->id] = true;
    return leaves;
}

enum choices { ONE, KEEP_OR_OFFLOAD, ALL };

static enum choices choices_of(const struct sac *s, const struct ct_op *op, const bool *leaves)
{
    enum choices most = ALL;

    for (int i = 0; i < op->outs; i++) {
        const struct ct_value *v = op->out[i];

        if (!s->may[v->id] || (leaves[v->id] && !s->may_leave[v->id]))
            return ONE;
        if (leaves[v->id])
            most = KEEP_OR_OFFLOAD;
    }
    return most == ALL || used_by_backward(s, op) ? most : ONE;
}

/* Bytes of one microbatch that go to host memory if op's results do; 0: they may not. */
static double copied(const struct sac *s, const struct ct_op *op)
{
    double bytes = 0;

    for (int i = 0; i < op->outs; i++) {
        const struct ct_value *v = op->out[i];

        if (!s->may_leave[v->id])
            return 0;
        if (s->use[v->id] >= SAC_USED_BY_I)
            bytes += (double)ct_value_bytes(s->forward, v, s->rank);
    }
    return bytes;
}

static void add_inputs(struct sac *s, const struct ct_op *op, struct sac_decided *d)
{
    d->in = ct_arena_array(&s->scratch, int, op->ins);
    for (int i = 0; i < op->ins; i++) {
        const struct ct_value *root = op->in[i] ? s->root[op->in[i]->id] : NULL;

        if (root && s->place[root->id] >= 0 && s->layer_of[root->id] == s->layer_of[op->out[0]->id])
            d->in[d->ins++] = s->place[root->id];
    }
}

static void add_op(struct sac *s, struct sac_problem *p, const struct ct_op *op,
                   const struct sac_flight *f, enum choices choices)
{
    double bytes = copied(s, op);
    struct sac_decided *d;

    p->op = ct_arena_grow(&s->scratch, p->op, &p->room, (size_t)p->count + 1, sizeof(*p->op));
    d = &p->op[p->count];
    *d = (struct sac_decided){.of = op,
                              .bytes = held_bytes(s, op, f),
                              .seconds = sac_seconds(s, op),
                              .flops = sac_flops(s, op),
                              .copy = bytes / s->rates.host,
                              .may_leave = bytes > 0,
                              .must_not = choices == KEEP_OR_OFFLOAD,
                              .needed = used_by_backward(s, op),
                              .must = op->out[0]->id < s->count && s->must[op->out[0]->id]};
    add_inputs(s, op, d);
    for (int i = 0; i < op->outs; i++)
        s->place[op->out[i]->id] = p->count;
    p->count++;
}

/* The time that copies overlap with. */
static void count_seconds(struct sac *s)
{
    int n = 0;

    ct_for_each_op (op, s->forward) {
        enum ct_part part = op->section->part;

        if (!ct_part_is_microbatch(part) || op->stream != CT_STREAM_COMPUTE)
            continue;
        for (int i = 0; i < s->layers; i++, n = (n + 1) % s->layers)
            if (s->layer[n].name == op->region && s->layer[n].group == op->section->group) {
                *(part == CT_PART_F ? &s->problem[n].forward : &s->problem[n].backward) +=
                    sac_seconds(s, op);
                break;
            }
    }
}

static void describe_layers(struct sac *s)
{
    const bool *leaves = find_boundary(s);

    s->problem = ct_arena_array(&s->scratch, struct sac_problem, s->layers + 1);
    s->place = ct_arena_array(&s->scratch, int, s->forward->value_count + 1);
    memset(s->place, -1, sizeof(*s->place) * (s->forward->value_count + 1));
    ct_for_each_op (op, s->forward) {
        int layer = op->outs ? s->layer_of[op->out[0]->id] : -1;
        const struct sac_flight *flight;
        enum choices choices;

        if (layer < 0 || op->type->flags & CT_OP_VIEW)
            continue;
        flight = sac_flight_of(s, s->layer[layer].group);
        choices = choices_of(s, op, leaves);
        if (choices != ONE)
            add_op(s, &s->problem[layer], op, flight, choices);
        else if (s->may[op->out[0]->id] && used_by_backward(s, op))
            s->problem[layer].fixed += held_bytes(s, op, flight);
    }
    count_seconds(s);
}

/* ---- identical layers ---- */

static bool same_op(const struct sac_decided *a, const struct sac_decided *b)
{
    return a->of->type == b->of->type && a->bytes == b->bytes && a->seconds == b->seconds &&
           a->copy == b->copy && a->needed == b->needed && a->must == b->must &&
           a->must_not == b->must_not && a->ins == b->ins &&
           !memcmp(a->in, b->in, sizeof(*a->in) * (size_t)a->ins);
}

static bool same_problem(const struct sac_problem *a, const struct sac_problem *b)
{
    if (a->count != b->count || a->forward != b->forward || a->backward != b->backward)
        return false;
    for (int i = 0; i < a->count; i++)
        if (!same_op(&a->op[i], &b->op[i]))
            return false;
    return true;
}

static void solve_layers(struct sac *s)
{
    s->front = ct_arena_array(&s->scratch, struct sac_front, s->layers + 1);
    for (int n = 0; n < s->layers; n++) {
        int same = 0;

        while (same < n && !same_problem(&s->problem[same], &s->problem[n]))
            same++;
        if (same < n)
            s->front[n] = s->front[same];
        else
            sac_front(s, &s->problem[n], &s->front[n]);
    }
}

/* ---- the knapsack ---- */

static size_t saved_without(struct sac *s)
{
    size_t sum = 0;

    for (int n = 0; n < s->layers; n++) {
        const struct sac_problem *p = &s->problem[n];
        bool *needed = ct_arena_array(&s->scratch, bool, p->count + 1);

        sum += p->fixed;
        for (int i = p->count - 1; i >= 0; i--) {
            if (!p->op[i].needed && !needed[i])
                continue;
            sum += p->op[i].must ? 0 : p->op[i].bytes;
            for (int k = 0; p->op[i].must && k < p->op[i].ins; k++)
                needed[p->op[i].in[k]] = true;
        }
    }
    return sum;
}

struct cell {
    size_t bytes;
    double seconds, flops, copied;
    int from, choice; /* cell of the previous layers; -1: none */
};

/* cells[STEPS + 1]: the best choices for all layers up to one. */
static void add_layer(const struct sac_front *front, const struct cell *before, struct cell *cells,
                      size_t step)
{
    for (int i = 0; i <= STEPS; i++)
        cells[i].choice = -1;
    for (int i = 0; i <= STEPS; i++)
        for (int c = 0; before[i].choice >= 0 && c < front->count; c++) {
            const struct sac_choice *choice = &front->choice[c];
            struct cell cell = {before[i].bytes + choice->bytes,
                                before[i].seconds + choice->seconds,
                                before[i].flops + choice->flops,
                                before[i].copied + choice->copied,
                                i,
                                c};
            struct cell *at = &cells[cell.bytes / step];

            if (at->choice < 0 || cell.seconds < at->seconds ||
                (cell.seconds <= at->seconds && cell.bytes < at->bytes))
                *at = cell;
        }
}

static void read_back(struct sac *s, struct cell *const *cells, int at, struct sac_plan *plan)
{
    const struct cell *last = &cells[s->layers][at];

    *plan = (struct sac_plan){s->fixed + last->bytes, last->seconds, last->flops, last->copied,
                              ct_arena_array(&s->scratch, int, s->layers + 1)};
    for (int n = s->layers; n > 0; n--) {
        plan->choice[n - 1] = cells[n][at].choice;
        at = cells[n][at].from;
    }
}

static void solve(struct sac *s)
{
    struct cell **cells = ct_arena_array(&s->scratch, struct cell *, s->layers + 1);
    double fastest = -1;
    size_t most = 0;

    for (int n = 0; n < s->layers; n++)
        most += s->front[n].choice[s->front[n].count - 1].bytes;
    for (int n = 0; n <= s->layers; n++)
        cells[n] = ct_arena_array(&s->scratch, struct cell, STEPS + 1);
    for (int i = 1; i <= STEPS; i++)
        cells[0][i].choice = -1;
    for (int n = 0; n < s->layers; n++)
        add_layer(&s->front[n], cells[n], cells[n + 1], most / STEPS + 1);
    s->plan = ct_arena_array(&s->scratch, struct sac_plan, STEPS + 2);
    for (int i = 0; i <= STEPS; i++) {
        const struct cell *c = &cells[s->layers][i];

        if (c->choice < 0 && s->layers)
            continue;
        if (fastest >= 0 && c->seconds >= fastest)
            continue;
        fastest = c->seconds;
        read_back(s, cells, i, &s->plan[s->plans++]);
    }
}

void sac_plan_of_kept(struct sac *s, struct sac_plan *plan)
{
    size_t count = s->forward->value_count;

    *plan = (struct sac_plan){.bytes = s->fixed, .kept = ct_arena_array(&s->scratch, bool, count)};
    memcpy(plan->kept, s->kept, count);
    for (int n = 0; n < s->layers; n++) {
        const struct sac_problem *p = &s->problem[n];
        bool *needed = ct_arena_array(&s->scratch, bool, p->count + 1);

        for (int i = p->count - 1; i >= 0; i--) {
            const struct sac_decided *d = &p->op[i];

            if (!d->needed && !needed[i])
                continue;
            if (d->must_not || s->kept[d->of->out[0]->id]) {
                plan->bytes += d->bytes;
                continue;
            }
            plan->seconds += d->seconds;
            plan->flops += d->flops;
            for (int k = 0; k < d->ins; k++)
                needed[d->in[k]] = true;
        }
    }
}

/* ---- the whole ---- */

void sac_solve(struct sac *s)
{
    find_uses(s);
    describe_layers(s);
    for (int n = 0; n < s->layers; n++) {
        s->fixed += s->problem[n].fixed;
        for (int i = 0; i < s->problem[n].count; i++)
            s->forward_flops += s->problem[n].op[i].flops;
    }
    solve_layers(s);
    s->saved = saved_without(s);
    solve(s);
}

void sac_keep_plan(struct sac *s, const struct sac_plan *plan)
{
    memset(s->kept, true, s->forward->value_count);
    memset(s->away, false, s->forward->value_count);
    if (plan->kept)
        memcpy(s->kept, plan->kept, s->forward->value_count);
    for (int n = 0; n < s->layers && !plan->kept; n++) {
        const struct sac_choice *choice = &s->front[n].choice[plan->choice[n]];

        for (int i = 0; i < s->problem[n].count; i++) {
            const struct sac_decided *d = &s->problem[n].op[i];

            for (int k = 0; k < d->of->outs; k++) {
                uint32_t id = d->of->out[k]->id;

                s->kept[id] = d->must_not || choice->saved[i / 64] >> (i % 64) & 1;
                s->away[id] = choice->away[i / 64] >> (i % 64) & 1;
            }
        }
    }
    sac_settle(s);
}
