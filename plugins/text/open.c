/*
 * From the options of [text] to open sources.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/lib/chat.h>
#include <ctitan/log.h>

#include "text.h"

static int parse_weights(struct ct_arena *arena, double *weights, size_t *count)
{
    const char *list = text_config.weights;
    char *item, *end;

    if (*list && corpus_check_list(list) < 0)
        return ct_context(CT_ECONFIG, "[text] weights");
    for (*count = 0; (item = corpus_next_item(arena, &list)); (*count)++) {
        if (*count == MIXTURE_SOURCES)
            return ct_fail(CT_ECONFIG, "[text] weights: more than %d", MIXTURE_SOURCES);
        weights[*count] = strtod(item, &end);
        if (end == item || *end || !(weights[*count] > 0 && weights[*count] < 1e9))
            return ct_fail(CT_ECONFIG, "[text] weights: '%s' is not a positive number", item);
    }
    return 0;
}

/* One item of path for each weight. */
static int open_mixture(struct ct_data *data, const struct source_request *request,
                        struct ct_arena *arena, const double *weights, size_t count)
{
    struct source_request one = *request;
    struct corpus_later later = {0};
    const char *list = text_config.path;
    char *item;
    int rc = 0;

    one.store.corpus.later = &later;
    for (size_t i = 0; rc == 0 && (item = corpus_next_item(arena, &list)); i++) {
        if (i == count)
            return ct_fail(CT_ECONFIG, "[text] path has more items than the %zu weights", count);
        later.items = list;
        rc = source_open(&data->sources[i], &one, item);
        data->count += rc == 0;
    }
    if (rc == 0 && data->count < count)
        rc = ct_fail(CT_ECONFIG, "[text] weights has %zu numbers, but path has %zu items", count,
                     data->count);
    if (rc == 0 && mixture_make(&data->mixture, weights, count) < 0)
        rc = ct_fail(CT_ECONFIG, "[text] weights: the smallest is less than half of 1/%d of all",
                     MIXTURE_CYCLE);
    if (rc == 0)
        data->end = data->sources[0].repeat ? INT64_MAX : text_samples(data);
    list = text_config.path;
    for (size_t i = 0; rc == 0 && (item = corpus_next_item(arena, &list)); i++)
        ct_info("text: %s: %.2f%% of the samples", item,
                100.0 * data->mixture.share[i] / MIXTURE_CYCLE);
    return rc;
}

static int open_sources(struct ct_data *data, const struct source_request *request)
{
    struct ct_arena scratch = {0};
    const char *paths = request->store.corpus.command ? text_config.command
                        : request->set                ? request->set->path
                        : request->whole              ? text_config.validation_path
                                                      : text_config.path;
    double weights[MIXTURE_SOURCES];
    size_t count = 0;
    int rc = request->store.corpus.command ? 0 : corpus_check_list(paths);

    if (rc < 0)
        return ct_context(rc, "%s", request->store.corpus.option);
    rc = parse_weights(&scratch, weights, &count);
    if (request->whole)
        count = 0;
    data->sources = calloc(count ? count : 1, sizeof(*data->sources));
    if (rc == 0 && !data->sources)
        rc = ct_fail(CT_ENOMEM, "text");
    if (rc == 0 && count) {
        rc = open_mixture(data, request, &scratch, weights, count);
    } else if (rc == 0) {
        data->end = INT64_MAX;
        rc = source_open(&data->sources[0], request, paths);
        data->count = rc == 0;
    }
    ct_arena_finish(&scratch);
    return rc;
}

/* In a later stage of a run: each source goes on behind the part of its epoch that it has read. */
static void go_on(struct ct_data *data, const struct ct_data *before, int64_t samples)
{
    for (size_t i = 0; i < data->count; i++)
        for (size_t k = 0; k < before->count; k++)
            if (before->sources[k].store.hash == data->sources[i].store.hash) {
                source_go_on(&data->sources[i], &before->sources[k],
                             before->count > 1 ? mixture_count(&before->mixture, samples, k)
                                               : samples);
                break;
            }
    if (data->count > 1 && !data->sources[0].repeat)
        data->end = text_samples(data);
}

