/*
 * How ranks of nccl find each other: strangers at rank 0's port, signals, name servers that do not
 * answer, and places where rank 0 is not. No device is needed. Ranks are processes, which print why
 * they failed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster.h"

#define MAGIC 0x63746e32u /* with which a request begins */

struct rank {
    pid_t pid;
    int out; /* a pipe */
};

#define SILENT "rank0.silent" /* of which no name server tells anything */

/* In place of the C library's. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **found)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

    if (!strcmp(host, SILENT))
        sleep(60);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(host, port, hints, found);
}

static void ignore(int signal)
{
    (void)signal;
}

/* Rank 0 leaves last. */
static int meet_all(struct store *s, int rank, int world)
{
    char key[STORE_KEY], one = 1;
    int rc;

    snprintf(key, sizeof(key), "done/%d", rank);
    rc = nccl_store_set(s, key, &one, sizeof(one));
    for (int i = 0; rc >= 0 && rank == 0 && i < world; i++) {
        snprintf(key, sizeof(key), "done/%d", i);
        rc = nccl_store_get(s, key, &one, sizeof(one), 5);
    }
    return rc < 0 ? rc : 0;
}

static const char *interface; /* of the ranks that start; NULL: any */
static rlim_t most_files;     /* that they may open; 0: as this process */

/* `hosts` false: all ranks are on one. job NULL: they have none. */
static struct rank start(int rank, int world, bool hosts, const char *job, double timeout)
{
    struct ct_comm_request request = {.rank = rank,
                                      .world = world,
                                      .local_ranks = hosts ? 1 : world,
                                      .job = job,
                                      .timeout = timeout,
                                      .interface = interface};
    struct store *store = NULL;
    struct rank r;
    int out[2];

    assert_int_equal(pipe(out), 0);
    r = (struct rank){.pid = fork(), .out = out[0]};
    if (r.pid) {
        close(out[1]);
        return r;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (most_files)
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){most_files, most_files});
    if (nccl_store_open(&request, &store) < 0 || meet_all(store, rank, world) < 0)
        dprintf(out[1], "%s", ct_error_message());
    nccl_store_close(store);
    _exit(0);
}

/* The rank ends within `seconds`, having said the words (NULL: nothing). */
static void finish(struct rank r, double seconds, const char *words)
{
    struct pollfd end = {.fd = r.out, .events = POLLIN};
    char text[1024] = "";
    bool ends = poll(&end, 1, (int)(seconds * 1e3)) > 0;

    if (!ends)
        kill(r.pid, SIGKILL);
    else if (read(r.out, text, sizeof(text) - 1) < 0)
        snprintf(text, sizeof(text), "%s", strerror(errno));
    close(r.out);
    waitpid(r.pid, NULL, 0);
    if (!ends || !!words != !!*text || (words && !strstr(text, words)))
        fail_msg("%s, %s", ends ? "it ends" : "it does not end", text);
}

/* A socket of this host, listening at a free port, which goes to *port. */
static int listen_somewhere(int *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(s, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(s, 0), 0);
    assert_int_equal(getsockname(s, (struct sockaddr *)&at, &size), 0);
    *port = ntohs(at.sin_port);
    return s;
}

static int free_port(void)
{
    int port, s = listen_somewhere(&port);

    close(s);
    return port;
}

static int connect_to(int port, int flags)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);

    for (int i = 0; connect(s, (struct sockaddr *)&at, sizeof(at)) < 0 && i < 1000; i++) {
        if (errno == EINPROGRESS)
            break;
        usleep(2000);
    }
    return s;
}

static void is_closed(int s)
{
    struct pollfd end = {.fd = s, .events = POLLIN};
    char byte;

    assert_int_equal(poll(&end, 1, 3000), 1);
    assert_true(recv(s, &byte, 1, 0) <= 0);
    close(s);
}

