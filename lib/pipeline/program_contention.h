#ifndef CT_PROGRAM_CONTENTION_H
#define CT_PROGRAM_CONTENTION_H

#include <ctitan/lib/app/simulate.h>
#include <ctitan/op.h>

/* Moves the factors, by index and instruction, towards how many times as long as alone each takes
   beside what `result` says runs meanwhile: by this part of the way, 1 for the whole. Returns the
   largest relative difference of a factor from there. */
double ct_contention_stretch(const struct ct_simulate_request *request,
                             const struct ct_simulated *result, double part, double **factor);

#endif
