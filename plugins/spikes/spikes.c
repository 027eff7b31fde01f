/*
 * Spikes: steps whose loss or gradient norm is far above those of the steps before. The limits of a
 * step follow from a window of earlier steps, so that they are known before it; the device compares
 * them, and withholds the update. Every rank computes the limits from the same numbers. The window
 * is saved with the run, and goes back with it.
 */
#include <math.h>
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>
#include <ctitan/stage.h>
#include <ctitan/train.h>

#include "window.h"
#include "withhold.h"

enum { WARN, SKIP, REWIND };
enum { LOSS, NORM, NUMBERS };

static struct config {
    int64_t window;
    double loss_sigmas, norm_sigmas, least;
    unsigned action;
} config;

static const struct ct_option options[] = {
    CT_OPT_ENUM(struct config, action, "action", "warn", "warn|skip|rewind",
                "What a spike does: it is told, its update is not applied, or the run goes back to "
                "the newest checkpoint and skips the batch"),
    CT_OPT_INT(
        struct config, window, "window", "128", 2, 4096,
        "Steps that a loss or norm is compared with; nothing is a spike before half of them"),
    CT_OPT_FLOAT(struct config, loss_sigmas, "loss_sigmas", "6", 0, 1e6,
                 "A loss is a spike if it is so many standard deviations above the mean of the "
                 "window; 0: no loss is"),
    CT_OPT_FLOAT(struct config, norm_sigmas, "norm_sigmas", "6", 0, 1e6,
                 "The same of the gradient norm"),
    CT_OPT_FLOAT(struct config, least, "least", "0.1", 0, 1e6,
                 "A spike is at least so much above the mean, as a share of it"),
    {0}};

/* ---- the window ---- */

static struct {
    struct window window[NUMBERS];
    /* Values of the current step: going back restores an older window. */
    double limit[NUMBERS], mean[NUMBERS], deviation[NUMBERS];
} now;

static double sigmas(int number)
{
    return number == LOSS ? config.loss_sigmas : config.norm_sigmas;
}

/* One block of memory, as checkpoints have it: counts, then values. */
static void keep_windows(struct ct_run *run)
{
    size_t bytes = NUMBERS * (sizeof(int64_t) + (size_t)config.window * sizeof(double));
    int64_t *counts = ct_arena_alloc(&run->arena, bytes);
    double *values = (double *)(void *)(counts + NUMBERS);

    memset(counts, 0, bytes);
    for (int i = 0; i < NUMBERS; i++)
        now.window[i] =
            (struct window){values + (int64_t)i * config.window, config.window, &counts[i]};
    ct_run_keep(run, "spikes.window", counts, bytes);
}

/* A damaged count would be an index. */
static void check_windows(void)
{
    for (int i = 0; i < NUMBERS; i++)
        if (*now.window[i].count < 0)
            *now.window[i].count = 0;
}

static void set_limits(struct ct_run *run)
{
    check_windows();
    for (int i = 0; i < NUMBERS; i++)
        now.limit[i] =
            sigmas(i) > 0 && window_statistics(&now.window[i], &now.mean[i], &now.deviation[i])
                ? now.mean[i] + fmax(sigmas(i) * now.deviation[i], config.least * fabs(now.mean[i]))
                : INFINITY;
    run->loss_limit = now.limit[LOSS];
    run->norm_limit = now.limit[NORM];
}

/* ---- the update ---- */

/* The device's factor of the gradients, and the norm. */
static struct ct_op *clip_of(const struct ct_graph *graph)
{
    const struct ct_value *norm = ct_graph_fetched(graph, "grad_norm");

    return norm && norm->producer && norm->producer->type == &ct_op_clip_coefficient
               ? norm->producer
               : NULL;
}

/* The loss, on every rank: in a pipeline, some have none of it. */
static struct ct_value *loss_of(struct ct_builder *b)
{
    struct ct_graph *graph = b->graph;
    struct ct_value *loss = ct_graph_fetched(graph, "loss");

    if (graph->partition_axis < 0)
        return loss;
    for (size_t i = 0; i < graph->fetch_count; i++)
        if (!strcmp(graph->fetches[i].name, "loss")) {
            loss = ct_contribution(b, loss->name, loss);
            if (loss)
                ct_graph_set_fetch(graph, i, loss);
            break;
        }
    return loss;
}

