/*
 * Executors: a program bound to memory, and the loop that walks it.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/program.h>

struct ct_executor {
    const struct ct_program *program;
    struct ct_device *device;
    struct ct_arena arena;
    char *base, *offloaded;        /* of this program's offsets, but for borrowed values */
    size_t bytes, offloaded_bytes; /* reserved; 0: borrowed from owner */
    bool lent;                     /* the memory is somebody else's */
    struct ct_executor *owner;
    struct ct_instruction *init, *step; /* with addresses */
};

static const struct ct_buffer *buffer(const struct ct_executor *e, const struct ct_value *v,
                                      int microbatch)
{
    const struct ct_program *p = e->program;
    int32_t b =
        p->buffer_of[(size_t)v->id * (size_t)(p->microbatches + 1) + (size_t)(microbatch + 1)];

    return b < 0 ? NULL : &p->buffers[b];
}

static char *address(const struct ct_executor *e, size_t offset)
{
    return offset < CT_OFFLOADED ? e->base + offset : e->offloaded + (offset - CT_OFFLOADED);
}

/* Where the owner has the parameter or state that v is, or views. */
static void *lender(const struct ct_executor *e, const struct ct_value *v)
{
    while (v->producer)
        v = v->producer->in[0];
    return ct_executor_tensor(e->owner, ct_graph_find(e->owner->program->graph, v->name), -1).data;
}

struct ct_tensor ct_executor_tensor(struct ct_executor *e, const struct ct_value *v, int microbatch)
{
    struct ct_tensor t = e->program->tensors[v->id];
    const struct ct_buffer *b = buffer(e, v, microbatch);

    if (ct_program_borrows(e->program, v))
        t.data = lender(e, v);
    else
        t.data = b ? address(e, b->offset + (size_t)(uintptr_t)t.data) : NULL;
    return t;
}

static struct ct_tensor *bind_tensors(struct ct_executor *e, const struct ct_tensor *t, int count,
                                      struct ct_value *const *values)
{
    struct ct_tensor *bound = ct_arena_copy(&e->arena, t, sizeof(*t) * (size_t)count);

    for (int i = 0; i < count; i++) {
        if (bound[i].rank < 0)
            bound[i].rank = 0;
        else if (ct_program_borrows(e->program, values[i]))
            bound[i] = ct_executor_tensor(e, values[i], -1);
        else
            bound[i].data = address(e, (uintptr_t)bound[i].data);
    }
    return bound;
}

static struct ct_instruction *bind(struct ct_executor *e, const struct ct_instruction *list,
                                   size_t count)
{
    struct ct_instruction *bound = ct_arena_copy(&e->arena, list, sizeof(*list) * count);

    for (size_t i = 0; i < count; i++) {
        struct ct_launch *l = &bound[i].launch;

        l->in = bind_tensors(e, l->in, l->ins, bound[i].op->in);
        l->out = bind_tensors(e, l->out, l->outs, bound[i].op->out);
        l->workspace = bound[i].workspace == SIZE_MAX ? NULL : e->base + bound[i].workspace;
        l->device = e->device;
    }
    return bound;
}

