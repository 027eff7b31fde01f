/*
 * Pairs from JSON lines: {"prompt": .., "chosen": .., "rejected": ..}, texts, lists of tokens, or
 * conversations, with "reference": [log-probability of chosen, of rejected] where they are stored.
 * For kto {"prompt": .., "completion": .., "label": true}, and the reference of the completion, and
 * of that of the line before. Behind this prompt, a conversation's is encoded again: a token may
 * have the end of a prompt and the beginning of its answer.
 */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/chat.h>
#include <ctitan/lib/json.h>

#include "conversation.h"
#include "dpo.h"

struct tokens {
    int32_t *ids;
    int64_t count;
};

struct pair {
    struct tokens prompt[2], answer[2]; /* kto: the second answer is that of the line before */
    float reference[2];
    bool undesirable;
    struct dpo_answer text; /* kto, in `texts`; its text NULL: no conversation */
};

struct ct_data {
    struct ct_arena arena;
    const struct ct_tokenizer_ops *tokenizer; /* NULL: none */
    struct ct_chat_template *chat;            /* NULL: no line has needed it */
    int64_t seq_len, vocabulary;
    const char *option, *path; /* "[dpo] path" and its value */
    bool repeat;
    struct dpo_stored stored; /* reference_path */
    int32_t *tokens, *labels; /* of the sample whose reference is read */
    struct pair *pair;
    size_t count, room;
    int32_t *encoded;           /* tokens of the last text */
    struct ct_text_span *spans; /* their bytes */
    size_t encoded_room, span_room;
    struct ct_arena texts; /* until the file is read */
};

static int list_streams(const struct ct_data_request *request, struct ct_arena *arena,
                        const struct ct_data_stream **streams)
{
    const size_t size = sizeof(struct ct_data_stream);
    const struct ct_data_stream list[] = {
        {size, "tokens", CT_I32, 1, {request->seq_len}, 0, "prompt and answer"},
        {size, "labels", CT_I32, 1, {request->seq_len}, 0, "the next token, of answers alone"},
        {size, "reference", CT_F32, 0, {0}, -1, "log-probability of the reference"},
        {size, "answer_tokens", CT_F32, 0, {0}, -1, "tokens of the answer"},
        {size, "kinds", CT_F32, 0, {0}, -1, "1: a desirable answer, -1: an undesirable one"},
        {size, "trained_labels", CT_I32, 1, {request->seq_len}, 0, "the next token, if chosen"},
        {0}};

    *streams = ct_arena_copy(arena, list, sizeof(list));
    return 0;
}

/* ---- reading ---- */

static int take_ids(struct ct_data *data, const json_t *list, struct tokens *out)
{
    out->count = (int64_t)json_array_size(list);
    out->ids = ct_arena_array(&data->arena, int32_t, out->count + 1);
    for (int64_t i = 0; i < out->count; i++) {
        const json_t *id = json_array_get(list, (size_t)i);

        out->ids[i] = (int32_t)json_integer_value(id);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= (data->vocabulary ? data->vocabulary : INT32_MAX))
            return ct_fail(CT_ECONFIG, "[%lld] is no token of the vocabulary", (long long)i);
    }
    return 0;
}

/* Put a text's tokens into data->encoded, and, if wanted, their bytes into data->spans. Returns the
   number of tokens. */
static int64_t encode_text(struct ct_data *data, const char *text, size_t size, bool spans)
{
    const struct ct_tokenizer_ops *t = data->tokenizer;
    int64_t count;

    /* Few texts have more tokens than bytes. */
    for (size_t need = size + 1;; need = (size_t)count) {
        data->encoded = ct_arena_grow(&data->arena, data->encoded, &data->encoded_room, need,
                                      sizeof(*data->encoded));
        data->spans =
            ct_arena_grow(&data->arena, data->spans, &data->span_room, need, sizeof(*data->spans));
        count = spans ? t->encode_spans(text, size, data->encoded, data->spans, need)
                      : t->encode(text, size, data->encoded, need);
        if (count < 0 || (size_t)count <= need)
            return count;
    }
}

static int check_tokenizer(const struct ct_data *data)
{
    return data->tokenizer
               ? 0
               : ct_fail(CT_ECONFIG,
                         "a text needs a tokenizer: add bytes or bpe to [plugins] load");
}

/* A text, behind the token that begins one, or before the token that ends one. */
static int encode(struct ct_data *data, const json_t *text, bool answer, struct tokens *out)
{
    const struct ct_tokenizer_ops *t = data->tokenizer;
    int rc = check_tokenizer(data);
    int32_t before, behind;
    int64_t count;

    if (rc < 0)
        return rc;
    before = answer ? -1 : t->bos();
    behind = !answer ? -1 : t->end ? t->end() : t->eos();
    count = encode_text(data, json_string_value(text), json_string_length(text), false);
    if (count < 0)
        return (int)count;
    out->ids = ct_arena_array(&data->arena, int32_t, count + 2);
    if (before >= 0)
        out->ids[out->count++] = before;
    memcpy(out->ids + out->count, data->encoded, (size_t)count * sizeof(*out->ids));
    out->count += count;
    if (behind >= 0)
        out->ids[out->count++] = behind;
    return 0;
}

