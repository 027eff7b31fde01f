/*
 * A skip list (Pugh 1990). Levels come from a generator of its own, so equal calls give equal
 * lists.
 */
#include <string.h>

#include <ctitan/app/sorted.h>

struct ct_sorted ct_sorted_create(struct ct_arena *arena)
{
    return (struct ct_sorted){.arena = arena, .coin = 1};
}

static bool is_below(const struct ct_sorted_node *node, size_t key, size_t key2)
{
    return node->key[0] < key || (node->key[0] == key && node->key[1] < key2);
}

/* The last node below the key, or NULL. link[i] is the pointer on level i that follows all nodes
   below the key. */
static struct ct_sorted_node *search(const struct ct_sorted *list, size_t key, size_t key2,
                                     struct ct_sorted_node **link[CT_SORTED_LEVELS])
{
    struct ct_sorted_node *below = NULL;

    for (int level = CT_SORTED_LEVELS; level-- > 0;) {
        struct ct_sorted_node *const *next = below ? &below->next[level] : &list->first[level];

        while (*next && is_below(*next, key, key2)) {
            below = *next;
            next = &below->next[level];
        }
        if (link)
            link[level] = (struct ct_sorted_node **)next;
    }
    return below;
}

/* Every node has one level; one in four of those with a level has the next one, too. */
static int toss(struct ct_sorted *list)
{
    int levels = 1;

    list->coin ^= list->coin << 13;
    list->coin ^= list->coin >> 17;
    list->coin ^= list->coin << 5;
    for (uint32_t bits = list->coin; levels < CT_SORTED_LEVELS && (bits & 3) == 0; bits >>= 2)
        levels++;
    return levels;
}

static struct ct_sorted_node *node_new(struct ct_sorted *list)
{
    int levels = toss(list);
    struct ct_sorted_node *node = list->unused[levels];

    if (node)
        list->unused[levels] = node->next[0];
    else
        node = ct_arena_alloc(list->arena, sizeof(*node) + sizeof(node) * (size_t)levels);
    node->next = (struct ct_sorted_node **)(node + 1);
    node->levels = levels;
    return node;
}

struct ct_sorted_node *ct_sorted_insert(struct ct_sorted *list, size_t key, size_t key2, void *item)
{
    struct ct_sorted_node **link[CT_SORTED_LEVELS], *node = node_new(list);

    search(list, key, key2, link);
    node->key[0] = key;
    node->key[1] = key2;
    node->item = item;
    for (int i = 0; i < node->levels; i++) {
        node->next[i] = *link[i];
        *link[i] = node;
    }
    return node;
}

/* Nodes with an equal key may precede it. */
void ct_sorted_remove(struct ct_sorted *list, struct ct_sorted_node *node)
{
    struct ct_sorted_node **link[CT_SORTED_LEVELS];

    search(list, node->key[0], node->key[1], link);
    for (int i = 0; i < node->levels; i++) {
        struct ct_sorted_node **at = link[i];

        while (*at != node)
            at = &(*at)->next[i];
        *at = node->next[i];
    }
    node->next[0] = list->unused[node->levels];
    list->unused[node->levels] = node;
}

struct ct_sorted_node *ct_sorted_at_least(const struct ct_sorted *list, size_t key, size_t key2)
{
    struct ct_sorted_node **link[CT_SORTED_LEVELS];

    search(list, key, key2, link);
    return *link[0];
}

struct ct_sorted_node *ct_sorted_below(const struct ct_sorted *list, size_t key, size_t key2)
{
    return search(list, key, key2, NULL);
}
