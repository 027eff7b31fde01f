/*
 * Where each shard of a tensor lies, computed from shardings once for each call.
 *
 * The communicator moves flat, equal shards. A tensor split into equal shards along its first
 * dimension has that form and is not copied. Otherwise shards are packed into the workspace, padded
 * to the largest, and unpacked after the call.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/text.h>

#include "comm/groups.h"
#include "comm/layout.h"

/* A rank's shard if one axis splits the whole, or all shards are equal. */
static struct ct_shard regular_shard(const struct ct_layout *l, int64_t rank)
{
    int64_t at = ct_shard_begin(l->length, l->ranks, rank);

    return (struct ct_shard){at, ct_shard_begin(l->length, l->ranks, rank + 1) - at};
}

struct ct_shard ct_layout_shard(const struct ct_layout *l, int64_t rank)
{
    return l->shard ? l->shard[rank] : regular_shard(l, rank);
}

static bool is_regular(const struct ct_layout *l, const struct ct_shard *shard)
{
    for (int64_t i = 0; i < l->ranks; i++) {
        struct ct_shard regular = regular_shard(l, i);

        if (shard[i].size != regular.size || (regular.size && shard[i].offset != regular.offset))
            return false;
    }
    return true;
}

/* Find the shards of dimension dim that the ranks of a group hold under s, relative to where this
   rank's whole, under `around`, begins. */
static void lay_out(const struct ct_prepare *p, ct_axes axes, const struct ct_value *v,
                    const struct ct_sharding *s, const struct ct_sharding *around, int dim,
                    struct ct_layout *l)
{
    int64_t n = ct_mesh_degree(p->mesh, axes), local[CT_MAX_DIMS], offset[CT_MAX_DIMS], begin;
    struct ct_arena scratch = {0};
    int64_t *ranks = ct_arena_array(&scratch, int64_t, n);
    struct ct_shard *shard = ct_arena_array(&scratch, struct ct_shard, n);

    ct_mesh_group(p->mesh, p->rank, axes, ranks);
    ct_sharding_local(around, p->mesh, p->rank, v->ndim, v->shape, local, offset);
    begin = offset[dim];
    l->ranks = n;
    l->length = local[dim];
    l->outer = ct_shape_count(dim, local);
    l->inner = ct_dtype_bytes(v->dtype, v->ndim - dim - 1, local + dim + 1);
    for (int64_t i = 0; i < n; i++) {
        ct_sharding_local(s, p->mesh, ranks[i], v->ndim, v->shape, local, offset);
        shard[i] = (struct ct_shard){offset[dim] - begin, local[dim]};
        if (local[dim] > l->largest)
            l->largest = local[dim];
    }
    if (!is_regular(l, shard))
        l->shard = ct_arena_copy(p->arena, shard, sizeof(*shard) * (size_t)n);
    ct_arena_finish(&scratch);
}

/* Are the shards equal and contiguous in the order of the group? */
static bool even(const struct ct_layout *l)
{
    return !l->shard && l->outer == 1 && l->largest * l->ranks == l->length;
}

static void find_me(struct ct_collective *c, const int64_t *ranks, int64_t count, int64_t rank)
{
    c->ranks = count;
    while (c->me < count - 1 && ranks[c->me] != rank)
        c->me++;
}

/* Elements smaller than a byte move as the bytes of their rows. */
static void set_head(struct ct_prepare *p, struct ct_collective *c)
{
    c->dtype = (p->ins ? p->in : p->out)[0].dtype;
    c->dtype = ct_dtype_bits(c->dtype) < 8 ? CT_U8 : c->dtype;
    p->state = c;
}

/* Rows of elements smaller than a byte are of whole bytes on each rank, so rows of the whole are
   not those of the ranks, one behind the other. */
static int check_rows(const struct ct_value *v, int64_t dim)
{
    if (ct_dtype_bits(v->dtype) >= 8 || dim + 1 < v->ndim)
        return 0;
    return ct_fail(CT_EINVAL,
                   "%%%s is %s, of which only whole rows can be moved: its last dimension is split "
                   "differently here",
                   v->name, ct_dtype_name(v->dtype));
}

/* Find this rank's position along axes, without making a group. */
static void place(struct ct_prepare *p, struct ct_collective *c, ct_axes axes)
{
    struct ct_arena scratch = {0};
    int64_t *ranks = ct_arena_array(&scratch, int64_t, ct_mesh_degree(p->mesh, axes));

    set_head(p, c);
    find_me(c, ranks, ct_mesh_group(p->mesh, p->rank, axes, ranks), p->rank);
    ct_arena_finish(&scratch);
}

int ct_collective_prepare_axes(struct ct_prepare *p, struct ct_collective *c)
{
    ct_axes axes = ct_op_axes(p->op, "axes");
    int rc = 0;

    place(p, c, axes);
    if (p->communicator)
        rc = ct_communicator_group(p->communicator, p->mesh, p->rank, axes, p->op->stream,
                                   &c->group);
    p->group = c->group;
    return rc;
}

