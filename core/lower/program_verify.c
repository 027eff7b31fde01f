/*
 * Checks a lowered program against its rules, independently of how it was lowered. Live buffers do
 * not overlap, every tensor lies in a live buffer, nothing is read before it is written, nothing is
 * added to a sum that was taken, and conflicting accesses on different streams are ordered by
 * events.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/app/segments.h>
#include <ctitan/app/sorted.h>
#include <ctitan/app/verify.h>
#include <ctitan/program.h>

#include "ir/faults.h"

struct check {
    const struct ct_program *p;
    struct ct_faults faults;
    struct ct_arena arena;
    int32_t (
        *after)[CT_STREAMS]; /* by instruction: newest of each stream that surely came before */
    uint32_t *begins, *ends; /* buffers, sorted by the first and the last instruction */
    size_t count;
    struct ct_sorted live; /* buffers, by offset */
    struct ct_segments segments;
    int64_t *taken; /* by buffer: 1 + the first instruction of no microbatch that reads it, or 0 */
};

static const char *buffer_name(const struct ct_buffer *b)
{
    return b->value ? b->value->name : "workspace";
}

static size_t limit(const struct ct_program *p, const struct ct_buffer *b)
{
    return b->space == CT_SPACE_HOST ? CT_HOST_OFFSET + p->host.bytes : p->memory.bytes;
}

/* ---- lives ---- */

static int by_first(const void *a, const void *b, void *buffers)
{
    uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    int32_t x = ((const struct ct_buffer *)buffers)[i].first;
    int32_t y = ((const struct ct_buffer *)buffers)[k].first;

    return x != y ? (x < y ? -1 : 1) : i < k ? -1 : i > k;
}

static int by_last(const void *a, const void *b, void *buffers)
{
    uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    int32_t x = ((const struct ct_buffer *)buffers)[i].last;
    int32_t y = ((const struct ct_buffer *)buffers)[k].last;

    return x != y ? (x < y ? -1 : 1) : i < k ? -1 : i > k;
}

static void sort_buffers(struct check *c)
{
    const struct ct_program *p = c->p;

    c->begins = ct_arena_array(&c->arena, uint32_t, p->buffer_count + 1);
    for (size_t i = 0; i < p->buffer_count; i++)
        if (p->buffers[i].bytes && p->buffers[i].last >= p->buffers[i].first)
            c->begins[c->count++] = (uint32_t)i;
    c->ends = ct_arena_copy(&c->arena, c->begins, sizeof(*c->ends) * (c->count + 1));
    qsort_r(c->begins, c->count, sizeof(*c->begins), by_first, p->buffers);
    qsort_r(c->ends, c->count, sizeof(*c->ends), by_last, p->buffers);
}

static const struct ct_buffer *buffer_of(const struct ct_sorted_node *node)
{
    return node ? node->item : NULL;
}

/* b becomes live: no live buffer may overlap it. */
static void check_overlaps(struct check *c, const struct ct_buffer *b)
{
    const struct ct_buffer *below = buffer_of(ct_sorted_below(&c->live, b->offset, 0));
    struct ct_sorted_node *n = ct_sorted_at_least(&c->live, b->offset, 0);

    if (b->offset + b->bytes > limit(c->p, b))
        ct_fault(&c->faults, "%s ends beyond the arena", buffer_name(b));
    if (below && below->offset + below->bytes > b->offset)
        ct_fault(&c->faults, "%s and %s share memory while both are live", buffer_name(below),
                 buffer_name(b));
    for (; n && buffer_of(n)->offset < b->offset + b->bytes; n = n->next[0])
        ct_fault(&c->faults, "%s and %s share memory while both are live", buffer_name(b),
                 buffer_name(buffer_of(n)));
}

static void end_life(struct check *c, const struct ct_buffer *b)
{
    struct ct_sorted_node *n = ct_sorted_at_least(&c->live, b->offset, 0);

    while (n->item != b)
        n = n->next[0];
    ct_sorted_remove(&c->live, n);
}

/* No two buffers that are live at the same time overlap. A lifetime includes its last
   instruction. */
