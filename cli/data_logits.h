/*
 * The logits of a model for samples, one after the other, on one rank.
 */
#ifndef DATA_LOGITS_H
#define DATA_LOGITS_H

#include <ctitan/run.h>

/* A sample: each has seq_len entries. */
struct data_sample {
    int32_t *tokens, *labels, *documents; /* documents: NULL where there are none */
};

struct data_logits {
    struct ct_run *run;
    struct ct_arena *arena;
    int64_t seq_len, vocabulary;
    struct data_sample sample; /* to be filled by the caller */
    const struct ct_value *output;
    int32_t *positions;
    char *logits;
    size_t bytes; /* of the logits of a sample */
    double *row;
};

/* Open the recipe's model, which has been applied, for samples of seq_len tokens. The run is
   closed by data_logits_close, also after a failure. */
int data_logits_open(struct data_logits *d, struct ct_recipe *recipe, struct ct_arena *arena,
                     int64_t seq_len, bool documents);
/* Compute those of d->sample, the `index`th. CT_ECONFIG: a token is beyond the vocabulary. */
int data_logits_compute(struct data_logits *d, int64_t index);
/* The logits behind token `position`, valid until the next call. */
const double *data_logits_at(struct data_logits *d, int64_t position);
void data_logits_close(struct data_logits *d);

#endif