/* Rank 1 waits for rank 2 while both it and rank 0 get signals; strangers keep the port busy. */
static void strangers_and_signals_stop_no_rank(void **state)
{
    static const uint32_t begin = MAGIC;
    double until = ct_now() + 1.2;
    struct rank ranks[3];
    int quiet, foreign, half;

    (void)state;
    nccl_config.port = free_port();
    for (int i = 0; i < 2; i++)
        ranks[i] = start(i, 3, true, NULL, 20);
    quiet = connect_to((int)nccl_config.port, 0);
    foreign = connect_to((int)nccl_config.port, 0);
    half = connect_to((int)nccl_config.port, 0);
    assert_int_equal(send(foreign, "GET / HTTP/1.1\r\n", 16, 0), 16);
    assert_int_equal(send(half, &begin, sizeof(begin), 0), sizeof(begin));
    is_closed(foreign);
    while (ct_now() < until)
        for (int i = 0; i < 2; i++) {
            kill(ranks[i].pid, SIGUSR1);
            kill(ranks[i].pid, SIGSTOP);
            kill(ranks[i].pid, SIGCONT);
            usleep(5000);
        }
    is_closed(half);
    ranks[2] = start(2, 3, true, NULL, 20);
    for (int i = 2; i >= 0; i--)
        finish(ranks[i], 5, NULL);
    close(quiet);
    nccl_config.port = 0;
}

#define SECRET "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define OTHER "ff112233445566778899aabbccddeeff00112233445566778899aabbccddee00"

/* Two ranks, each with a secret of its own; NULL: none. Each ends with the words; NULL: well. */
static void meet_with(const char *const secrets[2], const char *const words[2])
{
    struct rank ranks[2];

    nccl_config.port = free_port();
    for (int i = 0; i < 2; i++) {
        if (secrets[i])
            setenv("CTITAN_SECRET", secrets[i], 1);
        ranks[i] = start(i, 2, true, NULL, 0.5);
        unsetenv("CTITAN_SECRET");
    }
    for (int i = 1; i >= 0; i--)
        finish(ranks[i], 4, words[i]);
    nccl_config.port = 0;
}

/* Rank 0 is not ended by a rank with another secret: it waits for the right one. */
static void a_rank_needs_the_secret(void **state)
{
    static const char alone[] = "1 of 2 ranks did not start within 0.5 s: 1",
                      other[] = "has another secret than this rank",
                      wrong[] = "CTITAN_SECRET: expected 64";
    static const struct {
        const char *secrets[2], *words[2];
    } cases[] = {{{SECRET, SECRET}, {NULL, NULL}},
                 {{SECRET, OTHER}, {alone, other}},
                 {{SECRET, NULL}, {alone, other}},
                 {{NULL, SECRET}, {alone, other}},
                 {{"short", "short"}, {wrong, wrong}}};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++)
        meet_with(cases[i].secrets, cases[i].words);
}

/* ---- munge ---- */

#define MOST 3

struct side {
    const char *setting[MOST]; /* names and values of the environment */
    const char *words;         /* with which the rank ends; NULL: well */
};

/* Two ranks with munge, which the sides may contradict. */
static void meet_by_munge(struct side zero, struct side one)
{
    const struct side sides[2] = {zero, one};
    struct rank ranks[2];

    nccl_config.port = free_port();
    for (int i = 0; i < 2; i++) {
        setenv("CTITAN_MUNGE_SOCKET", "/dev/null", 1);
        for (int k = 0; k < MOST && sides[i].setting[k]; k++)
            putenv((char *)sides[i].setting[k]);
        ranks[i] = start(i, 2, true, NULL, 0.3);
        for (int k = 0; k < MOST && sides[i].setting[k]; k++) {
            char name[64];

            snprintf(name, sizeof(name), "%.*s", (int)strcspn(sides[i].setting[k], "="),
                     sides[i].setting[k]);
            unsetenv(name);
        }
    }
    for (int i = 1; i >= 0; i--)
        finish(ranks[i], 4, sides[i].words);
    unsetenv("CTITAN_MUNGE_SOCKET");
    nccl_config.port = 0;
}

#define ALONE "1 of 2 ranks did not start within 0.3 s: 1"

static void munge_hands_the_secret_over(void **state)
{
    (void)state;
    meet_by_munge((struct side){{NULL}, NULL}, (struct side){{NULL}, NULL});
}

