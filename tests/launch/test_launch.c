/*
 * The launcher, with this program as its ranks: "launch RANKS ACT" supervises, "rank ACT" is one
 * rank, without arguments it is the test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <ctitan/error.h>
#include <ctitan/lib/launch.h>
#include <ctitan/lib/outlet.h>
#include <ctitan/lib/secret.h>

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- a rank ---- */

static void ignore(int number)
{
    (void)number;
}

static void answer(int number)
{
    (void)number;
    if (write(1, "asked\n", 6) != 6)
        _exit(4);
}

/* Wait until all ranks are here. From then on SIGTERM ends none, however late it fails. */
static void wait_for_all(const struct ct_identity *id)
{
    char path[64];
    struct stat s = {0};
    int fd;

    signal(SIGTERM, ignore);
    snprintf(path, sizeof(path), "/tmp/test-launch-%d", (int)getppid());
    fd = open(path, O_RDWR | O_CREAT | O_APPEND, 0600);
    if (fd < 0 || write(fd, "x", 1) != 1)
        _exit(4);
    while (fstat(fd, &s) == 0 && s.st_size < id->world)
        usleep(1000);
    unlink(path);
    close(fd);
}

static int act_as_rank(const char *act)
{
    struct ct_identity id;
    bool guilty;

    if (ct_launch_identify(&id) < 0 || !ct_launch_is_rank())
        return 3;
    guilty = id.rank == id.world - 1;
    if (!strcmp(act, "say")) {
        printf("out of %d/%d %d/%d %s\n", id.rank, id.world, id.local_rank, id.local_ranks, id.by);
        fprintf(stderr, "err of %d\n", id.rank);
        printf("no newline");
        return 0;
    }
    if (!strcmp(act, "flood")) {
        for (int i = 0; i < 20000; i++)
            printf("%d line %d of a rank that writes much\n", id.rank, i);
        return 0;
    }
    if (!strcmp(act, "endless words")) {
        char words[4096];

        memset(words, 'x', sizeof(words));
        words[0] = '\036';
        return write(2, words, sizeof(words)) == sizeof(words) ? 0 : 4;
    }
    if (!strcmp(act, "answers"))
        signal(SIGQUIT, answer);
    if (!strcmp(act, "signals") || !strcmp(act, "answers")) {
        printf("ready\n");
        fflush(stdout);
    }
    if (!strcmp(act, "stubborn"))
        signal(SIGTERM, ignore);
    if (guilty && !strcmp(act, "fail")) {
        fprintf(stderr, "first words\nthe reason\n\n");
        return 1;
    }
    if (!strcmp(act, "follow")) { /* the guilty one ends last */
        usleep(guilty ? 30000 : 0);
        fprintf(stderr, guilty ? "the cause\n" : "another rank failed\n");
        return guilty ? 1 : CT_LAUNCH_FOLLOWS;
    }
    if (!strcmp(act, "all follow")) {
        fprintf(stderr, "no answer\n");
        return CT_LAUNCH_FOLLOWS;
    }
    if (guilty && !strcmp(act, "cause, nobody follows"))
        return 1;
    if (guilty && !strcmp(act, "input"))
        return 2;
    if (!strcmp(act, "end apart")) { /* rank 0 does not end, the last is the cause */
        wait_for_all(&id);
        signal(SIGTERM, id.rank == 0 ? answer : ignore);
        if (guilty)
            return 1;
        for (double begin = id.rank ? 0 : now(); begin > 0 && now() - begin < 30;)
            pause();
        pause();
        usleep((unsigned)id.rank * 150000);
        return 1;
    }
    if (!strcmp(act, "mistake") || !strcmp(act, "mistake, rank 0 last")) {
        wait_for_all(&id);
        usleep(id.rank == 0 && act[strlen("mistake")] ? 100000 : 0);
        fprintf(stderr, "%s: the same mistake\n", program_invocation_short_name);
        return 2;
    }
    if (guilty && (!strcmp(act, "die") || !strcmp(act, "stubborn"))) {
        usleep(50000);
        raise(SIGKILL);
    }
    if (!guilty && !strcmp(act, "stopped"))
        raise(SIGSTOP);
    if (guilty && !strcmp(act, "stopped"))
        return 1;
    for (double begin = now(); now() - begin < 30;)
        usleep(100000);
    return 0;
}

