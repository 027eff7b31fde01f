/*
 * Multiple-choice evaluation while training goes on: each choice is scored by its log-probability
 * after the prompt.
 *
 * The program of validation computes it, on any mesh: the loss of a batch in which one sequence
 * alone has labels is that of this sequence. acc is the share of questions whose answer has the
 * largest sum of log-probabilities, acc_norm that by the sum divided by the bytes of the choice.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/plugin.h>
#include <ctitan/train.h>

#include "questions.h"

static struct config {
    const char *path;
    int64_t freq, limit;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, path, "path", NULL,
                  "Files of JSON lines, separated by commas, each a task: prompt, choices, and "
                  "answer, the number of the right choice or its text"),
    CT_OPT_INT(struct config, freq, "freq", "0", 0, 1e15,
               "Evaluate every so many steps, and after the last; 0: whenever validation does"),
    CT_OPT_INT(struct config, limit, "limit", "0", 0, 1e9, "Questions of a task; 0: all"),
    {0}};

static struct {
    struct ct_arena arena;
    struct ct_data *task;
    size_t count;
} own;

/* ---- opening ---- */

/* "data/arc.jsonl": arc */
static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;

    return ct_arena_printf(&own.arena, "%.*s", (int)strcspn(file, "."), file);
}

static int check_run(const struct ct_run *run)
{
    if (!run->validation_executor)
        return ct_fail(CT_ECONFIG, "[eval] path: choices are scored by the program of validation: "
                                   "set [validation] freq");
    if (strcmp(ct_config.objective, "cross_entropy") != 0 &&
        strcmp(ct_config.objective, "weighted") != 0)
        return ct_fail(CT_ECONFIG,
                       "[eval] path: choices are scored by their cross entropy, which the "
                       "objective %s has not",
                       ct_config.objective);
    return run->tokenizer ? 0
                          : ct_fail(CT_ECONFIG, "[eval] path: prompts and choices need a "
                                                "tokenizer: add one to [plugins] load");
}

static int open_task(struct ct_run *run, const char *path, struct ct_data *task)
{
    int rc;

    *task = (struct ct_data){.name = name_of(path),
                             .path = path,
                             .tokenizer = run->tokenizer,
                             .seq_len = ct_config.training.seq_len,
                             .vocabulary = run->model_ops->vocabulary(run->model)};
    for (const struct ct_data *other = own.task; other < task; other++)
        if (!strcmp(other->name, task->name))
            return ct_fail(CT_ECONFIG, "[eval] path: two files are called %s", task->name);
    rc = questions_read(task, config.limit);
    if (rc == 0)
        rc = ct_evaluation_open(run, &questions_ops, task, &task->evaluation);
    if (rc == 0)
        task->samples = ct_evaluation_samples(task->evaluation);
    return rc;
}

static int open_tasks(struct ct_run *run)
{
    char *rest = ct_arena_strdup(&own.arena, config.path), *path;
    int rc = check_run(run);

    own.task = ct_arena_array(&own.arena, struct ct_data, strlen(rest) / 2 + 1);
    while (rc == 0 && (path = strsep(&rest, ","))) {
        path += strspn(path, " \t");
        path[strcspn(path, " \t")] = '\0';
        rc = *path ? open_task(run, path, &own.task[own.count])
                   : ct_fail(CT_ECONFIG, "[eval] path: expected a file beside a comma");
        own.count++;
    }
    return rc;
}

static void close_tasks(void)
{
    for (size_t i = 0; i < own.count; i++) {
        ct_evaluation_close(own.task[i].evaluation);
        ct_arena_finish(&own.task[i].arena);
    }
    ct_arena_finish(&own.arena);
    memset(&own, 0, sizeof(own));
}

/* ---- scoring ---- */

static int score(struct ct_data *task, double *nll, double *labels)
{
    double sum, count;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < task->choices; i++) {
        int64_t first = (int64_t)i * task->samples;

        rc = ct_evaluation_run(task->evaluation, first,
                               i + 1 < task->choices ? first + task->samples : -1, &sum, &count);
        task->all[i]->logp = -sum;
    }
    for (size_t q = 0; q < task->count; q++) {
        const struct choice *right = &task->question[q].choice[task->question[q].answer];

        *nll -= right->logp;
        *labels += (double)(right->count - right->prompt);
    }
    return rc;
}

/* The first choice with the largest score, as numpy's argmax. */
static bool is_right(const struct question *q, bool by_bytes)
{
    size_t best = 0;
    double most = -INFINITY;

    for (size_t i = 0; i < q->count; i++) {
        double x = q->choice[i].logp;

        if (by_bytes && q->choice[i].bytes)
            x /= (double)q->choice[i].bytes;
        if (x > most) {
            most = x;
            best = i;
        }
    }
    return best == q->answer;
}

static int evaluate(struct ct_run *run, struct ct_data *task, int64_t step)
{
    static struct ct_metric metrics[] = {{"acc", 0}, {"acc_norm", 0}};
    struct ct_step_result r = {.step = step};
    double begin = ct_now(), nll = 0, labels = 0;
    int rc = score(task, &nll, &labels);

    if (rc < 0)
        return ct_context(rc, "[eval] %s", task->name);
    metrics[0].value = metrics[1].value = 0;
    for (size_t q = 0; q < task->count; q++)
        for (int m = 0; m < 2; m++)
            metrics[m].value += (double)is_right(&task->question[q], m) / (double)task->count;
    r.loss = nll / labels;
    r.tokens = (int64_t)task->choices * task->seq_len;
    r.seconds = ct_now() - begin;
    run->metrics = metrics;
    run->metric_count = CT_COUNT(metrics);
    return ct_hook_fire(&(struct ct_event_data){.event = CT_EVENT_VALIDATED,
                                                .run = run,
                                                .step = step,
                                                .result = &r,
                                                .labels = llround(labels),
                                                .set = task->name});
}

static int step_end(struct ct_run *run, int64_t step)
{
    int64_t freq = config.freq ? config.freq : ct_config.validation.freq;
    int rc = 0;

    if (step % freq && step != ct_config.training.steps)
        return 0;
    for (size_t i = 0; rc == 0 && i < own.count; i++)
        rc = evaluate(run, &own.task[i], step);
    return rc;
}

static int on_event(const struct ct_event_data *data, void *context)
{
    (void)context;
    if (data->event == CT_EVENT_RUN_READY)
        return data->run->data ? open_tasks(data->run) : 0;
    if (data->event == CT_EVENT_STEP_END)
        return step_end(data->run, data->step);
    close_tasks();
    return 0;
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_RUN_READY | 1u << CT_EVENT_STEP_END |
                                              1u << CT_EVENT_FAILURE | 1u << CT_EVENT_RUN_END,
                                    .call = on_event};

CT_PLUGIN(.name = "eval", .version = "1.0",
          .summary = "Multiple-choice evaluation while training goes on", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_HOOK, "eval", &hook}));
