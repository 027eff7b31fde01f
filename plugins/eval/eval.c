/*
 * Evaluation while training goes on: questions with choices, each of which is scored by its
 * log-probability after the prompt, and questions whose answer the model writes.
 *
 * The program of validation computes the scores (scores.c), on any mesh, for every objective that
 * has logits. acc is the share of questions whose answer has the largest log-probability, acc_norm
 * that by log-probability divided by the bytes of the choice, and exact_match the share of
 * questions whose answer is written as expected (answers.c).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/lib/hf.h>
#include <ctitan/plugin.h>
#include <ctitan/train.h>

#include "questions.h"
#include "scores.h"

static struct config {
    const char *path, *stop;
    int64_t freq, limit, answer_tokens;
    bool ignore_case, ignore_punctuation, ignore_numbers;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, path, "path", NULL,
                  "Files of JSON lines, separated by commas, each a task: prompt, choices, and "
                  "answer, the number of the right choice or its text; or prompt and answer, which "
                  "the model has to write"),
    CT_OPT_INT(struct config, freq, "freq", "0", 0, 1e15,
               "Evaluate every so many steps, and after the last; 0: whenever validation does"),
    CT_OPT_INT(struct config, limit, "limit", "0", 0, 1e9, "Questions of a task; 0: all"),
    CT_OPT_INT(struct config, answer_tokens, "answer_tokens", "64", 1, 1 << 20,
               "Tokens of an answer that the model writes, at most"),
    CT_OPT_STRING(struct config, stop, "stop", "\\n",
                  "Text that ends such an answer, with \\n for the end of a line; empty: none"),
    CT_OPT_BOOL(struct config, ignore_case, "ignore_case", "false",
                "Large and small letters of ASCII are the same in such an answer"),
    CT_OPT_BOOL(struct config, ignore_punctuation, "ignore_punctuation", "false",
                "Its punctuation of ASCII does not count"),
    CT_OPT_BOOL(struct config, ignore_numbers, "ignore_numbers", "false",
                "Its digits do not count"),
    {0}};

static struct {
    struct ct_arena arena;
    struct ct_data *task;
    size_t count;
    struct writing writing;
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
    if (!ct_graph_fetched(run->validation_graph, SCORE_LOGP))
        return ct_fail(CT_ECONFIG,
                       "[eval] path: answers are scored by logits and labels, which the model %s "
                       "and the objective %s do not both have",
                       ct_config.model.name, ct_config.objective);
    return run->tokenizer ? 0
                          : ct_fail(CT_ECONFIG, "[eval] path: prompts and choices need a "
                                                "tokenizer: add one to [plugins] load");
}

/* "\\n" in an option is the end of a line. */
static const char *unescape(const char *text)
{
    char *all = ct_arena_strdup(&own.arena, text), *to = all;

    for (const char *at = text; *at; at++) {
        bool escape = at[0] == '\\' && (at[1] == 'n' || at[1] == 't' || at[1] == '\\');

        at += escape;
        *to++ = !escape ? *at : *at == 'n' ? '\n' : *at == 't' ? '\t' : '\\';
    }
    *to = '\0';
    return all;
}

static int find_ends(const struct ct_run *run)
{
    const struct ct_tokenizer_ops *t = run->tokenizer;
    const char *folder = ct_config.model.init_from;
    int32_t *ends = NULL, *all;
    size_t count = 0;
    int rc = *folder ? ct_hf_read_ends(&own.arena, folder, &ends, &count) : 0;

    all = ct_arena_array(&own.arena, int32_t, count + 1);
    if (count)
        memcpy(all, ends, count * sizeof(*all));
    all[count] = t->end ? t->end() : t->eos();
    own.writing.ends = all;
    own.writing.ends_count = count + 1;
    return rc;
}

static int open_writing(const struct ct_run *run)
{
    own.writing = (struct writing){.tokens = config.answer_tokens,
                                   .stop = unescape(config.stop),
                                   .ignore_case = config.ignore_case,
                                   .ignore_punctuation = config.ignore_punctuation,
                                   .ignore_numbers = config.ignore_numbers};
    return find_ends(run);
}

