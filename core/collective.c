/*
 * Collectives on devices in host memory, over whichever communicator the recipe loads.
 *
 * The communicator moves flat, equal pieces; a tensor that is cut in its first dimension into equal
 * pieces is just that, and goes without a copy. In all other cases pieces are packed into the
 * workspace, padded to the largest, and unpacked behind the call.
 *
 * all_gather, reduce_scatter and all_reduce may take several values, which a communicator does as
 * one call if it offers that.
 */
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/hook.h>

#include "collective.h"

/* Where one rank's piece lies along a dimension. */
struct piece {
    int64_t offset, size;
};

struct layout {
    struct piece *piece;                   /* by rank of the group */
    int64_t outer, inner, length, largest; /* elements before, behind and along the dimension */
};

/* One of several values that are gathered or scattered together. */
struct item {
    struct layout whole;
    bool direct;
    size_t at, bytes; /* in the workspace: this rank's piece, of so many bytes, then all pieces */
};

struct call {
    const struct ct_communicator *communicator;
    struct ct_group *group;
    int64_t ranks;
    int64_t me;    /* position in the group */
    int64_t shift; /* of a permutation */
    enum ct_dtype dtype;
    struct item *items;
    struct layout in, out; /* of the whole that is exchanged */
};

/* ---- groups ---- */

int ct_communicator_group(const struct ct_communicator *c, const struct ct_mesh *mesh, int64_t rank,
                          ct_axes axes, int stream, struct ct_group **group)
{
    struct ct_communicator_groups *cache = c->groups;
    int64_t ranks[4096];
    char name[128];
    int rc;

    for (size_t i = 0; i < cache->count; i++)
        if (cache->item[i].axes == axes && cache->item[i].stream == stream) {
            *group = cache->item[i].group;
            return 0;
        }
    if (cache->count == CT_COUNT(cache->item) ||
        ct_mesh_degree(mesh, axes) > (int64_t)CT_COUNT(ranks))
        return ct_fail(CT_EINVAL, "too many groups, or a group of more than %zu ranks",
                       CT_COUNT(ranks));
    name[0] = '\0';
    for (int a = 0; a < mesh->count; a++)
        if (axes >> a & 1) {
            size_t n = strlen(name);

            snprintf(name + n, sizeof(name) - n, "%s%s", n ? "." : "", mesh->axis[a].name);
        }
    ct_mesh_group(mesh, rank, axes, ranks);
    rc = c->ops->group(c->comm, ranks, (int)ct_mesh_degree(mesh, axes), name, group);
    if (rc < 0)
        return ct_context(rc, "group %s", name);
    cache->item[cache->count++] = (struct ct_communicator_group){axes, stream, *group};
    return 0;
}

int ct_communicator_pairs(const struct ct_communicator *c, const struct ct_mesh *mesh, int64_t rank,
                          const struct ct_peers *pairs, size_t count)
{
    struct ct_communicator_groups *known = c->groups;
    int axis = ct_mesh_find(mesh, "pp");
    int64_t me, ranks[4096];

    if (count == 0)
        return 0;
    me = ct_mesh_coordinate(mesh, rank, axis);
    if (ct_mesh_group(mesh, rank, (ct_axes)1 << axis, ranks) > (int64_t)CT_COUNT(ranks))
        return ct_fail(CT_EINVAL, "a pipeline of more than %zu ranks", CT_COUNT(ranks));
    for (size_t i = 0; i < count; i++) {
        const struct ct_peers *p = &pairs[i];
        struct ct_group *group;
        char name[64];
        int rc;

        if ((p->from != me && p->to != me) || ct_communicator_pair(c, p->from, p->to, &group) == 0)
            continue;
        if (known->pair_count == CT_COUNT(known->pair))
            return ct_fail(CT_EINVAL, "more than %zu pairs of ranks", CT_COUNT(known->pair));
        snprintf(name, sizeof(name), "pp %d to %d", p->from, p->to);
        rc = c->ops->group(c->comm, (int64_t[]){ranks[p->from], ranks[p->to]}, 2, name, &group);
        if (rc < 0)
            return ct_context(rc, "group %s", name);
        known->pair[known->pair_count++] = (struct ct_communicator_pair){*p, group};
    }
    return 0;
}

