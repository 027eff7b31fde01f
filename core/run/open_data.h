#ifndef OPEN_DATA_H
#define OPEN_DATA_H

#include <ctitan/run.h>

/* Of the training data. */
struct ct_data_request ct_run_data_request(const struct ct_run *run);
/* Open what is trained and validated on, and set [training] steps from epochs. On failure
   ct_run_close_data closes what is open. */
int ct_run_open_data(struct ct_run *run);
void ct_run_close_data(struct ct_run *run);

#endif
