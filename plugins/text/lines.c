/*
 * JSON lines: each is an object, whose field is a document.
 */
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>
#include <ctitan/log.h>

#include "chat.h"
#include "corpus.h"

#define LONGEST ((size_t)64 << 20) /* bytes of a line; parsed, it takes several times that */
#define WARNINGS 5                 /* lines that are skipped are named up to this number */

static int add_value(struct corpus *c, const json_t *object, enum corpus_format format)
{
    const json_t *value = json_object_get(object, c->request->field);
    size_t size = json_string_length(value);

    if (format >= CORPUS_CHAT)
        return chat_add(c, object, format);
    if (!value)
        return ct_fail(CT_ECONFIG, "the object has no field \"%s\"", c->request->field);
    if (!json_is_string(value))
        return ct_fail(CT_ECONFIG, "the field \"%s\" is not a string", c->request->field);
    return size ? corpus_add(c, &(struct document){.text = json_string_value(value), .size = size})
                : 0;
}

static int add_line(struct corpus *c, const char *line, size_t size, enum corpus_format format)
{
    json_t *object;
    int rc;

    if (size > LONGEST)
        return ct_fail(CT_ECONFIG,
                       "a line of %zu bytes; at most %zu are allowed: split it, or set [text] "
                       "malformed = skip",
                       size, LONGEST);
    rc = ct_json_read_line(line, size, CT_JSON_NUL, &object);
    if (rc < 0)
        return rc;
    rc = add_value(c, object, format);
    json_decref(object);
    return rc;
}

static int malformed(struct corpus *c, int rc, const char *path, size_t number)
{
    if (rc != CT_ECONFIG || !c->request->skip || c->taken)
        return ct_context(rc, "%s:%zu", path, number);
    if (c->malformed++ < WARNINGS)
        ct_warn("%s:%zu: skipped: %s", path, number, ct_error_message());
    return 0;
}

int corpus_add_lines(struct corpus *c, const char *path, const char *text, size_t size,
                     size_t first, enum corpus_format format)
{
    const char *at = text, *end = text + size, *line;
    size_t length, number = first - 1;
    int rc = 0;

    while (rc == 0 && (line = ct_json_next_line(&at, end, &length, &number))) {
        rc = add_line(c, line, length, format);
        if (rc < 0)
            rc = malformed(c, rc, path, number);
    }
    return rc;
}
