/* Unique names of a graph's values, in a hash table. Private to the graph's sources. */
#ifndef CT_GRAPH_NAMES_H
#define CT_GRAPH_NAMES_H

#include <ctitan/graph.h>

struct ct_name_table *ct_names_create(struct ct_arena *arena);
/* Give value the name, or the name with the first free suffix ".2", ".3", ..; returns it. */
const char *ct_names_claim(struct ct_name_table *table, const char *name, struct ct_value *value);
struct ct_value *ct_names_find(const struct ct_name_table *table, const char *name);
void ct_names_release(struct ct_name_table *table, const char *name);
/* A copy of text; equal texts share one pointer. */
const char *ct_names_intern(struct ct_name_table *table, const char *text);
/* Copy the names to another arena. values: by the id of the name's present value. */
struct ct_name_table *ct_names_clone(const struct ct_name_table *table, struct ct_arena *arena,
                                     struct ct_value *const *values);

#endif
