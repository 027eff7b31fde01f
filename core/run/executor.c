/*
 * Executors: a program bound to memory, and the host's access to its values. walk.c runs it.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/program.h>

#include "run/executor.h"

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
    return offset < CT_HOST_OFFSET ? e->base + offset : e->host + (offset - CT_HOST_OFFSET);
}

/* The owner's memory of the parameter or state that v is, or views. */
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
        t.data = b ? address(e, b->offset + e->program->offsets[v->id]) : NULL;
    return t;
}

/* The tensors of some operands without addresses, and the offsets that their buffers' addresses are
   added to. */
static void bind_tensors(const struct ct_executor *e, struct ct_bound *bound, int from,
                         const struct ct_tensor *t, int count, struct ct_value *const *values)
{
    for (int i = 0; i < count; i++) {
        struct ct_tensor *of = &bound->tensor[from + i];

        *of = t[i];
        if (of->ndim < 0)
            of->ndim = 0;
        else if (ct_program_borrows(e->program, values[i]))
            bound->offset[from + i] = (uintptr_t)lender(e, values[i]);
    }
}

static void bind(struct ct_executor *e, const struct ct_lowered *lowered)
{
    struct ct_bound *bound = &e->bound[lowered->id];
    const struct ct_launch *l = &lowered->launch;

    bound->tensor = ct_arena_array(&e->arena, struct ct_tensor, l->ins + l->outs);
    bound->offset = ct_arena_array(&e->arena, uintptr_t, l->ins + l->outs);
    for (int i = 0; i < l->ins + l->outs; i++)
        bound->offset[i] = lowered->offsets[i];
    bind_tensors(e, bound, 0, l->in, l->ins, l->op->in);
    bind_tensors(e, bound, l->ins, l->out, l->outs, l->op->out);
    bound->launch = *l;
    bound->launch.in = bound->tensor;
    bound->launch.out = bound->tensor + l->ins;
    bound->launch.device = e->device;
}

struct ct_launch *ct_executor_launch(struct ct_executor *e, const struct ct_instruction *i)
{
    struct ct_bound *bound = &e->bound[i->lowered->id];
    int count = bound->launch.ins + bound->launch.outs;

    for (int k = 0; k < count; k++)
        bound->tensor[k].data = (void *)(e->address[i->buffers[k]] + bound->offset[k]);
    bound->launch.workspace = (void *)e->address[i->buffers[count]];
    return &bound->launch;
}

static void find_addresses(struct ct_executor *e)
{
    const struct ct_program *p = e->program;

    e->address = ct_arena_array(&e->arena, uintptr_t, p->buffer_count + 1);
    e->address++;
    for (size_t b = 0; b < p->buffer_count; b++) {
        const struct ct_value *v = p->buffers[b].value;

        if (!v || !ct_program_borrows(p, v))
            e->address[b] = (uintptr_t)address(e, p->buffers[b].offset);
    }
}

/* The value that a view shows, or the value itself. */
static const struct ct_value *viewed(const struct ct_value *v)
{
    while (v->producer && v->producer->type->flags & CT_OP_VIEW)
        v = v->producer->in[0];
    return v;
}

static void note_write(struct ct_executor *e, const struct ct_op *op, int64_t n)
{
    for (int i = 0; i < op->ins; i++) {
        const struct ct_value *v = op->in[i] ? viewed(op->in[i]) : NULL;

        if (v && ct_op_mutates(op, i) && e->first_write[v->id] > n)
            e->first_write[v->id] = n;
    }
}

size_t ct_executor_bytes(const struct ct_program *p)
{
    size_t operands = 0;

    for (size_t i = 0; i < p->lowered_count; i++)
        operands += (size_t)(p->lowered[i]->launch.ins + p->lowered[i]->launch.outs);
    return sizeof(struct ct_executor) + (p->buffer_count + 1) * sizeof(uintptr_t) +
           p->lowered_count * sizeof(struct ct_bound) +
           operands * (sizeof(struct ct_tensor) + sizeof(uintptr_t)) +
           p->graph->value_count * (sizeof(int64_t) + sizeof(bool));
}

