/*
 * Asynchronous tensor parallelism: what its sources share.
 *
 *   async.c      finds collectives with products beside them, and chooses how each is done
 *   pipeline.c   what pipelines of both forms are made of
 *   chunks.c     pipelines of collectives in chunks
 *   ring.c       pipelines of exchanges along a ring, and ring_ops.c their op types
 */
#ifndef TP_ASYNC_H
#define TP_ASYNC_H

#include <ctitan/core_ops.h>

#include "tp.h"

/* The rows that are exchanged: [batch x sequences, outer x ranks x tokens, ..]. */
struct tp_rows {
    int64_t batch, sequences; /* shards of the batch; sequences of a rank */
    int64_t outer, ranks;     /* shards of a sequence by other axes, and by tp */
    int64_t tokens;           /* of a shard of a sequence; 0: shards are uneven */
};

/* A gather and the products that take its rows, or a scatter and the products that it sums. */
struct tp_work {
    struct ct_graph *graph;
    struct ct_op *collective;
    struct ct_op **product; /* of a gather: the first one, then all that can run where it does */
    int products;
    double sent, flops; /* by a rank */
    struct tp_rows rows;
    int chunks; /* of a rank's rows */
};

/*
 * Write a pipeline in front of the collective, and remove what it replaces.
 *
 * in_chunks: of the whole, at least two. by_ring: own rows beside the exchange of the next rank's.
 */
int tp_gather_in_chunks(const struct tp_work *work);
int tp_scatter_in_chunks(const struct tp_work *work);
int tp_gather_by_ring(const struct tp_work *work);
int tp_scatter_by_ring(const struct tp_work *work);

/* ---- pipelines ---- */

struct tp_pipeline {
    const struct tp_work *work;
    struct ct_builder b;
    struct ct_arena scratch;
    /* Rows number `which` of a value that has them all, and the sharding of a view whose rows are
       divided, of a value with sharding s. */
    struct ct_value *(*take)(struct tp_pipeline *p, struct ct_value *whole, int which);
    struct ct_sharding (*divide)(const struct tp_pipeline *p, const struct ct_sharding *s);
    struct seen { /* views that are there already */
        struct ct_value *value, *view;
        struct seen *next;
    } * seen;
};

/* Inputs that have the rows of op's outputs, as bits; 0: it is no product of rows. */
uint64_t tp_row_inputs(const struct ct_op *op);
/* The name of v with a suffix, and a number unless it is negative. */
const char *tp_named(const struct tp_pipeline *p, const struct ct_value *v, const char *what,
                     int number);
/* A view of v in another shape; made once. */
struct ct_value *tp_view(struct tp_pipeline *p, struct ct_value *v, int ndim, const int64_t *shape,
                         struct ct_sharding sharding);
/* The product on rows number `which`; first: these rows of its first input. NULL: p->b.status. */
struct ct_op *tp_product(struct tp_pipeline *p, const struct ct_op *op, struct ct_value *first,
                         int which);
/* Rows number `which` of v, a product or a sum of products. */
struct ct_value *tp_sum(struct tp_pipeline *p, const struct ct_value *v, int which);
/* value, in another shape, takes the place and the name of old. */
void tp_deliver(struct tp_pipeline *p, struct ct_value *value, struct ct_value *old);
/* Remove the collective and what it took, or what took it. Ends the pipeline: its status. */
int tp_end_gather(struct tp_pipeline *p);
int tp_end_scatter(struct tp_pipeline *p, struct ct_op *sum);

/* Exchanges of one chunk while another computes. */
static inline int tp_stream(void)
{
    return ct_stream("chunk", CT_STREAM_KEEPS);
}

/* ---- the ring's op types ---- */

/* A rank's shard along dim as a value of its own, which no axis of the group splits and which
   differs from rank to rank; or back. The memory is the same. */
struct tp_local {
    int64_t dim, size; /* of the dimension afterwards */
};

/* Indices of dim count from the rank's own shard along axes, round the ring of their ranks. What is
   taken out or put in lies within one shard. */
struct tp_ring {
    int64_t dim, from, size;
    ct_axes axes;
};

/* ring_narrow and ring_concat copy nothing where parts are contiguous. ring_sum adds the values of
   the ranks, which come in the order of the ring, in the order of the ranks: as a reduce_scatter
   does. */
extern const struct ct_op_type tp_op_local, tp_op_ring_narrow, tp_op_ring_concat, tp_op_ring_sum;
extern const struct ct_kernel tp_ring_kernels[]; /* of the device "cpu" */

#endif
