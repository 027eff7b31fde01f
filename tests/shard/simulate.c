#include <math.h>
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>

#include "simulate.h"

/* ---- elements ---- */

struct box {
    int rank;
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS]; /* offset in the tensor around it */
};

/* Row-major index, in a tensor of shape `around`, of element i of the box. */
static int64_t index_in(const struct box *box, const int64_t *around, int64_t i)
{
    int64_t index = 0, stride = 1;

    for (int d = box->rank - 1; d >= 0; d--) {
        index += (box->offset[d] + i % box->shape[d]) * stride;
        stride *= around[d];
        i /= box->shape[d];
    }
    return index;
}

static struct box box_of(const struct world *w, const struct ct_value *v, int64_t rank)
{
    struct box box = {.rank = v->ndim};

    ct_sharding_local(&v->sharding, &w->graph->mesh, rank, v->ndim, v->shape, box.shape,
                      box.offset);
    return box;
}

static struct ct_tensor tensor_new(struct world *w, enum ct_dtype dtype, int rank,
                                   const int64_t *shape)
{
    size_t bytes = (size_t)ct_shape_count(rank, shape) * ct_dtype_size(dtype);

    return ct_tensor_dense(ct_arena_alloc(&w->arena, bytes + 8), dtype, rank, shape);
}

struct ct_tensor world_whole(struct world *w, const struct ct_value *v)
{
    return tensor_new(w, v->dtype, v->ndim, v->shape);
}

/* Every rank's shard of v, zeroed. */
static struct ct_tensor *shards_of(struct world *w, const struct ct_value *v)
{
    struct ct_tensor *shard = w->shard[v->id];

    if (shard)
        return shard;
    shard = w->shard[v->id] = ct_arena_array(&w->arena, struct ct_tensor, w->ranks);
    for (int64_t rank = 0; rank < w->ranks; rank++) {
        struct box box = box_of(w, v, rank);

        shard[rank] = tensor_new(w, v->dtype, v->ndim, box.shape);
    }
    return shard;
}

/* Largest |a - b| / (1 + |b|). */
static double tolerance(enum ct_dtype dtype)
{
    return dtype == CT_F64 ? 1e-10 : dtype == CT_BF16 ? 0x1p-6 : 3e-6;
}

int compare_tensors(const char *what, const struct ct_tensor *got, const struct ct_tensor *want)
{
    double allowed = tolerance(want->dtype);

    for (int64_t i = 0; i < ct_tensor_count(want); i++) {
        double g = ct_tensor_load(got, i), w = ct_tensor_load(want, i);

        if (g != w && !(fabs(g - w) <= allowed * (1 + fabs(w))))
            return ct_fail(CT_EINVAL, "%s, element %lld: %.12g, not %.12g", what, (long long)i, g,
                           w);
    }
    return 0;
}

/* ---- worlds ---- */

void world_create(struct world *w, const struct ct_graph *graph)
{
    *w = (struct world){.graph = graph,
                        .ranks = ct_mesh_degree(&graph->mesh, CT_ALL_AXES),
                        .launch = launch_reference};
    w->shard = ct_arena_array(&w->arena, struct ct_tensor *, graph->value_count);
}

void world_finish(struct world *w)
{
    ct_arena_finish(&w->arena);
}

/* The first of the ranks that differ from this one along axes only. */
static int64_t first_along(const struct world *w, int64_t rank, ct_axes axes)
{
    int64_t ranks[64];

    ct_mesh_group(&w->graph->mesh, rank, axes, ranks);
    return ranks[0];
}

/* Axes along which all ranks hold the same. */
static ct_axes replicated(const struct world *w, const struct ct_value *v)
{
    ct_axes all = ((ct_axes)1 << w->graph->mesh.count) - 1;

    return all & ~ct_sharding_axes(&v->sharding) & ~v->sharding.unreduced;
}

