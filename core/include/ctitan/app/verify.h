/*
 * Checks of graphs, and of lowered programs.
 */
#ifndef CT_VERIFY_H
#define CT_VERIFY_H

#include <stdio.h>

#include <ctitan/base.h>

CT_BEGIN_DECLS

struct ct_graph;
struct ct_program;

/*
 * Find every fault in the graph: undefined or twice defined values, uses before definition, shapes
 * or dtypes that `infer` would not give, parts out of order, updates of values that may not be
 * updated, shardings that do not fit. Writes one line for each to report (may be NULL). Returns 0,
 * or CT_EINVAL with the first fault as the message.
 */
CT_API int ct_graph_verify(const struct ct_graph *graph, FILE *report);

/*
 * Write every violation of a program's rules to report (NULL: nowhere): overlapping lifetimes at
 * overlapping offsets, reads before writes, a stream that reads what another wrote without an event
 * between. CT_EINVAL: there is one; the message is the first.
 */
CT_API int ct_program_verify(const struct ct_program *program, FILE *report);

CT_END_DECLS

#endif
