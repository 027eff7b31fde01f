/*
 * The launcher: starts ranks, relays their output, and ends them together.
 *
 * One loop polls the pipes, a signalfd and the time. It never waits for whoever reads its output:
 * the outlets hold a part of that, and while they are full, the pipes wait. Each rank leads its own
 * process group. A signal thus also reaches the processes that it started, and a Ctrl-C reaches it
 * once, through us. The kernel kills a rank when its launcher dies.
 *
 * Ranks that fail for the same reason print the same message, which is relayed once. A rank that
 * fails because another one did says so by its exit status, so the cause is named, whichever ends
 * first.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/launch.h>
#include <ctitan/lib/outlet.h>
#include <ctitan/lib/terminal.h>

#define LINE 4096
#define LAST 400 /* characters kept of a rank's last line */

/* One output stream of a rank, relayed line by line. */
struct stream {
    int from, to;       /* from -1: closed */
    bool raw;           /* relay data as it arrives, other than lines that may repeat a message */
    size_t used, shown; /* bytes of the line; those of a raw one that are relayed */
    char line[LINE];
};

struct rank {
    pid_t pid;
    bool running;
    bool follows; /* failed because of another rank */
    int status;
    struct stream out, err;
    char last[LAST]; /* last line on standard error */
    bool echoed;     /* another rank had printed it before */
};

struct launcher {
    int count, running, restart;
    struct rank *ranks;
    struct pollfd *poll;
    int signals;
    sigset_t caught, before;
    char job[64];
    const char *program;

    int first;         /* first rank that failed by itself, or because of another; or -1 */
    bool failed;       /* some rank failed, perhaps because it got a signal to end */
    int received;      /* signals to end */
    bool asked;        /* got SIGQUIT, which ranks answer with a report */
    bool told;         /* the ranks have got SIGTERM */
    double term, kill; /* when to send them; 0: not scheduled */
    double patience, grace, leave;
    bool reads; /* rank 0, from this process's terminal */
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- output ---- */

/* Keep the last line that is not blank. */
static void keep_last(struct rank *r, const char *line, size_t length)
{
    while (length && (line[length - 1] == '\n' || line[length - 1] == ' '))
        length--;
    if (!length)
        return;
    length = length < LAST ? length : LAST - 1;
    memcpy(r->last, line, length);
    r->last[length] = '\0';
    r->echoed = false;
}

/* Is the text, or may what it begins become, a "ctitan: .." message, printed before failing? */
static bool may_be_message(const struct launcher *l, const char *text, size_t length)
{
    size_t n = strlen(l->program);

    return !strncmp(text, l->program, length < n ? length : n) && (length <= n || text[n] == ':');
}

/* Is it a message that another rank has printed, too? */
static bool is_echo(const struct launcher *l, const struct rank *r)
{
    if (!may_be_message(l, r->last, strlen(r->last) + 1))
        return false;
    for (int i = 0; i < l->count; i++)
        if (&l->ranks[i] != r && !strcmp(l->ranks[i].last, r->last))
            return true;
    return false;
}

static void end_line(struct launcher *l, struct rank *r, struct stream *s, size_t length)
{
    char tag[32];
    size_t n = (size_t)snprintf(tag, sizeof(tag), "[rank %d] ", (int)(r - l->ranks));
    char whole[sizeof(tag) + LINE + 1];

    if (s == &r->err) {
        keep_last(r, s->line, length);
        r->echoed = is_echo(l, r);
    }
    if (!(s == &r->err && r->echoed) && s->raw) {
        ct_outlet_write(s->to, s->line + s->shown, length - s->shown);
    } else if (!(s == &r->err && r->echoed)) {
        memcpy(whole, tag, n);
        memcpy(whole + n, s->line, length);
        n += length;
        if (whole[n - 1] != '\n')
            whole[n++] = '\n';
        ct_outlet_write(s->to, whole, n);
    }
    s->used -= length;
    s->shown = 0;
    memmove(s->line, s->line + length, s->used);
}

static void take_lines(struct launcher *l, struct rank *r, struct stream *s)
{
    const char *end;

    while ((end = memchr(s->line, '\n', s->used)))
        end_line(l, r, s, (size_t)(end - s->line) + 1);
    if (s->used == LINE)
        end_line(l, r, s, LINE);
}

/* False: the stream has ended. */
static bool relay(struct launcher *l, struct rank *r, struct stream *s)
{
    ssize_t n = read(s->from, s->line + s->used, LINE - s->used);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n == 0)
        return false;
    s->used += (size_t)n;
    take_lines(l, r, s);
    if (s->raw && s->used > s->shown && !(s->shown == 0 && may_be_message(l, s->line, s->used))) {
        ct_outlet_write(s->to, s->line + s->shown, s->used - s->shown);
        s->shown = s->used;
    }
    return true;
}