/* Tokens of a conversation up to the end of the answer; the first that holds a byte of it. */
struct told {
    struct tokens all;
    int64_t first;
};

static int encode_told(struct ct_data *data, const struct dpo_answer *text, struct ct_arena *arena,
                       struct told *out)
{
    int64_t count = encode_text(data, text->text, text->size, true), first = 0;

    if (count < 0)
        return (int)count;
    while (count > 0 && data->spans[count - 1].begin >= text->end)
        count--;
    while (first < count && data->spans[first].begin < text->begin &&
           data->spans[first].end <= text->begin)
        first++;
    out->all.count = count;
    out->all.ids = ct_arena_copy(arena, data->encoded, (size_t)count * sizeof(*data->encoded));
    out->first = first;
    return 0;
}

static struct tokens part_of(struct ct_data *data, const struct tokens *all, int64_t from,
                             int64_t to)
{
    size_t size = (size_t)(to - from) * sizeof(*all->ids);

    return (struct tokens){ct_arena_copy(&data->arena, all->ids + from, size), to - from};
}

/* The prompt is what all conversations begin with, before the first answer: a token of both
   prompt and answer makes the others' prompts end before it, too. */
static void divide(struct ct_data *data, const struct told *told, size_t count, struct pair *p)
{
    const struct tokens *a = &told[0].all, *b = &told[count - 1].all;
    int64_t first = told[0].first, last = told[count - 1].first, n = 0;

    while (n < first && n < last && a->ids[n] == b->ids[n])
        n++;
    p->prompt[0] = p->prompt[1] = part_of(data, a, 0, n);
    for (size_t i = 0; i < count; i++)
        p->answer[i] = part_of(data, &told[i].all, n, told[i].all.count);
}

static bool equal_prompts(const struct dpo_answer *a, const struct dpo_answer *b)
{
    return a->begin == b->begin && !memcmp(a->text, b->text, a->begin);
}

/* Templates write what begins a text and ends a turn. */
static int write_conversations(struct ct_data *data, const json_t *object, const char *const *names,
                               size_t count, struct ct_arena *arena, struct pair *p)
{
    struct dpo_answer text[2];
    struct told told[2] = {0};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = dpo_read_answer(&data->arena, &data->chat, object, names[i], arena, &text[i]);
        if (rc == 0 && !equal_prompts(&text[0], &text[i]))
            rc = ct_fail(CT_ECONFIG, "\"%s\" has another prompt than \"chosen\"", names[i]);
        if (rc == 0)
            rc = encode_told(data, &text[i], arena, &told[i]);
    }
    if (rc < 0)
        return rc;
    divide(data, told, count, p);
    if (dpo_config.loss == DPO_KTO) {
        p->text = text[0];
        p->text.text = ct_arena_copy(&data->texts, text[0].text, text[0].size);
    }
    return 0;
}

static int take_conversations(struct ct_data *data, const json_t *object, const char *const *names,
                              size_t count, struct pair *p)
{
    struct ct_arena arena = {0};
    int rc = check_tokenizer(data);

    if (rc == 0 && !data->tokenizer->encode_spans)
        rc = ct_fail(CT_ECONFIG, "messages: the tokenizer does not say which bytes its tokens "
                                 "stand for; use bpe");
    if (rc == 0)
        rc = write_conversations(data, object, names, count, &arena, p);
    ct_arena_finish(&arena);
    return rc;
}

static int take_tokens(struct ct_data *data, const json_t *object, const char *name, bool answer,
                       struct tokens *out)
{
    const json_t *value = json_object_get(object, name);
    int rc;

    if (json_is_array(value))
        rc = take_ids(data, value, out);
    else if (json_is_string(value))
        rc = encode(data, value, answer, out);
    else
        rc = ct_fail(CT_ECONFIG, "expected a text, a list of tokens or a list of messages");
    return ct_context(rc, "\"%s\"", name);
}

/* Whether lines have log-probabilities of the reference. */
static bool has_references(const struct ct_data *data)
{
    return dpo_config.reference == DPO_STORED && dpo_has_reference() &&
           !(data->repeat && *dpo_config.reference_path);
}