int ct_communicator_pair(const struct ct_communicator *c, int64_t from, int64_t to,
                         struct ct_group **group)
{
    const struct ct_communicator_groups *known = c->groups;

    for (size_t i = 0; i < known->pair_count; i++)
        if (known->pair[i].peers.from == from && known->pair[i].peers.to == to) {
            *group = known->pair[i].group;
            return 0;
        }
    return ct_fail(CT_EINVAL, "no group was made for transfers from pipeline rank %lld to %lld",
                   (long long)from, (long long)to);
}

/* ---- preparing ---- */

static ct_axes parse_axes(const struct ct_mesh *mesh, const char *text)
{
    ct_axes axes = 0;

    for (size_t n; *text; text += n + (text[n] == '.')) {
        char name[64];

        n = strcspn(text, ".");
        snprintf(name, sizeof(name), "%.*s", (int)n, text);
        axes |= (ct_axes)1 << ct_mesh_find(mesh, name);
    }
    return axes;
}

/* The pieces of dimension dim that the ranks of a group hold under s, relative to where the whole
   `around` of this rank begins. */
static void lay_out(const struct ct_prepare *p, ct_axes axes, const struct ct_value *v,
                    const struct ct_sharding *s, const struct ct_sharding *around, int dim,
                    struct layout *l)
{
    int64_t n = ct_mesh_degree(p->mesh, axes), local[CT_MAX_RANK], offset[CT_MAX_RANK];
    int64_t *ranks = ct_arena_array(p->arena, int64_t, n), begin;

    ct_mesh_group(p->mesh, p->rank, axes, ranks);
    ct_sharding_local(around, p->mesh, p->rank, v->rank, v->shape, local, offset);
    begin = offset[dim];
    l->length = local[dim];
    l->outer = ct_shape_count(dim, local);
    l->inner = ct_shape_count(v->rank - dim - 1, local + dim + 1);
    l->piece = ct_arena_array(p->arena, struct piece, n);
    for (int64_t i = 0; i < n; i++) {
        ct_sharding_local(s, p->mesh, ranks[i], v->rank, v->shape, local, offset);
        l->piece[i] = (struct piece){offset[dim] - begin, local[dim]};
        if (local[dim] > l->largest)
            l->largest = local[dim];
    }
}

/* Equal pieces, one behind the other in the order of the group. */
static bool even(const struct layout *l, int64_t ranks)
{
    for (int64_t i = 0; i < ranks; i++)
        if (l->piece[i].offset != i * l->largest)
            return false;
    return l->outer == 1 && l->largest * ranks == l->length;
}

static struct call *call_new(struct ct_prepare *p, ct_axes *axes, int *rc)
{
    struct call *c = ct_arena_new(p->arena, struct call);
    int64_t *ranks;

    *axes = parse_axes(p->mesh, ct_op_string(p->op, "axes"));
    c->ranks = ct_mesh_degree(p->mesh, *axes);
    c->dtype = (p->ins ? p->in : p->out)[0].dtype;
    c->communicator = p->communicator;
    ranks = ct_arena_array(p->arena, int64_t, c->ranks);
    ct_mesh_group(p->mesh, p->rank, *axes, ranks);
    while (ranks[c->me] != p->rank)
        c->me++;
    p->state = c;
    *rc = p->communicator ? ct_communicator_group(p->communicator, p->mesh, p->rank, *axes,
                                                  p->op->stream, &c->group)
                          : 0;
    return c;
}

static size_t packed_bytes(const struct call *c, const struct layout *l)
{
    return (size_t)(l->outer * l->largest * l->inner) * ct_dtype_size(c->dtype);
}

