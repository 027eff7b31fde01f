/*
 * The graph verifier: reports every fault, in one walk over the ops.
 */
#include <string.h>

#include <ctitan/app/verify.h>
#include <ctitan/device/device.h>
#include <ctitan/error.h>

#include "ir/faults.h"

struct check {
    const struct ct_graph *graph;
    struct ct_faults faults;
    bool *defined;  /* by value id */
    bool *summed;   /* by value id: post or a fetch takes its sum over the microbatches */
    uint32_t *used; /* by value id: inputs of ops that use it */
    struct ct_arena scratch;
    struct ct_value *copies, **out; /* for check_infer; `room` outputs */
    int room;
};

static const char *label(const struct ct_op *op)
{
    return op->outs ? op->out[0]->name : op->ins && op->in[0] ? op->in[0]->name : "?";
}

static bool known(const struct check *c, const struct ct_value *v)
{
    return v->id < c->graph->value_count && c->graph->values[v->id] == v;
}

/* May an op of part `to` use the result of an op of part `from`? Only later parts may (init leaves
   parameters and states). A W result never feeds I, as W may run after all of I. */
static bool may_use(enum ct_part from, enum ct_part to)
{
    return from == CT_PART_INIT ? to == from : from <= to;
}

static bool made_in_microbatch(const struct check *c, const struct ct_value *v)
{
    return v && known(c, v) && v->producer && ct_part_is_microbatch(v->producer->section->part);
}

static bool is_view_of_sum(const struct check *c, const struct ct_op *op)
{
    return op->type->flags & CT_OP_VIEW && c->summed[op->out[0]->id];
}

static void find_sums(struct check *c)
{
    for (size_t i = 0; i < c->graph->fetch_count; i++)
        if (made_in_microbatch(c, c->graph->fetches[i].value))
            c->summed[c->graph->fetches[i].value->id] = true;
    for (const struct ct_op *op = c->graph->last; op; op = op->prev)
        for (int i = 0; i < op->ins; i++)
            if (made_in_microbatch(c, op->in[i]) &&
                (op->section->part == CT_PART_POST || is_view_of_sum(c, op)))
                c->summed[op->in[i]->id] = true;
}

/* Only parameters, states, and their copies on the device may be updated. */
static bool may_update(const struct ct_value *v)
{
    return v->role == CT_ROLE_PARAM || v->role == CT_ROLE_STATE ||
           (v->producer && v->producer->type->flags & CT_OP_SPACES && v->space == CT_SPACE_DEVICE);
}

static void check_input(struct check *c, const struct ct_op *op, int i)
{
    const struct ct_value *v = op->in[i];

    if (!v)
        return;
    if (!known(c, v)) {
        ct_fault(&c->faults, "%s(%s): input %d, %%%s, is not a value of this graph", op->type->name,
                 label(op), i, v->name);
        return;
    }
    if (v->producer && !c->defined[v->id])
        ct_fault(&c->faults, "%s(%s): %%%s is used before it is defined", op->type->name, label(op),
                 v->name);
    if (v->producer && !may_use(v->producer->section->part, op->section->part))
        ct_fault(&c->faults, "%s(%s): part %s cannot use %%%s of part %s", op->type->name,
                 label(op), ct_part_name(op->section->part), v->name,
                 ct_part_name(v->producer->section->part));
    if (v->role == CT_ROLE_INPUT && !ct_part_is_microbatch(op->section->part))
        ct_fault(&c->faults, "%s(%s): part %s cannot use %%%s, an input of each microbatch",
                 op->type->name, label(op), ct_part_name(op->section->part), v->name);
    if (c->summed[v->id] && ct_part_is_microbatch(op->section->part) && !is_view_of_sum(c, op))
        ct_fault(&c->faults,
                 "%s(%s): uses %%%s of one microbatch, but post or a fetch takes its sum over all",
                 op->type->name, label(op), v->name);
    if (v->space != CT_SPACE_DEVICE && !(op->type->flags & CT_OP_SPACES))
        ct_fault(&c->faults, "%s(%s): %%%s lies in host memory: copy it to the device first",
                 op->type->name, label(op), v->name);
    if (ct_op_mutates(op, i) && !may_update(v))
        ct_fault(&c->faults, "%s(%s): updates %%%s, which is neither a parameter nor a state",
                 op->type->name, label(op), v->name);
    if (ct_op_mutates(op, i) && op->section->part != CT_PART_INIT &&
        op->section->part != CT_PART_POST &&
        (op->section->part != CT_PART_F || v->role != CT_ROLE_STATE))
        ct_fault(&c->faults, "%s(%s): updates %%%s in part %s", op->type->name, label(op), v->name,
                 ct_part_name(op->section->part));
}

