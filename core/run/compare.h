/* Do all ranks run the same? Private to the core. */
#ifndef CT_COMPARE_H
#define CT_COMPARE_H

struct ct_run;

/* All ranks call it. CT_ECONFIG on all of them if the plugins or options of one are not rank 0's,
   with the first that is not. */
int ct_run_compare(struct ct_run *run);

#endif