static void check_lives(struct check *c)
{
    const struct ct_buffer *buffers = c->p->buffers;

    sort_buffers(c);
    c->live = ct_sorted_create(&c->arena);
    for (size_t i = 0, ended = 0; i < c->count; i++) {
        const struct ct_buffer *b = &buffers[c->begins[i]];

        for (; buffers[c->ends[ended]].last < b->first; ended++)
            end_life(c, &buffers[c->ends[ended]]);
        check_overlaps(c, b);
        ct_sorted_insert(&c->live, b->offset, 0, (void *)b);
    }
}

/* The buffer of an operand of instruction n; NULL: it is not live, or too small. */
static const struct ct_buffer *live_buffer(const struct check *c, int64_t n, int operand,
                                           size_t begin, size_t end)
{
    int32_t at = c->p->step[n].buffers[operand];
    const struct ct_buffer *b = at < 0 ? NULL : &c->p->buffers[at];

    return b && b->first <= n && n <= b->last && begin >= b->offset && end <= b->offset + b->bytes
               ? b
               : NULL;
}

/* ---- order ---- */

/* Order instruction n after the signaller of the event and all that precedes that. */
static void wait(struct check *c, size_t n, int32_t event, int64_t signaller)
{
    if (signaller < 0) {
        ct_fault(&c->faults, "instruction %zu waits for event %d, which none before it signals", n,
                 event);
        return;
    }
    for (int t = 0; t < CT_STREAMS; t++) {
        bool same = t == c->p->step[signaller].stream;
        int32_t before = same ? (int32_t)signaller : c->after[signaller][t];

        if (before > c->after[n][t])
            c->after[n][t] = before;
    }
}

static void order(struct check *c)
{
    const struct ct_program *p = c->p;
    int32_t last[CT_STREAMS], *signaller = ct_arena_array(&c->arena, int32_t, p->events + 1);

    memset(last, -1, sizeof(last));
    memset(signaller, -1, sizeof(*signaller) * (size_t)(p->events + 1));
    c->after = ct_arena_alloc(&c->arena, sizeof(*c->after) * (p->step_count + 1));
    for (size_t n = 0; n < p->step_count; n++) {
        const struct ct_instruction *i = &p->step[n];
        int32_t previous = last[i->stream];

        for (int t = 0; t < CT_STREAMS; t++)
            c->after[n][t] = previous >= 0 ? c->after[previous][t] : -1;
        c->after[n][i->stream] = previous;
        for (const int32_t *w = i->waits; w && *w >= 0; w++)
            wait(c, n, *w, *w < p->events ? signaller[*w] : -1);
        if (i->signal >= 0)
            signaller[i->signal] = (int32_t)n;
        last[i->stream] = (int32_t)n;
    }
}

/* ---- accesses ---- */

struct access {
    size_t begin, end;
    int64_t instruction;
    bool write;
};

static size_t extent(const struct ct_tensor *t, const struct ct_value *v)
{
    return v->opaque_bytes ? v->opaque_bytes : ct_tensor_extent(t);
}

/* Was it written since the buffer's life began? Older contents do not count. */
static bool was_written(struct check *c, const struct access *now, const struct ct_buffer *b)
{
    struct ct_segment *s = ct_segments_first(&c->segments, now->begin, now->end);

    for (; s; s = ct_segments_next(&c->segments, s, now->end))
        for (int t = 0; t < CT_STREAMS; t++)
            if (s->write[t] >= 0 && (!b || s->write[t] >= b->first))
                return true;
    return false;
}

/* The newest instruction of `last` that is not ordered before n, or -1. */
static int64_t unordered(const struct check *c, int64_t n, const int64_t *last)
{
    int64_t newest = -1;

    for (int t = 0; t < CT_STREAMS; t++)
        if (t != c->p->step[n].stream && last[t] > c->after[n][t] && last[t] > newest)
            newest = last[t];
    return newest;
}

/* Every conflicting access of another stream must have come before. The newest of each stream
   suffices, because a stream keeps its order. */
