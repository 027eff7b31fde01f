/*
 * How long threads wait for each other at the end of a loop before they give their cores away.
 *
 * libgomp lets them wait for milliseconds. On cores of its own a rank is fastest so: a thread that
 * sleeps takes long to come back. Where other programs want the cores as well, the thread that all
 * wait for then gets none, and a step can take several times as long. So the time that the threads
 * were ready to run and did not (schedstat of proc(5)) is looked at some times a second; where it
 * is large, they sleep almost at once.
 *
 * libgomp has no call for this. It waits briefly while it has more threads than cores
 * (GOMP_SPINCOUNT in its manual), so a thread with a team of its own is started that does nothing,
 * and ends when the cores are free again. What $OMP_WAIT_POLICY or $GOMP_SPINCOUNT says stays;
 * `ctitan train` sets the latter where ranks share a machine.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctitan/clock.h>

#include "cpu.h"

#define LOOK_SECONDS 0.25
#define CROWDED 0.05 /* of the time a thread waited for a core */
#define CALM_LOOKS 4 /* one after the other, until the cores count as free */

static struct {
    int threads, cores;
    int *schedstat;   /* by thread: a file, or -1 */
    uint64_t *waited; /* nanoseconds */
    double looked;
    int calm;
    bool crowded;
    pthread_t idler;
    sem_t free;
} crowd;

/* ---- the team that does nothing ---- */

static void *idle(void *context)
{
    _Atomic int started = 0;

    (void)context;
#pragma omp parallel num_threads(crowd.cores - crowd.threads + 2)
    started++;
    while (sem_wait(&crowd.free))
        ;
    return NULL;
}

static bool start_idler(void)
{
    sigset_t all, before;
    bool ok;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ok = !pthread_create(&crowd.idler, NULL, idle, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}

static void set_crowded(bool crowded)
{
    if (crowded == crowd.crowded)
        return;
    if (crowded && !start_idler())
        return;
    if (!crowded) {
        sem_post(&crowd.free);
        pthread_join(crowd.idler, NULL);
    }
    crowd.crowded = crowded;
}

/* ---- looking ---- */

static void open_schedstat(void *context, int thread, int threads)
{
    char path[64];

    (void)context;
    (void)threads;
    snprintf(path, sizeof(path), "/proc/self/task/%ld/schedstat", (long)syscall(SYS_gettid));
    crowd.schedstat[thread] = open(path, O_RDONLY | O_CLOEXEC);
}

/* Nanoseconds that the thread has been ready and had no core. */
static bool read_waited(int thread, uint64_t *waited)
{
    char text[96];
    ssize_t n = pread(crowd.schedstat[thread], text, sizeof(text) - 1, 0);

    if (n <= 0)
        return false;
    text[n] = '\0';
    return sscanf(text, "%*u %" SCNu64, waited) == 1;
}

/* The largest share of the last `seconds` that a thread waited. */
static double share_waited(double seconds)
{
    double share = 0;

    for (int i = 0; i < crowd.threads; i++) {
        uint64_t before = crowd.waited[i];

        if (read_waited(i, &crowd.waited[i]) && crowd.waited[i] > before) {
            double mine = 1e-9 * (double)(crowd.waited[i] - before) / seconds;

            share = mine > share ? mine : share;
        }
    }
    return share;
}

void cpu_crowd_look(void)
{
    double now, share;

    if (!crowd.threads)
        return;
    now = ct_now();
    if (now - crowd.looked < LOOK_SECONDS)
        return;
    share = share_waited(now - crowd.looked);
    crowd.looked = now;
    crowd.calm = share < CROWDED ? crowd.calm + 1 : 0;
    if (!crowd.calm)
        set_crowded(true);
    else if (crowd.calm >= CALM_LOOKS)
        set_crowded(false);
}

/* ---- beginning and end ---- */

static bool begin_looking(void)
{
    for (int i = 0; i < crowd.threads; i++)
        if (!read_waited(i, &crowd.waited[i]))
            return false;
    crowd.looked = ct_now();
    return true;
}

void cpu_crowd_open(int cores)
{
    int threads = cpu_threads();

    if (crowd.threads || threads < 2 || getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return;
    crowd.schedstat = calloc((size_t)threads, sizeof(*crowd.schedstat));
    crowd.waited = calloc((size_t)threads, sizeof(*crowd.waited));
    crowd.threads = threads;
    crowd.cores = cores > threads ? cores : threads;
    sem_init(&crowd.free, 0, 0);
    if (!crowd.schedstat || !crowd.waited) {
        cpu_crowd_close();
        return;
    }
    cpu_parallel(open_schedstat, NULL);
    if (begin_looking())
        return;
    set_crowded(true); /* as it may be, and nobody knows */
    crowd.looked = INFINITY;
}

void cpu_crowd_close(void)
{
    if (!crowd.threads)
        return;
    set_crowded(false);
    sem_destroy(&crowd.free);
    for (int i = 0; i < crowd.threads && crowd.schedstat; i++)
        if (crowd.schedstat[i] >= 0)
            close(crowd.schedstat[i]);
    free(crowd.schedstat);
    free(crowd.waited);
    crowd.schedstat = NULL;
    crowd.waited = NULL;
    crowd.threads = 0;
}
