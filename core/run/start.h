/* The time until the first step has ended. For the sources of the core. */
#ifndef CT_RUN_START_H
#define CT_RUN_START_H

#include <ctitan/run.h>

/* [comm] start_timeout, or what takes its place. */
double ct_run_start_timeout(void);
/* A part of the start has ended: the time since the part before is its, without that of making
   groups. */
void ct_run_lap(struct ct_run *run, enum ct_start_part part);
/* The first step has ended: calls have [comm] timeout from now on. Every rank calls it after the
   same step. */
void ct_run_started(struct ct_run *run);

#endif