static void close_stream(struct launcher *l, struct rank *r, struct stream *s)
{
    if (s->from < 0)
        return;
    if (s->used)
        end_line(l, r, s, s->used);
    close(s->from);
    s->from = -1;
}

/* Relay the rest of an ended rank's pipes; its own children may still hold them open. */
static void drain(struct launcher *l, struct rank *r, struct stream *s)
{
    struct pollfd ready = {.fd = s->from, .events = POLLIN};

    while (s->from >= 0 && poll(&ready, 1, 0) == 1 && relay(l, r, s))
        ;
    close_stream(l, r, s);
}

/* ---- starting ---- */

static void set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", value);
    setenv(name, text, 1);
}

/* Make a process group the one that reads the terminal. */
static void give_terminal(pid_t group)
{
    void (*former)(int) = signal(SIGTTOU, SIG_IGN); /* for a group that does not have it */

    tcsetpgrp(STDIN_FILENO, group);
    signal(SIGTTOU, former);
}

static void become_rank(const struct launcher *l, int rank, char *const *argv, pid_t launcher,
                        const int *out, const int *err)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    setpgid(0, 0);
    signal(SIGINT, SIG_DFL); /* a shell's background jobs ignore it, but ranks must get it */
    sigprocmask(SIG_SETMASK, &l->before, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher)
        _exit(1);
    if (rank == 0 && l->reads)
        give_terminal(getpid());
    else if (null >= 0 && isatty(STDIN_FILENO))
        dup2(null, STDIN_FILENO); /* in the background, reading from a terminal would stop it */
    if (rank == 0 && ct_terminal_columns(STDERR_FILENO))
        set_number("CTITAN_TERMINAL", ct_terminal_columns(STDERR_FILENO));
    if (rank > 0)
        dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", l->count);
    set_number("LOCAL_WORLD_SIZE", l->count);
    set_number("TORCHELASTIC_RESTART_COUNT", l->restart);
    setenv("CTITAN_JOB", l->job, 1);
    execv("/proc/self/exe", argv);
    dprintf(STDERR_FILENO, "starting rank %d: %s\n", rank, strerror(errno));
    _exit(127);
}

static int start_rank(struct launcher *l, int rank, char *const *argv)
{
    struct rank *r = &l->ranks[rank];
    int out[2] = {-1, -1}, err[2] = {-1, -1}, rc = 0;
    pid_t launcher = getpid();

    if ((rank > 0 && pipe2(out, O_CLOEXEC) < 0) || pipe2(err, O_CLOEXEC) < 0)
        rc = ct_fail(CT_EIO, "cannot start rank %d of %d: %s%s", rank, l->count, strerror(errno),
                     errno == EMFILE ? ": raise ulimit -n" : "");
    if (rc == 0)
        r->pid = fork();
    if (rc == 0 && r->pid == 0)
        become_rank(l, rank, argv, launcher, out, err);
    if (rc == 0 && r->pid < 0)
        rc = ct_fail(CT_EIO, "cannot start rank %d of %d: %s", rank, l->count, strerror(errno));
    if (err[1] >= 0)
        close(err[1]);
    if (out[1] >= 0)
        close(out[1]);
    r->out.from = out[0];
    r->err.from = err[0];
    if (rc < 0)
        return rc;
    r->running = true;
    l->running++;
    return 0;
}

static int start(struct launcher *l, char *const *argv)
{
    int rc = 0;

    fflush(NULL);
    for (int i = 0; i < l->count; i++) {
        l->ranks[i].out = (struct stream){.from = -1, .to = STDOUT_FILENO};
        l->ranks[i].err = (struct stream){.from = -1, .to = STDERR_FILENO, .raw = i == 0};
    }
    for (int i = 0; i < l->count && rc == 0; i++)
        rc = start_rank(l, i, argv);
    return rc;
}

/* ---- ending ---- */

static void signal_all(struct launcher *l, int number)
{
    for (int i = 0; i < l->count; i++)
        if (l->ranks[i].running && kill(-l->ranks[i].pid, number) < 0)
            kill(l->ranks[i].pid, number); /* it does not lead its group yet */
}

