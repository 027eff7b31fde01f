/*
 * The op types of pipelines along a ring: parts of a whole that each rank counts from its own shard
 * on, and the sum of the ranks' terms.
 */
#include <string.h>

#include <ctitan/comm.h>
#include <ctitan/lib/ops.h>
#include <ctitan/op_author.h>

#include "tp_async.h"

#define DIM(T) CT_OPT_INT(T, dim, "dim", "0", 0, CT_MAX_DIMS - 1, "Along this dimension")
#define SIZE(T) CT_OPT_INT(T, size, "size", "1", 0, INT32_MAX, "Its size afterwards")
#define AXES CT_OPT_AXES(struct async_ring, axes, "axes", "Axes of the ring")

static void resize(struct ct_op *op, int64_t dim, int64_t size)
{
    struct ct_value *y = op->out[0];

    y->ndim = op->in[0]->ndim;
    memcpy(y->shape, op->in[0]->shape, sizeof(y->shape));
    y->shape[dim] = size;
}

/* ---- local ---- */

static int local_infer(struct ct_op *op)
{
    const struct async_local *attrs = op->attrs;

    resize(op, attrs->dim, attrs->size);
    return 0;
}

const struct ct_op_type async_op_local = {
    .size = sizeof(struct ct_op_type),
    .name = "tp_async.local",
    .summary = "a rank's shard as a value that differs from rank to rank, or back",
    .signature = "x A -> y A",
    .flags = CT_OP_VIEW | CT_OP_LINEAR,
    .attrs = (const struct ct_option[]){DIM(struct async_local), SIZE(struct async_local), {0}},
    .attrs_size = sizeof(struct async_local),
    .infer = local_infer,
};

/* ---- parts ---- */

/* The rank's place in the ring of `ranks`. */
static int64_t place_in(const struct async_ring *ring, const struct ct_mesh *mesh, int64_t rank,
                        int64_t *ranks)
{
    int axis = ring->axes ? __builtin_ctz(ring->axes) : 0;

    *ranks = ring->axes ? mesh->axis[axis].size : 1;
    return ring->axes ? ct_mesh_coordinate(mesh, rank, axis) : 0;
}

/* The index in a dimension of `length` that lies `from` behind the rank's own shard. */
static int64_t around(const struct async_ring *ring, const struct ct_mesh *mesh, int64_t rank,
                      int64_t length, int64_t from)
{
    int64_t ranks, place = place_in(ring, mesh, rank, &ranks);

    return (from + length / ranks * place) % length;
}

static int narrow_infer(struct ct_op *op)
{
    const struct async_ring *attrs = op->attrs;

    resize(op, attrs->dim, attrs->size);
    return 0;
}

static int64_t narrow_part(const struct ct_op *op, const struct ct_mesh *mesh, int64_t rank, int i,
                           int *dim)
{
    const struct async_ring *attrs = op->attrs;

    (void)i;
    *dim = (int)attrs->dim;
    return around(attrs, mesh, rank, op->in[0]->shape[*dim], attrs->from);
}

const struct ct_op_type async_op_ring_narrow = {
    .size = sizeof(struct ct_op_type),
    .name = "tp_async.ring_narrow",
    .summary = "a part of a dimension, counted from the rank's own shard",
    .signature = "x A -> y A",
    .flags = CT_OP_LINEAR,
    .attrs =
        (const struct ct_option[]){DIM(struct async_ring),
                                   CT_OPT_INT(struct async_ring, from, "from", "0", 0, INT32_MAX,
                                              "Its first index, from the own shard on"),
                                   SIZE(struct async_ring),
                                   AXES,
                                   {0}},
    .attrs_size = sizeof(struct async_ring),
    .infer = narrow_infer,
    .collective = &ct_collective_narrow,
    .part = narrow_part,
};

static int concat_infer(struct ct_op *op)
{
    int64_t dim = ((const struct async_ring *)op->attrs)->dim, size = 0;

    for (int i = 0; i < op->ins; i++)
        size += op->in[i]->shape[dim];
    resize(op, dim, size);
    return 0;
}

static int64_t concat_part(const struct ct_op *op, const struct ct_mesh *mesh, int64_t rank, int i,
                           int *dim)
{
    const struct async_ring *attrs = op->attrs;
    int64_t from = 0;

    *dim = (int)attrs->dim;
    while (i-- > 0)
        from += op->in[i]->shape[*dim];
    return around(attrs, mesh, rank, op->out[0]->shape[*dim], from);
}

const struct ct_op_type async_op_ring_concat = {
    .size = sizeof(struct ct_op_type),
    .name = "tp_async.ring_concat",
    .summary = "values one behind the other along a dimension, from the rank's own shard on",
    .signature = "*x A -> y A",
    .flags = CT_OP_LINEAR,
    .attrs = (const struct ct_option[]){DIM(struct async_ring), AXES, {0}},
    .attrs_size = sizeof(struct async_ring),
    .infer = concat_infer,
    .collective = &ct_collective_concat,
    .part = concat_part,
};

/* ---- sum ---- */

#define MOST 64 /* terms without memory for their list */

struct sum {
    const struct ct_launch *launch;
    const void *const *term; /* in the order of the ranks */
};

static int sum_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int i = 0; i < l->ins; i++)
        for (int64_t k = 0; k < ct_tensor_count(&l->out[0]); k++)
            r.out[0][k] += r.in[i][k];
    return ct_reference_end(&r, 0);
}

const struct ct_op_type async_op_ring_sum = {
    .size = sizeof(struct ct_op_type),
    .name = "tp_async.ring_sum",
    .summary = "the sum of the ranks' values, which come in the order of the ring",
    .signature = "*x[.] T -> y[.] T",
    .samples = "real[2,4]; real[2,4] real[2,4] real[2,4]",
    .flags = CT_OP_LINEAR,
    .attrs = (const struct ct_option[]){AXES, {0}},
    .attrs_size = sizeof(struct async_ring),
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .reference = sum_reference,
};

static void add(void *context, int64_t begin, int64_t end)
{
    const struct sum *s = context;
    const struct ct_tensor *out = &s->launch->out[0];
    size_t size = ct_dtype_size(out->dtype);
    const void *at[MOST];

    for (int i = 0; i < s->launch->ins; i++)
        at[i] = (const char *)s->term[i] + (size_t)begin * size;
    ct_reduce((char *)out->data + (size_t)begin * size, at, s->launch->ins, (size_t)(end - begin),
              out->dtype, CT_REDUCE_SUM);
}

static int run_sum(const struct ct_launch *l)
{
    const void *term[MOST];
    int64_t ranks, place = place_in(l->op->attrs, l->mesh, l->rank, &ranks);

    for (int i = 0; i < l->ins; i++)
        term[(place + i) % l->ins] = l->in[i].data;
    ct_parallel(l, ct_tensor_count(&l->out[0]), add, &(struct sum){l, term});
    return 0;
}

static bool accepts_sum(const struct ct_prepare *p)
{
    return p->ins <= MOST;
}

const struct ct_kernel async_ring_kernels[] = {
    CT_KERNEL("tp_async.ring_sum", "ordered", 0, accepts_sum, NULL, run_sum), {0}};
