/*
 * Text as training data: one source, or several mixed by weights.
 */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>

#include "chat.h"
#include "mixture.h"
#include "source.h"

static struct config {
    const char *path, *command, *command_key, *validation_path, *weights, *field, *template,
        *malformed, *cache, *spool, *fields, *date;
    unsigned split, format, packing, too_long, document_mask, train_on;
    int64_t packing_window;
    bool any_template, repeat, shuffle;
    double validation_fraction;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, path, "path", "",
                  "Text files, folders, patterns such as books/*.txt, and pipes, separated by "
                  "commas; -: standard input; gzip and zstd are unpacked"),
    CT_OPT_STRING(struct config, command, "command", "",
                  "In the place of path: a command for sh, whose output is read, once; its tokens "
                  "are found again by its text"),
    CT_OPT_STRING(struct config, command_key, "command_key", "",
                  "Name of what a command or a pipe gives, under which its tokens are found again; "
                  "another name reads it again"),
    CT_OPT_STRING(struct config, weights, "weights", "",
                  "Weights of the items of path, comma-separated: their shares of the samples; "
                  "empty: all items are one corpus"),
    CT_OPT_ENUM(struct config, format, "format", "auto",
                "auto|text|jsonl|chat|sharegpt|prompt|alpaca|ids",
                "auto: .jsonl, .ndjson and .json files hold a JSON object on each line, others "
                "text; chat, sharegpt, prompt, alpaca, ids: the objects hold conversations and "
                "the like, of which only answers are trained on"),
    CT_OPT_STRING(struct config, fields, "fields", "",
                  "Other names of the objects' fields, such as content=text, role=speaker"),
    CT_OPT_ENUM(struct config, train_on, "train_on", "assistant", "assistant|last|all|field",
                "What of a conversation is trained on: the assistant's messages, the last of "
                "them, everything, or those of its messages whose field \"train\" is true"),
    CT_OPT_STRING(struct config, date, "date", "",
                  "Date that chat templates write, as YYYY-MM-DD; empty: they are told none"),
    CT_OPT_STRING(struct config, field, "field", "",
                  "The field of JSON lines; empty: text, or messages for chat"),
    CT_OPT_CHOICE(struct config, template, "template", "auto", "auto|folder|chatml|llama3",
                  "How conversations are written: by the chat template of the folder [model] "
                  "init_from, or in one of these formats; auto: folder if that has one, else "
                  "chatml"),
    CT_OPT_BOOL(struct config, any_template, "any_template", "false",
                "Allow another template than that of the folder [model] init_from"),
    CT_OPT_CHOICE(
        struct config, malformed, "malformed", "stop", "stop|skip",
        "What to do about a malformed line: stop the run, or skip it and report the number"),
    CT_OPT_STRING(struct config, cache, "cache", "",
                  "Folder that keeps tokens for all ranks and later runs; empty: ctitan/tokens in "
                  "$XDG_CACHE_HOME or ~/.cache; none: each rank makes its own, in spool_folder"),
    CT_OPT_STRING(struct config, spool, "spool_folder", "/var/tmp",
                  "Folder for files without a name: unpacked text, and tokens that are not kept"),
    CT_OPT_ENUM(struct config, split, "split", "document", "document|paragraph|line",
                "What counts as a document in text files: each file (document), paragraph or line"),
    CT_OPT_BOOL(struct config, repeat, "repeat", "true",
                "At the end of the data, begin the next epoch instead of ending the run"),
    CT_OPT_BOOL(struct config, shuffle, "shuffle", "true",
                "Shuffle documents and samples in each epoch, by [training] seed"),
    CT_OPT_FLOAT(struct config, validation_fraction, "validation_fraction", "0", 0, 0.9,
                 "Fraction of the documents that is held out for validation"),
    CT_OPT_STRING(struct config, validation_path, "validation_path", "",
                  "Files for validation, named as in path, instead of a fraction of path's "
                  "documents; with weights, too, they are one corpus"),
    CT_OPT_ENUM(struct config, packing, "packing", "auto",
                "auto|concat|first_fit|first_fit_decreasing",
                "concat: join documents, and split them at every seq_len; first_fit: put whole "
                "documents into rows, each into the first with room for it, in their order or the "
                "longest first; auto: first_fit for conversations, else concat"),
    CT_OPT_INT(struct config, packing_window, "packing_window", "65536", 1, INT32_MAX,
               "Documents that are packed into rows together"),
    CT_OPT_ENUM(struct config, too_long, "too_long", "cut", "cut|split|drop",
                "What becomes of a document that is longer than a row: its end is cut off, it is "
                "split, or it is dropped"),
    CT_OPT_ENUM(struct config, document_mask, "document_mask", "auto", "auto|false|true",
                "Keep tokens from attending to, or predicting, another document's tokens; auto: "
                "where documents are packed whole"),
    {0},
};

