/*
 * Redistribution. Splits that the target needs come first: replicas by a slice, which is free and
 * makes all later steps smaller, pending sums by a reduce-scatter. Then come other pending sums,
 * axes that change their dimension, gathers, and slices that had to wait for those.
 */
#include <string.h>

#include <ctitan/error.h>

#include "shard/redistribute.h"

static bool is_prefix(const struct ct_sharding *a, const struct ct_sharding *b, int dim)
{
    return a->count[dim] <= b->count[dim] && !memcmp(a->axis[dim], b->axis[dim], a->count[dim]);
}

/* Would appending axis to s on dim keep it a prefix of the axes in `to`? */
static bool may_append(const struct ct_sharding *s, const struct ct_sharding *to, int dim, int axis)
{
    return is_prefix(s, to, dim) && s->count[dim] < to->count[dim] &&
           to->axis[dim][s->count[dim]] == axis;
}

static int dim_to_append(const struct ct_sharding *s, const struct ct_sharding *to, int ndim,
                         int axis)
{
    for (int d = 0; d < ndim; d++)
        if (may_append(s, to, d, axis))
            return d;
    return -1;
}

static struct ct_step *push(struct ct_steps *steps, const struct ct_op_type *op, int axis, int dim,
                            const struct ct_sharding *now)
{
    struct ct_step *s = &steps->step[steps->count++];

    *s = (struct ct_step){.op = op,
                          .axes = (ct_axes)1 << axis,
                          .axis = {(uint8_t)axis},
                          .count = 1,
                          .dim = dim,
                          .reduction = now->reduction,
                          .after = *now};
    return s;
}

static void extend(struct ct_step *s, int axis, const struct ct_sharding *now)
{
    s->axes |= (ct_axes)1 << axis;
    s->axis[s->count++] = (uint8_t)axis;
    s->after = *now;
}

/* The last step, if it scatters along dim; the next scatter along dim joins it. */
static struct ct_step *scattering(struct ct_steps *steps, int dim)
{
    struct ct_step *last = steps->count ? &steps->step[steps->count - 1] : NULL;

    return last && last->op == &ct_op_reduce_scatter && last->dim == dim ? last : NULL;
}

/* Add the target's next split, by a pending axis or by a free one. */
static bool split_next(int ndim, struct ct_sharding *now, const struct ct_sharding *to,
                       bool pending, struct ct_steps *steps)
{
    for (int d = 0; d < ndim; d++) {
        int axis;
        ct_axes bit;

        if (!is_prefix(now, to, d) || now->count[d] == to->count[d])
            continue;
        axis = to->axis[d][now->count[d]];
        bit = (ct_axes)1 << axis;
        if (ct_sharding_axes(now) & bit || pending != ((now->unreduced & bit) != 0))
            continue;
        now->unreduced &= ~bit;
        now->axis[d][now->count[d]++] = (uint8_t)axis;
        if (pending && scattering(steps, d))
            extend(scattering(steps, d), axis, now);
        else
            push(steps, pending ? &ct_op_reduce_scatter : &ct_op_slice, axis, d, now);
        return true;
    }
    return false;
}

static void reduce(const struct ct_mesh *mesh, struct ct_sharding *now,
                   const struct ct_sharding *to, struct ct_steps *steps)
{
    ct_axes pending = now->unreduced & ~to->unreduced;
    struct ct_step *all = NULL;

    for (int a = 0; a < mesh->count; a++) {
        if (!(pending >> a & 1))
            continue;
        now->unreduced &= ~((ct_axes)1 << a);
        if (all)
            extend(all, a, now);
        else
            all = push(steps, &ct_op_all_reduce, a, 0, now);
    }
}

/* Move an axis that is last on one dimension and next on another. */
static bool move(int ndim, struct ct_sharding *now, const struct ct_sharding *to,
                 struct ct_steps *steps)
{
    for (int d = 0; d < ndim; d++) {
        int axis, dim;

        if (is_prefix(now, to, d))
            continue;
        axis = now->axis[d][now->count[d] - 1];
        dim = dim_to_append(now, to, ndim, axis);
        if (dim < 0)
            continue;
        now->count[d]--;
        now->axis[dim][now->count[dim]++] = (uint8_t)axis;
        push(steps, &ct_op_all_to_all, axis, d, now)->to = dim;
        return true;
    }
    return false;
}

/* Gather all axes of a dimension after those shared with the target. */
static bool gather(int ndim, struct ct_sharding *now, const struct ct_sharding *to,
                   struct ct_steps *steps)
{
    for (int d = 0; d < ndim; d++) {
        int keep = 0, old = now->count[d];
        struct ct_step *s;

        while (keep < old && keep < to->count[d] && now->axis[d][keep] == to->axis[d][keep])
            keep++;
        if (keep == old)
            continue;
        now->count[d] = (uint8_t)keep;
        s = push(steps, &ct_op_all_gather, now->axis[d][keep], d, now);
        for (int i = keep + 1; i < old; i++)
            extend(s, now->axis[d][i], now);
        return true;
    }
    return false;
}

static void split(int ndim, struct ct_sharding *now, const struct ct_sharding *to,
                  struct ct_steps *steps)
{
    do {
        while (split_next(ndim, now, to, false, steps))
            ;
    } while (split_next(ndim, now, to, true, steps));
}

static int refuse(const struct ct_mesh *mesh, int ndim, const struct ct_sharding *from,
                  const struct ct_sharding *to)
{
    char is[160], wanted[160];

    ct_sharding_print(from, mesh, ndim, is, sizeof(is));
    ct_sharding_print(to, mesh, ndim, wanted, sizeof(wanted));
    return ct_fail(CT_EINVAL, "it is %s, and moving it cannot make it a pending sum: %s",
                   *is ? is : "replicated", wanted);
}

int ct_redistribute_steps(const struct ct_mesh *mesh, int ndim, const struct ct_sharding *from,
                          const struct ct_sharding *to, struct ct_steps *steps)
{
    struct ct_sharding now = *from;

    steps->count = 0;
    if (to->unreduced & ~from->unreduced || (to->unreduced && to->reduction != from->reduction))
        return refuse(mesh, ndim, from, to);
    split(ndim, &now, to, steps);
    reduce(mesh, &now, to, steps);
    while (move(ndim, &now, to, steps) || gather(ndim, &now, to, steps))
        split(ndim, &now, to, steps);
    return 0;
}

static double local_bytes(const struct ct_mesh *mesh, const struct ct_value *v,
                          const struct ct_sharding *s)
{
    int64_t local[CT_MAX_DIMS];

    ct_sharding_local(s, mesh, 0, v->ndim, v->shape, local, NULL);
    return (double)ct_dtype_bytes(v->dtype, v->ndim, local);
}

double ct_redistribute_bytes(const struct ct_mesh *mesh, const struct ct_value *value,
                             const struct ct_sharding *from, const struct ct_steps *steps)
{
    double sum = 0;

    for (int i = 0; i < steps->count; i++) {
        const struct ct_step *s = &steps->step[i];
        double before = local_bytes(mesh, value, from), after = local_bytes(mesh, value, &s->after);

        if (s->op->collective->sent)
            sum += s->op->collective->sent(before, after, (double)ct_mesh_degree(mesh, s->axes));
        from = &s->after;
    }
    return sum;
}
