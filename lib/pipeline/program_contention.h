#ifndef CT_PROGRAM_CONTENTION_H
#define CT_PROGRAM_CONTENTION_H

#include <ctitan/lib/app/simulate.h>
#include <ctitan/op.h>

/* Bring the factors, by index and instruction, nearer to how many times as long as alone each takes
   beside what `result`, which was simulated with them, says runs meanwhile; all are 1 at first.
   Returns the largest relative change of a factor. */
double ct_contention_stretch(const struct ct_simulate_request *request,
                             const struct ct_simulated *result, double **factor);

#endif