int ct_collective_prepare_ranks(struct ct_prepare *p, struct ct_collective *c, const int64_t *ranks,
                                int count, const char *name)
{
    int rc = 0;

    set_head(p, c);
    find_me(c, ranks, count, p->rank);
    if (p->communicator)
        rc = ct_communicator_ranks(p->communicator, ranks, count, name, &c->group);
    p->group = c->group;
    return rc;
}

/* ---- by op ---- */

static size_t packed_bytes(const struct ct_layout *l)
{
    return (size_t)(l->outer * l->largest) * l->inner;
}

/* scatter: the whole is the input; otherwise it is the output. */
static int prepare_items(struct ct_prepare *p, bool scatter)
{
    struct ct_moved *m = ct_arena_new(p->arena, struct ct_moved);
    const struct ct_collective_attrs *attrs = p->op->attrs;
    int rc = ct_collective_prepare_axes(p, &m->head);

    m->items = ct_arena_array(p->arena, struct ct_layout_item, p->ins);
    for (int i = 0; rc == 0 && i < p->ins; i++) {
        const struct ct_value *x = p->op->in[i], *y = p->op->out[i];
        const struct ct_value *whole = scatter ? x : y, *shard = scatter ? y : x;
        struct ct_layout_item *item = &m->items[i];

        rc = check_rows(x, attrs->dim);
        lay_out(p, attrs->axes, x, &shard->sharding, &whole->sharding, (int)attrs->dim,
                &item->whole);
        item->direct = even(&item->whole);
        item->bytes = packed_bytes(&item->whole);
        item->at = p->workspace;
        if (!item->direct)
            p->workspace += (item->bytes * (size_t)(m->head.ranks + 1) + 63) / 64 * 64;
    }
    return rc;
}

int ct_prepare_gather(struct ct_prepare *p)
{
    return prepare_items(p, false);
}

int ct_prepare_scatter(struct ct_prepare *p)
{
    return prepare_items(p, true);
}

int ct_prepare_all_reduce(struct ct_prepare *p)
{
    return ct_collective_prepare_axes(p, &ct_arena_new(p->arena, struct ct_moved)->head);
}

size_t ct_collective_packet(const struct ct_moved *m, const struct ct_tensor *x, int dim, int to)
{
    int64_t count = m->in.largest * m->out.largest;

    for (int d = 0; d < x->ndim; d++)
        if (d != dim && d != to)
            count *= x->shape[d];
    return (size_t)count;
}

/* Dimension `to` is whole before and split after; `dim` is split before and whole after. */
int ct_prepare_exchange(struct ct_prepare *p)
{
    const struct ct_value *x = p->op->in[0], *y = p->op->out[0];
    const struct ct_collective_attrs *attrs = p->op->attrs;
    struct ct_moved *m = ct_arena_new(p->arena, struct ct_moved);
    int dim = (int)attrs->dim, to = (int)attrs->to, rc = ct_collective_prepare_axes(p, &m->head);

    lay_out(p, attrs->axes, x, &y->sharding, &x->sharding, to, &m->in);
    lay_out(p, attrs->axes, x, &x->sharding, &y->sharding, dim, &m->out);
    p->workspace = 2 * ct_collective_packet(m, &p->in[0], dim, to) * (size_t)m->head.ranks *
                   ct_dtype_size(m->head.dtype);
    return rc;
}

static int refuse_unsplit(const struct ct_prepare *p, const struct ct_value *v, ct_axes axes)
{
    char text[128];

    ct_axes_print(p->mesh, axes, text, sizeof(text));
    return ct_fail(CT_EINVAL, "%%%s is not split by %s", v->name, text);
}

/* Ranks receive each other's shards, so all shards must be of equal size. */
static int check_permuted(const struct ct_prepare *p, int i, ct_axes axes)
{
    const struct ct_value *v = p->op->in[i];
    int64_t shards = ct_mesh_degree(p->mesh, ct_sharding_axes(&v->sharding));

    if (!(ct_sharding_axes(&v->sharding) & axes))
        return refuse_unsplit(p, v, axes);
    if (ct_tensor_count(&p->in[i]) * shards != ct_shape_count(v->ndim, v->shape))
        return ct_fail(CT_EINVAL, "%%%s is not split evenly, so its shards cannot be permuted",
                       v->name);
    return 0;
}

int ct_prepare_permute(struct ct_prepare *p)
{
    struct ct_moved *m = ct_arena_new(p->arena, struct ct_moved);
    const struct ct_collective_attrs *attrs = p->op->attrs;
    int rc = ct_collective_prepare_axes(p, &m->head);

    for (int i = 0; rc == 0 && i < p->ins; i++)
        rc = check_permuted(p, i, attrs->axes);
    m->shift = (attrs->shift % m->head.ranks + m->head.ranks) % m->head.ranks;
    return rc;
}

int ct_prepare_slice(struct ct_prepare *p)
{
    const struct ct_value *x = p->op->in[0], *y = p->op->out[0];
    struct ct_moved *m = ct_arena_new(p->arena, struct ct_moved);
    const struct ct_collective_attrs *attrs = p->op->attrs;

    place(p, &m->head, attrs->axes);
    lay_out(p, attrs->axes, x, &y->sharding, &x->sharding, (int)attrs->dim, &m->in);
    return check_rows(x, attrs->dim);
}
