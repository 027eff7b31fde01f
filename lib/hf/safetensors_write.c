/*
 * Writing a file: header, then data, from memory or as it is produced.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/safetensors.h>

#include "safetensors_format.h"

static size_t bytes_of(const struct ct_weight *weights, size_t count)
{
    size_t bytes = 0;

    for (size_t i = 0; i < count; i++)
        bytes += ct_safetensors_bytes(&weights[i]);
    return bytes;
}

/* Largest elements come first, so every tensor is aligned to its element size. */
#define for_each_in_file(w, weights, count)                                                        \
    for (size_t size_ = 8; size_; size_ /= 2)                                                      \
        for (const struct ct_weight *w = (weights); w < (weights) + (count); w++)                  \
            if ((size_t)ct_dtype_bits(w->dtype) == 8 * size_)

static int check_dtypes(const struct ct_weight *weights, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!ct_safetensors_dtype_name(weights[i].dtype))
            return ct_fail(CT_EINVAL, "%s: safetensors has no %s", weights[i].name,
                           ct_dtype_name(weights[i].dtype));
    return 0;
}

static int add_metadata(json_t *root, const char *const *metadata)
{
    json_t *all = json_object_get(root, "__metadata__");
    int failed = 0;

    for (; metadata && *metadata; metadata += 2)
        failed |= json_object_set_new(all, metadata[0], json_string(metadata[1]));
    return failed ? ct_fail(CT_EINVAL, "metadata is not UTF-8") : 0;
}

static int add_weight(json_t *root, const struct ct_weight *weight, json_int_t at, json_int_t end)
{
    json_t *shape = json_array();

    for (int d = 0; d < weight->ndim; d++)
        json_array_append_new(shape, json_integer(weight->shape[d]));
    if (json_object_set_new(root, weight->name,
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype",
                                      ct_safetensors_dtype_name(weight->dtype), "shape", shape,
                                      "data_offsets", at, end)) < 0)
        return ct_fail(CT_EINVAL, "%s: the name is not UTF-8", weight->name);
    return 0;
}

/* The JSON of a header. */
static int make_json(const struct ct_weight *weights, size_t count, const char *const *metadata,
                     char **text)
{
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    json_int_t at = 0;
    int rc = check_dtypes(weights, count);

    if (rc == 0)
        rc = add_metadata(root, metadata);
    if (rc == 0)
        for_each_in_file(weight, weights, count)
        {
            json_int_t end = at + (json_int_t)ct_safetensors_bytes(weight);

            rc = rc < 0 ? rc : add_weight(root, weight, at, end);
            at = end;
        }
    *text = rc == 0 ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return rc == 0 && !*text ? ct_fail(CT_ENOMEM, "a header of %zu tensors", count) : rc;
}

int ct_safetensors_header(const struct ct_weight *weights, size_t count,
                          const char *const *metadata, size_t align, char **header, size_t *bytes)
{
    char *json;
    int rc = make_json(weights, count, metadata, &json);
    size_t used = json ? strlen(json) : 0;
    uint64_t length;

    *bytes = (CT_SAFETENSORS_PREFIX + used + align - 1) / align * align;
    length = *bytes - CT_SAFETENSORS_PREFIX;
    *header = json ? malloc(*bytes) : NULL;
    if (*header) {
        for (int i = 0; i < CT_SAFETENSORS_PREFIX; i++)
            (*header)[i] = (char)(length >> 8 * i);
        memcpy(*header + CT_SAFETENSORS_PREFIX, json, used);
        memset(*header + CT_SAFETENSORS_PREFIX + used, ' ', (size_t)length - used);
    } else if (rc == 0) {
        rc = ct_fail(CT_ENOMEM, "a header of %zu bytes", *bytes);
    }
    free(json);
    return rc;
}

struct ct_safetensors_sink {
    FILE *out;
    int failed; /* errno of the first failure */
};

void ct_safetensors_put(struct ct_safetensors_sink *sink, const void *data, size_t bytes)
{
    if (sink && !sink->failed && fwrite(data, 1, bytes, sink->out) != bytes)
        sink->failed = errno ? errno : EIO;
}

static int produce_all(const struct ct_weight *weights, size_t count,
                       ct_safetensors_source *produce, struct ct_safetensors_sink *sink,
                       void *context)
{
    int rc = 0;

    for_each_in_file(weight, weights, count) if (rc == 0) rc =
        produce((size_t)(weight - weights), sink, context);
    return rc;
}

/* A disk that is too small is seen before anything is produced, where the file system can tell. */
static int reserve(const struct ct_new_file *file, size_t bytes)
{
    if (!*file->temporary || !bytes || fallocate(fileno(file->out), 0, 0, (off_t)bytes) == 0 ||
        (errno != ENOSPC && errno != EDQUOT && errno != EFBIG))
        return 0;
    return ct_fail(CT_EIO, "%s: %zu bytes: %s", file->path, bytes, strerror(errno));
}

static int begin_file(struct ct_new_file *file, const char *path, size_t bytes)
{
    int rc = ct_file_begin(file, path);

    if (rc == 0)
        rc = reserve(file, bytes);
    return rc < 0 && file->out ? ct_file_end(file, rc) : rc;
}

/* The file is complete, and closed, under its temporary name. */
static int write_file(struct ct_new_file *file, const char *header, size_t header_bytes,
                      const struct ct_weight *weights, size_t count, ct_safetensors_source *produce,
                      void *context)
{
    struct ct_safetensors_sink sink = {.out = file->out};
    int rc;

    ct_safetensors_put(&sink, header, header_bytes);
    rc = produce_all(weights, count, produce, &sink, context);
    if (rc == 0 && sink.failed)
        rc = ct_fail(CT_EIO, "writing %s: %s", file->path, strerror(sink.failed));
    return rc < 0 ? rc : ct_file_close(file);
}

int ct_safetensors_begin_from(struct ct_new_file *file, const char *path,
                              const struct ct_weight *weights, size_t count,
                              ct_safetensors_source *produce, void *context)
{
    size_t bytes;
    char *header;
    int rc;

    if (!path)
        return produce_all(weights, count, produce, NULL, context);
    *file = (struct ct_new_file){0};
    rc = ct_context(
        ct_safetensors_header(weights, count, NULL, CT_SAFETENSORS_PREFIX, &header, &bytes),
        "writing %s", path);
    if (rc == 0)
        rc = begin_file(file, path, bytes + bytes_of(weights, count));
    if (rc == 0) {
        rc = write_file(file, header, bytes, weights, count, produce, context);
        if (rc < 0)
            rc = ct_file_end(file, rc);
    } else {
        struct ct_error_kept kept = ct_error_keep();

        produce_all(weights, count, produce, NULL, context); /* other ranks may wait for it */
        rc = ct_error_restore(rc, &kept);
    }
    free(header);
    return rc;
}

int ct_safetensors_write_from(const char *path, const struct ct_weight *weights, size_t count,
                              ct_safetensors_source *produce, void *context)
{
    struct ct_new_file file;
    int rc = ct_safetensors_begin_from(&file, path, weights, count, produce, context);

    return rc < 0 || !path ? rc : ct_file_end(&file, 0);
}

static int from_memory(size_t index, struct ct_safetensors_sink *sink, void *context)
{
    const struct ct_weight *weight = (const struct ct_weight *)context + index;

    ct_safetensors_put(sink, weight->data, ct_safetensors_bytes(weight));
    return 0;
}

int ct_safetensors_write(const char *path, const struct ct_weight *weights, size_t count)
{
    return ct_safetensors_write_from(path, weights, count, from_memory, (void *)(uintptr_t)weights);
}