/* A summand of v: the first of a group has what the others leave of the whole. */
static void scatter_summand(struct world *w, const struct ct_value *v, int64_t rank,
                            const struct ct_tensor *whole, struct random *random)
{
    struct ct_tensor *mine = &w->shard[v->id][rank];
    struct ct_tensor *first = &w->shard[v->id][first_along(w, rank, v->sharding.unreduced)];
    struct box box = box_of(w, v, rank);

    for (int64_t i = 0; i < ct_tensor_count(mine); i++) {
        if (mine == first) {
            ct_tensor_store(mine, i, ct_tensor_load(whole, index_in(&box, whole->shape, i)));
            continue;
        }
        ct_tensor_store(mine, i, random_normal(random));
        ct_tensor_store(first, i, ct_tensor_load(first, i) - ct_tensor_load(mine, i));
    }
}

void world_scatter(struct world *w, const struct ct_value *v, const struct ct_tensor *whole,
                   struct random *random)
{
    struct ct_tensor *shard = shards_of(w, v);
    ct_axes same = replicated(w, v);

    for (int64_t rank = 0; rank < w->ranks; rank++)
        if (first_along(w, rank, same) == rank)
            scatter_summand(w, v, rank, whole, random);
    for (int64_t rank = 0; rank < w->ranks; rank++)
        if (first_along(w, rank, same) != rank)
            memcpy(shard[rank].data, shard[first_along(w, rank, same)].data,
                   (size_t)ct_tensor_count(&shard[rank]) * ct_dtype_size(v->dtype));
}

int world_gather(struct world *w, const struct ct_value *v, struct ct_tensor *whole)
{
    const struct ct_tensor *shard = w->shard[v->id];
    ct_axes same = replicated(w, v);

    *whole = world_whole(w, v);
    for (int64_t rank = 0; rank < w->ranks; rank++) {
        int64_t twin = first_along(w, rank, same), n = ct_tensor_count(&shard[rank]);
        struct box box = box_of(w, v, rank);

        if (twin != rank &&
            memcmp(shard[rank].data, shard[twin].data, (size_t)n * ct_dtype_size(v->dtype)))
            return ct_fail(CT_EINVAL, "%%%s differs on ranks %lld and %lld", v->name,
                           (long long)twin, (long long)rank);
        for (int64_t i = 0; twin == rank && i < n; i++) {
            int64_t at = index_in(&box, whole->shape, i);

            ct_tensor_store(whole, at, ct_tensor_load(whole, at) + ct_tensor_load(&shard[rank], i));
        }
    }
    return 0;
}

/* ---- collectives ---- */

struct collective {
    struct world *w;
    const struct ct_op *op;
    int axis[CT_MAX_AXES], count; /* major first */
    int64_t size;
    int dim;
};

/* The group's axes, major first: as they split the dimension, or as in the mesh. */
static void order_axes(struct collective *c, ct_axes axes)
{
    const struct ct_sharding *in = &c->op->in[0]->sharding, *out = &c->op->out[0]->sharding;
    const struct ct_sharding *s = ct_sharding_axes(in) & axes ? in : out;

    for (int i = 0; i < s->count[c->dim]; i++)
        if (axes >> s->axis[c->dim][i] & 1)
            c->axis[c->count++] = s->axis[c->dim][i];
    if (c->count)
        return;
    for (int i = 0; i < CT_MAX_AXES; i++)
        if (axes >> i & 1)
            c->axis[c->count++] = i;
}

static struct collective collective_of(struct world *w, const struct ct_op *op)
{
    const struct ct_mesh *mesh = &w->graph->mesh;
    struct collective c = {.w = w, .op = op, .size = 1};
    const struct ct_collective_attrs *attrs = op->attrs;

    if (op->type != &ct_op_all_reduce)
        c.dim = (int)attrs->dim;
    order_axes(&c, attrs->axes);
    for (int i = 0; i < c.count; i++)
        c.size *= mesh->axis[c.axis[i]].size;
    return c;
}

/* Ranks between neighbours along an axis. */
static int64_t stride_of(const struct ct_mesh *mesh, int axis)
{
    int64_t ranks = 1;

    for (int i = axis + 1; i < mesh->count; i++)
        ranks *= mesh->axis[i].size;
    return ranks;
}

/* Member i of rank's group: coordinates along the axes, the last one fastest. */
static int64_t member(const struct collective *c, int64_t rank, int64_t i)
{
    const struct ct_mesh *mesh = &c->w->graph->mesh;

    for (int k = c->count - 1; k >= 0; k--) {
        int axis = c->axis[k];
        int64_t size = mesh->axis[axis].size;

        rank += (i % size - ct_mesh_coordinate(mesh, rank, axis)) * stride_of(mesh, axis);
        i /= size;
    }
    return rank;
}

