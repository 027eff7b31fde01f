/*
 * The training loop: feed, step, check, validate.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/lib/train.h>

enum { END_OF_DATA = 1 };

/* TorchTitan's learning-rate schedule: linear warm-up, constant, decay. Steps are 0-based. */
double ct_lr_factor(const struct ct_lr_config *c, int64_t step, int64_t total)
{
    int64_t warmup = c->warmup_steps < total ? c->warmup_steps : total;
    int64_t decay =
        c->decay_ratio < 0 ? total - warmup : (int64_t)nearbyint((double)total * c->decay_ratio);
    int64_t stable;
    double progress, factor;

    if (warmup + decay > total)
        decay = total - warmup;
    stable = total + 1 - warmup - decay;
    if (step < warmup)
        return (double)(step + 1) / (double)warmup;
    if (step < warmup + stable)
        return 1.0;
    progress = (double)(step + 1 - (warmup + stable)) / (double)decay;
    if (c->decay_type == CT_DECAY_LINEAR)
        factor = 1 - progress;
    else if (c->decay_type == CT_DECAY_SQRT)
        factor = 1 - sqrt(progress);
    else
        factor = 0.5 * (1 + cos(M_PI * progress));
    return c->min_lr_factor + (1 - c->min_lr_factor) * factor;
}

/* ---- batches ---- */

struct feed {
    struct ct_run *run;
    struct ct_executor *executor;
    const struct ct_graph *graph;
    const struct ct_data_ops *ops;
    struct ct_data *data;
    struct ct_value *tokens, *labels, *documents, *positions, *valid;
    int32_t *row[4];  /* one sample from the source: tokens, labels, documents, positions */
    int32_t *part[4]; /* this rank's shard of a microbatch */
    int64_t valid_tokens;
};

static void feed_init(struct feed *f, struct ct_run *run, struct ct_executor *executor,
                      const struct ct_graph *graph, struct ct_data *data)
{
    int64_t seq = ct_config.training.seq_len;

    *f = (struct feed){
        .run = run, .executor = executor, .graph = graph, .ops = run->data_ops, .data = data};
    f->tokens = ct_graph_find_input(graph, "tokens");
    f->labels = ct_graph_find_input(graph, "labels");
    f->documents = ct_graph_find_input(graph, "documents");
    f->positions = ct_graph_find_input(graph, "positions");
    f->valid = ct_graph_find_input(graph, "valid_tokens");
    for (int i = 0; i < 4; i++) {
        f->row[i] = ct_arena_array(&run->arena, int32_t, seq);
        f->part[i] =
            ct_arena_array(&run->arena, int32_t, ct_shape_count(f->tokens->ndim, f->tokens->shape));
    }
    for (int64_t t = 0; t < seq; t++)
        f->row[3][t] = (int32_t)t;
}

/* Copy this rank's part of a sample, in the order in which the graph is fed. */
static void split_row(struct feed *f, int64_t b, int64_t begin, int64_t tokens)
{
    for (int64_t t = 0; t < tokens; t++) {
        int64_t from = ct_graph_position(f->graph, f->tokens->shape[1], begin + t);

        for (int i = 0; i < 4; i++)
            f->part[i][b * tokens + t] = f->row[i][from];
        f->valid_tokens += f->row[1][from] != -100;
    }
}

/* Feed this rank's shard of samples first .. first + batch of one microbatch. */
static int feed_microbatch(struct feed *f, int64_t first, int microbatch)
{
    struct ct_value *values[] = {f->tokens, f->labels, f->documents, f->positions};
    int64_t local[CT_MAX_DIMS], offset[CT_MAX_DIMS];
    int rc = 0;

    ct_sharding_local(&f->tokens->sharding, &f->graph->mesh, f->run->rank, 2, f->tokens->shape,
                      local, offset);
    for (int64_t b = 0; b < local[0]; b++) {
        rc = f->ops->read(f->data, first + offset[0] + b, f->row[0], f->row[1],
                          f->documents ? f->row[2] : NULL);
        if (rc)
            return rc;
        split_row(f, b, offset[1], local[1]);
    }
    for (int i = 0; rc == 0 && i < 4; i++)
        if (values[i])
            rc = ct_executor_write(f->executor, values[i], microbatch, f->part[i],
                                   sizeof(int32_t) * (size_t)(local[0] * local[1]));
    return rc;
}

