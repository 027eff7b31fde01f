/*
 * The instructions of an op: its buffers, and how it adds to sums.
 *
 * A buffer is created when an instruction first writes it. A value that represents its sum over the
 * microbatches has one buffer for the step. The first term of a sum overwrites its buffer; the
 * others are added to it, in the kernel, or by an `add` after it if the kernel cannot.
 *
 * What is the same in all microbatches is shared: an op has one ct_lowered for each set of outputs
 * that it adds, usually one for the first term and one for the others.
 */
#include <math.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>

#include "lower/lower.h"

size_t ct_lower_slot(const struct ct_program *p, const struct ct_value *v, int microbatch)
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

bool ct_lower_per_microbatch(const struct ct_lowering *l, const struct ct_value *v)
{
    if (v->role == CT_ROLE_INPUT)
        return true;
    return v->producer && ct_part_is_microbatch(v->producer->section->part) && !l->summed[v->id];
}

static int32_t buffer_new(struct ct_expansion *x, struct ct_buffer buffer)
{
    struct ct_program *p = x->l->program;

    p->buffers = ct_arena_grow(x->l->arena, p->buffers, &x->buffer_room, p->buffer_count + 1,
                               sizeof(*p->buffers));
    p->buffers[p->buffer_count] = buffer;
    return (int32_t)p->buffer_count++;
}

int32_t ct_lower_buffer(struct ct_expansion *x, const struct ct_value *v, int microbatch,
                        int32_t at)
{
    struct ct_lowering *l = x->l;
    const struct ct_value *root = l->graph->values[l->root[v->id]];
    int m = ct_lower_per_microbatch(l, root) ? microbatch : -1;
    int32_t *b = &l->program->buffer_of[ct_lower_slot(l->program, root, m)];

    if (*b == CT_NO_BUFFER)
        *b = buffer_new(x, (struct ct_buffer){.value = root,
                                              .microbatch = m,
                                              .category = (uint8_t)category(l, root),
                                              .space = (uint8_t)root->space,
                                              .bytes = l->bytes[root->id],
                                              .first = at,
                                              .last = at});
    if (l->program->buffers[*b].last < at)
        l->program->buffers[*b].last = at;
    l->program->buffer_of[ct_lower_slot(l->program, v, m)] = *b;
    return *b;
}

/* The number of the last instruction appended. */
static int32_t now(const struct ct_expansion *x)
{
    return x->start + (int32_t)x->count - 1;
}

/* Append an instruction without operands. */
static struct ct_instruction *append(struct ct_expansion *x, const struct ct_lowered *lowered,
                                     int item, int microbatch)
{
    const struct ct_op *op = lowered->launch.op;

    x->item = ct_arena_grow(x->l->arena, x->item, &x->room, x->count + 1, sizeof(*x->item));
    x->item[x->count] = (struct ct_instruction){.op = op,
                                                .lowered = lowered,
                                                .item = item,
                                                .microbatch = microbatch,
                                                .signal = -1,
                                                .stream = (int16_t)op->stream};
    return &x->item[x->count++];
}

static int32_t workspace(struct ct_expansion *x, const struct ct_instruction *i)
{
    struct ct_buffer buffer = {.microbatch = i->microbatch,
                               .category = CT_CATEGORY_WORKSPACE,
                               .bytes = i->lowered->workspace,
                               .first = now(x),
                               .last = now(x)};

    return buffer.bytes ? buffer_new(x, buffer) : CT_NO_BUFFER;
}

static int32_t *operands(struct ct_expansion *x, const struct ct_lowered *lowered)
{
    return ct_arena_array(x->l->arena, int32_t, lowered->launch.ins + lowered->launch.outs + 1);
}

static void set_buffers(struct ct_expansion *x, struct ct_instruction *i)
{
    const struct ct_op *op = i->op;
    int32_t *b = operands(x, i->lowered);

    for (int k = 0; k < op->ins; k++)
        b[k] = op->in[k] ? ct_lower_buffer(x, op->in[k], i->microbatch, now(x)) : CT_NO_BUFFER;
    for (int k = 0; k < op->outs; k++)
        b[op->ins + k] = ct_lower_buffer(x, op->out[k], i->microbatch, now(x));
    b[op->ins + op->outs] = workspace(x, i);
    i->buffers = b;
}

