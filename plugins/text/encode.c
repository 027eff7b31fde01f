#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/model.h>

#include "encode.h"

#define REPORT_SECONDS 10

struct encoder {
    FILE *out;
    const struct ct_tokenizer_ops *tokenizer;
    bool no_bos; /* before conversations */
    struct encoded header;
    XXH3_state_t *hash;  /* for the header */
    XXH3_state_t *block; /* of the block that is being written */
    size_t filled;       /* its bytes */
    uint64_t *sums;      /* of the blocks before it */
    size_t blocks, sum_room;
    int64_t *start; /* of each document, and the end of the last */
    size_t start_room;
    int32_t *tokens; /* of a document, before they are written */
    struct ct_text_span *spans;
    size_t room;
    double began, reported; /* seconds */
    size_t bytes;           /* of text */
};

static int put(struct encoder *e, const void *data, size_t size)
{
    return !size || fwrite(data, 1, size, e->out) == size ? 0
                                                          : ct_fail(CT_EIO, "%s", strerror(errno));
}

static int end_block(struct encoder *e)
{
    size_t room = 2 * e->sum_room + 1024;
    uint64_t *sums = e->sums;

    if (e->blocks == e->sum_room) {
        sums = realloc(sums, room * sizeof(*sums));
        if (!sums)
            return ct_fail(CT_ENOMEM, "checksums of %zu blocks", room);
        e->sums = sums;
        e->sum_room = room;
    }
    sums[e->blocks++] = XXH3_64bits_digest(e->block);
    XXH3_64bits_reset(e->block);
    e->filled = 0;
    return 0;
}

/* Writes to the part of the file that is checked block by block. */
static int put_checked(struct encoder *e, const void *data, size_t size)
{
    int rc = put(e, data, size);

    XXH3_64bits_update(e->hash, data, size);
    for (const char *at = data, *end = at + size; rc == 0 && at < end;) {
        size_t left = (size_t)(end - at), room = ENCODED_BLOCK - e->filled;
        size_t n = left < room ? left : room;

        XXH3_64bits_update(e->block, at, n);
        e->filled += n;
        at += n;
        if (e->filled == ENCODED_BLOCK)
            rc = end_block(e);
    }
    return rc;
}

/* weight: of labels; 0: they are none. */
static int put_tokens(struct encoder *e, const int32_t *tokens, int64_t count, float weight)
{
    struct encoded_label weighed[1024];
    uint16_t narrow[1024];
    int32_t wide[1024];
    int rc = 0;

    for (int64_t i = 0, n; rc == 0 && i < count; i += n) {
        n = count - i < 1024 ? count - i : 1024;
        for (int64_t k = 0; k < n; k++) {
            narrow[k] = (uint16_t)tokens[i + k];
            wide[k] = weight > 0 ? tokens[i + k] : ~tokens[i + k];
            weighed[k] = (struct encoded_label){wide[k], weight};
        }
        rc = put_checked(e,
                         e->header.width == 2   ? (const void *)narrow
                         : e->header.width == 4 ? (const void *)wide
                                                : (const void *)weighed,
                         (size_t)(n * e->header.width));
    }
    e->header.tokens += count;
    return rc;
}

/* A token has about four bytes of most texts, so that the first guess is seldom too small. */
static int reserve(struct encoder *e, size_t count)
{
    if (count <= e->room)
        return 0;
    free(e->tokens);
    free(e->spans);
    e->room = count;
    e->tokens = malloc(count * sizeof(*e->tokens));
    e->spans = malloc(count * sizeof(*e->spans));
    if (e->tokens && e->spans)
        return 0;
    e->room = 0;
    return ct_fail(CT_ENOMEM, "a document of %zu tokens", count);
}

static float weight_at(const struct document *d, size_t i)
{
    return d->weights ? d->weights[i] : 1;
}

/* Tokens of e->tokens; those that hold a byte of an answer are trained on. */
static int put_parts(struct encoder *e, const struct document *d, int64_t count)
{
    int64_t from = 0;
    size_t part = 0;
    float weight = 0;
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < count; i++) {
        const struct ct_text_span *s = &e->spans[i];
        float own = 0;

        while (part < d->parts && s->begin >= d->ends[part])
            part++;
        if (part % 2)
            own = weight_at(d, part);
        else if (part + 1 < d->parts && s->end > d->ends[part])
            own = weight_at(d, part + 1);
        if (own != weight) {
            rc = put_tokens(e, e->tokens + from, i - from, weight);
            from = i;
            weight = own;
        }
    }
    return rc < 0 ? rc : put_tokens(e, e->tokens + from, count - from, weight);
}

static int64_t encode_text(struct encoder *e, const struct document *d)
{
    return d->ends ? e->tokenizer->encode_spans(d->text, d->size, e->tokens, e->spans, e->room)
                   : e->tokenizer->encode(d->text, d->size, e->tokens, e->room);
}

static float label_weight(const struct document *d, int64_t i)
{
    return d->ids[i] >= 0 ? weight_at(d, (size_t)i) : 0;
}

static int put_ids(struct encoder *e, const struct document *d)
{
    int64_t count = (int64_t)d->size;
    int rc = 0;

    for (int64_t from = 0, to; rc == 0 && from < count; from = to) {
        float weight = label_weight(d, from);

        if (reserve(e, d->size) < 0)
            return CT_ENOMEM;
        for (to = from; to < count && label_weight(d, to) == weight; to++)
            e->tokens[to - from] = d->ids[to] >= 0 ? d->ids[to] : ~d->ids[to];
        rc = put_tokens(e, e->tokens, to - from, weight);
    }
    return rc;
}

