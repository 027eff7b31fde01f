/* What the sources of the graph share: objects that are not in it yet. Private to them. */
#ifndef CT_GRAPH_INTERNAL_H
#define CT_GRAPH_INTERNAL_H

#include <ctitan/op.h>

/* A value with a name of its own and nothing else. */
struct ct_value *ct_value_new(struct ct_graph *graph, const char *name);
/* An op without outputs, outside of the list. attrs NULL: zeroed. */
struct ct_op *ct_op_new(struct ct_builder *b, const struct ct_op_type *type,
                        struct ct_value *const *in, int ins, const void *attrs);

#endif