/* Feed all microbatches of a step. END_OF_DATA: too few samples. Every rank reads the last sample
   to decide; otherwise some would find all of theirs, and wait for the others. */
static int feed_step(struct feed *f, int64_t first_sample, int microbatches)
{
    int64_t last = first_sample + microbatches * f->tokens->shape[0] - 1;
    int rc = f->ops->read(f->data, last, f->row[0], f->row[1], f->documents ? f->row[2] : NULL);

    f->valid_tokens = 0;
    for (int m = 0; rc == 0 && m < microbatches; m++)
        rc = feed_microbatch(f, first_sample + m * f->tokens->shape[0], m);
    if (rc == 0)
        rc = ct_executor_write(f->executor, f->valid, -1, &(float){(float)f->valid_tokens},
                               sizeof(float));
    return rc;
}

/* ---- steps ---- */

static int write_double(struct ct_run *run, const char *name, double x)
{
    const struct ct_value *v = ct_graph_find_input(run->graph, name);

    return v ? ct_executor_write(run->executor, v, -1, &x, sizeof(x)) : 0;
}

static int read_float(struct ct_executor *e, const struct ct_graph *g, const char *name, double *x)
{
    float f = 0;
    int rc = ct_executor_read(e, ct_graph_fetched(g, name), &f, sizeof(f));

    *x = (double)f;
    return rc;
}

/* Read the sum of losses and the number of labels, over all ranks. */
static int read_loss(struct feed *f, double *sum, double *count)
{
    int rc = read_float(f->executor, f->graph, "loss", sum);

    if (rc == 0)
        rc = read_float(f->executor, f->graph, "valid_tokens", count);
    if (rc == 0 && *count == 0)
        return ct_fail(CT_EINVAL, "every label of the batch is masked: there is no loss");
    return rc;
}

/* Calls abandoned by peers may have ended with arbitrary output, so check the communicator. */
static int execute(struct feed *f)
{
    const struct ct_communicator *c = &f->run->communicator;
    int rc = ct_executor_step(f->executor);

    return rc == 0 && c->comm && c->ops->check ? c->ops->check(c->comm) : rc;
}

static double lr_factor(const struct ct_run *run, int64_t step, int64_t total)
{
    return run->lr_schedule ? run->lr_schedule->factor(step, total)
                            : ct_lr_factor(&ct_config.lr_scheduler, step, total);
}

static int feed_scalars(struct ct_run *run, struct ct_step_result *r)
{
    int rc;

    r->lr = run->optimizer->lr() * lr_factor(run, r->step - 1, ct_config.training.steps);
    rc = write_double(run, "lr", r->lr);
    return rc < 0 ? rc : write_double(run, "step", (double)(run->progress.updates + 1));
}

static int run_step(struct feed *f, struct ct_step_result *r)
{
    struct ct_run *run = f->run;
    struct ct_progress *p = &run->progress;
    int64_t samples = f->tokens->shape[0] * run->program->microbatches;
    double begin = ct_now(), valid = 0;
    int rc = feed_step(f, p->samples, run->program->microbatches);

    if (rc)
        return rc;
    r->data_seconds = ct_now() - begin;
    rc = feed_scalars(run, r);
    if (rc == 0)
        rc = execute(f);
    if (rc == 0)
        rc = read_loss(f, &r->loss, &valid);
    if (rc == 0)
        rc = read_float(run->executor, run->graph, "grad_norm", &r->grad_norm);
    if (rc < 0)
        return rc;
    r->loss /= valid;
    r->tokens = samples * f->tokens->shape[1];
    r->tokens_seen = p->tokens += r->tokens;
    p->samples += samples;
    r->seconds = ct_now() - begin;
    return 0;
}

/* Apply the recipe's policy for a loss or norm that is not finite. */
static int check_finite(struct ct_run *run, struct ct_step_result *r)
{
    if (isfinite(r->loss) && isfinite(r->grad_norm)) {
        run->progress.updates++;
        return 0;
    }
    if (strcmp(ct_config.training.non_finite, "stop") != 0) {
        r->skipped = true;
        ct_warn("step %lld skipped: loss %g, grad_norm %g", (long long)r->step, r->loss,
                r->grad_norm);
        return 0;
    }
    return ct_fail(CT_EINVAL,
                   "step %lld: loss %g, grad_norm %g; the update was not applied "
                   "([training] non_finite = skip goes on without it)",
                   (long long)r->step, r->loss, r->grad_norm);
}