static void schedule_end(struct launcher *l, double term)
{
    if (l->term == 0 || term < l->term) {
        l->term = term;
        l->kill = term + l->grace;
    }
}

/* A rank has failed. The first failure of its own takes the place of one that followed it. */
static void blame(struct launcher *l, int rank)
{
    struct rank *r = &l->ranks[rank];

    r->follows = WIFEXITED(r->status) && WEXITSTATUS(r->status) == CT_LAUNCH_FOLLOWS;
    if (r->follows)
        r->status = W_EXITCODE(1, 0);
    if (l->first < 0)
        schedule_end(l, now() + l->patience);
    if (l->first < 0 || (l->ranks[l->first].follows && !r->follows && !l->told))
        l->first = rank;
}

static void reap(struct launcher *l)
{
    for (int i = 0; i < l->count; i++) {
        struct rank *r = &l->ranks[i];
        pid_t ended = r->running ? waitpid(r->pid, &r->status, WNOHANG) : 0;

        if (!ended)
            continue;
        if (ended < 0) /* somebody else has its status, so it counts as failed */
            r->status = W_EXITCODE(1, 0);
        r->running = false;
        l->running--;
        drain(l, r, &r->out);
        drain(l, r, &r->err);
        l->failed |= r->status != 0;
        if (l->asked && WIFSIGNALED(r->status) && WTERMSIG(r->status) == SIGQUIT)
            l->received++; /* it does not answer: SIGQUIT ends it, like SIGTERM */
        if (r->status && !l->received)
            blame(l, i);
    }
}

static void take_signal(struct launcher *l)
{
    struct signalfd_siginfo info;

    if (read(l->signals, &info, sizeof(info)) != sizeof(info) || info.ssi_signo == SIGCHLD)
        return;
    if (info.ssi_signo == SIGQUIT) {
        l->asked = true;
        for (int i = 0; i < l->count; i++) /* not the processes that it started */
            if (l->ranks[i].running)
                kill(l->ranks[i].pid, SIGQUIT);
        return;
    }
    l->received++;
    ct_outlet_hurry();
    signal_all(l, l->received == 1 ? (int)info.ssi_signo : SIGKILL);
    schedule_end(l, now() + l->leave);
}

static void end_in_time(struct launcher *l)
{
    double t = now();

    if (l->term > 0 && t >= l->term) {
        signal_all(l, SIGTERM);
        signal_all(l, SIGCONT); /* a stopped rank cannot react to it */
        l->told = true;
        l->term = l->kill;
    }
    if (l->kill > 0 && t >= l->kill)
        signal_all(l, SIGKILL);
}

static int milliseconds_left(const struct launcher *l, bool held)
{
    double left = l->term > 0 ? l->term - now() : 3600;

    left = held ? fmin(left, 0.1) : left; /* until an outlet has room, or nobody reads it */
    return left < 0.01 ? 10 : (int)(left * 1000) + 1;
}

/* A stream that fills a full outlet has to wait. */
static struct pollfd input(const struct stream *s, bool *held)
{
    bool room = s->from < 0 || ct_outlet_has_room(s->to, 2 * LINE);

    *held |= !room;
    return (struct pollfd){.fd = room ? s->from : -1, .events = POLLIN};
}

static void turn(struct launcher *l)
{
    bool held = false;
    int n = 0;

    l->poll[n++] = (struct pollfd){.fd = l->signals, .events = POLLIN};
    for (int i = 0; i < l->count; i++) {
        l->poll[n++] = input(&l->ranks[i].out, &held);
        l->poll[n++] = input(&l->ranks[i].err, &held);
    }
    l->poll[n++] = ct_outlet_poll(STDOUT_FILENO);
    l->poll[n++] = ct_outlet_poll(STDERR_FILENO);
    if (poll(l->poll, (nfds_t)n, milliseconds_left(l, held)) < 0)
        return;
    ct_outlet_push(STDOUT_FILENO);
    ct_outlet_push(STDERR_FILENO);
    for (int i = 0; i < l->count; i++) {
        struct rank *r = &l->ranks[i];

        if (l->poll[1 + 2 * i].revents && !relay(l, r, &r->out))
            close_stream(l, r, &r->out);
        if (l->poll[2 + 2 * i].revents && !relay(l, r, &r->err))
            close_stream(l, r, &r->err);
    }
    if (l->poll[0].revents)
        take_signal(l);
    reap(l);
    end_in_time(l);
}

