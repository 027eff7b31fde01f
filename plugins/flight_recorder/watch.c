/*
 * A thread that shows ten times a second that this process is alive, tells the launcher of several
 * hosts what it does, ends it if it is stuck for too long, and answers SIGQUIT with a report; and
 * the analysis after a failure.
 *
 * Every rank that fails calls flight_explain. The first to create the file of the report waits a
 * moment for the others to record their failure, notes what became of those that did not, and
 * writes the report. It is made while the processes live, so that a stopped one can be
 * distinguished from a dead one. The others wait for the report: mpirun ends all ranks when the
 * first has gone.
 *
 * When a rank dies, mpirun and torchrun end the others by SIGTERM, mpirun by SIGKILL a second
 * later. The thread writes the report in between.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/flight.h>
#include <ctitan/log.h>
#include <ctitan/run.h>

#include "flight.h"

#define BEAT 0.1   /* seconds */
#define SETTLE 1.0 /* for others to fail, too */
#define HURRY 0.2  /* the same, after SIGTERM */
#define WRITE 2.0  /* for the report to be written */

static struct {
    pthread_t thread;
    bool started;
    _Atomic int over;
} watch;

/* ---- the report ---- */

static void tell(const struct ct_flight_verdict *verdict, const char *path)
{
    const char *line = verdict->text, *end;

    for (; *line; line = *end ? end + 1 : end) {
        end = strchrnul(line, '\n');
        ct_log(CT_LOG_ERROR, "flight: %.*s", (int)(end - line), line);
    }
    ct_log(CT_LOG_ERROR, "flight: see %s", path);
}

static int report(struct ct_flight_run *run, const char *path)
{
    struct ct_flight_verdict verdict;
    struct ct_new_file file;
    int rc = ct_file_begin(&file, path);

    if (rc < 0)
        return rc;
    ct_flight_analyse(run, &verdict);
    ct_flight_page(run, &verdict, file.out);
    rc = ct_file_end(&file, 0);
    if (rc == 0)
        tell(&verdict, path);
    return rc;
}

static bool settled(const struct ct_flight_run *run)
{
    for (int r = 0; r < run->world; r++)
        if (!run->rank[r].h || (run->rank[r].h->state == CT_FLIGHT_RUNNING &&
                                run->rank[r].process != 'X' && run->rank[r].process != 'T'))
            return false;
    return true;
}

static void witness(const struct ct_flight_run *run)
{
    for (int r = 0; r < run->world; r++) {
        struct ct_flight_header *h = run->rank[r].h;

        if (h && h->state == CT_FLIGHT_RUNNING && run->rank[r].process != '?')
            atomic_store(&h->seen, run->rank[r].process);
    }
}

/* When the first rank of this attempt began. */
static double attempt_begin(const struct ct_flight_run *run)
{
    double begin = 0;

    for (int r = 0; r < run->world; r++) {
        const struct ct_flight_header *h = run->rank[r].h;

        if (h && (begin == 0 || ct_flight_time(h, h->begin) < begin))
            begin = ct_flight_time(h, h->begin);
    }
    return begin;
}

/* True for the first that asks in this attempt. Reports are numbered; those that are older than the
   attempt are of others. */
static bool elected(const struct ct_flight_run *run, char path[CT_PATH_ROOM])
{
    double begin = attempt_begin(run);
    struct stat s;

    for (int n = 1;; n++) {
        int file;

        snprintf(path, CT_PATH_ROOM, "%s/flight/report-%d.txt", run->folder, n);
        file = open(path, O_CREAT | O_EXCL | O_CLOEXEC | O_WRONLY, 0644);
        if (file >= 0)
            return close(file) == 0;
        if (errno != EEXIST || stat(path, &s) < 0 ||
            (double)s.st_mtim.tv_sec + (double)s.st_mtim.tv_nsec * 1e-9 >= begin)
            return false;
    }
}

/* Until another has written the report. */
static void await(const char *path)
{
    double end = ct_now() + SETTLE + WRITE;
    struct stat s;

    while (stat(path, &s) == 0 && s.st_size == 0 && ct_now() < end)
        ct_nap(0.02);
}

static int explain(double settle)
{
    double end = ct_now() + settle;
    char path[CT_PATH_ROOM];
    struct ct_flight_run run;
    bool chosen = false;
    int rc;

    while ((rc = ct_flight_run_open(ct_config.job.dump_folder, true, &run)) == 0) {
        chosen = chosen || elected(&run, path);
        if (!chosen || settled(&run) || ct_now() > end)
            break;
        ct_flight_run_close(&run);
        ct_nap(0.05);
    }
    if (rc < 0)
        return rc;
    if (chosen) {
        witness(&run);
        rc = report(&run, path);
    } else {
        await(path);
    }
    ct_flight_run_close(&run);
    return rc;
}

void flight_explain(void)
{
    if (explain(SETTLE) < 0)
        ct_warn("flight: %s", ct_error_message());
}

static void note_ends(const struct ct_flight_run *run, const struct ct_job_end *job)
{
    for (int i = 0; job->rank0 + i < run->world && i < job->ranks; i++) {
        int r = job->rank0 + i;
        struct ct_flight_header *h = run->rank[r].h;

        if (!h)
            continue;
        h->exit_status = job->status[i];
        h->exit_first = r == job->first;
        h->exit_known = 1;
    }
}

/* Open the files of the folder; if some ranks have none there, or copies of an earlier start, also
   those of other hosts, of which *more says how many gave some. */