/* A buffer is not reused until `last`. */
static void keep(struct ct_expansion *x, int32_t buffer, int32_t last)
{
    struct ct_buffer *b = buffer == CT_NO_BUFFER ? NULL : &x->l->program->buffers[buffer];

    if (b && b->last < last)
        b->last = last;
}

void ct_lower_keep_inputs(struct ct_expansion *x, const struct ct_instruction *i, int32_t last)
{
    for (int k = 0; k < i->op->ins; k++)
        keep(x, i->buffers[k], last);
}

static void keep_beside(struct ct_expansion *x, const struct ct_instruction *i)
{
    size_t *last = &x->last[i->stream];
    const struct ct_instruction *before = *last ? &x->item[*last - 1] : NULL;

    if (!(ct_stream_properties(i->stream) & CT_STREAM_KEEPS) || i->microbatch < 0)
        return;
    if (before && before->item == i->item) {
        keep(x, before->buffers[before->op->ins + before->op->outs], now(x));
        ct_lower_keep_inputs(x, before, now(x));
    }
    *last = x->count;
}

/* ---- sums ---- */

static void enter(struct ct_expansion *x, struct ct_lowered *lowered)
{
    struct ct_program *p = x->l->program;

    p->lowered = ct_arena_grow(x->l->arena, p->lowered, &x->lowered_room, p->lowered_count + 1,
                               sizeof(struct ct_lowered *));
    lowered->id = (int32_t)p->lowered_count;
    p->lowered[p->lowered_count++] = lowered;
}

/* A kernel that cannot accumulate writes its terms to dense buffers of their own. */
static void set_apart(struct ct_lowering *l, struct ct_lowered_form *form)
{
    struct ct_launch *launch = &form->lowered.launch;
    size_t operands = (size_t)(launch->ins + launch->outs);
    struct ct_tensor *out =
        ct_arena_copy(l->arena, launch->out, sizeof(*out) * (size_t)launch->outs);
    size_t *offset = ct_arena_copy(l->arena, form->lowered.offsets, sizeof(*offset) * operands);

    for (int k = 0; k < launch->outs && k < 32; k++)
        if (form->apart >> k & 1) {
            out[k] = ct_tensor_dense(NULL, out[k].dtype, out[k].ndim, out[k].shape);
            offset[launch->ins + k] = 0;
        }
    launch->out = out;
    form->lowered.offsets = offset;
}

/* The op as it runs where it adds these outputs to their sums. */
static const struct ct_lowered_form *form_of(struct ct_expansion *x, struct ct_lowered_op *of,
                                             uint32_t add)
{
    struct ct_lowered_form *form = of->forms;
    bool accumulates = of->lowered.kernel->flags & CT_KERNEL_ACCUMULATES;

    while (form && form->add != add)
        form = form->next;
    if (form)
        return form;
    form = ct_arena_new(x->l->arena, struct ct_lowered_form);
    *form = (struct ct_lowered_form){
        .lowered = of->lowered, .add = add, .apart = accumulates ? 0 : add, .next = of->forms};
    form->lowered.launch.accumulate = accumulates ? add : 0;
    if (form->apart)
        set_apart(x->l, form);
    enter(x, &form->lowered);
    return of->forms = form;
}

/* The op that adds a term to an output's sum, without its kernel. */
static struct ct_op *sum_op(struct ct_lowering *l, const struct ct_op *made, int out)
{
    struct ct_op *op = ct_arena_new(l->arena, struct ct_op);

    *op = (struct ct_op){.type = &ct_op_add,
                         .region = made->region,
                         .section = made->section,
                         .stream = made->stream,
                         .ins = 2,
                         .outs = 1,
                         .why = "adds to a sum",
                         .out = &made->out[out]};
    op->in = ct_arena_array(l->arena, struct ct_value *, 2);
    op->in[0] = op->in[1] = made->out[out];
    return op;
}

