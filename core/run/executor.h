/*
 * Interface between the sources of the executor. executor.c binds a program to memory, walk.c runs
 * it and fires hooks, watch.c observes collectives on devices that only enqueue. For core/run only.
 */
#ifndef CT_EXECUTOR_H
#define CT_EXECUTOR_H

#include <pthread.h>

#include <ctitan/hook.h>
#include <ctitan/program.h>

/* An enqueued collective whose events have not all been reported. */
struct ct_watched {
    struct ct_event_data event; /* program NULL: all of them have */
    int begin, end;             /* device events */
    bool started;
};

struct ct_watch {
    bool active; /* in this step */
    bool blind;  /* the device cannot tell */
    struct ct_watched *item;
    size_t count;
    double asked; /* time of the last query */
};

/* An op's launch, in which each instruction puts its addresses before it is enqueued. */
struct ct_bound {
    struct ct_launch launch;
    struct ct_tensor *tensor; /* inputs, then outputs */
    uintptr_t *offset;        /* of each in its buffer; an address where that is the owner's */
};

struct ct_executor {
    const struct ct_program *program;
    struct ct_device *device;
    struct ct_arena arena;
    char *base, *host;          /* bases of the program's offsets, except for borrowed values */
    size_t bytes, host_bytes;   /* reserved; 0: borrowed from owner */
    bool lent;                  /* the memory belongs to somebody else */
    struct ct_executor *owner;  /* whose parameters and states are borrowed; NULL: none */
    struct ct_executor *common; /* whose memory this one runs in, too; NULL: none */
    struct ct_bound *bound;     /* by id of a ct_lowered */
    uintptr_t *address;         /* by buffer, from -1 on: 0 if it is absent, or the owner's */
    size_t collectives;         /* in a step */
    struct ct_watch watch;
    struct ct_instruction_time *times; /* by instruction; NULL: no step was timed yet */
    bool time_next, timed;             /* the next step, the last one */

    int64_t *first_write; /* by value id: the first instruction of the step that writes it */
    int64_t hold_before;  /* first instruction that writes a held value; INT64_MAX: none */
    bool *held;           /* by value id */
    double waited;        /* seconds, for held values */
    bool waits;           /* now */
    bool written;         /* by the host: a parameter, since the last step; of `common`, if any */
    pthread_mutex_t lock; /* protects held and waits */
    pthread_cond_t released;
};

/* The call of an instruction, valid until the next one of the same op. */
struct ct_launch *ct_executor_launch(struct ct_executor *e, const struct ct_instruction *i);
/* Before instruction hold_before: wait for the values that it writes. */
void ct_executor_await_next(struct ct_executor *e);

/* ---- watch.c ---- */

/* Prepare to watch collectives in the coming step. Returns the number of device events that this
   needs, beside the program's. */
int ct_watch_begin(struct ct_executor *e);
/* The events around the collective enqueued next; -1: it is not watched. */
int ct_watch_next(const struct ct_executor *e, const struct ct_event_data *event);
void ct_watch_add(struct ct_executor *e, const struct ct_event_data *event);
/* Report what has happened so far. */
int ct_watch_look(struct ct_executor *e);
/* Report the rest as it happens, until done. */
int ct_watch_wait(struct ct_executor *e);
/* After the end of a step: report what could not be queried. */
int ct_watch_end(struct ct_executor *e);

#endif
