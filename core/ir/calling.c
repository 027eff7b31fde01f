/* The code of plugins that threads call. */
#include <stdatomic.h>

#include <ctitan/calling.h>

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

struct ct_calling ct_calling_begin(const char *kind, const char *name)
{
    struct ct_calling *now = ct_calling(), before = *now;

    now->name = name;
    now->kind = kind;
    now->calls++;
    return before;
}

void ct_calling_end(const struct ct_calling *before)
{
    struct ct_calling *now = ct_calling();
    unsigned calls = now->calls;

    *now = *before;
    now->calls = calls;
}

void ct_calling_alive(void)
{
    ct_calling()->calls++;
}