static int withhold(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_op *clip = clip_of(graph);
    struct ct_value *limit[NUMBERS], *kept;
    struct ct_builder b;
    int rc;

    (void)run;
    if (config.action == WARN)
        return 0;
    if (!clip)
        return ct_fail(CT_EINVAL, "the graph has no clip_coefficient that makes its grad_norm");
    rc = ct_graph_input(graph, "loss_limit", NULL, &limit[LOSS]);
    if (rc == 0)
        rc = ct_graph_input(graph, "norm_limit", NULL, &limit[NORM]);
    if (rc < 0)
        return rc;
    b = ct_builder_after(graph, clip);
    b.why = "the update of a spike is withheld";
    kept = ct_emit_type1(
        &b, &spikes_withhold, "update_factor",
        (struct ct_value *[]){clip->out[1], clip->out[0], limit[NORM], loss_of(&b),
                              ct_graph_fetched(graph, ct_graph_fetched_over(graph, "loss")),
                              limit[LOSS]},
        6, NULL);
    if (!kept)
        return b.status;
    ct_for_each_use_safe (use, clip->out[1])
        if (use->op != kept->producer)
            ct_op_set_input(use->op, use->index, kept);
    ct_graph_fetch(graph, CT_UPDATE_FACTOR, kept);
    return 0;
}

static const struct ct_transform transform = {
    .size = sizeof(struct ct_transform),
    .name = "spikes",
    .summary = "withholds the update if loss or norm is beyond its limit",
    .phase = CT_PHASE_UPDATE,
    .needs = CT_NAMES("updated"),
    .apply = withhold,
    .required = true,
};

/* ---- steps ---- */

static void describe(char *text, size_t room, int number, double value)
{
    static const char *const names[] = {"loss", "grad_norm"};

    snprintf(text, room, "%s %.5g is above %.5g (mean %.5g, deviation %.3g)", names[number], value,
             now.limit[number], now.mean[number], now.deviation[number]);
}

static int tell(struct ct_run *run, const struct ct_step_result *r, const double *value)
{
    static const char *const answers[] = {"the update was applied", "the update was not applied",
                                          "the run goes back"};
    char text[NUMBERS][160] = {"", ""};

    for (int i = 0; i < NUMBERS; i++)
        if (value[i] > now.limit[i])
            describe(text[i], sizeof(text[i]), i, value[i]);
    return ct_run_note(run, r->step, "spike", "spike in step %lld: %s%s%s; %s", (long long)r->step,
                       text[LOSS], *text[LOSS] && *text[NORM] ? ", " : "", text[NORM],
                       answers[r->skipped ? config.action : WARN]);
}

/* Where a hook before this one has gone back, the window is that of the checkpoint. */
static int step_end(struct ct_run *run, const struct ct_step_result *r)
{
    const double value[NUMBERS] = {r->loss, r->grad_norm};
    bool went_back = run->progress.step <= r->step;
    int rc = 0;

    if (!isfinite(r->loss) || !isfinite(r->grad_norm))
        return 0;
    if (value[LOSS] > now.limit[LOSS] || value[NORM] > now.limit[NORM])
        rc = tell(run, r, value);
    for (int i = 0; i < NUMBERS && !went_back; i++)
        window_add(&now.window[i], value[i], now.limit[i]);
    return rc;
}

/* The losses of other data are no measure of a stage's own. A run that goes on within the stage has
   the window of its checkpoint; one that goes on or goes back to its first step has that of the
   stage before. */
static void begin_stage(const struct ct_run *run)
{
    const struct ct_stage *stage = ct_stage_at(run->stage);

    for (int i = 0; i < NUMBERS && stage->own_data && run->progress.step == stage->begin; i++)
        *now.window[i].count = 0;
}

static int plan_ready(struct ct_run *run)
{
    if (!(config.loss_sigmas > 0) && !(config.norm_sigmas > 0))
        return ct_fail(CT_ECONFIG, "[spikes] loss_sigmas and norm_sigmas are both 0, so nothing is "
                                   "a spike: set one of them, or leave spikes out");
    keep_windows(run);
    return 0;
}

static int on_event(const struct ct_event_data *data, void *context)
{
    struct ct_run *run = data->run;

    (void)context;
    switch (data->event) {
    case CT_EVENT_PLAN_READY:
        return plan_ready(run);
    case CT_EVENT_RUN_READY:
        run->withheld_goes_back = config.action == REWIND ? "[spikes] action = rewind" : NULL;
        return 0;
    case CT_EVENT_STEP_BEGIN:
        begin_stage(run);
        set_limits(run);
        return 0;
    default:
        return step_end(run, data->result);
    }
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_PLAN_READY | 1u << CT_EVENT_RUN_READY |
                                              1u << CT_EVENT_STEP_BEGIN | 1u << CT_EVENT_STEP_END,
                                    .call = on_event};

CT_PLUGIN(.name = "spikes", .version = "1.0",
          .summary = "Steps whose loss or gradient norm is far above those before",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_OP, "withhold", &spikes_withhold},
                              {CT_CODE, "cuda", &spikes_cuda_code},
                              {CT_KERNELS, "cuda", spikes_cuda_kernels},
                              {CT_TRANSFORM, "spikes", &transform}, {CT_HOOK, "spikes", &hook}));
