/*
 * Rendezvous of ranks: rank 0 listens on an abstract socket named after the job and passes its
 * memfd to all others. The name vanishes with the process, so a killed job leaves nothing behind.
 *
 * Any process of the user may connect. One that does not say a hello of this job, or nothing, is
 * dropped, and nobody waits for it.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <ctitan/error.h>

#include "local.h"

#define GRACE 1.0  /* seconds for late ranks to learn of a failure, and for a hello */
#define WAITING 64 /* that have connected and said nothing yet; the oldest one makes room */
#define HELLO 0x316f6c6c6568c7c7

struct hello {
    uint64_t magic, job; /* HELLO; a hash of its name */
    int32_t rank, world, pid;
};

/* FNV-1a */
static uint64_t hash_job(const char *job)
{
    uint64_t hash = 14695981039346656037u;

    while (*job)
        hash = (hash ^ (unsigned char)*job++) * 1099511628211u;
    return hash;
}

struct answer {
    int32_t code;
    char text[160];
};

static int make_address(const char *job, struct sockaddr_un *address, socklen_t *length)
{
    int n;

    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    n = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "ctitan/%u/%s",
                 (unsigned)geteuid(), job);
    if (n >= (int)sizeof(address->sun_path) - 1)
        return ct_fail(CT_EINVAL, "job name '%s' is longer than %zu characters", job,
                       sizeof(address->sun_path) - 20);
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    return 0;
}

static int check_peer(int s, struct ucred *peer)
{
    socklen_t length = sizeof(*peer);

    if (getsockopt(s, SOL_SOCKET, SO_PEERCRED, peer, &length) < 0)
        return ct_fail(CT_EIO, "rendezvous: %s", strerror(errno));
    if (peer->uid != geteuid())
        return ct_fail(CT_EPEER, "rendezvous: process %d of another user answered", peer->pid);
    return 0;
}

/* 1: fd is ready to read or accept; 0: the deadline has passed. */
static int wait_for(int fd, double deadline)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    double left;
    int n = 0;

    while (n <= 0 && (left = deadline - ct_now()) > 0) {
        n = poll(&ready, 1, left > 1000 ? 1000000 : (int)(left * 1e3) + 1);
        if (n < 0 && errno != EINTR)
            return ct_fail(CT_EIO, "rendezvous: %s", strerror(errno));
    }
    return n > 0;
}

static void send_answer(int s, const struct answer *answer, int fd)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {.iov_base = (void *)(uintptr_t)answer, .iov_len = sizeof(*answer)};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};

    if (fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof(control);
        control.head = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
    }
    sendmsg(s, &message, MSG_NOSIGNAL); /* a guest that died is reported as missing later */
}

/* Receive rank 0's memfd, or CT_EPEER with its message. */
static int take_answer(int s)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct answer answer;
    struct iovec data = {.iov_base = &answer, .iov_len = sizeof(answer)};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    int fd;

    if (recvmsg(s, &message, MSG_CMSG_CLOEXEC) != sizeof(answer))
        return ct_fail(CT_EPEER, "rendezvous: rank 0 ended");
    if (answer.code < 0)
        return ct_fail(answer.code, "%s", answer.text);
    if (message.msg_controllen < sizeof(control.head) || control.head.cmsg_type != SCM_RIGHTS)
        return ct_fail(CT_EIO, "rendezvous: rank 0 sent no segment");
    memcpy(&fd, CMSG_DATA(&control.head), sizeof(fd));
    return fd;
}

/* ---- rank 0 ---- */

static int judge(const struct comm *comm, const struct hello *h, const struct ucred *peer)
{
    int world = comm->base.world;

    if (h->world != world)
        return ct_fail(CT_ECONFIG, "rank %d has a world of %d ranks, but rank 0 one of %d", h->rank,
                       h->world, world);
    if (h->rank <= 0 || h->rank >= world)
        return ct_fail(CT_ECONFIG, "there is no rank %d in a world of %d", h->rank, world);
    if (comm->control->members[h->rank].pid)
        return ct_fail(CT_ECONFIG, "two processes are rank %d: %d and %d", h->rank,
                       comm->control->members[h->rank].pid, h->pid);
    if (h->pid != peer->pid)
        return ct_fail(CT_ECONFIG, "rank %d is in another PID namespace", h->rank);
    return 0;
}