static void bind_all(struct ct_executor *e)
{
    e->init = bind(e, e->program->init, e->program->init_count);
    e->step = bind(e, e->program->step, e->program->step_count);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static int reserve_offloaded(struct ct_executor *e)
{
    const struct ct_device_ops *ops = e->device->ops;
    void *base;
    int rc;

    if (!e->offloaded_bytes)
        return 0;
    if (!ops->reserve_offloaded)
        return ct_fail(CT_ECONFIG, "device %s has no second memory to offload to", e->device->name);
    rc = ops->reserve_offloaded(e->device, e->offloaded_bytes, &base);
    if (rc < 0)
        return ct_context(rc, "reserving %zu bytes for what is offloaded", e->offloaded_bytes);
    e->offloaded = base;
    return 0;
}

static int reserve(struct ct_executor *e, const struct ct_executor_memory *extra)
{
    void *base = extra ? extra->base : NULL;
    int rc;

    e->bytes = larger(e->program->memory.bytes, extra ? extra->bytes : 0);
    e->offloaded_bytes = larger(e->program->offloaded.bytes, extra ? extra->offloaded : 0);
    e->lent = base != NULL;
    if (!base) {
        rc = e->device->ops->reserve(e->device, e->bytes, &base);
        if (rc < 0)
            return ct_context(rc, "reserving %zu bytes on %s", e->bytes, e->device->name);
    }
    e->base = base;
    return reserve_offloaded(e);
}

int ct_executor_create(const struct ct_program *program, struct ct_device *device,
                       const struct ct_executor_memory *extra, struct ct_executor **executor)
{
    struct ct_executor *e = calloc(1, sizeof(*e));
    int rc;

    if (!e)
        return ct_fail(CT_ENOMEM, "an executor");
    e->program = program;
    e->device = device;
    rc = reserve(e, extra);
    if (rc < 0) {
        ct_executor_destroy(e);
        return rc;
    }
    bind_all(e);
    *executor = e;
    return 0;
}

/* Every borrowed value must be there, in the same local shape. */
static int check_lenders(const struct ct_program *program, const struct ct_executor *owner)
{
    const struct ct_graph *g = program->graph;

    for (size_t i = 0; i < g->value_count; i++) {
        const struct ct_value *v = g->values[i], *lent;
        const struct ct_tensor *mine = &program->tensors[i], *other;

        if (v->role != CT_ROLE_PARAM && v->role != CT_ROLE_STATE)
            continue;
        lent = ct_graph_find(owner->program->graph, v->name);
        if (!lent)
            return ct_fail(CT_EINVAL, "%%%s is not there to borrow", v->name);
        other = &owner->program->tensors[lent->id];
        if (mine->dtype != other->dtype || mine->rank != other->rank ||
            memcmp(mine->shape, other->shape, sizeof(*mine->shape) * (size_t)mine->rank))
            return ct_fail(CT_EINVAL, "%%%s cannot be borrowed: its shapes differ", v->name);
    }
    return 0;
}

int ct_executor_create_borrowing(const struct ct_program *program, struct ct_executor *owner,
                                 struct ct_executor **executor)
{
    struct ct_executor *e;
    int rc = check_lenders(program, owner);

    if (rc < 0)
        return rc;
    if (owner->program->memory.persistent + program->memory.bytes > owner->bytes ||
        owner->program->offloaded.persistent + program->offloaded.bytes > owner->offloaded_bytes)
        return ct_fail(CT_EINVAL, "the arena has no room for a second program of %zu bytes",
                       program->memory.bytes);
    e = calloc(1, sizeof(*e));
    if (!e)
        return ct_fail(CT_ENOMEM, "an executor");
    e->program = program;
    e->device = owner->device;
    e->owner = owner;
    e->base = owner->base + owner->program->memory.persistent;
    e->offloaded = owner->offloaded + owner->program->offloaded.persistent;
    bind_all(e);
    *executor = e;
    return 0;
}

void ct_executor_destroy(struct ct_executor *e)
{
    if (!e)
        return;
    if (!e->owner && !e->lent && e->base)
        e->device->ops->release(e->device, e->base, e->bytes);
    if (!e->owner && e->offloaded)
        e->device->ops->release_offloaded(e->device, e->offloaded, e->offloaded_bytes);
    ct_arena_finish(&e->arena);
    free(e);
}

static int fire(enum ct_event event, const struct ct_instruction *i)
{
    struct ct_event_data data = {.event = event, .instruction = i};

    return ct_hook_fire(&data);
}

static int launch(struct ct_executor *e, const struct ct_instruction *i)
{
    const struct ct_device_ops *ops = e->device->ops;
    int rc = 0;

    for (const int32_t *w = i->waits; rc == 0 && w && *w >= 0; w++)
        rc = ops->wait(e->device, i->stream, *w);
    if (rc == 0)
        rc = ops->enqueue(e->device, i->stream, i->kernel, &i->launch);
    if (rc == 0 && i->signal >= 0)
        rc = ops->record(e->device, i->stream, i->signal);
    return rc;
}

static int walk(struct ct_executor *e, const struct ct_instruction *list, size_t count)
{
    bool ops = ct_hook_wanted(CT_EVENT_OP_BEGIN) || ct_hook_wanted(CT_EVENT_OP_END);
    bool actions = ct_hook_wanted(CT_EVENT_ACTION_BEGIN) || ct_hook_wanted(CT_EVENT_ACTION_END);
    int rc = 0, action = -1;

    for (size_t n = 0; rc == 0 && n < count; n++) {
        const struct ct_instruction *i = &list[n];

        if (actions && i->action != action) {
            rc = action >= 0 ? fire(CT_EVENT_ACTION_END, &list[n - 1]) : 0;
            action = i->action;
            if (rc == 0 && action >= 0)
                rc = fire(CT_EVENT_ACTION_BEGIN, i);
        }
        if (rc == 0 && ops)
            rc = fire(CT_EVENT_OP_BEGIN, i);
        if (rc == 0 && i->op->type->flags & CT_OP_COLLECTIVE &&
            ct_hook_wanted(CT_EVENT_COLLECTIVE_ENQUEUED))
            rc = fire(CT_EVENT_COLLECTIVE_ENQUEUED, i);
        if (rc == 0)
            rc = launch(e, i);
        if (rc < 0)
            return ct_context(rc, "%s of %%%s", i->op->type->name,
                              i->op->outs ? i->op->out[0]->name : i->op->in[0]->name);
        if (ops)
            rc = fire(CT_EVENT_OP_END, i);
    }
    if (rc == 0 && actions && action >= 0)
        rc = fire(CT_EVENT_ACTION_END, &list[count - 1]);
    return rc;
}

static int finish(struct ct_executor *e, int rc)
{
    int end = e->device->ops->synchronize(e->device);

    return rc < 0 ? rc : end;
}

int ct_executor_init(struct ct_executor *e)
{
    return finish(e, walk(e, e->init, e->program->init_count));
}

int ct_executor_step(struct ct_executor *e)
{
    int rc = e->device->ops->events(e->device, e->program->events);

    return rc < 0 ? rc : finish(e, walk(e, e->step, e->program->step_count));
}

int ct_executor_write(struct ct_executor *e, const struct ct_value *v, int microbatch,
                      const void *host, size_t bytes)
{
    struct ct_tensor t = ct_executor_tensor(e, v, microbatch);

    assert(t.data && ct_tensor_is_dense(&t));
    assert(bytes == (size_t)ct_tensor_count(&t) * ct_dtype_size(t.dtype));
    if (!v->offloaded)
        return e->device->ops->copy_in(e->device, t.data, host, bytes);
    memcpy(t.data, host, bytes);
    return 0;
}

int ct_executor_read(struct ct_executor *e, const struct ct_value *v, void *host, size_t bytes)
{
    struct ct_tensor t = ct_executor_tensor(e, v, -1);

    if (!t.data || !ct_tensor_is_dense(&t))
        return ct_fail(CT_EINVAL, "%%%s has no place of its own after the step", v->name);
    assert(bytes == (size_t)ct_tensor_count(&t) * ct_dtype_size(t.dtype));
    if (!v->offloaded)
        return e->device->ops->copy_out(e->device, host, t.data, bytes);
    memcpy(host, t.data, bytes);
    return 0;
}
