/*
 * Lowering: sections times microbatches become one flat list of instructions.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/text.h>

#include "lower/lower.h"

/* Expand the sections of a part that are not in the order. */
static int expand_part(struct ct_expansion *x, enum ct_part part)
{
    int rc = 0;

    for (size_t n = 0; rc == 0 && n < x->l->op_count; n++) {
        const struct ct_section *s = x->l->op_at[n]->section;

        if (s->part == part && !x->l->listed[s->id] && !x->l->ops[n].soon)
            rc = ct_lower_emit(x, n, -1, -1);
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
static int emit_next(struct ct_expansion *x, struct cursor *c, int item, bool *done)
{
    int which = -1;

    for (int i = 0; i < 2; i++)
        if (c->of[i] && c->next[i] < c->of[i]->count &&
            (which < 0 || c->of[i]->at[c->next[i]] < c->of[which]->at[c->next[which]]))
            which = i;
    *done = which < 0;
    return *done ? 0 : ct_lower_emit(x, c->of[which]->at[c->next[which]++], item, c->microbatch);
}

/* Alternate two spans that run at the same time: compute hides communication. */
static int expand_item(struct ct_expansion *x, const struct ct_order_item *item, int index)
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
static void release(struct ct_expansion *x, const struct ct_span *span)
{
    struct ct_lowering *l = x->l;
    struct cursor c = cursor_at(l, span);

    for (int s = 0; s < 2; s++)
        for (size_t k = 0; c.of[s] && k < c.of[s]->count; k++) {
            const struct ct_op *op = l->op_at[c.of[s]->at[k]];

            for (int i = 0; i < op->outs; i++) {
                if (ct_lower_per_microbatch(l, op->out[i]))
                    *ct_lower_begun(x, op->out[i], span->microbatch) = false;
                l->program->buffer_of[ct_lower_slot(
                    l->program, l->graph->values[l->root[op->out[i]->id]], span->microbatch)] =
                    CT_NO_BUFFER;
            }
        }
}

/* An op that ends only when its peer arrives must not be waited for at once: its inputs keep their
   memory until the end of the next item that computes. */
static void keep_sent(struct ct_expansion *x, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        if (x->item[i].op->type->flags & CT_OP_RENDEZVOUS)
            ct_lower_keep_inputs(x, &x->item[i], (int32_t)x->count - 1);
}

/* Did a microbatch's instructions from `from` on compute anything? */
static bool computed(const struct ct_expansion *x, size_t from)
{
    for (size_t i = from; i < x->count; i++)
        if (x->item[i].microbatch >= 0 && !(x->item[i].op->type->flags & CT_OP_COLLECTIVE))
            return true;
    return false;
}

static int expand_order(struct ct_expansion *x)
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
static void place_sources(struct ct_expansion *x)
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
                int32_t index = ct_lower_buffer(x, v, m, -1);
                struct ct_buffer *b = &x->l->program->buffers[index];

                b->first = INT32_MIN;
                b->last = INT32_MAX;
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
            int32_t b =
                l->program->buffer_of[ct_lower_slot(l->program, l->graph->fetches[i].value, m)];

            if (b != CT_NO_BUFFER)
                l->program->buffers[b].last = INT32_MAX;
        }
}

static int32_t count_init(const struct ct_lowering *l)
{
    int32_t count = 0;

    for (size_t n = 0; n < l->op_count; n++)
        count += l->op_at[n]->section->part == CT_PART_INIT && !l->ops[n].in_place;
    return count;
}

/* By section id: at most as many instructions, and buffers, for one microbatch. */
struct most {
    size_t *instructions, *buffers;
};

static struct most most_by_section(struct ct_lowering *l)
{
    size_t sections = l->graph->section_count + 1;
    struct most most = {ct_arena_array(&l->scratch, size_t, sections),
                        ct_arena_array(&l->scratch, size_t, sections)};

    for (size_t n = 0; n < l->op_count; n++) {
        most.instructions[l->op_at[n]->section->id] += ct_lower_most_instructions(l, n);
        most.buffers[l->op_at[n]->section->id] += ct_lower_most_buffers(l, n);
    }
    return most;
}