/* Whether a byte that is not UTF-8 has a token of its own. */
static bool takes_any_bytes(const struct ct_tokenizer_ops *tokenizer)
{
    int32_t tokens[4];
    char byte[8];

    return tokenizer->encode("\xff", 1, tokens, CT_COUNT(tokens)) == 1 &&
           tokenizer->decode(tokens[0], byte, sizeof(byte)) == 1 && *byte == '\xff';
}

/* ---- conversations ---- */

/* Prompts may be texts, which need no format: the failure waits for one that is messages. */
static int open_format(struct ct_data *data, const struct ct_tokenizer_ops *tokenizer)
{
    int rc;

    data->chat.format = ct_chat_find(text_format());
    rc = ct_context(ct_chat_check(data->chat.format, tokenizer), "[text] template");
    if (rc == 0 && !text_config.any_template)
        rc = ct_chat_compare(data->chat.format, ct_config.model.init_from);
    if (rc == 0 || text_has_messages())
        return rc;
    data->chat.unfit = ct_arena_strdup(&data->arena, ct_error_message());
    return 0;
}

/* The key has a hash of the template, whose file may change. */
static int open_chat(struct ct_data *data, const struct ct_tokenizer_ops *tokenizer,
                     struct corpus_request *corpus)
{
    struct ct_chat_template *template = NULL;
    int begins = 0,
        rc = chat_fields(&data->arena, text_config.format, text_config.fields, data->chat.field);

    data->chat.train = text_config.train_on;
    data->chat.vocabulary = data->vocabulary;
    if (rc == 0 && *text_config.field)
        data->chat.field[CHAT_MESSAGES] = text_config.field;
    if (rc == 0 && text_config.format != CORPUS_IDS && !tokenizer->encode_spans)
        rc = ct_fail(CT_ECONFIG, "[text] format: the tokenizer does not say which bytes its tokens "
                                 "stand for; use bpe");
    if (rc == 0 && text_config.format != CORPUS_IDS && text_runs_template())
        rc = ct_context(ct_chat_template_open(&data->arena, ct_config.model.init_from,
                                              text_config.date, &template),
                        "[text] template");
    else if (rc == 0 && text_config.format != CORPUS_IDS)
        rc = open_format(data, tokenizer);
    if (rc == 0 && text_config.format != CORPUS_IDS && !template)
        rc = begins = ct_chat_begins(data->chat.format, ct_config.model.init_from);
    if (rc < 0)
        return rc == CT_ENOENT ? CT_ECONFIG : rc;
    data->chat.template = template;
    corpus->chat = &data->chat;
    corpus->no_bos = text_config.format != CORPUS_IDS && !begins;
    corpus->key = ct_arena_printf(
        &data->arena, "%s%s %u %s %s %016llx",
        text_config.format == CORPUS_PROMPT ? "completions " : "", template ? "" : text_format(),
        text_config.train_on, text_config.fields, text_config.date,
        template ? (unsigned long long)ct_chat_template_hash(template) : 0ULL);
    return 0;
}

static bool can_have_weights(void)
{
    unsigned format = text_config.format;
    bool messages = format == CORPUS_CHAT || format == CORPUS_SHAREGPT || format == CORPUS_PROMPT;

    return format == CORPUS_IDS || (messages && text_config.train_on != CHAT_ALL);
}

