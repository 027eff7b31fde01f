/*
 * Groups of ranks that communicate, and what a collective sends.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>

#include "collective.h"

ct_axes ct_mesh_axes(const struct ct_mesh *mesh, const char *text)
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

int ct_comm_check_ranks(const struct ct_comm *comm, const int64_t *ranks, int count,
                        const char *name)
{
    bool member = false;

    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= comm->world)
            return ct_fail(CT_EINVAL, "group '%s': rank %lld in a world of %d", name,
                           (long long)ranks[i], comm->world);
        for (int k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return ct_fail(CT_EINVAL, "group '%s': rank %lld twice", name, (long long)ranks[i]);
        member |= ranks[i] == comm->rank;
    }
    return member ? 0 : ct_fail(CT_EINVAL, "group '%s': rank %d is no member", name, comm->rank);
}

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

static double bytes_of(const struct ct_tensor *t)
{
    return (double)ct_tensor_count(t) * (double)ct_dtype_size(t->dtype);
}

double ct_collective_bytes(const struct ct_op *op, const struct ct_mesh *mesh,
                           const struct ct_tensor *in, const struct ct_tensor *out)
{
    double n = (double)ct_mesh_degree(mesh, ct_mesh_axes(mesh, ct_op_string(op, "axes"))), sum = 0;
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
