/*
 * The launcher: starts children, relays their output, and ends them together. Children are ranks
 * of this host, or commands that each run ranks of another one.
 *
 * One loop polls the pipes, a signalfd and the time. It never waits for whoever reads its output:
 * the outlets hold a part of that, and while they are full, the pipes wait. Each child leads its
 * own process group. A signal thus also reaches the processes that it started, and a Ctrl-C
 * reaches it once, through us. The kernel kills a child when its launcher dies.
 *
 * Signals do not cross hosts. So a launcher that runs a part of a job reads orders from its
 * standard input: a letter each, and a beat once a second. If they end or stay away, its ranks
 * are ended: the job goes on without this host, or not at all.
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
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/lib/launch.h>
#include <ctitan/lib/outlet.h>
#include <ctitan/lib/secret.h>
#include <ctitan/lib/terminal.h>

#include "launched.h"

#define BEAT 1.0  /* seconds */
#define MERCY 2.0 /* seconds for an order to kill, before the command itself is killed */
#define KNOWN 2.0 /* seconds that others have at most, once a child has failed by itself */
#define LOST 255  /* exit status of ssh without a connection */

struct launcher {
    const struct ct_launch_request *request;
    struct children all;
    int running;
    struct pollfd *poll;
    int signals;
    int orders; /* standard input; -1: none, or it has ended */
    sigset_t caught, before;
    char job[64], secret[CT_SECRET_ROOM];

    int first;         /* first child that failed by itself, or because of another; or -1 */
    double failing;    /* when it did */
    bool failed;       /* some child failed, perhaps because it got a signal to end */
    bool saved;        /* some child returned CT_LAUNCH_SAVED */
    int received;      /* signals to end */
    bool asked;        /* got SIGQUIT, which ranks answer with a report */
    bool told;         /* the children have got SIGTERM */
    bool orphaned;     /* orders have stayed away */
    double term, kill; /* when to send them; 0: not scheduled */
    double beat;       /* when the next one is due */
    double heard;      /* the last order */
    double patience, grace, leave;
    bool reads; /* rank 0, from this process's terminal */
};

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

/* The environment of rank number i of this launcher. */
static void set_rank(const struct launcher *l, int i)
{
    const struct ct_launch_request *r = l->request;

    if (r->rank0 + i == 0 && ct_terminal_columns(STDERR_FILENO))
        set_number("CTITAN_TERMINAL", ct_terminal_columns(STDERR_FILENO));
    set_number("RANK", r->rank0 + i);
    set_number("LOCAL_RANK", i);
    set_number("WORLD_SIZE", r->world ? r->world : l->all.count);
    set_number("LOCAL_WORLD_SIZE", l->all.count);
    set_number("TORCHELASTIC_RESTART_COUNT", r->restart);
    setenv("CTITAN_JOB", l->job, 1);
    if (*l->secret)
        setenv("CTITAN_SECRET", l->secret, 1);
}

/* Pipes of a child: what it prints, and a socket for its orders. -1: none. */
struct pipes {
    int out[2], err[2], orders[2];
};

static void become_child(const struct launcher *l, int i, pid_t launcher, const struct pipes *p)
{
    const struct ct_launch_command *command =
        l->request->commands ? &l->request->commands[i] : NULL;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    setpgid(0, 0);
    signal(SIGINT, SIG_DFL); /* a shell's background jobs ignore it, but ranks must get it */
    sigprocmask(SIG_SETMASK, &l->before, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher)
        _exit(1);
    if (p->orders[0] >= 0)
        dup2(p->orders[0], STDIN_FILENO);
    else if (i == 0 && l->reads)
        give_terminal(getpid());
    else if (null >= 0 && (l->request->ordered || isatty(STDIN_FILENO)))
        dup2(null, STDIN_FILENO); /* in the background, reading from a terminal would stop it */
    if (p->out[1] >= 0)
        dup2(p->out[1], STDOUT_FILENO);
    dup2(p->err[1], STDERR_FILENO);
    if (command) {
        execvp(command->argv[0], (char *const *)command->argv);
        dprintf(STDERR_FILENO, "%s: %s\n", command->argv[0], strerror(errno));
    } else {
        set_rank(l, i);
        execv("/proc/self/exe", l->request->argv);
        dprintf(STDERR_FILENO, "starting %s: %s\n", l->all.at[i].name, strerror(errno));
    }
    _exit(127);
}