static int check_config(void)
{
    if (!*text_config.path && !*text_config.command)
        return ct_fail(CT_ECONFIG, "[text] path must be set, or command");
    if (*text_config.path && *text_config.command)
        return ct_fail(CT_ECONFIG, "[text] path and command: set one of them");
    if (*text_config.command && *text_config.weights)
        return ct_fail(CT_ECONFIG, "[text] weights: a command is one corpus; they are for the "
                                   "items of path");
    if (text_config.label_weights && !can_have_weights())
        return ct_fail(CT_ECONFIG,
                       "[text] label_weights: only messages and ids have weights: set "
                       "format = chat, sharegpt, prompt or ids, and not train_on = all, "
                       "which trains messages as one text");
    if (*text_config.validation_path && text_config.validation_fraction > 0)
        return ct_fail(CT_ECONFIG, "[text] validation_path and validation_fraction: set one of "
                                   "them");
    return text_check_use();
}

/* Checks that the training data has the key at all. */
static int check_key(const struct ct_data *data, bool whole)
{
    size_t streams = whole || !*text_config.command_key;

    for (size_t i = 0; i < data->count; i++)
        streams += data->sources[i].store.streams;
    return streams ? 0
                   : ct_fail(CT_ECONFIG, "[text] command_key: path names regular files, whose "
                                         "tokens are found by their names and times");
}

/* The option whose value names the text. */
static const char *option_of(struct ct_arena *arena, const struct source_request *request)
{
    if (request->set)
        return ct_arena_printf(arena, "[validation.%s] path", request->set->name);
    if (request->whole)
        return "[text] validation_path";
    return *text_config.command ? "[text] command" : "[text] path";
}

int text_open_set(const struct ct_data_request *request, const struct ct_validation_set *set,
                  struct ct_data **out)
{
    bool whole = set || (request->validation && *text_config.validation_path);
    struct source_request sources = {
        .store = {.corpus = {.command = !whole && *text_config.command,
                             .stream_key = text_config.command_key,
                             .format = text_config.format,
                             .split = text_config.split,
                             .weights = text_config.label_weights,
                             .field = *text_config.field ? text_config.field : "text",
                             .skip = text_config.malformed == TEXT_SKIP,
                             .spool = text_config.spool},
                  .tokenizer = request->tokenizer,
                  .cache = text_config.cache},
        .data = request,
        .validation_fraction = text_config.validation_fraction,
        .whole = whole,
        .set = set,
        .repeat = text_config.repeat,
        .shuffle = text_config.shuffle,
        .document_mask = text_has_documents(),
        .per_sequence = text_config.per_sequence,
        .packing = {.how = text_packing(),
                    .too_long = text_config.too_long,
                    .width = request->seq_len,
                    .window = text_config.packing_window}};
    struct ct_data *data;
    int rc = check_config();

    *out = NULL;
    if (rc < 0)
        return rc;
    if (!request->tokenizer)
        return ct_fail(CT_ECONFIG,
                       "text needs a tokenizer: add bytes, bpe or sentencepiece to [plugins] load");
    data = calloc(1, sizeof(*data));
    if (!data)
        return ct_fail(CT_ENOMEM, "text");
    data->seq_len = request->seq_len;
    data->spare = ct_arena_array(&data->arena, int32_t, 2 * request->seq_len);
    data->vocabulary = text_config.format == CORPUS_IDS && request->vocabulary
                           ? request->vocabulary /* ids are not the tokenizer's */
                           : request->tokenizer->vocabulary();
    sources.store.corpus.any_bytes = takes_any_bytes(request->tokenizer);
    sources.store.corpus.option = option_of(&data->arena, &sources);
    if (text_is_labelled())
        rc = open_chat(data, request->tokenizer, &sources.store.corpus);
    if (rc == 0)
        rc = open_sources(data, &sources);
    if (rc == 0)
        rc = check_key(data, whole);
    if (rc == 0 && request->before)
        go_on(data, request->before, request->before_samples);
    ct_chat_template_close((struct ct_chat_template *)(uintptr_t)data->chat.template);
    data->chat.template = NULL;
    if (rc < 0)
        text_close(data);
    else
        *out = data;
    return rc < 0 ? rc : 0;
}

int text_open(const struct ct_data_request *request, struct ct_data **out)
{
    return text_open_set(request, NULL, out);
}
