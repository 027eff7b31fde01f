/*
 * Tests of communicators: starts ranks as processes, with a time limit, and judges them. TAP.
 *
 *     comm PLUGIN.so works [key=value].. WORLD..   every call, on that many ranks
 *     comm PLUGIN.so mpirun WORLD..                the same, started by mpirun
 *     comm PLUGIN.so fails                         dead, stopped, leaving and disagreeing ranks
 *     comm PLUGIN.so stops                         stopped ranks, one of them rank 0, under nccl
 *     comm PLUGIN.so rank RANK WORLD JOB CASE TIMEOUT [key=value]..    one rank
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/plugin.h>

#include "rank.h"

#define MAX_RANKS 16
#define ARENA ((size_t)10 << 20)

static const char *plugin_path;
static int tests, bad_tests;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void verdict(bool ok, const char *name, const char *why)
{
    printf("%s %d - %s%s%s\n", ok ? "ok" : "not ok", ++tests, name, *why ? " # " : "", why);
    fflush(stdout);
    bad_tests += !ok;
}

/* ---- one rank ---- */

static int die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, ct_error_message());
    return 1;
}

static const struct ct_comm_ops *load(char **settings)
{
    void *library = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
    const struct ct_plugin *plugin = library ? dlsym(library, "ct_plugin_v1") : NULL;

    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    if (plugin->options && ct_options_reset(plugin->options, plugin->config) < 0)
        exit(die(plugin->name));
    for (; *settings; settings++) {
        char *value = strchr(*settings, '=');

        *value++ = '\0';
        if (ct_options_set(plugin->options, plugin->config, *settings, value, "test") < 0)
            exit(die(plugin->name));
    }
    return plugin->offers[0].ops;
}

/* Ranks ask for different sizes; all get the largest. */
static int reserve(struct fixture *f, size_t bytes)
{
    size_t own = f->comm->rank % 2 ? bytes : bytes / 3;
    void *base = NULL;

    if (f->comm->world == 1)
        own = bytes;
    if (f->ops->reserve(f->comm, own, &base) < 0)
        return die("reserve");
    f->arena = base;
    f->arena_bytes = bytes;
    if ((uintptr_t)base % 4096)
        return fprintf(stderr, "the arena is not aligned\n");
    for (size_t i = 0; i < bytes; i++)
        if (f->arena[i])
            return fprintf(stderr, "the arena is not zeroed\n");
    return 0;
}

static int works(struct fixture *f)
{
    int bad = 0;

    f->arena_bytes = ARENA;
    if (f->ops->reserve)
        bad = reserve(f, ARENA);
    if (!bad)
        bad = check_collectives(f);
    if (!bad && f->ops->reserve)
        bad = reserve(f, ARENA + 5000);
    if (!bad)
        bad = check_messages(f);
    return bad ? bad : check_groups(f);
}

#define STRANGERS 80

/* Processes of the same user that come to rank 0 before this rank: some say a rank's three numbers,
   some nothing, and stay. */
static void send_strangers(const char *job)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "ctitan/%u/%s",
                     (unsigned)geteuid(), job);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);

    for (int i = 0; i < STRANGERS; i++) {
        int32_t words[] = {1, 9, getpid()};
        int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

        while (connect(s, (const struct sockaddr *)&address, length) < 0)
            usleep(1000);
        if (i % 8 == 0)
            send(s, words, sizeof(words), MSG_NOSIGNAL);
    }
}

