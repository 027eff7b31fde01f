/*
 * Stages of a run. Each has graphs, programs and data of its own; parameters and states lie at the
 * same place in the programs of all of them. The run has the fields of one at a time.
 */
#include <assert.h>

#include <ctitan/error.h>

#include "run/open_data.h"
#include "run/stages.h"
#include "run/states.h"

/* The fields of struct ct_run that belong to a stage. */
#define FIELDS(X)                                                                                  \
    X(struct ct_graph *, graph)                                                                    \
    X(struct ct_graph *, validation_graph)                                                         \
    X(struct ct_graph *, common_graph)                                                             \
    X(struct ct_graph *, common_validation_graph)                                                  \
    X(struct ct_program *, program)                                                                \
    X(struct ct_program *, validation_program)                                                     \
    X(struct ct_executor *, executor)                                                              \
    X(struct ct_executor *, validation_executor)                                                   \
    X(struct ct_data *, data)                                                                      \
    X(struct ct_data *, validation_data)                                                           \
    X(struct ct_named_data *, sets)                                                                \
    X(size_t, set_count)                                                                           \
    X(const struct ct_data_stream *, streams)                                                      \
    X(struct ct_run_beside *, beside)                                                              \
    X(size_t, beside_count)

struct ct_run_stage {
#define X(type, name) type name;
    FIELDS(X)
#undef X
    bool opened;    /* it has had these fields */
    int64_t first;  /* sample of its data with which it begins, by the recipe */
    int64_t before; /* samples of the data of the stage before that are read by then */
};

size_t ct_run_stage_count(const struct ct_run *run)
{
    return run->data_ops ? ct_stage_count() : 1;
}

void ct_run_make_stages(struct ct_run *run)
{
    run->stages = ct_arena_array(&run->arena, struct ct_run_stage, ct_run_stage_count(run));
    run->stages[0].opened = true;
}

static void put(const struct ct_run *run, struct ct_run_stage *stage)
{
#define X(type, name) stage->name = run->name;
    FIELDS(X)
#undef X
}

static void take(struct ct_run *run, const struct ct_run_stage *stage)
{
#define X(type, name) run->name = stage->name;
    FIELDS(X)
#undef X
}

/* The stage that the run has is open; the one behind it is next. */
static int begin_stage(const struct ct_run *run, size_t index)
{
    struct ct_run_stage *stage = &run->stages[index], *former = stage - 1;
    int64_t steps = ct_stage_at(index)->begin - ct_stage_at(index - 1)->begin;

    assert(run->stage + 1 == index);
    stage->opened = true;
    if (__builtin_mul_overflow(steps, ct_run_batch(run), &stage->before) ||
        __builtin_add_overflow(stage->before, former->first, &stage->before))
        return ct_fail(CT_ECONFIG, "more samples than can be numbered are read before step %lld",
                       (long long)ct_stage_at(index)->begin);
    if (ct_stage_at(index)->own_data)
        return 0;
    stage->first = stage->before;
    stage->data = former->data;
    stage->validation_data = former->validation_data;
    stage->sets = former->sets;
    stage->set_count = former->set_count;
    return 0;
}

int ct_run_turn_to_stage(struct ct_run *run, size_t index)
{
    int rc = 0;

    if (run->stage == index)
        return 0;
    put(run, &run->stages[run->stage]);
    if (!run->stages[index].opened)
        rc = begin_stage(run, index);
    if (rc < 0)
        return rc;
    take(run, &run->stages[index]);
    run->stage = index;
    return ct_stage_enter(index);
}

int ct_run_name_stage(const struct ct_run *run, int rc)
{
    const struct ct_stage *stage = ct_stage_at(run->stage);

    return rc < 0 && run->stage ? ct_context(rc, "the stage from step %lld on (%s)",
                                             (long long)stage->begin, stage->what)
                                : rc;
}

int ct_run_open_stage_data(struct ct_run *run)
{
    return run->stage && !ct_stage_at(run->stage)->own_data ? 0 : ct_run_open_data(run);
}

void ct_run_name_former_data(const struct ct_run *run, struct ct_data_request *request)
{
    if (!run->stage)
        return;
    request->before = run->stages[run->stage - 1].data;
    request->before_samples = run->stages[run->stage].before;
}

const struct ct_data *ct_run_stage_data(const struct ct_run *run, size_t stage)
{
    return stage == run->stage ? run->data : run->stages[stage].data;
}

struct ct_executor *ct_run_first_executor(const struct ct_run *run)
{
    return run->stage ? run->stages[0].executor : run->executor;
}

void ct_run_close_executors(struct ct_run *run)
{
    if (!run->stages)
        return;
    put(run, &run->stages[run->stage]);
    for (size_t k = ct_run_stage_count(run); k--;) {
        ct_executor_destroy(run->stages[k].validation_executor);
        ct_executor_destroy(run->stages[k].executor);
        run->stages[k].validation_executor = run->stages[k].executor = NULL;
    }
    take(run, &run->stages[run->stage]);
}

void ct_run_close_stages(struct ct_run *run)
{
    if (!run->stages)
        return;
    put(run, &run->stages[run->stage]);
    for (size_t k = ct_run_stage_count(run); k--;) {
        take(run, &run->stages[k]);
        ct_run_close_streams(run);
        if (!k || ct_stage_at(k)->own_data)
            ct_run_close_data(run);
    }
}

/* ---- from one to another ---- */

/* The step with which the stage began whose data a stage has. */
static int64_t data_since(size_t stage)
{
    while (stage && !ct_stage_at(stage)->own_data)
        stage--;
    return ct_stage_at(stage)->begin;
}

/* Progress counts the samples of a stage's data: let it count those of another one. */
static int count_samples(struct ct_run *run, size_t next)
{
    int64_t since = run->samples_since, now = data_since(next);

    if (!since)
        since = run->progress.step > 1 ? data_since(ct_stage_of(run->progress.step - 1)) : 1;
    run->samples_since = now;
    if (since == now)
        return 0;
    if (since > now)
        return ct_fail(CT_ECONFIG,
                       "the run goes on with step %lld, and has read samples of a stage that began "
                       "with step %lld, which the recipe does not have: give [stage.N] begin as it "
                       "was, or leave the position in the data out when the checkpoint is loaded",
                       (long long)run->progress.step, (long long)since);
    run->progress.samples = run->stages[next].first;
    return 0;
}

static int fire(struct ct_run *run, enum ct_event event, const struct ct_step_result *last)
{
    return ct_hook_fire(&(struct ct_event_data){
        .event = event, .run = run, .step = run->progress.step, .result = last});
}

int ct_run_change_stage(struct ct_run *run, const struct ct_step_result *last)
{
    size_t next = ct_stage_of(run->progress.step);
    int rc = 0;

    if (run->stage != next) {
        rc = fire(run, CT_EVENT_STAGE_END, last);
        if (rc == 0)
            rc = ct_run_turn_to_stage(run, next);
        if (rc < 0)
            return rc;
        ct_states_bind(run);
        rc = fire(run, CT_EVENT_STAGE_BEGIN, NULL);
    }
    return rc < 0 ? rc : count_samples(run, next);
}

int ct_run_look_at_stage(struct ct_run *run, size_t stage)
{
    int rc = ct_run_turn_to_stage(run, stage);

    if (rc == 0)
        ct_states_bind(run);
    return rc;
}
