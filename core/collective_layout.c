/*
 * What pieces of tensors lie where: found from shardings, once for each call.
 *
 * The communicator moves flat, equal pieces; a tensor that is cut in its first dimension into equal
 * pieces is just that, and goes without a copy. In all other cases pieces are packed into the
 * workspace, padded to the largest, and unpacked behind the call.
 */
#include <assert.h>
#include <string.h>

#include <ctitan/collective.h>
#include <ctitan/error.h>

#include "collective.h"
#include "collective_layout.h"

/* The pieces of dimension dim that the ranks of a group hold under s, relative to where the whole
   `around` of this rank begins. */
static void lay_out(const struct ct_prepare *p, ct_axes axes, const struct ct_value *v,
                    const struct ct_sharding *s, const struct ct_sharding *around, int dim,
                    struct ct_layout *l)
{
    int64_t n = ct_mesh_degree(p->mesh, axes), local[CT_MAX_RANK], offset[CT_MAX_RANK];
    int64_t *ranks = ct_arena_array(p->arena, int64_t, n), begin;

    ct_mesh_group(p->mesh, p->rank, axes, ranks);
    ct_sharding_local(around, p->mesh, p->rank, v->rank, v->shape, local, offset);
    begin = offset[dim];
    l->length = local[dim];
    l->outer = ct_shape_count(dim, local);
    l->inner = ct_shape_count(v->rank - dim - 1, local + dim + 1);
    l->piece = ct_arena_array(p->arena, struct ct_piece, n);
    for (int64_t i = 0; i < n; i++) {
        ct_sharding_local(s, p->mesh, ranks[i], v->rank, v->shape, local, offset);
        l->piece[i] = (struct ct_piece){offset[dim] - begin, local[dim]};
        if (local[dim] > l->largest)
            l->largest = local[dim];
    }
}

/* Equal pieces, one behind the other in the order of the group. */
static bool even(const struct ct_layout *l, int64_t ranks)
{
    for (int64_t i = 0; i < ranks; i++)
        if (l->piece[i].offset != i * l->largest)
            return false;
    return l->outer == 1 && l->largest * ranks == l->length;
}

static struct ct_collective *call_new(struct ct_prepare *p, ct_axes *axes, int *rc)
{
    struct ct_collective *c = ct_arena_new(p->arena, struct ct_collective);
    int64_t *ranks;

    *axes = ct_mesh_axes(p->mesh, ct_op_string(p->op, "axes"));
    c->ranks = ct_mesh_degree(p->mesh, *axes);
    c->dtype = (p->ins ? p->in : p->out)[0].dtype;
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

static size_t packed_bytes(const struct ct_collective *c, const struct ct_layout *l)
{
    return (size_t)(l->outer * l->largest * l->inner) * ct_dtype_size(c->dtype);
}

/* scatter: the whole comes in; else it goes out. */
static int prepare_items(struct ct_prepare *p, bool scatter)
{
    int dim = (int)ct_op_int(p->op, "dim"), rc;
    ct_axes axes;
    struct ct_collective *c = call_new(p, &axes, &rc);

    c->items = ct_arena_array(p->arena, struct ct_layout_item, p->ins);
    for (int i = 0; i < p->ins; i++) {
        const struct ct_value *x = p->op->in[i], *y = p->op->out[i];
        struct ct_layout_item *item = &c->items[i];

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

size_t ct_collective_packet(const struct ct_collective *c, const struct ct_tensor *x, int dim,
                            int to)
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
    struct ct_collective *c = call_new(p, &axes, &rc);

    lay_out(p, axes, x, &y->sharding, &x->sharding, to, &c->in);
    lay_out(p, axes, x, &x->sharding, &y->sharding, dim, &c->out);
    p->workspace = 2 * ct_collective_packet(c, &p->in[0], dim, to) * (size_t)c->ranks *
                   ct_dtype_size(c->dtype);
    return rc;
}

/* Ranks get what others had: all pieces must be of one size. */
static int prepare_permute(struct ct_prepare *p)
{
    ct_axes axes;
    int rc;
    struct ct_collective *c = call_new(p, &axes, &rc);

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
    struct ct_collective *c = ct_arena_new(p->arena, struct ct_collective);
    ct_axes axes = ct_mesh_axes(p->mesh, ct_op_string(p->op, "axes"));
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
    struct ct_collective *c = ct_arena_new(p->arena, struct ct_collective);

    c->dtype = (p->ins ? p->in : p->out)[0].dtype;
    p->state = c;
    if (!p->communicator)
        return 0;
    return ct_communicator_pair(p->communicator, ct_op_int(p->op, "from"), ct_op_int(p->op, "to"),
                                &c->group);
}

/* The kernel by which the device adds two of the numbers that out[0] is. */
static int prepare_add(struct ct_prepare *p, struct ct_add *add)
{
    struct ct_tensor pair[3] = {p->out[0], p->out[0], p->out[0]};
    struct ct_prepare request = {.op = &add->op,
                                 .in = pair,
                                 .out = pair + 2,
                                 .ins = 2,
                                 .outs = 1,
                                 .present = (const bool[]){true, true},
                                 .device = p->device,
                                 .arena = p->arena};
    int rc;

    add->op = (struct ct_op){.type = ct_op_find("add"),
                             .region = p->op->region,
                             .part = p->op->part,
                             .stage = p->op->stage,
                             .stream = p->op->stream,
                             .ins = 2,
                             .outs = 1,
                             .out = p->op->out};
    add->op.in = ct_arena_array(p->arena, struct ct_value *, 2);
    add->op.in[0] = add->op.in[1] = p->op->out[0];
    add->kernel = ct_kernel_find(p->device->name, &request);
    if (!add->kernel)
        return ct_fail(CT_ENOENT, "device %s has no kernel that adds %s numbers", p->device->name,
                       ct_dtype_name(pair->dtype));
    rc = add->kernel->prepare ? add->kernel->prepare(&request) : 0;
    add->state = request.state;
    p->workspace = request.workspace;
    return rc;
}

static int prepare_stage_sum(struct ct_prepare *p)
{
    ct_axes axes;
    int rc;
    struct ct_collective *c = call_new(p, &axes, &rc);

    if (rc < 0 || p->ins < 2 || p->device->host_memory)
        return rc;
    c->add = ct_arena_new(p->arena, struct ct_add);
    return prepare_add(p, c->add);
}

static const struct {
    const char *op;
    int (*prepare)(struct ct_prepare *p);
} layouts[] = {
    {"all_gather", prepare_gather},     {"reduce_scatter", prepare_scatter},
    {"all_reduce", prepare_all_reduce}, {"all_to_all", prepare_exchange},
    {"permute", prepare_permute},       {"slice", prepare_slice},
    {"send", prepare_transfer},         {"receive", prepare_transfer},
    {"stage_sum", prepare_stage_sum},
};

int ct_collective_prepare(struct ct_prepare *p)
{
    size_t i = 0;

    while (i < CT_COUNT(layouts) && strcmp(layouts[i].op, p->op->type->name))
        i++;
    assert(i < CT_COUNT(layouts));
    return layouts[i].prepare(p);
}
