/*
 * Validation: the mean loss of each set, and the step after which it was best.
 */
#ifndef VALIDATE_H
#define VALIDATE_H

#include "train/feed.h"

struct validated_set {
    const char *name; /* NULL: the data source's own held-out data */
    struct feed feed;
    bool short_said;
};

struct validation {
    struct ct_run *run;
    struct validated_set *set;
    size_t count;
    const struct validated_set *decides; /* which step is best */
};

int validation_init(struct validation *v, struct ct_run *run);
/* A validation of zeros is finished. */
void validation_finish(struct validation *v);

/* Validate all sets after a step. The run may be stopped by its patience. */
int validation_run(struct validation *v, int64_t step);
/* Stop the run if its patience had ended before it was resumed. */
void validation_check_patience(struct ct_run *run);

#endif