static void close_end(int fd)
{
    if (fd >= 0)
        close(fd);
}

static int start_child(struct launcher *l, int i)
{
    struct launched *c = &l->all.at[i];
    struct pipes p = {{-1, -1}, {-1, -1}, {-1, -1}};
    bool leads = c->out.raw, ordered = l->request->commands && l->request->commands[i].ordered;
    pid_t launcher = getpid();
    int rc = 0;

    if ((!leads && pipe2(p.out, O_CLOEXEC) < 0) || pipe2(p.err, O_CLOEXEC) < 0 ||
        (ordered && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p.orders) < 0))
        rc = ct_fail(CT_EIO, "cannot start %s of %d: %s%s", c->name, l->all.count, strerror(errno),
                     errno == EMFILE ? ": raise ulimit -n" : "");
    if (rc == 0)
        c->pid = fork();
    if (rc == 0 && c->pid == 0)
        become_child(l, i, launcher, &p);
    if (rc == 0 && c->pid < 0)
        rc = ct_fail(CT_EIO, "cannot start %s of %d: %s", c->name, l->all.count, strerror(errno));
    close_end(p.err[1]);
    close_end(p.out[1]);
    close_end(p.orders[0]);
    c->out.from = p.out[0];
    c->err.from = p.err[0];
    c->orders = p.orders[1];
    if (rc < 0)
        return rc;
    if (ordered && l->request->commands[i].first)
        send(c->orders, l->request->commands[i].first, strlen(l->request->commands[i].first),
             MSG_NOSIGNAL);
    c->running = true;
    l->running++;
    return 0;
}

/* The first child of a job has this process's standard output, and its messages pass unchanged.
   */
static void name_child(const struct launcher *l, int i)
{
    const struct ct_launch_command *commands = l->request->commands;
    struct launched *c = &l->all.at[i];
    int rank = l->request->rank0 + i;
    bool leads = commands ? i == 0 : rank == 0;

    *c = (struct launched){.orders = -1,
                           .ends_by = commands ? commands[i].ends_by : 0,
                           .out = {.from = -1, .to = STDOUT_FILENO, .raw = leads},
                           .err = {.from = -1, .to = STDERR_FILENO, .raw = leads}};
    if (commands)
        snprintf(c->name, sizeof(c->name), "%s", commands[i].name);
    else
        snprintf(c->name, sizeof(c->name), "rank %d", rank);
    if (!commands && !leads)
        snprintf(c->tag, sizeof(c->tag), "[rank %d] ", rank);
}

static int start(struct launcher *l)
{
    int rc = 0;

    fflush(NULL);
    for (int i = 0; i < l->all.count; i++)
        name_child(l, i);
    for (int i = 0; i < l->all.count && rc == 0; i++)
        rc = start_child(l, i);
    return rc;
}

/* ---- orders ---- */

static const struct {
    char letter;
    int number; /* of a signal; 0: a beat */
} orders[] = {{'.', 0},       {'I', SIGINT},  {'T', SIGTERM}, {'H', SIGHUP},
              {'U', SIGUSR1}, {'Q', SIGQUIT}, {'C', SIGCONT}, {'K', SIGKILL}};