enum { AUTO, NO, YES };            /* document_mask */
enum { PACK_AUTO, PACK_EXPLICIT }; /* packing: those of packing.h follow auto */

/* Whether only a part of the tokens is trained on. */
static bool is_labelled(void)
{
    return config.format >= CORPUS_CHAT;
}

static enum packing_how packing(void)
{
    if (config.packing == PACK_AUTO)
        return is_labelled() ? PACKING_FIRST_FIT : PACKING_CONCAT;
    return config.packing - PACK_EXPLICIT;
}

static bool text_has_documents(void)
{
    return config.document_mask == YES ||
           (config.document_mask == AUTO && packing() != PACKING_CONCAT);
}

struct ct_data {
    struct source *sources;
    size_t count;
    int64_t vocabulary;
    struct ct_arena arena;
    struct chat_request chat;
    struct mixture mixture; /* if count > 1 */
    int64_t end;            /* the first sample that the mixture lacks */
};

static int text_read(struct ct_data *data, int64_t index, int32_t *tokens, int32_t *labels,
                     int32_t *documents)
{
    size_t source;

    if (index >= data->end)
        return 1;
    source = data->count > 1 ? mixture_at(&data->mixture, index, &index) : 0;
    return source_read(&data->sources[source], index, tokens, labels, documents);
}

static void text_close(struct ct_data *data)
{
    if (!data)
        return;
    for (size_t i = 0; data->sources && i < data->count; i++)
        source_close(&data->sources[i]);
    free(data->sources);
    ct_arena_finish(&data->arena);
    free(data);
}

/* ---- opening ---- */

