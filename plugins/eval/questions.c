#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/input.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/ops.h>

#include "questions.h"

/* ---- reading ---- */

/* The tokens of a text behind the one that begins a document; with room for seq_len + 1 of them,
   the last ones. */
static int encode(struct ct_data *task, const char *text, size_t size, int32_t **tokens,
                  int64_t *count)
{
    const struct ct_tokenizer_ops *t = task->tokenizer;
    int64_t n = t->encode(text, size, NULL, 0), begin = t->bos() >= 0;

    if (n < 0)
        return (int)n;
    *tokens = ct_arena_array(&task->arena, int32_t, n + 2);
    (*tokens)[0] = t->bos();
    t->encode(text, size, *tokens + begin, (size_t)n);
    *count = n + begin;
    return 0;
}

/* A sequence that is too long for a row loses its beginning. */
static int fit(const struct ct_data *task, struct choice *c)
{
    int64_t over = c->count - task->seq_len - 1;

    if (c->count <= c->prompt) /* tokens may reach across its end */
        return ct_fail(CT_ECONFIG, "a choice adds no token to its prompt");
    if (over >= c->prompt)
        return ct_fail(CT_ECONFIG, "a choice has %lld tokens, more than [training] seq_len = %lld",
                       (long long)(c->count - c->prompt), (long long)task->seq_len);
    if (over > 0) {
        c->tokens += over;
        c->count -= over;
        c->prompt -= over;
    }
    for (int64_t i = 0; i < c->count; i++)
        if (task->vocabulary && c->tokens[i] >= task->vocabulary)
            return ct_fail(CT_ECONFIG, "token %d is beyond the model's vocabulary of %lld",
                           c->tokens[i], (long long)task->vocabulary);
    return c->prompt > 0 ? 0
                         : ct_fail(CT_ECONFIG, "the prompt has no token: the tokenizer has none "
                                               "that begins a document");
}

static int take_choice(struct ct_data *task, const json_t *prompt, const json_t *text,
                       struct choice *c)
{
    size_t before = json_string_length(prompt), behind = json_string_length(text);
    const char *from = json_string_value(prompt);
    char *whole = ct_arena_alloc(&task->arena, before + behind + 1);
    int32_t *unused;
    int rc;

    if (!json_is_string(text))
        return ct_fail(CT_ECONFIG, "\"choices\": expected a list of texts");
    memcpy(whole, from, before);
    memcpy(whole + before, json_string_value(text), behind);
    rc = encode(task, whole, before + behind, &c->tokens, &c->count);
    while (before && strchr(" \t\n\r", from[before - 1]))
        before--;
    if (rc == 0)
        rc = encode(task, from, before, &unused, &c->prompt);
    c->bytes = behind;
    return rc < 0 ? rc : fit(task, c);
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

static int take_question(struct ct_data *task, const json_t *object)
{
    const json_t *prompt = json_object_get(object, "prompt");
    const json_t *choices = json_object_get(object, "choices");
    struct question q = {.count = json_array_size(choices)};
    int rc = 0;

    if (!json_is_string(prompt) || q.count < 2)
        return ct_fail(CT_ECONFIG, "expected \"prompt\", a text, and \"choices\", two or more");
    q.choice = ct_arena_array(&task->arena, struct choice, q.count);
    for (size_t i = 0; rc == 0 && i < q.count; i++)
        rc = take_choice(task, prompt, json_array_get(choices, i), &q.choice[i]);
    if (rc == 0)
        rc = take_answer(object, &q);
    if (rc < 0)
        return rc;
    task->question = ct_arena_grow(&task->arena, task->question, &task->room, task->count + 1,
                                   sizeof(*task->question));
    task->question[task->count++] = q;
    task->choices += q.count;
    return 0;
}

static int read_lines(struct ct_data *task, const char *text, size_t size, int64_t limit)
{
    const char *at = text, *end = text + size;
    int rc = 0;

    for (size_t line = 1; rc == 0 && at < end; line++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline ? newline : end) - at);
        json_t *object = NULL;

        if (limit && task->count == (size_t)limit)
            break;
        if (strspn(at, " \t\r") < length) {
            rc = ct_json_read(at, length, NULL, CT_JSON_NUL, &object);
            if (rc == 0)
                rc = take_question(task, object);
            json_decref(object);
        }
        rc = ct_context(rc, "[eval] path: %s:%zu", task->path, line);
        at += length + 1;
    }
    return rc;
}

int questions_read(struct ct_data *task, int64_t limit)
{
    size_t size, n = 0;
    char *text;
    int rc = ct_file_read(&task->arena, task->path, SIZE_MAX / 2, &text, &size);

    if (rc < 0)
        return ct_context(CT_ECONFIG, "[eval] path");
    rc = read_lines(task, text, size, limit);
    if (rc == 0 && !task->count)
        rc = ct_fail(CT_ECONFIG, "[eval] path: %s has no question", task->path);
    if (rc < 0)
        return rc;
    task->all = ct_arena_array(&task->arena, struct choice *, task->choices);
    for (size_t q = 0; q < task->count; q++)
        for (size_t i = 0; i < task->question[q].count; i++)
            task->all[n++] = &task->question[q].choice[i];
    return 0;
}

/* ---- as data ---- */

static int list_streams(const struct ct_data_request *request, struct ct_arena *arena,
                        const struct ct_data_stream **streams)
{
    const size_t size = sizeof(struct ct_data_stream);
    const struct ct_data_stream list[] = {
        {size, "tokens", CT_I32, 1, {request->seq_len}, 0, "prompt and choice"},
        {size, "labels", CT_I32, 1, {request->seq_len}, 0, "the next token, of choices alone"},
        {size, "documents", CT_I32, 1, {request->seq_len}, 0, "zeros"},
        {size, "weights", CT_F32, 1, {request->seq_len}, 0, "ones"},
        {0}};

    *streams = ct_arena_copy(arena, list, sizeof(list));
    return 0;
}

static int read_sample(struct ct_data *task, int64_t index, void *const *sample)
{
    const struct choice *c = task->all[index / task->samples];
    int32_t *tokens = sample[0], *labels = sample[1], *documents = sample[2];
    float *weights = sample[3];
    bool scored = index % task->samples == 0;

    for (int64_t i = 0; i < task->seq_len; i++) {
        bool label = scored && i + 1 >= c->prompt && i + 1 < c->count;

        if (tokens)
            tokens[i] = scored && i < c->count ? c->tokens[i] : 0;
        if (labels)
            labels[i] = label ? c->tokens[i + 1] : CT_MASKED;
        if (documents)
            documents[i] = 0;
        if (weights)
            weights[i] = 1;
    }
    return 0;
}

const struct ct_data_ops questions_ops = {
    .size = sizeof(struct ct_data_ops), .streams = list_streams, .read_streams = read_sample};
