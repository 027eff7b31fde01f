/*
 * Ready-made tokens, in mapped files.
 *
 * Sample i of a file is tokens[i*seq_len .. i*seq_len + seq_len], and its labels are shifted by
 * one, so n tokens make (n - 1) / seq_len samples. Samples of several files are numbered file after
 * file.
 */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>

#include "file.h"

/* More is not scanned for its largest token when it is opened. */
#define SCAN_BYTES ((int64_t)64 << 20)
#define IGNORED (-100)
#define HASHED ((size_t)4096) /* bytes at the beginning, in the middle and at the end of a file */

static struct config {
    const char *path, *validation_path;
    bool repeat, document_mask;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, path, "path", NULL,
                  "Files of token ids, or a pattern: raw little-endian uint32, llm.c's, or "
                  "Megatron's .bin beside its .idx"),
    CT_OPT_BOOL(struct config, repeat, "repeat", "false",
                "At the end of the files, begin again instead of ending the run"),
    CT_OPT_STRING(struct config, validation_path, "validation_path", "",
                  "Files of token ids for validation"),
    CT_OPT_BOOL(struct config, document_mask, "document_mask", "false",
                "Keep tokens from attending to, or predicting, another document's tokens; only "
                "Megatron's files say where documents begin"),
    {0},
};

struct ct_data {
    struct ct_arena arena;
    struct token_file *files;
    size_t count;
    int64_t *first; /* sample of each file, and their number */
    int64_t seq_len;
    int64_t vocabulary; /* of the model; larger than any token: unknown */
    int64_t largest;    /* token; -1: unknown */
    bool repeat;
    uint64_t hash;  /* of the files; see identify */
    int64_t passed; /* samples that an earlier stage of the run has read */
};

static void tokens_close(struct ct_data *data)
{
    if (!data)
        return;
    for (size_t i = 0; i < data->count; i++)
        token_file_close(&data->files[i]);
    ct_arena_finish(&data->arena);
    free(data);
}

static int open_file(struct ct_data *data, const char *path)
{
    struct token_file *file = &data->files[data->count];
    int rc = token_file_open(file, path);

    if (rc < 0)
        return rc;
    data->first[data->count + 1] =
        data->first[data->count] + (file->count > 0 ? (file->count - 1) / data->seq_len : 0);
    data->count++;
    return config.document_mask && !file->begin
               ? ct_fail(CT_ECONFIG,
                         "%s does not say where documents begin, which [tokens] document_mask "
                         "needs",
                         path)
               : 0;
}

/* Files may be larger than what is read in a run: their sizes and parts of them are hashed. */
static void identify(struct ct_data *data)
{
    for (size_t i = 0; i < data->count; i++) {
        const struct token_file *f = &data->files[i];
        size_t size = (size_t)f->count * (size_t)f->width, part = size < HASHED ? size : HASHED;
        int64_t numbers[] = {f->width, f->count, f->documents};

        data->hash = XXH3_64bits_withSeed(numbers, sizeof(numbers), data->hash);
        for (size_t k = 0; part && k < 3; k++)
            data->hash = XXH3_64bits_withSeed(f->tokens + (size - part) / 2 * k, part, data->hash);
    }
}

static int open_files(struct ct_data *data, const char *pattern)
{
    char **paths;
    size_t count;
    int rc = ct_file_find(&data->arena, pattern, &paths, &count);

    if (rc < 0)
        return rc;
    data->files = ct_arena_array(&data->arena, struct token_file, count);
    data->first = ct_arena_array(&data->arena, int64_t, count + 1);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = open_file(data, paths[i]);
    if (rc == 0 && !data->first[data->count])
        rc =
            ct_fail(CT_ECONFIG,
                    "%s: %lld tokens are too few for one sample of %lld tokens and its last label",
                    data->files[0].path, (long long)data->files[0].count, (long long)data->seq_len);
    return rc;
}

static int beyond_vocabulary(const struct ct_data *data, const struct token_file *file, int64_t at,
                             uint32_t token)
{
    if (data->vocabulary > INT32_MAX)
        return ct_fail(CT_ECONFIG, "%s: token %lld is %u: larger than any vocabulary", file->path,
                       (long long)at, token);
    return ct_fail(
        CT_ECONFIG,
        "%s: token %lld, of sample %lld, is %u, and the model's vocabulary has %lld: are "
        "these tokens of another tokenizer, or of another format?",
        file->path, (long long)at,
        (long long)(data->first[file - data->files] + at / data->seq_len), token,
        (long long)data->vocabulary);
}

/* Tokens of small files. Others are checked as they are read. */
static int find_largest(struct ct_data *data)
{
    int64_t bytes = 0;

    data->largest = -1;
    for (size_t f = 0; f < data->count; f++)
        bytes += data->files[f].count * data->files[f].width;
    for (size_t f = 0; bytes <= SCAN_BYTES && f < data->count; f++)
        for (int64_t i = 0; i < data->files[f].count; i++) {
            uint32_t token = token_file_at(&data->files[f], i);

            if (token >= data->vocabulary)
                return beyond_vocabulary(data, &data->files[f], i, token);
            data->largest = token > data->largest ? token : data->largest;
        }
    return 0;
}

