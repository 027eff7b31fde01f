/* Choices that ranks must have in common: see agreement.c. */
#ifndef CPU_AGREEMENT_H
#define CPU_AGREEMENT_H

#include <ctitan/hook.h>
#include <ctitan/run.h>

#include "cpu.h"

extern const struct ct_hook cpu_agreement;

/* The device opens; so many ranks are on this machine. */
void cpu_agreement_open(int local_ranks);
/* Whether all ranks of a run are on this machine, or it is not known where they are. */
bool cpu_on_one_machine(const struct ct_run *run);
/* Note what this rank has chosen, by a name that means the same on all ranks. */
int cpu_note_choice(const struct ct_run *run, const char *name, bool chosen);

#endif
