/*
 * Coordinates in a mesh. Ranks are numbered along the last axis first.
 */
#include <string.h>

#include <ctitan/mesh.h>

int ct_mesh_find(const struct ct_mesh *mesh, const char *name)
{
    for (int i = 0; i < mesh->count; i++)
        if (!strcmp(mesh->axis[i].name, name))
            return i;
    return -1;
}

/* Rank difference between neighbours along axis. */
static int64_t stride(const struct ct_mesh *mesh, int axis)
{
    int64_t ranks = 1;

    for (int i = axis + 1; i < mesh->count; i++)
        ranks *= mesh->axis[i].size;
    return ranks;
}

int64_t ct_mesh_coordinate(const struct ct_mesh *mesh, int64_t rank, int axis)
{
    return rank / stride(mesh, axis) % mesh->axis[axis].size;
}

int64_t ct_mesh_degree(const struct ct_mesh *mesh, ct_axes axes)
{
    int64_t degree = 1;

    for (int i = 0; i < mesh->count; i++)
        if (axes >> i & 1)
            degree *= mesh->axis[i].size;
    return degree;
}

int64_t ct_mesh_group(const struct ct_mesh *mesh, int64_t rank, ct_axes axes, int64_t *ranks)
{
    int64_t count = 1, first = rank;

    for (int i = 0; i < mesh->count; i++)
        if (axes >> i & 1)
            first -= ct_mesh_coordinate(mesh, rank, i) * stride(mesh, i);
    ranks[0] = first;
    for (int i = mesh->count - 1; i >= 0; i--) {
        if (!(axes >> i & 1))
            continue;
        for (int64_t c = 1; c < mesh->axis[i].size; c++)
            for (int64_t j = 0; j < count; j++)
                ranks[c * count + j] = ranks[j] + c * stride(mesh, i);
        count *= mesh->axis[i].size;
    }
    return count;
}
