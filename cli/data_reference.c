/*
 * data --reference: the log-probability of the labels of each sample, by the model that training
 * begins with: a file of samples (lib/samples.h) with a tensor `logp`, float32 [samples].
 */
#include <string.h>

#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/lib/samples.h>
#include <ctitan/log.h>
#include <ctitan/op_author.h>

#include "data.h"
#include "data_logits.h"
#include "data_reference.h"

/* Checkpoints of the run are in another folder, so that its weights are those of its first step. */
int data_reference_apply(struct ct_recipe *recipe, const char *path)
{
    const char *folder = ct_arena_printf(recipe->arena, "%s.no-folder", path);
    int rc = ct_recipe_set(recipe, ct_recipe_assign(recipe->arena, "job.dump_folder", folder));

    return rc < 0 ? rc : ct_recipe_apply(recipe);
}

static int check_run(const struct ct_run *run)
{
    return run->progress.step <= 1
               ? 0
               : ct_fail(CT_ECONFIG,
                         "--reference: the weights that were loaded are those after step %lld, not "
                         "those that training begins with",
                         (long long)run->progress.step - 1);
}

static float sum_of(struct data_logits *d)
{
    double sum = 0;

    for (int64_t i = 0; i < d->seq_len; i++) {
        const double *row = d->sample.labels[i] == CT_MASKED ? NULL : data_logits_at(d, i);

        if (row)
            sum += row[d->sample.labels[i]] - ct_log_sum_exp(row, d->vocabulary);
    }
    return (float)sum;
}

static int score(const struct reader *r, struct data_logits *d, int64_t index,
                 struct ct_new_sample_file *file)
{
    size_t bytes = (size_t)d->seq_len * sizeof(*r->tokens);
    int rc = data_read(r, index);
    float logp;

    if (rc == 1)
        return ct_fail(CT_EINVAL, "the data ends before its sample %lld", (long long)index);
    if (rc < 0)
        return rc;
    memcpy(d->sample.tokens, r->tokens, bytes);
    memcpy(d->sample.labels, r->labels, bytes);
    if (d->sample.documents)
        memcpy(d->sample.documents, r->documents, bytes);
    rc = data_logits_compute(d, index);
    if (rc < 0)
        return rc;
    logp = sum_of(d);
    return ct_sample_file_put(file, index, ct_labels_hash(r->tokens, r->labels, d->seq_len),
                              (const void *[]){&logp});
}

static int score_all(const struct reader *r, struct data_logits *d, const char *path)
{
    int64_t samples = r->ops->samples ? r->ops->samples(r->data) : 0;
    const struct ct_weight logp = {.name = "logp", .dtype = CT_F32, .ndim = 1, .shape = {samples}};
    struct ct_new_sample_file *file = NULL;
    int rc;

    if (!samples)
        return ct_fail(CT_ECONFIG, "--reference: the data does not tell how many samples it has");
    rc = ct_sample_file_begin(path, &logp, 1, NULL, &file);
    for (int64_t i = 0; rc == 0 && i < samples; i++) {
        rc = score(r, d, i, file);
        ct_status("%lld of %lld samples", (long long)i + 1, (long long)samples);
    }
    rc = ct_sample_file_end(file, rc);
    if (rc == 0)
        ct_info("%s has the log-probabilities of %lld samples", path, (long long)samples);
    return rc;
}

int data_reference_write(const struct reader *r, struct ct_recipe *recipe, const char *path)
{
    struct data_logits d;
    int rc = data_logits_open(&d, recipe, r->arena, r->seq_len, r->documents);

    if (rc == 0)
        rc = check_run(d.run);
    if (rc == 0)
        rc = score_all(r, &d, path);
    data_logits_close(&d);
    return rc;
}
