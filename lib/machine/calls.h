/* The order of measured calls, in which they are kept and found. */
#ifndef CT_MACHINE_CALLS_H
#define CT_MACHINE_CALLS_H

/* Of two struct ct_machine_call, as qsort and bsearch take it: by op, then by shapes. */
int ct_machine_compare_calls(const void *a, const void *b);

#endif
