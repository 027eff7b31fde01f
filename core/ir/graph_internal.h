/* Constructors of objects that are not yet in a graph. Private to the graph's sources. */
#ifndef CT_GRAPH_INTERNAL_H
#define CT_GRAPH_INTERNAL_H

#include <ctitan/op.h>

/* A value with a name that it owns and nothing else. */
struct ct_value *ct_value_new(struct ct_graph *graph, const char *name);
/* An op without outputs that is not in the list. attrs NULL: zeroed. */
struct ct_op *ct_op_new(struct ct_builder *b, const struct ct_op_type *type,
                        struct ct_value *const *in, int ins, const void *attrs);

#endif
