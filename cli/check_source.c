/*
 * `ctitan check`: the contract of data sources, without a run.
 */
#include <stdint.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/model.h>

#include "check.h"

#define SAMPLES 24
#define NEAR 1024                   /* samples before the end, and after it, that are read */
#define FARTHEST ((int64_t)1 << 40) /* where the end is sought */
#define MOST_STREAMS 64
#define GUARD 16       /* bytes behind a stream's */
#define UNTOUCHED 0x80 /* as an int32, none of them is a token */

/* A source and what its samples are made of. */
struct source {
    const struct ct_data_ops *ops;
    const struct ct_data_stream *streams; /* ended by {0} */
    int count;
    size_t *bytes;                                            /* by stream */
    const struct ct_data_stream *tokens, *labels, *documents; /* int32 [seq_len]; NULL: none */
};

struct sample {
    int end;             /* what `read` returned */
    unsigned char **row; /* by stream */
};

/* The stream of that name, if it is one of text. */
static const struct ct_data_stream *find_text(const struct source *s, const char *name)
{
    for (const struct ct_data_stream *t = s->streams; t->name; t++)
        if (!strcmp(t->name, name) && t->dtype == CT_I32 && t->ndim == 1 &&
            t->shape[0] == CHECK_TOKENS)
            return t;
    return NULL;
}

static int find_streams(struct source *s, const struct ct_data_request *request,
                        struct ct_arena *arena)
{
    int rc = ct_data_streams(s->ops, request, arena, &s->streams);

    if (rc < 0)
        return rc;
    while (s->streams[s->count].name)
        s->count++;
    if (s->count > MOST_STREAMS)
        return ct_fail(CT_EINVAL, "it has %d streams: at most %d can be checked", s->count,
                       MOST_STREAMS);
    s->bytes = ct_arena_array(arena, size_t, s->count);
    for (int i = 0; i < s->count; i++)
        s->bytes[i] = (size_t)ct_shape_count(s->streams[i].ndim, s->streams[i].shape) *
                      ct_dtype_size(s->streams[i].dtype);
    s->tokens = find_text(s, "tokens");
    s->labels = find_text(s, "labels");
    s->documents = find_text(s, "documents");
    return 0;
}

static void new_sample(const struct source *s, struct sample *sample, struct ct_arena *arena)
{
    sample->row = ct_arena_array(arena, unsigned char *, s->count + 1);
    for (int i = 0; i < s->count; i++)
        sample->row[i] = ct_arena_alloc(arena, s->bytes[i] + GUARD);
}

static const int32_t *text_of(const struct source *s, const struct sample *sample,
                              const struct ct_data_stream *stream)
{
    return stream ? (const int32_t *)(const void *)sample->row[stream - s->streams] : NULL;
}

/* documents: whether they are asked for. */
static int read_sample(const struct source *s, struct ct_data *data, int64_t index, bool documents,
                       struct sample *sample)
{
    void *asked[MOST_STREAMS] = {NULL};

    for (int i = 0; i < s->count; i++) {
        memset(sample->row[i], UNTOUCHED, s->bytes[i] + GUARD);
        if (documents || &s->streams[i] != s->documents)
            asked[i] = sample->row[i];
    }
    sample->end = ct_data_read(s->ops, data, index, asked);
    if (sample->end < 0)
        return ct_context(CT_EINVAL, "sample %lld", (long long)index);
    for (int i = 0; i < s->count; i++)
        for (size_t k = 0; k < GUARD; k++)
            if (sample->row[i][s->bytes[i] + k] != UNTOUCHED)
                return ct_fail(CT_EINVAL,
                               "sample %lld: `read` writes past the end of the sequence%s%s",
                               (long long)index, s->ops->streams ? ": stream " : "",
                               s->ops->streams ? s->streams[i].name : "");
    return 0;
}

/* A stream of which nothing was written. */
static int check_written(const struct source *s, const struct sample *sample, int64_t index)
{
    for (int i = 0; s->ops->streams && i < s->count; i++) {
        size_t k = 0;

        while (k < s->bytes[i] && sample->row[i][k] == UNTOUCHED)
            k++;
        if (k == s->bytes[i])
            return ct_fail(CT_EINVAL, "sample %lld: `read_streams` leaves stream %s as it was",
                           (long long)index, s->streams[i].name);
    }
    return 0;
}

