/*
 * data --reference: the log-probability of the labels of each sample, by the model that training
 * begins with. A line of the file has a hash of the sample (ct_labels_hash), and the sum.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/log.h>
#include <ctitan/op_author.h>
#include <ctitan/run.h>

#include "data_reference.h"

struct scorer {
    const struct data_samples *of;
    struct ct_arena *arena;
    struct ct_run *run;
    const struct ct_value *output;
    int64_t batch, vocabulary;
    int32_t *tokens, *labels, *positions; /* of a batch */
    char *logits;
    size_t bytes; /* of the logits of a batch */
    int64_t samples;
    double *row; /* logits of a token */
    double *sum; /* by sample */
    uint64_t *hash;
};

/* Checkpoints of the run are in another folder, so that its weights are those of its first step. */
int data_reference_apply(struct ct_recipe *recipe, const char *path)
{
    int rc =
        ct_recipe_set(recipe, ct_arena_printf(recipe->arena, "job.dump_folder=%s.no-folder", path));

    return rc < 0 ? rc : ct_recipe_apply(recipe);
}

static int open_scorer(struct scorer *s, struct ct_recipe *recipe)
{
    /* Logits of one sequence at a time: those of a batch may not fit into the host's memory. */
    struct ct_run_options options = {.depth = CT_RUN_READY, .logits = true, .sequences = 1};
    int64_t seq_len = s->of->seq_len;
    int rc = ct_run_open(recipe, &options, &s->run);

    if (rc < 0)
        return rc;
    if (s->run->progress.step > 1)
        return ct_fail(CT_ECONFIG,
                       "--reference: the weights that were loaded are those after step %lld, not "
                       "those that training begins with",
                       (long long)s->run->progress.step - 1);
    s->output = ct_graph_fetched(s->run->graph, "logits");
    s->batch = options.sequences;
    s->vocabulary = s->output->shape[2];
    s->tokens = ct_arena_array(s->arena, int32_t, s->batch * seq_len);
    s->labels = ct_arena_array(s->arena, int32_t, s->batch * seq_len);
    s->positions = ct_arena_array(s->arena, int32_t, s->batch * seq_len);
    for (int64_t i = 0; i < s->batch * seq_len; i++)
        s->positions[i] = (int32_t)(i % seq_len);
    s->row = ct_arena_array(s->arena, double, s->vocabulary);
    s->bytes = (size_t)(s->batch * seq_len * s->vocabulary) * ct_dtype_size(s->output->dtype);
    s->logits = ct_arena_alloc(s->arena, s->bytes);
    return 0;
}

static int write_input(struct scorer *s, const char *name, const int32_t *data)
{
    const struct ct_value *input = ct_graph_find_input(s->run->graph, name);

    return input ? ct_executor_write(s->run->executor, input, 0, data,
                                     (size_t)(s->batch * s->of->seq_len) * sizeof(*data))
                 : 0;
}

static int check_labels(const struct scorer *s, int64_t sample)
{
    for (int64_t i = 0; i < s->of->seq_len; i++)
        if (s->of->labels[i] != CT_MASKED &&
            (s->of->labels[i] < 0 || s->of->labels[i] >= s->vocabulary))
            return ct_fail(CT_ECONFIG,
                           "sample %lld has token %d, and the model a vocabulary of %lld",
                           (long long)sample, (int)s->of->labels[i], (long long)s->vocabulary);
    return 0;
}

static double sum_of(struct scorer *s, int64_t at)
{
    int64_t seq_len = s->of->seq_len, v = s->vocabulary;
    size_t size = ct_dtype_size(s->output->dtype);
    double sum = 0;

    for (int64_t i = at * seq_len; i < (at + 1) * seq_len; i++) {
        struct ct_tensor t;

        if (s->labels[i] == CT_MASKED)
            continue;
        t = ct_tensor_dense(s->logits + (size_t)(i * v) * size, s->output->dtype, 1, &v);
        for (int64_t k = 0; k < v; k++)
            s->row[k] = ct_tensor_load(&t, k);
        sum += s->row[s->labels[i]] - ct_log_sum_exp(s->row, v);
    }
    return sum;
}

/* Samples first to first + count of the data, which fit into a batch. */
static int score_batch(struct scorer *s, int64_t first, int64_t count)
{
    int64_t seq_len = s->of->seq_len;
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < count; i++) {
        rc = ct_data_read(s->of->ops, s->of->data, first + i, s->of->sample);
        if (rc == 0)
            rc = check_labels(s, first + i);
        memcpy(s->tokens + i * seq_len, s->of->tokens, (size_t)seq_len * sizeof(*s->tokens));
        memcpy(s->labels + i * seq_len, s->of->labels, (size_t)seq_len * sizeof(*s->labels));
        s->hash[first + i] = ct_labels_hash(s->of->tokens, s->of->labels, seq_len);
    }
    if (rc == 1)
        return ct_fail(CT_EINVAL, "the data ends before its sample %lld", (long long)s->samples);
    if (rc == 0)
        rc = write_input(s, "tokens", s->tokens);
    if (rc == 0)
        rc = write_input(s, "positions", s->positions);
    if (rc == 0)
        rc = ct_executor_step(s->run->executor);
    if (rc == 0)
        rc = ct_executor_read(s->run->executor, s->output, s->logits, s->bytes);
    for (int64_t i = 0; rc == 0 && i < count; i++)
        s->sum[first + i] = sum_of(s, i);
    return rc;
}

static void print_sums(const void *context, FILE *out)
{
    const struct scorer *s = context;

    for (int64_t i = 0; i < s->samples; i++)
        fprintf(out, "%016llx %.9g\n", (unsigned long long)s->hash[i], s->sum[i]);
}

static int score_all(struct scorer *s, const char *path)
{
    int rc = 0;

    s->samples = s->of->ops->samples ? s->of->ops->samples(s->of->data) : 0;
    if (!s->samples)
        return ct_fail(CT_ECONFIG, "--reference: the data does not tell how many samples it has");
    s->sum = ct_arena_array(s->arena, double, s->samples);
    s->hash = ct_arena_array(s->arena, uint64_t, s->samples);
    for (int64_t i = 0; rc == 0 && i < s->samples; i += s->batch) {
        int64_t left = s->samples - i;

        rc = score_batch(s, i, left < s->batch ? left : s->batch);
        ct_status("%lld of %lld samples", (long long)(i + s->batch), (long long)s->samples);
    }
    if (rc == 0)
        rc = ct_file_print(path, print_sums, s);
    if (rc == 0)
        ct_info("%s has the log-probabilities of %lld samples", path, (long long)s->samples);
    return rc;
}

int data_reference_write(struct ct_recipe *recipe, const struct data_samples *samples,
                         struct ct_arena *arena, const char *path)
{
    struct scorer s = {.of = samples, .arena = arena};
    int rc = open_scorer(&s, recipe);

    if (rc == 0)
        rc = score_all(&s, path);
    ct_run_close(s.run);
    return rc;
}
