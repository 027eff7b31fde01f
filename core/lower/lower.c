/*
 * Lowering: sections times microbatches become one flat list of instructions.
 *
 * A buffer is created when an instruction first writes it. A value that represents its sum over the
 * microbatches has one buffer for the step. The first term of a sum overwrites its buffer; the
 * others are added to it, in the kernel, or by an `add` after it if the kernel cannot.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/app/diagnose.h>
#include <ctitan/error.h>

#include "lower/lower.h"

struct expansion {
    struct ct_lowering *l;
    struct ct_instruction *item;
    size_t count, room, buffer_room;
    bool init;
    int64_t start;           /* number of the first instruction; negative in init */
    size_t last[CT_STREAMS]; /* 1 + the stream's last instruction; 0: none. See keep_beside */
    bool *begun;             /* by slot of a sum: some term of it is there */
};

static size_t slot(const struct ct_program *p, const struct ct_value *v, int microbatch)
{
    return (size_t)v->id * (size_t)(p->microbatches + 1) + (size_t)(microbatch + 1);
}

static enum ct_category category(const struct ct_lowering *l, const struct ct_value *v)
{
    v = ct_value_origin(v);
    switch (v->role) {
    case CT_ROLE_PARAM:
        return CT_CATEGORY_PARAMETER;
    case CT_ROLE_STATE:
        return v->opaque_bytes ? CT_CATEGORY_PREPARED : CT_CATEGORY_OPTIMIZER;
    case CT_ROLE_INPUT:
    case CT_ROLE_SCALAR:
        return CT_CATEGORY_INPUT;
    default:
        if ((v->producer->type->flags & (CT_OP_COLLECTIVE | CT_OP_RENDEZVOUS)) == CT_OP_COLLECTIVE)
            return CT_CATEGORY_COMMUNICATION;
        if (l->summed[v->id] || v->producer->section->part == CT_PART_POST)
            return CT_CATEGORY_GRADIENT;
        return v->producer->section->part == CT_PART_PRE ? CT_CATEGORY_PREPARED
                                                         : CT_CATEGORY_ACTIVATION;
    }
}

/* Does v exist once for each microbatch? */
static bool per_microbatch(const struct ct_lowering *l, const struct ct_value *v)
{
    if (v->role == CT_ROLE_INPUT)
        return true;
    return v->producer && ct_part_is_microbatch(v->producer->section->part) && !l->summed[v->id];
}

static int32_t buffer_new(struct ct_lowering *l, size_t *room, struct ct_buffer buffer)
{
    struct ct_program *p = l->program;

    p->buffers =
        ct_arena_grow(l->arena, p->buffers, room, p->buffer_count + 1, sizeof(*p->buffers));
    p->buffers[p->buffer_count] = buffer;
    return (int32_t)p->buffer_count++;
}

/* The buffer of v for a microbatch; if absent, it is created, alive from instruction `at`. */
static int32_t buffer_of(struct expansion *x, const struct ct_value *v, int microbatch, int64_t at)
{
    struct ct_lowering *l = x->l;
    const struct ct_value *root = l->graph->values[l->root[v->id]];
    int m = per_microbatch(l, root) ? microbatch : -1;
    int32_t *b = &l->program->buffer_of[slot(l->program, root, m)];

    if (*b == CT_NO_BUFFER)
        *b = buffer_new(l, &x->buffer_room,
                        (struct ct_buffer){.value = root,
                                           .microbatch = m,
                                           .category = category(l, root),
                                           .space = root->space,
                                           .bytes = l->bytes[root->id],
                                           .first = at,
                                           .last = at});
    if (l->program->buffers[*b].last < at)
        l->program->buffers[*b].last = at;
    l->program->buffer_of[slot(l->program, v, m)] = *b;
    return *b;
}

static struct ct_instruction *append(struct expansion *x)
{
    x->item = ct_arena_grow(x->l->arena, x->item, &x->room, x->count + 1, sizeof(*x->item));
    x->item[x->count] = (struct ct_instruction){.item = -1, .microbatch = -1, .signal = -1};
    return &x->item[x->count++];
}

/* The number of the last instruction appended. */
static int64_t now(const struct expansion *x)
{
    return x->start + (int64_t)x->count - 1;
}

/* A tensor whose data encodes its location: 1 + buffer index in the high bits, offset in the
   others. plan.c turns that into an arena offset. */
static struct ct_tensor place(struct expansion *x, const struct ct_value *v, int microbatch,
                              int64_t at)
{
    struct ct_tensor t = x->l->program->tensors[v->id];
    uint64_t buffer = (uint64_t)buffer_of(x, v, microbatch, at) + 1;

    t.data = (void *)(uintptr_t)(buffer << CT_OFFSET_BITS | (uint64_t)(uintptr_t)t.data);
    return t;
}

