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
 * must ask in the same step. why is a message for the user and must live as long as the run. Of
 * several the first one stays: returns whether this is it. May be called from any thread and from a
 * signal handler.
 */
CT_API bool ct_run_stop(struct ct_run *run, const char *why);

/*
 * The program of validation on other data, for hooks between two steps. All ranks make the same
 * calls.
 *
 * ct_evaluation_open needs a run that validates, at RUN_READY or later; data is used, by a thread,
 * until the evaluation is closed. Streams that the graph takes and the data lacks are zeros. What
 * the program fetches is read after a batch: a sum over its microbatches.
 */
struct ct_evaluation;
CT_API int ct_evaluation_open(struct ct_run *run, const struct ct_data_ops *ops,
                              struct ct_data *data, struct ct_evaluation **evaluation);
/* Samples of a batch, over all ranks. */
CT_API int64_t ct_evaluation_samples(const struct ct_evaluation *evaluation);
/* Run the batch that begins with sample `first`. next: the first sample of the batch that follows,
   which is read meanwhile; -1: none. */
CT_API int ct_evaluation_run(struct ct_evaluation *evaluation, int64_t first, int64_t next);
/* The `count` numbers of a fetch. CT_EINVAL: nothing of this name and size is fetched. */
CT_API int ct_evaluation_read(const struct ct_evaluation *evaluation, const char *name,
                              double *numbers, int64_t count);
/* evaluation may be NULL. */
CT_API void ct_evaluation_close(struct ct_evaluation *evaluation);

struct ct_data;
struct ct_data_ops;
/* The work of `count` samples from `first` on, in work. 1: the data source does not tell it. */
CT_API int ct_balance_costs(const struct ct_data_ops *ops, struct ct_data *data, int64_t first,
                            int64_t count, double *work);

/*
 * The slot of each sample of a step of ranks x microbatches x each samples, so that the work of the
 * ranks, in the step and in each of its microbatches, is as equal as the greedy rule "longest
 * first" makes it. slot[i]: of the i-th sample, whose work is work[i]; slots are in the order of
 * microbatches, then ranks, then the samples of one rank in a microbatch. Equal work, and one rank
 * with one microbatch, leave all samples in their order.
 */
CT_API void ct_balance_samples(const double *work, int64_t ranks, int64_t microbatches,
                               int64_t each, int64_t *slot);

/* A mark of parameters, for transforms in front of the phase update: an optimizer has an op for
   those of each region, so that one can end before the next begins, and one for all without it. */
#define CT_UPDATE_BY_REGION "update.by_region"

/* The factor of the gradients is called so where a transform behind "updated" fetches it. Where the
   device makes it negative, the update is withheld: the step is skipped, as one whose norm is not
   finite, and the run goes on. The decision must be the same on all ranks: of the loss, the norm
   and the inputs "loss_limit" and "norm_limit" (run.h). */
#define CT_UPDATE_FACTOR "update_factor"

/* The rule of [lr_scheduler], TorchTitan's: warm-up, stable, decay. */
CT_API double ct_lr_factor(const struct ct_lr_config *config, int64_t step, int64_t total);

CT_END_DECLS

#endif
