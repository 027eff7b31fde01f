/*
 * Attributes of ops: options, and the types whose text form needs a mesh.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/op.h>

static const struct ct_mesh no_mesh;

static int parse_target(const struct ct_mesh *mesh, const char *text, struct ct_target *target)
{
    const char *end;
    int rc;

    *target = (struct ct_target){.given = *text};
    if (!strcmp(text, "[]"))
        return 0;
    rc = ct_sharding_parse(text, mesh, &target->sharding, &end);
    if (rc == 0 && *end)
        return ct_fail(CT_EINVAL, "sharding: \"%s\" does not go on with \"%s\"", text, end);
    return rc;
}

/* A target that is replicated on purpose is written out: "[-, -]". */
static int format_target(const struct ct_mesh *mesh, const struct ct_target *target, int ndim,
                         char *text, size_t room)
{
    int n = ct_sharding_print(&target->sharding, mesh, ndim, text, room);

    if (n || !target->given)
        return n;
    n = snprintf(text, room, "[");
    for (int d = 0; d < ndim && (size_t)n < room; d++)
        n += snprintf(text + n, room - (size_t)n, d ? ", -" : "-");
    return n + ((size_t)n < room ? snprintf(text + n, room - (size_t)n, "]") : 1);
}

static int set(const struct ct_mesh *mesh, const struct ct_option *o, void *attrs, const char *text)
{
    void *field = (char *)attrs + o->offset;

    switch (o->type) {
    case CT_ATTR_DTYPE:
        return ct_dtype_parse(text, field);
    case CT_ATTR_SHAPE:
        return ct_shape_parse(text, field);
    case CT_ATTR_AXES:
        return ct_axes_parse(mesh, text, field);
    default:
        return parse_target(mesh, text, field);
    }
}

static bool is_attribute_type(const struct ct_option *o)
{
    return o && o->type >= CT_ATTR_DTYPE;
}

int ct_attribute_set(const struct ct_mesh *mesh, const struct ct_option *table, void *attrs,
                     const char *name, const char *text, const char *where)
{
    const struct ct_option *o = ct_option_find(table, name);
    int rc;

    if (!is_attribute_type(o))
        return ct_options_set(table, attrs, name, text, where);
    rc = set(mesh ? mesh : &no_mesh, o, attrs, text);
    return rc < 0 ? ct_context(rc, "%s: %s", where, name) : 0;
}

static void clear(const struct ct_option *o, void *attrs)
{
    void *field = (char *)attrs + o->offset;

    switch (o->type) {
    case CT_ATTR_DTYPE:
        *(enum ct_dtype *)field = CT_DTYPE_COUNT;
        break;
    case CT_ATTR_SHAPE:
        *(struct ct_shape *)field = (struct ct_shape){0};
        break;
    case CT_ATTR_AXES:
        *(ct_axes *)field = 0;
        break;
    default:
        *(struct ct_target *)field = (struct ct_target){0};
    }
}

int ct_attributes_reset(const struct ct_option *table, void *attrs)
{
    int rc = 0;

    for (const struct ct_option *o = table; rc == 0 && o && o->name; o++) {
        if (!is_attribute_type(o))
            rc = ct_option_reset(o, attrs);
        else if (o->fallback && *o->fallback)
            rc = set(&no_mesh, o, attrs, o->fallback);
        else
            clear(o, attrs);
    }
    return rc;
}

static int format_dtype(enum ct_dtype dtype, char *text, size_t room)
{
    return snprintf(text, room, "%s", dtype < CT_DTYPE_COUNT ? ct_dtype_name(dtype) : "");
}

int ct_attribute_format(const struct ct_mesh *mesh, const struct ct_op *op,
                        const struct ct_option *o, char *text, size_t room)
{
    const void *field = (const char *)op->attrs + o->offset;

    switch (o->type) {
    case CT_ATTR_DTYPE:
        return format_dtype(*(const enum ct_dtype *)field, text, room);
    case CT_ATTR_SHAPE:
        return ct_shape_print(field, text, room);
    case CT_ATTR_AXES:
        return ct_axes_print(mesh, *(const ct_axes *)field, text, room);
    case CT_ATTR_SHARDING:
        return format_target(mesh, field, op->ins && op->in[0] ? op->in[0]->ndim : 0, text, room);
    default:
        return ct_option_format(o, op->attrs, text, room);
    }
}
