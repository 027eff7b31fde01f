/*
 * A hash table with linear probing, from names to values. A released name keeps its slot, with no
 * value: it can be claimed again. Interned texts (regions) are a short list.
 */
#include <string.h>

#include <ctitan/rng.h>

#include "graph_names.h"

struct entry {
    const char *name;
    struct ct_value *value;
};

struct ct_name_table {
    struct ct_arena *arena;
    struct entry *entries;
    size_t used, slots; /* slots: a power of two */
    const char **interned;
    size_t interned_count, interned_room;
};

struct ct_name_table *ct_names_create(struct ct_arena *arena)
{
    struct ct_name_table *table = ct_arena_new(arena, struct ct_name_table);

    table->arena = arena;
    table->slots = 256;
    table->entries = ct_arena_array(arena, struct entry, table->slots);
    return table;
}

/* The slot of name, or the empty one where it would go. */
static struct entry *slot(const struct ct_name_table *table, const char *name)
{
    size_t i = ct_rng_stream(name) & (table->slots - 1);

    while (table->entries[i].name && strcmp(table->entries[i].name, name))
        i = (i + 1) & (table->slots - 1);
    return &table->entries[i];
}

static void grow(struct ct_name_table *table)
{
    struct entry *old = table->entries;
    size_t slots = table->slots;

    table->slots *= 2;
    table->entries = ct_arena_array(table->arena, struct entry, table->slots);
    for (size_t i = 0; i < slots; i++)
        if (old[i].name)
            *slot(table, old[i].name) = old[i];
}

const char *ct_names_claim(struct ct_name_table *table, const char *name, struct ct_value *value)
{
    const char *candidate = name;
    struct entry *e;

    if (table->used * 2 >= table->slots)
        grow(table);
    for (int suffix = 2; (e = slot(table, candidate))->value; suffix++)
        candidate = ct_arena_printf(table->arena, "%s.%d", name, suffix);
    if (!e->name) {
        e->name = ct_arena_strdup(table->arena, candidate);
        table->used++;
    }
    e->value = value;
    return e->name;
}

struct ct_value *ct_names_find(const struct ct_name_table *table, const char *name)
{
    return slot(table, name)->value;
}

void ct_names_release(struct ct_name_table *table, const char *name)
{
    slot(table, name)->value = NULL;
}

const char *ct_names_intern(struct ct_name_table *table, const char *text)
{
    for (size_t i = table->interned_count; i-- > 0;)
        if (!strcmp(table->interned[i], text))
            return table->interned[i];
    table->interned = ct_arena_grow(table->arena, table->interned, &table->interned_room,
                                    table->interned_count + 1, sizeof(*table->interned));
    return table->interned[table->interned_count++] = ct_arena_strdup(table->arena, text);
}