static int open_task(struct ct_run *run, const char *path, struct ct_data *task)
{
    const struct ct_value *scores = ct_graph_fetched(run->validation_graph, SCORE_LOGP);
    int rc;

    *task = (struct ct_data){.name = name_of(path),
                             .path = path,
                             .tokenizer = run->tokenizer,
                             .seq_len = ct_config.training.seq_len,
                             .vocabulary = run->model_ops->vocabulary(run->model),
                             .limit = config.limit,
                             .writing = &own.writing,
                             .sequences = scores->shape[0]};
    for (const struct ct_data *other = own.task; other < task; other++)
        if (!strcmp(other->name, task->name))
            return ct_fail(CT_ECONFIG, "[eval] path: two files are called %s", task->name);
    task->score = ct_arena_array(&task->arena, double, task->sequences);
    rc = questions_read(task);
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

    if (rc == 0)
        rc = open_writing(run);
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

/* Score all choices; sum up the negative log-probabilities and labels of those that are right. */
static int score(struct ct_data *task, double *nll, double *labels)
{
    int rc;

    task->queued = 0;
    for (size_t q = 0; q < task->count; q++)
        for (size_t i = 0; i < task->question[q].count; i++)
            task->queue[task->queued++] = &task->question[q].choice[i].whole;
    rc = task_score(task);
    for (size_t q = 0; q < task->count; q++) {
        const struct sequence *right = &task->question[q].choice[task->question[q].answer].whole;

        *nll -= right->logp;
        *labels += (double)(right->count - right->from);
    }
    return rc;
}

/* The first choice with the largest score, as numpy's argmax. */
static bool is_right(const struct question *q, bool by_bytes)
{
    size_t best = 0;
    double most = -INFINITY;

    for (size_t i = 0; i < q->count; i++) {
        double x = q->choice[i].whole.logp;

        if (by_bytes && q->choice[i].bytes)
            x /= (double)q->choice[i].bytes;
        if (x > most) {
            most = x;
            best = i;
        }
    }
    return best == q->answer;
}

static int measure(struct ct_data *task, struct ct_metric *metrics, size_t *count)
{
    size_t right[2] = {0};
    int rc = task->writes ? task_write(task, right) : 0;

    *count = task->writes ? 1 : 2;
    for (size_t q = 0; !task->writes && q < task->count; q++)
        for (int m = 0; m < 2; m++)
            right[m] += is_right(&task->question[q], m);
    metrics[0].name = task->writes ? "exact_match" : "acc";
    metrics[1].name = "acc_norm";
    for (int m = 0; m < 2; m++)
        metrics[m].value = (double)right[m] / (double)task->count;
    return rc;
}

static int evaluate(struct ct_run *run, struct ct_data *task, int64_t step)
{
    static struct ct_metric metrics[2];
    struct ct_step_result r = {.step = step};
    double begin = ct_now(), nll = 0, labels = 0;
    const struct ct_metric *of_step = run->metrics;
    size_t count = 0, of_steps = run->metric_count;
    int rc = score(task, &nll, &labels);

    r.tokens = (int64_t)task->queued * task->seq_len;
    if (rc == 0)
        rc = measure(task, metrics, &count);
    if (rc < 0)
        return ct_context(rc, "[eval] %s", task->name);
    r.loss = nll / labels;
    r.seconds = ct_now() - begin;
    run->metrics = metrics;
    run->metric_count = count;
    rc = ct_hook_fire(&(struct ct_event_data){.event = CT_EVENT_VALIDATED,
                                              .run = run,
                                              .step = step,
                                              .result = &r,
                                              .labels = llround(labels),
                                              .set = task->name});
    run->metrics = of_step;
    run->metric_count = of_steps;
    return rc;
}

/* After every so many steps, and after the last; not if the run is stopped, which may be urgent. */
static bool is_due(const struct ct_event_data *data)
{
    int64_t freq = config.freq ? config.freq : ct_config.validation.freq;

    return data->event == CT_EVENT_STEP_END ? data->step % freq == 0
                                            : data->step % freq && !data->code;
}

static int evaluate_all(struct ct_run *run, int64_t step)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < own.count; i++)
        rc = evaluate(run, &own.task[i], step);
    return rc;
}

static int on_event(const struct ct_event_data *data, void *context)
{
    (void)context;
    if (data->event == CT_EVENT_RUN_READY || data->event == CT_EVENT_STAGE_BEGIN)
        return data->run->data ? open_tasks(data->run) : 0;
    if (data->event == CT_EVENT_STEP_END || data->event == CT_EVENT_STEPS_END)
        return is_due(data) ? evaluate_all(data->run, data->step) : 0;
    close_tasks();
    return 0;
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_RUN_READY | 1u << CT_EVENT_STEP_END |
                                              1u << CT_EVENT_STAGE_END | 1u << CT_EVENT_STEPS_END |
                                              1u << CT_EVENT_STAGE_BEGIN | 1u << CT_EVENT_FAILURE |
                                              1u << CT_EVENT_RUN_END,
                                    .call = on_event};

CT_PLUGIN(.name = "eval", .version = "1.0",
          .summary = "Evaluation while training goes on: multiple choice and written answers",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_HOOK, "eval", &hook}, {CT_OP, "label_scores", &scores_type},
                              {CT_KERNELS, "cpu", scores_kernels},
                              {CT_CODE, "cuda", &eval_cuda_code},
                              {CT_KERNELS, "cuda", scores_cuda_kernels},
                              {CT_TRANSFORM, "eval_scores", &scores_transform}));
