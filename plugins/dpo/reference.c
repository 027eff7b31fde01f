#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>

#include "dpo.h"

/* Line number `line` of the file: "HASH LOGP". */
static int take_line(const char *text, int64_t line, uint64_t wanted, double *logp)
{
    char *end, *last;
    uint64_t hash = strtoull(text, &end, 16);

    *logp = strtod(end, &last);
    if (end == text || last == end || *last != '\n')
        return ct_fail(CT_ECONFIG, "line %lld is no hash and log-probability", (long long)line);
    if (hash != wanted)
        return ct_fail(CT_ECONFIG,
                       "line %lld is of another sample: the data, the tokenizer or seq_len have "
                       "changed since; make the file again, by ctitan data --reference",
                       (long long)line);
    return 0;
}

int dpo_read_reference(const char *path, struct ct_data *data, int64_t samples, int64_t seq_len,
                       int (*read)(struct ct_data *data, int64_t index, void *const *sample),
                       void (*put)(struct ct_data *data, int64_t index, double logp))
{
    struct ct_arena arena = {0};
    int32_t *tokens = ct_arena_array(&arena, int32_t, seq_len);
    int32_t *labels = ct_arena_array(&arena, int32_t, seq_len);
    void *const sample[] = {tokens, labels, NULL, NULL, NULL, NULL};
    const char *at;
    size_t size;
    double logp = 0;
    char *text = NULL;
    int rc = ct_file_read(&arena, path, SIZE_MAX / 2, &text, &size);

    rc = rc == CT_ENOENT ? CT_ECONFIG : rc;
    at = text;
    for (int64_t i = 0; rc == 0 && i < samples; i++) {
        const char *next = strchr(at, '\n');

        read(data, i, sample);
        rc = next ? take_line(at, i + 1, ct_labels_hash(tokens, labels, seq_len), &logp)
                  : ct_fail(CT_ECONFIG, "it has %lld lines, for %lld samples", (long long)i,
                            (long long)samples);
        if (rc < 0)
            break;
        put(data, i, logp);
        at = next + 1;
    }
    if (rc == 0 && *at)
        rc = ct_fail(CT_ECONFIG, "it has more lines than the %lld samples", (long long)samples);
    ct_arena_finish(&arena);
    return ct_context(rc, "[dpo] reference_path = %s", path);
}
