/*
 * Ready-made tokens: one mapped file of little-endian uint32.
 *
 * Sample i is tokens[i*seq_len .. i*seq_len + seq_len], and its labels are shifted by one, so n
 * tokens make (n - 1) / seq_len samples.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>

/* Larger files are not scanned for their largest token when they are opened. */
#define SCAN_BYTES ((size_t)64 << 20)

static struct config {
    const char *path, *validation_path;
    bool repeat;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, path, "path", NULL, "File of token ids, raw little-endian uint32"),
    CT_OPT_BOOL(struct config, repeat, "repeat", "false",
                "Begin again at the end of the file, instead of ending the run"),
    CT_OPT_STRING(struct config, validation_path, "validation_path", "",
                  "File of the tokens to validate on, in the same form"),
    {0},
};

struct ct_data {
    const char *path;
    const uint32_t *tokens; /* in the file's byte order */
    size_t bytes;
    int64_t seq_len, samples;
    bool repeat;
};

static int map_tokens(struct ct_data *data)
{
    int fd = open(data->path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    void *base;

    if (fd < 0)
        return ct_fail(CT_ECONFIG, "%s: %s", data->path, strerror(errno));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size % 4) {
        close(fd);
        return ct_fail(CT_ECONFIG, "%s is not a file of uint32 tokens: %s", data->path,
                       S_ISREG(st.st_mode) ? "its size is not a multiple of 4"
                                           : "it is not a regular file");
    }
    data->bytes = (size_t)st.st_size;
    data->samples = data->bytes ? ((int64_t)(data->bytes / 4) - 1) / data->seq_len : 0;
    if (!data->samples) {
        close(fd);
        return ct_fail(
            CT_ECONFIG,
            "%s: %zu tokens are too few for one sample of %lld tokens and its last label",
            data->path, data->bytes / 4, (long long)data->seq_len);
    }
    base = mmap(NULL, data->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (base == MAP_FAILED)
        return ct_fail(CT_EIO, "%s: cannot be mapped: %s", data->path, strerror(errno));
    data->tokens = base;
    return 0;
}

static void tokens_close(struct ct_data *data)
{
    if (data && data->tokens)
        munmap((void *)(uintptr_t)data->tokens, data->bytes);
    free(data);
}

static int tokens_open(const struct ct_data_request *request, struct ct_data **out)
{
    struct ct_data *data;
    int rc;

    *out = NULL;
    if (request->validation && !*config.validation_path)
        return ct_fail(CT_ECONFIG, "[tokens] validation_path is not set, but [validation] asks for "
                                   "validation");
    data = calloc(1, sizeof(*data));
    if (!data)
        return ct_fail(CT_ENOMEM, "tokens");
    data->path = request->validation ? config.validation_path : config.path;
    data->seq_len = request->seq_len;
    data->repeat = config.repeat && !request->validation;
    rc = map_tokens(data);
    if (rc < 0) {
        tokens_close(data);
        return ct_context(rc, "[tokens] %s", request->validation ? "validation_path" : "path");
    }
    *out = data;
    return 0;
}

static int tokens_read(struct ct_data *data, int64_t index, int32_t *tokens, int32_t *labels,
                       int32_t *documents)
{
    const uint32_t *from;

    if (index >= data->samples && !data->repeat)
        return 1;
    from = data->tokens + index % data->samples * data->seq_len;
    for (int64_t i = 0; i <= data->seq_len; i++) {
        uint32_t token = le32toh(from[i]);

        if (token > INT32_MAX)
            return ct_fail(CT_EINVAL, "%s: token %lld is %u: larger than any vocabulary",
                           data->path, (long long)(from - data->tokens + i), token);
        if (i < data->seq_len)
            tokens[i] = (int32_t)token;
        if (i > 0)
            labels[i - 1] = (int32_t)token;
    }
    if (documents)
        memset(documents, 0, (size_t)data->seq_len * sizeof(*documents));
    return 0;
}

static bool tokens_has_documents(void)
{
    return false;
}

static int64_t tokens_vocabulary(struct ct_data *data)
{
    uint32_t largest = 0;

    if (data->bytes > SCAN_BYTES)
        return 0;
    for (size_t i = 0; i < data->bytes / 4; i++) {
        uint32_t token = le32toh(data->tokens[i]);

        largest = token > largest ? token : largest;
    }
    return (int64_t)largest + 1;
}

static const struct ct_data_ops ops = {.size = sizeof(struct ct_data_ops),
                                       .open = tokens_open,
                                       .close = tokens_close,
                                       .read = tokens_read,
                                       .has_documents = tokens_has_documents,
                                       .vocabulary = tokens_vocabulary};

CT_PLUGIN(.name = "tokens", .version = "1.0",
          .summary = "Data: a file of token ids, raw little-endian uint32", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_DATA, "tokens", &ops}));
