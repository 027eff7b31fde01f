/*
 * Inputs: what a run feeds to a graph.
 *
 * The run knows a fixed list of names. Inputs are fed for each microbatch, scalars once per step:
 *
 *   tokens        int32 [batch, seq_len]  the tokens
 *   labels        int32 [batch, seq_len]  the token that follows each; -100 where it is masked
 *   documents     int32 [batch, seq_len]  ids that change where a document begins
 *   positions     int32 [batch, seq_len]  the position of each token in its sequence, or, if the
 *                                         graph takes documents, in its document there
 *   valid_tokens  float32                 unmasked labels of the step, on this rank
 *   lr            float64                 the learning rate of the step
 *   step          float64                 1 for the first update that is applied
 *
 * Models and transforms declare those that they use. Nobody would feed an input or scalar that is
 * not in the list, so the run refuses it before the first step. generate feeds tokens and positions
 * only.
 *
 * The names of inputs are reserved: any other value with such a name is renamed. Parameters and
 * states keep their names, so they must not have the name of an input.
 */
#ifndef CT_INPUT_H
#define CT_INPUT_H

#include <ctitan/graph.h>

CT_BEGIN_DECLS

struct ct_input {
    const char *name;
    enum ct_role role; /* CT_ROLE_INPUT or CT_ROLE_SCALAR */
    enum ct_dtype dtype;
    const char *summary;
};

/* The list above; {0} ends. */
CT_API extern const struct ct_input ct_inputs[];

/*
 * The input of that name, created if the graph has none yet. shape: [batch, seq_len]; ignored for
 * scalars. CT_EINVAL: no such input, or it was declared with another shape, or a parameter has that
 * name.
 */
CT_API int ct_graph_input(struct ct_graph *graph, const char *name, const int64_t *shape,
                          struct ct_value **input);
/* The same for models. On failure NULL, with builder->status set. */
CT_API struct ct_value *ct_input(struct ct_builder *builder, const char *name,
                                 const int64_t *shape);
/* The input or scalar of that name; NULL: none. Other values do not count. */
CT_API struct ct_value *ct_graph_find_input(const struct ct_graph *graph, const char *name);
/* CT_EINVAL: graph has an input or scalar that nobody feeds. all: the whole list is fed, as in
   training; else only tokens and positions. */
CT_API int ct_graph_check_inputs(const struct ct_graph *graph, bool all);

CT_END_DECLS

#endif
