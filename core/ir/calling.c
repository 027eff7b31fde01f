/* The code of plugins that threads call. */
#include <stdatomic.h>

#include <ctitan/calling.h>

#include "base/error.h"

#define THREADS 64

static struct ct_calling records[THREADS + 1];
static atomic_int taken;
/* In the first block of thread-local memory: a handler of signals may read it. */
static _Thread_local __attribute__((tls_model("initial-exec"))) struct ct_calling *own;

struct ct_calling *ct_calling(void)
{
    if (!own) {
        int i = atomic_fetch_add(&taken, 1);

        own = &records[i < THREADS ? i : THREADS];
    }
    return own;
}

const struct ct_calling *ct_calling_at(int i)
{
    return i < taken && i <= THREADS ? &records[i] : NULL;
}

/* Its thread alone counts. Threads that share a record may lose some signs. */
static void count(struct ct_calling *c)
{
    __atomic_store_n(&c->calls, c->calls + 1, __ATOMIC_RELAXED);
}

struct ct_calling ct_calling_begin(const char *kind, const char *name)
{
    struct ct_calling *now = ct_calling(), before = *now;

    now->name = name;
    __atomic_store_n(&now->kind, kind, __ATOMIC_RELAXED);
    count(now);
    ct_error_forget();
    return before;
}

void ct_calling_wait(struct ct_calling *c, bool waits)
{
    __atomic_store_n(&c->waits, waits, __ATOMIC_RELAXED);
}

void ct_calling_end(const struct ct_calling *before)
{
    struct ct_calling *now = ct_calling();

    __atomic_store_n(&now->kind, before->kind, __ATOMIC_RELAXED);
    ct_calling_wait(now, before->waits);
    now->name = before->name;
    now->event = before->event;
    now->op = before->op;
    now->kernel = before->kernel;
    now->microbatch = before->microbatch;
    now->step = before->step;
}

void ct_calling_alive(void)
{
    count(ct_calling());
}
