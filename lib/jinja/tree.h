/*
 * A template as a tree. Nodes lie in the arena of the template, and nothing changes them.
 */
#ifndef TREE_H
#define TREE_H

#include <ctitan/lib/jinja.h>

enum node_kind {
    /* expressions */
    NODE_LITERAL,
    NODE_NAME,
    NODE_LIST, /* args */
    NODE_DICT, /* args: keys and values by turns */
    NODE_ATTRIBUTE,
    NODE_ITEM,
    NODE_SLICE,   /* a[args[0]:args[1]:args[2]], each may be NULL */
    NODE_CALL,    /* a(args) */
    NODE_FILTER,  /* a|text(args) */
    NODE_TEST,    /* a is text(args) */
    NODE_UNARY,   /* text: "-", "+" or "not" */
    NODE_BINARY,  /* text: the operator */
    NODE_COMPARE, /* a, and args with their operators in names */
    NODE_CHOICE,  /* b if a else c */
    /* statements */
    NODE_TEXT,
    NODE_PRINT,
    NODE_IF,    /* a, body, otherwise */
    NODE_FOR,   /* names in a if b: body, otherwise */
    NODE_SET,   /* names = a; or text.names[0] = a of a namespace; without a: body, b its filters */
    NODE_MACRO, /* text(names = args): body */
    NODE_WITH,  /* names = args: body */
    NODE_GENERATION,
    NODE_BREAK,
    NODE_CONTINUE,
};

struct node {
    enum node_kind kind;
    int line;
    const char *text;
    size_t size;
    struct node *a, *b, *c;
    struct node **args; /* a keyword argument has its name in names */
    const char **names; /* NULL: positional, or no name */
    size_t count, room;
    struct node *body, *otherwise; /* lists of statements */
    struct node *next;             /* in a list */
    const struct value *value;     /* of a literal */
};

struct ct_jinja {
    const char *name;
    struct node *body;
    bool marks;
};

#endif
