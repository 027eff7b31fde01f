/*
 * Writing: the header first, then each sample's part of each tensor at its place.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/samples.h>

struct place {
    size_t begin, bytes; /* of the tensor in the file; of a sample there */
};

struct ct_new_sample_file {
    struct ct_new_file file;
    struct place *place; /* the hash, then by tensor */
    size_t count;        /* of tensors, the hash among them */
};

/* Tensors follow each other as ct_safetensors_header says: those of larger elements first. */
static void find_places(struct ct_new_sample_file *s, const struct ct_weight *tensors, size_t at)
{
    for (size_t item = 8; item; item /= 2)
        for (size_t i = 0; i < s->count; i++) {
            const struct ct_weight *t = &tensors[i];

            if (ct_dtype_size(t->dtype) != item)
                continue;
            s->place[i] =
                (struct place){at, (size_t)ct_shape_count(t->ndim - 1, t->shape + 1) * item};
            at += s->place[i].bytes * (size_t)t->shape[0];
        }
}

static int write_at(struct ct_new_sample_file *s, const void *data, size_t bytes, size_t at)
{
    const char *from = data;
    int tries = 0;

    while (bytes) {
        ssize_t n = pwrite(fileno(s->file.out), from, bytes, (off_t)at);

        if (n < 0 && ct_file_again(&tries))
            continue;
        if (n < 0)
            return ct_fail(CT_EIO, "writing %s: %s", s->file.path, strerror(errno));
        from += n;
        at += (size_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int begin(struct ct_new_sample_file *s, const char *path, const struct ct_weight *tensors,
                 const char *const *notes)
{
    size_t bytes;
    char *header;
    int rc = ct_context(ct_safetensors_header(tensors, s->count, notes, 8, &header, &bytes),
                        "writing %s", path);

    if (rc == 0)
        rc = ct_file_begin(&s->file, path);
    if (rc == 0 && !*s->file.temporary)
        rc = ct_fail(CT_ECONFIG, "%s: expected a regular file, which is written in parts", path);
    if (rc == 0) {
        find_places(s, tensors, bytes);
        rc = write_at(s, header, bytes, 0);
    }
    free(header);
    return rc;
}

int ct_sample_file_begin(const char *path, const struct ct_weight *tensors, size_t count,
                         const char *const *notes, struct ct_new_sample_file **samples)
{
    struct ct_new_sample_file *s = calloc(1, sizeof(*s));
    struct ct_weight *all = calloc(count + 1, sizeof(*all));
    int rc = 0;

    *samples = NULL;
    if (s) {
        s->count = count + 1;
        s->place = calloc(s->count, sizeof(*s->place));
    }
    if (!s || !s->place || !all) {
        rc = ct_fail(CT_ENOMEM, "writing %s", path);
    } else {
        all[0] = (struct ct_weight){
            .name = "hash", .dtype = CT_I64, .ndim = 1, .shape = {tensors[0].shape[0]}};
        memcpy(all + 1, tensors, sizeof(*all) * count);
        rc = begin(s, path, all, notes);
    }
    free(all);
    if (rc < 0)
        return ct_sample_file_end(s, rc);
    *samples = s;
    return 0;
}

int ct_sample_file_put(struct ct_new_sample_file *s, int64_t index, uint64_t hash,
                       const void *const *data)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < s->count; i++)
        rc = write_at(s, i ? data[i - 1] : &hash, s->place[i].bytes,
                      s->place[i].begin + (size_t)index * s->place[i].bytes);
    return rc;
}

int ct_sample_file_end(struct ct_new_sample_file *s, int rc)
{
    if (!s)
        return rc;
    if (s->file.out)
        rc = ct_file_end(&s->file, rc);
    free(s->place);
    free(s);
    return rc;
}
