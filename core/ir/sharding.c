/*
 * Shardings: their shards' places and sizes, and their text, like "[dp.tp, -]+{cp}".
 */
#include <assert.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/sharding.h>

bool ct_sharding_equal(const struct ct_sharding *a, const struct ct_sharding *b)
{
    if (a->unreduced != b->unreduced || memcmp(a->count, b->count, sizeof(a->count)))
        return false;
    if (a->unreduced && a->reduction != b->reduction)
        return false;
    for (int d = 0; d < CT_MAX_DIMS; d++)
        if (memcmp(a->axis[d], b->axis[d], a->count[d]))
            return false;
    return true;
}

bool ct_sharding_is_replicated(const struct ct_sharding *s)
{
    return !ct_sharding_axes(s) && !s->unreduced;
}

ct_axes ct_sharding_axes(const struct ct_sharding *s)
{
    ct_axes axes = 0;

    for (int d = 0; d < CT_MAX_DIMS; d++)
        for (int i = 0; i < s->count[d]; i++)
            axes |= (ct_axes)1 << s->axis[d][i];
    return axes;
}

void ct_sharding_split(struct ct_sharding *s, int dim, int axis)
{
    assert(dim >= 0 && dim < CT_MAX_DIMS && axis >= 0 && axis < CT_MAX_AXES);
    assert(!(ct_sharding_axes(s) >> axis & 1));
    s->axis[dim][s->count[dim]++] = (uint8_t)axis;
}

int ct_sharding_check(const struct ct_sharding *s, const struct ct_mesh *mesh, int ndim)
{
    ct_axes seen = 0;

    for (int d = 0; d < CT_MAX_DIMS; d++) {
        if (s->count[d] > CT_MAX_AXES)
            return ct_fail(CT_EINVAL, "dimension %d is split by %d axes", d, s->count[d]);
        if (s->count[d] && d >= ndim)
            return ct_fail(CT_EINVAL, "dimension %d is split, but there are only %d", d, ndim);
        for (int i = 0; i < s->count[d]; i++) {
            int axis = s->axis[d][i];

            if (axis >= mesh->count)
                return ct_fail(CT_EINVAL, "axis %d is outside the mesh of %d", axis, mesh->count);
            if (seen >> axis & 1)
                return ct_fail(CT_EINVAL, "axis %s appears twice", mesh->axis[axis].name);
            seen |= (ct_axes)1 << axis;
        }
    }
    for (int axis = 0; axis < mesh->count; axis++)
        if (s->unreduced & seen & (ct_axes)1 << axis)
            return ct_fail(CT_EINVAL, "axis %s both splits a dimension and is unreduced",
                           mesh->axis[axis].name);
    if (s->unreduced >> mesh->count)
        return ct_fail(CT_EINVAL, "an unreduced axis is outside the mesh of %d", mesh->count);
    return 0;
}

int64_t ct_shard_begin(int64_t size, int64_t shards, int64_t index)
{
    int64_t larger = size % shards;

    return size / shards * index + (index < larger ? index : larger);
}

int64_t ct_shard_of(int64_t size, int64_t shards, int64_t at)
{
    int64_t least = size / shards, larger = size % shards, in_larger = larger * (least + 1);

    return at < in_larger ? at / (least + 1) : larger + (at - in_larger) / least;
}

void ct_sharding_local(const struct ct_sharding *s, const struct ct_mesh *mesh, int64_t rank,
                       int ndim, const int64_t *global, int64_t *local, int64_t *offset)
{
    for (int d = 0; d < ndim; d++) {
        int64_t size = global[d], begin = 0;

        for (int i = 0; i < s->count[d]; i++) {
            int axis = s->axis[d][i];
            int64_t shards = mesh->axis[axis].size;
            int64_t index = ct_mesh_coordinate(mesh, rank, axis);
            int64_t from = ct_shard_begin(size, shards, index);

            begin += from;
            size = ct_shard_begin(size, shards, index + 1) - from;
        }
        local[d] = size;
        if (offset)
            offset[d] = begin;
    }
}

static void put_dimension(struct ct_line *line, const struct ct_sharding *s,
                          const struct ct_mesh *mesh, int d)
{
    for (int i = 0; i < s->count[d]; i++)
        ct_line_add(line, "%s%s", i ? "." : "", mesh->axis[s->axis[d][i]].name);
    if (!s->count[d])
        ct_line_add(line, "-");
}

/* "+{tp, cp}" */
static void put_axes(struct ct_line *line, const struct ct_mesh *mesh, const char *kind,
                     ct_axes axes)
{
    const char *before = "{";

    if (!axes)
        return;
    ct_line_add(line, "%s", kind);
    for (int i = 0; i < mesh->count; i++)
        if (axes >> i & 1) {
            ct_line_add(line, "%s%s", before, mesh->axis[i].name);
            before = ", ";
        }
    ct_line_add(line, "}");
}

int ct_sharding_print(const struct ct_sharding *s, const struct ct_mesh *mesh, int ndim, char *text,
                      size_t room)
{
    struct ct_line line = {text, room, 0};

    if (room)
        *text = '\0';
    if (ct_sharding_axes(s)) {
        for (int d = 0; d < ndim; d++) {
            ct_line_add(&line, d ? ", " : "[");
            put_dimension(&line, s, mesh, d);
        }
        ct_line_add(&line, "]");
    }
    put_axes(&line, mesh, s->reduction == CT_REDUCE_MAX ? "max" : "+", s->unreduced);
    return (int)line.used;
}
