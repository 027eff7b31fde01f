/*
 * Calls: the buffers of each kind, the checks that every communicator needs, and constructors.
 */
#include <string.h>

#include <ctitan/calling.h>
#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/hook.h>

enum part { NOTHING, ONE, EACH };

static const struct form {
    const char *name;
    enum part in, out;
    bool reduces;
} forms[CT_CALL_KINDS] = {
    [CT_CALL_BARRIER] = {"barrier", NOTHING, NOTHING, false},
    [CT_CALL_ALL_GATHER] = {"all_gather", ONE, EACH, false},
    [CT_CALL_REDUCE_SCATTER] = {"reduce_scatter", EACH, ONE, true},
    [CT_CALL_ALL_REDUCE] = {"all_reduce", ONE, ONE, true},
    [CT_CALL_ALL_TO_ALL] = {"all_to_all", EACH, EACH, false},
    [CT_CALL_BROADCAST] = {"broadcast", ONE, ONE, false},
    [CT_CALL_EXCHANGE] = {"exchange", ONE, ONE, false},
    [CT_CALL_SEND] = {"send", ONE, NOTHING, false},
    [CT_CALL_RECEIVE] = {"receive", NOTHING, ONE, false},
};

const char *ct_call_name(enum ct_call_kind kind)
{
    return forms[kind].name;
}

bool ct_call_is_message(enum ct_call_kind kind)
{
    return kind >= CT_CALL_EXCHANGE;
}

static size_t bytes_of(const struct ct_call *c, enum part part)
{
    size_t times = part == EACH ? (size_t)c->group->size : part;

    return times * c->count * ct_dtype_size(c->dtype);
}

size_t ct_call_in_bytes(const struct ct_call *c)
{
    return bytes_of(c, forms[c->kind].in);
}

size_t ct_call_out_bytes(const struct ct_call *c)
{
    return bytes_of(c, forms[c->kind].out);
}

static bool is_self(const struct ct_call *c)
{
    return c->kind == CT_CALL_EXCHANGE && c->to == c->group->position && c->from == c->to;
}

/* Check a position named by the call. */
static int check_position(const struct ct_call *c, int position, bool may_be_own)
{
    const struct ct_group *g = c->group;

    if (position >= 0 && position < g->size && (may_be_own || position != g->position))
        return 0;
    return ct_fail(CT_EINVAL, "%s between positions %d and %d of group '%s', which has %d rank%s",
                   forms[c->kind].name, g->position, position, g->name, g->size,
                   ct_plural(g->size));
}

static int check_size(const struct ct_call *c)
{
    size_t bytes;

    if (!__builtin_mul_overflow(c->count, ct_dtype_size(c->dtype), &bytes) &&
        !__builtin_mul_overflow(bytes, (size_t)c->group->size, &bytes) && bytes <= PTRDIFF_MAX)
        return 0;
    return ct_fail(CT_EINVAL, "%s of %zu x %s in group '%s' of %d: more bytes than there can be",
                   forms[c->kind].name, c->count, ct_dtype_name(c->dtype), c->group->name,
                   c->group->size);
}

int ct_call_check(const struct ct_call *c)
{
    const struct form *form;
    bool either = c->kind == CT_CALL_BROADCAST || is_self(c);
    int rc;

    if ((unsigned)c->kind >= CT_CALL_KINDS)
        return ct_fail(CT_EINVAL, "there is no kind of call with number %d", (int)c->kind);
    form = &forms[c->kind];
    if ((unsigned)c->dtype >= CT_DTYPE_COUNT)
        return ct_fail(CT_EINVAL, "%s in group '%s': there is no dtype with number %d", form->name,
                       c->group->name, (int)c->dtype);
    if (ct_dtype_bits(c->dtype) < 8)
        return ct_fail(CT_EINVAL, "%s in group '%s': elements of %s are moved as bytes", form->name,
                       c->group->name, ct_dtype_name(c->dtype));
    if (form->reduces && c->reduction != CT_REDUCE_SUM && c->reduction != CT_REDUCE_MAX)
        return ct_fail(CT_EINVAL, "%s in group '%s': there is no reduction with number %d",
                       form->name, c->group->name, (int)c->reduction);
    rc = check_size(c);
    if (rc == 0 && (c->kind == CT_CALL_EXCHANGE || c->kind == CT_CALL_SEND))
        rc = check_position(c, c->to, either);
    if (rc == 0 &&
        (c->kind == CT_CALL_BROADCAST || c->kind == CT_CALL_EXCHANGE || c->kind == CT_CALL_RECEIVE))
        rc = check_position(c, c->from, either);
    return rc;
}