static int open_files(const struct ct_job_end *job, bool failed, struct ct_flight_run *run,
                      int *more)
{
    int rc = ct_flight_run_open(ct_config.job.dump_folder, true, run), r = 0;

    *more = 0;
    while (rc == 0 && r < run->world && run->rank[r].h && !run->rank[r].copied)
        r++;
    if (!failed || !job->gather || (rc == 0 && r == run->world))
        return rc;
    if (rc == 0)
        ct_flight_run_close(run);
    *more = job->gather(job, "flight", "rank-");
    return ct_flight_run_open(ct_config.job.dump_folder, true, run);
}

/* The same; *more counts ranks that have sent text and left no file, too. */
static int open_all(const struct ct_job_end *job, bool failed, struct ct_flight_run *run, int *more)
{
    int rc = open_files(job, failed, run, more);
    double ago;

    if (rc < 0)
        return rc;
    run->job = job;
    for (int r = 0; r < run->world; r++)
        *more += !run->rank[r].h && ct_flight_told(run, r, &ago);
    return 0;
}

void flight_job_end(const struct ct_job_end *job, bool failed)
{
    char path[CT_PATH_ROOM];
    struct ct_flight_run run;
    int more;

    if (open_all(job, failed, &run, &more) < 0)
        return; /* no rank got so far */
    note_ends(&run, job);
    /* A report by ranks of this host, which know nothing of other ones, is replaced. */
    if (failed && job->first >= 0 && (elected(&run, path) || more) && report(&run, path) < 0)
        ct_warn("flight: %s", ct_error_message());
    ct_flight_run_close(&run);
}

/* ---- the thread ---- */

static volatile sig_atomic_t asked, told;
static const int ends[] = {SIGTERM, SIGINT};

static void ask(int number)
{
    (void)number;
    asked = 1;
}

static void be_told(int number)
{
    told = number;
}

static void answer(void)
{
    char path[CT_PATH_ROOM];
    struct ct_flight_run run;
    int rc = ct_flight_run_open(ct_config.job.dump_folder, false, &run);

    asked = 0;
    if (rc == 0) {
        snprintf(path, sizeof(path), "%s/flight/asked-%d.txt", run.folder, flight_own->rank);
        rc = report(&run, path);
        ct_flight_run_close(&run);
    }
    if (rc < 0)
        ct_warn("flight: %s", ct_error_message());
}

/* Whether the signal is caught for something else, as by checkpoints. */
static bool is_caught(int number)
{
    struct sigaction now;

    return sigaction(number, NULL, &now) < 0 || now.sa_handler != be_told;
}

/* There is something to explain: another rank has failed or died, or nothing moved any more. */
static bool is_news(void)
{
    struct ct_flight_run run;
    bool news;

    if (ct_flight_run_open(ct_config.job.dump_folder, false, &run) < 0)
        return false;
    news = ct_flight_is_stuck(&run);
    for (int r = 0; r < run.world; r++)
        news = news || (run.rank[r].h &&
                        (ct_flight_is_dead(&run, r) || run.rank[r].h->state == CT_FLIGHT_FAILED));
    ct_flight_run_close(&run);
    return news;
}

/* A rank that has failed explains itself, and ends. */
static void end_by_signal(void)
{
    int number = told;
    bool failed = flight_own->state == CT_FLIGHT_FAILED, news;

    if (failed && ct_now() < flight_own->ended + SETTLE + WRITE)
        return;
    told = 0;
    news = !failed && is_news();
    if (news || !is_caught(number)) {
        flight_own->ended = ct_now();
        if (!failed)
            flight_own->state = CT_FLIGHT_TOLD;
    }
    if (news && explain(HURRY) < 0)
        ct_warn("flight: %s", ct_error_message());
    if (!is_caught(number)) {
        signal(number, SIG_DFL);
        kill(getpid(), number);
    }
}

/* End the process if it has been stuck for too long. */
static void check_progress(void)
{
    double limit = flight_config.hang_timeout, stuck = ct_now() - ct_flight_progress(flight_own);

    if (limit <= 0 || stuck < limit || flight_own->state != CT_FLIGHT_RUNNING)
        return;
    flight_own->code = CT_EIO;
    flight_own->ended = ct_now();
    snprintf(flight_own->message, sizeof(flight_own->message),
             "no progress for %.1f s ([flight_recorder] hang_timeout)", stuck);
    atomic_thread_fence(memory_order_release);
    flight_own->state = CT_FLIGHT_FAILED;
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
        if (told)
            end_by_signal();
        check_progress();
        flight_digest(flight_own->rank);
        ct_nap(BEAT);
    }
    flight_digest_end();
    return NULL;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = ask, .sa_flags = SA_RESTART | SA_ONSTACK}, before;

    sigaction(SIGQUIT, &action, NULL);
    action.sa_handler = be_told;
    for (size_t i = 0; i < CT_COUNT(ends); i++)
        if (sigaction(ends[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(ends[i], &action, NULL);
}

int flight_watch_begin(void)
{
    sigset_t all, mask;
    int rc;

    if (watch.started)
        return 0;
    atomic_store(&watch.over, 0);
    told = 0;
    catch_signals();
    sigfillset(&all); /* signals are for the program's other threads */
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    rc = pthread_create(&watch.thread, NULL, beat, NULL);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    watch.started = rc == 0;
    return rc ? ct_fail(CT_EIO, "a thread: %s", strerror(rc)) : 0;
}

void flight_watch_end(void)
{
    for (size_t i = 0; i < CT_COUNT(ends); i++)
        if (!is_caught(ends[i]))
            signal(ends[i], SIG_DFL);
    atomic_store(&watch.over, 1);
    if (watch.started)
        pthread_join(watch.thread, NULL);
    watch.started = false;
}