/* Nobody may read it any more. A command that does not follow the order to kill is killed. */
static void order(struct launched *c, int number)
{
    for (size_t i = 0; i < CT_COUNT(orders); i++)
        if (orders[i].number == number)
            send(c->orders, &orders[i].letter, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (number != SIGKILL)
        return;
    if (c->killed == 0)
        c->killed = ct_now();
    else if (ct_now() > c->killed + MERCY)
        kill(-c->pid, SIGKILL);
}

/* A command's own processes, like the remote shells of mpirun, are left to it. */
static void signal_child(const struct launcher *l, struct launched *c, int number)
{
    if (!c->running)
        return;
    if (c->orders >= 0)
        order(c, number);
    else if ((l->request->commands && number != SIGKILL) || kill(-c->pid, number) < 0)
        kill(c->pid, number); /* or a rank does not lead its group yet */
}

static void signal_all(struct launcher *l, int number)
{
    for (int i = 0; i < l->all.count; i++)
        signal_child(l, &l->all.at[i], number);
}

/* Ranks answer with a report; not the processes that they started. */
static void ask_all(struct launcher *l)
{
    l->asked = true;
    for (int i = 0; i < l->all.count; i++) {
        struct launched *c = &l->all.at[i];

        if (c->running && c->orders >= 0)
            order(c, SIGQUIT);
        else if (c->running && l->request->commands)
            ct_warn("%s does not pass SIGQUIT on: send it to a rank", c->name);
        else if (c->running)
            kill(c->pid, SIGQUIT);
    }
}

static void beat(struct launcher *l)
{
    double t = ct_now();

    if (t < l->beat)
        return;
    l->beat = t + BEAT;
    for (int i = 0; i < l->all.count; i++)
        if (l->all.at[i].running && l->all.at[i].orders >= 0)
            order(&l->all.at[i], 0);
}

/* ---- ending ---- */

/* Once the children have got SIGTERM, the time of SIGKILL stands. */
static void schedule_end(struct launcher *l, double term)
{
    if (!l->told && (l->term == 0 || term < l->term)) {
        l->term = term;
        l->kill = term + l->grace;
    }
}

/* How long the others have after a child's failure. They may still say why a connection broke. */
static double patience_after(const struct launcher *l, const struct launched *c)
{
    bool lost = l->request->commands && WIFEXITED(c->status) && WEXITSTATUS(c->status) == LOST;

    return c->follows || lost ? l->patience : fmin(l->patience, KNOWN);
}

/* A child has failed. The first failure of its own takes the place of one that followed it. */
static void blame(struct launcher *l, int i)
{
    struct launched *c = &l->all.at[i];

    c->follows = WIFEXITED(c->status) && WEXITSTATUS(c->status) == CT_LAUNCH_FOLLOWS;
    if (c->follows)
        c->status = W_EXITCODE(1, 0);
    if (l->first < 0)
        l->failing = ct_now();
    schedule_end(l, ct_now() + patience_after(l, c));
    if (l->first < 0 || (l->all.at[l->first].follows && !c->follows && !l->told))
        l->first = i;
}

/* A rank on another host has failed. mpirun may wait for that host for ever. */
static void hear_complaints(struct launcher *l)
{
    for (int i = 0; l->request->commands && i < l->all.count; i++)
        if (l->all.at[i].complained && !l->received && l->term == 0)
            schedule_end(l, ct_now() + l->patience);
}

static void reap(struct launcher *l)
{
    for (int i = 0; i < l->all.count; i++) {
        struct launched *c = &l->all.at[i];
        pid_t ended = c->running ? waitpid(c->pid, &c->status, WNOHANG) : 0;

        if (!ended)
            continue;
        if (ended < 0) /* somebody else has its status, so it counts as failed */
            c->status = W_EXITCODE(1, 0);
        c->running = false;
        l->running--;
        launched_drain(&l->all, c, &c->out);
        launched_drain(&l->all, c, &c->err);
        if (WIFEXITED(c->status) && WEXITSTATUS(c->status) == CT_LAUNCH_SAVED) {
            l->saved = true;
            continue;
        }
        l->failed |= c->status != 0;
        if (l->asked && WIFSIGNALED(c->status) && WTERMSIG(c->status) == SIGQUIT)
            l->received++; /* it does not answer: SIGQUIT ends it, like SIGTERM */
        if (c->status && !l->received)
            blame(l, i);
    }
}

/* The first signal asks the children to end, in the way that they know; a second kills. */
static void end_by(struct launcher *l, int number)
{
    l->received++;
    ct_outlet_hurry();
    if (l->received > 1)
        number = SIGKILL;
    for (int i = 0; i < l->all.count; i++) {
        struct launched *c = &l->all.at[i];

        signal_child(l, c, l->received == 1 && c->ends_by ? c->ends_by : number);
    }
    schedule_end(l, ct_now() + l->leave);
}

static void take_number(struct launcher *l, int number)
{
    if (number == SIGQUIT)
        ask_all(l);
    else if (number == SIGKILL || number == SIGCONT)
        signal_all(l, number);
    else if (number)
        end_by(l, number);
}

static void take_signal(struct launcher *l)
{
    struct signalfd_siginfo info;

    if (read(l->signals, &info, sizeof(info)) == sizeof(info) && info.ssi_signo != SIGCHLD)
        take_number(l, (int)info.ssi_signo);
}

/* Orders have ended, or stayed away for too long. */
static void lose_orders(struct launcher *l, const char *how)
{
    l->orders = -1;
    if (l->received)
        return;
    l->orphaned = true;
    ct_warn("the launcher of this job %s: the ranks of this host are ended", how);
    end_by(l, SIGTERM);
}

static void take_orders(struct launcher *l)
{
    char letters[64];
    ssize_t n = read(l->orders, letters, sizeof(letters));

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        lose_orders(l, "is gone");
        return;
    }
    l->heard = ct_now();
    for (ssize_t i = 0; i < n; i++)
        for (size_t k = 0; k < CT_COUNT(orders); k++)
            if (orders[k].letter == letters[i])
                take_number(l, orders[k].number);
}