static int launch(int ranks, const char *act)
{
    char *argv[] = {"rank-of-test", "rank", (char *)(uintptr_t)act, NULL};
    struct ct_launch_request request = {
        .ranks = ranks, .argv = argv, .patience = strstr(act, "follow") ? 20 : 0.1, .grace = 0.5};
    int rc = ct_launch(&request);

    if (rc < 0)
        ct_outlet_print(STDERR_FILENO, "%s\n", ct_error_message());
    ct_outlet_flush(STDOUT_FILENO);
    ct_outlet_flush(STDERR_FILENO);
    return rc == CT_ECONFIG ? 2 : rc < 0;
}

/* ---- the test ---- */

static char out[1 << 22], err[1 << 16];
static double seconds;

struct run {
    pid_t pid;
    int out, err;
    double begin;
};

static struct run begin_run(int ranks, const char *act)
{
    struct run r = {.begin = now()};
    int o[2], e[2];
    char count[16];

    snprintf(count, sizeof(count), "%d", ranks);
    assert_int_equal(pipe2(o, O_CLOEXEC), 0);
    assert_int_equal(pipe2(e, O_CLOEXEC), 0);
    r.pid = fork();
    if (r.pid == 0) {
        dup2(o[1], 1);
        dup2(e[1], 2);
        execl("/proc/self/exe", "test", "launch", count, act, NULL);
        _exit(127);
    }
    close(o[1]);
    close(e[1]);
    r.out = o[0];
    r.err = e[0];
    return r;
}

static void read_all(int fd, char *text, size_t room)
{
    size_t used = 0;
    ssize_t n;

    while ((n = read(fd, text + used, room - 1 - used)) > 0)
        used += (size_t)n;
    text[used] = '\0';
    close(fd);
}

/* Wait for the launcher; nothing that it started may be left. */
static int end_run(struct run *r)
{
    int status;
    pid_t left;

    read_all(r->out, out, sizeof(out));
    read_all(r->err, err, sizeof(err));
    assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
    seconds = now() - r->begin;
    left = waitpid(-1, NULL, WNOHANG);
    assert_int_equal(left, -1);
    assert_int_equal(errno, ECHILD);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int run(int ranks, const char *act)
{
    struct run r = begin_run(ranks, act);

    return end_run(&r);
}

#define assert_in(text, part)                                                                      \
    do {                                                                                           \
        if (!strstr(text, part))                                                                   \
            fail_msg("\"%s\" is not in \"%s\"", part, text);                                       \
    } while (0)

static void output_is_tagged(void **state)
{
    (void)state;
    assert_int_equal(run(3, "say"), 0);
    assert_in(out, "out of 0/3 0/3 torchrun\n");
    assert_null(strstr(out, "[rank 0]"));
    assert_in(out, "[rank 1] out of 1/3 1/3 torchrun\n");
    assert_in(out, "[rank 2] no newline\n");
    assert_in(err, "err of 0\n");
    assert_null(strstr(err, "[rank 0]"));
    assert_in(err, "[rank 2] err of 2\n");
}

static void nothing_is_lost(void **state)
{
    size_t lines = 0, tags = 0;

    (void)state;
    assert_int_equal(run(3, "flood"), 0);
    for (const char *c = out; (c = strchr(c, '\n')); c++)
        lines++;
    for (const char *c = out; (c = strstr(c, "[rank ")); c++)
        tags++;
    assert_int_equal(lines, 3 * 20000);
    assert_int_equal(tags, 2 * 20000);
    assert_in(out, "[rank 2] 2 line 19999 of");
}

/* Signals that a launch blocks are as before, though it failed. */
static void a_launch_that_fails_blocks_no_signal(void **state)
{
    char *argv[] = {"true", NULL};
    struct ct_launch_request request = {.ranks = 1, .argv = argv};
    sigset_t blocked;
    pid_t pid = fork();
    int status;

    (void)state;
    if (pid == 0) { /* without a free descriptor */
        int least = dup(0);

        close(least);
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)least, (rlim_t)least});
        if (ct_launch(&request) != CT_EIO || !strstr(ct_error_message(), "signalfd"))
            _exit(1);
        sigprocmask(SIG_BLOCK, NULL, &blocked);
        _exit(sigismember(&blocked, SIGTERM) ? 2 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Words fill the launcher's line before they end. */
static void words_without_an_end_are_relayed_once(void **state)
{
    (void)state;
    assert_int_equal(run(1, "endless words"), 0);
    assert_int_equal(strlen(err), 4096);
    assert_int_equal(err[0], '\036');
}

static void first_failure_is_named(void **state)
{
    (void)state;
    assert_int_equal(run(3, "fail"), 1);
    assert_in(err, "rank 2 ended with status 1; its last line: the reason\n");
    assert_true(seconds < 3);
    assert_int_equal(run(3, "input"), 2);
    assert_in(err, "rank 2 ended with status 2\n");
    assert_int_equal(run(3, "die"), 1);
    assert_in(err, "rank 2 was killed by signal 9 (Killed)\n");
}

static void cause_is_named_though_it_ends_last(void **state)
{
    (void)state;
    assert_int_equal(run(3, "follow"), 1);
    assert_in(err, "rank 2 ended with status 1; its last line: the cause\n");
    assert_int_equal(run(3, "all follow"), 1);
    assert_in(err, "ended with status 1, as did 2 others; its last line: no answer\n");
    assert_int_equal(run(2, "cause, nobody follows"),
                     1); /* within less than its 20 s of patience */
    assert_in(err, "rank 1 ended with status 1\n");
    assert_true(seconds < 15);
}

static int count(const char *text, const char *part)
{
    int found = 0;

    for (const char *c = text; (c = strstr(c, part)); c++)
        found++;
    return found;
}

static void echo_is_not_repeated(void **state)
{
    static const char *const acts[] = {"mistake", "mistake, rank 0 last"};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(acts); i++) {
        assert_int_equal(run(3, acts[i]), 2);
        assert_in(err, ", as did 2 others; its last line: ");
        assert_int_equal(count(err, ": the same mistake\n"), 2); /* with the last line */
        assert_true(count(err, "[rank ") <= 1);                  /* none if rank 0 was first */
    }
}

