/*
 * Attributes of ops at their fallbacks. text.h reads and writes them as text.
 */
#include <ctitan/error.h>
#include <ctitan/op.h>

static void clear(const struct ct_option *o, void *field)
{
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

static int reset(const struct ct_option *o, void *attrs)
{
    void *field = (char *)attrs + o->offset;

    if (o->type < CT_ATTR_DTYPE)
        return ct_option_reset(o, attrs);
    clear(o, field);
    if (!o->fallback || !*o->fallback)
        return 0;
    if (o->type == CT_ATTR_DTYPE)
        return ct_dtype_parse(o->fallback, field);
    if (o->type == CT_ATTR_SHAPE)
        return ct_shape_parse(o->fallback, field);
    return ct_fail(CT_EINVAL, "attribute %s: what names mesh axes has no fallback", o->name);
}

int ct_attributes_reset(const struct ct_option *table, void *attrs)
{
    int rc = 0;

    for (const struct ct_option *o = table; rc == 0 && o && o->name; o++)
        rc = reset(o, attrs);
    return rc;
}
