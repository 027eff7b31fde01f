#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/log.h>

#include "source.h"

#define IGNORED (-100)
#define WINDOWS (UINT64_C(1) << 63) /* separates their random numbers from the documents' */
#define HELD_OUT_SEED 0x68656c64u   /* makes the held-out part the same in every run */

/* ---- tokens ---- */

static int32_t token_at(const struct source *data, int64_t index)
{
    return data->width == 2 ? ((const uint16_t *)data->tokens)[index]
                            : ((const int32_t *)data->tokens)[index];
}

static bool is_trained(const struct source *data, int64_t index)
{
    return !data->trained || data->trained[index];
}

static void put_token(struct source *data, int64_t index, int32_t token)
{
    if (data->width == 2)
        ((uint16_t *)data->tokens)[index] = (uint16_t)token;
    else
        ((int32_t *)data->tokens)[index] = token;
}

static int reserve_tokens(struct source *data, size_t need)
{
    size_t room = data->room ? data->room : 4096;
    void *tokens, *trained = data->trained;

    if (need <= data->room)
        return 0;
    while (room < need)
        room *= 2;
    tokens = realloc(data->tokens, room * (size_t)data->width);
    if (tokens)
        data->tokens = tokens;
    if (trained)
        trained = realloc(trained, room);
    if (!tokens || (data->trained && !trained))
        return ct_fail(CT_ENOMEM, "%zu tokens of text", room);
    data->trained = trained;
    data->room = room;
    return 0;
}

static int append(struct source *data, const int32_t *tokens, int64_t count, bool trained)
{
    int64_t at = data->start[data->count + 1];
    int rc = reserve_tokens(data, (size_t)(at + count));

    if (rc < 0)
        return rc;
    for (int64_t i = 0; i < count; i++)
        put_token(data, at + i, tokens[i]);
    if (data->trained)
        memset(data->trained + at, trained, (size_t)count);
    data->start[data->count + 1] = at + count;
    return 0;
}

/* Tokens of a part, before they are appended. */
struct scratch {
    int32_t *tokens;
    size_t room;
};

static int encode_part(struct source *data, const struct ct_tokenizer_ops *tokenizer,
                       const char *text, size_t size, bool trained, struct scratch *s)
{
    int64_t count;

    while ((count = tokenizer->encode(text, size, s->tokens, s->room)) > (int64_t)s->room) {
        free(s->tokens);
        s->room = (size_t)count + (size_t)count / 2;
        s->tokens = malloc(s->room * sizeof(*s->tokens));
        if (!s->tokens) {
            s->room = 0;
            return ct_fail(CT_ENOMEM, "a document of %lld tokens", (long long)count);
        }
    }
    return count < 0 ? (int)count : append(data, s->tokens, count, trained);
}

/* One with parts brings the tokens that end it. */
static int encode_document(struct source *data, const struct ct_tokenizer_ops *tokenizer,
                           const struct document *document, struct scratch *scratch)
{
    int32_t bos = tokenizer->bos(), eos = tokenizer->eos();
    size_t begin = 0;
    int rc = 0;

    data->start[data->count + 1] = data->start[data->count];
    if (bos >= 0)
        rc = append(data, &bos, 1, !document->ends);
    for (size_t i = 0; rc == 0 && i < document->parts; i++) {
        rc = encode_part(data, tokenizer, document->text + begin, document->ends[i] - begin, i % 2,
                         scratch);
        begin = document->ends[i];
    }
    if (rc == 0 && !document->ends)
        rc = encode_part(data, tokenizer, document->text, document->size, true, scratch);
    if (rc == 0 && !document->ends && eos >= 0)
        rc = append(data, &eos, 1, true);
    data->count += rc == 0;
    return rc;
}

/* Number of held-out documents among count. */
static int64_t held_out(double fraction, size_t count)
{
    int64_t wanted = llround(fraction * (double)count);

    if (fraction == 0 || count < 2)
        return 0;
    return wanted < 1 ? 1 : wanted >= (int64_t)count ? (int64_t)count - 1 : wanted;
}

