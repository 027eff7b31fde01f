/*
 * The time of a run over all its attempts: attempts.json in the dump folder, to which each start
 * adds one, and from which follows where time was lost.
 */
#ifndef METRICS_GOODPUT_H
#define METRICS_GOODPUT_H

#include <ctitan/run.h>

/* For STEP_BEGIN; the first one begins the attempt. A run that begins with step 1, unless its
   launcher has started it again, is a new one. */
int goodput_begin(const struct ct_run *run);
/* After a step. Writes the file, about once a second at most. */
int goodput_step(const struct ct_run *run, const struct ct_step_result *step);
/* At the end; failed: of a run that failed. */
int goodput_end(const struct ct_run *run, bool failed);
/* Percent of the time since the run's first start in which it trained what it has trained. NAN: it
   has no step yet. */
double goodput_percent(void);

#endif
