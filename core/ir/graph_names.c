/*
 * A hash table with linear probing, from texts to records. A name is a record with a value. A
 * released name keeps its record, without a value, and can be claimed again. A record stores the
 * smallest suffix that may be free, so a claim need not try all. A second table holds the regions.
 */
#include <string.h>

#include "ir/graph_names.h"

struct record {
    const char *name;
    struct ct_value *value;
    struct record *base; /* of "x.3": "x"; NULL: claimed without a suffix */
    int suffix, next;    /* of "x.3": 3; the smallest that may be free */
};

struct table {
    struct record **slot;
    size_t used, slots; /* slots: a power of two */
};

struct ct_name_table {
    struct ct_arena *arena;
    struct table names, texts;
};

static struct table table_create(struct ct_arena *arena, size_t slots)
{
    return (struct table){ct_arena_array(arena, struct record *, slots), 0, slots};
}

struct ct_name_table *ct_names_create(struct ct_arena *arena)
{
    struct ct_name_table *names = ct_arena_new(arena, struct ct_name_table);

    names->arena = arena;
    names->names = table_create(arena, 256);
    names->texts = table_create(arena, 64);
    return names;
}

/* The slot of name, or the empty slot where it belongs. */
static struct record **find(const struct table *table, const char *name)
{
    size_t i = ct_hash(name) & (table->slots - 1);

    while (table->slot[i] && strcmp(table->slot[i]->name, name) != 0)
        i = (i + 1) & (table->slots - 1);
    return &table->slot[i];
}

static void grow(struct table *table, struct ct_arena *arena)
{
    struct table grown = table_create(arena, table->slots * 2);

    for (size_t i = 0; i < table->slots; i++)
        if (table->slot[i])
            *find(&grown, table->slot[i]->name) = table->slot[i];
    grown.used = table->used;
    *table = grown;
}

/* The record of name, created if needed. */
static struct record *record_of(struct ct_name_table *names, struct table *table, const char *name)
{
    struct record **slot;

    if (table->used * 2 >= table->slots)
        grow(table, names->arena);
    slot = find(table, name);
    if (!*slot) {
        *slot = ct_arena_new(names->arena, struct record);
        **slot = (struct record){.name = ct_arena_strdup(names->arena, name), .next = 2};
        table->used++;
    }
    return *slot;
}

const char *ct_names_claim(struct ct_name_table *names, const char *name, struct ct_value *value)
{
    struct record *base = record_of(names, &names->names, name), *r = base;

    while (r->value) {
        char text[512];
        int n = snprintf(text, sizeof(text), "%s.%d", name, base->next);
        const char *candidate =
            n < (int)sizeof(text) ? text : ct_arena_printf(names->arena, "%s.%d", name, base->next);

        r = record_of(names, &names->names, candidate);
        r->base = base;
        r->suffix = base->next++;
    }
    r->value = value;
    return r->name;
}

struct ct_value *ct_names_find(const struct ct_name_table *names, const char *name)
{
    const struct record *r = *find(&names->names, name);

    return r ? r->value : NULL;
}

void ct_names_release(struct ct_name_table *names, const char *name)
{
    struct record *r = *find(&names->names, name);

    r->value = NULL;
    if (r->base && r->base->next > r->suffix)
        r->base->next = r->suffix;
}

const char *ct_names_intern(struct ct_name_table *names, const char *text)
{
    return record_of(names, &names->texts, text)->name;
}

struct ct_name_table *ct_names_clone(const struct ct_name_table *names, struct ct_arena *arena,
                                     struct ct_value *const *values)
{
    struct ct_name_table *copy = ct_names_create(arena);
    const struct table *from = &names->names;

    for (size_t i = 0; i < from->slots; i++)
        if (from->slot[i] && from->slot[i]->value) {
            struct record *r = record_of(copy, &copy->names, from->slot[i]->name);

            r->value = values[from->slot[i]->value->id];
            r->value->name = r->name;
        }
    return copy;
}