static int64_t position(const struct collective *c, int64_t rank)
{
    int64_t i = 0;

    while (member(c, rank, i) != rank)
        i++;
    return i;
}

/* Shard number i of n: the elements are dealt one by one. */
static void chunk(int64_t size, int64_t i, int64_t n, int64_t *from, int64_t *count)
{
    *from = *count = 0;
    for (int64_t k = 0; k < size; k++) {
        *from += k % n < i;
        *count += k % n == i;
    }
}

/* Copy a box of one tensor onto a box of the same shape of another; add: onto what is there. */
static void copy_box(const struct ct_tensor *to, const struct box *in_to,
                     const struct ct_tensor *from, const struct box *in_from, bool add)
{
    for (int64_t i = 0; i < ct_shape_count(in_to->rank, in_to->shape); i++) {
        int64_t at = index_in(in_to, to->shape, i);
        double x = ct_tensor_load(from, index_in(in_from, from->shape, i));

        ct_tensor_store(to, at, add ? ct_tensor_load(to, at) + x : x);
    }
}

static struct box whole_box(const struct ct_tensor *t)
{
    struct box box = {.rank = t->ndim};

    memcpy(box.shape, t->shape, sizeof(box.shape));
    return box;
}

static void all_gather(const struct collective *c, int64_t rank, const struct ct_tensor *in,
                       const struct ct_tensor *out)
{
    struct box place = whole_box(out);

    for (int64_t i = 0, at = 0; i < c->size; i++) {
        const struct ct_tensor *shard = &in[member(c, rank, i)];
        struct box box = whole_box(shard);

        place.offset[c->dim] = at;
        place.shape[c->dim] = shard->shape[c->dim];
        copy_box(out, &place, shard, &box, false);
        at += shard->shape[c->dim];
    }
}

/* This rank's chunk of every member's tensor, added up; a slice is that of its own alone. */
static void scatter(const struct collective *c, int64_t rank, const struct ct_tensor *in,
                    const struct ct_tensor *out, bool reduce)
{
    struct box from = whole_box(&in[rank]), to;

    for (int k = 0; k < c->count; k++) { /* a chunk of a chunk, the major axis first */
        const struct ct_mesh *mesh = &c->w->graph->mesh;
        int64_t at;

        chunk(from.shape[c->dim], ct_mesh_coordinate(mesh, rank, c->axis[k]),
              mesh->axis[c->axis[k]].size, &at, &from.shape[c->dim]);
        from.offset[c->dim] += at;
    }
    to = from;
    to.offset[c->dim] = 0;
    for (int64_t i = 0; i < c->size; i++)
        if (reduce || member(c, rank, i) == rank)
            copy_box(out, &to, &in[member(c, rank, i)], &from, true);
}

static void all_reduce(const struct collective *c, int64_t rank, const struct ct_tensor *in,
                       const struct ct_tensor *out)
{
    struct box box = whole_box(out);

    for (int64_t i = 0; i < c->size; i++)
        copy_box(out, &box, &in[member(c, rank, i)], &box, true);
}

static void all_to_all(const struct collective *c, int64_t rank, const struct ct_tensor *in,
                       const struct ct_tensor *out)
{
    int to = (int)ct_op_int(c->op, "to");

    for (int64_t i = 0, at = 0; i < c->size; i++) {
        const struct ct_tensor *shard = &in[member(c, rank, i)];
        struct box from = whole_box(shard), place;

        chunk(shard->shape[to], position(c, rank), c->size, &from.offset[to], &from.shape[to]);
        place = from;
        place.offset[to] = 0;
        place.offset[c->dim] = at;
        copy_box(out, &place, shard, &from, false);
        at += shard->shape[c->dim];
    }
}

