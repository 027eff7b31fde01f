/*
 * Options: their values from text and to text, each checked against its type and limits.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/option.h>

#define MAX_NAMES 256
#define HUGE_RANGE 1e15 /* limits beyond this are not shown */

int ct_option_range(const struct ct_option *o, char *text, size_t room)
{
    struct ct_line line = {text, room, 0};

    if (o->type == CT_BOOL)
        return snprintf(text, room, "true, false");
    if (o->choices) {
        for (const char *c = o->choices; *c; c++)
            ct_line_add(&line, *c == '|' ? ", " : "%c", *c);
        return (int)line.used;
    }
    if ((o->type != CT_INT && o->type != CT_FLOAT) ||
        (o->min <= -HUGE_RANGE && o->max >= HUGE_RANGE))
        return snprintf(text, room, "%s", "");
    if (o->max >= HUGE_RANGE)
        return snprintf(text, room, "at least %.15g", o->min);
    if (o->min <= -HUGE_RANGE)
        return snprintf(text, room, "at most %.15g", o->max);
    return snprintf(text, room, "%.15g to %.15g", o->min, o->max);
}

/* kind: "an integer", or "" where the range is enough. */
static int refuse(const struct ct_option *o, const char *text, const char *where, const char *kind)
{
    char range[256];

    ct_option_range(o, range, sizeof(range));
    return ct_fail(CT_ECONFIG, "%s: %s = %s: expected %s%s%s", where, o->name, text, kind,
                   *kind && *range ? ", "
                   : *kind         ? ""
                                   : "one of ",
                   range);
}

/* "1e3", "2.5e2": a whole number in scientific form. *end: behind it; text, if it is none. */
static long long whole_number(const char *text, char **end)
{
    double value = strtod(text, end);
    bool scientific =
        memchr(text, 'e', (size_t)(*end - text)) || memchr(text, 'E', (size_t)(*end - text));

    if (!scientific || value != floor(value) || fabs(value) > 0x1p53) {
        *end = (char *)(uintptr_t)text;
        return 0;
    }
    return (long long)value;
}

static int set_int(const struct ct_option *o, int64_t *field, const char *text, const char *where)
{
    long long value;
    char *end;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end != text && (*end == 'e' || *end == 'E' || *end == '.'))
        value = whole_number(text, &end);
    if (end == text || *end || isspace((unsigned char)*text) || errno || (double)value < o->min ||
        (double)value > o->max)
        return refuse(o, text, where, (double)value > o->max ? "a smaller integer" : "an integer");
    *field = value;
    return 0;
}

static int set_float(const struct ct_option *o, double *field, const char *text, const char *where)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end || isspace((unsigned char)*text) || isnan(value) || value < o->min ||
        value > o->max || (isinf(value) && strpbrk(text, "0123456789"))) /* 1e400 */
        return refuse(o, text, where, "a number");
    *field = value;
    return 0;
}

static const char *next_choice(const char *choice)
{
    choice = strchr(choice, '|');
    return choice ? choice + 1 : NULL;
}

/* Index of text among the choices, or -1. */
static int find_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);
    int i = 0;

    for (const char *c = choices; c; c = next_choice(c), i++)
        if (strcspn(c, "|") == length && !memcmp(c, text, length))
            return i;
    return -1;
}

static int set(const struct ct_option *o, void *config, const char *text, const char *where)
{
    void *field = (char *)config + o->offset;

    switch (o->type) {
    case CT_BOOL:
        if (strcmp(text, "true") && strcmp(text, "false"))
            return refuse(o, text, where, "");
        *(bool *)field = *text == 't';
        return 0;
    case CT_INT:
        return set_int(o, field, text, where);
    case CT_FLOAT:
        return set_float(o, field, text, where);
    case CT_CHOICE:
        if (find_choice(o->choices, text) < 0)
            return refuse(o, text, where, "");
        *(const char **)field = text;
        return 0;
    case CT_ENUM:
        if (find_choice(o->choices, text) < 0)
            return refuse(o, text, where, "");
        *(unsigned *)field = (unsigned)find_choice(o->choices, text);
        return 0;
    case CT_STRING:
        *(const char **)field = text;
        return 0;
    default:
        break;
    }
    return ct_fail(CT_EINVAL, "%s: option %s is of a type that only attributes have", where,
                   o->name);
}

int ct_option_reset(const struct ct_option *o, void *config)
{
    static const size_t bytes[] = {
        [CT_BOOL] = sizeof(bool),     [CT_INT] = sizeof(int64_t),   [CT_FLOAT] = sizeof(double),
        [CT_STRING] = sizeof(char *), [CT_CHOICE] = sizeof(char *), [CT_ENUM] = sizeof(unsigned),
        [CT_ATTR_SHARDING] = 0};

    if (o->fallback)
        return set(o, config, o->fallback, "built-in default");
    memset((char *)config + o->offset, 0, bytes[o->type]);
    return 0;
}

int ct_options_reset(const struct ct_option *table, void *config)
{
    int rc = 0;

    for (const struct ct_option *o = table; rc == 0 && o->name; o++)
        rc = ct_option_reset(o, config);
    return rc;
}

const struct ct_option *ct_option_find(const struct ct_option *table, const char *name)
{
    for (const struct ct_option *o = table; o && o->name; o++)
        if (!strcmp(o->name, name))
            return o;
    return NULL;
}

int ct_options_set(const struct ct_option *table, void *config, const char *name, const char *text,
                   const char *where)
{
    const struct ct_option *option = ct_option_find(table, name);
    const char *names[MAX_NAMES];
    size_t count = 0;

    if (option)
        return set(option, config, text, where);
    for (const struct ct_option *o = table; o && o->name && count < MAX_NAMES; o++)
        names[count++] = o->name;
    return ct_fail(CT_ECONFIG, "%s: no option named %s%s", where, name,
                   ct_did_you_mean(name, names, count));
}
