#include <stdio.h>
#include <string.h>

#include <ctitan/calling.h>
#include <ctitan/error.h>

#include "feed.h"

enum { TOKENS, LABELS, DOCUMENTS, POSITIONS };

static const char *const names[FEED_INPUTS] = {"tokens", "labels", "documents", "positions"};

int64_t feed_samples(const struct feed *f)
{
    return f->value[TOKENS]->shape[0] * f->microbatches;
}

int64_t feed_seq_len(const struct feed *f)
{
    return f->value[TOKENS]->shape[1];
}

void feed_init(struct feed *f, struct ct_run *run, struct ct_executor *executor,
               const struct ct_graph *graph, struct ct_data *data, int microbatches)
{
    const struct ct_value *tokens;

    *f = (struct feed){.run = run,
                       .executor = executor,
                       .graph = graph,
                       .ops = run->data_ops,
                       .data = data,
                       .microbatches = microbatches,
                       .lock = PTHREAD_MUTEX_INITIALIZER,
                       .changed = PTHREAD_COND_INITIALIZER};
    for (int i = 0; i < FEED_INPUTS; i++)
        f->value[i] = ct_graph_find_input(graph, names[i]);
    f->valid = ct_graph_find_input(graph, "valid_tokens");
    tokens = f->value[TOKENS];
    ct_sharding_local(&tokens->sharding, &graph->mesh, run->rank, 2, tokens->shape, f->local,
                      f->offset);
    for (int i = 0; i < FEED_INPUTS; i++) {
        f->row[i] = ct_arena_array(&run->arena, int32_t, tokens->shape[1]);
        f->shard[i] =
            ct_arena_array(&run->arena, int32_t, f->local[0] * f->local[1] * microbatches);
    }
    for (int64_t t = 0; t < tokens->shape[1]; t++)
        f->row[POSITIONS][t] = (int32_t)t;
}

/* ---- reading, in the thread ---- */

/* Positions begin again with each document. */
static int read_sample(struct feed *f, int64_t index)
{
    int32_t *documents = f->row[DOCUMENTS], *positions = f->row[POSITIONS];
    struct ct_calling before = ct_calling_begin("data source", NULL);
    int rc = f->ops->read(f->data, index, f->row[TOKENS], f->row[LABELS],
                          f->value[DOCUMENTS] ? documents : NULL);

    ct_calling_end(&before);
    for (int64_t t = 1; rc == 0 && f->value[DOCUMENTS] && t < feed_seq_len(f); t++)
        positions[t] = documents[t] == documents[t - 1] ? positions[t - 1] + 1 : 0;
    return rc;
}

/* Copy this rank's part of a sample, in the order in which the graph is fed. */
static void split_row(struct feed *f, int64_t to)
{
    for (int64_t t = 0; t < f->local[1]; t++) {
        int64_t from = ct_graph_position(f->graph, feed_seq_len(f), f->offset[1] + t);

        for (int i = 0; i < FEED_INPUTS; i++)
            f->shard[i][to + t] = f->row[i][from];
        f->valid_tokens += f->row[LABELS][from] != -100;
    }
}

/* A sample of a step whose last one is there. */
static int read_within(struct feed *f, int64_t index)
{
    int rc = read_sample(f, index);

    return rc == 1 ? ct_fail(CT_EINVAL,
                             "the data source has no sample %lld, but the later sample %lld: "
                             "`ctitan check` tests what sources must hold to",
                             (long long)index, (long long)(f->first + feed_samples(f) - 1))
                   : rc;
}

/* Every rank reads the last sample to decide whether the data suffices; otherwise some would find
   all of theirs, and wait for the others. */
static int read_step(struct feed *f)
{
    int rc = read_sample(f, f->first + feed_samples(f) - 1);

    f->valid_tokens = 0;
    for (int m = 0; rc == 0 && m < f->microbatches; m++)
        for (int64_t b = 0; rc == 0 && b < f->local[0]; b++) {
            rc = read_within(f, f->first + m * f->value[TOKENS]->shape[0] + f->offset[0] + b);
            if (rc == 0)
                split_row(f, (m * f->local[0] + b) * f->local[1]);
        }
    return rc;
}

static void *work(void *argument)
{
    struct feed *f = argument;

    pthread_mutex_lock(&f->lock);
    while (f->state != FEED_QUIT) {
        if (f->state != FEED_READ) {
            pthread_cond_wait(&f->changed, &f->lock);
            continue;
        }
        pthread_mutex_unlock(&f->lock);
        f->rc = read_step(f);
        if (f->rc < 0)
            snprintf(f->message, sizeof(f->message), "%s", ct_error_message());
        pthread_mutex_lock(&f->lock);
        if (f->state == FEED_READ)
            f->state = FEED_DONE;
        pthread_cond_broadcast(&f->changed);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* ---- feeding ---- */

/* After this the thread owns the rows. */
static int request(struct feed *f, int64_t first)
{
    if (!f->started && pthread_create(&f->thread, NULL, work, f))
        return ct_fail(CT_ENOMEM, "a thread that reads data");
    f->started = true;
    pthread_mutex_lock(&f->lock);
    f->first = first;
    f->state = FEED_READ;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return 0;
}

/* After this the thread is idle. Returns whether it has read the samples from first on. */
static bool collect(struct feed *f, int64_t first)
{
    bool done;

    pthread_mutex_lock(&f->lock);
    while (f->state == FEED_READ)
        pthread_cond_wait(&f->changed, &f->lock);
    done = f->state == FEED_DONE && f->first == first;
    f->state = FEED_IDLE;
    pthread_mutex_unlock(&f->lock);
    return done;
}

static int write_inputs(struct feed *f)
{
    int64_t tokens = f->local[0] * f->local[1];
    int rc = 0;

    for (int m = 0; m < f->microbatches; m++)
        for (int i = 0; rc == 0 && i < FEED_INPUTS; i++)
            if (f->value[i])
                rc = ct_executor_write(f->executor, f->value[i], m, f->shard[i] + m * tokens,
                                       sizeof(int32_t) * (size_t)tokens);
    if (rc < 0)
        return rc;
    f->labels = f->valid_tokens;
    return ct_executor_write(f->executor, f->valid, -1, &(float){(float)f->labels}, sizeof(float));
}

int feed_step(struct feed *f, int64_t first, int64_t next)
{
    int rc = 0;

    if (!collect(f, first)) {
        rc = request(f, first);
        if (rc < 0)
            return rc;
        collect(f, first);
    }
    if (f->rc < 0)
        return ct_fail(f->rc, "%s", f->message);
    if (f->rc)
        return f->rc;
    rc = write_inputs(f);
    return rc < 0 || next < 0 ? rc : request(f, next);
}

void feed_finish(struct feed *f)
{
    if (!f->started)
        return;
    pthread_mutex_lock(&f->lock);
    f->state = FEED_QUIT;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    f->started = false;
}
