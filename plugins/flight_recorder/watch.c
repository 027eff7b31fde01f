/*
 * A thread that shows ten times a second that this process is alive, ends it if it is stuck for
 * too long, and answers SIGQUIT with a report; and the analysis after a failure.
 *
 * Every rank that fails calls flight_explain. The first to create the file of the report waits a
 * moment for the others to record their failure, notes what became of those that did not, and
 * writes the report. It is made while the processes live, so that a stopped one can be told from a
 * dead one.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/run.h>

#include "flight.h"

#define BEAT 0.1   /* seconds */
#define SETTLE 1.0 /* for others to fail, too */

static struct {
    pthread_t thread;
    bool started;
    _Atomic int over;
} watch;

/* ---- the report ---- */

static void tell(const struct flight_verdict *verdict, const char *path)
{
    const char *line = verdict->text, *end;

    for (; *line; line = *end ? end + 1 : end) {
        end = strchrnul(line, '\n');
        ct_log(CT_LOG_ERROR, "flight: %.*s", (int)(end - line), line);
    }
    ct_log(CT_LOG_ERROR, "flight: see %s", path);
}

static int report(const struct flight_run *run, const char *path)
{
    struct flight_verdict verdict;
    struct ct_new_file file;
    int rc = ct_file_begin(&file, path);

    if (rc < 0)
        return rc;
    flight_analyse(run, &verdict);
    flight_page(run, &verdict, file.out);
    rc = ct_file_end(&file, 0);
    if (rc == 0)
        tell(&verdict, path);
    return rc;
}

static bool settled(const struct flight_run *run)
{
    for (int r = 0; r < run->world; r++)
        if (run->rank[r].h && run->rank[r].h->state == FLIGHT_RUNNING &&
            run->rank[r].process != 'X' && run->rank[r].process != 'T')
            return false;
    return true;
}

static void witness(const struct flight_run *run)
{
    for (int r = 0; r < run->world; r++) {
        struct flight_header *h = run->rank[r].h;

        if (h && h->state == FLIGHT_RUNNING && run->rank[r].process != '?')
            atomic_store(&h->seen, run->rank[r].process);
    }
}

/* When the latest rank of this attempt began: its name. */
static int64_t attempt(const struct flight_run *run)
{
    double begin = 0;

    for (int r = 0; r < run->world; r++) {
        const struct flight_header *h = run->rank[r].h;

        if (h && flight_time(h, h->begin) > begin)
            begin = flight_time(h, h->begin);
    }
    return (int64_t)(begin * 1e3);
}

/* True for the first rank that asks. */
static bool elected(const char *path)
{
    int file = open(path, O_CREAT | O_EXCL | O_CLOEXEC | O_WRONLY, 0644);

    if (file >= 0)
        close(file);
    return file >= 0;
}

static void name_report(const struct flight_run *run, char path[CT_PATH_ROOM])
{
    snprintf(path, CT_PATH_ROOM, "%s/flight/report-%lld.txt", run->folder, (long long)attempt(run));
}

static int explain(void)
{
    double end = ct_now() + SETTLE;
    char path[CT_PATH_ROOM];
    struct flight_run run;
    bool chosen = false;
    int rc;

    while ((rc = flight_run_open(ct_config.job.dump_folder, true, &run)) == 0) {
        name_report(&run, path);
        chosen = chosen || elected(path);
        if (!chosen || settled(&run) || ct_now() > end)
            break;
        flight_run_close(&run);
        ct_nap(0.05);
    }
    if (rc < 0)
        return rc;
    if (chosen) {
        witness(&run);
        rc = report(&run, path);
    }
    flight_run_close(&run);
    return rc;
}

void flight_explain(void)
{
    if (explain() < 0)
        ct_warn("flight: %s", ct_error_message());
}

static void note_ends(const struct flight_run *run, const struct ct_job_end *job)
{
    for (int r = 0; r < run->world && r < job->ranks; r++) {
        struct flight_header *h = run->rank[r].h;

        if (!h)
            continue;
        h->exit_status = job->status[r];
        h->exit_first = r == job->first;
        h->exit_known = 1;
    }
}

void flight_job_end(const struct ct_job_end *job, bool failed)
{
    char path[CT_PATH_ROOM];
    struct flight_run run;

    if (flight_run_open(ct_config.job.dump_folder, true, &run) < 0)
        return; /* no rank got so far */
    note_ends(&run, job);
    name_report(&run, path);
    if (failed && job->first >= 0 && elected(path) && report(&run, path) < 0)
        ct_warn("flight: %s", ct_error_message());
    flight_run_close(&run);
}

/* ---- the thread ---- */

static volatile sig_atomic_t asked;

static void ask(int number)
{
    (void)number;
    asked = 1;
}

static void answer(void)
{
    char path[CT_PATH_ROOM];
    struct flight_run run;
    int rc = flight_run_open(ct_config.job.dump_folder, false, &run);

    asked = 0;
    if (rc == 0) {
        snprintf(path, sizeof(path), "%s/flight/asked-%d.txt", run.folder, flight_own->rank);
        rc = report(&run, path);
        flight_run_close(&run);
    }
    if (rc < 0)
        ct_warn("flight: %s", ct_error_message());
}

static double last_progress(void)
{
    double t = flight_own->position.since;

    for (int g = 0; g < (int)flight_own->group_count; g++) {
        const struct flight_group *group = flight_group(flight_own, g);

        t = group->finished.time > t ? group->finished.time : t;
        t = group->started.time > t ? group->started.time : t;
    }
    return t;
}

/* End the process if it has been stuck for too long. */
static void check_progress(void)
{
    double limit = flight_config.hang_timeout, stuck = ct_now() - last_progress();

    if (limit <= 0 || stuck < limit || flight_own->state != FLIGHT_RUNNING)
        return;
    flight_own->code = CT_EIO;
    flight_own->ended = ct_now();
    snprintf(flight_own->message, sizeof(flight_own->message),
             "no progress for %.1f s ([flight_recorder] hang_timeout)", stuck);
    atomic_thread_fence(memory_order_release);
    flight_own->state = FLIGHT_FAILED;
    flight_explain();
    ct_log(CT_LOG_ERROR, "flight: %s", flight_own->message);
    _exit(1);
}

static void *beat(void *argument)
{
    (void)argument;
    while (!atomic_load(&watch.over)) {
        flight_own->beat = ct_now();
        if (asked)
            answer();
        check_progress();
        ct_nap(BEAT);
    }
    return NULL;
}

int flight_watch_begin(void)
{
    struct sigaction action = {.sa_handler = ask, .sa_flags = SA_RESTART};
    sigset_t all, before;
    int rc;

    atomic_store(&watch.over, 0);
    sigaction(SIGQUIT, &action, NULL);
    sigfillset(&all); /* signals are for the program's other threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&watch.thread, NULL, beat, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    watch.started = rc == 0;
    return rc ? ct_fail(CT_EIO, "a thread: %s", strerror(rc)) : 0;
}

void flight_watch_end(void)
{
    atomic_store(&watch.over, 1);
    if (watch.started)
        pthread_join(watch.thread, NULL);
    watch.started = false;
}