/* Go on in the same files, in samples of another length: with the first that begins behind the
   tokens that were read of its file. */
static void go_on(struct ct_data *data, const struct ct_data *before, int64_t samples)
{
    int64_t read = before->passed + samples, of_epoch = before->first[before->count];
    int64_t rest = read % of_epoch, room, at;
    size_t f = 0;

    if (before->hash != data->hash)
        return;
    if (read >= of_epoch && !data->repeat) {
        data->passed = data->first[data->count];
        return;
    }
    while (rest >= before->first[f + 1])
        f++;
    at = (rest - before->first[f]) * before->seq_len;
    at = (at + data->seq_len - 1) / data->seq_len;
    room = data->first[f + 1] - data->first[f];
    data->passed =
        read / of_epoch * data->first[data->count] + data->first[f] + (at < room ? at : room);
}

static int open_set(const struct ct_data_request *request, const struct ct_validation_set *set,
                    struct ct_data **out)
{
    struct ct_data *data;
    int rc;

    *out = NULL;
    if (request->validation && !set && !*config.validation_path)
        return ct_fail(CT_ECONFIG, "[tokens] validation_path is not set, but [validation] asks for "
                                   "validation");
    data = calloc(1, sizeof(*data));
    if (!data)
        return ct_fail(CT_ENOMEM, "tokens");
    data->seq_len = request->seq_len;
    data->vocabulary = request->vocabulary ? request->vocabulary : INT64_C(1) << 31;
    data->repeat = config.repeat && !request->validation;
    rc = open_files(data, set                   ? set->path
                          : request->validation ? config.validation_path
                                                : config.path);
    if (rc == 0)
        rc = find_largest(data);
    if (rc < 0) {
        tokens_close(data);
        return set ? ct_context(rc, "[validation.%s] path", set->name)
                   : ct_context(rc, "[tokens] %s",
                                request->validation ? "validation_path" : "path");
    }
    identify(data);
    if (request->before)
        go_on(data, request->before, request->before_samples);
    *out = data;
    return 0;
}

static int tokens_open(const struct ct_data_request *request, struct ct_data **out)
{
    return open_set(request, NULL, out);
}

/* The tokens from `at` on, with their documents from 0 on. */
static int read_window(const struct ct_data *data, const struct token_file *file, int64_t at,
                       int32_t *tokens, int32_t *labels, int32_t *documents)
{
    int64_t first = config.document_mask ? token_file_document(file, at) : 0, document = first;

    for (int64_t i = 0; i <= data->seq_len; i++) {
        uint32_t token = token_file_at(file, at + i);
        int64_t previous = document;

        while (config.document_mask && at + i >= file->begin[document + 1])
            document++;
        if (token >= data->vocabulary)
            return beyond_vocabulary(data, file, at + i, token);
        if (i < data->seq_len) {
            tokens[i] = (int32_t)token;
            if (documents)
                documents[i] = (int32_t)(document - first);
        }
        if (i > 0)
            labels[i - 1] = document != previous ? IGNORED : (int32_t)token;
    }
    return 0;
}

static int tokens_read(struct ct_data *data, int64_t index, int32_t *tokens, int32_t *labels,
                       int32_t *documents)
{
    int64_t samples = data->first[data->count];
    size_t file = 0;

    index += data->passed;
    if (index >= samples && !data->repeat)
        return 1;
    index %= samples;
    while (index >= data->first[file + 1])
        file++;
    return read_window(data, &data->files[file], (index - data->first[file]) * data->seq_len,
                       tokens, labels, documents);
}

static bool has_validation(void)
{
    return *config.validation_path;
}

static bool tokens_has_documents(void)
{
    return config.document_mask;
}

static int64_t tokens_vocabulary(struct ct_data *data)
{
    return data->largest + 1;
}

static uint64_t tokens_identity(const struct ct_data *data, int64_t *documents, int64_t *tokens)
{
    *documents = *tokens = 0;
    for (size_t i = 0; i < data->count; i++) {
        const struct token_file *f = &data->files[i];

        *documents = f->begin && *documents >= 0 ? *documents + f->documents : -1;
        *tokens += f->count;
    }
    return data->hash;
}

static int64_t tokens_samples(const struct ct_data *data)
{
    return data->first[data->count];
}

static const struct ct_data_ops ops = {.size = sizeof(struct ct_data_ops),
                                       .open = tokens_open,
                                       .close = tokens_close,
                                       .read = tokens_read,
                                       .has_documents = tokens_has_documents,
                                       .vocabulary = tokens_vocabulary,
                                       .identity = tokens_identity,
                                       .samples = tokens_samples,
                                       .open_set = open_set,
                                       .has_validation = has_validation};

CT_PLUGIN(.name = "tokens", .version = "1.0",
          .summary = "Data: files of token ids: raw uint32, llm.c's, Megatron's",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_DATA, "tokens", &ops}));