/* The checks for every value. */
static void check_value(struct check *c, const char *where, const struct ct_value *v)
{
    if (ct_sharding_check(&v->sharding, &c->graph->mesh, v->ndim) < 0)
        ct_fault(&c->faults, "%s%%%s: %s", where, v->name, ct_error_message());
    if (ct_shape_count(v->ndim, v->shape) >= INT64_MAX / 8)
        ct_fault(&c->faults, "%s%%%s has more elements than can be counted", where, v->name);
}

static void check_output(struct check *c, const struct ct_op *op, int i)
{
    const struct ct_value *v = op->out[i];
    char where[64];

    if (!known(c, v)) {
        ct_fault(&c->faults, "%s: output %%%s is not a value of this graph", op->type->name,
                 v->name);
        return;
    }
    if (c->defined[v->id])
        ct_fault(&c->faults, "%s: %%%s is defined twice", op->type->name, v->name);
    c->defined[v->id] = true;
    if (v->producer != op)
        ct_fault(&c->faults, "%s: %%%s does not name this op as its producer", op->type->name,
                 v->name);
    snprintf(where, sizeof(where), "%s: ", op->type->name);
    check_value(c, where, v);
}

/* Run infer on a copy of the outputs and compare. */
static void check_infer(struct check *c, const struct ct_op *op)
{
    struct ct_value *copies, **out;
    struct ct_op trial = *op;

    if (op->outs > c->room) {
        c->room = 2 * op->outs;
        c->copies = ct_arena_array(&c->scratch, struct ct_value, c->room);
        c->out = ct_arena_array(&c->scratch, struct ct_value *, c->room);
    }
    copies = c->copies;
    out = c->out;
    for (int i = 0; i < op->outs; i++) {
        copies[i] = *op->out[i];
        out[i] = &copies[i];
    }
    trial.out = out;
    if (ct_op_infer(&trial) < 0) {
        ct_fault(&c->faults, "%s", ct_error_message());
        return;
    }
    for (int i = 0; i < op->outs; i++) {
        const struct ct_value *is = op->out[i], *should = out[i];

        if (is->dtype != should->dtype)
            ct_fault(&c->faults, "%s: %%%s is %s, its inputs make it %s", op->type->name, is->name,
                     ct_dtype_name(is->dtype), ct_dtype_name(should->dtype));
        if (is->ndim != should->ndim ||
            memcmp(is->shape, should->shape, sizeof(*is->shape) * (size_t)is->ndim))
            ct_fault(&c->faults, "%s: the shape of %%%s is not what its inputs make it",
                     op->type->name, is->name);
    }
}

static void check_gradient(struct check *c, const struct ct_value *v)
{
    const struct ct_value *g = v->grad;

    if (!known(c, g) || (g->producer && !c->defined[g->id]))
        ct_fault(&c->faults, "%%%s: its gradient, %%%s, is not made by any op", v->name, g->name);
    else if (g->ndim != v->ndim || memcmp(g->shape, v->shape, sizeof(*g->shape) * (size_t)g->ndim))
        ct_fault(&c->faults, "%%%s: its gradient, %%%s, has another shape", v->name, g->name);
}

static void check_source(struct check *c, const struct ct_value *v)
{
    if (v->role == CT_ROLE_TEMP)
        ct_fault(&c->faults, "%%%s has no producer and no role", v->name);
    check_value(c, "", v);
    for (int i = 0; i < v->ndim; i++)
        if (v->shape[i] <= 0)
            ct_fault(&c->faults, "%%%s: dimension %d is %lld", v->name, i, (long long)v->shape[i]);
}