static void bind_all(struct ct_executor *e)
{
    const struct ct_program *p = e->program;

    find_addresses(e);
    e->bound = ct_arena_array(&e->arena, struct ct_bound, p->lowered_count + 1);
    for (size_t i = 0; i < p->lowered_count; i++)
        bind(e, p->lowered[i]);
    for (size_t i = 0; i < p->step_count; i++)
        e->collectives += (p->step[i].op->type->flags & CT_OP_COLLECTIVE) != 0;
    e->first_write = ct_arena_array(&e->arena, int64_t, p->graph->value_count + 1);
    e->held = ct_arena_array(&e->arena, bool, p->graph->value_count + 1);
    e->hold_before = INT64_MAX;
    for (size_t i = 0; i < p->graph->value_count; i++)
        e->first_write[i] = INT64_MAX;
    for (size_t i = 0; i < p->step_count; i++)
        note_write(e, p->step[i].op, (int64_t)i);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static int reserve_host(struct ct_executor *e)
{
    const struct ct_device_ops *ops = e->device->ops;
    void *base;
    int rc;

    if (!e->host_bytes)
        return 0;
    if (!ops->reserve_host)
        return ct_fail(CT_ECONFIG,
                       "device %s has no host memory, and the program needs %zu bytes of it",
                       e->device->name, e->host_bytes);
    rc = ops->reserve_host(e->device, e->host_bytes, &base);
    if (rc < 0)
        return ct_context(rc, "%.1f MiB of host memory, which the plan needs",
                          (double)e->host_bytes / 1048576);
    e->host = base;
    return 0;
}

/* Where a parameter or state lies; false: it has no memory. */
static bool place(const struct ct_program *p, const struct ct_value *v, size_t *offset)
{
    int32_t b = p->buffer_of[(size_t)v->id * (size_t)(p->microbatches + 1)];

    *offset = b < 0 ? 0 : p->buffers[b].offset + p->offsets[v->id];
    return b >= 0;
}

static size_t count_kept(const struct ct_graph *g)
{
    size_t count = 0;

    for (size_t i = 0; i < g->value_count; i++)
        count += g->values[i]->role == CT_ROLE_PARAM || g->values[i]->role == CT_ROLE_STATE;
    return count;
}

/* Parameters and states must be those of the other program, in the same place. */
static int check_common(const struct ct_program *p, const struct ct_program *other)
{
    const struct ct_graph *g = p->graph;

    for (size_t i = 0; i < g->value_count; i++) {
        const struct ct_value *v = g->values[i], *same;
        const struct ct_tensor *mine = &p->tensors[i], *its;
        size_t here, there;

        if (v->role != CT_ROLE_PARAM && v->role != CT_ROLE_STATE)
            continue;
        same = ct_graph_find(other->graph, v->name);
        if (!same || same->role != v->role)
            return ct_fail(CT_ECONFIG, "%%%s is not among the weights and states", v->name);
        its = &other->tensors[same->id];
        if (place(p, v, &here) != place(other, same, &there) || here != there ||
            v->space != same->space || mine->dtype != its->dtype || mine->ndim != its->ndim ||
            memcmp(mine->shape, its->shape, sizeof(*mine->shape) * (size_t)mine->ndim) != 0 ||
            !ct_sharding_equal(&v->sharding, &same->sharding))
            return ct_fail(CT_ECONFIG, "%%%s has another form or place than before", v->name);
    }
    return count_kept(g) == count_kept(other->graph)
               ? 0
               : ct_fail(CT_ECONFIG, "there are other weights and states than before");
}

static int share(struct ct_executor *e, struct ct_executor *common)
{
    int rc = check_common(e->program, common->program);

    if (rc < 0)
        return rc;
    if (e->program->memory.bytes > common->bytes || e->program->host.bytes > common->host_bytes)
        return ct_fail(CT_EINVAL, "the arena has no room for a program of %zu bytes",
                       e->program->memory.bytes);
    e->common = common;
    e->base = common->base;
    e->host = common->host;
    e->bytes = common->bytes;
    e->host_bytes = common->host_bytes;
    return 0;
}

static int reserve(struct ct_executor *e, const struct ct_executor_memory *extra)
{
    void *base = extra ? extra->base : NULL;
    int rc;

    e->bytes = larger(e->program->memory.bytes, extra ? extra->bytes : 0);
    e->host_bytes = larger(e->program->host.bytes, extra ? extra->host : 0);
    e->lent = base != NULL;
    if (!base) {
        rc = e->device->ops->reserve(e->device, e->bytes, &base);
        if (rc < 0)
            return ct_context(rc, "%.1f MiB on %s, which the plan needs",
                              (double)e->bytes / 1048576, e->device->name);
    }
    e->base = base;
    return reserve_host(e);
}

static struct ct_executor *create(const struct ct_program *program, struct ct_device *device)
{
    struct ct_executor *e = calloc(1, sizeof(*e));

    if (!e)
        return NULL;
    e->program = program;
    e->device = device;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->released, NULL);
    return e;
}

int ct_executor_create(const struct ct_program *program, struct ct_device *device,
                       const struct ct_executor_memory *extra, struct ct_executor **executor)
{
    struct ct_executor *e = create(program, device);
    int rc;

    if (!e)
        return ct_fail(CT_ENOMEM, "an executor");
    rc = extra && extra->owner ? share(e, extra->owner) : reserve(e, extra);
    if (rc < 0) {
        ct_executor_destroy(e);
        return rc;
    }
    bind_all(e);
    *executor = e;
    return 0;
}

