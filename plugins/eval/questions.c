#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/json.h>
#include <ctitan/train.h>

#include "questions.h"
#include "scores.h"

/* ---- reading ---- */

/* The tokens of a text behind the one that begins a document, in memory that lives until the next
   call. */
static int encode(struct ct_data *task, const char *text, size_t size, int64_t *count)
{
    const struct ct_tokenizer_ops *t = task->tokenizer;
    int64_t begin = t->bos() >= 0, n;

    /* Few texts have more tokens than bytes. */
    for (size_t need = size + 2;; need = (size_t)(n + begin)) {
        task->encoded = ct_arena_grow(&task->arena, task->encoded, &task->encoded_room, need,
                                      sizeof(*task->encoded));
        task->encoded[0] = t->bos();
        n = t->encode(text, size, task->encoded + begin, task->encoded_room - (size_t)begin);
        if (n < 0)
            return (int)n;
        if ((size_t)(n + begin) <= task->encoded_room)
            break;
    }
    *count = n + begin;
    for (int64_t i = 0; i < *count; i++)
        if (task->vocabulary && task->encoded[i] >= task->vocabulary)
            return ct_fail(CT_ECONFIG, "token %d is beyond the model's vocabulary of %lld",
                           task->encoded[i], (long long)task->vocabulary);
    return 0;
}

/* The last tokens that were encoded, `room` of them at most, with room for `more`. */
static void take_encoded(struct ct_data *task, int64_t count, int64_t room, int64_t more,
                         struct sequence *s)
{
    int64_t over = count > room ? count - room : 0;

    s->count = count - over;
    s->tokens = ct_arena_array(&task->arena, int32_t, s->count + more);
    memcpy(s->tokens, task->encoded + over, (size_t)s->count * sizeof(*s->tokens));
}

/* A sequence that is too long for a row, whose last token is a label alone, loses its beginning. */
static int take_choice(struct ct_data *task, const json_t *prompt, int64_t prompt_tokens,
                       const json_t *text, struct choice *c)
{
    size_t before = json_string_length(prompt), behind = json_string_length(text);
    char *whole = ct_arena_alloc(&task->arena, before + behind + 1);
    int64_t count, over;
    int rc;

    if (!json_is_string(text))
        return ct_fail(CT_ECONFIG, "\"choices\": expected a list of texts");
    memcpy(whole, json_string_value(prompt), before);
    memcpy(whole + before, json_string_value(text), behind);
    c->bytes = behind;
    rc = encode(task, whole, before + behind, &count);
    if (rc < 0)
        return rc;
    over = count - task->seq_len - 1;
    if (count <= prompt_tokens) /* tokens may reach across its end */
        return ct_fail(CT_ECONFIG, "a choice adds no token to its prompt");
    if (over >= prompt_tokens)
        return ct_fail(CT_ECONFIG, "a choice has %lld tokens, more than [training] seq_len = %lld",
                       (long long)(count - prompt_tokens), (long long)task->seq_len);
    take_encoded(task, count, task->seq_len + 1, 0, &c->whole);
    c->whole.from = prompt_tokens - (count - c->whole.count);
    return 0;
}

/* The number of tokens of a prompt without white space at its end. */
static int count_prompt(struct ct_data *task, const json_t *prompt, int64_t *count)
{
    const char *text = json_string_value(prompt);
    size_t size = json_string_length(prompt);
    int rc;

    while (size && strchr(" \t\n\r", text[size - 1]))
        size--;
    rc = encode(task, text, size, count);
    return rc < 0 || *count ? rc
                            : ct_fail(CT_ECONFIG, "the prompt has no token: the tokenizer has none "
                                                  "that begins a document");
}

/* The answer is the number of a choice, or its text. */
static int take_answer(const json_t *object, struct question *q)
{
    const json_t *answer = json_object_get(object, "answer");
    const json_t *choices = json_object_get(object, "choices");

    q->answer = q->count;
    if (json_is_integer(answer) && json_integer_value(answer) >= 0)
        q->answer = (size_t)json_integer_value(answer);
    for (size_t i = 0; json_is_string(answer) && i < q->count; i++)
        if (json_equal(answer, json_array_get(choices, i)))
            q->answer = i;
    return q->answer < q->count
               ? 0
               : ct_fail(CT_ECONFIG, "\"answer\": expected the number of a choice, from 0, or one "
                                     "of \"choices\"");
}

static int take_choices(struct ct_data *task, const json_t *object, int64_t prompt_tokens,
                        struct question *q)
{
    const json_t *prompt = json_object_get(object, "prompt");
    const json_t *choices = json_object_get(object, "choices");
    int rc = 0;

    q->count = json_array_size(choices);
    if (q->count < 2)
        return ct_fail(CT_ECONFIG, "\"choices\": expected a list of two texts or more");
    q->choice = ct_arena_array(&task->arena, struct choice, q->count);
    for (size_t i = 0; rc == 0 && i < q->count; i++)
        rc = take_choice(task, prompt, prompt_tokens, json_array_get(choices, i), &q->choice[i]);
    return rc < 0 ? rc : take_answer(object, q);
}

/* A prompt that leaves too little room in a row loses its beginning. */
static int take_written(struct ct_data *task, const json_t *object, int64_t prompt_tokens,
                        struct question *q)
{
    const json_t *prompt = json_object_get(object, "prompt");
    const json_t *answer = json_object_get(object, "answer");
    int64_t count, room = task->seq_len - task->writing->tokens + 1;
    int rc;

