#include <string.h>

#include <ctitan/error.h>

#include "added.h"
#include "unicode.h"

#define LONGEST 4096 /* bytes; bounds the time for a text */

/* A trie: the children of a node are a list. */
struct added_node {
    unsigned char byte;
    uint32_t child, sibling;         /* 0: none */
    const struct added_token *token; /* that ends here; NULL: none */
};

static uint32_t new_node(struct added *a, unsigned char byte)
{
    a->nodes = ct_arena_grow(a->arena, a->nodes, &a->room, a->count + 1, sizeof(*a->nodes));
    a->nodes[a->count] = (struct added_node){.byte = byte};
    return (uint32_t)a->count++;
}

static uint32_t find_child(const struct added *a, uint32_t node, unsigned char byte)
{
    uint32_t child = a->nodes[node].child;

    while (child && a->nodes[child].byte != byte)
        child = a->nodes[child].sibling;
    return child;
}

int added_insert(struct added *a, struct ct_arena *arena, const struct added_token *token)
{
    uint32_t node = 0;

    if (token->size > LONGEST)
        return ct_fail(CT_ECONFIG, "an added token has %zu bytes; at most %d are supported",
                       token->size, LONGEST);
    a->arena = arena;
    if (!a->count)
        new_node(a, 0);
    for (size_t i = 0; i < token->size; i++) {
        unsigned char byte = (unsigned char)token->content[i];
        uint32_t child = find_child(a, node, byte);

        if (!child) {
            child = new_node(a, byte);
            a->nodes[child].sibling = a->nodes[node].child;
            a->nodes[node].child = child;
        }
        node = child;
    }
    a->nodes[node].token = token;
    return 0;
}

static const struct added_token *longest_at(const struct added *a, const char *at, const char *end)
{
    const struct added_token *token = NULL;
    uint32_t node = 0;

    for (; at < end && (node = find_child(a, node, (unsigned char)*at)); at++)
        if (a->nodes[node].token)
            token = a->nodes[node].token;
    return token;
}

static bool is(const char *at, int class)
{
    size_t size;

    return unicode_class[unicode_at(at, &size)] & class;
}

static bool within_word(const char *text, const char *begin, const char *stop, const char *end)
{
    return (begin > text && is(unicode_before(text, begin), UNICODE_WORD)) ||
           (stop < end && is(stop, UNICODE_WORD));
}

static void strip(const struct added_token *token, const char *from, const char *end,
                  struct added_match *m)
{
    size_t size;

    while (token->lstrip && m->begin > from && is(unicode_before(from, m->begin), UNICODE_SPACE))
        m->begin = unicode_before(from, m->begin);
    while (token->rstrip && m->stop < end && is(m->stop, UNICODE_SPACE)) {
        unicode_at(m->stop, &size);
        m->stop += size;
    }
}

bool added_find(const struct added *a, const char *text, const char *from, const char *at,
                const char *end, struct added_match *m)
{
    for (; a->count && at < end; at++) {
        const struct added_token *token = longest_at(a, at, end);

        if (!token)
            continue;
        *m = (struct added_match){token->id, at, at + token->size, at + token->size};
        if (!token->single_word || !within_word(text, m->begin, m->stop, end)) {
            strip(token, from, end, m);
            return true;
        }
        at = m->resume - 1;
    }
    return false;
}