int ct_call_run(const struct ct_call *c)
{
    struct ct_calling *calling = ct_calling();
    bool waits = calling->waits;
    int rc = ct_call_check(c);

    if (rc < 0)
        return rc;
    if (!is_self(c) && c->group->ops) {
        ct_calling_wait(calling, true);
        rc = c->group->ops->call(c);
        ct_calling_wait(calling, waits);
        return rc;
    }
    if (c->count && c->in != c->out)
        memmove(c->out, c->in, ct_call_out_bytes(c));
    return 0;
}

/* ---- by kind ---- */

static int fire(const struct ct_call *c, int64_t sequence, enum ct_event event)
{
    return ct_hook_fire(&(struct ct_event_data){
        .event = event, .group = c->group, .sequence = sequence, .call = c});
}

static int run_and_tell(const struct ct_call *c)
{
    int64_t sequence = ct_call_is_message(c->kind) ? 0 : ++c->group->calls;
    int rc = fire(c, sequence, CT_EVENT_CALL_BEGIN);

    if (rc == 0)
        rc = ct_call_run(c);
    return rc < 0 ? rc : fire(c, sequence, CT_EVENT_CALL_END);
}

#define RUN(id, ...)                                                                               \
    run_and_tell(&(struct ct_call){.kind = CT_CALL_##id, .group = group, __VA_ARGS__})
#define DATA .in = in, .out = out, .count = count, .dtype = dtype
#define MESSAGE .count = bytes, .dtype = CT_U8, .tag = tag

int ct_group_barrier(struct ct_group *group)
{
    return RUN(BARRIER, .dtype = CT_U8);
}

int ct_group_all_gather(struct ct_group *group, const void *in, void *out, size_t count,
                        enum ct_dtype dtype)
{
    return RUN(ALL_GATHER, DATA);
}

int ct_group_reduce_scatter(struct ct_group *group, const void *in, void *out, size_t count,
                            enum ct_dtype dtype, enum ct_reduction reduction)
{
    return RUN(REDUCE_SCATTER, DATA, .reduction = reduction);
}

int ct_group_all_reduce(struct ct_group *group, const void *in, void *out, size_t count,
                        enum ct_dtype dtype, enum ct_reduction reduction)
{
    return RUN(ALL_REDUCE, DATA, .reduction = reduction);
}

int ct_group_all_to_all(struct ct_group *group, const void *in, void *out, size_t count,
                        enum ct_dtype dtype)
{
    return RUN(ALL_TO_ALL, DATA);
}

int ct_group_broadcast(struct ct_group *group, void *data, size_t count, enum ct_dtype dtype,
                       int root)
{
    return RUN(BROADCAST, .in = data, .out = data, .count = count, .dtype = dtype, .from = root);
}

int ct_group_send(struct ct_group *group, const void *data, size_t bytes, int to, int tag)
{
    return RUN(SEND, .in = data, .to = to, MESSAGE);
}

int ct_group_receive(struct ct_group *group, void *data, size_t bytes, int from, int tag)
{
    return RUN(RECEIVE, .out = data, .from = from, MESSAGE);
}

int ct_group_exchange(struct ct_group *group, const void *out, int to, void *in, int from,
                      size_t bytes, int tag)
{
    return RUN(EXCHANGE, .in = out, .to = to, .out = in, .from = from, MESSAGE);
}

int ct_group_agree(struct ct_group *group, int rc)
{
    int32_t failed = rc < 0, any = 0;
    struct ct_error_kept kept = ct_error_keep();
    int sum = ct_group_all_reduce(group, &failed, &any, 1, CT_I32, CT_REDUCE_MAX);

    if (rc < 0)
        return ct_error_restore(rc, &kept);
    if (sum < 0)
        return sum;
    return any ? ct_fail(CT_EPEER, "another rank failed") : 0;
}
