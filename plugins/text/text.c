/*
 * Text as training data: one source, or several mixed by weights.
 */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/plugin.h>
#include <ctitan/option_use.h>

#include "text.h"

struct text_config text_config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct text_config, path, "path", "",
                  "Text files, folders, patterns such as books/*.txt, and pipes, separated by "
                  "commas; -: standard input; gzip and zstd are unpacked"),
    CT_OPT_STRING(struct text_config, command, "command", "",
                  "In the place of path: a command for sh, whose output is read, once; its tokens "
                  "are found again by its text"),
    CT_OPT_STRING(struct text_config, command_key, "command_key", "",
                  "Name of what a command or a pipe gives, under which its tokens are found again; "
                  "another name reads it again"),
    CT_OPT_STRING(struct text_config, weights, "weights", "",
                  "Weights of the items of path, comma-separated: their shares of the samples; "
                  "empty: all items are one corpus"),
    CT_OPT_ENUM(struct text_config, format, "format", "auto",
                "auto|text|jsonl|chat|sharegpt|prompt|alpaca|ids",
                "auto: .jsonl, .ndjson and .json files hold a JSON object on each line, others "
                "text; chat, sharegpt, prompt, alpaca, ids: the objects hold conversations and "
                "the like, of which only answers are trained on"),
    CT_OPT_STRING(struct text_config, fields, "fields", "",
                  "Other names of the objects' fields, such as content=text, role=speaker"),
    CT_OPT_ENUM(struct text_config, train_on, "train_on", "assistant", "assistant|last|all|field",
                "What of a conversation is trained on: the assistant's messages, the last of "
                "them, everything, or those of its messages whose field \"train\" is true"),
    CT_OPT_BOOL(struct text_config, label_weights, "label_weights", "false",
                "Read weights: \"weight\" of messages, \"weights\" beside ids; the objective "
                "weighted takes them"),
    CT_OPT_BOOL(struct text_config, per_sequence, "per_sequence", "false",
                "The labels of a document in a row weigh one together, whatever their number; the "
                "objective weighted takes their weights"),
    CT_OPT_STRING(struct text_config, date, "date", "",
                  "Date that chat templates write, as YYYY-MM-DD; empty: they are told none"),
    CT_OPT_STRING(struct text_config, field, "field", "",
                  "The field of JSON lines; empty: text, or messages for chat"),
    CT_OPT_ENUM(struct text_config, template, "template", "auto", "auto|folder|chatml|llama3",
                "How conversations are written: by the chat template of the folder [model] "
                "init_from, or in one of these formats; auto: folder if that has one, else "
                "chatml"),
    CT_OPT_BOOL(struct text_config, any_template, "any_template", "false",
                "Allow another template than that of the folder [model] init_from"),
    CT_OPT_ENUM(
        struct text_config, malformed, "malformed", "stop", "stop|skip",
        "What to do about a malformed line: stop the run, or skip it and report the number"),
    CT_OPT_STRING(struct text_config, cache, "cache", "",
                  "Folder that keeps tokens for all ranks and later runs; empty: ctitan/tokens in "
                  "$XDG_CACHE_HOME or ~/.cache; none: each rank makes its own, in spool_folder"),
    CT_OPT_STRING(struct text_config, spool, "spool_folder", "/var/tmp",
                  "Folder for files without a name: unpacked text, and tokens that are not kept"),
    CT_OPT_ENUM(struct text_config, split, "split", "document", "document|paragraph|line",
                "What counts as a document in text files: each file (document), paragraph or line"),
    CT_OPT_BOOL(struct text_config, repeat, "repeat", "true",
                "At the end of the data, begin the next epoch instead of ending the run"),
    CT_OPT_BOOL(struct text_config, shuffle, "shuffle", "true",
                "Shuffle documents and samples in each epoch, by [training] seed"),
    CT_OPT_FLOAT(struct text_config, validation_fraction, "validation_fraction", "0", 0, 0.9,
                 "Fraction of the documents that is held out for validation"),
    CT_OPT_STRING(struct text_config, validation_path, "validation_path", "",
                  "Files for validation, named as in path, instead of a fraction of path's "
                  "documents; with weights, too, they are one corpus"),
    CT_OPT_ENUM(struct text_config, packing, "packing", "auto",
                "auto|concat|first_fit|first_fit_decreasing",
                "concat: join documents, and split them at every seq_len; first_fit: put whole "
                "documents into rows, each into the first with room for it, in their order or the "
                "longest first; auto: first_fit for conversations, else concat"),
    CT_OPT_INT(struct text_config, packing_window, "packing_window", "65536", 1, INT32_MAX,
               "Documents that are packed into rows together"),
    CT_OPT_ENUM(struct text_config, too_long, "too_long", "cut", "cut|split|drop",
                "What becomes of a document that is longer than a row: its end is cut off, it is "
                "split, or it is dropped"),
    CT_OPT_ENUM(struct text_config, document_mask, "document_mask", "auto", "auto|false|true",
                "Keep tokens from attending to, or predicting, another document's tokens; auto: "
                "where documents are packed whole"),
    CT_OPT_BOOL(struct text_config, balance, "balance", "true",
                "Give the samples of a step to ranks and microbatches so that attention within "
                "their documents is equal work, not in their order"),
    {0},
};