static void end_in_time(struct launcher *l)
{
    double t = ct_now(), silence = l->request->silence;
    char how[64];

    if (l->orders >= 0 && silence > 0 && t > l->heard + silence) {
        snprintf(how, sizeof(how), "has said nothing for %g s", silence);
        lose_orders(l, how);
    }
    if (!l->told && l->term > 0 && t >= l->term) {
        signal_all(l, SIGTERM);
        if (!l->request->commands)
            signal_all(l, SIGCONT); /* a stopped rank cannot react to it */
        l->told = true;
        l->term = l->kill;
    }
    if (l->kill > 0 && t >= l->kill)
        signal_all(l, SIGKILL);
}

/* ---- the loop ---- */

static int milliseconds_left(const struct launcher *l, bool held)
{
    double left = l->term > 0 ? l->term - ct_now() : 3600;

    if (l->request->commands || l->orders >= 0)
        left = fmin(left, BEAT);
    left = held ? fmin(left, 0.1) : left; /* until an outlet has room, or nobody reads it */
    return left < 0.01 ? 10 : (int)(left * 1000) + 1;
}

/* A stream that fills a full outlet has to wait. */
static struct pollfd input(const struct stream *s, bool *held)
{
    bool room = s->from < 0 || ct_outlet_has_room(s->to, 2 * LAUNCHED_LINE);

    *held |= !room;
    return (struct pollfd){.fd = room ? s->from : -1, .events = POLLIN};
}

static void turn(struct launcher *l)
{
    bool held = false;
    int n = 0;

    l->poll[n++] = (struct pollfd){.fd = l->signals, .events = POLLIN};
    l->poll[n++] = (struct pollfd){.fd = l->orders, .events = POLLIN};
    for (int i = 0; i < l->all.count; i++) {
        l->poll[n++] = input(&l->all.at[i].out, &held);
        l->poll[n++] = input(&l->all.at[i].err, &held);
    }
    l->poll[n++] = ct_outlet_poll(STDOUT_FILENO);
    l->poll[n++] = ct_outlet_poll(STDERR_FILENO);
    if (poll(l->poll, (nfds_t)n, milliseconds_left(l, held)) < 0)
        return;
    ct_outlet_push(STDOUT_FILENO);
    ct_outlet_push(STDERR_FILENO);
    for (int i = 0; i < l->all.count; i++) {
        struct launched *c = &l->all.at[i];

        if (l->poll[2 + 2 * i].revents && !launched_relay(&l->all, c, &c->out))
            launched_close(&l->all, c, &c->out);
        if (l->poll[3 + 2 * i].revents && !launched_relay(&l->all, c, &c->err))
            launched_close(&l->all, c, &c->err);
    }
    if (l->poll[0].revents)
        take_signal(l);
    if (l->poll[1].revents)
        take_orders(l);
    reap(l);
    hear_complaints(l);
    beat(l);
    end_in_time(l);
}

/* The number of other children that ended with first's message. */
static int count_likewise(const struct launcher *l, const struct launched *first)
{
    int count = 0;

    for (int i = 0; *first->last && i < l->all.count; i++)
        count += l->all.at[i].status == first->status && !strcmp(l->all.at[i].last, first->last);
    return count - 1;
}