static int fire(struct ct_run *run, enum ct_event event, const struct ct_step_result *r)
{
    if (!ct_hook_wanted(event))
        return 0;
    return ct_hook_fire(
        &(struct ct_event_data){.event = event, .run = run, .step = r ? r->step : 0, .result = r});
}

/* ---- validation ---- */

/* Mean loss over the first [validation] steps batches of the held-out data. */
static int validate(struct feed *f, int64_t step)
{
    struct ct_run *run = f->run;
    struct ct_step_result r = {.step = step};
    double begin = ct_now(), sum = 0, loss = 0, valid = 0, count = 0;
    int microbatches = run->validation_program->microbatches;
    int64_t samples = f->tokens->shape[0] * microbatches, n;
    int rc = 0;

    for (n = 0; n < ct_config.validation.steps; n++) {
        rc = feed_step(f, n * samples, microbatches);
        if (rc == END_OF_DATA)
            break;
        if (rc == 0)
            rc = execute(f);
        if (rc == 0)
            rc = read_loss(f, &loss, &count);
        if (rc < 0)
            return rc;
        sum += loss;
        valid += count;
        r.tokens += samples * f->tokens->shape[1];
    }
    if (n == 0)
        return ct_fail(CT_ECONFIG, "the validation data has not one batch");
    r.loss = sum / valid;
    r.seconds = ct_now() - begin;
    return fire(run, CT_EVENT_VALIDATED, &r);
}

/* ---- the loop ---- */

/* A hook has set the progress back. */
static bool went_back(const struct ct_run *run, const struct ct_step_result *r)
{
    return run->progress.step <= r->step;
}

static int run_and_tell(struct ct_run *run, struct feed *feed, struct ct_step_result *r)
{
    int rc = fire(run, CT_EVENT_STEP_BEGIN, r);

    if (rc == 0)
        rc = run_step(feed, r);
    if (rc == 0)
        rc = check_finite(run, r);
    if (rc)
        return rc;
    run->progress.step++;
    rc = fire(run, CT_EVENT_STEP_END, r);
    if (rc == 0 && r->skipped && !went_back(run, r) &&
        !strcmp(ct_config.training.non_finite, "rewind"))
        return ct_fail(CT_EINVAL, "[training] non_finite = rewind: no plugin that goes back (ckpt) "
                                  "is loaded");
    return rc;
}

static int train(struct ct_run *run, struct feed *feed, struct feed *validation,
                 struct ct_step_result *r)
{
    int64_t freq = ct_config.validation.freq, steps = ct_config.training.steps;
    int rc = 0;

    while (rc == 0 && run->progress.step <= steps && !run->stop) {
        *r = (struct ct_step_result){.step = run->progress.step};
        rc = run_and_tell(run, feed, r);
        if (rc == 0 && freq && !went_back(run, r) && (r->step % freq == 0 || r->step == steps))
            rc = validate(validation, r->step);
    }
    if (rc != END_OF_DATA)
        return rc;
    if (run->rank == 0)
        ct_warn("ran out of data in step %lld, which was cancelled", (long long)r->step);
    return 0;
}

static int train_and_save(struct ct_run *run, struct ct_step_result *result)
{
    struct feed feed, validation;
    int rc;

    feed_init(&feed, run, run->executor, run->graph, run->data);
    if (run->validation_executor)
        feed_init(&validation, run, run->validation_executor, run->validation_graph,
                  run->validation_data);
    rc = train(run, &feed, &validation, result);
    if (rc == 0 && *ct_config.model.save_to && !run->stop)
        rc = run->save(run, ct_config.model.save_to);
    return rc < 0 ? rc : fire(run, CT_EVENT_RUN_END, result);
}

int ct_run_train(struct ct_run *run)
{
    struct ct_step_result result = {0};
    int rc = train_and_save(run, &result);

    return rc >= 0 ? 0 : ct_hook_fire_failure(run, &result, rc);
}

void ct_run_stop(struct ct_run *run, const char *why)
{
    __atomic_store_n(&run->stop, why, __ATOMIC_RELEASE);
}
