/*
 * Parts of values: copied unless they share their whole's memory.
 */

#include "comm/groups.h"

static int prepare_part(struct ct_prepare *p)
{
    struct ct_collective *c = ct_arena_new(p->arena, struct ct_collective);

    c->dtype = p->in[0].dtype;
    p->state = c;
    return 0;
}

/* In both tensors, dimensions from the returned one on are one run of *elements in memory. */
static int run_of(const struct ct_tensor *a, const struct ct_tensor *b, int64_t *elements)
{
    int d = a->ndim;

    for (*elements = 1; d > 0 && (a->shape[d - 1] == 1 ||
                                  (a->stride[d - 1] == *elements && b->stride[d - 1] == *elements));
         d--)
        *elements *= a->shape[d - 1];
    return d;
}

/* Copy between tensors of one shape: one run for each index of the leading dimensions. */
static int copy(const struct ct_launch *l, const struct ct_tensor *to, const struct ct_tensor *from)
{
    size_t item = ct_dtype_size(to->dtype);
    int64_t index[CT_MAX_DIMS] = {0}, elements, rows;
    int last = run_of(to, from, &elements) - 1, rc = 0, d;

    if (ct_tensor_count(to) == 0)
        return 0;
    rows = last >= 0 ? to->shape[last] : 1;
    do {
        int64_t there = 0, here = 0;

        for (d = 0; d < last; d++) {
            there += index[d] * to->stride[d];
            here += index[d] * from->stride[d];
        }
        rc = ct_launch_copy(l, (char *)to->data + (size_t)there * item,
                            last >= 0 ? (size_t)to->stride[last] * item : 0,
                            (const char *)from->data + (size_t)here * item,
                            last >= 0 ? (size_t)from->stride[last] * item : 0,
                            (size_t)elements * item, rows);
        for (d = last - 1; d >= 0 && ++index[d] == to->shape[d]; d--)
            index[d] = 0;
    } while (rc == 0 && d >= 0);
    return rc;
}

/* Fill with zeros: one run for each index of the leading dimensions. */
static int fill_zeros(const struct ct_launch *l, const struct ct_tensor *t)
{
    size_t item = ct_dtype_size(t->dtype);
    int64_t index[CT_MAX_DIMS] = {0}, elements;
    int last = run_of(t, t, &elements), rc = 0, d;

    if (ct_tensor_count(t) == 0)
        return 0;
    do {
        int64_t at = 0;

        for (d = 0; d < last; d++)
            at += index[d] * t->stride[d];
        rc = ct_launch_clear(l, (char *)t->data + (size_t)at * item, (size_t)elements * item);
        for (d = last - 1; d >= 0 && ++index[d] == t->shape[d]; d--)
            index[d] = 0;
    } while (rc == 0 && d >= 0);
    return rc;
}

/* The part of a whole from index `at` of dimension dim, in the shape of `like`. */
static struct ct_tensor part_of(const struct ct_tensor *whole, const struct ct_tensor *like,
                                int64_t dim, int64_t at)
{
    struct ct_tensor part = *whole;

    part.shape[dim] = like->shape[dim];
    part.data =
        (char *)whole->data + (size_t)(at * whole->stride[dim]) * ct_dtype_size(whole->dtype);
    return part;
}

static int run_part(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_tensor *whole = l->ins == 1 ? l->in : l->out;
    int rc = 0;

    (void)by;
    for (int i = 0, dim; rc == 0 && i < l->ins; i++) {
        const struct ct_tensor *part = l->ins == 1 ? l->out : &l->in[i];
        int64_t from = l->op->type->part(l->op, l->mesh, l->rank, i, &dim);
        struct ct_tensor there = part_of(whole, part, dim, from);

        rc = l->ins == 1 ? copy(l, part, &there) : copy(l, &there, part);
    }
    return rc;
}

static int run_pad(const struct ct_launch *l, const struct ct_transport *by)
{
    struct ct_tensor there =
        part_of(l->out, l->in, ct_op_int(l->op, "dim"), ct_op_int(l->op, "from"));
    int rc = fill_zeros(l, l->out);

    (void)by;
    return rc < 0 ? rc : copy(l, &there, l->in);
}

const struct ct_collective_ops ct_collective_narrow = CT_COLLECTIVE(prepare_part, run_part, NULL),
                               ct_collective_pad = CT_COLLECTIVE(prepare_part, run_pad, NULL),
                               ct_collective_concat = CT_COLLECTIVE(prepare_part, run_part, NULL);
