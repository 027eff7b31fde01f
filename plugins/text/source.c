#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/log.h>

#include "source.h"

#define IGNORED (-100)
#define WINDOWS (UINT64_C(1) << 63) /* separates their random numbers from the documents' */
#define HELD_OUT_SEED 0x68656c64u   /* makes the held-out part the same in every run */

/* ---- documents ---- */

/* Number of held-out documents among count. */
static int64_t held_out(double fraction, int64_t count)
{
    int64_t wanted = llround(fraction * (double)count);

    if (fraction == 0 || count < 2)
        return 0;
    return wanted < 1 ? 1 : wanted >= count ? count - 1 : wanted;
}

/* The documents of the run's part: order[0 .. count), in the corpus's order. */
static int choose(struct source *data, const struct source_request *request)
{
    uint64_t all = (uint64_t)data->store.count;
    uint64_t held = (uint64_t)held_out(request->validation_fraction, data->store.count);
    struct permutation parts = permutation_make(all, HELD_OUT_SEED, 0);
    bool validation = request->data->validation && !request->whole;

    if (validation && !held)
        return ct_fail(CT_ECONFIG, "no documents to validate on: %s",
                       request->validation_fraction == 0
                           ? "set [text] validation_path or validation_fraction"
                           : "there is only one document; set [text] split to paragraph or line");
    data->count = (int64_t)(validation ? held : all - held);
    data->part = held ? calloc((size_t)data->count, sizeof(*data->part)) : NULL;
    data->order = calloc((size_t)data->count, sizeof(*data->order));
    data->begin = calloc((size_t)data->count + 1, sizeof(*data->begin));
    if (!data->order || !data->begin || (held && !data->part))
        return ct_fail(CT_ENOMEM, "%lld documents", (long long)data->count);
    for (uint64_t d = 0, n = 0; held && d < all; d++)
        if ((permutation_at(&parts, d) < held) == validation)
            data->part[n++] = (int64_t)d;
    return 0;
}

/* ---- epochs ---- */

static void arrange(struct source *data, int64_t epoch)
{
    struct permutation shuffled =
        permutation_make((uint64_t)data->count, data->seed, (uint64_t)epoch);
    const int64_t *start = data->store.start;
    int64_t at = 0;

    for (int64_t i = 0; i < data->count; i++) {
        int64_t n = data->shuffle ? (int64_t)permutation_at(&shuffled, (uint64_t)i) : i;
        int64_t d = data->part ? data->part[n] : n;

        data->order[i] = d;
        data->begin[i] = at;
        at += start[d + 1] - start[d];
    }
    data->begin[data->count] = at;
    data->samples = (at - 1) / data->seq_len;
    data->windows = permutation_make((uint64_t)(data->samples ? data->samples : 1), data->seed,
                                     WINDOWS | (uint64_t)epoch);
    data->epoch = epoch;
}

/* The last document of the epoch that begins at or before a position. */
static int64_t document_at(const struct source *data, int64_t position)
{
    int64_t low = 0, high = data->count - 1;

    while (low < high) {
        int64_t middle = (low + high + 1) / 2;

        if (data->begin[middle] <= position)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

int source_read(struct source *data, int64_t index, int32_t *tokens, int32_t *labels,
                int32_t *documents)
{
    int64_t epoch = index / data->samples, window = index % data->samples;
    int64_t first, document;
    int rc = 0;

    if (epoch > 0 && !data->repeat)
        return 1;
    if (epoch != data->epoch)
        arrange(data, epoch);
    if (data->shuffle)
        window = (int64_t)permutation_at(&data->windows, (uint64_t)window);
    first = window * data->seq_len;
    document = document_at(data, first);
    for (int64_t i = 0; rc == 0 && i <= data->seq_len; i++) {
        int64_t previous = document;
        int64_t at;
        int32_t token;
        bool trained;

        while (first + i >= data->begin[document + 1])
            document++;
        at = data->store.start[data->order[document]] + first + i - data->begin[document];
        rc = store_read(&data->store, at, &token);
        trained = token >= 0;
        token = trained ? token : ~token;
        if (i < data->seq_len) {
            tokens[i] = token;
            if (documents)
                documents[i] = (int32_t)document;
        }
        if (i > 0)
            labels[i - 1] =
                (data->document_mask && document != previous) || !trained ? IGNORED : token;
    }
    return rc;
}

/* ---- the whole ---- */

void source_close(struct source *data)
{
    store_close(&data->store);
    free(data->part);
    free(data->order);
    free(data->begin);
    *data = (struct source){0};
}

static int report(const struct source *data, const struct source_request *request)
{
    const char *held = !request->data->validation ? ""
                       : request->whole           ? " for validation"
                                                  : " held out for validation";
    int64_t total = data->begin[data->count];

    if (total <= data->seq_len)
        return ct_fail(
            CT_ECONFIG,
            "[text] %s: the %lld tokens of %lld documents%s are too few for one sample of "
            "%lld tokens and its last label",
            request->store.corpus.option, (long long)total, (long long)data->count, held,
            (long long)data->seq_len);
    ct_info("text: %zu files, %lld documents%s, %lld tokens, %lld samples an epoch",
            data->store.files, (long long)data->count, held, (long long)total,
            (long long)data->samples);
    return 0;
}

int source_open(struct source *data, const struct source_request *request, const char *paths)
{
    bool validation = request->data->validation;
    int rc;

    *data = (struct source){.seq_len = request->data->seq_len,
                            .seed = request->data->seed,
                            .repeat = request->repeat && !validation,
                            .shuffle = request->shuffle && !validation,
                            .document_mask = request->document_mask};
    rc = store_open(&data->store, &request->store, paths);
    if (rc == 0)
        rc = choose(data, request);
    if (rc == 0) {
        arrange(data, 0);
        rc = report(data, request);
    }
    if (rc < 0)
        source_close(data);
    return rc;
}
