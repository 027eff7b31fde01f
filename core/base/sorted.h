/*
 * Items in the order of a key of two numbers: a skip list (Pugh 1990), each operation in the
 * logarithm of their number. Its coins are the same in every run. Nodes live in an arena; removed
 * ones are used again.
 */
#ifndef CT_SORTED_H
#define CT_SORTED_H

#include <ctitan/arena.h>

#define CT_SORTED_LEVELS 16

struct ct_sorted_node {
    size_t key[2];
    void *item;
    int levels;
    struct ct_sorted_node *next[]; /* next[0]: the next in order, NULL behind the last */
};

struct ct_sorted {
    struct ct_arena *arena;
    struct ct_sorted_node *first[CT_SORTED_LEVELS], *unused[CT_SORTED_LEVELS + 1];
    uint32_t coin;
};

struct ct_sorted ct_sorted_create(struct ct_arena *arena);
/* Keys may be equal: the new one comes first. */
struct ct_sorted_node *ct_sorted_insert(struct ct_sorted *list, size_t key, size_t key2,
                                        void *item);
void ct_sorted_remove(struct ct_sorted *list, struct ct_sorted_node *node);
/* The first that is not below the key; the last that is. NULL: none. */
struct ct_sorted_node *ct_sorted_at_least(const struct ct_sorted *list, size_t key, size_t key2);
struct ct_sorted_node *ct_sorted_below(const struct ct_sorted *list, size_t key, size_t key2);

#endif
