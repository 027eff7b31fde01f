/*
 * The metrics that a model, an objective or a transform names (struct ct_metric).
 */
#ifndef NAMED_H
#define NAMED_H

#include <stdio.h>

#include <ctitan/run.h>

/* Continue an object of JSON with `, "metrics": {..}`, if the run has any. */
int named_write(const struct ct_run *run, FILE *out);
/* Write them to the console, if there are any: "margin: 0.25  accuracy: 0.5". */
void named_log(const struct ct_run *run);

#endif