static void count_uses(struct check *c)
{
    ct_for_each_op (op, c->graph)
        for (int i = 0; i < op->ins; i++)
            if (op->in[i] && known(c, op->in[i]))
                c->used[op->in[i]->id]++;
    for (size_t i = 0; i < c->graph->fetch_count; i++)
        if (known(c, c->graph->fetches[i].value))
            c->used[c->graph->fetches[i].value->id]++;
}

/* The list of uses that edits maintain must match the ops. */
static void check_uses(struct check *c, const struct ct_value *v)
{
    const struct ct_use *last = NULL;
    uint32_t count = 0;
    bool right = true;

    for (const struct ct_use *use = v->first_use; right && use; last = use, use = use->next) {
        right = use->op->in_graph && use->index < use->op->ins && use->op->in[use->index] == v &&
                use->prev == last;
        count++;
    }
    if (!right || last != v->last_use || count != v->use_count ||
        count + v->fetch_count != c->used[v->id])
        ct_fault(&c->faults, "%%%s: its list of uses is not what uses it", v->name);
}

static void check_chunks(struct check *c)
{
    const struct ct_graph *g = c->graph;

    for (int i = 0; i < g->chunks; i++) {
        bool twice = false;

        for (int k = 0; k < i; k++)
            twice |= g->chunk_order[k] == g->chunk_order[i];
        if (g->chunk_order[i] < 0 || g->chunk_order[i] >= g->chunks || twice)
            ct_fault(&c->faults, "the order of the sequence's %d chunks has %d %s", g->chunks,
                     g->chunk_order[i], twice ? "twice" : "in it");
    }
}

static void check_place(struct check *c, const struct ct_op *op)
{
    const struct ct_graph *g = c->graph;

    if (!op->section || op->section->id >= g->section_count ||
        g->sections[op->section->id] != op->section)
        ct_fault(&c->faults, "%s(%s): its section is not of this graph", op->type->name, label(op));
    else if (op->section->part == CT_PART_INIT && op->prev &&
             op->prev->section->part != CT_PART_INIT)
        ct_fault(&c->faults, "%s(%s): init ops come in front of all others", op->type->name,
                 label(op));
    if (!ct_stream_name(op->stream))
        ct_fault(&c->faults, "%s(%s): there is no stream %d", op->type->name, label(op),
                 op->stream);
}

int ct_graph_verify(const struct ct_graph *graph, FILE *report)
{
    struct check c = {.graph = graph, .faults = {.report = report}};

    c.defined = ct_arena_array(&c.scratch, bool, graph->value_count + 1);
    c.summed = ct_arena_array(&c.scratch, bool, graph->value_count + 1);
    c.used = ct_arena_array(&c.scratch, uint32_t, graph->value_count + 1);
    find_sums(&c);
    count_uses(&c);
    check_chunks(&c);
    for (size_t i = 0; i < graph->value_count; i++)
        if (!graph->values[i]->producer)
            check_source(&c, graph->values[i]);
    ct_for_each_op (op, graph) {
        for (int i = 0; i < op->ins; i++)
            check_input(&c, op, i);
        for (int i = 0; i < op->outs; i++)
            check_output(&c, op, i);
        check_infer(&c, op);
        check_place(&c, op);
    }
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->grad)
            check_gradient(&c, graph->values[i]);
    for (size_t i = 0; i < graph->fetch_count; i++) {
        const struct ct_value *v = graph->fetches[i].value;

        if (!known(&c, v) || (v->producer && !c.defined[v->id]))
            ct_fault(&c.faults, "fetch %s: %%%s is not made by any op", graph->fetches[i].name,
                     v->name);
    }
    for (size_t i = 0; i < graph->value_count; i++)
        check_uses(&c, graph->values[i]);
    ct_arena_finish(&c.scratch);
    return ct_faults_end(&c.faults);
}