/* Rank 0's guests. All that came are answered once every rank has come or something is wrong. */
struct guests {
    int *sockets, count;
    uint64_t job;
    double deadline;
    struct answer answer;
    struct pollfd waiting[1 + WAITING]; /* the listener; who has said nothing, by age */
    double until[1 + WAITING];
    int waiting_count;
};

static void refuse(struct guests *guests, int code)
{
    if (guests->answer.code < 0)
        return;
    guests->answer.code = code;
    snprintf(guests->answer.text, sizeof(guests->answer.text), "%s", ct_error_message());
}

/* Drop processes that are no ranks of this job. After a wrong rank, all ranks that connect soon are
   refused too, with the reason. */
static void admit(struct comm *comm, struct guests *guests, int s)
{
    double soon = ct_now() + GRACE;
    struct ucred peer;
    struct hello h;
    int rc;

    if (check_peer(s, &peer) < 0 || recv(s, &h, sizeof(h), MSG_DONTWAIT) != sizeof(h) ||
        h.magic != HELLO || h.job != guests->job) {
        close(s);
        return;
    }
    rc = judge(comm, &h, &peer);
    if (rc == 0)
        comm->control->members[h.rank].pid = h.pid;
    else
        refuse(guests, rc);
    if (rc < 0 && guests->deadline > soon)
        guests->deadline = soon;
    guests->sockets[guests->count++] = s;
}

static int missing_ranks(const struct comm *comm, const char *job)
{
    char list[128];
    size_t used = 0;
    int missing = 0;

    for (int r = 1; r < comm->base.world; r++) {
        if (comm->control->members[r].pid)
            continue;
        missing++;
        if (used < sizeof(list) - 16)
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%d", used ? ", " : "", r);
    }
    return ct_fail(CT_EPEER, "%d of %d ranks did not start within %g s: %s%s (of job '%s')",
                   missing, comm->base.world, comm->timeout, list,
                   used >= sizeof(list) - 16 ? ", .." : "", job);
}

/* The socket at a place of the list is not waited for any more. */
static int leave(struct guests *guests, int at)
{
    int s = guests->waiting[at].fd;

    guests->waiting_count--;
    for (int i = at; i <= guests->waiting_count; i++) {
        guests->waiting[i] = guests->waiting[i + 1];
        guests->until[i] = guests->until[i + 1];
    }
    return s;
}

static void welcome(struct guests *guests)
{
    int s = accept4(guests->waiting[0].fd, NULL, NULL, SOCK_CLOEXEC);

    if (s < 0)
        return;
    if (guests->waiting_count == WAITING)
        close(leave(guests, 1));
    guests->waiting_count++;
    guests->waiting[guests->waiting_count] = (struct pollfd){.fd = s, .events = POLLIN};
    guests->until[guests->waiting_count] = ct_now() + GRACE;
}

/* Admit guests that have said something, and drop those that said nothing for too long. */
static void listen_to(struct comm *comm, struct guests *guests)
{
    for (int i = guests->waiting_count; i > 0; i--) {
        if (guests->waiting[i].revents && guests->count < comm->base.world - 1)
            admit(comm, guests, leave(guests, i));
        else if (ct_now() > guests->until[i])
            close(leave(guests, i));
    }
    if (guests->waiting[0].revents)
        welcome(guests);
}

static void await(struct comm *comm, const char *job, struct guests *guests, int listener)
{
    guests->waiting[0] = (struct pollfd){.fd = listener, .events = POLLIN};
    while (guests->count < comm->base.world - 1) {
        double left = guests->deadline - ct_now(), most = guests->waiting_count ? GRACE : 1000;
        int rc;

        if (left <= 0) {
            refuse(guests, missing_ranks(comm, job));
            break;
        }
        rc = poll(guests->waiting, (nfds_t)guests->waiting_count + 1,
                  (int)((left < most ? left : most) * 1e3) + 1);
        if (rc < 0 && errno != EINTR) {
            refuse(guests, ct_fail(CT_EIO, "rendezvous: %s", strerror(errno)));
            break;
        }
        if (rc >= 0)
            listen_to(comm, guests);
    }
    while (guests->waiting_count)
        close(leave(guests, 1));
}

