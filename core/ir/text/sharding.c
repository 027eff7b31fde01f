/*
 * Sets of mesh axes and shardings as text. The core prints shardings for its messages.
 */
#include <ctype.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/option.h>
#include <ctitan/text.h>

int ct_axes_print(const struct ct_mesh *mesh, ct_axes axes, char *text, size_t room)
{
    struct ct_line line = {text, room, 0};

    if (room)
        *text = '\0';
    for (int i = 0; i < mesh->count; i++)
        if (axes >> i & 1)
            ct_line_add(&line, "%s%s", line.used ? "." : "", mesh->axis[i].name);
    return (int)line.used;
}

static int unknown_axis(const struct ct_mesh *mesh, const char *name)
{
    const char *names[CT_MAX_AXES];

    for (int i = 0; i < mesh->count; i++)
        names[i] = mesh->axis[i].name;
    return ct_fail(CT_EINVAL, "the mesh has no axis %s%s", name,
                   ct_did_you_mean(name, names, (size_t)mesh->count));
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

/* ---- shardings ---- */

static const char *blank(const char *at)
{
    while (*at == ' ')
        at++;
    return at;
}

/* Parse the axis name at *at and advance; returns its position in the mesh. */
static int axis_at(const char **at, const struct ct_mesh *mesh, ct_axes *seen)
{
    const char *begin = *at;
    char name[64];
    size_t length = 0;
    int axis;

    while (isalnum((unsigned char)begin[length]) || begin[length] == '_')
        length++;
    if (!length || length >= sizeof(name))
        return ct_fail(CT_EINVAL, "sharding: expected the name of an axis at '%.20s'", begin);
    memcpy(name, begin, length);
    name[length] = '\0';
    axis = ct_mesh_find(mesh, name);
    if (axis < 0)
        return ct_context(unknown_axis(mesh, name), "sharding");
    if (*seen >> axis & 1)
        return ct_fail(CT_EINVAL, "sharding: axis %s appears twice", name);
    *seen |= (ct_axes)1 << axis;
    *at = begin + length;
    return axis;
}

/* "-" or "tp.cp" */
static int parse_dimension(const char **at, const struct ct_mesh *mesh, struct ct_sharding *s,
                           int dim, ct_axes *seen)
{
    if (dim >= CT_MAX_DIMS)
        return ct_fail(CT_EINVAL, "sharding: more than %d dimensions", CT_MAX_DIMS);
    if (**at == '-') {
        ++*at;
        return 0;
    }
    for (;;) {
        int axis = axis_at(at, mesh, seen);

        if (axis < 0)
            return axis;
        ct_sharding_split(s, dim, axis);
        if (**at != '.')
            return 0;
        ++*at;
    }
}

static int parse_dimensions(const char **at, const struct ct_mesh *mesh, struct ct_sharding *s,
                            ct_axes *seen)
{
    for (int dim = 0;; dim++) {
        int rc;

        *at = blank(*at + 1);
        rc = parse_dimension(at, mesh, s, dim, seen);
        if (rc < 0)
            return rc;
        *at = blank(*at);
        if (**at == ']')
            break;
        if (**at != ',')
            return ct_fail(CT_EINVAL, "sharding: expected ',' or ']' at '%.20s'", *at);
    }
    ++*at;
    return 0;
}

/* "{tp, cp}" */
static int parse_axes(const char **at, const struct ct_mesh *mesh, ct_axes *axes, ct_axes *seen)
{
    for (;;) {
        int axis;

        *at = blank(*at + 1);
        axis = axis_at(at, mesh, seen);
        if (axis < 0)
            return axis;
        *axes |= (ct_axes)1 << axis;
        *at = blank(*at);
        if (**at == '}')
            break;
        if (**at != ',')
            return ct_fail(CT_EINVAL, "sharding: expected ',' or '}' at '%.20s'", *at);
    }
    ++*at;
    return 0;
}

int ct_sharding_parse(const char *text, const struct ct_mesh *mesh, struct ct_sharding *s,
                      const char **end)
{
    ct_axes seen = 0;
    int rc = 0;

    *s = (struct ct_sharding){0};
    if (*text == '[')
        rc = parse_dimensions(&text, mesh, s, &seen);
    if (!strncmp(text, "max{", 4))
        s->reduction = CT_REDUCE_MAX;
    if (rc == 0 && (!strncmp(text, "+{", 2) || s->reduction == CT_REDUCE_MAX)) {
        text = strchr(text, '{');
        rc = parse_axes(&text, mesh, &s->unreduced, &seen);
    }
    *end = text;
    return rc;
}