/* Find the kernel that adds to an output's sum what the op has made apart. */
static int prepare_sum(struct ct_expansion *x, struct ct_lowered_op *of, int out)
{
    struct ct_lowering *l = x->l;
    const struct ct_op *made = of->lowered.launch.op;
    struct ct_value *v = made->out[out];
    struct ct_tensor sum = l->program->tensors[v->id];
    struct ct_tensor *t = ct_arena_array(l->arena, struct ct_tensor, 3); /* sum, term, sum */
    struct ct_lowered *lowered = ct_arena_new(l->arena, struct ct_lowered);
    struct ct_location at = ct_lower_location(l, v);
    const size_t offsets[3] = {at.offset, 0, at.offset};
    struct ct_prepare p = {.op = sum_op(l, made, out),
                           .in = t,
                           .out = t + 2,
                           .locations = (struct ct_location[]){at, {CT_ANYWHERE, 0}, at},
                           .ins = 2,
                           .outs = 1,
                           .present = (const bool[]){true, true},
                           .device = l->request->device,
                           .arena = l->arena};
    int rc;

    t[0] = t[2] = sum;
    t[1] = ct_tensor_dense(NULL, sum.dtype, sum.ndim, sum.shape);
    lowered->kernel = ct_lower_kernel(l, &p);
    if (!lowered->kernel)
        return ct_fail(CT_ENOENT, "device %s has no kernel to add %%%s to a sum",
                       l->request->device->name, v->name);
    rc = ct_lower_prepare(l, lowered->kernel, &p);
    if (rc < 0)
        return ct_context(rc, "preparing the sum of %%%s", v->name);
    lowered->workspace = p.workspace;
    lowered->offsets = ct_arena_copy(l->arena, offsets, sizeof(offsets));
    lowered->launch = (struct ct_launch){
        .op = p.op, .in = t, .out = t + 2, .ins = 2, .outs = 1, .state = p.state};
    enter(x, lowered);
    of->sums[out] = lowered;
    return 0;
}

/* Let the instruction at `at` write an output to a fresh buffer, and add that to the sum. */
static int add_behind(struct ct_expansion *x, struct ct_lowered_op *of, size_t at, int out)
{
    const struct ct_instruction *made = &x->item[at];
    int32_t *written = (int32_t *)&made->buffers[made->op->ins + out], *b;
    const struct ct_value *v = made->op->out[out];
    struct ct_instruction *sum;
    int rc = 0;

    if (!of->sums)
        of->sums = ct_arena_array(x->l->arena, struct ct_lowered *, made->op->outs);
    if (!of->sums[out])
        rc = prepare_sum(x, of, out);
    if (rc < 0)
        return rc;
    b = operands(x, of->sums[out]);
    b[0] = b[2] = *written;
    *written = b[1] = buffer_new(x, (struct ct_buffer){.value = v,
                                                       .microbatch = made->microbatch,
                                                       .category = CT_CATEGORY_ACTIVATION,
                                                       .bytes = x->l->bytes[v->id],
                                                       .first = (int32_t)at,
                                                       .last = (int32_t)x->count});
    sum = append(x, of->sums[out], made->item, made->microbatch);
    b[3] = workspace(x, sum);
    sum->buffers = b;
    keep(x, b[0], now(x));
    return 0;
}

bool *ct_lower_begun(struct ct_expansion *x, const struct ct_value *v, int microbatch)
{
    const struct ct_value *sum = x->l->graph->values[x->l->sum[v->id]];

    return &x->begun[ct_lower_slot(x->l->program, sum,
                                   ct_lower_per_microbatch(x->l, v) ? microbatch : -1)];
}

/* The outputs of op that are added to what is there. */
static uint32_t begin_terms(struct ct_expansion *x, const struct ct_op *op, int microbatch)
{
    uint32_t add = 0;

    for (int k = 0; k < op->outs; k++) {
        bool *there = ct_lower_begun(x, op->out[k], microbatch);

        add |= *there && k < 32 ? 1u << k : 0;
        *there = true;
    }
    return add;
}

/* ---- an op ---- */

