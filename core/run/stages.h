/* The stages of a run that is open (stage.h): what each has of its own. For core only. */
#ifndef CT_RUN_STAGES_H
#define CT_RUN_STAGES_H

#include <ctitan/run.h>
#include <ctitan/stage.h>

/* Number of stages that a run opens: all, or one where it does not train. */
size_t ct_run_stage_count(const struct ct_run *run);
/* Make room for the stages of a run. */
void ct_run_make_stages(struct ct_run *run);
/* Let run have what a stage has, and set the options of it. While a run is opened, a stage has
   nothing at first but the data of the one before, where that is its own, too. */
int ct_run_turn_to_stage(struct ct_run *run, size_t stage);
/* Open the data of the stage that the run has, if it is its own. */
int ct_run_open_stage_data(struct ct_run *run);
/* Name the data of the stage before that of the run, if there is one. */
void ct_run_name_former_data(const struct ct_run *run, struct ct_data_request *request);
/* The data of a stage that is open. */
const struct ct_data *ct_run_stage_data(const struct ct_run *run, size_t stage);
/* The executor of the first stage, whose memory the others use; NULL: there is none yet. */
struct ct_executor *ct_run_first_executor(const struct ct_run *run);
/* Executors of all stages; data and streams of all. */
void ct_run_close_executors(struct ct_run *run);
void ct_run_close_stages(struct ct_run *run);
/* "the stage from step 40 on (seq_len = 8192)": context of a failure, or nothing in the first. */
int ct_run_name_stage(const struct ct_run *run, int rc);

/*
 * Between two steps: go over to the stage of the next step, if the run is in another one. Its
 * samples are counted from 0 where it has data of its own. A checkpoint may have set the progress:
 * samples_since says which stage's data it counts. last: STAGE_END's result.
 */
int ct_run_change_stage(struct ct_run *run, const struct ct_step_result *last);

#endif