static void deaf_and_stopped_ranks_are_ended(void **state)
{
    (void)state;
    assert_int_equal(run(3, "stubborn"), 1);
    assert_in(err, "rank 2 was killed by signal 9");
    assert_true(seconds > 0.5 && seconds < 4);
    assert_int_equal(run(3, "stopped"), 1);
    assert_in(err, "rank 2 ended with status 1");
    assert_true(seconds < 4);
}

/* A rank that ends by SIGTERM is no cause: the others get no second one, and no more time. */
static void ranks_that_end_apart_get_one_signal(void **state)
{
    (void)state;
    assert_int_equal(run(4, "end apart"), 1);
    assert_in(err, "rank 3 ended with status 1");
    assert_int_equal(count(out, "asked\n"), 1);
    assert_true(seconds > 0.5);
}

static void wait_until_ready(const struct run *r)
{
    char c = 0;

    while (c != '\n')
        assert_int_equal(read(r->out, &c, 1), 1);
}

static void signals_are_passed_on(void **state)
{
    struct run r = begin_run(3, "signals");

    (void)state;
    wait_until_ready(&r);
    kill(r.pid, SIGTERM);
    assert_int_equal(end_run(&r), 1);
    assert_in(err, "interrupted by a signal");
    assert_true(seconds < 5);
}

static void ranks_are_asked_by_sigquit(void **state)
{
    struct run r = begin_run(1, "answers");

    (void)state;
    wait_until_ready(&r);
    for (int i = 0; i < 3; i++) {
        kill(r.pid, SIGQUIT);
        wait_until_ready(&r); /* for its answer */
    }
    assert_int_equal(waitpid(r.pid, NULL, WNOHANG), 0);
    kill(r.pid, SIGTERM);
    assert_int_equal(end_run(&r), 1);
    r = begin_run(1, "signals");
    wait_until_ready(&r);
    kill(r.pid, SIGQUIT);
    assert_int_equal(end_run(&r), 1);
    assert_in(err, "interrupted by a signal");
}

static void nohup_holds(void **state)
{
    struct run r;

    (void)state;
    signal(SIGHUP, SIG_IGN);
    r = begin_run(3, "signals");
    signal(SIGHUP, SIG_DFL);
    wait_until_ready(&r);
    kill(r.pid, SIGHUP);
    usleep(200000);
    assert_int_equal(waitpid(r.pid, NULL, WNOHANG), 0);
    kill(r.pid, SIGTERM);
    assert_int_equal(end_run(&r), 1);
}

