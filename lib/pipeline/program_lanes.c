#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "program_lanes.h"

/* The transfers of one rank on one side of a line, in order. A line is a stream of a group of
   ranks, or the transfers from one rank of a pipeline to another. */
struct side {
    int64_t leader; /* first rank of the group */
    ct_axes axes;
    int line, index;
    bool receives;
    int32_t *item;
    size_t count, room;
};

struct sides {
    struct side *at;
    size_t count, room;
};

static int index_of(const struct ct_program_lanes *p, int32_t item)
{
    return p->lanes.item[item].lane / CT_STREAMS;
}

static const struct ct_instruction *instruction_at(const struct ct_program_lanes *p, int32_t item)
{
    int index = index_of(p, item);

    return &p->program[index]->step[item - p->first[index]];
}

static const char *value_of(const struct ct_instruction *i)
{
    return i->op->outs ? i->op->out[0]->name : i->op->in[0]->name;
}

/* ---- sides ---- */

static int64_t leader_of(const struct ct_program_lanes *p, int index, ct_axes axes)
{
    const struct ct_mesh *mesh = &p->program[index]->graph->mesh;
    int64_t leader = 0, stride = 1;

    for (int a = mesh->count; a-- > 0; stride *= mesh->axis[a].size)
        if (!(axes >> a & 1))
            leader += stride * ct_mesh_coordinate(mesh, p->rank[index], a);
    return leader;
}

/* The side of the rank at `index` to which an instruction belongs; `from` is the first of the
   rank's sides. */
static struct side *side_of(struct ct_program_lanes *p, struct sides *sides, size_t from, int index,
                            ct_axes axes, int line, bool receives)
{
    struct side *s;

    for (size_t n = from; n < sides->count; n++) {
        s = &sides->at[n];
        if (s->axes == axes && s->line == line && s->receives == receives)
            return s;
    }
    sides->at =
        ct_arena_grow(p->arena, sides->at, &sides->room, sides->count + 1, sizeof(*sides->at));
    s = &sides->at[sides->count++];
    *s = (struct side){.leader = leader_of(p, index, axes),
                       .axes = axes,
                       .line = line,
                       .index = index,
                       .receives = receives};
    return s;
}

static void note_partners(struct ct_program_lanes *p, struct sides *sides, size_t from, int index,
                          const struct ct_instruction *i, int32_t item)
{
    const struct ct_graph *graph = p->program[index]->graph;
    struct side *s;

    if (i->op->type->flags & CT_OP_RENDEZVOUS) {
        int axis = graph->partition_axis, size = (int)graph->mesh.axis[axis].size;
        int line = CT_STREAMS + (int)ct_op_int(i->op, "from") * size + (int)ct_op_int(i->op, "to");

        s = side_of(p, sides, from, index, (ct_axes)1 << axis, line, i->op->type != &ct_op_send);
    } else if (i->op->type->flags & CT_OP_COLLECTIVE && ct_op_axes(i->op, "axes")) {
        s = side_of(p, sides, from, index, ct_op_axes(i->op, "axes"), i->stream, false);
    } else {
        return;
    }
    s->item = ct_arena_grow(p->arena, s->item, &s->room, s->count + 1, sizeof(*s->item));
    s->item[s->count++] = item;
}

static int compare_sides(const void *a, const void *b)
{
    const struct side *x = a, *y = b;

    if (x->leader != y->leader)
        return x->leader < y->leader ? -1 : 1;
    if (x->axes != y->axes)
        return x->axes < y->axes ? -1 : 1;
    if (x->line != y->line)
        return x->line < y->line ? -1 : 1;
    if (x->receives != y->receives)
        return x->receives ? 1 : -1;
    return x->index - y->index;
}

/* ---- lanes ---- */

static void add_rank(struct ct_program_lanes *p, struct sides *sides, int index)
{
    const struct ct_program *program = p->program[index];
    int32_t *signaller = ct_arena_array(p->arena, int32_t, program->events + 1), computes = -1;
    size_t from = sides->count;

    memset(signaller, -1, sizeof(*signaller) * ((size_t)program->events + 1));
    for (size_t n = 0; n < program->step_count; n++)
        if (program->step[n].signal >= 0)
            signaller[program->step[n].signal] = p->first[index] + (int32_t)n;
    for (size_t n = 0; n < program->step_count; n++) {
        const struct ct_instruction *i = &program->step[n];
        bool computes_here = p->in_order || (p->computes && p->computes(p->client, index, i));
        int stream = computes_here ? CT_STREAM_COMPUTE : i->stream;
        int32_t item = ct_lanes_add(&p->lanes, index * CT_STREAMS + stream,
                                    p->cost ? p->cost(p->client, index, i) : 0);

        if (stream == CT_STREAM_COMPUTE)
            computes = item;
        else if (computes >= 0 && p->host_waits)
            ct_lanes_after(&p->lanes, computes, 0);
        for (const int32_t *w = i->waits; w && *w >= 0; w++)
            if (signaller[*w] >= 0)
                ct_lanes_after(&p->lanes, signaller[*w], 0);
        note_partners(p, sides, from, index, i, item);
    }
}

