/*
 * Reading: the file is mapped, and its hashes are sorted once.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/samples.h>

struct key {
    uint64_t hash;
    int64_t index;
};

struct ct_sample_file {
    struct ct_weights *file;
    char *path;
    struct key *keys; /* sorted */
    int64_t count;
};

static int by_hash(const void *a, const void *b)
{
    const struct key *x = a, *y = b;

    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static int read_hashes(struct ct_sample_file *s)
{
    const struct ct_weight *hash = ct_weights_find(s->file, "hash");

    if (!hash || hash->dtype != CT_I64 || hash->ndim != 1)
        return ct_fail(CT_ECONFIG, "%s: it has no tensor hash, int64 [samples]", s->path);
    s->count = hash->shape[0];
    s->keys = malloc((size_t)s->count * sizeof(*s->keys) + 1);
    if (!s->keys)
        return ct_fail(CT_ENOMEM, "%s: %lld hashes", s->path, (long long)s->count);
    for (int64_t i = 0; i < s->count; i++) {
        memcpy(&s->keys[i].hash, (const char *)hash->data + i * 8, 8);
        s->keys[i].index = i;
    }
    if (s->count)
        qsort(s->keys, (size_t)s->count, sizeof(*s->keys), by_hash);
    return 0;
}

int ct_sample_file_open(const char *path, struct ct_sample_file **samples)
{
    struct ct_sample_file *s = calloc(1, sizeof(*s));
    int rc = 0;

    *samples = NULL;
    if (s)
        s->path = strdup(path);
    if (!s || !s->path)
        rc = ct_fail(CT_ENOMEM, "%s", path);
    if (rc == 0)
        rc = ct_weights_open_file(path, &s->file);
    if (rc == 0)
        rc = read_hashes(s);
    if (rc < 0)
        ct_sample_file_close(s);
    else
        *samples = s;
    return rc;
}

void ct_sample_file_close(struct ct_sample_file *s)
{
    if (!s)
        return;
    ct_weights_close(s->file);
    free(s->keys);
    free(s->path);
    free(s);
}

int ct_sample_file_tensor(const struct ct_sample_file *s, const char *name, int ndim,
                          const struct ct_weight **tensor)
{
    *tensor = ct_weights_find(s->file, name);
    if (*tensor && (*tensor)->ndim == ndim && (*tensor)->shape[0] == s->count)
        return 0;
    return ct_fail(CT_ECONFIG,
                   "%s: it has no tensor %s of %d dimensions, the first of them the "
                   "%lld samples",
                   s->path, name, ndim, (long long)s->count);
}

const char *ct_sample_file_note(const struct ct_sample_file *s, const char *key)
{
    return ct_weights_metadata(s->file, key);
}

int64_t ct_sample_file_find(const struct ct_sample_file *s, const int32_t *tokens,
                            const int32_t *labels, int64_t count, const char *remedy)
{
    const struct key wanted = {.hash = ct_labels_hash(tokens, labels, count)};
    int64_t low = 0, high = s->count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (s->keys[middle].hash < wanted.hash)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < s->count && s->keys[low].hash == wanted.hash)
        return s->keys[low].index;
    return ct_fail(CT_ECONFIG,
                   "%s has nothing of these tokens among its %lld sample%s: the data, the "
                   "tokenizer, the template or seq_len have changed since it was made, or it was "
                   "made of fewer samples; make it again, by %s",
                   s->path, (long long)s->count, ct_plural(s->count), remedy);
}