static void add_workspace(struct expansion *x, struct ct_instruction *i, size_t bytes)
{
    struct ct_buffer buffer = {.microbatch = i->microbatch,
                               .category = CT_CATEGORY_WORKSPACE,
                               .bytes = bytes,
                               .first = now(x),
                               .last = now(x)};

    if (bytes)
        i->launch.workspace =
            (void *)((uintptr_t)(buffer_new(x->l, &x->buffer_room, buffer) + 1) << CT_OFFSET_BITS);
}

static void set_tensors(struct expansion *x, struct ct_instruction *i, struct ct_op *op)
{
    int64_t at = now(x);
    struct ct_tensor *in = ct_arena_array(x->l->arena, struct ct_tensor, op->ins);
    struct ct_tensor *out = ct_arena_array(x->l->arena, struct ct_tensor, op->outs);

    for (int k = 0; k < op->ins; k++)
        if (op->in[k])
            in[k] = place(x, op->in[k], i->microbatch, at);
    for (int k = 0; k < op->outs; k++)
        out[k] = place(x, op->out[k], i->microbatch, at);
    i->launch.in = in;
    i->launch.out = out;
    i->launch.ins = op->ins;
    i->launch.outs = op->outs;
}

/* The buffer at an encoded location is not reused until `last`. */
static void keep(struct expansion *x, const void *data, int64_t last)
{
    uint64_t code = (uint64_t)(uintptr_t)data;
    struct ct_buffer *b =
        code >> CT_OFFSET_BITS ? &x->l->program->buffers[(code >> CT_OFFSET_BITS) - 1] : NULL;

    if (b && b->last < last)
        b->last = last;
}

/* The kernel cannot accumulate: let it write to a fresh buffer, and add that to the sum. */
static int add_behind(struct expansion *x, size_t at, int out)
{
    struct ct_lowering *l = x->l;
    struct ct_instruction *made = &x->item[at], *sum;
    struct ct_tensor *outs = (struct ct_tensor *)made->launch.out;
    struct ct_tensor *pair = ct_arena_array(l->arena, struct ct_tensor, 3); /* sum, term, sum */
    struct ct_tensor t = ct_tensor_dense(NULL, outs[out].dtype, outs[out].ndim, outs[out].shape);
    struct ct_op *op = ct_arena_new(l->arena, struct ct_op);
    struct ct_prepare request = {.op = op,
                                 .in = pair,
                                 .out = pair + 2,
                                 .ins = 2,
                                 .outs = 1,
                                 .present = (const bool[]){true, true},
                                 .device = l->request->device,
                                 .arena = l->arena};
    struct ct_value *v = made->op->out[out];
    int32_t temp = buffer_new(l, &x->buffer_room,
                              (struct ct_buffer){.value = v,
                                                 .microbatch = made->microbatch,
                                                 .category = CT_CATEGORY_ACTIVATION,
                                                 .bytes = l->bytes[v->id],
                                                 .first = (int64_t)at,
                                                 .last = (int64_t)x->count});
    int rc;

    *op = (struct ct_op){.type = &ct_op_add,
                         .region = made->op->region,
                         .section = made->op->section,
                         .stream = made->op->stream,
                         .ins = 2,
                         .outs = 1,
                         .why = "adds to a sum",
                         .out = &made->op->out[out]};
    op->in = ct_arena_array(l->arena, struct ct_value *, 2);
    op->in[0] = op->in[1] = v;
    pair[0] = pair[2] = outs[out];
    t.data = (void *)(((uintptr_t)temp + 1) << CT_OFFSET_BITS);
    pair[1] = outs[out] = t;
    sum = append(x);
    made = &x->item[at];
    sum->op = op;
    sum->kernel = ct_lower_kernel(l, &request);
    if (!sum->kernel)
        return ct_fail(CT_ENOENT, "device %s has no kernel to add %%%s to a sum",
                       l->request->device->name, v->name);
    rc = sum->kernel->prepare ? sum->kernel->prepare(&request) : 0;
    if (rc < 0)
        return ct_context(rc, "preparing the sum of %%%s", v->name);
    sum->stream = made->stream;
    sum->item = made->item;
    sum->microbatch = made->microbatch;
    sum->launch = (struct ct_launch){
        .op = op, .in = pair, .out = pair + 2, .ins = 2, .outs = 1, .state = request.state};
    add_workspace(x, sum, request.workspace);
    keep(x, pair[0].data, (int64_t)x->count - 1);
    return 0;
}