/* Add an instruction's costs to the step's totals. */
static void count(struct ct_lowering *l, const struct ct_op *op, const struct ct_lowered_op *of)
{
    struct ct_program *p = l->program;

    p->flops += of->flops;
    p->comm_bytes += of->lowered.sent;
    if (op->type->flags & CT_OP_SPACES && op->in[0]->space == CT_SPACE_HOST && op->outs)
        p->loaded_bytes += (double)ct_value_bytes(l->graph, op->out[0], l->request->rank);
    else if (op->type->flags & CT_OP_SPACES)
        p->stored_bytes += (double)ct_value_bytes(l->graph, op->in[0], l->request->rank);
}

/* Check that every value that op takes has been computed. */
static int check_made(const struct ct_expansion *x, const struct ct_op *op, int microbatch)
{
    const struct ct_lowering *l = x->l;

    for (int k = 0; k < op->ins; k++) {
        const struct ct_value *root = op->in[k] ? l->graph->values[l->root[op->in[k]->id]] : NULL;
        int m = root && ct_lower_per_microbatch(l, root) ? microbatch : -1;

        if (root && root->producer &&
            l->program->buffer_of[ct_lower_slot(l->program, root, m)] == CT_NO_BUFFER)
            return ct_fail(CT_EINVAL, "%s in section %s takes %%%s, which nothing before it makes",
                           op->type->name, op->section->name, op->in[k]->name);
    }
    return 0;
}

static int emit_op(struct ct_expansion *x, size_t n, int item, int microbatch)
{
    const struct ct_op *op = x->l->op_at[n];
    struct ct_lowered_op *of = &x->l->ops[n];
    const struct ct_lowered_form *form;
    struct ct_instruction *i;
    size_t at = x->count;
    int rc = check_made(x, op, microbatch);

    if (rc < 0)
        return rc;
    if (of->in_place) {
        ct_lower_buffer(x, op->out[0], microbatch, -1); /* already there, and unchanged */
        return 0;
    }
    form = form_of(x, of, of->accumulate & begin_terms(x, op, microbatch));
    i = append(x, &form->lowered, item, microbatch);
    set_buffers(x, i);
    keep_beside(x, i);
    if (!x->init)
        count(x->l, op, of);
    for (int k = 0; rc == 0 && k < op->outs && k < 32; k++)
        if (form->apart >> k & 1)
            rc = add_behind(x, of, at, k);
    return rc;
}

int ct_lower_emit(struct ct_expansion *x, size_t n, int item, int microbatch)
{
    int rc = emit_op(x, n, item, microbatch);

    return rc == 0 ? ct_lower_emit_soon(x, n, item) : rc;
}

/* The number of outputs that other instructions may add. */
static size_t most_apart(const struct ct_lowered_op *of)
{
    bool accumulates = of->in_place || of->lowered.kernel->flags & CT_KERNEL_ACCUMULATES;

    return accumulates ? 0 : (size_t)__builtin_popcount(of->accumulate);
}

size_t ct_lower_most_instructions(const struct ct_lowering *l, size_t n)
{
    return l->ops[n].in_place ? 0 : 1 + most_apart(&l->ops[n]);
}

double ct_program_estimate(const struct ct_graph *graph, int64_t microbatches)
{
    double calls = 0, operands = 0, buffers = 0, values = (double)graph->value_count;
    double times = (double)microbatches;

    ct_for_each_op (op, graph) {
        double runs = ct_part_is_microbatch(op->section->part) ? times : 1;

        calls += runs;
        operands += runs * (op->ins + op->outs + 1);
        buffers += runs * (op->outs + 1);
    }
    if (fmax(calls, buffers) > INT32_MAX)
        return INFINITY;
    return calls * sizeof(struct ct_instruction) + operands * sizeof(int32_t) +
           buffers * (sizeof(struct ct_buffer) + sizeof(uintptr_t)) +
           values * (times + 1) * (sizeof(int32_t) + sizeof(bool));
}

size_t ct_lower_most_buffers(const struct ct_lowering *l, size_t n)
{
    return (size_t)l->op_at[n]->outs + 1 + 2 * most_apart(&l->ops[n]);
}
