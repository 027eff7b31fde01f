#ifndef DATA_H
#define DATA_H

#include <ctitan/model.h>

#include "cli.h"

struct data_options {
    struct args args; /* first */
    int64_t first, count;
    const char *reference, *teacher, *output;
    int64_t top_k;
    bool check;
};

/* An open data source, and a sample of it. */
struct reader {
    const struct data_options *o;
    struct ct_arena *arena;
    const struct ct_tokenizer_ops *tokenizer; /* NULL: tokens are shown as numbers */
    const struct ct_data_ops *ops;
    struct ct_data *data;
    int64_t seq_len, vocabulary; /* vocabulary: the model's; 0: unknown */
    void **sample;               /* by stream */
    void **keys;                 /* of those, tokens, labels and documents */
    const int32_t *tokens, *labels, *documents;
    bool colours;
    int32_t *ends; /* tokens that end a text or a turn */
    size_t ends_count;
    int64_t samples, all_documents, trained;         /* found */
    int64_t unlabelled, full, endless, twice, empty; /* faults */
};

/* Print the sample that was read last. */
void data_show(const struct reader *r, int64_t index);
/* Count its faults. */
void data_check(struct reader *r);
/* Print what was counted. CT_EINVAL: there are faults. */
int data_report(const struct reader *r);
/* Read the tokens, labels and documents of a sample, and no other stream: those may be made from
   what is yet to be written. Returns what ct_data_read does. */
int data_read(const struct reader *r, int64_t index);

#endif