/* Finds what is wrong inside of a sample. */
static int check_sample(const struct source *s, const struct sample *sample, int64_t index,
                        int64_t vocabulary)
{
    const int32_t *tokens = text_of(s, sample, s->tokens), *labels = text_of(s, sample, s->labels),
                  *documents = text_of(s, sample, s->documents);
    int32_t untouched;

    memset(&untouched, UNTOUCHED, sizeof(untouched));
    for (int i = 0; !sample->end && i < CHECK_TOKENS; i++) {
        if (tokens && (tokens[i] < 0 || (vocabulary > 0 && tokens[i] >= vocabulary)))
            return ct_fail(CT_EINVAL, "sample %lld: token %d is %d: expected 0 to %lld",
                           (long long)index, i, tokens[i], (long long)vocabulary - 1);
        if (labels && labels[i] != -100 &&
            (labels[i] < 0 || (vocabulary > 0 && labels[i] >= vocabulary)))
            return ct_fail(CT_EINVAL, "sample %lld: label %d is %d: expected a token, or -100",
                           (long long)index, i, labels[i]);
        if (!s->ops->streams && i + 1 < CHECK_TOKENS && labels[i] != -100 &&
            labels[i] != tokens[i + 1])
            return ct_fail(CT_EINVAL,
                           "sample %lld: label %d is %d, and the next token is %d: labels are "
                           "tokens shifted by one",
                           (long long)index, i, labels[i], tokens[i + 1]);
        if (documents && documents[i] == untouched)
            return ct_fail(CT_EINVAL,
                           "sample %lld: `has_documents` is true, but `read` sets no documents",
                           (long long)index);
    }
    return sample->end ? 0 : check_written(s, sample, index);
}

static bool same(const struct source *s, const struct sample *a, const struct sample *b)
{
    bool equal = a->end == b->end;

    for (int i = 0; equal && i < s->count; i++)
        equal = !memcmp(a->row[i], b->row[i], s->bytes[i]);
    return equal;
}

/* Read again in another order; the samples are the same. */
static int check_again(const struct source *s, struct ct_data *data, const struct sample *first,
                       struct sample *again, const char *how)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < SAMPLES; i++) {
        int index = (i * 7 + 5) % SAMPLES;

        rc = read_sample(s, data, index, true, again);
        if (rc == 0 && !same(s, again, &first[index]))
            rc = ct_fail(CT_EINVAL, "sample %d differs %s: a sample must depend on its index only",
                         index, how);
    }
    return rc;
}

static int not_the_end(int64_t missing, int64_t later)
{
    return ct_fail(CT_EINVAL,
                   "sample %lld is past the end of the data, but the later sample %lld is not",
                   (long long)missing, (long long)later);
}

/* A sample that is not there, after one that is: sought by doubling the index, and then by halves.
   -1: there is none up to the FARTHEST. */
static int find_end(const struct source *s, struct ct_data *data, struct sample *at, int64_t *end)
{
    int64_t low = 0, high = 1;
    int rc = 0;

    at->end = 0;
    while (rc == 0 && !at->end && high <= FARTHEST) {
        low = high;
        high *= 2;
        rc = read_sample(s, data, high, false, at);
    }
    *end = at->end ? high : -1;
    while (rc == 0 && *end >= 0 && *end - low > 1) {
        int64_t middle = low + (*end - low) / 2;

        rc = read_sample(s, data, middle, false, at);
        *(at->end ? end : &low) = middle;
    }
    return rc;
}

/* All samples near the end are before it or past it. */
static int check_end(const struct source *s, struct ct_data *data, struct sample *at)
{
    int64_t end, missing = -1;
    int rc = find_end(s, data, at, &end);

    for (int64_t i = end > NEAR ? end - NEAR : 0; rc == 0 && end >= 0 && i < end + NEAR; i++) {
        rc = read_sample(s, data, i, false, at);
        if (rc == 0 && at->end && missing < 0)
            missing = i;
        if (rc == 0 && !at->end && missing >= 0)
            rc = not_the_end(missing, i);
    }
    return rc;
}

/* The last sample of the epoch that the source tells of. */
static int check_count(const struct source *s, struct ct_data *data, struct sample *at)
{
    int64_t samples = s->ops->samples ? s->ops->samples(data) : 0;
    int rc = samples > 0 ? read_sample(s, data, samples - 1, false, at) : 0;

    if (rc < 0 || samples < 1 || !at->end)
        return rc;
    return ct_fail(CT_EINVAL, "`samples` tells of %lld, but sample %lld is behind the end",
                   (long long)samples, (long long)samples - 1);
}

