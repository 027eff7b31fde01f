/*
 * Waiting: poll after a few pauses (only if every rank can have a processor), then after some
 * sched_yield, which let the awaited rank run, then sleep on a futex. A yield that took long gave
 * the processor to a thread that computes: a sleeper gets it back when it is woken, one that yields
 * only when that thread's time slice ends. Sleepers wake every tenth of a second to check for dead
 * ranks and the deadline.
 */
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "local.h"

#define SPINS 10
#define YIELD_SECONDS 20e-6
#define LOOK_AROUND 0.1 /* seconds */

double local_deadline(const struct comm *comm)
{
    return ct_now() + comm->timeout;
}

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* seconds is less than 1. */
static void sleep_on(struct doorbell *bell, uint32_t seen, double seconds)
{
    struct timespec timeout = {.tv_nsec = (long)(seconds * 1e9)};

    futex(&bell->word, FUTEX_WAIT, seen, &timeout);
}

bool local_pause(struct comm *comm, struct patience *p, struct doorbell *bell, uint32_t seen)
{
    int spins = comm->crowded ? 0 : SPINS;
    double left;

    if (p->turns < spins + local_config.yields) {
        if (p->turns++ < spins) {
            relax();
        } else {
            double before = ct_now();

            sched_yield();
            if (ct_now() - before > YIELD_SECONDS)
                p->turns = INT_MAX;
        }
        return false;
    }
    if (!p->registered) {
        p->registered = true;
        p->deadline = local_deadline(comm);
        atomic_fetch_add(&bell->sleepers, 1);
        return false;
    }
    left = p->deadline - ct_now();
    if (left > 0)
        sleep_on(bell, seen, left < LOOK_AROUND ? left : LOOK_AROUND);
    return atomic_load(&bell->word) == seen;
}

void local_rest(struct patience *p, struct doorbell *bell)
{
    if (p->registered)
        atomic_fetch_sub(&bell->sleepers, 1);
    *p = (struct patience){0};
}

void local_ring(struct doorbell *bell)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (!atomic_load_explicit(&bell->sleepers, memory_order_relaxed))
        return;
    atomic_fetch_add(&bell->word, 1);
    futex(&bell->word, FUTEX_WAKE, INT_MAX, NULL);
}
