/*
 * Event files of TensorBoard: records of a length, its checksum, the data and its checksum. The
 * data is a protobuf message, written field by field (tensorflow's event.proto and summary.proto).
 * Each record reaches the file at once, so a run that dies leaves whole records.
 */
#ifndef EVENTS_H
#define EVENTS_H

#include <stdio.h>

#include <ctitan/base.h>

/* The first record: the format's version. CT_EIO. */
int events_begin(FILE *out);

/* A run goes on with this step: what files of before have from it on is of no account. CT_EIO. */
int events_restart(FILE *out, int64_t step);

struct events_scalar {
    const char *tag;
    double value;
};
/* One record with the values at this step. CT_EIO. */
int events_scalars(FILE *out, int64_t step, const struct events_scalar *scalars, size_t count);
/* A text, shown as Markdown. CT_EIO. */
int events_text(FILE *out, const char *tag, const char *text, size_t size);

#endif