static int encode_all(struct source *data, const struct source_request *request,
                      const struct corpus *corpus)
{
    struct permutation parts = permutation_make(corpus->count, HELD_OUT_SEED, 0);
    uint64_t held = (uint64_t)held_out(request->validation_fraction, corpus->count);
    struct scratch scratch = {0};
    int rc = 0;

    if (request->data->validation && !held)
        return ct_fail(CT_ECONFIG, "no documents to validate on: %s",
                       request->validation_fraction == 0
                           ? "set [text] validation_fraction"
                           : "there is only one document; set [text] split to paragraph or line");
    data->start = calloc(corpus->count + 1, sizeof(*data->start));
    data->order = calloc(corpus->count, sizeof(*data->order));
    data->begin = calloc(corpus->count + 1, sizeof(*data->begin));
    data->trained = request->corpus.format == CORPUS_CHAT ? malloc(1) : NULL;
    if (!data->start || !data->order || !data->begin ||
        (request->corpus.format == CORPUS_CHAT && !data->trained))
        return ct_fail(CT_ENOMEM, "%zu documents", corpus->count);
    for (size_t i = 0; rc == 0 && i < corpus->count; i++)
        if ((permutation_at(&parts, i) < held) == request->data->validation)
            rc = encode_document(data, request->data->tokenizer, &corpus->documents[i], &scratch);
    free(scratch.tokens);
    return rc;
}

/* ---- epochs ---- */

static void arrange(struct source *data, int64_t epoch)
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
static int64_t document_at(const struct source *data, int64_t position)
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

int source_read(struct source *data, int64_t index, int32_t *tokens, int32_t *labels,
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
        int64_t at;
        int32_t token;

        while (first + i >= data->begin[document + 1])
            document++;
        at = data->start[data->order[document]] + first + i - data->begin[document];
        token = token_at(data, at);
        if (i < data->seq_len) {
            tokens[i] = token;
            if (documents)
                documents[i] = (int32_t)document;
        }
        if (i > 0)
            labels[i - 1] = (data->document_mask && document != previous) || !is_trained(data, at)
                                ? IGNORED
                                : token;
    }
    return 0;
}

/* ---- the whole ---- */

void source_close(struct source *data)
{
    free(data->tokens);
    free(data->trained);
    free(data->start);
    free(data->order);
    free(data->begin);
    *data = (struct source){0};
}

static int load(struct source *data, const struct source_request *request, const char *paths)
{
    bool validation = request->data->validation;
    struct corpus corpus;
    int64_t total;
    int rc = corpus_open(&corpus, &request->corpus, paths);

    if (rc < 0)
        return ct_context(rc, "[text] path");
    rc = encode_all(data, request, &corpus);
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
            (long long)total, (long long)data->count, validation ? " held out for validation" : "",
            (long long)data->seq_len);
    else
        ct_info("text: %zu files, %lld documents%s, %lld tokens, %lld samples an epoch",
                corpus.file_count, (long long)data->count,
                validation ? " held out for validation" : "", (long long)total,
                (long long)data->samples);
    corpus_close(&corpus);
    return rc;
}

int source_open(struct source *data, const struct source_request *request, const char *paths)
{
    bool validation = request->data->validation;
    int rc;

    *data = (struct source){.seq_len = request->data->seq_len,
                            .seed = request->data->seed,
                            .repeat = request->repeat && !validation,
                            .shuffle = request->shuffle && !validation,
                            .document_mask = request->document_mask};
    data->width = request->data->tokenizer->vocabulary() <= UINT16_MAX + 1 ? 2 : 4;
    rc = load(data, request, paths);
    if (rc < 0) {
        source_close(data);
        return rc;
    }
    arrange(data, 0);
    return 0;
}
