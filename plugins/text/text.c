/*
 * Text files as training data.
 *
 * When the data is opened, all documents of the run's part (trained or held out) are tokenised
 * once, into one array of the narrowest type that holds the vocabulary. An epoch is an order of the
 * documents. Their concatenated tokens are split into windows of seq_len + 1 that overlap by one
 * token. Every epoch has the same number of windows, so a sample's index determines its epoch and
 * its window. The order of the current epoch and the sums of its documents' lengths are cached.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>

#include "corpus.h"
#include "permutation.h"

#define IGNORED (-100)
#define WINDOWS (UINT64_C(1) << 63) /* separates their random numbers from the documents' */
#define HELD_OUT_SEED 0x68656c64u   /* makes the held-out part the same in every run */

static struct config {
    const char *path, *split;
    bool repeat, shuffle, document_mask;
    double validation_fraction;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, path, "path", NULL,
                  "Text files, folders and patterns such as books/*.txt, separated by commas"),
    CT_OPT_CHOICE(struct config, split, "split", "document", "document|paragraph|line",
                  "What is a document: each file (document), paragraph or line"),
    CT_OPT_BOOL(struct config, repeat, "repeat", "true",
                "Begin the next epoch at the end of the data, instead of ending the run"),
    CT_OPT_BOOL(struct config, shuffle, "shuffle", "true",
                "Put documents and samples into another order in each epoch, by [training] seed"),
    CT_OPT_FLOAT(struct config, validation_fraction, "validation_fraction", "0", 0, 0.9,
                 "Share of the documents that is never trained on, but validated on"),
    CT_OPT_BOOL(struct config, document_mask, "document_mask", "false",
                "Let no token attend to, or predict, another document's tokens"),
    {0},
};

static const struct {
    const char *name;
    enum corpus_split split;
} splits[] = {
    {"document", CORPUS_DOCUMENT}, {"paragraph", CORPUS_PARAGRAPH}, {"line", CORPUS_LINE}};

struct ct_data {
    int64_t seq_len, samples; /* samples per epoch */
    uint64_t seed;
    bool repeat, shuffle, document_mask;
    int64_t vocabulary;

    void *tokens; /* document d is tokens[start[d] .. start[d + 1]) */
    int width;    /* bytes per token: 2 or 4 */
    int64_t *start, count;
    size_t room;

    int64_t epoch, *order; /* order[i]: the epoch's i-th document */
    int64_t *begin;        /* begin[i]: tokens of the epoch before it; begin[count]: all */
    struct permutation windows;
};

static enum corpus_split parse_split(const char *name)
{
    for (size_t i = 0; i < CT_COUNT(splits); i++)
        if (!strcmp(splits[i].name, name))
            return splits[i].split;
    return CORPUS_DOCUMENT;
}

/* ---- tokens ---- */

static int32_t token_at(const struct ct_data *data, int64_t index)
{
    return data->width == 2 ? ((const uint16_t *)data->tokens)[index]
                            : ((const int32_t *)data->tokens)[index];
}

static void put_token(struct ct_data *data, int64_t index, int32_t token)
{
    if (data->width == 2)
        ((uint16_t *)data->tokens)[index] = (uint16_t)token;
    else
        ((int32_t *)data->tokens)[index] = token;
}

static int reserve_tokens(struct ct_data *data, size_t need)
{
    size_t room = data->room ? data->room : 4096;
    void *tokens;

    if (need <= data->room)
        return 0;
    while (room < need)
        room *= 2;
    tokens = realloc(data->tokens, room * (size_t)data->width);
    if (!tokens)
        return ct_fail(CT_ENOMEM, "%zu tokens of text", room);
    data->tokens = tokens;
    data->room = room;
    return 0;
}

