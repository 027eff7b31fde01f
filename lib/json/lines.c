/*
 * JSON lines.
 */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>

#include "read.h"

const char *ct_json_next_line(const char **at, const char *end, size_t *size, size_t *line)
{
    while (*at < end) {
        const char *begin = *at, *newline = memchr(begin, '\n', (size_t)(end - begin));
        const char *stop = newline ? newline : end;

        *at = newline ? newline + 1 : end;
        ++*line;
        while (begin < stop && (*begin == ' ' || *begin == '\t' || *begin == '\r'))
            begin++;
        *size = (size_t)(stop - begin);
        if (*size)
            return begin;
    }
    return NULL;
}

/* How to make lines of what begins with this one; NULL: nothing is known. value: of the line; NULL:
   it is malformed. early: it ends before its value does. */
static const char *remedy(const char *line, const json_t *value, bool early)
{
    if (value ? json_is_object(json_array_get(value, 0)) : *line == '[')
        return "`jq -c '.[]' FILE` writes the objects of a list so";
    if (!value && *line == '{' && early)
        return "`jq -c . FILE` writes objects of several lines so";
    return NULL;
}

int ct_json_read_line(const char *line, size_t size, unsigned flags, json_t **object)
{
    bool early;
    int rc = json_read_early(line, size, NULL, flags, object, &early);
    const char *how;
    char why[256];

    if (rc == 0 && json_is_object(*object))
        return 0;
    how = remedy(line, rc == 0 ? *object : NULL, early);
    if (rc == 0)
        json_decref(*object);
    else if (rc != CT_ECONFIG || !how)
        return rc;
    snprintf(why, sizeof(why), "%s%s", rc == 0 ? "" : ct_error_message(), rc == 0 ? "" : ": ");
    return ct_fail(CT_ECONFIG, "%sexpected a whole object on each line%s%s", why, how ? "; " : "",
                   how ? how : "");
}

static int take_line(const char *text, size_t size, unsigned flags, ct_json_line *take,
                     void *context)
{
    json_t *value;
    int rc = ct_json_read_line(text, size, flags, &value);

    if (rc < 0)
        return rc;
    rc = take(context, value);
    json_decref(value);
    return rc;
}

static int take_lines(const char *text, size_t size, const char *name, unsigned flags,
                      ct_json_line *take, void *context)
{
    const char *at = text, *end = text + size, *begin;
    size_t length, line = 0;
    int rc = 0;

    while (rc == 0 && (begin = ct_json_next_line(&at, end, &length, &line)))
        rc = take_line(begin, length, flags, take, context);
    return rc < 0 ? ct_context(rc, "%s:%zu", name, line) : 0;
}

int ct_json_lines_file(const char *path, unsigned flags, ct_json_line *take, void *context)
{
    const void *text;
    size_t size;
    int rc = ct_file_map(path, &text, &size);

    if (rc < 0)
        return rc;
    rc = size ? take_lines(text, size, path, flags, take, context) : 0;
    ct_file_unmap(text, size);
    return rc;
}
