/*
 * A skip list (Pugh 1990): items ordered by a key of two numbers. Each operation takes time
 * logarithmic in their number. Its random choices are the same in every run. Nodes live in an
 * arena; removed ones are reused.
 */
#ifndef CT_SORTED_H
#define CT_SORTED_H

#include <ctitan/arena.h>

CT_BEGIN_DECLS

#define CT_SORTED_LEVELS 16

struct ct_sorted_node {
    size_t key[2];
    void *item;
    int levels;
    struct ct_sorted_node **next; /* by level, in the memory behind; next[0]: in order, or NULL */
};

struct ct_sorted {
    struct ct_arena *arena;
    struct ct_sorted_node *first[CT_SORTED_LEVELS], *unused[CT_SORTED_LEVELS + 1];
    uint32_t coin;
};

/* An empty list, whose nodes will be in arena. */
CT_API struct ct_sorted ct_sorted_create(struct ct_arena *arena);
/* Among equal keys, the new one comes first. */
CT_API struct ct_sorted_node *ct_sorted_insert(struct ct_sorted *list, size_t key, size_t key2,
                                               void *item);
/* The node must be in the list. It may be reused by the next insertion. */
CT_API void ct_sorted_remove(struct ct_sorted *list, struct ct_sorted_node *node);
/* The first node not below the key, and the last node below it. NULL if there is none. */
CT_API struct ct_sorted_node *ct_sorted_at_least(const struct ct_sorted *list, size_t key,
                                                 size_t key2);
CT_API struct ct_sorted_node *ct_sorted_below(const struct ct_sorted *list, size_t key,
                                              size_t key2);

CT_END_DECLS

#endif
