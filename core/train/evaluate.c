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
    struct feed_source source = {.ops = ops, .data = data, .partial = true};
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

int ct_evaluation_run(struct ct_evaluation *e, int64_t first, int64_t next)
{
    int rc = feed_step(&e->feed, first, next);

    if (rc == FEED_END_OF_DATA)
        return ct_fail(CT_EINVAL, "the data of the evaluation ends before sample %lld",
                       (long long)(first + feed_samples(&e->feed)));
    return rc < 0 ? rc : feed_execute(&e->feed);
}

int ct_evaluation_read(const struct ct_evaluation *e, const char *name, double *numbers,
                       int64_t count)
{
    const struct ct_value *v = ct_graph_fetched(e->feed.graph, name);
    struct ct_tensor t;
    char *data;
    int rc;

    if (!v || ct_shape_count(v->ndim, v->shape) != count)
        return ct_fail(CT_EINVAL, "the program of validation fetches no %lld numbers called %s",
                       (long long)count, name);
    data = malloc((size_t)count * ct_dtype_size(v->dtype));
    if (!data)
        return ct_fail(CT_ENOMEM, "%lld numbers called %s", (long long)count, name);
    rc = ct_executor_read(e->feed.executor, v, data, (size_t)count * ct_dtype_size(v->dtype));
    t = ct_tensor_dense(data, v->dtype, 1, &count);
    for (int64_t i = 0; rc == 0 && i < count; i++)
        numbers[i] = ct_tensor_load(&t, i);
    free(data);
    return rc;
}

void ct_evaluation_close(struct ct_evaluation *e)
{
    if (e)
        feed_finish(&e->feed);
    free(e);
}
