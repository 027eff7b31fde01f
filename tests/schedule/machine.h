/*
 * A machine that does what lists of actions say, on values instead of tensors, and knows at the end
 * whether the step was right. It shares nothing with the library's proof: it tries all ranks again
 * and again until nothing moves.
 */
#ifndef MACHINE_H
#define MACHINE_H

#include <ctitan/lib/pipeline.h>

/* NULL: the step is right. Else what went wrong first, or what is wrong at the end. */
const char *machine_run(const struct ct_schedule *schedule, bool own_streams);

#endif
