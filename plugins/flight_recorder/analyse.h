/*
 * Between the sources of the analysis.
 *
 *   analyse.c   the table of rules; R1, R2, R7, R8
 *   mismatch.c  R3: calls that do not match
 *   wait.c      R4 to R6: who waits for whom
 *
 * A rule looks at a run. If it decides, it blames a rank or sets the verdict's rule, and says why.
 */
#ifndef FLIGHT_ANALYSE_H
#define FLIGHT_ANALYSE_H

#include "flight.h"

/* ---- verdicts ---- */

/* Append to the text. */
void flight_say(struct flight_verdict *v, const char *fmt, ...) CT_PRINTF(2, 3);
/* "group 'fsdp' [0 1 2]" */
void flight_say_group(struct flight_verdict *v, const struct flight_members *m);
/* "step 3, reading data, since 1.50 s" */
void flight_say_position(struct flight_verdict *v, const struct flight_run *run, int rank);
/* rank -1: no rank is guilty. */
void flight_blame(struct flight_verdict *v, enum flight_rule rule, int rank);
bool flight_is_guilty(const struct flight_verdict *v, int rank);

/* ---- facts ---- */

/* The group as member i has it; NULL: it has no record, or not that group. */
const struct flight_group *flight_member(const struct flight_run *run,
                                         const struct flight_members *m, int i);
/* Its last call has begun, and not ended. */
bool flight_unfinished(const struct flight_group *g);

/* ---- rules ---- */

void flight_compare_programs(const struct flight_run *run, struct flight_verdict *v);
void flight_compare_host_calls(const struct flight_run *run, struct flight_verdict *v);
/* A member ended a call that cannot have ended. */
void flight_find_early(const struct flight_run *run, struct flight_verdict *v);
/* R4 to R6. */
void flight_follow_waits(const struct flight_run *run, struct flight_verdict *v);
/* The ranks that wait in calls, printed after the cause. */
void flight_say_waiters(const struct flight_run *run, struct flight_verdict *v);

#endif
