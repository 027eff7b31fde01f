/*
 * A dry run of the programs of all ranks along an axis, to prove that they terminate.
 *
 * Schedules are proven before they are lowered; this checks the result. It covers every instruction
 * of every rank, streams, events (including waits for reused memory), and transfers that end only
 * when both sides are there. Ranks that differ along other axes run the same program, so
 * collectives without this axis cannot block; those along it wait for all.
 *
 * The host is assumed to wait as it does on a CPU: an instruction after a compute instruction in
 * the program is enqueued only when that is done. in_order: all streams act as one.
 *
 * Events that nothing signals are left to ct_program_verify.
 *
 * Each stream of a rank is a lane (lanes.h). The n-th send of a rank to another meets the n-th
 * receive there; the n-th collective along the axis on a stream meets those of all other ranks.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/pipeline.h>

#include "lanes.h"

/* Items of one rank that meet those of another, in order. */
struct queue {
    int32_t *item;
    size_t count, room;
};

struct dry {
    const struct ct_program *const *program; /* by rank */
    int32_t *first;                          /* by rank: item of its first instruction */
    struct queue *sent, *received;           /* by from * count + to */
    struct queue *called;                    /* by rank * CT_STREAMS + stream: along the axis */
    int count, axis;
    bool in_order;
    struct ct_lanes lanes;
    struct ct_arena scratch;
};

static bool is_transfer(const struct ct_instruction *i)
{
    return i->op->type->flags & CT_OP_RENDEZVOUS;
}

static bool is_along_axis(const struct dry *d, const struct ct_instruction *i)
{
    return i->op->type->flags & CT_OP_COLLECTIVE && !is_transfer(i) &&
           ct_op_axes(i->op, "axes") >> d->axis & 1;
}

static int rank_of(const struct dry *d, int32_t item)
{
    return d->lanes.item[item].lane / CT_STREAMS;
}

static const struct ct_instruction *instruction(const struct dry *d, int32_t item)
{
    int rank = rank_of(d, item);

    return &d->program[rank]->step[item - d->first[rank]];
}

static const char *value_of(const struct ct_instruction *i)
{
    return i->op->outs ? i->op->out[0]->name : i->op->in[0]->name;
}

/* ---- lanes ---- */

static void put(struct dry *d, struct queue *q, int32_t item)
{
    q->item = ct_arena_grow(&d->scratch, q->item, &q->room, q->count + 1, sizeof(*q->item));
    q->item[q->count++] = item;
}

static void note_partners(struct dry *d, int rank, const struct ct_instruction *i, int32_t item)
{
    if (is_transfer(i))
        put(d,
            &(i->op->type == &ct_op_send
                  ? d->sent
                  : d->received)[ct_op_int(i->op, "from") * d->count + ct_op_int(i->op, "to")],
            item);
    else if (is_along_axis(d, i))
        put(d, &d->called[rank * CT_STREAMS + i->stream], item);
}

static void add_rank(struct dry *d, int rank)
{
    const struct ct_program *p = d->program[rank];
    int32_t *signaller = ct_arena_array(&d->scratch, int32_t, p->events + 1), computes = -1;

    memset(signaller, -1, sizeof(*signaller) * ((size_t)p->events + 1));
    for (size_t n = 0; n < p->step_count; n++)
        if (p->step[n].signal >= 0)
            signaller[p->step[n].signal] = d->first[rank] + (int32_t)n;
    for (size_t n = 0; n < p->step_count; n++) {
        const struct ct_instruction *i = &p->step[n];
        int stream = d->in_order ? CT_STREAM_COMPUTE : i->stream;
        int32_t item = ct_lanes_add(&d->lanes, rank * CT_STREAMS + stream, 0);

        if (stream == CT_STREAM_COMPUTE)
            computes = item;
        else if (computes >= 0)
            ct_lanes_after(&d->lanes, computes, 0);
        for (const int32_t *w = i->waits; w && *w >= 0; w++)
            if (signaller[*w] >= 0)
                ct_lanes_after(&d->lanes, signaller[*w], 0);
        note_partners(d, rank, i, item);
    }
}

/* ---- who meets whom ---- */

static int meet_transfers(struct dry *d, int pair)
{
    const struct queue *sent = &d->sent[pair], *received = &d->received[pair];

    for (size_t n = 0; n < sent->count || n < received->count; n++) {
        if (n >= sent->count || n >= received->count) {
            d->lanes.item[(n < sent->count ? sent : received)->item[n]].never = true;
            continue;
        }
        if (ct_op_int(instruction(d, sent->item[n])->op, "tag") !=
            ct_op_int(instruction(d, received->item[n])->op, "tag"))
            return ct_fail(CT_EINVAL, "rank %d: send(%%%s) meets receive(%%%s) of rank %d",
                           rank_of(d, sent->item[n]), value_of(instruction(d, sent->item[n])),
                           value_of(instruction(d, received->item[n])),
                           rank_of(d, received->item[n]));
        ct_lanes_meet(&d->lanes, sent->item[n], received->item[n]);
    }
    return 0;
}

/* The n-th call of each rank on a stream, of one type; otherwise it never ends. */
static void meet_calls(struct dry *d, int rank, int stream)
{
    const struct queue *mine = &d->called[rank * CT_STREAMS + stream];

    for (size_t n = 0; n < mine->count; n++)
        for (int r = 0; r < d->count; r++) {
            const struct queue *q = &d->called[r * CT_STREAMS + stream];

            if (n >= q->count ||
                instruction(d, q->item[n])->op->type != instruction(d, mine->item[n])->op->type)
                d->lanes.item[mine->item[n]].never = true;
            else if (rank == 0 && r > 0)
                ct_lanes_meet(&d->lanes, mine->item[n], q->item[n]);
        }
}

static int meet(struct dry *d)
{
    int rc = 0;

    for (int pair = 0; rc == 0 && pair < d->count * d->count; pair++)
        rc = meet_transfers(d, pair);
    for (int n = 0; n < d->count * CT_STREAMS; n++)
        meet_calls(d, n / CT_STREAMS, n % CT_STREAMS);
    return rc;
}

static void name(const void *client, int32_t item, struct ct_lane_name *name)
{
    const struct dry *d = client;
    const struct ct_instruction *i = instruction(d, item);

    name->rank = rank_of(d, item);
    name->place = (size_t)(item - d->first[name->rank]);
    snprintf(name->text, sizeof(name->text), "%s(%%%s)", i->op->type->name, value_of(i));
}

int ct_programs_prove(const struct ct_program *const *programs, int count, int axis, bool in_order)
{
    struct dry d = {.program = programs, .count = count, .axis = axis, .in_order = in_order};
    int rc;

    d.first = ct_arena_array(&d.scratch, int32_t, count + 1);
    d.sent = ct_arena_array(&d.scratch, struct queue, count * count);
    d.received = ct_arena_array(&d.scratch, struct queue, count * count);
    d.called = ct_arena_array(&d.scratch, struct queue, count * CT_STREAMS);
    ct_lanes_init(&d.lanes, &d.scratch, count * CT_STREAMS);
    for (int n = 0; n < count; n++) {
        d.first[n + 1] = d.first[n] + (int32_t)programs[n]->step_count;
        add_rank(&d, n);
    }
    rc = meet(&d);
    if (rc == 0 && !ct_lanes_run(&d.lanes))
        rc = ct_lanes_stuck(&d.lanes,
                            &(struct ct_lane_words){
                                .title = "", .noun = "instruction", .name = name, .client = &d});
    ct_arena_finish(&d.scratch);
    return rc;
}