/* scatter: the whole comes in; else it goes out. */
static int prepare_items(struct ct_prepare *p, bool scatter)
{
    int dim = (int)ct_op_int(p->op, "dim"), rc;
    ct_axes axes;
    struct call *c = call_new(p, &axes, &rc);

    c->items = ct_arena_array(p->arena, struct item, p->ins);
    for (int i = 0; i < p->ins; i++) {
        const struct ct_value *x = p->op->in[i], *y = p->op->out[i];
        struct item *item = &c->items[i];

        if (scatter)
            lay_out(p, axes, x, &y->sharding, &x->sharding, dim, &item->whole);
        else
            lay_out(p, axes, x, &x->sharding, &y->sharding, dim, &item->whole);
        item->direct = even(&item->whole, c->ranks);
        item->bytes = packed_bytes(c, &item->whole);
        item->at = p->workspace;
        if (!item->direct)
            p->workspace += (item->bytes * (size_t)(c->ranks + 1) + 63) / 64 * 64;
    }
    return rc;
}

static int prepare_gather(struct ct_prepare *p)
{
    return prepare_items(p, false);
}

static int prepare_scatter(struct ct_prepare *p)
{
    return prepare_items(p, true);
}

static int prepare_all_reduce(struct ct_prepare *p)
{
    ct_axes axes;
    int rc;

    call_new(p, &axes, &rc);
    return rc;
}

/* Elements of the largest packet of an exchange: what one rank sends to another, a piece along both
   dimensions. */
static size_t packet_count(const struct call *c, const struct ct_tensor *x, int dim, int to)
{
    int64_t count = c->in.largest * c->out.largest;

    for (int d = 0; d < x->rank; d++)
        if (d != dim && d != to)
            count *= x->shape[d];
    return (size_t)count;
}

/* Dimension `to` is whole before and cut after, `dim` the other way round. */
static int prepare_exchange(struct ct_prepare *p)
{
    const struct ct_value *x = p->op->in[0], *y = p->op->out[0];
    int dim = (int)ct_op_int(p->op, "dim"), to = (int)ct_op_int(p->op, "to"), rc;
    ct_axes axes;
    struct call *c = call_new(p, &axes, &rc);

    lay_out(p, axes, x, &y->sharding, &x->sharding, to, &c->in);
    lay_out(p, axes, x, &x->sharding, &y->sharding, dim, &c->out);
    p->workspace =
        2 * packet_count(c, &p->in[0], dim, to) * (size_t)c->ranks * ct_dtype_size(c->dtype);
    return rc;
}

/* Ranks get what others had: all pieces must be of one size. */
static int prepare_permute(struct ct_prepare *p)
{
    ct_axes axes;
    int rc;
    struct call *c = call_new(p, &axes, &rc);

    for (int i = 0; rc == 0 && i < p->ins; i++) {
        const struct ct_value *v = p->op->in[i];
        int64_t pieces = ct_mesh_degree(p->mesh, ct_sharding_axes(&v->sharding));

        if (ct_tensor_count(&p->in[i]) * pieces != ct_shape_count(v->rank, v->shape))
            rc = ct_fail(CT_EINVAL, "%%%s is not cut evenly: its pieces cannot change places",
                         v->name);
        if (!(ct_sharding_axes(&v->sharding) & axes))
            rc = ct_fail(CT_EINVAL, "%%%s is not cut by %s", v->name, ct_op_string(p->op, "axes"));
    }
    c->shift = (ct_op_int(p->op, "shift") % c->ranks + c->ranks) % c->ranks;
    return rc;
}

static int prepare_slice(struct ct_prepare *p)
{
    const struct ct_value *x = p->op->in[0], *y = p->op->out[0];
    struct call *c = ct_arena_new(p->arena, struct call);
    ct_axes axes = parse_axes(p->mesh, ct_op_string(p->op, "axes"));
    int64_t *ranks = ct_arena_array(p->arena, int64_t, ct_mesh_degree(p->mesh, axes));

    c->dtype = p->in[0].dtype;
    lay_out(p, axes, x, &y->sharding, &x->sharding, (int)ct_op_int(p->op, "dim"), &c->in);
    ct_mesh_group(p->mesh, p->rank, axes, ranks);
    while (ranks[c->me] != p->rank)
        c->me++;
    p->state = c;
    return 0;
}

/* Between the two ranks that an op's `from` and `to` say. */
static int prepare_transfer(struct ct_prepare *p)
{
    struct call *c = ct_arena_new(p->arena, struct call);

    c->communicator = p->communicator;
    c->dtype = (p->ins ? p->in : p->out)[0].dtype;
    p->state = c;
    if (!p->communicator)
        return 0;
    return ct_communicator_pair(p->communicator, ct_op_int(p->op, "from"), ct_op_int(p->op, "to"),
                                &c->group);
}

