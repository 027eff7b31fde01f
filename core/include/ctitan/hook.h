/*
 * Hooks: where observers see a run. Metrics, profiler, flight recorder and progress are hooks.
 *
 * A subscriber names the events that it wants; an event without subscribers costs one test. Hooks
 * are called in order of registration, on the thread that drives the run; COLLECTIVE_STARTED and
 * COLLECTIVE_FINISHED on the thread of their stream. A negative return ends the
 * run with that failure; from a FAILURE event it is ignored, so that every observer sees the end.
 */
#ifndef CT_HOOK_H
#define CT_HOOK_H

#include <ctitan/base.h>

#define CT_EVENTS(X)                                                                               \
    X(PLAN_READY)                                                                                  \
    X(STEP_BEGIN)                                                                                  \
    X(STEP_END)                                                                                    \
    X(ACTION_BEGIN)                                                                                \
    X(ACTION_END)                                                                                  \
    X(OP_BEGIN)                                                                                    \
    X(OP_END)                                                                                      \
    X(COLLECTIVE_ENQUEUED)                                                                         \
    X(COLLECTIVE_STARTED)                                                                          \
    X(COLLECTIVE_FINISHED)                                                                         \
    X(VALIDATED)                                                                                   \
    X(CHECKPOINT)                                                                                  \
    X(FAILURE)                                                                                     \
    X(RUN_END)

enum ct_event {
#define X(id) CT_EVENT_##id,
    CT_EVENTS(X)
#undef X
        CT_EVENT_COUNT
};

struct ct_run;
struct ct_instruction;
struct ct_step_result;

struct ct_event_data {
    enum ct_event event;
    struct ct_run *run;
    int64_t step;                             /* 1-based */
    const struct ct_instruction *instruction; /* ACTION, OP and COLLECTIVE events */
    const struct ct_step_result *result;      /* STEP_END, VALIDATED */
    const char *message;                      /* FAILURE */
};

struct ct_hook {
    uint32_t events; /* bits 1 << CT_EVENT_* */
    int (*call)(const struct ct_event_data *data, void *context);
    void *context;
};

CT_API int ct_hook_register(const struct ct_hook *hook);
/* Is anybody listening? */
CT_API bool ct_hook_wanted(enum ct_event event);
CT_API int ct_hook_fire(const struct ct_event_data *data);

#endif