/* Add an instruction's costs to the step's totals. */
static void count(struct ct_lowering *l, const struct ct_op *op,
                  const struct ct_lowered_op *lowered)
{
    struct ct_program *p = l->program;

    p->flops += lowered->flops;
    p->comm_bytes += lowered->sent;
    if (op->type->flags & CT_OP_SPACES && op->in[0]->space == CT_SPACE_HOST && op->outs)
        p->loaded_bytes += (double)ct_value_bytes(l->graph, op->out[0], l->request->rank);
    else if (op->type->flags & CT_OP_SPACES)
        p->stored_bytes += (double)ct_value_bytes(l->graph, op->in[0], l->request->rank);
}

static void keep_inputs(struct expansion *x, const struct ct_instruction *i, int64_t last)
{
    for (int k = 0; k < i->launch.ins; k++)
        keep(x, i->launch.in[k].data, last);
}

/* Otherwise compute beside a copy or an exchange might reuse its inputs' memory or its workspace,
   and wait for it. */
static void keep_beside(struct expansion *x, const struct ct_instruction *i)
{
    static const bool kept[CT_STREAMS] = {
        [CT_STREAM_GATHER] = true, [CT_STREAM_COPY_OUT] = true, [CT_STREAM_CHUNK] = true};
    size_t *last = &x->last[i->stream];
    const struct ct_instruction *before = *last ? &x->item[*last - 1] : NULL;

    if (!kept[i->stream] || i->microbatch < 0)
        return;
    if (before && before->item == i->item) {
        keep(x, before->launch.workspace, now(x));
        keep_inputs(x, before, now(x));
    }
    *last = x->count;
}

/* Whether a term of the sum that v belongs to is there. */
static bool *begun(struct expansion *x, const struct ct_value *v, int microbatch)
{
    const struct ct_value *sum = x->l->graph->values[x->l->sum[v->id]];

    return &x->begun[slot(x->l->program, sum, per_microbatch(x->l, v) ? microbatch : -1)];
}

/* The outputs of op that are added to what is there. */
static uint32_t begin_terms(struct expansion *x, const struct ct_op *op, int microbatch)
{
    uint32_t add = 0;

    for (int k = 0; k < op->outs; k++) {
        bool *there = begun(x, op->out[k], microbatch);

        add |= *there && k < 32 ? 1u << k : 0;
        *there = true;
    }
    return add;
}

/* Check that every value that op takes has been computed. */
static int check_made(const struct expansion *x, const struct ct_op *op, int microbatch)
{
    const struct ct_lowering *l = x->l;

    for (int k = 0; k < op->ins; k++) {
        const struct ct_value *root = op->in[k] ? l->graph->values[l->root[op->in[k]->id]] : NULL;
        int m = root && per_microbatch(l, root) ? microbatch : -1;

        if (root && root->producer &&
            l->program->buffer_of[slot(l->program, root, m)] == CT_NO_BUFFER)
            return ct_fail(CT_EINVAL, "%s in section %s takes %%%s, which nothing before it makes",
                           op->type->name, op->section->name, op->in[k]->name);
    }
    return 0;
}

static int emit(struct expansion *x, struct ct_op *op, struct ct_lowered_op *lowered, int item,
                int microbatch)
{
    struct ct_instruction *i;
    size_t at = x->count;
    uint32_t add;
    int rc = check_made(x, op, microbatch);

    if (rc < 0)
        return rc;
    if (lowered->in_place) {
        buffer_of(x, op->out[0], microbatch, -1); /* already there, and unchanged */
        return 0;
    }
    add = lowered->accumulate & begin_terms(x, op, microbatch);
    i = append(x);
    i->op = op;
    i->kernel = lowered->kernel;
    i->stream = (int16_t)op->stream;
    i->item = item;
    i->microbatch = microbatch;
    i->launch = (struct ct_launch){.op = op,
                                   .state = lowered->state,
                                   .rank = x->l->request->rank,
                                   .mesh = &x->l->graph->mesh,
                                   .graph = x->l->graph};
    set_tensors(x, i, op);
    add_workspace(x, i, lowered->workspace);
    keep_beside(x, i);
    i->group = lowered->group;
    i->sent = lowered->sent;
    if (!x->init)
        count(x->l, op, lowered);
    if (lowered->kernel->flags & CT_KERNEL_ACCUMULATES) {
        i->launch.accumulate = add;
        return 0;
    }
    for (int k = 0; k < op->outs && k < 32; k++)
        if (add & 1u << k) {
            rc = add_behind(x, at, k);
            if (rc < 0)
                return rc;
        }
    return 0;
}