/* Make room once: lists that grow leave their former selves in the arena. */
static int make_room(struct ct_expansion *x)
{
    struct ct_lowering *l = x->l;
    const struct ct_order *order = &l->program->order;
    struct most most = most_by_section(l);

    for (size_t i = 0; i < l->graph->section_count; i++)
        if (!l->listed[i]) {
            x->room += most.instructions[i];
            x->buffer_room += most.buffers[i];
        }
    for (size_t i = 0; i < order->count; i++)
        for (int k = 0; k < 4 && !order->item[i].release; k++) {
            const struct ct_order_item *item = &order->item[i];
            const struct ct_section *s = k < 2 ? item->run.section[k] : item->beside.section[k - 2];

            x->room += s ? most.instructions[s->id] : 0;
            x->buffer_room += s ? most.buffers[s->id] : 0;
        }
    for (size_t i = 0; i < l->graph->value_count; i++)
        if (!l->graph->values[i]->producer)
            x->buffer_room +=
                l->graph->values[i]->role == CT_ROLE_INPUT ? (size_t)l->program->microbatches : 1;
    if ((x->room | x->buffer_room) >> 31)
        return ct_fail(CT_ECONFIG, "a step of %zu instructions: use fewer microbatches", x->room);
    x->item = ct_arena_array(l->arena, struct ct_instruction, x->room + 1);
    l->program->buffers = ct_arena_array(l->arena, struct ct_buffer, x->buffer_room + 1);
    return 0;
}

static int expand(struct ct_lowering *l)
{
    struct ct_program *p = l->program;
    struct ct_expansion x = {.l = l};
    struct ct_instruction *list;
    int rc = make_room(&x);

    if (rc < 0)
        return rc;
    x.begun =
        ct_arena_array(&l->scratch, bool, l->graph->value_count *(size_t)(p->microbatches + 1) + 1);
    list = x.item;
    place_sources(&x);
    x.init = true;
    x.start = -count_init(l);
    rc = l->request->borrow ? 0 : expand_part(&x, CT_PART_INIT);
    p->init = list;
    p->init_count = x.count;
    x.item += x.count;
    x.room -= x.count;
    x.count = 0;
    x.start = 0;
    x.init = false;
    memset(x.last, 0, sizeof(x.last));
    if (rc == 0)
        rc = expand_part(&x, CT_PART_PRE);
    if (rc == 0)
        rc = expand_order(&x);
    if (rc == 0)
        rc = expand_part(&x, CT_PART_POST);
    p->step = x.item;
    p->step_count = x.count;
    l->unused = (x.room - x.count) * sizeof(*x.item) +
                (x.buffer_room - p->buffer_count) * sizeof(*p->buffers);
    keep_fetches(l);
    return rc;
}

/* Counts the memory that lowering has taken since `before`, without untouched room. */
static void count_bytes(struct ct_lowering *l, size_t before)
{
    struct ct_program_size *size = &l->program->size;

    size->before = before;
    size->program = ct_arena_taken(l->arena) - before - size->kernels - l->unused;
    size->lowering = ct_arena_taken(&l->scratch);
}

int ct_lower(const struct ct_lower_request *request, struct ct_program **program)
{
    size_t before = ct_arena_taken(request->arena);
    struct ct_program *p = ct_arena_new(request->arena, struct ct_program);
    struct ct_lowering l = {
        .request = request, .graph = request->graph, .program = p, .arena = request->arena};
    size_t slots = request->graph->value_count * (size_t)(request->microbatches + 1);
    int rc;

    p->arena = request->arena;
    p->graph = request->graph;
    p->microbatches = request->microbatches;
    p->repeatable = request->repeatable;
    if (request->order)
        p->order = *request->order;
    else
        ct_order_default((struct ct_graph *)request->graph, request->microbatches, request->arena,
                         &p->order);
    ct_lower_number_ops(&l);
    rc = ct_lower_check_order(&l);
    if (rc == 0) {
        ct_lower_find_soon(&l);
        rc = ct_lower_place(&l);
    }
    if (rc == 0) {
        p->buffer_of = ct_arena_array(request->arena, int32_t, slots + 1);
        memset(p->buffer_of, -1, sizeof(*p->buffer_of) * (slots + 1));
        ct_lower_count_terms(&l);
        rc = expand(&l);
    }
    if (rc == 0) {
        ct_lower_plan(p, &l.scratch);
        ct_lower_events(p, &l.scratch);
        count_bytes(&l, before);
        ct_kernel_report(p, request->device);
        *program = p;
    }
    ct_arena_finish(&l.scratch);
    return rc;
}
