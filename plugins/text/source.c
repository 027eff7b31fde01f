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
    return data->width == 2 ? ((const uint16_t *)data->tokens.data)[index]
                            : ((const int32_t *)data->tokens.data)[index];
}

/* Everything that is needed while documents are tokenised. */
struct encoding {
    struct source *data;
    const struct source_request *request;
    struct permutation parts; /* of the documents, if some are held out */
    uint64_t held, seen;
    int32_t *tokens; /* of a part, before they are appended */
    size_t room;
};

static int append(struct source *data, const int32_t *tokens, int64_t count, bool trained)
{
    uint16_t narrow[1024];
    int32_t wide[1024];
    int rc = 0;

    for (int64_t i = 0, n; rc == 0 && i < count; i += n) {
        n = count - i < 1024 ? count - i : 1024;
        for (int64_t k = 0; k < n; k++) {
            narrow[k] = (uint16_t)tokens[i + k];
            wide[k] = trained ? tokens[i + k] : ~tokens[i + k];
        }
        rc = data->width == 2 ? spool_write(&data->tokens, narrow, (size_t)n * sizeof(*narrow))
                              : spool_write(&data->tokens, wide, (size_t)n * sizeof(*wide));
    }
    data->start[data->count + 1] += count;
    return rc;
}

/* A token has about four bytes of most texts, so that the first guess is seldom too small. */
static int reserve(struct encoding *e, size_t count)
{
    if (count <= e->room)
        return 0;
    free(e->tokens);
    e->room = count;
    e->tokens = malloc(count * sizeof(*e->tokens));
    if (e->tokens)
        return 0;
    e->room = 0;
    return ct_fail(CT_ENOMEM, "a document of %zu tokens", count);
}

static int encode_part(struct encoding *e, const char *text, size_t size, bool trained)
{
    const struct ct_tokenizer_ops *tokenizer = e->request->data->tokenizer;
    int64_t count = 0;
    int rc = reserve(e, size / 3 + 64);

    while (rc == 0 &&
           (count = tokenizer->encode(text, size, e->tokens, e->room)) > (int64_t)e->room)
        rc = reserve(e, (size_t)count);
    if (rc == 0 && count < 0)
        rc = (int)count;
    return rc < 0 ? rc : append(e->data, e->tokens, count, trained);
}

/* One with parts brings the tokens that end it. */
static int encode_document(struct encoding *e, const struct document *document)
{
    const struct ct_tokenizer_ops *tokenizer = e->request->data->tokenizer;
    int32_t bos = tokenizer->bos(), eos = tokenizer->eos();
    size_t begin = 0;
    int rc = 0;

    if (bos >= 0)
        rc = append(e->data, &bos, 1, !document->ends);
    for (size_t i = 0; rc == 0 && i < document->parts; i++) {
        rc = encode_part(e, document->text + begin, document->ends[i] - begin, i % 2);
        begin = document->ends[i];
    }
    if (rc == 0 && !document->ends)
        rc = encode_part(e, document->text, document->size, true);
    if (rc == 0 && !document->ends && eos >= 0)
        rc = append(e->data, &eos, 1, true);
    return rc;
}

static int begin_document(struct source *data)
{
    int64_t *start = data->start, room = data->room ? 2 * data->room : 1024;

    if (data->count + 1 >= data->room) {
        start = realloc(start, (size_t)room * sizeof(*start));
        if (!start)
            return ct_fail(CT_ENOMEM, "%lld documents", (long long)room);
        if (!data->room)
            start[0] = 0;
        data->start = start;
        data->room = room;
    }
    start[data->count + 1] = start[data->count];
    return 0;
}

static int take(void *context, const struct document *document)
{
    struct encoding *e = context;
    bool held = e->held && permutation_at(&e->parts, e->seen) < e->held;
    int rc;

    e->seen++;
    if (held != e->request->data->validation)
        return 0;
    rc = begin_document(e->data);
    if (rc == 0)
        rc = encode_document(e, document);
    e->data->count += rc == 0;
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
                      struct corpus *corpus)
{
    struct encoding e = {.data = data, .request = request};
    int rc = spool_open(&data->tokens, request->corpus.spool);

    if (rc == 0 && request->validation_fraction > 0) {
        rc = ct_context(corpus_read(corpus, NULL, NULL), "[text] path");
        e.parts = permutation_make(corpus->count, HELD_OUT_SEED, 0);
        e.held = (uint64_t)held_out(request->validation_fraction, corpus->count);
    }
    if (rc == 0 && request->data->validation && !e.held)
        rc = ct_fail(CT_ECONFIG, "no documents to validate on: %s",
                     request->validation_fraction == 0
                         ? "set [text] validation_fraction"
                         : "there is only one document; set [text] split to paragraph or line");
    if (rc == 0)
        rc = ct_context(corpus_read(corpus, take, &e), "[text] path");
    free(e.tokens);
    if (rc == 0)
        rc = spool_map(&data->tokens);
    data->order = calloc((size_t)data->count + 1, sizeof(*data->order));
    data->begin = calloc((size_t)data->count + 1, sizeof(*data->begin));
    return rc == 0 && (!data->order || !data->begin)
               ? ct_fail(CT_ENOMEM, "%lld documents", (long long)data->count)
               : rc;
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
        bool trained;

        while (first + i >= data->begin[document + 1])
            document++;
        at = data->start[data->order[document]] + first + i - data->begin[document];
        token = token_at(data, at);
        trained = token >= 0;
        token = trained ? token : ~token;
        if (i < data->seq_len) {
            tokens[i] = token;
            if (documents)
                documents[i] = (int32_t)document;
        }
        if (i > 0)
            labels[i - 1] =
                (data->document_mask && document != previous) || !trained ? IGNORED : token;
    }
    return 0;
}

/* ---- the whole ---- */

void source_close(struct source *data)
{
    spool_close(&data->tokens);
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
    total = data->start ? data->start[data->count] : 0;
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
    data->width =
        !request->corpus.chat && request->data->tokenizer->vocabulary() <= UINT16_MAX + 1 ? 2 : 4;
    rc = load(data, request, paths);
    if (rc < 0) {
        source_close(data);
        return rc;
    }
    arrange(data, 0);
    return 0;
}
