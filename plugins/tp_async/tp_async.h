/*
 * Asynchronous tensor parallelism: what its sources share.
 *
 *   tp_async.c   finds collectives along tp, and has each done as is chosen
 *   work.c       products beside a collective
 *   choose.c     the form of a pipeline and the number of its chunks, by a model of times
 *   pipeline.c   what pipelines of both forms are made of
 *   chunks.c     pipelines of collectives in chunks
 *   ring.c       pipelines of exchanges along a ring, and ring_ops.c their op types
 */
#ifndef TP_ASYNC_H
#define TP_ASYNC_H

#include <ctitan/core_ops.h>
#include <ctitan/stream.h>

struct ct_machine;
struct ct_run;

struct async_config {
    int64_t chunks;
    enum async_own_first { ASYNC_AUTO, ASYNC_ALWAYS, ASYNC_NEVER } own_first;
    const char *machine;             /* lib/machine.h; empty: "this", or the rates that follow */
    double link, tflops, chunk_cost; /* GB/s, TFLOP/s, us */
};

extern struct async_config async_config;

/* Position of the axis `tp` in the mesh; -1: it has one rank. */
int async_axis(const struct ct_graph *graph);

/* ---- work ---- */

/* The rows that are exchanged: [batch x sequences, outer x ranks x tokens, ..]. */
struct async_rows {
    int64_t batch, sequences; /* shards of the batch; sequences of a rank */
    int64_t outer, ranks;     /* shards of a sequence by other axes, and by tp */
    int64_t tokens;           /* of a shard of a sequence; 0: shards are uneven */
};

/* A gather and the products that take its rows, or a scatter and the products that it sums. */
struct async_work {
    struct ct_graph *graph;
    struct ct_op *collective;
    struct ct_op **product; /* of a gather: the first one, then all that can run where it does */
    int products;
    double sent, flops; /* by a rank */
    struct async_rows rows;
    /* As async_choose sets them. */
    bool ring;
    int chunks; /* of a rank's rows */
};

/* Places of the producers of values, by id; those of later values are not known. */
struct async_places {
    uint32_t *of;
    size_t count;
};

/* Fill in the rows of work->collective, its products, and their FLOPs. NULL, or why no pipeline can
   be made of them. A product may move to where the gathered value is first used. */
const char *async_find_gather(struct async_work *work, struct async_places *places,
                              struct ct_arena *scratch);
const char *async_find_scatter(struct async_work *work, struct ct_arena *scratch);

/* The machine to choose for: the one that is named, or the one that the run is planned for. NULL:
   none, so the stated rates count, as always with [training] deterministic and none named. */
int async_find_machine(struct ct_arena *arena, const struct ct_run *run,
                       const struct ct_machine **machine);
/* Choose the pipeline that ends first. NULL, or why the collective stays one. */
const char *async_choose(struct async_work *work, const struct ct_machine *machine);

/*
 * Write a pipeline in front of the collective, and remove what it replaces.
 *
 * in_chunks: of the whole, at least two. by_ring: own rows beside the exchange of the next rank's.
 */
int async_gather_in_chunks(const struct async_work *work);
int async_scatter_in_chunks(const struct async_work *work);
int async_gather_by_ring(const struct async_work *work);
int async_scatter_by_ring(const struct async_work *work);

/* ---- pipelines ---- */

struct async_pipeline {
    const struct async_work *work;
    struct ct_builder b;
    struct ct_arena scratch;
    /* Rows number `which` of a value that has them all, and the sharding of a view whose rows are
       divided, of a value with sharding s. */
    struct ct_value *(*take)(struct async_pipeline *p, struct ct_value *whole, int which);
    struct ct_sharding (*divide)(const struct async_pipeline *p, const struct ct_sharding *s);
    struct seen { /* views that are there already */
        struct ct_value *value, *view;
        struct seen *next;
    } * seen;
};

/* Inputs that have the rows of op's outputs, as bits; 0: it is no product of rows. */
uint64_t async_row_inputs(const struct ct_op *op);
/* The name of v with a suffix, and a number unless it is negative. */
const char *async_named(const struct async_pipeline *p, const struct ct_value *v, const char *what,
                        int number);
/* A view of v in another shape; made once. */
struct ct_value *async_view(struct async_pipeline *p, struct ct_value *v, int ndim,
                            const int64_t *shape, struct ct_sharding sharding);
/* The product on rows number `which`; first: these rows of its first input. NULL: p->b.status. */
struct ct_op *async_product(struct async_pipeline *p, const struct ct_op *op,
                            struct ct_value *first, int which);
/* Rows number `which` of v, a product or a sum of products. */
struct ct_value *async_sum(struct async_pipeline *p, const struct ct_value *v, int which);
/* value, in another shape, takes the place and the name of old. */
void async_deliver(struct async_pipeline *p, struct ct_value *value, struct ct_value *old);
/* Remove the collective and what it took, or what took it. Ends the pipeline: its status. */
int async_end_gather(struct async_pipeline *p);
int async_end_scatter(struct async_pipeline *p, struct ct_op *sum);

/* Exchanges of one chunk while another computes. */
static inline int async_stream(void)
{
    return ct_stream("chunk", CT_STREAM_KEEPS);
}

/* ---- the ring's op types ---- */

/* A rank's shard along dim as a value of its own, which no axis of the group splits and which
   differs from rank to rank; or back. The memory is the same. */
struct async_local {
    int64_t dim, size; /* of the dimension afterwards */
};

/* Indices of dim count from the rank's own shard along axes, round the ring of their ranks. A part
   that is taken out or put in lies within one shard. */
struct async_ring {
    int64_t dim, from, size;
    ct_axes axes;
};

/* ring_narrow and ring_concat copy nothing where parts are contiguous. ring_sum adds the values of
   the ranks, which come in the order of the ring, in the order of the ranks: as a reduce_scatter
   does. */
extern const struct ct_op_type async_op_local, async_op_ring_narrow, async_op_ring_concat,
    async_op_ring_sum;
extern const struct ct_kernel async_ring_kernels[]; /* of the device "cpu" */

#endif
