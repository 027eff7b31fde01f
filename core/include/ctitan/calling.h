/*
 * The code of a plugin that each thread calls: for messages about crashes, and about plugins that
 * do not return. Whoever calls a plugin's code says so here; it costs a few stores.
 *
 * Records are static, so the handler of a signal may read those of all threads. A record is written
 * by its thread alone, and `kind`, `waits` and `calls` in one store each.
 */
#ifndef CT_CALLING_H
#define CT_CALLING_H

#include <ctitan/op.h>

CT_BEGIN_DECLS

struct ct_calling {
    const char *kind;       /* "hook", "transform", ..; NULL: code of ctitan */
    const char *name;       /* of the offer, or of the plugin: "plugin ema" */
    const char *event;      /* of a hook; NULL: none */
    const struct ct_op *op; /* that runs; NULL: none */
    const struct ct_kernel *kernel;
    int microbatch; /* of op; -1: none */
    int64_t step;
    bool waits;              /* for another rank; set by ct_calling_wait() */
    volatile unsigned calls; /* begun so far, and signs of life */
};

/* This thread's record. All threads after the first 64 share one. */
CT_API struct ct_calling *ct_calling(void);
/* Record number i, in the order in which threads came; NULL: there are no more. */
CT_API const struct ct_calling *ct_calling_at(int i);

/* Before and after a call of code that an offer of this kind and name has. The first forgets this
   thread's message, so that a failure without one is not taken for an earlier one. */
CT_API struct ct_calling ct_calling_begin(const char *kind, const char *name);
CT_API void ct_calling_end(const struct ct_calling *before);
/* Set `waits` of this thread's record. */
CT_API void ct_calling_wait(struct ct_calling *calling, bool waits);
/* For code that works for more than a few seconds: a sign of life. After SIGTERM or Ctrl-C, code
   of a plugin that gives none for 20 s ends the process. */
CT_API void ct_calling_alive(void);

CT_END_DECLS

#endif