enum { AUTO, NO, YES };            /* document_mask */
enum { PACK_AUTO, PACK_EXPLICIT }; /* packing: those of packing.h follow auto */

/* Whether only a part of the tokens is trained on. */
bool text_is_labelled(void)
{
    return text_config.format >= CORPUS_CHAT;
}

enum packing_how text_packing(void)
{
    if (text_config.packing == PACK_AUTO)
        return text_is_labelled() ? PACKING_FIRST_FIT : PACKING_CONCAT;
    return text_config.packing - PACK_EXPLICIT;
}

int text_check_use(void)
{
    unsigned format = text_config.format;
    bool messages = text_has_messages() || format == CORPUS_PROMPT;
    bool lines = format == CORPUS_AUTO || format == CORPUS_JSONL;
    const struct ct_option_use uses[] = {
        {"train_on", messages, "set format = chat, sharegpt, prompt or alpaca"},
        {"template", messages, "set format = chat, sharegpt, prompt or alpaca"},
        {"any_template", messages, "set format = chat, sharegpt, prompt or alpaca"},
        {"date", messages, "set format = chat, sharegpt, prompt or alpaca"},
        {"date", text_runs_template(), "only the chat template of a folder writes it"},
        {"fields", text_is_labelled(), "set the format of the objects, as format = chat"},
        {"field", lines || format == CORPUS_CHAT || format == CORPUS_SHAREGPT,
         format == CORPUS_TEXT ? "set format = jsonl, chat or sharegpt"
                               : "fields names those of this format"},
        {"malformed", format != CORPUS_TEXT, "text has no lines that could be malformed"},
        {"split", format == CORPUS_AUTO || format == CORPUS_TEXT,
         "an object of this format is a document"},
        {"packing_window", text_packing() != PACKING_CONCAT, "set packing = first_fit"},
        {"too_long", text_packing() != PACKING_CONCAT, "set packing = first_fit"},
        {0}};

    return ct_options_check_use(options, &text_config, "text", uses);
}

static bool gives_weights(void)
{
    return text_config.label_weights || text_config.per_sequence;
}

bool text_has_documents(void)
{
    return text_config.document_mask == YES ||
           (text_config.document_mask == AUTO && text_packing() != PACKING_CONCAT);
}

static int list_streams(const struct ct_data_request *request, struct ct_arena *arena,
                        const struct ct_data_stream **streams)
{
    const size_t size = sizeof(struct ct_data_stream);
    const struct ct_data_stream list[] = {
        {size, "tokens", CT_I32, 1, {request->seq_len}, 0, "the tokens"},
        {size, "labels", CT_I32, 1, {request->seq_len}, 0, "the token that follows each"},
        {size, "documents", CT_I32, 1, {request->seq_len}, 0, "the document of each token"},
        {size, "weights", CT_F32, 1, {request->seq_len}, 0, "weight of each label"},
    };
    bool taken[] = {true, true, text_has_documents(), gives_weights()};
    struct ct_data_stream *s = ct_arena_array(arena, struct ct_data_stream, CT_COUNT(list) + 1);

    *streams = s;
    for (size_t i = 0; i < CT_COUNT(list); i++)
        if (taken[i])
            *s++ = list[i];
    return 0;
}

