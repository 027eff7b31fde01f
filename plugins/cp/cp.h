/* Context parallelism: declarations shared by its sources. */
#ifndef CP_H
#define CP_H

#include <ctitan/run.h>

struct cp_config {
    int64_t degree, pairs;
    enum { CP_RING, CP_ALL_GATHER, CP_ULYSSES } method;
    enum { CP_HEADTAIL, CP_ONE_SHARD } load_balancer;
};

extern struct cp_config cp_config;

/* Position of the axis in the mesh, or -1 if the degree is 1. */
int cp_axis(const struct ct_graph *graph);

/* The optional inputs of attention and attention_grad, which follow k and v. */
enum { CP_DOCUMENTS, CP_K_DOCUMENTS, CP_POSITIONS, CP_K_POSITIONS, CP_OPTIONAL };

/* ---- ulysses.c ---- */

/* Redistribute the operands of an attention op from tokens to heads, and its result back. split:
   the axes over which heads are split already. */
int cp_exchange_heads(struct ct_graph *graph, struct ct_op *attention, ct_axes split);

/* ---- states.c ---- */

/* Make ops whose type has a recurrence work on so many segments of each sequence, in the order in
   which sequences are fed. CT_ECONFIG: a segment has too few tokens. */
int cp_pass_states(struct ct_graph *graph, int64_t segments);

/* ---- ring.c ---- */

/*
 * Attention whose keys are split along the sequence in the same way as its queries:
 *
 *     ring_attention(q, k, v, documents?, positions?) -> o, lse
 *     ring_attention_grad(do, q, k, v, o, lse, documents?, positions?) -> dq, dk, dv
 */
extern const struct ct_op_type cp_ring_attention, cp_ring_attention_grad;

/* Turn an attention op that has all inputs of CP_OPTIONAL into a ring_attention. */
void cp_make_ring(struct ct_graph *graph, struct ct_op *attention);

/* ---- merge.c ---- */

extern const struct ct_op_type cp_attention_merge;

/* ---- expand.c ---- */

/* Replace ring ops by rotations of keys and values, attention on blocks, and merges. */
int cp_expand_rings(struct ct_graph *graph, struct ct_run *run);

#endif
