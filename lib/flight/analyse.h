/*
 * Between the sources of the analysis.
 *
 *   analyse.c   the table of rules; R1, R2, R7, R8
 *   mismatch.c  R3: calls that do not match
 *   wait.c      R4 to R6: who waits for whom
 *   page.c      facts in words
 *
 * A rule looks at a run. If it decides, it blames a rank or sets the verdict's rule, and says why.
 */
#ifndef CT_FLIGHT_ANALYSE_H
#define CT_FLIGHT_ANALYSE_H

#include "read.h"

/* ---- verdicts ---- */

/* Append to the text. */
void ct_flight_say(struct ct_flight_verdict *v, const char *fmt, ...) CT_PRINTF(2, 3);
/* "group 'fsdp' [0 1 2]" */
void ct_flight_say_group(struct ct_flight_verdict *v, const struct ct_flight_members *m);
/* "step 3, reading data, since 1.50 s" */
void ct_flight_say_position(struct ct_flight_verdict *v, const struct ct_flight_run *run, int rank);
/* rank -1: no rank is guilty. */
void ct_flight_blame(struct ct_flight_verdict *v, enum ct_flight_rule rule, int rank);
bool ct_flight_is_guilty(const struct ct_flight_verdict *v, int rank);

/* ---- facts ---- */

/* By a signal, now or when the first rank failed. */
bool ct_flight_is_stopped(const struct ct_flight_run *run, int rank);
/* The least and the most calls of a group that ended, of all members. */
void ct_flight_calls_ended(const struct ct_flight_run *run, const struct ct_flight_members *m,
                           int64_t *least, int64_t *most);

/* The group as member i has it; NULL: it has no record, or not that group. */
const struct ct_flight_group *ct_flight_member(const struct ct_flight_run *run,
                                               const struct ct_flight_members *m, int i);
/* Its last call has begun, and not ended. */
bool ct_flight_unfinished(const struct ct_flight_group *g);

/* ---- words ---- */

/* "group 'tp' [0 1]" */
void ct_flight_describe_group(const struct ct_flight_members *m, char *text, size_t room);
/* "dead", "running" */
const char *ct_flight_state_of(const struct ct_flight_run *run, int rank);

/* ---- rules ---- */

void ct_flight_compare_programs(const struct ct_flight_run *run, struct ct_flight_verdict *v);
void ct_flight_compare_host_calls(const struct ct_flight_run *run, struct ct_flight_verdict *v);
/* A member ended a call that cannot have ended. */
void ct_flight_find_early(const struct ct_flight_run *run, struct ct_flight_verdict *v);
/* R4 to R6. */
void ct_flight_follow_waits(const struct ct_flight_run *run, struct ct_flight_verdict *v);
/* The ranks that wait in calls, printed after the cause. */
void ct_flight_say_waiters(const struct ct_flight_run *run, struct ct_flight_verdict *v);

#endif
