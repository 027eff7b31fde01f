/*
 * JSON: read as Python writes and reads it, and printed by verbs. All JSON that ctitan reads goes
 * through here.
 *
 * Beyond the JSON of RFC 8259, NaN, Infinity and -Infinity are read, numbers of any size, and \u
 * escapes of half a surrogate pair, which become U+FFFD. Of equal keys in an object, the last one
 * counts, unless CT_JSON_UNIQUE. The result is a value of jansson, to which the caller has a
 * reference.
 *
 * An integer beyond int64 is a real, the nearest double. A number that no double holds (NaN,
 * Infinity, 1e400) is an empty object: it is there, but it is not a number, so whoever needs its
 * value refuses it as they refuse any other value of a wrong type.
 */
#ifndef CT_JSON_H
#define CT_JSON_H

#include <stdio.h>

#include <ctitan/base.h>

CT_BEGIN_DECLS

struct json_t; /* of jansson */

enum {
    CT_JSON_NUL = 1, /* strings may hold "\u0000": their users read json_string_length */
    /* For a value that is written again: each number that jansson would write differently is a
       string that begins with U+FDD0, which ct_json_write writes as the text that was read. */
    CT_JSON_LITERALS = 2,
    CT_JSON_UNIQUE = 4, /* equal keys are an error: for files whose writers never repeat one */
};

/*
 * Read one value from size bytes of text. CT_ECONFIG: it is malformed; the message begins with
 * "name:line:column: ", or if name is NULL with "column N: ", after "line N, " beyond the first.
 */
CT_API int ct_json_read(const char *text, size_t size, const char *name, unsigned flags,
                        struct json_t **value);
/* The same for a regular file; NULL is no value. CT_ENOENT; CT_ECONFIG; CT_EIO. */
CT_API int ct_json_read_file(const char *path, unsigned flags, struct json_t **value);
/* The same for the rest of a stream. */
CT_API int ct_json_read_stream(FILE *in, const char *name, unsigned flags, struct json_t **value);

/*
 * Read an object member by member, in order: a large one needs the memory of one member. take must
 * copy what it needs, and may fail. Equal keys are not noticed. CT_ECONFIG: it is malformed, or no
 * object; members before the fault were taken.
 */
typedef int ct_json_member(const char *key, const struct json_t *value, void *context);
CT_API int ct_json_each(const char *text, size_t size, const char *name, unsigned flags,
                        ct_json_member *take, void *context);

/*
 * Read the JSON lines of a regular file, which is mapped: call take for the object of each line,
 * unless it is blank. It returns 0, a failure, or 1: no more lines are read. The message of a
 * failure, also that of a malformed line, begins with "PATH:LINE: ". CT_ENOENT; CT_ECONFIG; CT_EIO.
 */
typedef int ct_json_line(void *context, const struct json_t *value);
CT_API int ct_json_lines_file(const char *path, unsigned flags, ct_json_line *take, void *context);
/* The next line that is not blank, without white space before it: *size bytes. *at is moved behind
   it, *line is its number, 0 before the first. NULL: there is none. */
CT_API const char *ct_json_next_line(const char **at, const char *end, size_t *size, size_t *line);

/* The object of such a line, as ct_json_read. CT_ECONFIG: it holds none; the message says how to
   make lines of a list, and of an object that has several. */
CT_API int ct_json_read_line(const char *line, size_t size, unsigned flags, struct json_t **object);

/* Write a value, indented by two spaces, and a newline. CT_EIO; CT_ENOMEM. */
CT_API int ct_json_write(const struct json_t *value, FILE *out);

/* ---- what verbs print with --json ---- */

/* A string of any bytes: those that are not UTF-8 become U+FFFD. NULL is null. */
CT_API struct json_t *ct_json_text(const char *text);
/* A list of them: of `count`, or of those before a NULL. texts NULL: an empty one. */
CT_API struct json_t *ct_json_texts(const char *const *texts, size_t count);
/* An integer below 2^53 as such, NaN and infinities as null, any other number as a real. */
CT_API struct json_t *ct_json_number(double number);
/* Print an object, a member a line; of a list of objects or lists, an element a line. The value is
   released. CT_ENOMEM: it is NULL, as of a caller without memory, or there is no memory. CT_EIO. */
CT_API int ct_json_print(struct json_t *object, FILE *out);

CT_END_DECLS

#endif