static int run_rank(char **argv)
{
    struct ct_comm_request request = {.rank = atoi(argv[0]),
                                      .world = atoi(argv[1]),
                                      .local_rank = atoi(argv[0]),
                                      .local_ranks = atoi(argv[1]),
                                      .job = argv[2],
                                      .timeout = atof(argv[4])};
    struct fixture f = {.ops = load(argv + 5)};
    bool absent = !strcmp(argv[3], "absent"), wrong = !strcmp(argv[3], "world");
    int rc;

    if (!strcmp(argv[3], "strangers") && request.rank == request.world - 1)
        send_strangers(argv[2]);
    if (absent && request.rank == request.world - 1)
        return 0;
    if (wrong && request.rank == request.world - 1)
        request.world = ++request.local_ranks;
    if (f.ops->open(&request, &f.comm) < 0) {
        if (!absent && !wrong)
            return die("open");
        printf("%s\n", ct_error_message());
        return 0;
    }
    rc = !strcmp(argv[3], "works")       ? works(&f)
         : !strcmp(argv[3], "strangers") ? reserve(&f, ARENA)
                                         : misbehave(&f, argv[3]);
    f.ops->close(f.comm);
    return rc != 0;
}

/* ---- the parent ---- */

struct child {
    pid_t pid;
    int out; /* pipe from its standard output */
    int status;
    bool done;
    char text[2048];
};

static void start(struct child *c, int rank, int world, const char *job, const char *test,
                  const char *timeout, char **settings)
{
    char ranks[16], worlds[16], *argv[24] = {"comm"};
    int out[2], n = 0;

    if (pipe2(out, O_CLOEXEC) < 0)
        exit(1);
    *c = (struct child){.pid = fork(), .out = out[0]};
    if (c->pid) {
        close(out[1]);
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out[1], 1);
    snprintf(ranks, sizeof(ranks), "%d", rank);
    snprintf(worlds, sizeof(worlds), "%d", world);
    argv[++n] = (char *)(uintptr_t)plugin_path;
    argv[++n] = (char[]){"rank"};
    argv[++n] = ranks;
    argv[++n] = worlds;
    argv[++n] = (char *)(uintptr_t)job;
    argv[++n] = (char *)(uintptr_t)test;
    argv[++n] = (char *)(uintptr_t)timeout;
    while (settings && *settings)
        argv[++n] = *settings++;
    execv("/proc/self/exe", argv);
    _exit(127);
}

static bool all_done(struct child *children, int count, int guilty)
{
    bool done = true;

    for (int i = 0; i < count; i++) {
        struct child *c = &children[i];

        if (!c->done && waitpid(c->pid, &c->status, WNOHANG) == c->pid)
            c->done = true;
        done &= c->done || i == guilty;
    }
    return done;
}

static void read_text(struct child *c)
{
    size_t used = 0;
    ssize_t n;

    while (used < sizeof(c->text) - 1 &&
           (n = read(c->out, c->text + used, sizeof(c->text) - 1 - used)) > 0)
        used += (size_t)n;
    close(c->out);
}

/* Start world ranks of a test and wait for all but the guilty one (-1: for all); what is left after
   limit seconds is named and killed. Returns the seconds taken, negative after the limit. */
static double run_ranks(struct child *children, int world, const char *test, const char *timeout,
                        char **settings, double limit, int guilty)
{
    static int number;
    char job[64];
    double begin = now(), seconds;

    snprintf(job, sizeof(job), "test-%d-%d", (int)getpid(), ++number);
    for (int i = 0; i < world; i++)
        start(&children[i], i, world, job, test, timeout, settings);
    while (!all_done(children, world, guilty) && now() - begin < limit)
        usleep(2000);
    seconds = all_done(children, world, guilty) ? now() - begin : -1;
    for (int i = 0; i < world; i++) {
        if (!children[i].done) {
            if (i != guilty)
                printf("# %s: rank %d of %d still runs after %g s\n", test, i, world, limit);
            kill(children[i].pid, SIGKILL);
            waitpid(children[i].pid, &children[i].status, 0);
        }
        read_text(&children[i]);
    }
    return seconds;
}

static void test_works(int world, char **settings)
{
    struct child children[MAX_RANKS];
    char name[96];
    bool ok = run_ranks(children, world, "works", "30", settings, 240, -1) >= 0;

    for (int i = 0; i < world; i++)
        ok &= children[i].status == 0;
    snprintf(name, sizeof(name), "%d ranks%s%s", world, *settings ? ", " : "",
             *settings ? *settings : "");
    verdict(ok, name, "");
}

