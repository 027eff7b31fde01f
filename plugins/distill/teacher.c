/*
 * The teacher's numbers from a file of samples, by `ctitan data --teacher` or by another program.
 *
 *   ids     int32 [samples, seq_len, k]   the likeliest tokens at each position
 *   logps   float [samples, seq_len, k]   the logarithms of their probabilities; -inf: none
 *
 * Any constant may be added to the logarithms of a position: logits serve as well. A note
 * "vocabulary" is the hash of the meanings of the teacher's tokens.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/lib/samples.h>
#include <ctitan/lib/tokenizer.h>

#include "distill.h"

#define REMEDY "ctitan data RECIPE --teacher FOLDER --output FILE"

enum { STREAM_IDS, STREAM_LOGPS };

struct ct_beside {
    struct ct_sample_file *file;
    const struct ct_weight *ids, *logps;
    int64_t vocabulary;
};

static int list_streams(const struct ct_data_request *request, struct ct_arena *arena,
                        const struct ct_data_stream **streams)
{
    const size_t size = sizeof(struct ct_data_stream);
    const int64_t n = request->seq_len, k = distill_config.k;
    const struct ct_data_stream list[] = {
        {size, DISTILL_IDS, CT_I32, 2, {n, k}, 0, "the teacher's likeliest tokens"},
        {size, DISTILL_LOGPS, CT_F32, 2, {n, k}, 0, "the logarithms of their probabilities"},
        {0}};

    *streams = ct_arena_copy(arena, distill_is_stored() ? list : list + 2,
                             distill_is_stored() ? sizeof(list) : sizeof(*list));
    return 0;
}

/* ---- opening ---- */

static int check_shape(const struct ct_beside *s, int64_t seq_len)
{
    const struct ct_weight *ids = s->ids, *logps = s->logps;

    if (ids->dtype != CT_I32)
        return ct_fail(CT_ECONFIG, "its ids are not int32");
    if (!ct_dtype_is_float(logps->dtype) || memcmp(ids->shape, logps->shape, sizeof(ids->shape)))
        return ct_fail(CT_ECONFIG, "its logps are not as many floating-point numbers as its ids");
    if (ids->shape[1] != seq_len)
        return ct_fail(CT_ECONFIG,
                       "its samples have %lld tokens, and [training] seq_len is %lld: make it "
                       "again, by " REMEDY,
                       (long long)ids->shape[1], (long long)seq_len);
    if (ids->shape[2] < distill_config.k)
        return ct_fail(CT_ECONFIG,
                       "it has %lld tokens of the teacher at each position, fewer than [distill] "
                       "k = %lld: lower k, or make it again with --top-k %lld",
                       (long long)ids->shape[2], (long long)distill_config.k,
                       (long long)distill_config.k);
    return 0;
}

/* Where both tokenizers are known, their tokens must have the same meanings. */
static int check_vocabulary(const struct ct_beside *s, const struct ct_tokenizer_ops *tokenizer)
{
    const char *note = ct_sample_file_note(s->file, "vocabulary");
    char own[32];

    if (!note || !tokenizer)
        return 0;
    snprintf(own, sizeof(own), "%016" PRIx64, ct_tokenizer_meanings(tokenizer));
    return strcmp(note, own) == 0
               ? 0
               : ct_fail(CT_ECONFIG, "the teacher's tokens are not those of this run's tokenizer: "
                                     "distillation needs a teacher with the same vocabulary");
}

static int open_file(struct ct_beside *s, const struct ct_data_request *request)
{
    int rc = ct_sample_file_open(distill_config.path, &s->file);

    if (rc == CT_ENOENT)
        return ct_context(CT_ECONFIG, "make it by " REMEDY);
    if (rc == 0)
        rc = ct_sample_file_tensor(s->file, "ids", 3, &s->ids);
    if (rc == 0)
        rc = ct_sample_file_tensor(s->file, "logps", 3, &s->logps);
    if (rc < 0)
        return rc;
    rc = check_shape(s, request->seq_len);
    if (rc == 0)
        rc = check_vocabulary(s, request->tokenizer);
    return ct_context(rc, "%s", distill_config.path);
}

static void close_streams(struct ct_beside *s)
{
    if (s)
        ct_sample_file_close(s->file);
    free(s);
}

static int open_streams(const struct ct_data_request *request, struct ct_beside **streams)
{
    struct ct_beside *s = calloc(1, sizeof(*s));
    int rc = s ? 0 : ct_fail(CT_ENOMEM, "the teacher's numbers");

    if (rc == 0) {
        s->vocabulary = request->vocabulary;
        rc = open_file(s, request);
    }
    if (rc < 0)
        close_streams(s);
    else
        *streams = s;
    return ct_context(rc, "[distill] path");
}

/* ---- reading ---- */

/* The first k of each position, of all that the file has of a sample. */
static int read_tensor(const struct ct_weight *from, int64_t sample, enum ct_dtype dtype, void *to)
{
    const int64_t offset[] = {sample, 0, 0}, shape[] = {1, from->shape[1], distill_config.k};

    return to ? ct_weights_read(from, offset, shape, dtype, to) : 0;
}

static int check_ids(const struct ct_beside *s, const struct ct_data_sample *sample,
                     const int32_t *ids)
{
    int64_t k = distill_config.k;

    for (int64_t i = 0; ids && i < sample->seq_len * k; i++)
        if (sample->labels[i / k] != CT_MASKED && (ids[i] < 0 || ids[i] >= s->vocabulary))
            return ct_fail(CT_ECONFIG,
                           "%s: its token %d of position %lld is not of the model's vocabulary of "
                           "%lld",
                           distill_config.path, ids[i], (long long)(i / k),
                           (long long)s->vocabulary);
    return 0;
}

static int read_streams(struct ct_beside *s, const struct ct_data_sample *sample,
                        void *const *values)
{
    int64_t at =
        ct_sample_file_find(s->file, sample->tokens, sample->labels, sample->seq_len, REMEDY);
    int rc = at < 0 ? (int)at : read_tensor(s->ids, at, CT_I32, values[STREAM_IDS]);

    if (rc == 0)
        rc = read_tensor(s->logps, at, CT_F32, values[STREAM_LOGPS]);
    if (rc == 0)
        rc = check_ids(s, sample, values[STREAM_IDS]);
    return ct_context(rc, "[distill] path");
}

const struct ct_beside_ops distill_streams = {.size = sizeof(struct ct_beside_ops),
                                              .streams = list_streams,
                                              .open = open_streams,
                                              .close = close_streams,
                                              .read = read_streams};