/* The number of other ranks that ended with first's message. */
static int count_likewise(const struct launcher *l, const struct rank *first)
{
    int count = 0;

    for (int i = 0; *first->last && i < l->count; i++)
        count += l->ranks[i].status == first->status && !strcmp(l->ranks[i].last, first->last);
    return count - 1;
}

static int report(const struct launcher *l, int *brief)
{
    const struct rank *r = l->first < 0 ? NULL : &l->ranks[l->first];
    char how[96];
    int code, others;

    if (!r)
        return l->received && l->failed ? ct_fail(CT_EPEER, "interrupted by a signal") : 0;
    code = WIFEXITED(r->status) && WEXITSTATUS(r->status) == 2 ? CT_ECONFIG : CT_EPEER;
    if (WIFSIGNALED(r->status))
        snprintf(how, sizeof(how), "was killed by signal %d (%s)", WTERMSIG(r->status),
                 strsignal(WTERMSIG(r->status)));
    else
        snprintf(how, sizeof(how), "ended with status %d", WEXITSTATUS(r->status));
    others = count_likewise(l, r);
    if (others > 0)
        snprintf(how + strlen(how), sizeof(how) - strlen(how), ", as did %d other%s", others,
                 others > 1 ? "s" : "");
    ct_fail(code, "rank %d %s", l->first, how);
    if (!*r->last)
        return code;
    if (brief)
        *brief = (int)strlen(ct_error_message());
    return ct_fail(code, "rank %d %s; its last line: %s", l->first, how, r->last);
}

/* ---- all of it ---- */

static bool is_ignored(int number)
{
    struct sigaction action;

    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

/* A job under nohup continues when its terminal is closed. */
static int catch_signals(struct launcher *l)
{
    static const int numbers[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT};

    sigemptyset(&l->caught);
    for (size_t i = 0; i < CT_COUNT(numbers); i++)
        if (numbers[i] != SIGHUP || !is_ignored(SIGHUP))
            sigaddset(&l->caught, numbers[i]);
    sigprocmask(SIG_BLOCK, &l->caught, &l->before);
    l->signals = signalfd(-1, &l->caught, SFD_CLOEXEC | SFD_NONBLOCK);
    return l->signals < 0 ? ct_fail(CT_EIO, "signalfd: %s", strerror(errno)) : 0;
}

static void finish(struct launcher *l, const struct ct_launch_request *request)
{
    signal_all(l, SIGKILL);
    for (int i = 0; l->ranks && i < l->count; i++) {
        if (l->ranks[i].running)
            waitpid(l->ranks[i].pid, &l->ranks[i].status, 0);
        close_stream(l, &l->ranks[i], &l->ranks[i].out);
        close_stream(l, &l->ranks[i], &l->ranks[i].err);
    }
    if (l->reads)
        give_terminal(getpgrp());
    if (l->signals >= 0) {
        close(l->signals);
        sigprocmask(SIG_SETMASK, &l->before, NULL);
    }
    for (int i = 0; request->status && l->ranks && i < l->count; i++)
        request->status[i] = l->ranks[i].status;
    if (request->first)
        *request->first = l->first;
    free(l->ranks);
    free(l->poll);
}

int ct_launch(const struct ct_launch_request *request)
{
    struct launcher l = {.count = request->ranks,
                         .restart = request->restart,
                         .signals = -1,
                         .program = basename(request->argv[0]),
                         .first = -1,
                         .reads = request->reads && tcgetpgrp(STDIN_FILENO) == getpgrp(),
                         .patience = request->patience > 0 ? request->patience : 2,
                         .grace = request->grace > 0 ? request->grace : 5};
    int rc;

    if (request->ranks < 1)
        return ct_fail(CT_EINVAL, "%d ranks", request->ranks);
    l.ranks = calloc((size_t)l.count, sizeof(*l.ranks));
    l.poll = calloc((size_t)l.count * 2 + 3, sizeof(*l.poll));
    if (!l.ranks || !l.poll) {
        free(l.ranks);
        free(l.poll);
        return ct_fail(CT_ENOMEM, "%d ranks", l.count);
    }
    snprintf(l.job, sizeof(l.job), "%d-%llx", (int)getpid(), (unsigned long long)(now() * 1e6));
    l.leave = request->leave > 0 ? request->leave : l.grace;
    rc = catch_signals(&l);
    if (rc == 0)
        rc = start(&l, request->argv);
    while (rc == 0 && l.running)
        turn(&l);
    if (rc == 0)
        rc = report(&l, request->brief);
    finish(&l, request);
    return rc;
}
