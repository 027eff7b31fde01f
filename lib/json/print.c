/*
 * JSON that verbs print. Programs read it, and people see it: a line is a member, or an element of
 * a list.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */
#define WHOLE 9007199254740992.0   /* 2^53: doubles below it hold every integer */
#define STYLE (JSON_ENCODE_ANY | JSON_REAL_PRECISION(15))

/* Bytes of the character at `at`; 0: it is not UTF-8. */
static size_t character(const char *at)
{
    json_t *string = NULL;

    for (size_t size = 1; size <= 4 && (size == 1 || at[size - 1]); size++) {
        string = json_stringn(at, size);
        json_decref(string);
        if (string)
            return size;
    }
    return 0;
}

json_t *ct_json_text(const char *text)
{
    json_t *string = text ? json_string(text) : json_null();
    size_t used = 0;
    char *copy;

    if (string)
        return string;
    copy = malloc(strlen(text) * strlen(REPLACEMENT) + 1);
    if (!copy)
        return NULL;
    while (*text) {
        size_t size = character(text);

        memcpy(copy + used, size ? text : REPLACEMENT, size ? size : strlen(REPLACEMENT));
        used += size ? size : strlen(REPLACEMENT);
        text += size ? size : 1;
    }
    string = json_stringn(copy, used);
    free(copy);
    return string;
}

json_t *ct_json_texts(const char *const *texts, size_t count)
{
    json_t *list = json_array();

    for (size_t i = 0; texts && i < count && texts[i]; i++)
        json_array_append_new(list, ct_json_text(texts[i]));
    return list;
}

json_t *ct_json_number(double number)
{
    if (!isfinite(number))
        return json_null();
    return fabs(number) < WHOLE && number == floor(number) ? json_integer((json_int_t)number)
                                                           : json_real(number);
}

static int print_value(const json_t *value, FILE *out)
{
    char *text = json_dumps(value, STYLE);

    if (!text)
        return CT_ENOMEM;
    fputs(text, out);
    free(text);
    return 0;
}

/* A list of objects or lists has an element a line. */
static int print_member(const json_t *value, FILE *out)
{
    const json_t *first = json_array_get(value, 0);
    int rc = 0;

    if (!json_is_object(first) && !json_is_array(first))
        return print_value(value, out);
    for (size_t i = 0; rc == 0 && i < json_array_size(value); i++) {
        fputs(i ? ",\n    " : "[\n    ", out);
        rc = print_value(json_array_get(value, i), out);
    }
    fputs("\n  ]", out);
    return rc;
}

static int print_name(const char *name, FILE *out)
{
    json_t *string = json_string(name);
    int rc = print_value(string, out);

    json_decref(string);
    fputs(": ", out);
    return rc;
}

int ct_json_print(json_t *object, FILE *out)
{
    const char *name, *before = "{\n  ";
    json_t *value;
    int rc = object ? 0 : CT_ENOMEM;

    json_object_foreach(object, name, value)
    {
        if (rc < 0)
            break;
        fputs(before, out);
        rc = print_name(name, out);
        rc = rc < 0 ? rc : print_member(value, out);
        before = ",\n  ";
    }
    fputs(*before == '{' ? "{}\n" : "\n}\n", out);
    json_decref(object);
    if (rc < 0)
        return ct_fail(CT_ENOMEM, "JSON that is to be printed");
    return ferror(out) ? ct_fail(CT_EIO, "%s", strerror(errno)) : 0;
}