/* The held-out part, where the options give one. */
static int check_held_out(const struct source *s, struct ct_data_request request, struct sample *at)
{
    struct ct_data *held = NULL;
    int rc;

    request.validation = true;
    rc = s->ops->open(&request, &held);
    if (rc == CT_ECONFIG)
        return 0;
    if (rc == 0)
        rc = check_end(s, held, at);
    if (held)
        s->ops->close(held);
    return rc < 0 ? ct_context(rc, "of validation") : 0;
}

static int check_identity(const struct ct_data_ops *ops, const struct ct_data *data,
                          const struct ct_data *again)
{
    int64_t a[2], b[2];

    if (!ops->identity)
        return 0;
    return ops->identity(data, &a[0], &a[1]) == ops->identity(again, &b[0], &b[1]) &&
                   !memcmp(a, b, sizeof(a))
               ? 0
               : ct_fail(CT_EINVAL, "the data has another `identity` when it is opened again");
}

/* Sample 0, first with everything, and now without documents. */
static int check_without(const struct source *s, struct ct_data *data, const struct sample *first,
                         struct sample *without)
{
    int rc = read_sample(s, data, 0, false, without);

    if (rc == 0 && s->tokens &&
        memcmp(text_of(s, without, s->tokens), text_of(s, first, s->tokens),
               sizeof(int32_t) * CHECK_TOKENS) != 0)
        rc = ct_fail(CT_EINVAL, "sample 0 has other tokens when documents are not requested");
    return rc;
}

static int check_reopened(const struct source *s, const struct ct_data_request *request,
                          struct ct_data *data, const struct sample *first, struct sample *at)
{
    struct ct_data *other = NULL;
    int rc = s->ops->open(request, &other);

    if (rc == 0)
        rc = check_again(s, other, first, at, "when the source is opened again");
    if (rc == 0)
        rc = check_identity(s->ops, data, other);
    if (other)
        s->ops->close(other);
    return rc;
}

static int check_samples(struct check *c, const struct source *s,
                         const struct ct_data_request *request, struct ct_data *data)
{
    struct sample *first = ct_arena_array(&c->arena, struct sample, SAMPLES), at;
    int64_t vocabulary = s->ops->vocabulary(data);
    int rc = 0;

    new_sample(s, &at, &c->arena);
    for (int i = 0; rc == 0 && i < SAMPLES; i++) {
        new_sample(s, &first[i], &c->arena);
        rc = read_sample(s, data, i, true, &first[i]);
        if (rc == 0 && i && first[i - 1].end && !first[i].end)
            rc = not_the_end(i - 1, i);
        if (rc == 0)
            rc = check_sample(s, &first[i], i, vocabulary);
    }
    if (rc == 0 && first[0].end)
        rc = ct_fail(CT_EINVAL, "the data ends before the first sample of %d tokens", CHECK_TOKENS);
    if (rc == 0)
        rc = check_again(s, data, first, &at, "when read in another order");
    if (rc == 0)
        rc = check_end(s, data, &at);
    if (rc == 0)
        rc = check_count(s, data, &at);
    if (rc == 0)
        rc = check_held_out(s, *request, &at);
    if (rc == 0)
        rc = check_without(s, data, &first[0], &at);
    return rc < 0 ? rc : check_reopened(s, request, data, first, &at);
}

int check_data(struct check *c, const struct ct_offer *offer)
{
    const struct ct_data_ops *ops = offer->ops;
    const struct ct_offer *tokenizer = NULL;
    struct ct_data_request request = {.seq_len = CHECK_TOKENS, .seed = 1};
    struct source source = {.ops = ops};
    struct ct_data *data = NULL;
    int rc = 0;

    if (ct_offer_at(CT_TOKENIZER, 0))
        rc = ct_offer_find(CT_TOKENIZER, NULL, &tokenizer);
    if (tokenizer) {
        request.tokenizer = tokenizer->ops;
        if (request.tokenizer->open)
            rc = request.tokenizer->open();
    }
    if (rc == 0)
        rc = ops->open(&request, &data);
    if (rc < 0)
        ct_context(rc,
                   "it cannot be opened; give required options with --set %s."
                   "KEY=VALUE, a tokenizer with --with",
                   c->plugin->name);
    if (rc == CT_ECONFIG) { /* the options lack something, which is no fault of the plugin */
        check_untried(c, ct_arena_printf(&c->arena, "data source %s", offer->name),
                      ct_error_message());
        return 0;
    }
    if (rc == 0)
        rc = find_streams(&source, &request, &c->arena);
    if (rc == 0)
        rc = check_samples(c, &source, &request, data);
    if (data)
        ops->close(data);
    check_result(c, rc, "data source %s: %d samples, in any order, twice", offer->name, SAMPLES);
    return 0;
}