static int take_reference(const struct ct_data *data, const json_t *object, struct pair *p)
{
    const json_t *list = json_object_get(object, "reference");

    if (!has_references(data))
        return 0;
    for (size_t i = 0; i < 2; i++) {
        if (!json_is_number(json_array_get(list, i)))
            return ct_fail(CT_ECONFIG, "\"reference\": expected the log-probabilities of both "
                                       "answers; or set [dpo] reference = pass");
        p->reference[i] = (float)json_number_value(json_array_get(list, i));
    }
    return 0;
}

static int take_label(const json_t *object, struct pair *p)
{
    const json_t *label = json_object_get(object, "label");

    if (!json_is_boolean(label))
        return ct_fail(CT_ECONFIG, "\"label\": expected true or false");
    p->undesirable = !json_is_true(label);
    return 0;
}

static int take_plain(struct ct_data *data, const json_t *object, const char *const *names,
                      size_t count, struct pair *p)
{
    int rc = take_tokens(data, object, "prompt", false, &p->prompt[0]);

    p->prompt[1] = p->prompt[0];
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = take_tokens(data, object, names[i], true, &p->answer[i]);
    return rc;
}

/* Log-probabilities are those of at least one token behind at least one other. */
static int check_answer(const struct ct_data *data, const char *name, const struct tokens *prompt,
                        const struct tokens *answer)
{
    int64_t count = prompt->count + answer->count;

    if (!prompt->count || !answer->count)
        return ct_fail(CT_ECONFIG, "\"%s\": it is empty", prompt->count ? name : "prompt");
    if (count > data->seq_len)
        return ct_fail(CT_ECONFIG,
                       "prompt and \"%s\" have %lld tokens, more than [training] seq_len = %lld",
                       name, (long long)count, (long long)data->seq_len);
    return 0;
}

static int take_answers(struct ct_data *data, const json_t *object, struct pair *p)
{
    static const char *const of_pairs[] = {"chosen", "rejected"}, *const alone[] = {"completion"};
    bool kto = dpo_config.loss == DPO_KTO;
    const char *const *names = kto ? alone : of_pairs;
    size_t count = kto ? 1 : 2;
    int rc = dpo_is_conversation(object, names, count)
                 ? take_conversations(data, object, names, count, p)
                 : take_plain(data, object, names, count, p);

    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = check_answer(data, names[i], &p->prompt[i], &p->answer[i]);
    return rc;
}

static int take_pair(void *context, const json_t *object)
{
    struct ct_data *data = context;
    struct pair p = {0};
    int rc = dpo_config.loss == DPO_KTO ? take_label(object, &p) : 0;

    if (rc == 0)
        rc = take_answers(data, object, &p);
    if (rc == 0)
        rc = take_reference(data, object, &p);
    if (rc < 0)
        return rc;
    data->pair =
        ct_arena_grow(&data->arena, data->pair, &data->room, data->count + 1, sizeof(*data->pair));
    data->pair[data->count++] = p;
    return 0;
}

/* ---- kto: the answer of the line before ---- */

/* A conversation of p's prompt and the answer of `before`. */
static int mix(struct ct_data *data, const struct pair *before, struct pair *p)
{
    const struct dpo_answer *a = &p->text, *b = &before->text;
    struct ct_arena arena = {0};
    size_t size = a->begin + b->size - b->begin;
    char *text = ct_arena_alloc(&arena, size + 1);
    struct told told;
    int rc;

    memcpy(text, a->text, a->begin);
    memcpy(text + a->begin, b->text + b->begin, b->size - b->begin);
    rc = encode_told(data, &(struct dpo_answer){text, size, a->begin, a->begin + b->end - b->begin},
                     &arena, &told);
    if (rc == 0) {
        p->prompt[1] = part_of(data, &told.all, 0, told.first);
        p->answer[1] = part_of(data, &told.all, told.first, told.all.count);
    }
    ct_arena_finish(&arena);
    return rc;
}

static int take_answers_before(struct ct_data *data)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < data->count; i++) {
        const struct pair *before = &data->pair[(i ? i : data->count) - 1];
        struct pair *p = &data->pair[i];

        p->answer[1] = before->answer[0];
        if (p->text.text && before->text.text)
            rc = mix(data, before, p);
    }
    return rc;
}

static void close_data(struct ct_data *data)
{
    if (data) {
        dpo_stored_close(&data->stored);
        ct_chat_template_close(data->chat);
        ct_arena_finish(&data->arena);
    }
    free(data);
}

/* ---- samples ---- */

static int32_t token_at(const struct tokens *prompt, const struct tokens *answer, int64_t i)
{
    return i < prompt->count                   ? prompt->ids[i]
           : i - prompt->count < answer->count ? answer->ids[i - prompt->count]
                                               : 0;
}

static void write_tokens(const struct ct_data *data, const struct tokens *prompt,
                         const struct tokens *answer, int32_t *tokens)
{
    for (int64_t i = 0; tokens && i < data->seq_len; i++)
        tokens[i] = token_at(prompt, answer, i);
}

