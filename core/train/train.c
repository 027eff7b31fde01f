/*
 * The training loop: feed, step, check, validate.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/plugins.h>
#include <ctitan/state.h>
#include <ctitan/train.h>

#include "run/note.h"
#include "run/size.h"
#include "run/stages.h"
#include "run/start.h"
#include "train/feed.h"
#include "train/metrics.h"
#include "train/validate.h"

#define SLOW_DATA 1.0 /* seconds */

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

/* ---- steps ---- */

static int write_double(struct ct_run *run, const char *name, double x)
{
    const struct ct_value *v = ct_graph_find_input(run->graph, name);

    return v ? ct_executor_write(run->executor, v, -1, &x, sizeof(x)) : 0;
}

/* Steps of the learning-rate schedule; the run may end earlier. */
static int64_t lr_steps(void)
{
    return ct_config.lr_total_steps ? ct_config.lr_total_steps : ct_config.training.steps;
}

static double lr_factor(const struct ct_run *run, int64_t step)
{
    int64_t total = lr_steps();

    return run->lr_schedule ? run->lr_schedule->factor(step, total)
                            : ct_lr_factor(&ct_config.lr_scheduler, step, total);
}

static void report_warmup(const struct ct_run *run)
{
    long long warmup = ct_config.lr_scheduler.warmup_steps, steps = lr_steps();

    if (run->rank == 0 && !run->lr_schedule && warmup > steps)
        ct_info("[lr_scheduler] warmup_steps = %lld is more than the %lld step%s of the %s: the "
                "learning rate rises until the last one",
                warmup, steps, ct_plural(steps), ct_config.lr_total_steps ? "schedule" : "run");
}

static int feed_scalars(struct ct_run *run, struct ct_step_result *r)
{
    int rc;

    r->lr = run->optimizer->lr() * lr_factor(run, r->step - 1);
    rc = write_double(run, "lr", r->lr);
    if (rc == 0)
        rc = write_double(run, "loss_limit", run->loss_limit);
    if (rc == 0)
        rc = write_double(run, "norm_limit", run->norm_limit);
    return rc < 0 ? rc : write_double(run, "step", (double)(run->progress.updates + 1));
}

/* Named here, as it would look like a slow step, or, on other ranks, like a slow peer. */
static void report_slow_data(const struct ct_run *run, const struct ct_step_result *r)
{
    static int64_t times;

    if (r->data_seconds < SLOW_DATA)
        return;
    times++;
    if ((times & (times - 1)) == 0)
        ct_warn("rank %lld waited %.1f s for data before step %lld (%lld step%s waited so far)",
                (long long)run->rank, r->data_seconds, (long long)r->step, (long long)times,
                ct_plural(times));
}

static bool policy_is(enum ct_non_finite policy)
{
    return ct_config.training.non_finite == policy;
}

/* A batch without labels has gradients of 0, with which the optimizer would still move the weights.
   Where the step is to be skipped, it is not run. */
static int find_labels(struct feed *f, bool *found)
{
    int64_t own = f->counted > 0, most = 1;
    int rc = 0;

    if (policy_is(CT_NON_FINITE_SKIP))
        rc = ct_group_all_reduce(ct_run_world(f->run), &own, &most, 1, CT_I64, CT_REDUCE_MAX);
    *found = most > 0;
    return rc;
}

/* The device's results of a step. */
struct outcome {
    bool labels;  /* there are some; the loss is NaN without */
    bool applied; /* the update */
};

static int compute(struct feed *f, struct ct_step_result *r, struct outcome *o)
{
    struct ct_run *run = f->run;
    double valid = 0, clip = 0; /* 0: it is not fetched */
    int rc = feed_scalars(run, r);

    metrics_begin(&f->metrics);
    if (rc == 0)
        rc = find_labels(f, &o->labels);
    r->loss = r->grad_norm = NAN;
    if (rc < 0 || !o->labels)
        return rc;
    rc = feed_execute(f);
    if (rc == 0)
        rc = feed_read_loss(f, &r->loss, &valid);
    if (rc == 0)
        rc = metrics_read(run->executor, run->graph, "grad_norm", &r->grad_norm);
    if (rc == 0)
        rc = metrics_read(run->executor, run->graph, CT_UPDATE_FACTOR, &clip);
    if (rc == 0)
        rc = metrics_add(&f->metrics);
    o->labels = valid > 0;
    o->applied = o->labels && isfinite(r->grad_norm) && clip >= 0;
    r->loss = o->labels ? r->loss / valid : NAN;
    return rc;
}