static int report(const struct launcher *l)
{
    const struct launched *c = l->first < 0 ? NULL : &l->all.at[l->first];
    int *brief = l->request->brief;
    char how[96];
    int code, others;

    if (!c && l->orphaned)
        return ct_fail(CT_EPEER, "the launcher of this job left the ranks of this host alone");
    if (!c)
        return l->received && l->failed ? ct_fail(CT_EPEER, "interrupted by a signal") : 0;
    code = WIFEXITED(c->status) && WEXITSTATUS(c->status) == 2 ? CT_ECONFIG : CT_EPEER;
    if (WIFSIGNALED(c->status))
        snprintf(how, sizeof(how), "was killed by signal %d (%s)", WTERMSIG(c->status),
                 strsignal(WTERMSIG(c->status)));
    else
        snprintf(how, sizeof(how), "ended with status %d", WEXITSTATUS(c->status));
    others = count_likewise(l, c);
    if (others > 0)
        snprintf(how + strlen(how), sizeof(how) - strlen(how), ", as did %d other%s", others,
                 ct_plural(others));
    ct_fail(code, "%s %s", c->name, how);
    if (!*c->last)
        return code;
    if (brief)
        *brief = (int)strlen(ct_error_message());
    return ct_fail(code, "%s %s; its last line: %s", c->name, how, c->last);
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
    static const int numbers[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1};

    sigemptyset(&l->caught);
    for (size_t i = 0; i < CT_COUNT(numbers); i++)
        if (numbers[i] != SIGHUP || !is_ignored(SIGHUP))
            sigaddset(&l->caught, numbers[i]);
    sigprocmask(SIG_BLOCK, &l->caught, &l->before);
    l->signals = signalfd(-1, &l->caught, SFD_CLOEXEC | SFD_NONBLOCK);
    return l->signals < 0 ? ct_fail(CT_EIO, "signalfd: %s", strerror(errno)) : 0;
}

static void finish(struct launcher *l)
{
    const struct ct_launch_request *request = l->request;

    for (int i = 0; i < l->all.count; i++)
        if (l->all.at[i].running)
            kill(-l->all.at[i].pid, SIGKILL);
    for (int i = 0; i < l->all.count; i++) {
        struct launched *c = &l->all.at[i];

        if (c->running)
            waitpid(c->pid, &c->status, 0);
        launched_close(&l->all, c, &c->out);
        launched_close(&l->all, c, &c->err);
        close_end(c->orders);
    }
    if (l->reads)
        give_terminal(getpgrp());
    if (l->signals >= 0)
        close(l->signals);
    sigprocmask(SIG_SETMASK, &l->before, NULL);
    for (int i = 0; request->status && i < l->all.count; i++)
        request->status[i] = l->all.at[i].status;
    if (request->first)
        *request->first = l->first;
    if (request->after)
        *request->after = l->first < 0 ? 0 : ct_now() - l->failing;
    if (request->saved)
        *request->saved = l->saved && !l->failed && l->first < 0;
    if (request->followed)
        *request->followed = l->first >= 0 ? l->all.at[l->first].follows : l->orphaned;
}

static int run_ranks(struct launcher *l)
{
    int rc = catch_signals(l);

    if (rc == 0)
        rc = start(l);
    l->heard = ct_now();
    while (rc == 0 && l->running)
        turn(l);
    if (rc == 0)
        rc = report(l);
    finish(l);
    return rc;
}

int ct_launch(const struct ct_launch_request *request)
{
    struct launcher l = {.request = request,
                         .all = {.count = request->ranks,
                                 .program = basename(request->argv[0]),
                                 .many = request->commands,
                                 .hear = request->hear,
                                 .context = request->context},
                         .signals = -1,
                         .orders = request->ordered ? STDIN_FILENO : -1,
                         .first = -1,
                         .reads = request->reads && tcgetpgrp(STDIN_FILENO) == getpgrp(),
                         .patience = request->patience > 0 ? request->patience : 2,
                         .grace = request->grace > 0 ? request->grace : 5};
    int rc;

    if (request->ranks < 1)
        return ct_fail(CT_EINVAL, "%d rank%s", request->ranks, ct_plural(request->ranks));
    l.all.at = calloc((size_t)l.all.count, sizeof(*l.all.at));
    l.poll = calloc((size_t)l.all.count * 2 + 4, sizeof(*l.poll));
    if (request->job)
        snprintf(l.job, sizeof(l.job), "%s", request->job);
    else
        snprintf(l.job, sizeof(l.job), "%d-%llx", (int)getpid(),
                 (unsigned long long)(ct_now() * 1e6));
    l.leave = request->leave > 0 ? request->leave : l.grace;
    rc = l.all.at && l.poll ? 0
                            : ct_fail(CT_ENOMEM, "%d rank%s", l.all.count, ct_plural(l.all.count));
    if (rc == 0 && !request->commands && !getenv("CTITAN_SECRET") && !getenv("CTITAN_SECRET_FILE"))
        rc = ct_secret_make(l.secret);
    if (rc == 0)
        rc = run_ranks(&l);
    free(l.all.at);
    free(l.poll);
    return rc;
}