/* ---- packing ---- */

/* Copy `count` blocks of `bytes`, from blocks `from_stride` apart to blocks `to_stride` apart. */
static void copy_blocks(char *to, size_t to_stride, const char *from, size_t from_stride,
                        size_t bytes, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        memcpy(to + (size_t)i * to_stride, from + (size_t)i * from_stride, bytes);
}

/* Piece i of the whole tensor at `whole`, to or from packed memory. */
static void move_piece(const struct call *c, const struct layout *l, int64_t i, char *whole,
                       char *packed, bool pack)
{
    size_t unit = (size_t)l->inner * ct_dtype_size(c->dtype);
    char *piece = whole + (size_t)l->piece[i].offset * unit;
    size_t bytes = (size_t)l->piece[i].size * unit, stride = (size_t)l->length * unit;

    if (pack)
        copy_blocks(packed, bytes, piece, stride, bytes, l->outer);
    else
        copy_blocks(piece, stride, packed, bytes, bytes, l->outer);
}

/* ---- running ---- */

static int fire(const struct ct_launch *l, enum ct_event event)
{
    struct ct_instruction instruction;

    if (!ct_hook_wanted(event))
        return 0;
    memset(&instruction, 0, sizeof(instruction));
    instruction.op = l->op;
    instruction.stream = (int16_t)l->op->stream;
    instruction.launch = *l;
    return ct_hook_fire(&(struct ct_event_data){.event = event, .instruction = &instruction});
}

static int begin(const struct ct_launch *l)
{
    const struct call *c = l->state;

    if (!c->group)
        return ct_fail(CT_EINVAL, "%s: no communicator is open", l->op->type->name);
    return fire(l, CT_EVENT_COLLECTIVE_STARTED);
}

static int end(const struct ct_launch *l, int rc)
{
    return rc < 0 ? rc : fire(l, CT_EVENT_COLLECTIVE_FINISHED);
}

/* Call for each value, all as one where the communicator can. */
static int run_items(const struct ct_launch *l, int (*call)(const struct ct_launch *l, int i))
{
    const struct call *c = l->state;
    const struct ct_comm_ops *ops = c->communicator->ops;
    bool together = l->ins > 1 && ops->begin;
    int rc = together ? ops->begin(c->group) : 0;

    for (int i = 0; rc == 0 && i < l->ins; i++)
        rc = call(l, i);
    return rc == 0 && together ? ops->end(c->group) : rc;
}

static size_t count_of(const struct call *c, int i)
{
    return c->items[i].bytes / ct_dtype_size(c->dtype);
}

static int call_gather(const struct ct_launch *l, int i)
{
    const struct call *c = l->state;
    const struct item *item = &c->items[i];
    char *mine = (char *)l->workspace + item->at, *all = mine + item->bytes;

    return c->communicator->ops->all_gather(c->group, item->direct ? l->in[i].data : mine,
                                            item->direct ? l->out[i].data : all, count_of(c, i),
                                            c->dtype);
}

static int run_gather(const struct ct_launch *l)
{
    const struct call *c = l->state;
    int rc = begin(l);

    if (rc < 0)
        return rc;
    for (int i = 0; i < l->ins; i++)
        if (!c->items[i].direct)
            memcpy((char *)l->workspace + c->items[i].at, l->in[i].data,
                   (size_t)ct_tensor_count(&l->in[i]) * ct_dtype_size(c->dtype));
    rc = run_items(l, call_gather);
    for (int i = 0; rc == 0 && i < l->ins; i++) {
        const struct item *item = &c->items[i];
        char *all = (char *)l->workspace + item->at + item->bytes;

        for (int64_t k = 0; !item->direct && k < c->ranks; k++)
            move_piece(c, &item->whole, k, l->out[i].data, all + (size_t)k * item->bytes, false);
    }
    return end(l, rc);
}

