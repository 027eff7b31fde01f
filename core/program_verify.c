/*
 * Checks a lowered program against the rules that it was made by, without using how it was made: no
 * two live buffers overlap, every tensor lies in a live buffer, nothing is read before it is
 * written, and what crosses streams is ordered by events.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/program.h>

struct check {
    const struct ct_program *p;
    FILE *report;
    int faults;
    char first[400];
    struct ct_arena arena;
    int64_t (
        *after)[CT_STREAMS]; /* by instruction: newest of each stream that surely came before */
};

static void fault(struct check *c, const char *fmt, ...) CT_PRINTF(2, 3);

static void fault(struct check *c, const char *fmt, ...)
{
    char line[400];
    va_list args;

    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    if (c->report)
        fprintf(c->report, "%s\n", line);
    if (c->faults++ == 0)
        memcpy(c->first, line, sizeof(line));
}

static int by_offset(const void *a, const void *b)
{
    const struct ct_buffer *x = *(struct ct_buffer *const *)a, *y = *(struct ct_buffer *const *)b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static const char *buffer_name(const struct ct_buffer *b)
{
    return b->value ? b->value->name : "workspace";
}

static size_t limit(const struct ct_program *p, const struct ct_buffer *b)
{
    return b->offloaded ? CT_OFFLOADED + p->offloaded.bytes : p->memory.bytes;
}

static void check_overlaps(struct check *c)
{
    const struct ct_program *p = c->p;
    struct ct_buffer **sorted = ct_arena_array(&c->arena, struct ct_buffer *, p->buffer_count + 1);

    for (size_t i = 0; i < p->buffer_count; i++)
        sorted[i] = &p->buffers[i];
    qsort(sorted, p->buffer_count, sizeof(struct ct_buffer *), by_offset);
    for (size_t i = 0; i < p->buffer_count; i++) {
        const struct ct_buffer *a = sorted[i];

        if (a->offset + a->bytes > limit(p, a))
            fault(c, "%s ends beyond the arena", buffer_name(a));
        for (size_t j = i + 1; j < p->buffer_count; j++) {
            const struct ct_buffer *b = sorted[j];

            if (b->offset >= a->offset + a->bytes)
                break;
            if (a->bytes && b->bytes && a->first <= b->last && b->first <= a->last)
                fault(c, "%s and %s share memory while both live", buffer_name(a), buffer_name(b));
        }
    }
}

/* ---- order ---- */

/* Instruction n comes after the one that signals the event, and all that this one comes after. */
static void wait(struct check *c, size_t n, int32_t event, int64_t signaller)
{
    if (signaller < 0) {
        fault(c, "instruction %zu waits for event %d, which none before it signals", n, event);
        return;
    }
    for (int t = 0; t < CT_STREAMS; t++) {
        bool same = t == c->p->step[signaller].stream;
        int64_t before = same ? signaller : c->after[signaller][t];

        if (before > c->after[n][t])
            c->after[n][t] = before;
    }
}

static void order(struct check *c)
{
    const struct ct_program *p = c->p;
    int64_t last[CT_STREAMS], *signaller = ct_arena_array(&c->arena, int64_t, p->events + 1);

    memset(last, -1, sizeof(last));
    memset(signaller, -1, sizeof(*signaller) * (size_t)(p->events + 1));
    c->after = ct_arena_alloc(&c->arena, sizeof(*c->after) * (p->step_count + 1));
    for (size_t n = 0; n < p->step_count; n++) {
        const struct ct_instruction *i = &p->step[n];
        int64_t previous = last[i->stream];

        for (int t = 0; t < CT_STREAMS; t++)
            c->after[n][t] = previous >= 0 ? c->after[previous][t] : -1;
        c->after[n][i->stream] = previous;
        for (const int32_t *w = i->waits; w && *w >= 0; w++)
            wait(c, n, *w, *w < p->events ? signaller[*w] : -1);
        if (i->signal >= 0)
            signaller[i->signal] = (int64_t)n;
        last[i->stream] = (int64_t)n;
    }
}

/* ---- accesses ---- */

bool ct_program_borrows(const struct ct_program *p, const struct ct_value *v)
{
    int32_t b = p->buffer_of[(size_t)v->id * (size_t)(p->microbatches + 1)];

    while (v->producer && v->producer->type->flags & CT_OP_VIEW)
        v = v->producer->in[0];
    return (v->role == CT_ROLE_PARAM || v->role == CT_ROLE_STATE) && b >= 0 &&
           p->buffers[b].bytes == 0 && ct_tensor_count(&p->tensors[v->id]) > 0;
}

struct access {
    size_t begin, end;
    int64_t instruction;
    bool write;
};

static size_t end_of(const struct ct_tensor *t, const struct ct_value *v)
{
    size_t begin = (size_t)(uintptr_t)t->data;
    int64_t last = 0;

    if (v->opaque_bytes)
        return begin + v->opaque_bytes;
    for (int d = 0; d < t->rank; d++)
        last += (t->shape[d] - 1) * t->stride[d];
    return begin + (size_t)(last + 1) * ct_dtype_size(t->dtype);
}

static const struct ct_buffer *live_buffer(const struct check *c, int64_t at, size_t begin,
                                           size_t end)
{
    for (size_t i = 0; i < c->p->buffer_count; i++) {
        const struct ct_buffer *b = &c->p->buffers[i];

        if (b->offset <= begin && end <= b->offset + b->bytes && b->first <= at && at <= b->last)
            return b;
    }
    return NULL;
}

/* Since the buffer's life began: what was there before is not its content. */
static bool was_written(const struct access *log, size_t count, size_t begin, size_t end,
                        const struct ct_buffer *b)
{
    for (size_t i = count; i-- > 0 && (!b || log[i].instruction >= b->first);)
        if (log[i].write && log[i].begin < end && begin < log[i].end)
            return true;
    return false;
}

static void check_order(struct check *c, const struct access *log, size_t count,
                        const struct access *now, const char *name)
{
    int stream = c->p->step[now->instruction].stream;

    for (size_t i = count; i-- > 0;) {
        const struct access *other = &log[i];
        int theirs = c->p->step[other->instruction].stream;

        if (theirs == stream || (!other->write && !now->write) || other->begin >= now->end ||
            now->begin >= other->end)
            continue;
        if (c->after[now->instruction][theirs] < other->instruction) {
            fault(c, "instruction %lld touches %%%s, unordered with instruction %lld on stream %d",
                  (long long)now->instruction, name, (long long)other->instruction, theirs);
            return;
        }
    }
}

/* An access of instruction n; adds: what is there is read, and written. */
static void check_tensor(struct check *c, struct access *log, size_t *count, int64_t n,
                         const struct ct_tensor *t, const struct ct_value *v, bool write, bool adds)
{
    struct access now = {(size_t)(uintptr_t)t->data, end_of(t, v), n, write};
    const struct ct_buffer *b;
    bool source, empty = ct_tensor_count(t) == 0 && !v->opaque_bytes; /* the shard of a late rank */

    if (empty || ct_program_borrows(c->p, v))
        return;
    while (v->producer && v->producer->type->flags & CT_OP_VIEW)
        v = v->producer->in[0];
    source = !v->producer;
    b = live_buffer(c, n, now.begin, now.end);
    if (!b)
        fault(c, "instruction %lld uses %%%s outside its buffer's life", (long long)n, v->name);
    if ((!write || adds) && !source && !was_written(log, *count, now.begin, now.end, b))
        fault(c, "instruction %lld reads %%%s before anything wrote it", (long long)n, v->name);
    check_order(c, log, *count, &now, v->name);
    log[(*count)++] = now;
}

static void check_workspace(struct check *c, int64_t n, const struct ct_instruction *i)
{
    const struct ct_buffer *b =
        i->workspace == SIZE_MAX ? NULL : live_buffer(c, n, i->workspace, i->workspace + 1);

    if (i->workspace != SIZE_MAX && (!b || b->category != CT_CATEGORY_WORKSPACE))
        fault(c, "instruction %lld has its workspace outside the buffer's life", (long long)n);
}

static void check_accesses(struct check *c)
{
    const struct ct_program *p = c->p;
    size_t total = 0, count = 0;
    struct access *log;

    for (size_t n = 0; n < p->step_count; n++)
        total += (size_t)(p->step[n].launch.ins + p->step[n].launch.outs);
    log = ct_arena_array(&c->arena, struct access, total + 1);
    for (size_t n = 0; n < p->step_count; n++) {
        const struct ct_instruction *i = &p->step[n];

        for (int k = 0; k < i->launch.ins; k++)
            if (i->launch.in[k].rank >= 0)
                check_tensor(c, log, &count, (int64_t)n, &i->launch.in[k], i->op->in[k],
                             ct_op_mutates(i->op, k), false);
        for (int k = 0; k < i->launch.outs; k++)
            check_tensor(c, log, &count, (int64_t)n, &i->launch.out[k], i->op->out[k], true,
                         k < 32 && i->launch.accumulate >> k & 1);
        check_workspace(c, (int64_t)n, i);
    }
}

int ct_program_verify(const struct ct_program *program, FILE *report)
{
    struct check c = {.p = program, .report = report};

    check_overlaps(&c);
    order(&c);
    check_accesses(&c);
    ct_arena_finish(&c.arena);
    return c.faults ? ct_fail(CT_EINVAL, "%s%s", c.first, c.faults > 1 ? " (and more)" : "") : 0;
}
