/*
 * Measured speeds of this machine (ctitan/lib/facts.h), so that results do not change from run to
 * run.
 *
 * The file is ctitan/cpu/MODEL.txt, where MODEL names the processor and the versions of oneDNN and
 * of own kernels. Where no file can be written, every process takes the defaults. So does every run
 * with [training] deterministic, whatever the file says: it may be lost, or another on the machine
 * where a run goes on.
 */
#ifndef CPU_TUNING_H
#define CPU_TUNING_H

/* The value of a name without blanks; negative if it is not known, as measure failed and returned
   that, or no file can be written. measure runs under the file's lock, so that ranks that start
   together agree; the others wait. Called on the thread that drives the run. */
double cpu_tuned(const char *name, double (*measure)(void *context), void *context);

#endif