/* Append a document with its begin and end tokens. */
static int append(struct ct_data *data, const struct ct_tokenizer_ops *tokenizer,
                  const int32_t *tokens, int64_t count)
{
    int32_t bos = tokenizer->bos(), eos = tokenizer->eos();
    int64_t at = data->start[data->count];
    int rc = reserve_tokens(data, (size_t)(at + count + 2));

    if (rc < 0)
        return rc;
    if (bos >= 0)
        put_token(data, at++, bos);
    for (int64_t i = 0; i < count; i++)
        put_token(data, at++, tokens[i]);
    if (eos >= 0)
        put_token(data, at++, eos);
    data->start[++data->count] = at;
    return 0;
}

static int encode_document(struct ct_data *data, const struct ct_tokenizer_ops *tokenizer,
                           const struct document *document)
{
    int64_t count = tokenizer->encode(document->text, document->size, NULL, 0);
    int32_t *tokens;
    int rc;

    if (count < 0)
        return (int)count;
    tokens = malloc((size_t)(count + 1) * sizeof(*tokens));
    if (!tokens)
        return ct_fail(CT_ENOMEM, "a document of %lld tokens", (long long)count);
    count = tokenizer->encode(document->text, document->size, tokens, (size_t)count);
    rc = count < 0 ? (int)count : append(data, tokenizer, tokens, count);
    free(tokens);
    return rc;
}

/* Number of held-out documents among count. */
static int64_t held_out(size_t count)
{
    int64_t wanted = llround(config.validation_fraction * (double)count);

    if (config.validation_fraction == 0 || count < 2)
        return 0;
    return wanted < 1 ? 1 : wanted >= (int64_t)count ? (int64_t)count - 1 : wanted;
}

static int encode_part(struct ct_data *data, const struct ct_data_request *request,
                       const struct corpus *corpus)
{
    struct permutation parts = permutation_make(corpus->count, HELD_OUT_SEED, 0);
    uint64_t held = (uint64_t)held_out(corpus->count);

    if (request->validation && !held)
        return ct_fail(CT_ECONFIG, "no documents to validate on: %s",
                       config.validation_fraction == 0
                           ? "set [text] validation_fraction"
                           : "there is only one; set [text] split to paragraph or line");
    data->start = calloc(corpus->count + 1, sizeof(*data->start));
    data->order = calloc(corpus->count, sizeof(*data->order));
    data->begin = calloc(corpus->count + 1, sizeof(*data->begin));
    if (!data->start || !data->order || !data->begin)
        return ct_fail(CT_ENOMEM, "%zu documents", corpus->count);
    for (size_t i = 0; i < corpus->count; i++)
        if ((permutation_at(&parts, i) < held) == request->validation) {
            int rc = encode_document(data, request->tokenizer, &corpus->documents[i]);

            if (rc < 0)
                return rc;
        }
    return 0;
}

/* ---- epochs ---- */

static void arrange(struct ct_data *data, int64_t epoch)
{
    struct permutation shuffled =
        permutation_make((uint64_t)data->count, data->seed, (uint64_t)epoch);
    int64_t at = 0;

    for (int64_t i = 0; i < data->count; i++) {
        int64_t d = data->shuffle ? (int64_t)permutation_at(&shuffled, (uint64_t)i) : i;

        data->order[i] = d;
        data->begin[i] = at;
        at += data->start[d + 1] - data->start[d];
    }
    data->begin[data->count] = at;
    data->windows =
        permutation_make((uint64_t)data->samples, data->seed, WINDOWS | (uint64_t)epoch);
    data->epoch = epoch;
}

