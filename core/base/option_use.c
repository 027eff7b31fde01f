/* Options that have no effect beside others. */
#include <assert.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/option_use.h>

static bool is_fallback(const struct ct_option *o, const void *config)
{
    const void *field = (const char *)config + o->offset;
    struct ct_option alone = *o;
    union {
        bool truth;
        int64_t integer;
        double number;
        const char *text;
        unsigned choice;
    } fallback;

    alone.offset = 0;
    if (!o->fallback || ct_option_reset(&alone, &fallback) < 0)
        return false;
    switch (o->type) {
    case CT_BOOL:
        return *(const bool *)field == fallback.truth;
    case CT_INT:
        return *(const int64_t *)field == fallback.integer;
    case CT_FLOAT:
        return *(const double *)field == fallback.number;
    case CT_ENUM:
        return *(const unsigned *)field == fallback.choice;
    case CT_STRING:
    case CT_CHOICE:
        return !strcmp(*(const char *const *)field, fallback.text);
    case CT_ATTR_DTYPE:
    case CT_ATTR_SHAPE:
    case CT_ATTR_AXES:
    case CT_ATTR_SHARDING:
        break;
    }
    assert(!"an option of a recipe");
    return false;
}

const struct ct_option_use *ct_options_unused(const struct ct_option *table, const void *config,
                                              const struct ct_option_use *uses)
{
    for (const struct ct_option_use *u = uses; u->name; u++) {
        const struct ct_option *o = ct_option_find(table, u->name);

        assert(o);
        if (!u->counts && !is_fallback(o, config))
            return u;
    }
    return NULL;
}

int ct_options_check_use(const struct ct_option *table, const void *config, const char *section,
                         const struct ct_option_use *uses)
{
    const struct ct_option_use *u = ct_options_unused(table, config, uses);

    return u ? ct_fail(CT_ECONFIG, "[%s] %s has no effect: %s", section, u->name, u->why) : 0;
}
