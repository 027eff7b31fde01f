/*
 * Hooks: observers of a run. Metrics, profiler, recorder, checkpoints and progress are hooks.
 *
 * A subscriber names the events that it wants; an event without subscribers costs one test. Hooks
 * are called in order of registration, which is that of [plugins] load, on the thread that drives
 * the run. No hook may depend on it: what it needs of another one, that one does on an earlier
 * event. A negative return ends the run with that failure, to which the subscriber's name is added.
 * FAILURE and RUN_END go to every subscriber, whatever the others return. A failure returned from
 * FAILURE is ignored; the first one returned from RUN_END becomes the run's.
 *
 *   PLAN_READY           the program exists, its memory does not yet (also in `plan`)
 *   RUN_LOAD             memory and initial values exist; who has values of an earlier run fills in
 *                        these (ct_run_fill), and sets the progress (run->progress)
 *   RUN_READY            all that hooks on RUN_LOAD have filled is there, in whatever order plugins
 *                        are loaded: a hook may look at values, and set those that follow from them
 *                        (ct_run_write), and the progress, before the first step
 *   STEP_BEGIN, _END     around a step; between END and the next BEGIN nothing runs, and values may
 *                        be read, written and copied out
 *   STEPS_END            the last step has ended, and no other follows: as [training] steps says,
 *                        because the data ended, or because of ct_run_stop (`code` 1). Its result
 *                        comes again, and its metrics; none of them if steps behind it were taken
 *                        back. It comes before the validation of that step, but after it where that
 *                        stops the run ([validation] patience). Not if the run trained no step that
 *                        stands, or failed
 *   SECTION_BEGIN, _END  around the enqueueing of one item of the program's order
 *   OP_BEGIN, _END       around the enqueueing of one instruction. On stream 0 of the devices cpu
 *                        and reference the instruction runs at this time. On other streams and on
 *                        GPUs it does not: `query` (device.h) tells when it has been done
 *   COLLECTIVE_ENQUEUED  before a collective is enqueued
 *   COLLECTIVE_STARTED   the collective begins on its stream on the device
 *   COLLECTIVE_FINISHED  the collective has been done on the device
 *   VALIDATED            after a set has been validated, with its result
 *   FAILURE              the run ends with a failure, in `message` and `code`; also if it could not
 *                        be opened
 *   RUN_END              the run has ended: its steps, its data, or ct_run_stop
 *   COLLECTIVE_FAILED    the collective, which had begun, failed; `message` and `code`
 *   CALL_BEGIN, _END     around a call on host memory by the run or a hook (ct_group_barrier
 *                        and the like, comm.h); no END follows if it fails. Calls in the
 *                        group of all ranks have a run, and a step: the one being run, or between
 *                        two the next one. Calls in other groups have neither
 *   RUN_OPEN             a run that will train begins to open: it has a recipe, a rank and a world
 *                        only
 *   SAVE_BEGIN, _END     around writing the weights to [model] save_to, also if that fails; a hook
 *                        may set values on BEGIN, and put them back on END
 *   JOB_END              in the process that supervises ranks: all of them have ended. run is NULL
 *   NOTE                 ct_run_note: something happened that people should know, in `kind` and
 *                        `message`
 *   STAGE_END, _BEGIN    between two steps, the run goes over to another stage (stage.h), also back
 *                        to an earlier one. On END it still has the graphs, programs and data of
 *                        the former stage: a hook lets go of what it holds of them. The last step's
 *                        result and metrics come again, if the run trained it and it stands. On
 *                        BEGIN it has those of the new one, and its options are set
 *
 * STARTED and FINISHED follow the device. Where kernels run on the host's threads (cpu, reference,
 * and cuda without nccl), the thread of the stream sends them right before and after the call.
 * Where kernels are only enqueued (struct ct_device's `enqueues`), the core records a device event
 * before and after, and polls both while it enqueues and while it waits for the end of the step.
 * The thread that drives the run then sends them, at most about a tenth of a millisecond late in
 * that wait. Where a device replays a whole step as one graph ([cuda] graph), its events cannot be
 * polled: both are sent after the end of the step.
 *
 * COLLECTIVE_FAILED is sent by the thread of the stream, where kernels run on the host's threads.
 * Elsewhere the communicator sends it, once, from any thread, with the group if it knows it: which
 * collective failed it does not know, so run and instruction are NULL. What had begun and not
 * finished by then has failed.
 *
 * The events of one collective have the same index, group and sequence. A group is identified
 * by its ranks, name and instance (comm.h). All its ranks number its calls 1, 2, .. alike, so what
 * one rank reports can be matched with what the others report.
 */
#ifndef CT_HOOK_H
#define CT_HOOK_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

#define CT_EVENTS(X)                                                                               \
    X(PLAN_READY)                                                                                  \
    X(RUN_READY)                                                                                   \
    X(STEP_BEGIN)                                                                                  \
    X(STEP_END)                                                                                    \
    X(SECTION_BEGIN)                                                                               \
    X(SECTION_END)                                                                                 \
    X(OP_BEGIN)                                                                                    \
    X(OP_END)                                                                                      \
    X(COLLECTIVE_ENQUEUED)                                                                         \
    X(COLLECTIVE_STARTED)                                                                          \
    X(COLLECTIVE_FINISHED)                                                                         \
    X(VALIDATED)                                                                                   \
    X(FAILURE)                                                                                     \
    X(RUN_END)                                                                                     \
    X(COLLECTIVE_FAILED)                                                                           \
    X(CALL_BEGIN)                                                                                  \
    X(CALL_END)                                                                                    \
    X(JOB_END)                                                                                     \
    X(RUN_OPEN)                                                                                    \
    X(SAVE_BEGIN)                                                                                  \
    X(SAVE_END)                                                                                    \
    X(NOTE)                                                                                        \
    X(STAGE_END)                                                                                   \
    X(STAGE_BEGIN)                                                                                 \
    X(RUN_LOAD)                                                                                    \
    X(STEPS_END)

