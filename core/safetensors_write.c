/*
 * Writing a file: header, then data, under a temporary name until all of it is on disk.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/safetensors.h>

#include "safetensors_format.h"

static size_t weight_bytes(const struct ct_weight *weight)
{
    return (size_t)ct_shape_count(weight->rank, weight->shape) * ct_dtype_size(weight->dtype);
}

/* Largest elements first: every tensor is then aligned to its own elements. */
#define for_each_in_file(w, weights, count)                                                        \
    for (size_t size_ = 8; size_; size_ /= 2)                                                      \
        for (const struct ct_weight *w = (weights); w < (weights) + (count); w++)                  \
            if (ct_dtype_size(w->dtype) == size_)

static char *make_header(const struct ct_weight *weights, size_t count)
{
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    json_int_t at = 0;
    char *text;

    for_each_in_file(weight, weights, count)
    {
        json_int_t end = at + (json_int_t)weight_bytes(weight);
        json_t *shape = json_array();

        for (int d = 0; d < weight->rank; d++)
            json_array_append_new(shape, json_integer(weight->shape[d]));
        json_object_set_new(root, weight->name,
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype",
                                      ct_safetensors_dtype_name(weight->dtype), "shape", shape,
                                      "data_offsets", at, end));
        at = end;
    }
    text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

static int write_contents(FILE *out, const char *header, const struct ct_weight *weights,
                          size_t count)
{
    uint64_t used = strlen(header), length = (used + 7) / 8 * 8;
    unsigned char prefix[CT_SAFETENSORS_PREFIX];

    for (int i = 0; i < CT_SAFETENSORS_PREFIX; i++)
        prefix[i] = (unsigned char)(length >> 8 * i);
    fwrite(prefix, 1, CT_SAFETENSORS_PREFIX, out);
    fprintf(out, "%s%*s", header, (int)(length - used), "");
    for_each_in_file(weight, weights, count) fwrite(weight->data, 1, weight_bytes(weight), out);
    return ferror(out) || fflush(out) || fsync(fileno(out)) ? -1 : 0;
}

/* A rename is on disk once its folder is. */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

static int write_file(const char *path, const char *temporary, const char *header,
                      const struct ct_weight *weights, size_t count)
{
    FILE *out = fopen(temporary, "we");
    int failed;

    if (!out)
        return ct_fail(CT_EIO, "%s: %s", temporary, strerror(errno));
    failed = write_contents(out, header, weights, count) < 0;
    failed = fclose(out) || failed || rename(temporary, path);
    if (failed) {
        int cause = errno;

        unlink(temporary);
        return ct_fail(CT_EIO, "writing %s: %s", path, strerror(cause));
    }
    sync_folder(path);
    return 0;
}

int ct_safetensors_write(const char *path, const struct ct_weight *weights, size_t count)
{
    char *temporary = NULL, *header = make_header(weights, count);
    int rc;

    if (!header || asprintf(&temporary, "%s.%ld.tmp", path, (long)getpid()) < 0)
        rc = ct_fail(CT_ENOMEM, "writing %s", path);
    else
        rc = write_file(path, temporary, header, weights, count);
    free(temporary);
    free(header);
    return rc;
}
