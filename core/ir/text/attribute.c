/*
 * Options and attributes of ops as text. The text of shapes, dtypes, axes and shardings is that of
 * graphs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/option.h>
#include <ctitan/text.h>

static const struct ct_mesh no_mesh;

const char *ct_option_type_name(enum ct_option_type type)
{
    static const char *const names[] = {[CT_BOOL] = "bool",        [CT_INT] = "int",
                                        [CT_FLOAT] = "float",      [CT_STRING] = "string",
                                        [CT_CHOICE] = "choice",    [CT_ENUM] = "choice",
                                        [CT_ATTR_DTYPE] = "dtype", [CT_ATTR_SHAPE] = "shape",
                                        [CT_ATTR_AXES] = "axes",   [CT_ATTR_SHARDING] = "sharding"};

    return names[type];
}

/* ---- written ---- */

static int format_choice(const char *choices, unsigned position, char *text, size_t room)
{
    while (choices && position--) {
        choices = strchr(choices, '|');
        choices += choices != NULL;
    }
    return snprintf(text, room, "%.*s", choices ? (int)strcspn(choices, "|") : 0,
                    choices ? choices : "");
}

/* The shortest decimal that reads back to the same double. */
static int format_float(double value, char *text, size_t room)
{
    char digits[40];

    for (int precision = 1; precision <= 17; precision++) {
        snprintf(digits, sizeof(digits), "%.*g", precision, value);
        if (strtod(digits, NULL) == value)
            break;
    }
    return snprintf(text, room, "%s", digits);
}

int ct_option_format(const struct ct_option *o, const void *config, char *text, size_t room)
{
    const void *field = (const char *)config + o->offset;
    const char *string;

    switch (o->type) {
    case CT_BOOL:
        return snprintf(text, room, "%s", *(const bool *)field ? "true" : "false");
    case CT_INT:
        return snprintf(text, room, "%lld", (long long)*(const int64_t *)field);
    case CT_FLOAT:
        return format_float(*(const double *)field, text, room);
    case CT_STRING:
    case CT_CHOICE:
        string = *(const char *const *)field;
        return snprintf(text, room, "%s", string ? string : "");
    case CT_ENUM:
        return format_choice(o->choices, *(const unsigned *)field, text, room);
    default:
        return snprintf(text, room, "%s", "");
    }
}

const char *ct_option_text(const struct ct_option *option, const void *config,
                           struct ct_arena *arena)
{
    size_t room = (size_t)ct_option_format(option, config, NULL, 0) + 1;
    char *text = ct_arena_array(arena, char, room);

    ct_option_format(option, config, text, room);
    return text;
}

/* A target that is replicated on purpose is written out: "[-, -]". */
static int format_target(const struct ct_mesh *mesh, const struct ct_target *target, int ndim,
                         char *text, size_t room)
{
    int n = ct_sharding_print(&target->sharding, mesh, ndim, text, room);
    struct ct_line line = {text, room, 0};

    if (n || !target->given)
        return n;
    ct_line_add(&line, "[");
    for (int d = 0; d < ndim; d++)
        ct_line_add(&line, d ? ", -" : "-");
    ct_line_add(&line, "]");
    return (int)line.used;
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

/* ---- read ---- */

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
