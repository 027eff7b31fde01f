#ifndef OPEN_DATA_H
#define OPEN_DATA_H

#include <ctitan/run.h>

/* The request for the training data. */
struct ct_data_request ct_run_data_request(const struct ct_run *run);
/* Open what is trained and validated on, and set [training] steps from epochs. On failure
   ct_run_close_data closes what is open. */
int ct_run_open_data(struct ct_run *run);
void ct_run_close_data(struct ct_run *run);

/* Set run->streams, and those of them that are beside the data source. Opens nothing. */
int ct_run_find_streams(struct ct_run *run);
/* ct_run_close_streams closes those that are open. */
int ct_run_open_streams(struct ct_run *run);
void ct_run_close_streams(struct ct_run *run);

#endif