static int call_scatter(const struct ct_launch *l, int i)
{
    const struct call *c = l->state;
    const struct item *item = &c->items[i];
    char *mine = (char *)l->workspace + item->at, *all = mine + item->bytes;

    return c->communicator->ops->reduce_scatter(c->group, item->direct ? l->in[i].data : all,
                                                item->direct ? l->out[i].data : mine,
                                                count_of(c, i), c->dtype, CT_REDUCE_SUM);
}

static void pack(const struct ct_launch *l, const struct item *item, char *whole)
{
    const struct call *c = l->state;
    char *all = (char *)l->workspace + item->at + item->bytes;

    memset(all, 0, item->bytes * (size_t)c->ranks);
    for (int64_t k = 0; k < c->ranks; k++)
        move_piece(c, &item->whole, k, whole, all + (size_t)k * item->bytes, true);
}

static int run_scatter(const struct ct_launch *l)
{
    const struct call *c = l->state;
    int rc = begin(l);

    if (rc < 0)
        return rc;
    for (int i = 0; i < l->ins; i++)
        if (!c->items[i].direct)
            pack(l, &c->items[i], l->in[i].data);
    rc = run_items(l, call_scatter);
    for (int i = 0; rc == 0 && i < l->ins; i++)
        if (!c->items[i].direct)
            memcpy(l->out[i].data, (char *)l->workspace + c->items[i].at,
                   (size_t)ct_tensor_count(&l->out[i]) * ct_dtype_size(c->dtype));
    return end(l, rc);
}

static int call_all_reduce(const struct ct_launch *l, int i)
{
    const struct call *c = l->state;

    return c->communicator->ops->all_reduce(c->group, l->in[i].data, l->out[i].data,
                                            (size_t)ct_tensor_count(&l->in[i]), c->dtype,
                                            CT_REDUCE_SUM);
}

static int run_all_reduce(const struct ct_launch *l)
{
    int rc = begin(l);

    return end(l, rc < 0 ? rc : run_items(l, call_all_reduce));
}

/* Elements of a box, between a tensor and packed memory; the box is [0, shape) from `at` on. */
static void move_box(const struct ct_tensor *t, int dim, struct piece along, int to,
                     struct piece across, char *packed, bool pack)
{
    size_t item = ct_dtype_size(t->dtype), done = 0;
    int64_t index[CT_MAX_RANK] = {0}, shape[CT_MAX_RANK], last = t->rank - 1;
    size_t run;

    memcpy(shape, t->shape, sizeof(shape));
    shape[dim] = along.size;
    shape[to] = across.size;
    if (ct_shape_count(t->rank, shape) == 0)
        return;
    run = (size_t)shape[last] * item;
    for (;;) {
        int64_t offset = along.offset * t->stride[dim] + across.offset * t->stride[to];
        int d;

        for (d = 0; d < last; d++)
            offset += index[d] * t->stride[d];
        if (pack)
            memcpy(packed + done, (char *)t->data + (size_t)offset * item, run);
        else
            memcpy((char *)t->data + (size_t)offset * item, packed + done, run);
        done += run;
        for (d = (int)last - 1; d >= 0 && ++index[d] == shape[d]; d--)
            index[d] = 0;
        if (d < 0)
            return;
    }
}

static int run_exchange(const struct ct_launch *l)
{
    const struct call *c = l->state;
    int dim = (int)ct_op_int(l->op, "dim"), to = (int)ct_op_int(l->op, "to"), rc = begin(l);
    const struct ct_tensor *x = &l->in[0], *y = &l->out[0];
    size_t count = packet_count(c, x, dim, to);
    size_t bytes = count * ct_dtype_size(c->dtype);
    char *out = l->workspace, *in = out + bytes * (size_t)c->ranks;

    for (int64_t i = 0; rc == 0 && i < c->ranks; i++)
        move_box(x, dim, (struct piece){0, x->shape[dim]}, to, c->in.piece[i],
                 out + (size_t)i * bytes, true);
    if (rc == 0)
        rc = c->communicator->ops->all_to_all(c->group, out, in, count, c->dtype);
    for (int64_t i = 0; rc == 0 && i < c->ranks; i++)
        move_box(y, dim, c->out.piece[i], to, (struct piece){0, y->shape[to]},
                 in + (size_t)i * bytes, false);
    return end(l, rc);
}

