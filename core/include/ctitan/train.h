/*
 * Training: the steps of a run, with the rules of [training], [lr_scheduler] and [validation].
 */
#ifndef CT_TRAIN_H
#define CT_TRAIN_H

#include <ctitan/run.h>

CT_BEGIN_DECLS

/* Run all steps of the recipe, validation included. 0: the steps or the data ended.
   CT_ECONFIG: the data does not suffice for the first step. */
CT_API int ct_run_train(struct ct_run *run);
/*
 * Ask the run to end after the current step, as if it were the last; RUN_END follows. All ranks
 * must ask in the same step. why is a message for the user and must live as long as the run. May be
 * called from any thread and from a signal handler.
 */
CT_API void ct_run_stop(struct ct_run *run, const char *why);

/* The rule of [lr_scheduler], TorchTitan's: warm-up, stable, decay. */
CT_API double ct_lr_factor(const struct ct_lr_config *config, int64_t step, int64_t total);

CT_END_DECLS

#endif