/* The last document of the epoch that begins at or before a position. */
static int64_t document_at(const struct ct_data *data, int64_t position)
{
    int64_t low = 0, high = data->count - 1;

    while (low < high) {
        int64_t middle = (low + high + 1) / 2;

        if (data->begin[middle] <= position)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static int text_read(struct ct_data *data, int64_t index, int32_t *tokens, int32_t *labels,
                     int32_t *documents)
{
    int64_t epoch = index / data->samples, window = index % data->samples;
    int64_t first, document;

    if (epoch > 0 && !data->repeat)
        return 1;
    if (epoch != data->epoch)
        arrange(data, epoch);
    if (data->shuffle)
        window = (int64_t)permutation_at(&data->windows, (uint64_t)window);
    first = window * data->seq_len;
    document = document_at(data, first);
    for (int64_t i = 0; i <= data->seq_len; i++) {
        int64_t previous = document;
        int32_t token;

        while (first + i >= data->begin[document + 1])
            document++;
        token =
            token_at(data, data->start[data->order[document]] + first + i - data->begin[document]);
        if (i < data->seq_len) {
            tokens[i] = token;
            if (documents)
                documents[i] = (int32_t)document;
        }
        if (i > 0)
            labels[i - 1] = data->document_mask && document != previous ? IGNORED : token;
    }
    return 0;
}

/* ---- the source ---- */

static void text_close(struct ct_data *data)
{
    if (!data)
        return;
    free(data->tokens);
    free(data->start);
    free(data->order);
    free(data->begin);
    free(data);
}

static int load(struct ct_data *data, const struct ct_data_request *request)
{
    struct corpus corpus;
    int64_t total;
    int rc = corpus_open(&corpus, config.path, parse_split(config.split));

    if (rc < 0)
        return ct_context(rc, "[text] path");
    rc = encode_part(data, request, &corpus);
    if (rc < 0) {
        corpus_close(&corpus);
        return rc;
    }
    total = data->start[data->count];
    data->samples = (total - 1) / data->seq_len;
    if (total <= data->seq_len)
        rc = ct_fail(
            CT_ECONFIG,
            "[text] path: the %lld tokens of %lld documents%s are too few for one sample of "
            "%lld tokens and its last label",
            (long long)total, (long long)data->count,
            request->validation ? " held out for validation" : "", (long long)data->seq_len);
    else
        ct_info("text: %zu files, %lld documents%s, %lld tokens, %lld samples an epoch",
                corpus.file_count, (long long)data->count,
                request->validation ? " held out for validation" : "", (long long)total,
                (long long)data->samples);
    corpus_close(&corpus);
    return rc;
}

static int text_open(const struct ct_data_request *request, struct ct_data **out)
{
    struct ct_data *data;
    int rc;

    *out = NULL;
    if (!request->tokenizer)
        return ct_fail(CT_ECONFIG, "text needs a tokenizer: add bytes to [plugins] load");
    data = calloc(1, sizeof(*data));
    if (!data)
        return ct_fail(CT_ENOMEM, "text");
    data->seq_len = request->seq_len;
    data->seed = request->seed;
    data->repeat = config.repeat && !request->validation;
    data->shuffle = config.shuffle && !request->validation;
    data->document_mask = config.document_mask;
    data->vocabulary = request->tokenizer->vocabulary();
    data->width = data->vocabulary <= UINT16_MAX + 1 ? 2 : 4;
    rc = load(data, request);
    if (rc < 0) {
        text_close(data);
        return rc;
    }
    arrange(data, 0);
    *out = data;
    return 0;
}

static bool text_has_documents(void)
{
    return config.document_mask;
}

static int64_t text_vocabulary(struct ct_data *data)
{
    return data->vocabulary;
}

static const struct ct_data_ops ops = {.size = sizeof(struct ct_data_ops),
                                       .open = text_open,
                                       .close = text_close,
                                       .read = text_read,
                                       .has_documents = text_has_documents,
                                       .vocabulary = text_vocabulary};

CT_PLUGIN(.name = "text", .version = "1.0",
          .summary = "Data: text files, tokenised, packed and shuffled",
          .needs = CT_NAMES("tokenizer:*"), .options = options, .config = &config,
          .config_size = sizeof(config), .offers = CT_OFFERS({CT_DATA, "text", &ops}));