/* Neither a reader nor a maker may be another user. */
static void munge_tells_users_apart(void **state)
{
    (void)state;
    meet_by_munge((struct side){{NULL}, ALONE},
                  (struct side){{"FAKE_MUNGE_USER=77"}, "it is for another user"});
    meet_by_munge((struct side){{"FAKE_MUNGE_USER=77", "FAKE_MUNGE_READER=-1"}, ALONE},
                  (struct side){{NULL}, "the credential is of user 77"});
}

/* In a user namespace, this process has another number than munged knows it by. */
static void munge_knows_users_by_its_own_numbers(void **state)
{
    (void)state;
    meet_by_munge((struct side){{"FAKE_MUNGE_USER=77"}, NULL},
                  (struct side){{"FAKE_MUNGE_USER=77"}, NULL});
}

/* Users that munged has no number for are all 65534 to it. */
static void munge_without_a_number_for_the_user_is_refused(void **state)
{
    (void)state;
    meet_by_munge((struct side){{"FAKE_MUNGE_USER=65534"},
                                "on the host of rank 0: munge: its daemon runs in a user namespace "
                                "that has no number for user"},
                  (struct side){{NULL}, "rank 0 did not start"});
    meet_by_munge((struct side){{"FAKE_MUNGE_READER=-1"}, ALONE},
                  (struct side){{"FAKE_MUNGE_USER=65534"}, "has no number for user"});
}

static void failures_of_munge_say_where_they_are(void **state)
{
    (void)state;
    meet_by_munge((struct side){{"CTITAN_MUNGE_SOCKET=/nonexistent"},
                                "on the host of rank 0: munge: making a credential: error 6 of "
                                "munge; is munged running on this host?"},
                  (struct side){{NULL}, "rank 0 did not start"});
    meet_by_munge((struct side){{NULL}, ALONE},
                  (struct side){{"FAKE_MUNGE_ERROR=15"},
                                "munge: reading a credential: error 15 of munge; do the clocks"});
    meet_by_munge((struct side){{NULL}, ALONE},
                  (struct side){{"FAKE_MUNGE_ERROR=17"}, "somebody sent it twice"});
}

static void a_lapse_of_munge_is_waited_for(void **state)
{
    (void)state;
    meet_by_munge((struct side){{"FAKE_MUNGE_LAPSE=2"}, NULL}, (struct side){{NULL}, NULL});
}

/* A rank 0 without munge may be anybody. */
static void munge_or_a_secret_must_be_everywhere(void **state)
{
    (void)state;
    meet_by_munge((struct side){{"CTITAN_SECRET=" SECRET, "FAKE_MUNGE_ERROR=6"}, NULL},
                  (struct side){{"CTITAN_SECRET=" SECRET, "FAKE_MUNGE_ERROR=6"}, NULL});
    meet_by_munge((struct side){{NULL}, ALONE},
                  (struct side){{"CTITAN_SECRET=" SECRET}, "has another secret than this rank"});
    meet_by_munge((struct side){{"CTITAN_SECRET=" SECRET}, ALONE},
                  (struct side){{NULL}, "rank 0 sends no credential of munge"});
}

static void a_secret_in_a_file_is_closed_to_others(void **state)
{
    char path[] = "/tmp/ctitan-secret-XXXXXX", secret[CT_SECRET_ROOM];
    int file = mkstemp(path);

    (void)state;
    assert_true(file >= 0);
    assert_int_equal(write(file, SECRET "\n", 65), 65);
    setenv("CTITAN_SECRET_FILE", path, 1);
    assert_int_equal(ct_secret_find(secret), 1);
    assert_string_equal(secret, SECRET);
    fchmod(file, 0640);
    assert_int_equal(ct_secret_find(secret), CT_ECONFIG);
    assert_non_null(strstr(ct_error_message(), "others may read it"));
    unsetenv("CTITAN_SECRET_FILE");
    close(file);
    unlink(path);
}

