/* Names of a graph's values: unique, found by hashing. Private to the graph's sources. */
#ifndef CT_GRAPH_NAMES_H
#define CT_GRAPH_NAMES_H

#include <ctitan/graph.h>

struct ct_name_table *ct_names_create(struct ct_arena *arena);
/* name, or name with the first free suffix ".2", ".3", ..; now belongs to value. */
const char *ct_names_claim(struct ct_name_table *table, const char *name, struct ct_value *value);
struct ct_value *ct_names_find(const struct ct_name_table *table, const char *name);
void ct_names_release(struct ct_name_table *table, const char *name);
/* A copy of text that is the same pointer for the same text. */
const char *ct_names_intern(struct ct_name_table *table, const char *text);
/* The same names in another arena; values: by the id of the value that has the name now. */
struct ct_name_table *ct_names_clone(const struct ct_name_table *table, struct ct_arena *arena,
                                     struct ct_value *const *values);

#endif
