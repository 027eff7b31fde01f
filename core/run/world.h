/* The group of all ranks. Private to core/run. */
#ifndef CT_WORLD_H
#define CT_WORLD_H

struct ct_run;

/* Collective, once the communicator is open. */
int ct_world_open(struct ct_run *run);

#endif