static void ranks_do_not_outlive_the_launcher(void **state)
{
    struct run r = begin_run(3, "signals");
    int left = 0;

    (void)state;
    wait_until_ready(&r);
    kill(r.pid, SIGKILL);
    assert_int_equal(waitpid(r.pid, NULL, 0), r.pid);
    for (double begin = now(); left >= 0 && now() - begin < 5;) /* orphans become ours */
        left = waitpid(-1, NULL, WNOHANG);
    assert_int_equal(left, -1);
    close(r.out);
    close(r.err);
}

/* ---- identity ---- */

static const char *const variables[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_PORT",
                                        "CTITAN_JOB",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "PMIX_NAMESPACE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "SLURM_PROCID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_LOCALID",
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        "SLURM_NODEID",
                                        "SLURM_JOB_ID",
                                        "SLURM_STEP_ID",
                                        "SLURM_STEP_NODELIST",
                                        "MASTER_ADDR"};

static int identify(struct ct_identity *id, const char *settings)
{
    char text[512], *save = NULL;

    for (size_t i = 0; i < CT_COUNT(variables); i++)
        unsetenv(variables[i]);
    snprintf(text, sizeof(text), "%s", settings);
    for (char *s = strtok_r(text, " ", &save); s; s = strtok_r(NULL, " ", &save)) {
        char *value = strchr(s, '=');

        *value++ = '\0';
        setenv(s, value, 1);
    }
    return ct_launch_identify(id);
}

static void assert_identity(const char *settings, const char *expected)
{
    struct ct_identity id;
    char text[160];

    if (identify(&id, settings) < 0)
        fail_msg("%s: %s", settings, ct_error_message());
    snprintf(text, sizeof(text), "%d/%d %d/%d %s %s", id.rank, id.world, id.local_rank,
             id.local_ranks, id.by ? id.by : "alone", id.by ? id.job : "");
    assert_string_equal(text, expected);
}

static void launchers_are_recognised(void **state)
{
    (void)state;
    assert_identity("", "0/1 0/1 alone ");
    assert_identity("RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_PORT=29500",
                    "3/8 1/2 torchrun torchrun-29500");
    assert_identity("RANK=3 WORLD_SIZE=8 CTITAN_JOB=x", "3/8 3/8 torchrun x");
    assert_identity("OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=6 OMPI_COMM_WORLD_LOCAL_RANK=1 "
                    "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=77",
                    "5/6 1/2 Open MPI Open MPI-77");
    assert_identity("PMI_RANK=0 PMI_SIZE=1 CTITAN_JOB=y", "0/1 0/1 PMI y");
    assert_identity("SLURM_PROCID=6 SLURM_STEP_NUM_TASKS=7 SLURM_LOCALID=0 SLURM_NODEID=3 "
                    "SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_JOB_ID=9 SLURM_STEP_ID=0",
                    "6/7 0/1 Slurm slurm-9.0");
    assert_identity("SLURM_PROCID=0 SLURM_NTASKS=4", "0/1 0/1 alone ");
}

#define SLURM_RANK                                                                                 \
    "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=1(x3) SLURM_NODEID=1 "        \
    "SLURM_LOCALID=0 SLURM_JOB_ID=40009 SLURM_STEP_ID=0 "

static void slurm_says_where_rank_0_is(void **state)
{
    static const char *const cases[][2] = {{"n[004-007,9],m", "n004"},
                                           {"gpu-a,gpu-b", "gpu-a"},
                                           {"n[7,9]", "n7"},
                                           {"alone", "alone"},
                                           {"rack[1-2]-gpu", "rack1-gpu"},
                                           {"a[1-2]b[03-04]c,d", "a1b03c"}};
    struct ct_identity id;
    char settings[300];

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        snprintf(settings, sizeof(settings), SLURM_RANK "SLURM_STEP_NODELIST=%s", cases[i][0]);
        assert_int_equal(identify(&id, settings), 0);
        assert_string_equal(getenv("MASTER_ADDR"), cases[i][1]);
        assert_string_equal(getenv("MASTER_PORT"), "20009");
    }
    assert_int_equal(
        identify(&id, SLURM_RANK "SLURM_STEP_NODELIST=a,b MASTER_ADDR=here MASTER_PORT=7"), 0);
    assert_string_equal(getenv("MASTER_ADDR"), "here");
    assert_string_equal(getenv("MASTER_PORT"), "7");
}