/* With as many that say nothing, each of them must not take a second. */
static void test_strangers(void)
{
    struct child children[3];
    bool ok = run_ranks(children, 3, "strangers", "20", NULL, 20, -1) >= 0;

    for (int i = 0; i < 3; i++)
        ok &= children[i].status == 0;
    verdict(ok, "strangers at the rendezvous", "");
}

struct failure {
    const char *act;
    const char *words[3]; /* what every innocent rank must say */
    double seconds;       /* and how soon */
    bool all;             /* the guilty one too */
};

/* The time-out is 1 s; a death must be found long before a time-out of 20 s. */
static const struct failure failures[] = {
    {"die", {"all_reduce", "rank 3 (pid ", "died"}, 2, false},
    {"exit", {"all_reduce", "rank 3 (pid ", "died"}, 2, false},
    {"leave", {"all_reduce", "rank 3 (pid ", "has left"}, 2, false},
    {"stop",
     {"all_reduce 51 of group 'world' (16 bytes): no answer within 1 s", "rank 3 (pid ",
      "stopped by a signal) was last in all_reduce 50"},
     3,
     false},
    {"silence", {"no answer within 1 s", "rank 3 (pid ", "stopped by a signal"}, 3, false},
    {"chain", {"no answer within 1 s", "rank 3 (pid ", "stopped by a signal"}, 3, false},
    {"other",
     {"ranks disagree on call 51 of group 'world'", "all_reduce (4 x float32, sum)",
      "all_gather (1 x float32)"},
     2,
     true},
    {"count",
     {"ranks disagree on call 51", "all_reduce (4 x float32, sum)",
      "all_reduce (5 x float32, sum)"},
     2,
     true},
    {"dtype",
     {"ranks disagree on call 51", "all_reduce (4 x float32, sum)", "all_reduce (4 x int32, sum)"},
     2,
     true},
    {"max",
     {"ranks disagree on call 51", "all_reduce (4 x float32, sum)",
      "all_reduce (4 x float32, max)"},
     2,
     true},
    {"barrier", {"ranks disagree on call 51", "all_reduce (4 x float32, sum)", "barrier"}, 2, true},
    {"batch",
     {"ranks disagree on call 51", "all_gather (3 x float32, 2 together)", "divided differently"},
     2,
     true},
    {"tag", {"rank 3 sends 64 bytes (tag 8)", "rank 0 receives 64 (tag 7)", ""}, 2, true},
    {"absent", {"1 of 4 ranks did not start within 1 s: 3", "", ""}, 3, false},
    {"world", {"rank 3 has a world of 5 ranks, but rank 0 one of 4", "", ""}, 2, true},
    {"huge", {"no address space for 4 x 4611686018427387904 symmetric bytes", "", ""}, 2, true},
};

/* Rank 0 keeps what ranks tell each other: the others wait 10 s for its answer. */
static const struct failure stops[] = {
    {"stop", {"did not end within 1 s", "no sign of life from rank 3", ""}, 5, false},
    {"keeper", {"did not end within 1 s", "no sign of life from rank 0", ""}, 16, false},
};

static void test_failure(const struct failure *f)
{
    bool waits = strstr("stop silence chain absent keeper", f->act) != NULL, ok;
    struct child children[4];
    int guilty = f->all ? -1 : strcmp(f->act, "keeper") ? 3 : 0;
    double seconds = run_ranks(children, 4, f->act, waits ? "1" : "20", NULL, 20, guilty);

    ok = seconds >= 0 && seconds < f->seconds;
    for (int i = 0; i < 4; i++) {
        bool said = children[i].status == 0;

        if (i == guilty)
            continue;
        for (int k = 0; k < 3; k++)
            said &= strstr(children[i].text, f->words[k]) != NULL;
        if (!said)
            printf("# rank %d: status %#x, %s\n", i, (unsigned)children[i].status,
                   children[i].text);
        ok &= said;
    }
    if (seconds >= f->seconds)
        printf("# took %.1f s\n", seconds);
    verdict(ok, f->act, "");
    if (getenv("VERBOSE"))
        printf("# %.2f s: %s", seconds, children[1].text);
}