static int run_permute(const struct ct_launch *l)
{
    const struct call *c = l->state;
    int to = (int)((c->me + c->shift) % c->ranks);
    int from = (int)((c->me + c->ranks - c->shift) % c->ranks);
    int rc = begin(l);

    for (int i = 0; rc == 0 && i < l->ins; i++) {
        size_t bytes = (size_t)ct_tensor_count(&l->in[i]) * ct_dtype_size(c->dtype);

        rc = c->communicator->ops->exchange(c->group, l->in[i].data, bytes, to, l->out[i].data,
                                            bytes, from, i);
    }
    return end(l, rc);
}

static size_t tensor_bytes(const struct ct_tensor *t)
{
    return (size_t)ct_tensor_count(t) * ct_dtype_size(t->dtype);
}

/* In the group of a pair, the sender is first. */
static int run_send(const struct ct_launch *l)
{
    const struct call *c = l->state;
    int rc = begin(l);

    if (rc == 0)
        rc = c->communicator->ops->send(c->group, l->in[0].data, tensor_bytes(&l->in[0]), 1,
                                        (int)ct_op_int(l->op, "tag"));
    return end(l, rc);
}

static int run_receive(const struct ct_launch *l)
{
    const struct call *c = l->state;
    int rc = begin(l);

    if (rc == 0)
        rc = c->communicator->ops->receive(c->group, l->out[0].data, tensor_bytes(&l->out[0]), 0,
                                           (int)ct_op_int(l->op, "tag"));
    return end(l, rc);
}

static int run_stage_sum(const struct ct_launch *l)
{
    const struct call *c = l->state;
    double sum = 0;
    int rc = begin(l);

    for (int i = 0; i < l->ins; i++)
        sum += ct_tensor_load(&l->in[i], 0);
    ct_tensor_store(&l->out[0], 0, sum);
    if (rc == 0)
        rc = c->communicator->ops->all_reduce(c->group, l->out[0].data, l->out[0].data, 1, c->dtype,
                                              CT_REDUCE_SUM);
    return end(l, rc);
}

static int run_slice(const struct ct_launch *l)
{
    const struct call *c = l->state;

    move_piece(c, &c->in, c->me, l->in[0].data, l->out[0].data, true);
    return 0;
}

const struct ct_kernel ct_collective_kernels[] = {
    {"all_gather", "host", 0, NULL, prepare_gather, run_gather},
    {"reduce_scatter", "host", 0, NULL, prepare_scatter, run_scatter},
    {"all_reduce", "host", 0, NULL, prepare_all_reduce, run_all_reduce},
    {"all_to_all", "host", 0, NULL, prepare_exchange, run_exchange},
    {"permute", "host", 0, NULL, prepare_permute, run_permute},
    {"slice", "host", 0, NULL, prepare_slice, run_slice},
    {"send", "host", 0, NULL, prepare_transfer, run_send},
    {"receive", "host", 0, NULL, prepare_transfer, run_receive},
    {"stage_sum", "host", 0, NULL, prepare_all_reduce, run_stage_sum},
    {0},
};

static double bytes_of(const struct ct_tensor *t)
{
    return (double)ct_tensor_count(t) * (double)ct_dtype_size(t->dtype);
}

double ct_collective_bytes(const struct ct_op *op, const struct ct_mesh *mesh,
                           const struct ct_tensor *in, const struct ct_tensor *out)
{
    double n = (double)ct_mesh_degree(mesh, parse_axes(mesh, ct_op_string(op, "axes"))), sum = 0;
    bool whole = !strcmp(op->type->name, "permute"), twice = !strcmp(op->type->name, "all_reduce");

    if (!strcmp(op->type->name, "send"))
        return bytes_of(&in[0]);
    if (!strcmp(op->type->name, "receive"))
        return 0;
    if (!strcmp(op->type->name, "stage_sum"))
        return bytes_of(&out[0]) * (n - 1) / n * 2;
    for (int i = 0; i < op->ins; i++)
        sum += fmax(bytes_of(&in[i]), bytes_of(&out[i]));
    return whole ? sum : sum * (n - 1) / n * (twice ? 2 : 1);
}
