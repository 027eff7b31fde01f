/*
 * Values of templates: Python's, as far as templates use them. They lie in an arena.
 */
#ifndef VALUE_H
#define VALUE_H

#include <jansson.h>

#include <ctitan/arena.h>

enum value_kind {
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_REAL,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_DICT, /* keys are strings or other values, in their order */
    VALUE_NAMESPACE,
    VALUE_MACRO,
    VALUE_FUNCTION, /* text: its name */
    VALUE_METHOD,   /* text: its name; self */
};

struct node;
struct frame;

struct value {
    enum value_kind kind;
    int64_t integer; /* of a bool, too */
    double real;
    const char *text; /* of an undefined value, its name */
    size_t size;
    struct value **items, **keys; /* of lists, dicts and namespaces */
    size_t count, room;
    const struct node *macro;
    struct frame *scope; /* where the macro was defined */
    struct value *self;
};

extern struct value value_undefined, value_none, value_true, value_false;

struct value *value_new(struct ct_arena *arena, enum value_kind kind);
struct value *value_int(struct ct_arena *arena, int64_t integer);
struct value *value_real(struct ct_arena *arena, double real);
struct value *value_bool(bool truth);
/* The text is not copied. */
struct value *value_text(struct ct_arena *arena, const char *text, size_t size);
struct value *value_of_json(struct ct_arena *arena, const json_t *json);

void value_append(struct ct_arena *arena, struct value *list, struct value *item);
/* The item of a key in a dict, or NULL. */
struct value *value_get(const struct value *dict, const struct value *key);
struct value *value_find(const struct value *dict, const char *key, size_t size);
void value_put(struct ct_arena *arena, struct value *dict, struct value *key, struct value *item);

bool value_is_number(const struct value *value); /* bools, too */
double value_double(const struct value *number);
bool value_truth(const struct value *value);
bool value_equal(const struct value *a, const struct value *b);
/* Negative, 0 or positive; false: they have no order. */
bool value_order(const struct value *a, const struct value *b, int *order);
/* How many lists and dicts are within each other. */
int value_depth(const struct value *value);
/* Characters of a text. */
size_t value_characters(const char *text, size_t size);
/* The byte at which character n begins. */
size_t value_character(const char *text, size_t size, size_t n);

struct buffer {
    struct ct_arena *arena;
    char *data;
    size_t size, room;
    bool *over;    /* set if it would have more than BUFFER_LONGEST bytes; NULL: it may */
    bool textless; /* a namespace, macro, function or method was to be put */
};

#define BUFFER_LONGEST ((size_t)64 << 20)

/* A part for which the text has no room is left out. */
void buffer_put(struct buffer *b, const char *text, size_t size);
void buffer_spaces(struct buffer *b, int64_t count);
void buffer_text(struct buffer *b, const char *text);
/* As str(), and as repr(). */
void buffer_str(struct buffer *b, const struct value *value);
void buffer_repr(struct buffer *b, const struct value *value);

/* Arguments of json.dumps. */
struct json_style {
    bool lines; /* each item on its own, with `indent` for each list and dict around it */
    int64_t indent;
    bool sort_keys, ensure_ascii;
};

/* False: it has no JSON. */
bool buffer_json(struct buffer *b, const struct value *value, const struct json_style *style,
                 int depth);
struct value *buffer_value(struct buffer *b);

#endif