static int count_shared_memory(void)
{
    DIR *folder = opendir("/dev/shm");
    const struct dirent *entry;
    int count = 0;

    if (!folder)
        return 0;
    while ((entry = readdir(folder)))
        count += strstr(entry->d_name, "ctitan") != NULL;
    closedir(folder);
    return count;
}

/* mpirun with our ranks; its output is read into text. */
static int run_mpirun(int world, const char *test, const char *timeout, char *text, size_t room)
{
    char ranks[16], self[4096] = {0};
    int out[2], status = -1;
    struct child c;

    snprintf(ranks, sizeof(ranks), "%d", world);
    if (pipe2(out, O_CLOEXEC) < 0 || readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
        exit(1);
    c = (struct child){.pid = fork(), .out = out[0]};
    if (c.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        dup2(out[1], 1);
        execlp("mpirun", "mpirun", "-quiet", "-n", ranks, "--oversubscribe", "--allow-run-as-root",
               self, plugin_path, "rank", "-1", "-1", "mpi", test, timeout, NULL);
        _exit(errno == ENOENT ? 77 : 127);
    }
    close(out[1]);
    read_text(&c);
    waitpid(c.pid, &status, 0);
    snprintf(text, room, "%s", c.text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_mpirun(int world)
{
    char name[64], text[8];
    int status;

    snprintf(name, sizeof(name), "%d ranks under mpirun", world);
    status = run_mpirun(world, "works", "60", text, sizeof(text));
    verdict(status == 0 || status == 77, name, status == 77 ? "SKIP there is no mpirun" : "");
}

static void test_mpirun_failure(const char *act, const char *words)
{
    char name[64], text[2048];
    int status = run_mpirun(4, act, "1", text, sizeof(text));

    snprintf(name, sizeof(name), "%s under mpirun", act);
    if (status != 77 && !strstr(text, words))
        printf("# status %d: %s\n", status, text);
    verdict(status == 77 || strstr(text, words), name,
            status == 77 ? "SKIP there is no mpirun" : "");
}

/* Processes that ranks or mpirun leave behind become children of this one; they must have ended by
   now, or soon. */
static bool no_process_is_left(void)
{
    double begin = now();

    while (now() - begin < 3) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);

        if (pid < 0)
            return errno == ECHILD;
        if (pid == 0)
            usleep(10000);
    }
    return false;
}

int main(int argc, char **argv)
{
    char **rest = argv + 3, **settings = rest;
    int shared = count_shared_memory();

    if (argc < 3)
        return 2;
    plugin_path = argv[1];
    if (!strcmp(argv[2], "rank"))
        return run_rank(rest);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (!strcmp(argv[2], "works")) {
        static char *set[8];
        int n = 0;

        for (; *settings && strchr(*settings, '='); settings++)
            set[n++] = *settings;
        for (; *settings; settings++)
            test_works(atoi(*settings), set);
    } else if (!strcmp(argv[2], "mpirun")) {
        for (; *settings; settings++)
            test_mpirun(atoi(*settings));
        test_mpirun_failure("stop",
                            "all_reduce 51 of group 'world': no answer within 1 s from rank 3");
        test_mpirun_failure("other", "ranks disagree");
        test_mpirun_failure("count", "ranks disagree");
    } else if (!strcmp(argv[2], "stops")) {
        for (size_t i = 0; i < CT_COUNT(stops); i++)
            test_failure(&stops[i]);
    } else {
        for (size_t i = 0; i < CT_COUNT(failures); i++)
            test_failure(&failures[i]);
        test_strangers();
    }
    verdict(count_shared_memory() == shared, "no shared memory is left", "");
    verdict(no_process_is_left(), "no process is left", "");
    printf("1..%d\n", tests);
    return bad_tests != 0;
}