static int parse_weights(struct ct_arena *arena, double *weights, size_t *count)
{
    const char *list = config.weights;
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

/* A mixture ends with its first source that does: later samples of others are not read. */
static int64_t text_samples(const struct ct_data *data)
{
    int64_t samples[MIXTURE_SOURCES];

    if (data->count == 1)
        return data->sources[0].samples;
    for (size_t i = 0; i < data->count; i++)
        samples[i] = data->sources[i].samples;
    return mixture_end(&data->mixture, samples);
}

/* One item of path for each weight. */
static int open_mixture(struct ct_data *data, const struct source_request *request,
                        struct ct_arena *arena, const double *weights, size_t count)
{
    const char *list = config.path;
    char *item;
    int rc = 0;

    for (size_t i = 0; rc == 0 && (item = corpus_next_item(arena, &list)); i++) {
        if (i == count)
            return ct_fail(CT_ECONFIG, "[text] path has more items than the %zu weights", count);
        rc = source_open(&data->sources[i], request, item);
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
    list = config.path;
    for (size_t i = 0; rc == 0 && (item = corpus_next_item(arena, &list)); i++)
        ct_info("text: %s: %.2f%% of the samples", item,
                100.0 * data->mixture.share[i] / MIXTURE_CYCLE);
    return rc;
}

static int open_sources(struct ct_data *data, const struct source_request *request)
{
    struct ct_arena scratch = {0};
    const char *paths = request->store.corpus.command ? config.command
                        : request->whole              ? config.validation_path
                                                      : config.path;
    double weights[MIXTURE_SOURCES];
    size_t count = 0;
    int rc = request->store.corpus.command ? 0 : corpus_check_list(paths);

    if (rc < 0)
        return ct_context(rc, "[text] %s", request->store.corpus.option);
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

/* Whether a byte that is not UTF-8 has a token of its own. */
static bool takes_any_bytes(const struct ct_tokenizer_ops *tokenizer)
{
    int32_t tokens[4];
    char byte[8];

    return tokenizer->encode("\xff", 1, tokens, CT_COUNT(tokens)) == 1 &&
           tokenizer->decode(tokens[0], byte, sizeof(byte)) == 1 && *byte == '\xff';
}

/* ---- conversations ---- */

static bool runs_template(void)
{
    if (!strcmp(config.template, "auto"))
        return ct_chat_has_template(ct_config.model.init_from);
    return !strcmp(config.template, "folder");
}

/* The table in which conversations are written; NULL: the folder's template writes them. */
static const char *format_name(void)
{
    return runs_template() ? NULL : !strcmp(config.template, "auto") ? "chatml" : config.template;
}

static bool has_messages(void)
{
    return is_labelled() && config.format != CORPUS_IDS && config.format != CORPUS_PROMPT;
}

static int open_format(struct ct_data *data, const struct ct_tokenizer_ops *tokenizer)
{
    int rc;

    data->chat.format = ct_chat_find(format_name());
    if (!has_messages()) /* a prompt may be one: a message says so when it comes */
        return 0;
    rc = ct_context(ct_chat_check(data->chat.format, tokenizer), "[text] template");
    if (rc == 0 && !config.any_template)
        rc = ct_chat_compare(data->chat.format, ct_config.model.init_from);
    return rc;
}

/* The key has a hash of the template, whose file may change. */
static int open_chat(struct ct_data *data, const struct ct_tokenizer_ops *tokenizer,
                     struct corpus_request *corpus)
{
    struct ct_chat_template *template = NULL;
    int rc = chat_fields(&data->arena, config.format, config.fields, data->chat.field);

    data->chat.train = config.train_on;
    data->chat.vocabulary = data->vocabulary;
    if (rc == 0 && *config.field)
        data->chat.field[CHAT_MESSAGES] = config.field;
    if (rc == 0 && config.format != CORPUS_IDS && !tokenizer->encode_spans)
        rc = ct_fail(CT_ECONFIG, "[text] format: the tokenizer does not say which bytes its tokens "
                                 "stand for; use bpe");
    if (rc == 0 && config.format != CORPUS_IDS && runs_template())
        rc = ct_context(
            ct_chat_template_open(&data->arena, ct_config.model.init_from, config.date, &template),
            "[text] template");
    else if (rc == 0 && config.format != CORPUS_IDS)
        rc = open_format(data, tokenizer);
    if (rc < 0)
        return rc == CT_ENOENT ? CT_ECONFIG : rc;
    data->chat.template = template;
    corpus->chat = &data->chat;
    corpus->no_bos = has_messages() &&
                     (template || !ct_chat_begins(data->chat.format, ct_config.model.init_from));
    corpus->key =
        ct_arena_printf(&data->arena, "%s %u %s %s %016llx", template ? "" : format_name(),
                        config.train_on, config.fields, config.date,
                        template ? (unsigned long long)ct_chat_template_hash(template) : 0ULL);
    return 0;
}

static int check_config(void)
{
    if (!*config.path && !*config.command)
        return ct_fail(CT_ECONFIG, "[text] path must be set, or command");
    if (*config.path && *config.command)
        return ct_fail(CT_ECONFIG, "[text] path and command: set one of them");
    if (*config.command && *config.weights)
        return ct_fail(CT_ECONFIG, "[text] weights: a command is one corpus; they are for the "
                                   "items of path");
    if (*config.validation_path && config.validation_fraction > 0)
        return ct_fail(CT_ECONFIG, "[text] validation_path and validation_fraction: set one of "
                                   "them");
    return 0;
}

/* What is trained on shows whether anything has the key. */
static int check_key(const struct ct_data *data, bool whole)
{
    size_t streams = whole || !*config.command_key;

    for (size_t i = 0; i < data->count; i++)
        streams += data->sources[i].store.streams;
    return streams ? 0
                   : ct_fail(CT_ECONFIG, "[text] command_key: path names regular files, whose "
                                         "tokens are found by their names and times");
}

static int text_open(const struct ct_data_request *request, struct ct_data **out)
{
    bool whole = request->validation && *config.validation_path;
    struct source_request sources = {
        .store = {.corpus = {.option = whole             ? "validation_path"
                                       : *config.command ? "command"
                                                         : "path",
                             .command = !whole && *config.command,
                             .stream_key = config.command_key,
                             .format = config.format,
                             .split = config.split,
                             .field = *config.field ? config.field : "text",
                             .skip = !strcmp(config.malformed, "skip"),
                             .spool = config.spool},
                  .tokenizer = request->tokenizer,
                  .cache = config.cache},
        .data = request,
        .validation_fraction = config.validation_fraction,
        .whole = whole,
        .repeat = config.repeat,
        .shuffle = config.shuffle,
        .document_mask = text_has_documents(),
        .packing = {.how = packing(),
                    .too_long = config.too_long,
                    .width = request->seq_len,
                    .window = config.packing_window}};
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
    data->vocabulary = config.format == CORPUS_IDS && request->vocabulary
                           ? request->vocabulary /* ids are not the tokenizer's */
                           : request->tokenizer->vocabulary();
    sources.store.corpus.any_bytes = takes_any_bytes(request->tokenizer);
    if (is_labelled())
        rc = open_chat(data, request->tokenizer, &sources.store.corpus);
    if (rc == 0)
        rc = open_sources(data, &sources);
    if (rc == 0)
        rc = check_key(data, whole);
    ct_chat_template_close((struct ct_chat_template *)(uintptr_t)data->chat.template);
    data->chat.template = NULL;
    if (rc < 0)
        text_close(data);
    else
        *out = data;
    return rc < 0 ? rc : 0;
}

static const char *text_chat(void)
{
    return has_messages() ? format_name() : NULL;
}

static int64_t text_vocabulary(struct ct_data *data)
{
    return data->vocabulary;
}

/* Of all documents: those that are trained on and those that are held out depend on each other. */
static uint64_t text_identity(const struct ct_data *data, int64_t *documents, int64_t *tokens)
{
    uint64_t hash = 0;

    *documents = *tokens = 0;
    for (size_t i = 0; i < data->count; i++) {
        const struct store *s = &data->sources[i].store;

        hash = XXH3_64bits_withSeed(&s->hash, sizeof(s->hash), hash);
        *documents += s->count;
        *tokens += s->start[s->count];
    }
    return hash;
}

static const struct ct_data_ops ops = {.size = sizeof(struct ct_data_ops),
                                       .tokenizes = true,
                                       .open = text_open,
                                       .close = text_close,
                                       .read = text_read,
                                       .has_documents = text_has_documents,
                                       .vocabulary = text_vocabulary,
                                       .identity = text_identity,
                                       .chat = text_chat,
                                       .samples = text_samples};

CT_PLUGIN(.name = "text", .version = "1.0",
          .summary = "Data: text and JSON lines, tokenised, packed, shuffled and mixed",
          .needs = CT_NAMES("tokenizer:*"), .options = options, .config = &config,
          .config_size = sizeof(config), .offers = CT_OFFERS({CT_DATA, "text", &ops}));
