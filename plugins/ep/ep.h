/* Expert parallelism: declarations shared by its sources. */
#ifndef EP_H
#define EP_H

#include <ctitan/run.h>

struct ep_config {
    int64_t degree;
    double buffer;
    unsigned dispatch; /* enum ep_dispatch */
};

/* How rows travel to experts, of tokens and of gradients. */
enum ep_dispatch { EP_AS_THEY_ARE, EP_FLOAT8 };

extern struct ep_config ep_config;

/* ---- mixture.c: types that stand for a mixture until shardings are known ---- */

/*
 * As experts, experts_dx and experts_dw of lib/ops, but tokens and experts are both split over ep:
 * the op brings them together.
 */
extern const struct ct_op_type ep_experts, ep_experts_dx, ep_experts_dw;
/* The first input that experts and its gradients have in common: x. */
int ep_first_input(const struct ct_op *op);
enum { EP_X, EP_WEIGHTS, EP_IDS, EP_GATE, EP_UP, EP_DOWN, EP_GATE_BIAS, EP_UP_BIAS, EP_INPUTS };

/* ---- route.c, exchange.c: what a rank runs ---- */

/*
 * A row is a token on its way to a rank, which sees it once, whichever of its experts the token
 * chose. Rows from one rank to another are numbered in the order of tokens. Those with numbers
 * [i * capacity, (i + 1) * capacity) travel in round i.
 *
 *   ep.route     ids -> slot, most     the row's number for each token and rank, -1: none; and the
 *                                      largest number of rows for any rank
 *   ep.pack      rows, slot, x -> y    the rows of a round, rank by rank
 *   ep.exchange  rows, x -> y          every rank gets its rows from every rank
 *   ep.sum       rows, slot, y, prev? -> sum   for each token, prev and its rows of a round
 *
 * rows: the largest number of rows between any two ranks. If `agreed`, no more rows of a round are
 * packed and sent than that, and none if there are none; else all `capacity` rows are. In tensors
 * of indices, rows that are not there hold CT_NO_EXPERT.
 */
struct ep_route {
    int64_t experts; /* of all ranks */
    int64_t ranks;   /* that share the experts */
    int64_t groups;  /* of such ranks */
};
struct ep_round {
    ct_axes axes; /* exchange */
    int64_t round, capacity;
    int64_t shards, ranks; /* pack: shards of tokens; ranks that share the experts */
    bool agreed;
};
extern const struct ct_op_type ep_route, ep_pack, ep_exchange, ep_sum;
extern const struct ct_kernel ep_kernels[];

/* Rows of a round between two ranks, at most; most: the number in `rows`. */
int64_t ep_rows(const struct ep_round *round, double most);

/* Bytes that this rank has sent to others, those of its buffers, and those that gathering tokens
   and scattering their sums would have sent. */
struct ep_traffic {
    double sent, buffers, gathered;
};
extern struct ep_traffic ep_traffic;

/* ---- dispatch_float8.c: rows in 8 bits ---- */

#define EP_BLOCK 128 /* numbers of a row with one factor */

/*
 *   ep.quantise     x -> q, factor     float8_e4m3; a factor for each EP_BLOCK numbers of a row
 *   ep.dequantise   q, factor -> y     their products
 */
struct ep_dequantise {
    enum ct_dtype dtype;
};
extern const struct ct_op_type ep_quantise, ep_dequantise;
extern const struct ct_kernel ep_dispatch_kernels[];

/* ---- expand.c ---- */

/* Replace the types of mixture.c by those of route.c and exchange.c. */
int ep_expand(struct ct_graph *graph, struct ct_run *run);

#endif