static void check_order(struct check *c, const struct access *now, const char *name)
{
    struct ct_segment *s = ct_segments_first(&c->segments, now->begin, now->end);
    int stream = c->p->step[now->instruction].stream;
    int64_t newest = -1;

    for (; s; s = ct_segments_next(&c->segments, s, now->end)) {
        int64_t w = unordered(c, now->instruction, s->write);
        int64_t r = now->write ? unordered(c, now->instruction, s->read) : -1;

        newest = w > newest ? w : newest;
        newest = r > newest ? r : newest;
        if (!now->write)
            s->read[stream] = now->instruction;
    }
    if (now->write)
        ct_segments_write(&c->segments, now->begin, now->end, stream, now->instruction);
    if (newest >= 0)
        ct_fault(&c->faults,
                 "instruction %lld accesses %%%s, unordered with instruction %lld on stream %s",
                 (long long)now->instruction, name, (long long)newest,
                 ct_stream_name(c->p->step[newest].stream));
}

/* A sum over the microbatches is taken after its last term. */
static void check_sum(struct check *c, int64_t n, const struct ct_buffer *b, const char *name,
                      bool write)
{
    int64_t *taken = &c->taken[b - c->p->buffers];
    bool once = c->p->step[n].microbatch < 0;

    if (once && !write && !*taken)
        *taken = n + 1;
    if (!once && write && *taken)
        ct_fault(&c->faults, "instruction %lld adds to %%%s, which instruction %lld has taken",
                 (long long)n, name, (long long)*taken - 1);
}

/* Check an access of instruction n to an operand. adds: it reads and writes. */
static void check_tensor(struct check *c, int64_t n, int operand, const struct ct_tensor *t,
                         const struct ct_value *v, bool write, bool adds)
{
    size_t begin = ct_instruction_offset(c->p, &c->p->step[n], operand);
    struct access now = {begin, begin + extent(t, v), n, write};
    const struct ct_buffer *b;
    bool source, empty = ct_tensor_count(t) == 0 && !v->opaque_bytes; /* a late rank's shard */

    if (empty || ct_program_borrows(c->p, v))
        return;
    while (v->producer && v->producer->type->flags & CT_OP_VIEW)
        v = v->producer->in[0];
    source = !v->producer;
    b = live_buffer(c, n, operand, now.begin, now.end);
    if (!b)
        ct_fault(&c->faults, "instruction %lld uses %%%s outside its buffer's lifetime",
                 (long long)n, v->name);
    if ((!write || adds) && !source && !was_written(c, &now, b))
        ct_fault(&c->faults, "instruction %lld reads %%%s before anything wrote it", (long long)n,
                 v->name);
    if (b && !source)
        check_sum(c, n, b, v->name, write);
    check_order(c, &now, v->name);
}

static void check_workspace(struct check *c, int64_t n, const struct ct_instruction *i)
{
    const struct ct_launch *l = &i->lowered->launch;
    size_t begin = ct_instruction_offset(c->p, i, l->ins + l->outs);
    const struct ct_buffer *b;

    if (!i->lowered->workspace)
        return;
    b = live_buffer(c, n, l->ins + l->outs, begin, begin + i->lowered->workspace);
    if (b && b->category == CT_CATEGORY_WORKSPACE)
        check_order(c, &(struct access){b->offset, b->offset + b->bytes, n, true}, "workspace");
    else
        ct_fault(&c->faults, "instruction %lld has its workspace outside the buffer's lifetime",
                 (long long)n);
}

static void check_accesses(struct check *c)
{
    const struct ct_program *p = c->p;

    ct_segments_init(&c->segments, &c->arena);
    c->taken = ct_arena_array(&c->arena, int64_t, p->buffer_count + 1);
    for (size_t n = 0; n < p->step_count; n++) {
        const struct ct_instruction *i = &p->step[n];
        const struct ct_launch *l = &i->lowered->launch;

        for (int k = 0; k < l->ins; k++)
            if (l->in[k].ndim >= 0)
                check_tensor(c, (int64_t)n, k, &l->in[k], i->op->in[k], ct_op_mutates(i->op, k),
                             false);
        for (int k = 0; k < l->outs; k++)
            check_tensor(c, (int64_t)n, l->ins + k, &l->out[k], i->op->out[k], true,
                         k < 32 && l->accumulate >> k & 1);
        check_workspace(c, (int64_t)n, i);
    }
}

int ct_program_verify(const struct ct_program *program, FILE *report)
{
    struct check c = {.p = program, .faults = {.report = report}};

    order(&c);
    check_lives(&c);
    check_accesses(&c);
    ct_arena_finish(&c.arena);
    return ct_faults_end(&c.faults);
}
