/* The state that a run keeps from step to step. Private to core/run. */
#ifndef CT_STATES_H
#define CT_STATES_H

#include <ctitan/pass.h>

struct ct_run;

/* "list": makes run->states; provides "listed". */
extern const struct ct_transform ct_pass_states;

/* Find this rank's values of the list, once its graph is finished. */
void ct_states_bind(struct ct_run *run);

#endif
