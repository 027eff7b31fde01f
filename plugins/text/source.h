/*
 * The samples of one corpus.
 *
 * Its tokens lie in a mapped file (store.h), from which the documents of the run's part (trained or
 * held out) are chosen. Memory grows by the number of documents only, 16 bytes each, or 24 where
 * some are held out. A sample is a window or a row of an epoch, and every epoch has the same number
 * of them, so a sample's index determines both.
 *
 * Joined, an epoch is an order of the documents. Their concatenated tokens are split into windows
 * of seq_len + 1 that overlap by one token. The order of the current epoch and the sums of its
 * documents' lengths are cached. Packed (packing.h), the rows of all epochs are the same, and an
 * epoch is an order of them.
 */
#ifndef SOURCE_H
#define SOURCE_H

#include <ctitan/model.h>

#include "packing.h"
#include "permutation.h"
#include "store.h"

struct source_request {
    struct store_request store;
    const struct ct_data_request *data;
    double validation_fraction;
    const struct ct_validation_set *set; /* whose data it is; NULL: of none */
    bool whole; /* all documents are of the run's part: validation has files of its own */
    bool repeat, shuffle, document_mask, per_sequence;
    struct packing_request packing; /* its width is seq_len */
};

struct source {
    int64_t seq_len, samples; /* samples per epoch */
    int64_t passed;           /* samples that an earlier stage of the run has read */
    uint64_t seed;
    bool repeat, shuffle, document_mask;
    bool per_sequence; /* the weights of a document's labels in a row are one together */

    struct store store;
    int64_t *part, count; /* documents of this part; NULL: all */

    int64_t epoch, *order; /* order[i]: the epoch's i-th document */
    int64_t *begin;        /* begin[i]: tokens of the epoch before it; begin[count]: all */
    struct permutation windows;
    bool packed;
    struct packing packing; /* if packed, in the place of order and begin */
};

/* paths: as in corpus.h. CT_ECONFIG: no documents, or too few for a sample. */
int source_open(struct source *source, const struct source_request *request, const char *paths);
void source_close(struct source *source);
/* Memory of a sample, seq_len entries each. */
struct source_sample {
    int32_t *tokens, *labels;
    int32_t *documents; /* NULL: they are not needed */
    float *weights;     /* of labels, 0 where they are masked; NULL: they are not needed */
};

/* Go on behind the first samples of another source, if it has the same documents: as far in the
   epoch, in samples of this one. */
void source_go_on(struct source *source, const struct source *before, int64_t samples);
/* As ct_data_ops.read. */
int source_read(struct source *source, int64_t index, const struct source_sample *sample);
/* Pairs of tokens of sample `index` that see each other within its documents. Padding is one more
   document. */
double source_pairs(struct source *source, int64_t index);

#endif