/* The i-th value of a collective. */
static int run_collective(struct world *w, const struct ct_op *op, int i)
{
    const struct ct_tensor *in = w->shard[op->in[i]->id], *out = shards_of(w, op->out[i]);
    struct collective c = collective_of(w, op);
    const char *name = op->type->name;

    for (int64_t rank = 0; rank < w->ranks; rank++) {
        if (!strcmp(name, "all_gather"))
            all_gather(&c, rank, in, &out[rank]);
        else if (!strcmp(name, "reduce_scatter"))
            scatter(&c, rank, in, &out[rank], true);
        else if (!strcmp(name, "slice"))
            scatter(&c, rank, in, &out[rank], false);
        else if (!strcmp(name, "all_reduce"))
            all_reduce(&c, rank, in, &out[rank]);
        else if (!strcmp(name, "all_to_all"))
            all_to_all(&c, rank, in, &out[rank]);
        else
            return ct_fail(CT_EINVAL, "%s is no collective that is known here", name);
    }
    return 0;
}

/* ---- ops ---- */

int launch_reference(const struct ct_op *op, const struct ct_tensor *in,
                     const struct ct_tensor *out, const struct ct_mesh *mesh, int64_t rank)
{
    return op->type->reference(&(struct ct_launch){.op = op,
                                                   .in = in,
                                                   .out = out,
                                                   .ins = op->ins,
                                                   .outs = op->outs,
                                                   .rank = rank,
                                                   .mesh = mesh});
}

static int run_on_ranks(struct world *w, const struct ct_op *op)
{
    struct ct_tensor *in = ct_arena_array(&w->arena, struct ct_tensor, op->ins + 1);
    struct ct_tensor *out = ct_arena_array(&w->arena, struct ct_tensor, op->outs + 1);
    int rc = 0;

    for (int64_t rank = 0; rc == 0 && rank < w->ranks; rank++) {
        for (int i = 0; i < op->ins; i++)
            in[i] = op->in[i] ? w->shard[op->in[i]->id][rank] : (struct ct_tensor){0};
        for (int i = 0; i < op->outs; i++)
            out[i] = shards_of(w, op->out[i])[rank];
        rc = w->launch(op, in, out, &w->graph->mesh, rank);
    }
    return rc;
}

/* Inputs and outputs of an op, whole. */
struct wholes {
    struct ct_tensor *in, *out;
};

static int gather_inputs(struct world *w, const struct ct_op *op, struct wholes *all)
{
    int rc = 0;

    all->in = ct_arena_array(&w->arena, struct ct_tensor, op->ins + 1);
    all->out = ct_arena_array(&w->arena, struct ct_tensor, op->outs + 1);
    for (int i = 0; rc == 0 && i < op->ins; i++)
        if (op->in[i])
            rc = world_gather(w, op->in[i], &all->in[i]);
    for (int i = 0; i < op->outs; i++)
        all->out[i] = world_whole(w, op->out[i]);
    return rc;
}

static int check_value(struct world *w, const struct ct_value *v, const struct ct_tensor *want)
{
    struct ct_tensor got;
    int rc = world_gather(w, v, &got);

    return rc < 0 ? rc : compare_tensors(v->name, &got, want);
}

static int check_result(struct world *w, const struct ct_op *op, const struct wholes *all)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < op->outs; i++)
        rc = check_value(w, op->out[i], &all->out[i]);
    for (int i = 0; rc == 0 && i < op->ins; i++)
        if (ct_op_mutates(op, i))
            rc = check_value(w, op->in[i], &all->in[i]);
    return rc;
}

int world_run_op(struct world *w, const struct ct_op *op)
{
    bool moves = !op->type->reference;
    struct wholes all;
    int rc = gather_inputs(w, op, &all);

    for (int i = 0; moves && i < op->ins && rc == 0; i++) {
        rc = run_collective(w, op, i);
        all.out[i] = all.in[i];
    }
    if (rc == 0 && !moves)
        rc = run_on_ranks(w, op);
    if (rc == 0 && !moves)
        rc = launch_reference(op, all.in, all.out, NULL, 0);
    if (rc == 0)
        rc = check_result(w, op, &all);
    return rc < 0 ? ct_context(rc, "%s", op->type->name) : 0;
}

/* The ops of the init part, or all others. */
static int run_part(struct world *w, bool init)
{
    int rc = 0;

    for (const struct ct_op *op = w->graph->first; rc == 0 && op; op = op->next)
        if ((op->section->part == CT_PART_INIT) == init)
            rc = world_run_op(w, op);
    return rc;
}

int world_run(struct world *w)
{
    int rc = run_part(w, true);

    return rc < 0 ? rc : run_part(w, false);
}