enum ct_event {
#define X(id) CT_EVENT_##id,
    CT_EVENTS(X)
#undef X
        CT_EVENT_COUNT
};

struct ct_run;
struct ct_program;
struct ct_instruction;
struct ct_launch;
struct ct_group;
struct ct_call;
struct ct_step_result;

/* How a supervised job ended. */
struct ct_job_end {
    int ranks;
    const int *status; /* of each, as of waitpid */
    int first;         /* the rank that failed first; -1: none did by itself */
    int rank0;         /* the first of these ranks, where others run on other hosts */
    /* Where hosts have other dump folders than this process: copy their files FOLDER/NAME* to
       FOLDER/hosts/HOST of this one. Returns how many hosts gave some. NULL: all ranks were of this
       host. */
    int (*gather)(const struct ct_job_end *job, const char *folder, const char *name);
    void *context;
    /* Last step with which the job would go on if it began again. It is -1 at first, and set by
       hooks that save. */
    int64_t *saved;
    /* Text that a rank of any host sent last (ct_launch_tell), and when, in seconds of this
       process's CLOCK_MONOTONIC; NULL: none. */
    const char *(*told)(const struct ct_job_end *job, int rank, double *time);
};

/* A field that is not said below to be set for an event is 0 or NULL. */
struct ct_event_data {
    size_t size; /* of this struct */
    enum ct_event event;
    double time;         /* seconds of CLOCK_MONOTONIC */
    struct ct_run *run;  /* NULL: the program is of no run (metrics measuring the peak) */
    int64_t step;        /* 1-based; 0: before the first */
    const char *message; /* FAILURE, COLLECTIVE_FAILED, NOTE; JOB_END: NULL if the job succeeded */
    /* STEP_END, VALIDATED, FAILURE, RUN_END; STEPS_END and STAGE_END, where it is known */
    const struct ct_step_result *result;

    /* SECTION, OP and COLLECTIVE events. A run has programs for training and for validation. */
    const struct ct_program *program;
    /* Index of the instruction in program->step; below 0: in program->init, from its end. */
    int64_t index;
    const struct ct_instruction *instruction; /* as lowered: &program->step[index] */
    /* The same call, until the hook returns. Its tensors have addresses in OP events, in
       COLLECTIVE_ENQUEUED, and where collectives run on the host's threads. SECTION: NULL. */
    const struct ct_launch *launch;
    const char *section; /* of its op: "F", "2SEND_F" */
    int microbatch;      /* -1: once per step */

    /* COLLECTIVE events. */
    const struct ct_group *group; /* also of CALL events. NULL: this rank alone, or the op has no
                                     ct_collective_ops */
    /* Number of this call in its group, where programs and the host count together. 0: a message
       of the host (send, receive, exchange), which is between two ranks. */
    int64_t sequence;

    int code; /* FAILURE, COLLECTIVE_FAILED: CT_E*. CT_EPEER: because of others. STEPS_END: 1 where
                 the run was stopped before its steps or its data ended */
    const struct ct_call *call;   /* CALL events */
    const struct ct_job_end *job; /* JOB_END */
    int64_t labels;               /* VALIDATED: number of labels that the loss is a mean of */
    const char *set;  /* VALIDATED: name of the set; NULL: the data source's own held-out data */
    bool best;        /* VALIDATED: the loss is the best one so far, of the set that decides */
    const char *kind; /* NOTE */
};

struct ct_hook {
    size_t size;     /* of this struct */
    uint32_t events; /* bits 1 << CT_EVENT_* */
    int (*call)(const struct ct_event_data *data, void *context);
    void *context;
};

/* owner: named in a failure of the hook, "plugin trace"; NULL: none. */
CT_API int ct_hook_register(const struct ct_hook *hook, const char *owner);
/* Whether the event has a subscriber. */
CT_API bool ct_hook_wanted(enum ct_event event);
/* Send a copy of *data with its size set, and with its time set to now if that is 0. */
CT_API int ct_hook_fire(const struct ct_event_data *data);
/* Send FAILURE with this thread's failure, rc. result may be NULL. Returns rc, with the same
   message, whatever the hooks do. */
CT_API int ct_hook_fire_failure(struct ct_run *run, const struct ct_step_result *result, int rc);
/* Tell people what has happened to the run in or after a step: rank 0 warns, and the run's records
   get it (NOTE). kind: a word by which notes are counted, "spike". Called between two steps, or at
   the end; only rank 0's call counts. */
CT_API int ct_run_note(struct ct_run *run, int64_t step, const char *kind, const char *format, ...)
    CT_PRINTF(4, 5);
/* "STEP_END" */
CT_API const char *ct_event_name(enum ct_event event);

CT_END_DECLS

#endif
