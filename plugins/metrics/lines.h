/*
 * metrics.jsonl, and the parts metrics-1.jsonl, metrics-2.jsonl, .. that it becomes where it grows
 * too large. Read one after the other, and metrics.jsonl last, they are one file.
 */
#ifndef METRICS_LINES_H
#define METRICS_LINES_H

#include <stdio.h>

#include <ctitan/run.h>

/* Open it to append. anew: the run begins with step 1; files of an earlier run get other names. */
int lines_open(const struct ct_run *run, bool anew, FILE **out);
/* Between two lines: a file of more bytes than `most` (0: any) becomes the next part. */
int lines_turn(const struct ct_run *run, double most, FILE **out);

#endif