static int check_taken(const struct source_sample *s)
{
    return !gives_weights() || s->weights
               ? 0
               : ct_fail(CT_ECONFIG,
                         "[text] %s = true has no effect, as the objective takes no "
                         "weights: set [objective] name = weighted",
                         text_config.per_sequence ? "per_sequence" : "label_weights");
}

/* Labels are needed where tokens are not, and the other way round. */
static int text_read(struct ct_data *data, int64_t index, void *const *sample)
{
    bool documents = text_has_documents();
    struct source_sample s = {sample[0], sample[1], documents ? sample[2] : NULL,
                              gives_weights() ? sample[2 + documents] : NULL};
    size_t source;
    int rc = check_taken(&s);

    if (rc < 0 || index >= data->end)
        return rc < 0 ? rc : 1;
    s.tokens = s.tokens ? s.tokens : data->spare;
    s.labels = s.labels ? s.labels : data->spare + data->seq_len;
    source = data->count > 1 ? mixture_at(&data->mixture, index, &index) : 0;
    return source_read(&data->sources[source], index, &s);
}

/* Without documents, all samples make the same work. */
static int text_cost(struct ct_data *data, int64_t index, double *cost)
{
    size_t source = 0;

    if (!text_config.balance || !text_has_documents())
        return 1;
    if (data->count > 1)
        source = mixture_at(&data->mixture, index, &index);
    *cost = source_pairs(&data->sources[source], index);
    return 0;
}

void text_close(struct ct_data *data)
{
    if (!data)
        return;
    for (size_t i = 0; data->sources && i < data->count; i++)
        source_close(&data->sources[i]);
    free(data->sources);
    ct_arena_finish(&data->arena);
    free(data);
}

bool text_runs_template(void)
{
    if (text_config.template == TEMPLATE_AUTO)
        return ct_chat_has_template(ct_config.model.init_from);
    return text_config.template == TEMPLATE_FOLDER;
}

const char *text_format(void)
{
    if (text_runs_template())
        return NULL;
    return text_config.template == TEMPLATE_LLAMA3 ? "llama3" : "chatml";
}

bool text_has_messages(void)
{
    return text_is_labelled() && text_config.format != CORPUS_IDS &&
           text_config.format != CORPUS_PROMPT;
}

/* A mixture ends with its first source that does: later samples of others are not read. */
int64_t text_samples(const struct ct_data *data)
{
    int64_t samples[MIXTURE_SOURCES];

    if (data->count == 1)
        return data->sources[0].samples;
    for (size_t i = 0; i < data->count; i++) {
        const struct source *s = &data->sources[i];

        samples[i] = s->samples > s->passed ? s->samples - s->passed : 0;
    }
    return mixture_end(&data->mixture, samples);
}

static const char *text_chat(void)
{
    return text_has_messages() ? text_format() : NULL;
}

static int64_t text_vocabulary(struct ct_data *data)
{
    return data->vocabulary;
}

/* Identity of all documents, trained on and held out: these depend on each other. */
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

static bool has_validation(void)
{
    return *text_config.validation_path || text_config.validation_fraction > 0;
}

static const struct ct_data_ops ops = {.size = sizeof(struct ct_data_ops),
                                       .tokenizes = true,
                                       .open = text_open,
                                       .close = text_close,
                                       .streams = list_streams,
                                       .read_streams = text_read,
                                       .vocabulary = text_vocabulary,
                                       .identity = text_identity,
                                       .chat = text_chat,
                                       .samples = text_samples,
                                       .open_set = text_open_set,
                                       .has_validation = has_validation,
                                       .cost = text_cost};

CT_PLUGIN(.name = "text", .version = "1.0",
          .summary = "Data: text and JSON lines, tokenised, packed, shuffled and mixed",
          .needs = CT_NAMES("tokenizer:*"), .options = options, .config = &text_config,
          .config_size = sizeof(text_config), .offers = CT_OFFERS({CT_DATA, "text", &ops}));