static int emit_at(struct expansion *x, size_t n, int item, int microbatch)
{
    return emit(x, x->l->op_at[n], &x->l->ops[n], item, microbatch);
}

/* Expand the sections of a part that are not in the order. */
static int expand_part(struct expansion *x, enum ct_part part)
{
    int rc = 0;

    for (size_t n = 0; rc == 0 && n < x->l->op_count; n++) {
        const struct ct_section *s = x->l->op_at[n]->section;

        if (s->part == part && !x->l->listed[s->id])
            rc = emit_at(x, n, -1, -1);
    }
    return rc;
}

/* Iterates over the ops of a span. */
struct cursor {
    const struct ct_positions *of[2];
    size_t next[2];
    int microbatch;
};

static struct cursor cursor_at(const struct ct_lowering *l, const struct ct_span *span)
{
    struct cursor c = {.microbatch = span->microbatch};

    for (int i = 0; i < 2; i++)
        c.of[i] = span->section[i] ? &l->section[span->section[i]->id] : NULL;
    return c;
}

/* The next op of the span, in the graph's order; *done after the last. */
static int emit_next(struct expansion *x, struct cursor *c, int item, bool *done)
{
    int which = -1;

    for (int i = 0; i < 2; i++)
        if (c->of[i] && c->next[i] < c->of[i]->count &&
            (which < 0 || c->of[i]->at[c->next[i]] < c->of[which]->at[c->next[which]]))
            which = i;
    *done = which < 0;
    return *done ? 0 : emit_at(x, c->of[which]->at[c->next[which]++], item, c->microbatch);
}

/* Alternate two spans that run at the same time: compute hides communication. */
static int expand_item(struct expansion *x, const struct ct_order_item *item, int index)
{
    struct cursor run = cursor_at(x->l, &item->run), beside = cursor_at(x->l, &item->beside);
    bool run_done = false, beside_done = false;
    int rc = 0;

    while (rc == 0 && !(run_done && beside_done)) {
        rc = emit_next(x, &run, index, &run_done);
        if (rc == 0)
            rc = emit_next(x, &beside, index, &beside_done);
    }
    return rc;
}

/* Make the next run of these sections write to new buffers. */
static void release(struct expansion *x, const struct ct_span *span)
{
    struct ct_lowering *l = x->l;
    struct cursor c = cursor_at(l, span);

    for (int s = 0; s < 2; s++)
        for (size_t k = 0; c.of[s] && k < c.of[s]->count; k++) {
            const struct ct_op *op = l->op_at[c.of[s]->at[k]];

            for (int i = 0; i < op->outs; i++) {
                if (per_microbatch(l, op->out[i]))
                    *begun(x, op->out[i], span->microbatch) = false;
                l->program->buffer_of[slot(l->program, l->graph->values[l->root[op->out[i]->id]],
                                           span->microbatch)] = CT_NO_BUFFER;
            }
        }
}

/* An op that ends only when its peer arrives must not be waited for at once: its inputs keep their
   memory until the end of the next item that computes. */
static void keep_sent(struct expansion *x, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        if (x->item[i].op->type->flags & CT_OP_RENDEZVOUS)
            keep_inputs(x, &x->item[i], (int64_t)x->count - 1);
}

/* Did a microbatch's instructions from `from` on compute anything? */
static bool computed(const struct expansion *x, size_t from)
{
    for (size_t i = from; i < x->count; i++)
        if (x->item[i].microbatch >= 0 && !(x->item[i].op->type->flags & CT_OP_COLLECTIVE))
            return true;
    return false;
}

static int expand_order(struct expansion *x)
{
    const struct ct_order *order = &x->l->program->order;
    size_t last = 0; /* instructions up to the end of the last item that computed */
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < order->count; i++) {
        size_t before = x->count;

        if (order->item[i].release) {
            release(x, &order->item[i].run);
            continue;
        }
        rc = expand_item(x, &order->item[i], (int)i);
        if (!computed(x, before))
            continue;
        keep_sent(x, last, before);
        last = x->count;
    }
    return rc;
}

/* Sources get their memory before anything runs, in the graph's order: parameters are contiguous,
   and so are the optimizer's states. Borrowed ones get none. */