static int run_step(struct feed *f, struct ct_step_result *r, struct outcome *o)
{
    struct ct_run *run = f->run;
    struct ct_progress *p = &run->progress;
    int64_t samples = feed_samples(f);
    bool last = r->step == ct_config.training.steps || ct_stage_of(r->step + 1) != run->stage;
    double begin = ct_now();
    int rc = feed_step(f, p->samples, last ? -1 : p->samples + samples);

    if (rc)
        return rc;
    r->data_seconds = ct_now() - begin;
    run->lost[CT_LOST_DATA] += r->data_seconds;
    report_slow_data(run, r);
    rc = compute(f, r, o);
    if (rc < 0)
        return rc;
    r->tokens = samples * ct_config.training.seq_len;
    r->tokens_seen = p->tokens += r->tokens;
    p->samples += samples;
    r->seconds = ct_now() - begin;
    return 0;
}

/* "is not a number" */
static const char *spoken(char text[32], double value)
{
    if (isnan(value))
        return "is not a number";
    if (isinf(value))
        return "is infinite";
    snprintf(text, 32, "is %g", value);
    return text;
}

/* Apply the recipe's policy for a loss or norm that is not finite. */
static int take_non_finite(const struct ct_run *run, struct ct_step_result *r,
                           const struct outcome *o)
{
    char loss[32], norm[32], what[128];

    snprintf(what, sizeof(what), "%s, so there is no loss", feed_nothing(run->graph));
    if (o->labels)
        snprintf(what, sizeof(what), "the loss %s, grad_norm %s; the update was %sapplied",
                 spoken(loss, r->loss), spoken(norm, r->grad_norm), o->applied ? "" : "not ");
    if (policy_is(CT_NON_FINITE_STOP) || (policy_is(CT_NON_FINITE_SKIP) && o->applied))
        return ct_fail(CT_EINVAL, "step %lld: %s ([training] non_finite = %s)", (long long)r->step,
                       what, o->applied ? "rewind goes back" : "skip continues without it");
    r->skipped = true;
    r->goes_back = policy_is(CT_NON_FINITE_REWIND);
    ct_warn("step %lld skipped: %s", (long long)r->step, what);
    return 0;
}

/* The rank that withheld an update says why. */
static int judge(struct ct_run *run, struct ct_step_result *r, const struct outcome *o)
{
    if (!isfinite(r->loss) || !isfinite(r->grad_norm))
        return take_non_finite(run, r, o);
    run->progress.updates += o->applied;
    r->skipped = !o->applied;
    r->goes_back = r->skipped && run->withheld_goes_back;
    return 0;
}

/* The option by which steps go back; NULL: none does. */
static const char *rewind_option(const struct ct_run *run)
{
    return policy_is(CT_NON_FINITE_REWIND) ? "[training] non_finite = rewind"
                                           : run->withheld_goes_back;
}

static int fire(struct ct_run *run, enum ct_event event, const struct ct_step_result *r)
{
    if (!ct_hook_wanted(event))
        return 0;
    return ct_hook_fire(
        &(struct ct_event_data){.event = event, .run = run, .step = r ? r->step : 0, .result = r});
}

/* ---- the loop ---- */

/* A hook has set the progress back. */
static bool went_back(const struct ct_run *run, const struct ct_step_result *r)
{
    return run->progress.step <= r->step;
}

static int run_and_tell(struct ct_run *run, struct feed *feed, struct ct_step_result *r)
{
    struct outcome o = {.labels = true};
    int rc = fire(run, CT_EVENT_STEP_BEGIN, r);

    if (rc == 0)
        rc = run_step(feed, r, &o);
    if (rc == 0)
        rc = judge(run, r, &o);
    if (rc)
        return rc;
    run->progress.step++;
    metrics_publish(&feed->metrics);
    if (!run->spent[CT_START_FIRST_STEP])
        ct_run_started(run);
    rc = fire(run, CT_EVENT_STEP_END, r);
    if (rc == 0 && r->goes_back && !went_back(run, r))
        return ct_fail(CT_EINVAL, "%s: no plugin went back from step %lld", rewind_option(run),
                       (long long)r->step);
    return rc;
}

