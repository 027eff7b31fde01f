/*
 * <dump_folder>/status.json: whether a run goes on, and how it ended. For those who look from
 * outside (`ctitan watch`, `ctitan report`).
 */
#ifndef METRICS_STATUS_H
#define METRICS_STATUS_H

#include <ctitan/run.h>

/* A step begins. The first one counts, so that a run that only generates leaves no trace. */
int status_begin(const struct ct_run *run);
/* A step ended. The file is written about once a second. */
int status_step(const struct ct_step_result *step);
/* RUN_END or FAILURE. */
int status_end(const struct ct_event_data *data);
/* JOB_END: rank 0 may have been killed before it could say how the job ended. */
int status_job_end(const struct ct_event_data *data);

#endif