    if (!json_is_string(answer))
        return ct_fail(CT_ECONFIG, "\"answer\": expected a text, or \"choices\" beside it");
    if (room < 1)
        return ct_fail(CT_ECONFIG,
                       "[eval] answer_tokens = %lld leave no room for a prompt in [training] "
                       "seq_len = %lld",
                       (long long)task->writing->tokens, (long long)task->seq_len);
    q->count = 1;
    q->choice = ct_arena_new(&task->arena, struct choice);
    rc = take_choice(task, prompt, prompt_tokens, answer, q->choice);
    if (rc == 0)
        rc = encode(task, json_string_value(prompt), json_string_length(prompt), &count);
    if (rc < 0)
        return rc;
    q->written = ct_arena_new(&task->arena, struct sequence);
    take_encoded(task, count, room, task->writing->tokens + 1, q->written);
    q->given = q->written->count;
    q->expected = ct_arena_strdup(&task->arena, json_string_value(answer));
    return 0;
}

static int take_question(void *context, const json_t *object)
{
    struct ct_data *task = context;
    const json_t *prompt = json_object_get(object, "prompt");
    struct question q = {0};
    bool writes = !json_object_get(object, "choices");
    int64_t tokens;
    int rc;

    if (!json_is_string(prompt))
        return ct_fail(CT_ECONFIG, "expected \"prompt\", a text");
    if (task->count && writes != task->writes)
        return ct_fail(CT_ECONFIG, "questions with choices, and without, need files of their own");
    task->writes = writes;
    rc = count_prompt(task, prompt, &tokens);
    if (rc == 0)
        rc = writes ? take_written(task, object, tokens, &q)
                    : take_choices(task, object, tokens, &q);
    if (rc < 0)
        return rc;
    task->question = ct_arena_grow(&task->arena, task->question, &task->room, task->count + 1,
                                   sizeof(*task->question));
    task->question[task->count++] = q;
    return task->limit && task->count == (size_t)task->limit;
}

int questions_read(struct ct_data *task)
{
    size_t most = 0;
    int rc = ct_json_lines_file(task->path, CT_JSON_NUL, take_question, task);

    if (rc == 0 && !task->count)
        rc = ct_fail(CT_ECONFIG, "%s has no question", task->path);
    if (rc < 0)
        return ct_context(rc == CT_ENOENT ? CT_ECONFIG : rc, "[eval] path");
    for (size_t q = 0; q < task->count; q++)
        most += task->question[q].count;
    task->queue = ct_arena_array(&task->arena, struct sequence *, most);
    return 0;
}

/* ---- as data ---- */

static int list_streams(const struct ct_data_request *request, struct ct_arena *arena,
                        const struct ct_data_stream **streams)
{
    const size_t size = sizeof(struct ct_data_stream);
    const struct ct_data_stream list[] = {
        {size, "tokens", CT_I32, 1, {request->seq_len}, 0, "of a sequence"},
        {size, "labels", CT_I32, 1, {request->seq_len}, 0, "the next token, where it is scored"},
        {0}};

    *streams = ct_arena_copy(arena, list, sizeof(list));
    return 0;
}

/* A batch is the next sequences of the queue, and samples without labels. */
static int read_sample(struct ct_data *task, int64_t index, void *const *sample)
{
    int64_t at = index % task->samples;
    size_t number = (size_t)(index / task->samples * task->sequences + at);
    const struct sequence *s =
        at < task->sequences && number < task->queued ? task->queue[number] : NULL;
    int32_t *tokens = sample[0], *labels = sample[1];

    for (int64_t i = 0; i < task->seq_len; i++) {
        if (tokens)
            tokens[i] = s && i < s->count ? s->tokens[i] : 0;
        if (labels)
            labels[i] = s && i + 1 >= s->from && i + 1 < s->count ? s->tokens[i + 1] : CT_MASKED;
    }
    return 0;
}

const struct ct_data_ops questions_ops = {
    .size = sizeof(struct ct_data_ops), .streams = list_streams, .read_streams = read_sample};

/* ---- scoring ---- */

static int read_scores(struct ct_data *task, size_t first)
{
    static const struct {
        const char *name;
        size_t at;
    } scores[] = {{SCORE_LOGP, offsetof(struct sequence, logp)},
                  {SCORE_WRONG, offsetof(struct sequence, wrong)},
                  {SCORE_TOKEN, offsetof(struct sequence, token)}};
    int rc = 0;

    for (size_t k = 0; rc == 0 && k < CT_COUNT(scores); k++) {
        rc = ct_evaluation_read(task->evaluation, scores[k].name, task->score, task->sequences);
        for (size_t i = 0; rc == 0 && i < (size_t)task->sequences && first + i < task->queued; i++)
            memcpy((char *)task->queue[first + i] + scores[k].at, &task->score[i], sizeof(double));
    }
    return rc;
}

int task_score(struct ct_data *task)
{
    size_t each = (size_t)task->sequences;
    int rc = 0;

    for (size_t first = 0; rc == 0 && first < task->queued; first += each) {
        int64_t sample = (int64_t)(first / each) * task->samples;

        rc = ct_evaluation_run(task->evaluation, sample,
                               first + each < task->queued ? sample + task->samples : -1);
        if (rc == 0)
            rc = read_scores(task, first);
    }
    return rc;
}