/* Rank 0 of two, at a free port, with the secret; rank 1 does not come before meet_late. */
static struct rank start_early(void)
{
    nccl_config.port = free_port();
    setenv("CTITAN_SECRET", SECRET, 1);
    return start(0, 2, true, NULL, 20);
}

static void meet_late(struct rank zero, int seconds)
{
    finish(start(1, 2, true, NULL, 20), seconds, NULL);
    finish(zero, seconds, NULL);
    unsetenv("CTITAN_SECRET");
    nccl_config.port = 0;
}

/* Greetings of a stranger that knows the format, but not the secret. */
static void send_greetings(int s, bool whole)
{
    struct greeting g = {.magic = MAGIC};

    send(s, &g, whole ? sizeof(g) : sizeof(g) / 2, MSG_NOSIGNAL);
    if (whole)
        send(s, &g, sizeof(g), MSG_NOSIGNAL);
}

/* More strangers than rank 0 has descriptors; some are silent, some play a rank. */
static void a_flood_of_strangers_keeps_no_rank_out(void **state)
{
    enum { FLOOD = 150 };
    struct rank zero;
    int strangers[FLOOD];

    (void)state;
    most_files = 100;
    zero = start_early();
    most_files = 0;
    for (int i = 0; i < FLOOD; i++) {
        strangers[i] = connect_to((int)nccl_config.port, 0);
        if (i % 3)
            send_greetings(strangers[i], i % 3 == 1);
    }
    meet_late(zero, 20);
    for (int i = 0; i < FLOOD; i++)
        close(strangers[i]);
}

/* Who plays a rank without the secret is sent away, and sets no value in the store. */
static void a_stranger_sets_nothing(void **state)
{
    struct {
        uint32_t magic, found;
        char key[STORE_KEY], value[STORE_VALUE];
    } request = {MAGIC, 1, "rank/1", {2}};
    struct rank zero = start_early();
    int s;

    (void)state;
    s = connect_to((int)nccl_config.port, 0);
    send(s, &request, sizeof(request), MSG_NOSIGNAL);
    while (recv(s, &request, sizeof(request), 0) > 0)
        ; /* rank 0's own greeting may come first */
    close(s);
    meet_late(zero, 5);
}

static void two_meet(void)
{
    struct rank ranks[2];

    nccl_config.port = free_port();
    for (int i = 0; i < 2; i++)
        ranks[i] = start(i, 2, true, NULL, 5);
    for (int i = 1; i >= 0; i--)
        finish(ranks[i], 5, NULL);
}

static void ranks_meet_over_six(void **state)
{
    (void)state;
    setenv("MASTER_ADDR", "::1", 1);
    two_meet();
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    nccl_config.port = 0;
}

/* Connections of this host come over the loopback interface, which is always allowed. */
static void an_interface_is_chosen(void **state)
{
    (void)state;
    interface = "lo";
    two_meet();
    interface = "none0";
    finish(start(0, 2, true, NULL, 5), 3, "[comm] interface = none0: this host has none");
    interface = NULL;
    nccl_config.port = 0;
}

/* A full queue of connections: the host answers no further one, as one that is down. */
static void a_host_that_never_answers_is_given_up(void **state)
{
    int port, fill[4], s = listen_somewhere(&port);

    (void)state;
    for (size_t i = 0; i < CT_COUNT(fill); i++)
        fill[i] = connect_to(port, SOCK_NONBLOCK);
    nccl_config.port = port;
    finish(start(1, 2, true, NULL, 0.3), 2, "rank 0 did not start within 0.3 s: 127.0.0.1, port");
    for (size_t i = 0; i < CT_COUNT(fill); i++)
        close(fill[i]);
    close(s);
    nccl_config.port = 0;
}

static void a_name_server_that_never_answers_is_given_up(void **state)
{
    (void)state;
    nccl_config.port = 29500;
    setenv("MASTER_ADDR", SILENT, 1);
    for (int rank = 0; rank < 2; rank++)
        finish(start(rank, 2, true, NULL, 0.2), 2,
               "MASTER_ADDR = " SILENT ": no name server answers within 0.2 s ([comm] timeout)");
    nccl_config.port = 0;
    setenv("MASTER_ADDR", "127.0.0.1", 1);
}

