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
    if (held && !data->part)
        return ct_fail(CT_ENOMEM, "%lld documents", (long long)data->count);
    for (uint64_t d = 0, n = 0; held && d < all; d++)
        if ((permutation_at(&parts, d) < held) == validation)
            data->part[n++] = (int64_t)d;
    return 0;
}

/* ---- epochs ---- */

static int set_up(struct source *data, const struct source_request *request)
{
    data->packed = request->packing.how != PACKING_CONCAT;
    if (data->packed) {
        int rc = packing_make(&data->packing, &request->packing, data->store.start, data->part,
                              data->count);

        data->samples = data->packing.rows;
        return rc;
    }
    data->order = calloc((size_t)data->count, sizeof(*data->order));
    data->begin = calloc((size_t)data->count + 1, sizeof(*data->begin));
    return data->order && data->begin
               ? 0
               : ct_fail(CT_ENOMEM, "%lld documents", (long long)data->count);
}

/* The documents in the order of the epoch. */
static void join(struct source *data, int64_t epoch)
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
}

static void arrange(struct source *data, int64_t epoch)
{
    if (!data->packed)
        join(data, epoch);
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

/* Set entry i of a sample to the label `token`. weight 0: it is none. */
static void put_label(const struct source_sample *s, int64_t i, int32_t token, float weight)
{
    s->labels[i] = weight > 0 ? token : IGNORED;
    if (s->weights)
        s->weights[i] = weight;
}

/* Make the weights of entries begin to end, which are a sequence, one together. */
static void share(const struct source *data, const struct source_sample *s, int64_t begin,
                  int64_t end)
{
    double sum = 0;

    if (!data->per_sequence || !s->weights)
        return;
    for (int64_t i = begin; i < end; i++)
        sum += (double)s->weights[i];
    for (int64_t i = begin; sum > 0 && i < end; i++)
        s->weights[i] = (float)((double)s->weights[i] / sum);
}

static int read_window(struct source *data, int64_t window, const struct source_sample *s)
{
    int64_t first = window * data->seq_len, document = document_at(data, first), begin = 0;
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i <= data->seq_len; i++) {
        int64_t previous = document;
        int64_t at;
        int32_t token;
        float weight;

        while (first + i >= data->begin[document + 1])
            document++;
        at = data->store.start[data->order[document]] + first + i - data->begin[document];
        rc = store_read(&data->store, at, &token, &weight);
        if (i < data->seq_len) {
            s->tokens[i] = token;
            if (s->documents)
                s->documents[i] = (int32_t)document;
        }
        if (i > 0)
            put_label(s, i - 1, token, data->document_mask && document != previous ? 0 : weight);
        if (document != previous && i > 0) {
            share(data, s, begin, i - 1);
            begin = i - 1;
        }
    }
    share(data, s, begin, data->seq_len);
    return rc;
}

/* From entry `at` on. The label behind the last token of a part is that of the rest of its
   document, if it is trained on: it is split. */
static int read_part(struct source *data, const struct packing_part *part, bool rest, int64_t at,
                     const struct source_sample *s)
{
    int64_t size = packing_size(part, data->store.start, data->seq_len);
    int64_t from = data->store.start[part->document] + part->from;
    int64_t left = data->store.start[part->document + 1] - from;
    int32_t token;
    float weight;
    int rc = 0;

    put_label(s, at + size - 1, 0, 0);
    for (int64_t i = 0; rc == 0 && i < size + (rest && left > size); i++) {
        rc = store_read(&data->store, from + i, &token, &weight);
        if (i < size)
            s->tokens[at + i] = token;
        if (i > 0)
            put_label(s, at + i - 1, token, weight);
    }
    share(data, s, at, at + size);
    return rc;
}

/* Behind the documents of a row are tokens 0 without labels, as one more document. */
static int read_row(struct source *data, int64_t row, const struct source_sample *s)
{
    const struct packing *p = &data->packing;
    int64_t at = 0;
    int32_t document = 0;
    int rc = 0;

    for (int64_t i = p->row[row]; rc == 0 && i < p->row[row + 1]; i++, document++) {
        int64_t size = packing_size(&p->parts[i], data->store.start, data->seq_len);

        rc = read_part(data, &p->parts[i], p->split > 0, at, s);
        for (int64_t k = at; s->documents && k < at + size; k++)
            s->documents[k] = document;
        at += size;
    }
    for (; at < data->seq_len; at++) {
        s->tokens[at] = 0;
        put_label(s, at, 0, 0);
        if (s->documents)
            s->documents[at] = document;
    }
    return rc;
}

