/*
 * The program of validation on data of a hook's own.
 */
#include <stdlib.h>

#include <ctitan/error.h>

#include "train/feed.h"

struct ct_evaluation {
    struct feed feed;
};

static int open_feed(struct ct_run *run, const struct ct_data_ops *ops, struct ct_data *data,
                     struct feed *feed)
{
    struct ct_data_request request = {.seq_len = ct_config.training.seq_len};
    struct feed_source source = {ops, data, NULL};
    int rc = ct_data_streams(ops, &request, &run->arena, &source.streams);

    return rc < 0 ? rc
                  : feed_init(feed, run, run->validation_executor, run->validation_graph,
                              run->validation_program->microbatches, &source);
}

int ct_evaluation_open(struct ct_run *run, const struct ct_data_ops *ops, struct ct_data *data,
                       struct ct_evaluation **out)
{
    struct ct_evaluation *e;
    int rc;

    *out = NULL;
    if (!run->validation_executor)
        return ct_fail(CT_EINVAL, "the run has no program of validation");
    e = calloc(1, sizeof(*e));
    if (!e)
        return ct_fail(CT_ENOMEM, "an evaluation");
    rc = open_feed(run, ops, data, &e->feed);
    if (rc < 0)
        free(e);
    else
        *out = e;
    return rc;
}

int64_t ct_evaluation_samples(const struct ct_evaluation *e)
{
    return feed_samples(&e->feed);
}

int ct_evaluation_run(struct ct_evaluation *e, int64_t first, int64_t next, double *sum,
                      double *count)
{
    int rc = feed_step(&e->feed, first, next);

    if (rc == FEED_END_OF_DATA)
        return ct_fail(CT_EINVAL, "the data of the evaluation ends before sample %lld",
                       (long long)(first + feed_samples(&e->feed)));
    if (rc == 0)
        rc = feed_execute(&e->feed);
    return rc < 0 ? rc : feed_read_loss(&e->feed, sum, count);
}

void ct_evaluation_close(struct ct_evaluation *e)
{
    if (e)
        feed_finish(&e->feed);
    free(e);
}
