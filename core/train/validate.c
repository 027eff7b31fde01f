#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/log.h>

#include "train/validate.h"

static struct ct_data *data_of(const struct ct_run *run, size_t i, const char **name)
{
    if (run->validation_data && i-- == 0)
        return run->validation_data;
    *name = run->sets[i].name;
    return run->sets[i].data;
}

/* " of code"; "": of the data source's own */
static const char *of_set(const struct validated_set *set)
{
    return set->name ? ct_arena_printf(&set->feed.run->arena, " of %s", set->name) : "";
}

/* When a stage begins: a training would be lost by its first validation. */
static int check_first_batch(const struct validated_set *set, struct ct_data *data)
{
    const struct feed *f = &set->feed;
    int64_t batch = feed_samples(f);
    int rc = ct_data_read(f->source.ops, data, batch - 1, f->row);

    return rc <= 0 ? rc
                   : ct_fail(CT_ECONFIG,
                             "the validation data%s has less than one batch of %lld samples: use "
                             "more data, or lower [training] local_batch_size or seq_len",
                             of_set(set), (long long)batch);
}

int validation_init(struct validation *v, struct ct_run *run)
{
    size_t count = run->set_count + (run->validation_data != NULL);
    int rc = 0;

    *v = (struct validation){.run = run,
                             .set = ct_arena_array(&run->arena, struct validated_set, count)};
    for (; rc == 0 && v->count < count; v->count++) {
        struct validated_set *set = &v->set[v->count];
        struct ct_data *data = data_of(run, v->count, &set->name);

        rc = feed_init(&set->feed, run, run->validation_executor, run->validation_graph,
                       run->validation_program->microbatches,
                       &(struct feed_source){run->data_ops, data, run->streams, run->beside,
                                             run->beside_count, false});
        if (rc == 0)
            rc = check_first_batch(set, data);
        if (!v->decides &&
            (!*ct_config.best_set || (set->name && !strcmp(set->name, ct_config.best_set))))
            v->decides = set;
    }
    return rc;
}

void validation_finish(struct validation *v)
{
    for (size_t i = 0; i < v->count; i++)
        feed_finish(&v->set[i].feed);
}

/* Once: it is the same in every validation. */
static void report_short(struct validated_set *set, int64_t batches)
{
    if (!set->short_said && set->feed.run->rank == 0)
        ct_info("validation%s uses all of its data, which has %lld batches of %lld samples: fewer "
                "than [validation] steps = %lld",
                of_set(set), (long long)batches, (long long)feed_samples(&set->feed),
                (long long)ct_config.validation.steps);
    set->short_said = true;
}

/* Sums over the first [validation] steps batches. Returns the number of them that there are. */
static int64_t sum_up(struct feed *f, struct ct_step_result *r, double *sum, double *count)
{
    int64_t samples = feed_samples(f), n, steps = ct_config.validation.steps;
    double loss = 0, valid = 0;
    int rc = 0;

    metrics_begin(&f->metrics);
    for (n = 0; n < steps; n++) {
        rc = feed_step(f, n * samples, n + 1 < steps ? (n + 1) * samples : -1);
        if (rc == FEED_END_OF_DATA)
            break;
        if (rc == 0)
            rc = feed_execute(f);
        if (rc == 0)
            rc = feed_read_loss(f, &loss, &valid);
        if (rc == 0)
            rc = metrics_add(&f->metrics);
        if (rc < 0)
            return rc;
        *sum += loss;
        *count += valid;
        r->tokens += samples * ct_config.training.seq_len;
    }
    return n;
}

/* Whether this loss is the best so far, which is noted. */
static bool is_best(struct ct_best *best, double loss, int64_t step)
{
    bool better = !best->step || loss < best->loss - ct_config.min_delta;

    if (!better || !isfinite(loss)) {
        best->since++;
        return false;
    }
    *best = (struct ct_best){.loss = loss, .step = step};
    return true;
}

static int validate(const struct validation *v, struct validated_set *set, int64_t step)
{
    struct feed *f = &set->feed;
    struct ct_step_result r = {.step = step};
    double begin = ct_now(), sum = 0, count = 0;
    int64_t batches = sum_up(f, &r, &sum, &count);
    bool best;

    if (batches < 0)
        return (int)batches;
    if (batches == 0)
        return ct_fail(CT_ECONFIG, "the validation data%s has less than one batch", of_set(set));
    if (count == 0)
        return ct_fail(CT_EINVAL, "validation%s after step %lld: %s, so there is no loss",
                       of_set(set), (long long)step, feed_nothing(f->graph));
    if (batches < ct_config.validation.steps)
        report_short(set, batches);
    r.loss = sum / count;
    r.seconds = ct_now() - begin;
    metrics_publish(&f->metrics);
    best = set == v->decides && is_best(&v->run->best, r.loss, step);
    if (!ct_hook_wanted(CT_EVENT_VALIDATED))
        return 0;
    return ct_hook_fire(&(struct ct_event_data){.event = CT_EVENT_VALIDATED,
                                                .run = v->run,
                                                .step = step,
                                                .result = &r,
                                                .labels = llround(count),
                                                .set = set->name,
                                                .best = best});
}

void validation_check_patience(struct ct_run *run)
{
    bool stops = ct_config.patience && run->best.since >= ct_config.patience &&
                 ct_run_stop(run, "[validation] patience");

    if (stops && run->rank == 0)
        ct_info("the validation loss was best after step %lld, %.5f, and not lower in %lld "
                "validation%s after it: the run ends ([validation] patience)",
                (long long)run->best.step, run->best.loss, (long long)run->best.since,
                ct_plural(run->best.since));
}

int validation_run(struct validation *v, int64_t step)
{
    double begin = ct_now();
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < v->count; i++)
        rc = validate(v, &v->set[i], step);
    v->run->lost[CT_LOST_VALIDATION] += ct_now() - begin;
    if (rc == 0)
        validation_check_patience(v->run);
    return rc;
}
