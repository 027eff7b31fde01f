/* The order of measured calls, in which they are kept and found. */
#ifndef CT_MACHINE_CALLS_H
#define CT_MACHINE_CALLS_H

/* Compares two struct ct_machine_call for qsort and bsearch: by op, then by shapes. */
int ct_machine_compare_calls(const void *a, const void *b);

#endif