/* The owner must have every borrowed value, in the same local shape. */
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
        if (mine->dtype != other->dtype || mine->ndim != other->ndim ||
            memcmp(mine->shape, other->shape, sizeof(*mine->shape) * (size_t)mine->ndim))
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
        owner->program->host.persistent + program->host.bytes > owner->host_bytes)
        return ct_fail(CT_EINVAL, "the arena has no room for a second program of %zu bytes",
                       program->memory.bytes);
    e = create(program, owner->device);
    if (!e)
        return ct_fail(CT_ENOMEM, "an executor");
    e->owner = owner;
    e->base = owner->base + owner->program->memory.persistent;
    e->host = owner->host ? owner->host + owner->program->host.persistent : NULL;
    bind_all(e);
    *executor = e;
    return 0;
}

void ct_executor_destroy(struct ct_executor *e)
{
    if (!e)
        return;
    if (!e->owner && !e->common && !e->lent && e->base)
        e->device->ops->release(e->device, e->base, e->bytes);
    if (!e->owner && !e->common && e->host)
        e->device->ops->release_host(e->device, e->host, e->host_bytes);
    ct_arena_finish(&e->arena);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->released);
    free(e);
}

int ct_executor_write(struct ct_executor *e, const struct ct_value *v, int microbatch,
                      const void *host, size_t bytes)
{
    struct ct_tensor t = ct_executor_tensor(e, v, microbatch);

    assert(t.data && ct_tensor_is_dense(&t));
    ct_executor_await(e, v);
    assert(bytes == ct_tensor_bytes(&t));
    if (v->space == CT_SPACE_DEVICE)
        return e->device->ops->copy_in(e->device, t.data, host, bytes);
    memcpy(t.data, host, bytes);
    return 0;
}

int ct_executor_read(struct ct_executor *e, const struct ct_value *v, void *host, size_t bytes)
{
    struct ct_tensor t = ct_executor_tensor(e, v, -1);

    if (!t.data || !ct_tensor_is_dense(&t))
        return ct_fail(CT_EINVAL, "%%%s has no place of its own after the step", v->name);
    assert(bytes == ct_tensor_bytes(&t));
    if (v->space == CT_SPACE_DEVICE)
        return e->device->ops->copy_out(e->device, host, t.data, bytes);
    memcpy(host, t.data, bytes);
    return 0;
}

/* ---- values that are held ---- */

void ct_executor_hold(struct ct_executor *e, const struct ct_value *v)
{
    pthread_mutex_lock(&e->lock);
    e->held[v->id] = true;
    pthread_mutex_unlock(&e->lock);
    if (e->first_write[v->id] < e->hold_before)
        e->hold_before = e->first_write[v->id];
}

void ct_executor_release(struct ct_executor *e, const struct ct_value *v)
{
    pthread_mutex_lock(&e->lock);
    e->held[v->id] = false;
    pthread_cond_broadcast(&e->released);
    pthread_mutex_unlock(&e->lock);
}

void ct_executor_await(struct ct_executor *e, const struct ct_value *v)
{
    pthread_mutex_lock(&e->lock);
    while (e->held[v->id]) {
        e->waits = true;
        pthread_cond_wait(&e->released, &e->lock);
    }
    e->waits = false;
    (e->common ? e->common : e)->written |= v->role == CT_ROLE_PARAM;
    pthread_mutex_unlock(&e->lock);
}

static bool read_locked(struct ct_executor *e, const bool *flag)
{
    bool value;

    pthread_mutex_lock(&e->lock);
    value = *flag;
    pthread_mutex_unlock(&e->lock);
    return value;
}

bool ct_executor_waits(struct ct_executor *e)
{
    return read_locked(e, &e->waits);
}

void ct_executor_await_next(struct ct_executor *e)
{
    int64_t next = INT64_MAX;
    double begin = ct_now();

    for (size_t i = 0; i < e->program->graph->value_count; i++) {
        if (e->first_write[i] == e->hold_before)
            ct_executor_await(e, e->program->graph->values[i]);
        else if (e->first_write[i] > e->hold_before && e->first_write[i] < next &&
                 read_locked(e, &e->held[i]))
            next = e->first_write[i];
    }
    e->hold_before = next;
    e->waited += ct_now() - begin;
}

double ct_executor_waited(const struct ct_executor *e)
{
    return e->waited;
}

int ct_executor_copy_out(struct ct_executor *e, const struct ct_value *v, size_t from, size_t bytes,
                         void *host)
{
    struct ct_tensor t = ct_executor_tensor(e, v, -1);
    const struct ct_device_ops *ops = e->device->ops;

    if (!t.data || !ct_tensor_is_dense(&t))
        return ct_fail(CT_EINVAL, "%%%s has no place of its own after the step", v->name);
    assert(from + bytes <= ct_tensor_bytes(&t));
    if (v->space == CT_SPACE_DEVICE && !ops->copy_aside)
        return ct_fail(CT_EINVAL, "device %s does not copy while steps run", e->device->name);
    if (v->space == CT_SPACE_DEVICE && bytes)
        return ops->copy_aside(e->device, host, (const char *)t.data + from, bytes);
    memcpy(host, (const char *)t.data + from, bytes);
    return 0;
}