/* The row or window that a sample is, in the epoch that it belongs to. */
static int64_t find_row(struct source *data, int64_t index)
{
    int64_t epoch = index / data->samples, sample = index % data->samples;

    if (epoch != data->epoch)
        arrange(data, epoch);
    return data->shuffle ? (int64_t)permutation_at(&data->windows, (uint64_t)sample) : sample;
}

int source_read(struct source *data, int64_t index, const struct source_sample *s)
{
    int64_t row;

    index += data->passed;
    if (index >= data->samples && !data->repeat)
        return 1;
    row = find_row(data, index);
    return data->packed ? read_row(data, row, s) : read_window(data, row, s);
}

void source_go_on(struct source *data, const struct source *before, int64_t samples)
{
    int64_t read = before->passed + samples, rest = read % before->samples;
    double share = (double)rest / (double)before->samples;

    if (before->store.hash != data->store.hash || before->count != data->count)
        return;
    if (before->samples == data->samples)
        data->passed = read;
    else
        data->passed =
            read / before->samples * data->samples + (int64_t)ceil(share * (double)data->samples);
}

/* ---- work ---- */

static double pairs(int64_t tokens)
{
    return (double)tokens * (double)(tokens + 1) / 2;
}

static double window_pairs(const struct source *data, int64_t window)
{
    int64_t first = window * data->seq_len, end = first + data->seq_len;
    double sum = 0;

    for (int64_t d = document_at(data, first); first < end; d++) {
        int64_t next = data->begin[d + 1] < end ? data->begin[d + 1] : end;

        sum += pairs(next - first);
        first = next;
    }
    return sum;
}

static double row_pairs(const struct source *data, int64_t row)
{
    const struct packing *p = &data->packing;
    int64_t left = data->seq_len;
    double sum = 0;

    for (int64_t i = p->row[row]; i < p->row[row + 1]; i++) {
        int64_t size = packing_size(&p->parts[i], data->store.start, data->seq_len);

        sum += pairs(size);
        left -= size;
    }
    return sum + pairs(left);
}

double source_pairs(struct source *data, int64_t index)
{
    int64_t row = find_row(data, index + data->passed);

    return data->packed ? row_pairs(data, row) : window_pairs(data, row);
}

/* ---- the whole ---- */

void source_close(struct source *data)
{
    store_close(&data->store);
    free(data->part);
    free(data->order);
    free(data->begin);
    packing_finish(&data->packing);
    *data = (struct source){0};
}

static const char *part_name(const struct source_request *request)
{
    return !request->data->validation ? ""
           : request->whole           ? " for validation"
                                      : " held out for validation";
}

static int report_rows(const struct source *data, const struct source_request *request)
{
    const struct packing *p = &data->packing;

    if (!p->rows)
        return ct_fail(CT_ECONFIG,
                       "%s: each of the %lld documents%s is longer than [training] seq_len "
                       "= %lld: raise that, or set [text] too_long to cut or split",
                       request->store.corpus.option, (long long)data->count, part_name(request),
                       (long long)data->seq_len);
    ct_info("text: %zu file%s, %lld document%s%s in %lld rows of %lld tokens, %.1f%% full; longer "
            "than a row: %lld cut, %lld split, %lld dropped",
            data->store.files, ct_plural(data->store.files), (long long)data->count,
            ct_plural(data->count), part_name(request), (long long)p->rows,
            (long long)data->seq_len,
            100.0 * (double)p->tokens / ((double)p->rows * (double)data->seq_len),
            (long long)p->cut, (long long)p->split, (long long)p->dropped);
    return 0;
}

static int report_windows(const struct source *data, const struct source_request *request)
{
    int64_t total = data->begin[data->count];

    if (total <= data->seq_len)
        return ct_fail(CT_ECONFIG,
                       "%s: the %lld tokens of %lld documents%s are too few for one sample of "
                       "%lld tokens and its last label",
                       request->store.corpus.option, (long long)total, (long long)data->count,
                       part_name(request), (long long)data->seq_len);
    ct_info("text: %zu file%s, %lld document%s%s, %lld tokens, %lld sample%s an epoch",
            data->store.files, ct_plural(data->store.files), (long long)data->count,
            ct_plural(data->count), part_name(request), (long long)total, (long long)data->samples,
            ct_plural(data->samples));
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
                            .document_mask = request->document_mask,
                            .per_sequence = request->per_sequence};
    rc = store_open(&data->store, &request->store, paths);
    if (rc == 0)
        rc = choose(data, request);
    if (rc == 0)
        rc = set_up(data, request);
    if (rc == 0) {
        arrange(data, 0);
        rc = data->packed ? report_rows(data, request) : report_windows(data, request);
    }
    if (rc < 0)
        source_close(data);
    return rc;
}