/* ---- which items are matched ---- */

static void never(struct ct_program_lanes *p, const struct side *s, size_t from)
{
    for (; from < s->count; from++)
        p->lanes.item[s->item[from]].never = true;
}

static int match_transfers(struct ct_program_lanes *p, const struct side *sent,
                           const struct side *received)
{
    size_t n;

    for (n = 0; n < sent->count && n < received->count; n++) {
        const struct ct_instruction *from = instruction_at(p, sent->item[n]);
        const struct ct_instruction *to = instruction_at(p, received->item[n]);

        if (ct_op_int(from->op, "tag") != ct_op_int(to->op, "tag"))
            return ct_fail(CT_EINVAL, "rank %d: send(%%%s) is paired with receive(%%%s) of rank %d",
                           sent->index, value_of(from), value_of(to), received->index);
        ct_lanes_match(&p->lanes, sent->item[n], received->item[n]);
    }
    never(p, sent, n);
    never(p, received, n);
    return 0;
}

/* The n-th call of each rank, of one type; otherwise it never ends. */
static void match_calls(struct ct_program_lanes *p, const struct side *side, size_t sides)
{
    for (size_t s = 1; s < sides; s++) {
        size_t n;

        for (n = 0; n < side->count && n < side[s].count; n++) {
            bool same = instruction_at(p, side->item[n])->op->type ==
                        instruction_at(p, side[s].item[n])->op->type;

            if (same)
                ct_lanes_match(&p->lanes, side->item[n], side[s].item[n]);
            else
                p->lanes.item[side->item[n]].never = p->lanes.item[side[s].item[n]].never = true;
        }
        never(p, side, n);
        never(p, &side[s], n);
    }
}

/* Ranks of the group of a side that are among the given ones. */
static size_t members(const struct ct_program_lanes *p, const struct side *s)
{
    size_t count = 0;

    for (int index = 0; index < p->count; index++)
        count += leader_of(p, index, s->axes) == s->leader;
    return count;
}

/* Sides of one line, next to each other. */
static int match(struct ct_program_lanes *p, const struct side *side, size_t sides)
{
    if (side->line < CT_STREAMS) {
        if (sides < members(p, side))
            for (size_t s = 0; s < sides; s++)
                never(p, &side[s], 0);
        match_calls(p, side, sides);
        return 0;
    }
    if (sides == 2 && side[1].receives)
        return match_transfers(p, &side[0], &side[1]);
    for (size_t s = 0; s < sides; s++)
        never(p, &side[s], 0);
    return 0;
}

int ct_program_lanes_build(struct ct_program_lanes *p)
{
    struct sides sides = {0};
    int rc = 0;

    p->first = ct_arena_array(p->arena, int32_t, p->count + 1);
    ct_lanes_init(&p->lanes, p->arena, p->count * CT_STREAMS);
    for (int n = 0; n < p->count; n++) {
        p->first[n + 1] = p->first[n] + (int32_t)p->program[n]->step_count;
        add_rank(p, &sides, n);
    }
    if (sides.count)
        qsort(sides.at, sides.count, sizeof(*sides.at), compare_sides);
    for (size_t n = 0, next; rc == 0 && n < sides.count; n = next) {
        const struct side *s = &sides.at[n];

        for (next = n + 1; next < sides.count && sides.at[next].leader == s->leader &&
                           sides.at[next].axes == s->axes && sides.at[next].line == s->line;
             next++)
            ;
        rc = match(p, s, next - n);
    }
    return rc;
}

static void name(const void *client, int32_t item, struct ct_lane_name *name)
{
    const struct ct_program_lanes *p = client;
    const struct ct_instruction *i = instruction_at(p, item);

    name->rank = index_of(p, item);
    name->place = (size_t)(item - p->first[name->rank]);
    snprintf(name->text, sizeof(name->text), "%s(%%%s)", i->op->type->name, value_of(i));
}

int ct_program_lanes_stuck(const struct ct_program_lanes *p)
{
    return ct_lanes_stuck(
        &p->lanes,
        &(struct ct_lane_words){.title = "", .noun = "instruction", .name = name, .client = p});
}
