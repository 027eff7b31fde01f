/*
 * What feeds a graph: this rank's shards of the samples of each step, read by a thread while the
 * step before runs.
 */
#ifndef FEED_H
#define FEED_H

#include <pthread.h>

#include <ctitan/lib/train.h>

#define FEED_END_OF_DATA 1
#define FEED_INPUTS 4 /* tokens, labels, documents, positions */

struct feed {
    struct ct_run *run;
    struct ct_executor *executor;
    const struct ct_graph *graph;
    const struct ct_data_ops *ops;
    struct ct_data *data;
    int microbatches;
    struct ct_value *value[FEED_INPUTS], *valid; /* NULL: the graph does not take it */
    int64_t local[CT_MAX_DIMS], offset[CT_MAX_DIMS];
    int32_t *row[FEED_INPUTS];   /* one sample from the source */
    int32_t *shard[FEED_INPUTS]; /* of this rank, for all microbatches */
    int64_t labels;              /* of this rank in the step that was fed, masked ones excluded */

    /* One request at a time: the thread owns the rows and shards from READ to DONE. */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum { FEED_IDLE, FEED_READ, FEED_DONE, FEED_QUIT } state;
    int64_t first; /* sample of the request */
    int64_t valid_tokens;
    int rc;
    char message[1024];
};

void feed_init(struct feed *feed, struct ct_run *run, struct ct_executor *executor,
               const struct ct_graph *graph, struct ct_data *data, int microbatches);
/* NULL-safe in all its parts; a feed of zeros is finished. */
void feed_finish(struct feed *feed);

/* Samples of a step. */
int64_t feed_samples(const struct feed *feed);
/* Tokens in a sample. */
int64_t feed_seq_len(const struct feed *feed);

/*
 * Feed all microbatches of a step, whose samples begin at first, and start to read those from next
 * on (-1: nothing). FEED_END_OF_DATA: too few samples, on all ranks.
 */
int feed_step(struct feed *feed, int64_t first, int64_t next);

#endif