static int encode_all(struct encoder *e, const struct document *d)
{
    int64_t count = 0;
    int rc = reserve(e, d->size / 3 + 64);

    while (rc == 0 && (count = encode_text(e, d)) > (int64_t)e->room)
        rc = reserve(e, (size_t)count);
    if (rc == 0 && count < 0)
        rc = (int)count;
    if (rc < 0)
        return rc;
    return d->ends ? put_parts(e, d, count) : put_tokens(e, e->tokens, count, 1);
}

/* A conversation brings the tokens that end it, and may bring the one that begins it. */
static int encode_document(struct encoder *e, const struct document *document)
{
    bool conversation = document->ends && !document->closed;
    int32_t bos = e->tokenizer->bos(), eos = e->tokenizer->eos();
    int rc = 0;

    if (document->ids)
        return put_ids(e, document);
    if (bos >= 0 && !(conversation && e->no_bos))
        rc = put_tokens(e, &bos, 1, document->ends ? 0 : 1);
    if (rc == 0)
        rc = encode_all(e, document);
    if (rc == 0 && !conversation && eos >= 0)
        rc = put_tokens(e, &eos, 1, 1);
    return rc;
}

static int begin_document(struct encoder *e)
{
    size_t count = (size_t)e->header.documents, room = 2 * e->start_room + 1024;
    int64_t *start = e->start;

    if (count + 2 > e->start_room) {
        start = realloc(start, room * sizeof(*start));
        if (!start)
            return ct_fail(CT_ENOMEM, "%zu documents", room);
        e->start = start;
        e->start_room = room;
    }
    start[count] = e->header.tokens;
    return 0;
}

static void report(struct encoder *e)
{
    double now = ct_now();

    if (now - e->reported < REPORT_SECONDS)
        return;
    e->reported = now;
    ct_info("text: tokenised %lld document%s (%.2f GB, %.1f MB/s) so far",
            (long long)e->header.documents, ct_plural(e->header.documents), 1e-9 * (double)e->bytes,
            1e-6 * (double)e->bytes / (now - e->began));
}

static int take(void *context, const struct document *document)
{
    struct encoder *e = context;
    int rc = begin_document(e);

    if (rc == 0)
        rc = encode_document(e, document);
    if (rc < 0)
        return rc;
    e->start[++e->header.documents] = e->header.tokens;
    e->bytes += document->size;
    report(e);
    return 0;
}

/* The checksums of the blocks follow the documents. */
static int put_index(struct encoder *e)
{
    size_t starts = ((size_t)e->header.documents + 1) * sizeof(*e->start);
    size_t sums = e->blocks * sizeof(*e->sums);
    int rc = put(e, e->start, starts);

    XXH3_64bits_update(e->hash, e->start, starts);
    e->header.hash = XXH3_64bits_digest(e->hash);
    XXH3_64bits_update(e->block, e->start, starts);
    XXH3_64bits_update(e->block, e->sums, sums);
    e->header.index = XXH3_64bits_digest(e->block);
    e->header.check = XXH3_64bits(&e->header, offsetof(struct encoded, check));
    return rc == 0 ? put(e, e->sums, sums) : rc;
}

/* The header is written last, where zeros were. */
static int finish(struct encoder *e)
{
    static const char zeros[8];
    size_t tokens = (size_t)e->header.tokens * (size_t)e->header.width;
    int rc = put_checked(e, zeros, encoded_bytes(&e->header) - tokens);

    if (rc == 0 && e->filled)
        rc = end_block(e);
    if (rc == 0)
        rc = put_index(e);
    if (rc == 0 && fseeko(e->out, 0, SEEK_SET) < 0)
        rc = ct_fail(CT_EIO, "%s", strerror(errno));
    if (rc == 0)
        rc = put(e, &e->header, sizeof(e->header));
    return rc == 0 && fflush(e->out) ? ct_fail(CT_EIO, "%s", strerror(errno)) : rc;
}

int encode(FILE *out, int width, const struct ct_tokenizer_ops *tokenizer, struct corpus *corpus)
{
    struct encoder e = {.out = out,
                        .tokenizer = tokenizer,
                        .no_bos = corpus->request->no_bos,
                        .hash = XXH3_createState(),
                        .block = XXH3_createState(),
                        .began = ct_now()};
    int rc;

    if (!e.hash || !e.block) {
        XXH3_freeState(e.hash);
        XXH3_freeState(e.block);
        return ct_fail(CT_ENOMEM, "a hash");
    }
    XXH3_64bits_reset(e.hash);
    XXH3_64bits_reset(e.block);
    rc = put(&e, &e.header, sizeof(e.header));
    e.reported = e.began;
    memcpy(e.header.magic, ENCODED_MAGIC, sizeof(e.header.magic));
    e.header.width = width;
    if (rc == 0)
        rc = ct_context(corpus_read(corpus, take, &e), "%s", corpus->request->option);
    e.header.malformed = (int64_t)corpus->malformed;
    e.header.broken = (int64_t)corpus->broken;
    if (rc == 0)
        rc = finish(&e);
    free(e.tokens);
    free(e.spans);
    free(e.start);
    free(e.sums);
    XXH3_freeState(e.hash);
    XXH3_freeState(e.block);
    return rc;
}