/* The data has no whole batch any more, on all ranks. */
static int end_of_data(struct ct_run *run, const struct feed *feed)
{
    long long step = (long long)run->progress.step;

    if (step == 1)
        return ct_fail(CT_ECONFIG,
                       "the data ended within step 1, for which %lld samples of %lld tokens are "
                       "needed: use more data, or lower [training] local_batch_size, "
                       "global_batch_size or seq_len",
                       (long long)feed_samples(feed), (long long)ct_config.training.seq_len);
    if (run->rank == 0)
        ct_warn("the data ended within step %lld, which was cancelled", step);
    ct_run_stop(run, "the data ended");
    return 0;
}

struct course {
    struct ct_run *run;
    struct stage_feed {
        struct feed feed;
        struct validation validation;
    } * stages;
    struct ct_step_result *result; /* of the last step that stands, or of the one that failed */
    const struct ct_metric *metrics;
    size_t metric_count;
    bool known; /* the step that stands was the last one run; else only its number is */
    bool told;  /* STEPS_END */
};

static int make_feed(struct ct_run *run, struct stage_feed *s)
{
    int rc = feed_init(&s->feed, run, run->executor, run->graph, run->program->microbatches,
                       &(struct feed_source){run->data_ops, run->data, run->streams, run->beside,
                                             run->beside_count, false});

    if (rc == 0 && run->validation_executor)
        rc = validation_init(&s->validation, run);
    return rc;
}

/* Before the first step: a training would be lost by the data of a later stage. */
static int make_feeds(struct course *c)
{
    struct ct_run *run = c->run;
    size_t before = run->stage;
    int rc = 0;

    for (size_t k = 0; rc == 0 && k < ct_run_stage_count(run); k++) {
        rc = ct_run_look_at_stage(run, k);
        if (rc == 0)
            rc = ct_run_name_stage(run, make_feed(run, &c->stages[k]));
    }
    return rc < 0 ? rc : ct_run_look_at_stage(run, before);
}

static int tell_stage(struct ct_run *run)
{
    char text[512];

    snprintf(text, sizeof(text), "step %lld begins a stage: %s", (long long)run->progress.step,
             ct_stage_at(run->stage)->what);
    return ct_run_tell(run, CT_LOG_INFO, run->progress.step, "stage", text);
}

/* Threads that read for a stage end before it does. */
static void rest(struct stage_feed *s)
{
    feed_finish(&s->feed);
    validation_finish(&s->validation);
}

/* The last step's, where hooks are told of it again; NULL: it was taken back, or there is none. */
static const struct ct_step_result *recall(const struct course *c)
{
    c->run->metrics = c->metrics;
    c->run->metric_count = c->known ? c->metric_count : 0;
    return c->known ? c->result : NULL;
}

static int find_stage(struct course *c, struct stage_feed **s)
{
    struct ct_run *run = c->run;
    size_t before = run->stage;
    int rc;

    if (before != ct_stage_of(run->progress.step))
        rest(&c->stages[before]);
    rc = ct_run_change_stage(run, recall(c));
    *s = &c->stages[run->stage];
    if (rc == 0 && run->stage && run->progress.step == ct_stage_at(run->stage)->begin)
        rc = tell_stage(run);
    return rc;
}

static bool is_stopped(const struct ct_run *run)
{
    return __atomic_load_n(&run->stop, __ATOMIC_ACQUIRE) != NULL;
}

/* The last step that stands is this run's. */
static bool has_trained(const struct course *c)
{
    return c->known || c->result->step >= c->run->began;
}

/* No step follows the last one. */
static int tell_last(struct course *c, bool stopped)
{
    if (c->told || !has_trained(c))
        return 0;
    c->told = true;
    return ct_hook_fire(&(struct ct_event_data){.event = CT_EVENT_STEPS_END,
                                                .run = c->run,
                                                .step = c->result->step,
                                                .result = recall(c),
                                                .code = stopped});
}

/* After a step: validation, where it is due. */
static int after_step(struct course *c, struct stage_feed *s)
{
    int64_t freq = ct_config.validation.freq, step = c->result->step;
    bool last = step == ct_config.training.steps;
    int rc = 0;

    c->metrics = c->run->metrics;
    c->metric_count = c->run->metric_count;
    c->known = true;
    if (last || is_stopped(c->run))
        rc = tell_last(c, !last);
    if (rc == 0 && freq && (step % freq == 0 || last))
        rc = validation_run(&s->validation, step);
    return rc;
}

