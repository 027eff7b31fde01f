/*
 * The executor between its sources: executor.c binds a program to memory, walk.c walks it and tells
 * what happens, watch.c observes collectives on devices that only enqueue. Private to core/run.
 */
#ifndef CT_EXECUTOR_H
#define CT_EXECUTOR_H

#include <ctitan/hook.h>
#include <ctitan/program.h>

/* A collective that was enqueued, and of which not all has been told. */
struct ct_watched {
    const struct ct_event_data *event;
    int begin, end; /* device events */
    bool started;
};

struct ct_watch {
    bool active; /* in this step */
    bool blind;  /* the device does not say */
    struct ct_watched *item;
    size_t count;
    double asked; /* when, last */
};

struct ct_executor {
    const struct ct_program *program;
    struct ct_device *device;
    struct ct_arena arena;
    char *base, *host;        /* of this program's offsets, but for borrowed values */
    size_t bytes, host_bytes; /* reserved; 0: borrowed from owner */
    bool lent;                /* the memory is somebody else's */
    struct ct_executor *owner;
    struct ct_instruction *init, *step;              /* with addresses */
    struct ct_event_data *init_events, *step_events; /* by instruction; of collectives only */
    struct ct_watch watch;

    int64_t *first_write; /* by value id: the first instruction of the step that writes it */
    int64_t copy_before;  /* the first that must wait for the copies; INT64_MAX: none */
    int64_t copy_ticket;  /* of the last one; 0: none goes on */
};

/* Bytes of a value's memory, `here`, to the host or from it. */
int ct_executor_move(struct ct_executor *e, const struct ct_value *v, char *here, char *host,
                     size_t bytes, bool out);

/* ---- watch.c ---- */

/* Collectives must be watched in the coming step: so many more device events are needed. */
int ct_watch_begin(struct ct_executor *e);
/* The events around the collective that is enqueued next; -1: it is not watched. */
int ct_watch_next(const struct ct_executor *e, const struct ct_event_data *event);
void ct_watch_add(struct ct_executor *e, const struct ct_event_data *event);
/* Tell what has happened by now. */
int ct_watch_look(struct ct_executor *e);
/* Tell the rest as it happens, until everything has. */
int ct_watch_wait(struct ct_executor *e);
/* After the end of a step: what could not be asked for. */
int ct_watch_end(struct ct_executor *e);

#endif