/* From token `first` on, those of the sequence; an answer that is too long for the row ends with
   it. */
static void write_labels(const struct ct_data *data, const struct tokens *prompt,
                         const struct tokens *answer, int64_t first, int32_t *labels)
{
    for (int64_t i = 0; labels && i < data->seq_len; i++)
        labels[i] = i + 1 >= first && i + 1 < prompt->count + answer->count
                        ? token_at(prompt, answer, i + 1)
                        : CT_MASKED;
}

static int64_t samples(const struct ct_data *data)
{
    return 2 * (int64_t)data->count;
}

/* The file's reference is read only where it is used: `ctitan data` makes it with this source. */
static int read_reference(struct ct_data *data, int64_t index, float *logp)
{
    const struct pair *p = &data->pair[(size_t)(index / 2) % data->count];
    const struct tokens *prompt = &p->prompt[index % 2], *answer = &p->answer[index % 2];

    *logp = p->reference[index % 2];
    if (!data->repeat || !*dpo_config.reference_path)
        return 0;
    write_tokens(data, prompt, answer, data->tokens);
    write_labels(data, prompt, answer, prompt->count, data->labels);
    return dpo_stored_read(&data->stored, data->tokens, data->labels, data->seq_len, logp);
}

/* Samples 2i and 2i + 1 are pair i. */
static int read_sample(struct ct_data *data, int64_t index, void *const *sample)
{
    const struct pair *p = &data->pair[(size_t)(index / 2) % data->count];
    const struct tokens *prompt = &p->prompt[index % 2], *answer = &p->answer[index % 2];
    bool first = index % 2 == 0;
    int rc;

    if (!data->repeat && (size_t)(index / 2) >= data->count)
        return 1;
    rc = sample[2] ? read_reference(data, index, sample[2]) : 0;
    if (rc < 0)
        return rc;
    write_tokens(data, prompt, answer, sample[0]);
    write_labels(data, prompt, answer, prompt->count, sample[1]);
    if (sample[3])
        *(float *)sample[3] = (float)answer->count;
    if (sample[4])
        *(float *)sample[4] = !first ? 0 : p->undesirable ? -1 : 1;
    write_labels(data, prompt, answer, first ? 0 : INT64_MAX, sample[5]);
    return 0;
}

/* ---- opening ---- */

static int read_file(struct ct_data *data)
{
    int rc = ct_json_lines_file(data->path, CT_JSON_NUL, take_pair, data);

    if (rc == 0 && dpo_config.loss == DPO_KTO)
        rc = take_answers_before(data);
    ct_arena_finish(&data->texts);
    if (rc < 0)
        return ct_context(rc == CT_ENOENT ? CT_ECONFIG : rc, "%s", data->option);
    return data->count ? 0 : ct_fail(CT_ECONFIG, "%s = %s: no pairs", data->option, data->path);
}

static int open_set(const struct ct_data_request *request, const struct ct_validation_set *set,
                    struct ct_data **out)
{
    bool validation = request->validation && !set;
    struct ct_data *data;
    int rc;

    *out = NULL;
    if (validation && !*dpo_config.validation_path)
        return ct_fail(CT_ECONFIG, "[dpo] validation_path is not set, but [validation] asks for "
                                   "validation");
    data = calloc(1, sizeof(*data));
    if (!data)
        return ct_fail(CT_ENOMEM, "pairs");
    data->tokenizer = request->tokenizer;
    data->seq_len = request->seq_len;
    data->vocabulary = request->vocabulary;
    data->repeat = !request->validation;
    data->tokens = ct_arena_array(&data->arena, int32_t, data->seq_len);
    data->labels = ct_arena_array(&data->arena, int32_t, data->seq_len);
    data->option = set          ? ct_arena_printf(&data->arena, "[validation.%s] path", set->name)
                   : validation ? "[dpo] validation_path"
                                : "[dpo] path";
    data->path = set ? set->path : validation ? dpo_config.validation_path : dpo_config.path;
    rc = read_file(data);
    if (rc < 0)
        close_data(data);
    else
        *out = data;
    return rc;
}

static int open_data(const struct ct_data_request *request, struct ct_data **out)
{
    return open_set(request, NULL, out);
}

static bool has_validation(void)
{
    return *dpo_config.validation_path;
}

static int64_t vocabulary(struct ct_data *data)
{
    return data->tokenizer ? data->tokenizer->vocabulary() : 0;
}

const struct ct_data_ops dpo_data = {.size = sizeof(struct ct_data_ops),
                                     .open = open_data,
                                     .close = close_data,
                                     .vocabulary = vocabulary,
                                     .streams = list_streams,
                                     .read_streams = read_sample,
                                     .samples = samples,
                                     .open_set = open_set,
                                     .has_validation = has_validation};