static void wrong_environments_are_refused(void **state)
{
    static const char *const cases[][2] = {
        {"RANK=3", "RANK is set, WORLD_SIZE is not"},
        {"WORLD_SIZE=3", "WORLD_SIZE is set, RANK is not"},
        {"RANK=x WORLD_SIZE=3", "RANK=x: expected a number"},
        {"RANK=-1 WORLD_SIZE=3", "RANK=-1: expected a number, at least 0"},
        {"RANK=3 WORLD_SIZE=3", "RANK=3 is not below WORLD_SIZE=3"},
        {"RANK=1 WORLD_SIZE=2", "MASTER_PORT is not"},
        {"RANK=0 WORLD_SIZE=0", "WORLD_SIZE=0: expected a number, at least 1"},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "LOCAL_RANK=2 is not below the 2"},
        {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", "gives this host 4 ranks"}};
    struct ct_identity id;

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        assert_int_equal(identify(&id, cases[i][0]), CT_ECONFIG);
        assert_in(ct_error_message(), cases[i][1]);
    }
}

/* ---- codes of secrets ---- */

/* RFC 4231, cases 1, 2 and 6. */
static void codes_are_those_of_the_standard(void **state)
{
    static const uint8_t a[20] = {0x0b, 0x0b, 0x0b, 0x0b, 0x0b, 0x0b, 0x0b, 0x0b, 0x0b, 0x0b,
                                  0x0b, 0x0b, 0x0b, 0x0b, 0x0b, 0x0b, 0x0b, 0x0b, 0x0b, 0x0b};
    static const char *const words[] = {"Hi There", "what do ya want for nothing?",
                                        "Test Using Larger Than Block-Size Key - Hash Key First"};
    static const char *const right[] = {
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"};
    uint8_t code[CT_CODE_BYTES], again[CT_CODE_BYTES], c[131];

    (void)state;
    memset(c, 0xaa, sizeof(c));
    for (size_t i = 0; i < CT_COUNT(right); i++) {
        const void *keys[] = {a, "Jefe", c};
        const size_t bytes[] = {sizeof(a), 4, sizeof(c)};
        char text[2 * CT_CODE_BYTES + 1];

        ct_code(keys[i], bytes[i], words[i], strlen(words[i]), code);
        for (size_t k = 0; k < sizeof(code); k++)
            snprintf(text + 2 * k, 3, "%02x", code[k]);
        assert_string_equal(text, right[i]);
    }
    memcpy(again, code, sizeof(again));
    assert_true(ct_code_is(code, again));
    again[31] ^= 1;
    assert_false(ct_code_is(code, again));
}

/* Two secrets differ, and are 64 digits. */
static void secrets_are_new(void **state)
{
    char one[CT_SECRET_ROOM], two[CT_SECRET_ROOM];

    (void)state;
    assert_int_equal(ct_secret_make(one), 0);
    assert_int_equal(ct_secret_make(two), 0);
    assert_true(ct_secret_is(one) && ct_secret_is(two));
    assert_string_not_equal(one, two);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_is_tagged),
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(a_launch_that_fails_blocks_no_signal),
        cmocka_unit_test(words_without_an_end_are_relayed_once),
        cmocka_unit_test(first_failure_is_named),
        cmocka_unit_test(cause_is_named_though_it_ends_last),
        cmocka_unit_test(echo_is_not_repeated),
        cmocka_unit_test(deaf_and_stopped_ranks_are_ended),
        cmocka_unit_test(ranks_that_end_apart_get_one_signal),
        cmocka_unit_test(signals_are_passed_on),
        cmocka_unit_test(ranks_are_asked_by_sigquit),
        cmocka_unit_test(nohup_holds),
        cmocka_unit_test(ranks_do_not_outlive_the_launcher),
        cmocka_unit_test(launchers_are_recognised),
        cmocka_unit_test(slurm_says_where_rank_0_is),
        cmocka_unit_test(wrong_environments_are_refused),
        cmocka_unit_test(codes_are_those_of_the_standard),
        cmocka_unit_test(secrets_are_new),
    };

    if (argc == 3 && !strcmp(argv[1], "rank"))
        return act_as_rank(argv[2]);
    if (argc == 4 && !strcmp(argv[1], "launch"))
        return launch(atoi(argv[2]), argv[3]);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGQUIT, SIG_DFL); /* a shell ignores it in what it runs in the background */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