static void place_sources(struct expansion *x)
{
    const struct ct_graph *g = x->l->graph;

    for (int role = CT_ROLE_PARAM; role <= CT_ROLE_SCALAR; role++)
        for (size_t i = 0; i < g->value_count; i++) {
            const struct ct_value *v = g->values[i];
            bool borrowed = x->l->request->borrow && role <= CT_ROLE_STATE;
            int last = role == CT_ROLE_INPUT ? x->l->program->microbatches - 1 : -1;

            if (v->producer || (int)v->role != role)
                continue;
            for (int m = role == CT_ROLE_INPUT ? 0 : -1; m <= last; m++) {
                int32_t index = buffer_of(x, v, m, -1);
                struct ct_buffer *b = &x->l->program->buffers[index];

                b->first = INT64_MIN;
                b->last = INT64_MAX;
                if (borrowed)
                    b->bytes = 0;
            }
        }
}

/* Values that the host reads after the step stay alive until then. */
static void keep_fetches(struct ct_lowering *l)
{
    for (size_t i = 0; i < l->graph->fetch_count; i++)
        for (int m = -1; m < l->program->microbatches; m++) {
            int32_t b = l->program->buffer_of[slot(l->program, l->graph->fetches[i].value, m)];

            if (b != CT_NO_BUFFER)
                l->program->buffers[b].last = INT64_MAX;
        }
}

static int64_t count_init(const struct ct_lowering *l)
{
    int64_t count = 0;

    for (size_t n = 0; n < l->op_count; n++)
        count += l->op_at[n]->section->part == CT_PART_INIT && !l->ops[n].in_place;
    return count;
}

static int expand(struct ct_lowering *l)
{
    struct ct_program *p = l->program;
    struct expansion x = {.l = l};
    int rc;

    x.begun =
        ct_arena_array(&l->scratch, bool, l->graph->value_count *(size_t)(p->microbatches + 1) + 1);
    place_sources(&x);
    x.init = true;
    x.start = -count_init(l);
    rc = l->request->borrow ? 0 : expand_part(&x, CT_PART_INIT);
    p->init = x.item;
    p->init_count = x.count;
    x = (struct expansion){.l = l, .begun = x.begun, .buffer_room = x.buffer_room};
    if (rc == 0)
        rc = expand_part(&x, CT_PART_PRE);
    if (rc == 0)
        rc = expand_order(&x);
    if (rc == 0)
        rc = expand_part(&x, CT_PART_POST);
    p->step = x.item;
    p->step_count = x.count;
    keep_fetches(l);
    return rc;
}

static int check_buffers(const struct ct_lowering *l, size_t buffers)
{
    return (buffers | l->graph->value_count) >> (64 - CT_OFFSET_BITS)
               ? ct_fail(CT_ECONFIG, "a step of %zu values and %zu buffers: use fewer microbatches",
                         l->graph->value_count, buffers)
               : 0;
}

/* Before memory is spent on them: do locations have the bits for what values need at least? */
static int check_locations(const struct ct_lowering *l)
{
    size_t buffers = 0;

    for (size_t i = 0; i < l->graph->value_count; i++) {
        const struct ct_value *v = l->graph->values[i];

        if ((uint64_t)(uintptr_t)l->program->tensors[i].data >> CT_OFFSET_BITS)
            return ct_fail(CT_ECONFIG,
                           "%%%s begins more than 1 TiB behind its buffer's begin: use smaller "
                           "batches, or more ranks",
                           v->name);
        if (l->root[i] == i && v->first_use)
            buffers += per_microbatch(l, v) ? (size_t)l->program->microbatches : 1;
    }
    return check_buffers(l, buffers);
}

int ct_lower(const struct ct_lower_request *request, struct ct_program **program)
{
    struct ct_program *p = ct_arena_new(request->arena, struct ct_program);
    struct ct_lowering l = {
        .request = request, .graph = request->graph, .program = p, .arena = request->arena};
    size_t slots = request->graph->value_count * (size_t)(request->microbatches + 1);
    int rc;

    p->arena = request->arena;
    p->graph = request->graph;
    p->microbatches = request->microbatches;
    if (request->order)
        p->order = *request->order;
    else
        ct_order_default((struct ct_graph *)request->graph, request->microbatches, request->arena,
                         &p->order);
    rc = ct_lower_place(&l);
    if (rc == 0)
        rc = ct_lower_check_order(&l);
    if (rc == 0)
        rc = check_locations(&l);
    if (rc == 0) {
        p->buffer_of = ct_arena_array(request->arena, int32_t, slots + 1);
        memset(p->buffer_of, -1, sizeof(*p->buffer_of) * (slots + 1));
        rc = expand(&l);
    }
    if (rc == 0)
        rc = check_buffers(&l, p->buffer_count);
    if (rc == 0) {
        ct_lower_plan(p, &l.scratch);
        ct_lower_events(p, &l.scratch);
        ct_diagnostics()->lowered(p, request->device);
        *program = p;
    }
    ct_arena_finish(&l.scratch);
    return rc;
}