static void a_taken_port_is_named(void **state)
{
    char words[96];
    int port, s = listen_somewhere(&port);

    (void)state;
    nccl_config.port = port;
    snprintf(words, sizeof(words), "cannot listen at 127.0.0.1, port %d: Address already in use",
             port);
    finish(start(0, 2, true, NULL, 5), 3, words);
    close(s);
    nccl_config.port = 0;
}

static void another_program_is_told_from_rank_0(void **state)
{
    int port, s = listen_somewhere(&port), client;
    struct rank r;
    char byte;

    (void)state;
    nccl_config.port = port;
    r = start(1, 2, true, NULL, 5);
    client = accept(s, NULL, NULL);
    assert_int_equal(recv(client, &byte, 1, 0), 1);
    assert_int_equal(send(client, "SSH-2.0-other\r\n", 15, 0), 15);
    finish(r, 3, "another program answers at 127.0.0.1, port");
    close(client);
    close(s);
    nccl_config.port = 0;
}

static void places_that_cannot_be_are_refused(void **state)
{
    static const struct {
        const char *address, *port;
        int set; /* [nccl] port */
        bool hosts;
        const char *words;
    } cases[] = {
        {NULL, "29500", 0, true, "ranks on several hosts need MASTER_ADDR"},
        {NULL, NULL, 29500, true, "ranks on several hosts need MASTER_ADDR"},
        {"127.0.0.1", NULL, 0, true, "ranks on several hosts need MASTER_ADDR"},
        {"127.0.0.1", "29500x", 0, true, "MASTER_PORT = 29500x: ranks"},
        {"127.0.0.1", "", 0, true, "it must be a number from 1 to 65534"},
        {"127.0.0.1", "-5", 0, false, "MASTER_PORT = -5: ranks"},
        {"127.0.0.1", "65535", 0, true, "MASTER_PORT = 65535: ranks"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        unsetenv("MASTER_ADDR");
        unsetenv("MASTER_PORT");
        if (cases[i].address)
            setenv("MASTER_ADDR", cases[i].address, 1);
        if (cases[i].port)
            setenv("MASTER_PORT", cases[i].port, 1);
        nccl_config.port = cases[i].set;
        finish(start(1, 2, cases[i].hosts, cases[i].hosts ? "a job" : NULL, 20), 3, cases[i].words);
    }
    nccl_config.port = 0;
    setenv("MASTER_ADDR", "127.0.0.1", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_and_signals_stop_no_rank),
        cmocka_unit_test(a_rank_needs_the_secret),
        cmocka_unit_test(munge_hands_the_secret_over),
        cmocka_unit_test(munge_tells_users_apart),
        cmocka_unit_test(munge_knows_users_by_its_own_numbers),
        cmocka_unit_test(munge_without_a_number_for_the_user_is_refused),
        cmocka_unit_test(failures_of_munge_say_where_they_are),
        cmocka_unit_test(a_lapse_of_munge_is_waited_for),
        cmocka_unit_test(munge_or_a_secret_must_be_everywhere),
        cmocka_unit_test(a_secret_in_a_file_is_closed_to_others),
        cmocka_unit_test(a_flood_of_strangers_keeps_no_rank_out),
        cmocka_unit_test(a_stranger_sets_nothing),
        cmocka_unit_test(ranks_meet_over_six),
        cmocka_unit_test(an_interface_is_chosen),
        cmocka_unit_test(a_host_that_never_answers_is_given_up),
        cmocka_unit_test(a_name_server_that_never_answers_is_given_up),
        cmocka_unit_test(a_taken_port_is_named),
        cmocka_unit_test(another_program_is_told_from_rank_0),
        cmocka_unit_test(places_that_cannot_be_are_refused),
    };

    /* ranks inherit it: a signal may come before they first run */
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = ignore}, NULL);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    unsetenv("CTITAN_SECRET");
    return cmocka_run_group_tests_name("rendezvous", tests, NULL, NULL);
}