/* After a step with which the run went back. */
static int after_return(struct course *c)
{
    *c->result = (struct ct_step_result){.step = c->run->progress.step - 1};
    c->known = false;
    return ct_run_count_epochs(c->run); /* samples that are skipped are read */
}

static int validate_last(struct course *c, struct stage_feed *s)
{
    int64_t freq = ct_config.validation.freq, step = c->result->step;

    if (!freq || step % freq == 0)
        return 0;
    if (ct_stage_of(step) == c->run->stage)
        return validation_run(&s->validation, step);
    if (c->run->rank == 0)
        ct_info("there is no validation after step %lld: its stage had ended before the data did",
                (long long)step);
    return 0;
}

/* The data has no batch for another step: the one before was the last. */
static int after_data(struct course *c, struct stage_feed *s)
{
    int rc = end_of_data(c->run, &s->feed);

    if (rc == 0)
        rc = tell_last(c, false);
    return rc == 0 && has_trained(c) ? validate_last(c, s) : rc;
}

static int train(struct course *c)
{
    struct ct_run *run = c->run;
    struct stage_feed *s;
    int rc;

    report_warmup(run);
    *c->result = (struct ct_step_result){.step = run->progress.step - 1};
    validation_check_patience(run);
    rc = make_feeds(c);
    while (rc == 0 && run->progress.step <= ct_config.training.steps && !is_stopped(run)) {
        struct ct_step_result r = {.step = run->progress.step};

        rc = find_stage(c, &s);
        if (rc < 0)
            return rc;
        rc = run_and_tell(run, &s->feed, &r);
        if (rc == FEED_END_OF_DATA)
            return after_data(c, s);
        *c->result = r;
        if (rc == 0)
            rc = went_back(run, &r) ? after_return(c) : after_step(c, s);
    }
    return rc < 0 ? rc : tell_last(c, run->progress.step <= ct_config.training.steps);
}

/* Also if the run was stopped: the weights would be lost otherwise. */
static int save(struct ct_run *run)
{
    const char *folder = ct_config.model.save_to;
    struct ct_error_kept kept = {0};
    int rc, after;

    if (!*folder)
        return 0;
    rc = fire(run, CT_EVENT_SAVE_BEGIN, NULL);
    if (rc == 0)
        rc = run->model_ops->weights->save(run, folder);
    if (rc < 0)
        kept = ct_error_keep();
    after = fire(run, CT_EVENT_SAVE_END, NULL);
    rc = rc < 0 ? ct_error_restore(rc, &kept) : after;
    if (rc == 0 && run->rank == 0)
        ct_info("saved the weights after step %lld in %s", (long long)run->progress.step - 1,
                folder);
    return rc;
}

static int train_and_save(struct ct_run *run, struct ct_step_result *result)
{
    struct course course = {
        .run = run,
        .stages = ct_arena_array(&run->arena, struct stage_feed, ct_run_stage_count(run)),
        .result = result,
    };
    int rc = train(&course);

    for (size_t k = 0; k < ct_run_stage_count(run); k++)
        rest(&course.stages[k]);
    if (rc == 0)
        rc = save(run);
    return rc < 0 ? rc : fire(run, CT_EVENT_RUN_END, result);
}

static int check_policy(const struct ct_run *run)
{
    struct ct_arena scratch = {0};
    const char *option = rewind_option(run), **names;
    size_t count;
    int rc;

    if (!option || run->rewinds)
        return 0;
    count = ct_plugin_providers(&scratch, "hook:rewind", &names);
    rc = ct_fail(CT_ECONFIG, "%s needs a plugin that can go back: load %s, and do not disable it",
                 option,
                 count ? ct_plugin_list(&scratch, names, count) : "one with the hook \"rewind\"");
    ct_arena_finish(&scratch);
    return rc;
}

int ct_run_train(struct ct_run *run)
{
    struct ct_step_result result = {0};
    int rc = check_policy(run);

    run->began = run->progress.step;
    if (rc == 0)
        rc = train_and_save(run, &result);
    return rc >= 0 ? 0 : ct_hook_fire_failure(run, &result, rc);
}

bool ct_run_stop(struct ct_run *run, const char *why)
{
    const char *none = NULL;

    return __atomic_compare_exchange_n(&run->stop, &none, why, false, __ATOMIC_RELEASE,
                                       __ATOMIC_RELAXED);
}
