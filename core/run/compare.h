/* Comparison of all ranks' configurations. Private to the core. */
#ifndef CT_COMPARE_H
#define CT_COMPARE_H

struct ct_run;

/* Collective. CT_ECONFIG on all ranks if the plugins or options of one differ from rank 0's; the
   message shows the first difference. */
int ct_run_compare(struct ct_run *run);

#endif
