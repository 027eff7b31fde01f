#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/mesh.h>
#include <ctitan/option.h>

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

int ct_axes_print(const struct ct_mesh *mesh, ct_axes axes, char *text, size_t room)
{
    size_t n = 0;

    if (room)
        *text = '\0';
    for (int i = 0; i < mesh->count; i++)
        if (axes >> i & 1)
            n += (size_t)snprintf(n < room ? text + n : NULL, n < room ? room - n : 0, "%s%s",
                                  n ? "." : "", mesh->axis[i].name);
    return (int)n;
}

static int unknown_axis(const struct ct_mesh *mesh, const char *name)
{
    const char *names[CT_MAX_AXES], *near;

    for (int i = 0; i < mesh->count; i++)
        names[i] = mesh->axis[i].name;
    near = ct_nearest(name, names, (size_t)mesh->count);
    return ct_fail(CT_EINVAL, "the mesh has no axis %s%s%s", name, near ? "; did you mean " : "",
                   near ? near : "");
}

int ct_axes_parse(const struct ct_mesh *mesh, const char *text, ct_axes *axes)
{
    *axes = 0;
    for (size_t n; *text; text += n + (text[n] == '.')) {
        char name[64];
        int axis;

        n = strcspn(text, ".");
        snprintf(name, sizeof(name), "%.*s", (int)n, text);
        axis = ct_mesh_find(mesh, name);
        if (axis < 0)
            return unknown_axis(mesh, name);
        *axes |= (ct_axes)1 << axis;
    }
    return 0;
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
