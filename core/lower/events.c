/*
 * Order between streams.
 *
 * An instruction must come after those on other streams that wrote what it reads, or that read or
 * wrote what it writes. Memory reused from a dead buffer counts as that buffer. Within a stream the
 * order is given. An instruction that others must wait for signals an event. A wait that is implied
 * by another one is left out.
 */
#include <string.h>

#include "lower/lower.h"
#include <ctitan/app/segments.h>

struct ordering {
    struct ct_program *p;
    struct ct_segments segments;
    struct ct_arena *arena;
    int64_t seen[CT_STREAMS][CT_STREAMS]; /* [of][by]: newest instruction known to be done */
    int32_t (*before)[CT_STREAMS]; /* by instruction: `seen` of its stream when it was queued */
};

static void raise_to(int64_t *need, const int64_t *to)
{
    for (int t = 0; t < CT_STREAMS; t++)
        if (to[t] > need[t])
            need[t] = to[t];
}

/* Instruction n of stream s accesses [begin, end): raise `need` to what it must come after. A write
   replaces the range's history: what follows it also follows all that it waited for. */
static void touch(struct ordering *o, int64_t n, int s, size_t begin, size_t end, bool write,
                  int64_t *need)
{
    struct ct_segment *i = ct_segments_first(&o->segments, begin, end);

    for (; i; i = ct_segments_next(&o->segments, i, end)) {
        raise_to(need, i->write);
        if (write)
            raise_to(need, i->read);
        else
            i->read[s] = n;
    }
    if (write)
        ct_segments_write(&o->segments, begin, end, s, n);
}

static void touch_tensor(struct ordering *o, int64_t n, int operand, const struct ct_value *v,
                         const struct ct_tensor *t, bool write, int64_t *need)
{
    const struct ct_instruction *i = &o->p->step[n];
    size_t begin;

    if (ct_program_borrows(o->p, v))
        return;
    begin = ct_instruction_offset(o->p, i, operand);
    touch(o, n, i->stream, begin, begin + (v->opaque_bytes ? v->opaque_bytes : ct_tensor_extent(t)),
          write, need);
}

/* Does stream s know that instruction need[t] of stream t is done, or will it, after another wait
   in `need`? */
static bool implied(const struct ordering *o, int s, const int64_t *need, int t)
{
    bool is = t == s || need[t] <= o->seen[s][t];

    for (int u = 0; !is && u < CT_STREAMS; u++)
        is = u != t && u != s && need[u] > o->seen[s][u] && o->before[need[u]][t] >= need[t];
    return is;
}

static void order_after(struct ordering *o, struct ct_instruction *i, const int64_t *need)
{
    int64_t *seen = o->seen[i->stream];
    int32_t waits[CT_STREAMS + 1], count = 0;
    bool wait[CT_STREAMS];

    for (int t = 0; t < CT_STREAMS; t++)
        wait[t] = !implied(o, i->stream, need, t);
    for (int t = 0; t < CT_STREAMS; t++) {
        struct ct_instruction *other = wait[t] ? &o->p->step[need[t]] : NULL;

        if (!other)
            continue;
        if (other->signal < 0)
            other->signal = o->p->events++;
        waits[count++] = other->signal;
        for (int u = 0; u < CT_STREAMS; u++)
            if (o->before[need[t]][u] > seen[u])
                seen[u] = o->before[need[t]][u];
        if (need[t] > seen[t])
            seen[t] = need[t];
    }
    for (int t = 0; t < CT_STREAMS; t++)
        o->before[i - o->p->step][t] = (int32_t)seen[t];
    if (count == 0)
        return;
    waits[count++] = -1;
    i->waits = ct_arena_copy(o->p->arena, waits, sizeof(*waits) * (size_t)count);
}

static bool one_stream(const struct ct_program *p)
{
    for (size_t i = 0; i < p->step_count; i++)
        if (p->step[i].stream != CT_STREAM_COMPUTE)
            return false;
    return true;
}

static void touch_all(struct ordering *o, int64_t n, int64_t *need)
{
    const struct ct_instruction *i = &o->p->step[n];
    const struct ct_launch *l = &i->lowered->launch;
    size_t workspace = ct_instruction_offset(o->p, i, l->ins + l->outs);

    for (int k = 0; k < l->ins; k++)
        if (l->in[k].ndim >= 0)
            touch_tensor(o, n, k, i->op->in[k], &l->in[k], ct_op_mutates(i->op, k), need);
    for (int k = 0; k < l->outs; k++)
        touch_tensor(o, n, l->ins + k, i->op->out[k], &l->out[k], true, need);
    if (workspace != SIZE_MAX)
        touch(o, n, i->stream, workspace, workspace + i->lowered->workspace, true, need);
}

void ct_lower_events(struct ct_program *p, struct ct_arena *scratch)
{
    struct ordering o = {.p = p, .arena = scratch};

    if (one_stream(p))
        return;
    memset(o.seen, -1, sizeof(o.seen));
    o.before = ct_arena_alloc(scratch, sizeof(*o.before) * p->step_count);
    ct_segments_init(&o.segments, scratch);
    for (size_t n = 0; n < p->step_count; n++) {
        struct ct_instruction *i = &p->step[n];
        int64_t need[CT_STREAMS];

        memset(need, -1, sizeof(need));
        touch_all(&o, (int64_t)n, need);
        order_after(&o, i, need);
    }
}

bool ct_program_borrows(const struct ct_program *p, const struct ct_value *v)
{
    int32_t b = p->buffer_of[(size_t)v->id * (size_t)(p->microbatches + 1)];

    while (v->producer && v->producer->type->flags & CT_OP_VIEW)
        v = v->producer->in[0];
    return (v->role == CT_ROLE_PARAM || v->role == CT_ROLE_STATE) && b >= 0 &&
           p->buffers[b].bytes == 0 && ct_tensor_count(&p->tensors[v->id]) > 0;
}
