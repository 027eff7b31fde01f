/*
 * The feed of a graph: this rank's shards of the samples of each step, read by a thread while the
 * step before runs.
 */
#ifndef FEED_H
#define FEED_H

#include <pthread.h>

#include <ctitan/train.h>

#include "train/metrics.h"

#define FEED_END_OF_DATA 1

/* An input of the graph, and this rank's parts of it. */
struct feed_input {
    const struct ct_value *value;
    const void *row; /* one sample, dense: of its stream, or the positions */
    int64_t local[CT_MAX_DIMS], offset[CT_MAX_DIMS];
    size_t whole[CT_MAX_DIMS + 1]; /* bytes behind an index of the dimension before, if this rank
                                      has them all and in order; else 0 */
    char *shard;                   /* for all microbatches, sample by sample */
    size_t bytes;                  /* of one sample there */
};

/* An input "S_ahead_N": one sample of it. */
struct feed_ahead {
    const char *name;
    const int32_t *from; /* of the stream */
    int32_t *row;
    int64_t by;
    int32_t absent; /* where the sequence or document ends before */
};

/* A scalar that is counted in the data. */
struct feed_count {
    const struct ct_count *count;
    const struct ct_value *value;
    const struct feed_input **in; /* by stream */
    double found;                 /* by the thread */
};

/* Data, and its streams, ended by {0}; those of `beside` are last. */
struct feed_source {
    const struct ct_data_ops *ops;
    struct ct_data *data;
    const struct ct_data_stream *streams;
    const struct ct_run_beside *beside;
    size_t beside_count;
    bool partial; /* streams that the graph takes, and these lack, are zeros */
};

struct feed {
    struct ct_run *run;
    struct ct_executor *executor;
    const struct ct_graph *graph;
    struct feed_source source;
    int microbatches;
    void **row;         /* by stream: one sample from the source; NULL: it is not needed */
    int32_t *positions; /* of one sample */
    int32_t *ordinals;  /* of one sample: numbers of its tokens among those of its stage */
    const int32_t *tokens, *labels; /* of one sample, where streams beside it need them */
    const int32_t *documents;       /* of one sample; NULL: the graph does not take them */
    struct feed_ahead *ahead;
    size_t aheads;
    const int32_t *bounds; /* the documents in which ahead ends; NULL: the source has none */
    struct feed_input *input;
    size_t inputs;
    struct feed_count *count;
    size_t counts;
    struct metrics metrics;
    double counted; /* by this rank in the step that was fed: what the loss is divided by */

    /* One request at a time: the thread owns the rows and shards from READ to DONE. */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum { FEED_IDLE, FEED_READ, FEED_DONE, FEED_QUIT } state;
    int64_t first; /* sample of the request */
    double *work;  /* of each sample of the step, for the thread */
    int64_t *slot; /* of each: microbatch by microbatch, there in the order of the batch */
    int rc;
    char message[1024];
};

/* source is copied. CT_EINVAL: it lacks a stream that the graph takes, or a count names streams
   that the graph does not take. */
int feed_init(struct feed *feed, struct ct_run *run, struct ct_executor *executor,
              const struct ct_graph *graph, int microbatches, const struct feed_source *source);
/* NULL-safe in all its parts; a feed of zeros is finished. */
void feed_finish(struct feed *feed);

/* Run the program with what was fed. */
int feed_execute(struct feed *feed);
/* Read the sum of losses and what divides it, such as the number of labels, over all ranks. */
int feed_read_loss(struct feed *feed, double *sum, double *count);
/* Why there is nothing to divide by. */
const char *feed_nothing(const struct ct_graph *graph);

/* Samples of a step. */
int64_t feed_samples(const struct feed *feed);

/*
 * Feed all microbatches of a step, whose samples begin at first, and start to read those from next
 * on (-1: nothing). FEED_END_OF_DATA: too few samples, on all ranks.
 */
int feed_step(struct feed *feed, int64_t first, int64_t next);

#endif
