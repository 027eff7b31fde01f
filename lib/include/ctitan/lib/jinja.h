/*
 * The part of Jinja in which chat templates are written.
 *
 * A template is rendered as transformers does: blocks are trimmed (trim_blocks, lstrip_blocks),
 * nothing is escaped for HTML, and lists and dicts cannot be changed. There are loops with loop.*,
 * break and continue, conditions, set (of names, of blocks, of attributes of a namespace), macros,
 * with, filters, tests, slices, methods of strings and dicts, raise_exception, range, namespace,
 * dict, and {% generation %}, which marks what the assistant writes. Any other construct is refused
 * by its name, with the template's line. Case mapping knows ASCII alone, and refuses other letters.
 * Integers have 64 bits, a text at most 64 MiB, and all values of a rendering 256 MiB.
 */
#ifndef CT_JINJA_H
#define CT_JINJA_H

#include <ctitan/arena.h>
#include <ctitan/model.h>

CT_BEGIN_DECLS

struct json_t; /* of jansson */
struct ct_jinja;

/* The result of a template. */
struct ct_jinja_text {
    char *data; /* a '\0' follows */
    size_t size;
    struct ct_text_span *answers; /* of {% generation %}, in order */
    size_t count;
};

/* Read a template, into the arena. name: for messages. CT_ECONFIG: it is malformed, or has a
   construct that is not supported. */
CT_API int ct_jinja_read(struct ct_arena *arena, const char *name, const char *source, size_t size,
                         struct ct_jinja **jinja);
/* Whether it has {% generation %}. */
CT_API bool ct_jinja_marks(const struct ct_jinja *jinja);
/* Render with the variables of an object. date: "YYYY-MM-DD", which strftime_now writes; "": there
   is no strftime_now. CT_ECONFIG: raise_exception, or what the template does is not possible. */
CT_API int ct_jinja_render(const struct ct_jinja *jinja, const struct json_t *variables,
                           const char *date, struct ct_arena *arena, struct ct_jinja_text *text);
/* Without the white space around a text, as Python's str.strip has it. */
CT_API void ct_jinja_strip(const char **text, size_t *size, bool left, bool right);

CT_END_DECLS

#endif
