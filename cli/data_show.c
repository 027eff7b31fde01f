/*
 * data: samples as people read them, and the faults that they have.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "data.h"

/* ---- showing ---- */

/* Whether token t is a label: that of the token before it. */
static bool is_label(const struct reader *r, int64_t t)
{
    return t > 0 && r->labels[t - 1] != CT_MASKED && r->labels[t - 1] == r->tokens[t];
}

/* The end of the document that begins with token t. */
static int64_t document_end(const struct reader *r, int64_t t)
{
    int64_t end = t + 1;

    while (end < r->seq_len && (!r->documents || r->documents[end] == r->documents[t]))
        end++;
    return end;
}

static bool is_padding(const struct reader *r, int64_t from, int64_t to)
{
    for (int64_t t = from; t < to; t++)
        if (r->tokens[t] || r->labels[t] != CT_MASKED)
            return false;
    return r->documents && to == r->seq_len && from > 0;
}

static int64_t count_labels(const struct reader *r, int64_t from, int64_t to)
{
    int64_t n = 0;

    for (int64_t t = from; t < to; t++)
        n += r->labels[t] != CT_MASKED;
    return n;
}

static void show_token(const struct reader *r, int32_t token)
{
    char text[512];
    int size = r->tokenizer ? r->tokenizer->decode(token, text, sizeof(text)) : -1;

    if (size > 0)
        fwrite(text, 1, (size_t)size, stdout);
    else if (r->tokenizer)
        printf("<%d>", token);
    else
        printf("%d ", token);
}

static void show_document(const struct reader *r, int64_t from, int64_t to)
{
    bool inside = false;

    for (int64_t t = from; t < to; t++) {
        if (is_label(r, t) != inside) {
            inside = !inside;
            fputs(r->colours ? (inside ? "\033[32m" : "\033[0m") : inside ? "<<" : ">>", stdout);
        }
        show_token(r, r->tokens[t]);
    }
    if (inside)
        fputs(r->colours ? "\033[0m" : ">>", stdout);
    putchar('\n');
}

void data_show(const struct reader *r, int64_t index)
{
    int64_t n = 0, labels = count_labels(r, 0, r->seq_len);

    printf("sample %lld: %lld token%s, %lld label%s\n", (long long)index, (long long)r->seq_len,
           ct_plural(r->seq_len), (long long)labels, ct_plural(labels));
    for (int64_t t = 0, end; t < r->seq_len; t = end, n++) {
        end = document_end(r, t);
        if (is_padding(r, t, end)) {
            printf("-- padding: %lld token%s\n", (long long)(end - t), ct_plural(end - t));
            continue;
        }
        labels = count_labels(r, t, end);
        if (r->documents)
            printf("-- document %lld: tokens %lld to %lld, positions 0 to %lld, %lld label%s\n",
                   (long long)n, (long long)t, (long long)end - 1, (long long)(end - t - 1),
                   (long long)labels, ct_plural(labels));
        show_document(r, t, end);
    }
}

/* ---- checking ---- */

static bool is_end(const struct reader *r, int32_t token)
{
    for (size_t i = 0; i < r->ends_count; i++)
        if (r->ends[i] == token)
            return true;
    return false;
}

/* A document that fills the row may lack its end because it was cut. */
static void check_document(struct reader *r, int64_t from, int64_t to)
{
    int64_t labels = count_labels(r, from, to);
    int32_t bos = r->tokenizer ? r->tokenizer->bos() : -1, last = -1;
    int64_t at = 0; /* of the last label */

    r->all_documents++;
    for (int64_t t = from; t < to; t++)
        if (r->labels[t] != CT_MASKED)
            last = r->labels[at = t];
    if (!labels && to - from > 1)
        *(r->documents && to - from == r->seq_len ? &r->full : &r->unlabelled) += 1;
    r->endless += labels && r->documents && to - from < r->seq_len && !is_end(r, last);
    /* Behind a prompt. The first token of a row may be an answer's that began in the row before. */
    r->empty += labels == 1 && to - from > 2 && is_end(r, last) && at > 0;
    r->twice += bos >= 0 && to - from > 1 && r->tokens[from] == bos && r->tokens[from + 1] == bos;
}

void data_check(struct reader *r)
{
    r->samples++;
    r->trained += count_labels(r, 0, r->seq_len);
    for (int64_t t = 0, end; t < r->seq_len; t = end) {
        end = document_end(r, t);
        if (!is_padding(r, t, end))
            check_document(r, t, end);
    }
}

int data_report(const struct reader *r)
{
    const struct {
        int64_t count;
        const char *what;
    } faults[] = {
        {r->unlabelled, "documents have no label: nothing of them is trained on"},
        {r->full, "documents fill a row without a label: their prompt is longer than seq_len"},
        {r->endless, "documents are trained on without a token that ends a text or a turn"},
        {r->empty, "documents have an empty answer: the token that ends it is trained on alone"},
        {r->twice, "documents begin with the token for that twice"}};
    int64_t all = 0;

    printf("%lld sample%s of %lld tokens, %lld document%s, %.1f%% of the tokens are labels\n",
           (long long)r->samples, ct_plural(r->samples), (long long)r->seq_len,
           (long long)r->all_documents, ct_plural(r->all_documents),
           100.0 * (double)r->trained / ((double)r->samples * (double)r->seq_len));
    for (size_t i = 0; i < CT_COUNT(faults); i++) {
        printf("%8lld %s\n", (long long)faults[i].count, faults[i].what);
        all += faults[i].count;
    }
    return all ? ct_fail(CT_EINVAL, "the data has %lld faults", (long long)all) : 0;
}
