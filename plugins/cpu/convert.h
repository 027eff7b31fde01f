/*
 * Conversions between bfloat16 and float32, before and after a matrix product.
 *
 * rows describes the bfloat16 side; the float32 side is dense. cpu_widen and cpu_round run on the
 * calling thread, the _all variants on all threads of the team.
 */
#ifndef CPU_CONVERT_H
#define CPU_CONVERT_H

#include "cpu.h"

void cpu_widen(float *to, const uint16_t *from, struct ct_matrix rows);
/* Rounds to nearest even; add: to += from, rounded once. */
void cpu_round(uint16_t *to, const float *from, struct ct_matrix rows, bool add);

void cpu_widen_all(float *to, const uint16_t *from, struct ct_matrix rows);
void cpu_round_all(uint16_t *to, const float *from, struct ct_matrix rows, bool add);

#endif
