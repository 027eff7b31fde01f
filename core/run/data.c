/*
 * The streams of a data source, whichever functions it has for them.
 */
#include <ctype.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/model.h>
#include <ctitan/option.h>

#include "plugin/abi.h"
#include "run/streams.h"

enum { TOKENS, LABELS, DOCUMENTS };

static int check_name(const char *name)
{
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '_')
            return ct_fail(CT_EINVAL, "stream \"%s\": a name has letters, digits and '_'", name);
    if (ct_input_is_made(name))
        return ct_fail(CT_EINVAL, "stream %s: the run makes the input of that name", name);
    return *name ? 0 : ct_fail(CT_EINVAL, "a stream has no name");
}

static int check_stream(const struct ct_data_stream *s, int64_t seq_len)
{
    int rc = check_name(s->name ? s->name : "");

    if (rc < 0)
        return rc;
    if (s->ndim < 0 || s->ndim >= CT_MAX_DIMS)
        return ct_fail(CT_EINVAL, "stream %s: ndim is %d: expected 0 to %d", s->name, s->ndim,
                       CT_MAX_DIMS - 1);
    if ((unsigned)s->dtype >= CT_DTYPE_COUNT || ct_dtype_bits(s->dtype) < 8)
        return ct_fail(CT_EINVAL,
                       "stream %s: it has no dtype whose elements have bytes of their own",
                       s->name);
    for (int d = 0; d < s->ndim; d++)
        if (s->shape[d] < 1)
            return ct_fail(CT_EINVAL, "stream %s: dimension %d of a sample is %lld", s->name, d,
                           (long long)s->shape[d]);
    if (s->sequence < -1 || s->sequence >= s->ndim)
        return ct_fail(CT_EINVAL,
                       "stream %s: sequence is %d: expected a dimension of a sample, or "
                       "-1",
                       s->name, s->sequence);
    if (s->sequence >= 0 && s->shape[s->sequence] != seq_len)
        return ct_fail(CT_EINVAL,
                       "stream %s: dimension %d runs along the sequence, and is %lld: expected one "
                       "entry for each of the %lld tokens",
                       s->name, s->sequence, (long long)s->shape[s->sequence], (long long)seq_len);
    return 0;
}

int ct_streams_check(const struct ct_data_stream *streams, int64_t seq_len)
{
    int rc = 0;

    for (const struct ct_data_stream *s = streams; rc == 0 && s->size; s++) {
        rc = check_stream(s, seq_len);
        for (const struct ct_data_stream *t = streams; rc == 0 && t < s; t++)
            if (!strcmp(s->name, t->name))
                rc = ct_fail(CT_EINVAL, "it has two streams called %s", s->name);
    }
    return rc;
}

static const struct ct_data_stream *text_streams(bool documents, int64_t seq_len,
                                                 struct ct_arena *arena)
{
    struct ct_data_stream *s =
        ct_arena_copy(arena, ct_default_streams, sizeof(*s) * (DOCUMENTS + 2));

    for (int i = TOKENS; i <= DOCUMENTS; i++)
        s[i].shape[0] = seq_len;
    if (!documents)
        s[DOCUMENTS] = (struct ct_data_stream){0};
    return s;
}

int ct_streams_widen(struct ct_arena *arena, const struct ct_data_stream **streams)
{
    const void *list;
    int rc = ct_abi_widen_array(arena, *streams,
                                offsetof(struct ct_data_stream, summary) + sizeof(char *),
                                sizeof(struct ct_data_stream), &list);

    *streams = list;
    return rc;
}

int ct_data_streams(const struct ct_data_ops *ops, const struct ct_data_request *request,
                    struct ct_arena *arena, const struct ct_data_stream **streams)
{
    int rc;

    if (!ops->streams) {
        *streams = text_streams(ops->has_documents(), request->seq_len, arena);
        return 0;
    }
    rc = ops->streams(request, arena, streams);
    if (rc == 0)
        rc = ct_streams_widen(arena, streams);
    if (rc == 0 && !(*streams)->size)
        rc = ct_fail(CT_EINVAL, "it has no stream");
    return rc < 0 ? rc : ct_streams_check(*streams, request->seq_len);
}

int ct_data_read(const struct ct_data_ops *ops, struct ct_data *data, int64_t index,
                 void *const *sample)
{
    if (ops->read_streams)
        return ops->read_streams(data, index, sample);
    return ops->read(data, index, sample[TOKENS], sample[LABELS],
                     ops->has_documents() ? sample[DOCUMENTS] : NULL);
}

/* FNV-1a of 32 bits at a time. */
static uint64_t add_to_hash(uint64_t hash, int32_t value)
{
    return (hash ^ (uint32_t)value) * UINT64_C(0x100000001b3);
}

uint64_t ct_labels_hash(const int32_t *tokens, const int32_t *labels, int64_t count)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    while (count && labels[count - 1] == CT_MASKED)
        count--;
    for (int64_t i = 0; i < count; i++)
        hash = add_to_hash(add_to_hash(hash, tokens[i]), labels[i]);
    return hash;
}
