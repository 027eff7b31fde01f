/*
 * A rendering: names and their values, and what expressions are worth.
 *
 * After a failure `rc` is negative, and all values are undefined.
 */
#ifndef EVAL_H
#define EVAL_H

#include "tree.h"
#include "value.h"

#define EVAL_DEEPEST 200 /* expressions, lists and dicts within each other */

struct frame {
    struct frame *parent; /* names that this one lacks; NULL: the variables */
    struct value *names;  /* a dict */
};

struct eval {
    const struct ct_jinja *jinja;
    struct ct_arena *arena;
    const char *date;
    struct frame *frame;
    struct buffer *out;
    struct buffer *whole; /* the template's text: spans are of it */
    struct ct_jinja_text *text;
    size_t span_room;
    struct value *held; /* of a literal without a value */
    size_t before;      /* bytes that the arena had */
    bool over;          /* a text was too long */
    int depth, rc;
    enum { GO_ON, LEAVE_LOOP, NEXT_TURN } leaving;
};

/* Arguments of a call. */
struct call {
    struct value **args;
    const char **names; /* NULL: positional */
    size_t count;
    int line;
};

struct value *eval(struct eval *e, const struct node *n);
/* Fail, once; returns an undefined value. */
struct value *eval_fail(struct eval *e, int line, const char *fmt, ...) CT_PRINTF(3, 4);
/* An empty text of the rendering. */
struct buffer eval_buffer(struct eval *e);
/* Whether no text was too long, and all values together are not too large. Loops whose length a
   template gives end where it is false. */
bool eval_has_room(const struct eval *e);
/* Fail if it has none. */
void eval_check_room(struct eval *e, int line);
/* Arithmetic of integers. Fails beyond 64 bits. */
struct value *eval_integers(struct eval *e, const char *operator, int64_t a, int64_t b, int line);
/* A number without its fraction. Fails beyond 64 bits. */
struct value *eval_truncated(struct eval *e, double real, int line);
/* Put the text of a value, as str() has it. Fails if it has none, as a namespace. */
void eval_put(struct eval *e, struct buffer *b, const struct value *value, int line);
/* Argument number `at`, or of that name; NULL: it is not given. */
struct value *call_argument(const struct call *call, size_t at, const char *name);

/* The value of a name. */
struct value *frame_find(const struct frame *frame, const char *name);
struct frame *frame_new(struct eval *e, struct frame *parent);
void frame_set(struct eval *e, struct frame *frame, const char *name, struct value *value);

struct value *call_macro(struct eval *e, const struct value *macro, const struct call *call);
struct value *call_function(struct eval *e, const char *name, const struct call *call);
struct value *call_method(struct eval *e, struct value *self, const char *name,
                          const struct call *call);
/* Whether values of this kind have a method of that name. */
bool has_method(const struct value *self, const char *name);
bool has_function(const struct eval *e, const char *name);
struct value *call_filter(struct eval *e, const char *name, struct value *of,
                          const struct call *call);
bool call_test(struct eval *e, const char *name, struct value *of, const struct call *call);

/* The items of a loop: items of a list, keys of a dict, characters. */
struct value *eval_items(struct eval *e, struct value *of, int line);
/* of.name or of[key], as templates write both. */
struct value *eval_attribute(struct eval *e, struct value *of, const char *name, int line);
struct value *eval_compare(struct eval *e, const char *operator, struct value * a, struct value *b,
                           int line);
bool eval_in(struct eval *e, const struct value *item, const struct value *of, int line);

#endif