static int serve(struct comm *comm, const char *job, int listener)
{
    struct guests guests = {.job = hash_job(job),
                            .deadline = local_deadline(comm),
                            .sockets = calloc((size_t)comm->base.world, sizeof(int))};

    if (!guests.sockets)
        return ct_fail(CT_ENOMEM, "rendezvous of %d ranks", comm->base.world);
    await(comm, job, &guests, listener);
    for (int i = 0; i < guests.count; i++) {
        send_answer(guests.sockets[i], &guests.answer, guests.answer.code < 0 ? -1 : comm->fd);
        close(guests.sockets[i]);
    }
    free(guests.sockets);
    return guests.answer.code < 0 ? ct_fail(guests.answer.code, "%s", guests.answer.text) : 0;
}

static int host(struct comm *comm, const char *job, const struct sockaddr_un *address,
                socklen_t length)
{
    int listener, rc = local_segment_create(comm, job);

    if (rc < 0)
        return rc;
    comm->control->members[0].pid = getpid();
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0)
        return ct_fail(CT_EIO, "rendezvous socket: %s", strerror(errno));
    if (bind(listener, (const struct sockaddr *)address, length) < 0)
        rc = errno == EADDRINUSE
                 ? ct_fail(CT_ECONFIG, "a job named '%s' already runs on this host", job)
                 : ct_fail(CT_EIO, "rendezvous socket: %s", strerror(errno));
    else if (listen(listener, comm->base.world) < 0)
        rc = ct_fail(CT_EIO, "rendezvous socket: %s", strerror(errno));
    else
        rc = serve(comm, job, listener);
    close(listener);
    return rc;
}

/* ---- all others ---- */

static int connect_to_host(struct comm *comm, const char *job, int s,
                           const struct sockaddr_un *address, socklen_t length)
{
    double deadline = local_deadline(comm), nap = 0.5e-3;

    while (connect(s, (const struct sockaddr *)address, length) < 0) {
        if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR)
            return ct_fail(CT_EIO, "rendezvous: %s", strerror(errno));
        if (ct_now() > deadline)
            return ct_fail(CT_EPEER, "rank 0 did not start within %g s (of job '%s')",
                           comm->timeout, job);
        ct_nap(nap);
        if (nap < 10e-3)
            nap *= 1.25;
    }
    return 0;
}

static int ask(struct comm *comm, const char *job, int s)
{
    struct hello h = {.magic = HELLO,
                      .job = hash_job(job),
                      .rank = comm->base.rank,
                      .world = comm->base.world,
                      .pid = getpid()};
    struct ucred peer;
    double deadline = local_deadline(comm) + 2 * GRACE;
    int rc = check_peer(s, &peer);

    if (rc < 0)
        return rc;
    if (send(s, &h, sizeof(h), MSG_NOSIGNAL) != sizeof(h))
        return ct_fail(CT_EPEER, "rendezvous: rank 0 ended");
    rc = wait_for(s, deadline);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return ct_fail(CT_EPEER, "rank 0 (pid %d) did not answer within %g s", peer.pid,
                       comm->timeout);
    return take_answer(s);
}

static int join(struct comm *comm, const char *job, const struct sockaddr_un *address,
                socklen_t length)
{
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), rc;

    if (s < 0)
        return ct_fail(CT_EIO, "rendezvous socket: %s", strerror(errno));
    rc = connect_to_host(comm, job, s, address, length);
    if (rc == 0)
        rc = ask(comm, job, s);
    close(s);
    return rc < 0 ? rc : local_segment_map(comm, rc);
}

int local_rendezvous(struct comm *comm, const char *job)
{
    struct sockaddr_un address;
    socklen_t length = 0;
    int rc = make_address(job, &address, &length);

    if (rc < 0)
        return rc;
    if (comm->base.rank == 0)
        return host(comm, job, &address, length);
    return join(comm, job, &address, length);
}
