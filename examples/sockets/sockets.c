/*
 * A communicator: ranks on one host, with a Unix socket between each two ranks of a group.
 *
 * Ranks find each other by names that follow from the job, the group and the rank; no file is made.
 * Every call is one exchange with all members at once: each sends a head, which says what the call
 * is, and its data, and receives theirs. Reductions take place where the result is wanted, in rank
 * order. That is simple and right, not fast: an all-reduce sends the whole value to every member.
 *
 * A rank that fails, or ends, closes its connections. Its peers find that they end, and fail as
 * well; who was first is for the launcher to say.
 */
#define _GNU_SOURCE /* accept4 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/plugin.h>
#include <ctitan/rng.h>

struct group;

struct comm {
    struct ct_comm base; /* first, so that a struct ct_comm * is one of these */
    double timeout;
    uint64_t job;
    struct ct_first_failure failure;
    struct group *groups;
};

/* Header of a call, which a rank sends to one member before the data. */
struct head {
    uint32_t kind, dtype, reduction, tag;
    uint64_t bytes; /* that follow */
};

/* The part of a call that is between this rank and one member. */
struct flow {
    struct head mine, theirs, expected; /* of what is sent, received, and should be received */
    const char *out;
    char *in;
    size_t sent, received; /* bytes of head and data */
    bool sends, receives;
};

struct group {
    struct ct_group base;
    struct comm *comm;
    struct group *next;
    int *socket; /* by position; -1: this rank, or not connected */
    struct flow *flow;
    struct pollfd *poll;
    char *scratch; /* what is received for reductions */
    size_t room;
};

/* ---- failures ---- */

/* The first failure is everyone's: all connections end, so that peers do not wait. */
static int fail(struct comm *comm, const char *words, ...)
{
    va_list args;
    int rc;

    va_start(args, words);
    rc = ct_first_failure_set(&comm->failure, words, args);
    va_end(args);
    for (struct group *g = comm->groups; g; g = g->next)
        for (int i = 0; i < g->base.size; i++)
            if (g->socket[i] >= 0)
                shutdown(g->socket[i], SHUT_RDWR);
    return rc;
}

/* ---- meeting ---- */

/* The address of a member: a name without a file (unix(7), "abstract"). */
static socklen_t address_of(const struct group *g, int position, struct sockaddr_un *address)
{
    uint64_t key = g->comm->job ^ ct_rng_stream(g->base.name);
    int length, instance = 0;

    for (const struct group *other = g->comm->groups; other; other = other->next)
        instance += other != g && other->base.size == g->base.size &&
                    !strcmp(other->base.name, g->base.name) &&
                    !memcmp(other->base.ranks, g->base.ranks,
                            (size_t)g->base.size * sizeof(*g->base.ranks));
    for (int i = 0; i < g->base.size; i++)
        key = (key ^ (uint64_t)g->base.ranks[i]) * 0x100000001b3u;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1,
                      "ctitan-sockets-%016llx-%d-%d", (unsigned long long)key, instance, position);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static int listen_as(const struct group *g)
{
    struct sockaddr_un own;
    socklen_t size = address_of(g, g->base.position, &own);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && bind(fd, (struct sockaddr *)&own, size) == 0 && listen(fd, g->base.size) == 0)
        return fd;
    ct_fail(CT_EIO, "group '%s': %s", g->base.name, strerror(errno));
    if (fd >= 0)
        close(fd);
    return CT_EIO;
}

/* Connect to a member of a lower position, once it listens; say who this is. */
static void connect_to(struct group *g, int position)
{
    struct sockaddr_un other;
    socklen_t size = address_of(g, position, &other);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (struct sockaddr *)&other, size) == 0 &&
        send(fd, &g->base.position, sizeof(int), MSG_NOSIGNAL) == sizeof(int))
        g->socket[position] = fd;
    else if (fd >= 0)
        close(fd);
}

/* Take a connection of a member of a higher position, if there is one. */
static void accept_from(struct group *g, int listener)
{
    int position, fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0)
        return;
    if (recv(fd, &position, sizeof(position), MSG_WAITALL) == sizeof(position) &&
        position > g->base.position && position < g->base.size && g->socket[position] < 0)
        g->socket[position] = fd;
    else
        close(fd);
}

/* Connect each two members. The failure lists the ranks that did not come. */
static int connect_members(struct group *g)
{
    double end = ct_now() + g->comm->timeout;
    int listener = listen_as(g), missing = 0, size = g->base.size;
    char list[256];

    if (listener < 0)
        return listener;
    do {
        size_t at = 0;

        missing = 0;
        *list = '\0';
        for (int i = 0; i < size; i++) {
            if (i < g->base.position && g->socket[i] < 0)
                connect_to(g, i);
            else if (i > g->base.position && g->socket[i] < 0)
                accept_from(g, listener);
            if (i == g->base.position || g->socket[i] >= 0)
                continue;
            missing++;
            if (at < sizeof(list))
                at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%d", at ? ", " : "",
                                       g->base.ranks[i]);
        }
        if (missing)
            ct_nap(1e-3);
    } while (missing && ct_now() < end);
    close(listener);
    return missing ? fail(g->comm, "group '%s': %d of %d ranks did not start within %g s: %s",
                          g->base.name, missing, size, g->comm->timeout, list)
                   : 0;
}

/* ---- moving ---- */

static size_t total(const struct head *h)
{
    return sizeof(*h) + h->bytes;
}

/* Where byte number `at` of a head and its data lies, and how many follow there. */
static char *byte_at(struct head *h, char *data, size_t at, size_t *count)
{
    *count = at < sizeof(*h) ? sizeof(*h) - at : total(h) - at;
    return at < sizeof(*h) ? (char *)h + at : data + (at - sizeof(*h));
}

/* 1: go on; 0: not now; negative: the connection has ended. */
static int send_some(struct flow *f, int fd)
{
    size_t count;
    char *from = byte_at(&f->mine, (char *)(uintptr_t)f->out, f->sent, &count);
    ssize_t n = send(fd, from, count, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    f->sent += (size_t)n;
    return f->sent < total(&f->mine);
}

static int receive_some(struct flow *f, int fd)
{
    size_t count;
    char *to = byte_at(&f->theirs, f->in, f->received, &count);
    ssize_t n = recv(fd, to, count, MSG_DONTWAIT);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    f->received += (size_t)n;
    return n ? f->received < total(&f->expected) : -1;
}

static void print_head(const struct head *h, char *text, size_t room)
{
    snprintf(text, room, "%s of %llu bytes (%s, %s, tag %d)",
             h->kind < CT_CALL_KINDS ? ct_call_name(h->kind) : "another call",
             (unsigned long long)h->bytes,
             h->dtype < CT_DTYPE_COUNT ? ct_dtype_name(h->dtype) : "another dtype",
             h->reduction == CT_REDUCE_MAX ? "max" : "sum", (int)h->tag);
}

static int check_head(struct group *g, int i)
{
    const struct flow *f = &g->flow[i];
    char theirs[128], expected[128];

    if (f->received < sizeof(f->theirs) || !memcmp(&f->theirs, &f->expected, sizeof(f->theirs)))
        return 0;
    print_head(&f->theirs, theirs, sizeof(theirs));
    print_head(&f->expected, expected, sizeof(expected));
    return fail(g->comm, "ranks disagree in group '%s': rank %d has %s, rank %d expects %s",
                g->base.name, g->base.ranks[i], theirs, g->base.ranks[g->base.position], expected);
}

/* Receive no data before the head has been checked: its length counts. */
static int move(struct group *g, int i)
{
    struct flow *f = &g->flow[i];
    int more = 1, rc = 0;

    while (more > 0 && f->sends && f->sent < total(&f->mine))
        more = send_some(f, g->socket[i]);
    for (int next = 1;
         more >= 0 && next > 0 && rc == 0 && f->receives && f->received < total(&f->expected);) {
        next = receive_some(f, g->socket[i]);
        rc = next < 0
                 ? fail(g->comm, "group '%s': rank %d has left", g->base.name, g->base.ranks[i])
                 : check_head(g, i);
    }
    return more < 0 ? fail(g->comm, "group '%s': rank %d has left", g->base.name, g->base.ranks[i])
                    : rc;
}

/* Events of poll(2) that a member's transfers still wait for; 0: none. */
static short wanted(const struct flow *f)
{
    return (short)((f->sends && f->sent < total(&f->mine) ? POLLOUT : 0) |
                   (f->receives && f->received < total(&f->expected) ? POLLIN : 0));
}

static int move_all(struct group *g, const char *call)
{
    double end = ct_now() + g->comm->timeout;

    for (;;) {
        int waiting = -1, rc = 0;

        for (int i = 0; rc == 0 && i < g->base.size; i++)
            if (wanted(&g->flow[i]))
                rc = move(g, i);
        if (rc < 0)
            return rc;
        for (int i = 0; i < g->base.size; i++) {
            short events = wanted(&g->flow[i]);

            g->poll[i] = (struct pollfd){.fd = events ? g->socket[i] : -1, .events = events};
            waiting = events ? i : waiting;
        }
        if (waiting < 0)
            return 0;
        if (ct_now() >= end)
            return fail(g->comm, "%s of group '%s': no answer within %g s from rank %d", call,
                        g->base.name, g->comm->timeout, g->base.ranks[waiting]);
        poll(g->poll, (nfds_t)g->base.size, (int)(1e3 * (end - ct_now())) + 1);
    }
}

/* ---- calls ---- */

static void send_to(struct group *g, int i, const struct ct_call *c, const void *data, size_t bytes)
{
    struct flow *f = &g->flow[i];

    f->mine = (struct head){.kind = ct_call_is_message(c->kind) ? CT_CALL_SEND : c->kind,
                            .dtype = c->dtype,
                            .reduction = c->reduction,
                            .tag = (uint32_t)c->tag,
                            .bytes = bytes};
    f->out = data;
    f->sends = true;
}

static void receive_from(struct group *g, int i, const struct ct_call *c, void *data, size_t bytes)
{
    struct flow *f = &g->flow[i];

    f->expected = (struct head){.kind = ct_call_is_message(c->kind) ? CT_CALL_SEND : c->kind,
                                .dtype = c->dtype,
                                .reduction = c->reduction,
                                .tag = (uint32_t)c->tag,
                                .bytes = bytes};
    f->in = data;
    f->receives = true;
}

/* A call of all members: to each goes its part of `in`, or all of it. */
static int exchange_all(struct group *g, const struct ct_call *c)
{
    size_t bytes = c->count * ct_dtype_size(c->dtype);
    bool parts = c->kind == CT_CALL_ALL_TO_ALL || c->kind == CT_CALL_REDUCE_SCATTER;
    bool reduces = c->kind == CT_CALL_ALL_REDUCE || c->kind == CT_CALL_REDUCE_SCATTER;
    int me = g->base.position;

    for (int i = 0; i < g->base.size; i++) {
        const char *from = (const char *)c->in + (parts ? (size_t)i * bytes : 0);
        size_t to = (size_t)i * bytes;

        if (i == me)
            continue;
        send_to(g, i, c, from, c->kind == CT_CALL_BROADCAST && c->from != me ? 0 : bytes);
        if (c->kind == CT_CALL_BROADCAST)
            receive_from(g, i, c, c->out, c->from == i ? bytes : 0);
        else
            receive_from(g, i, c, reduces ? g->scratch + to : (char *)c->out + to, bytes);
    }
    return move_all(g, ct_call_name(c->kind));
}

/* This rank's part of its own result. */
static int finish_all(struct group *g, const struct ct_call *c)
{
    size_t bytes = c->count * ct_dtype_size(c->dtype);
    size_t at = (size_t)g->base.position * bytes;
    const void *in[1024];

    switch (c->kind) {
    case CT_CALL_ALL_GATHER:
        memmove((char *)c->out + at, c->in, bytes);
        return 0;
    case CT_CALL_ALL_TO_ALL:
        memcpy((char *)c->out + at, (const char *)c->in + at, bytes);
        return 0;
    case CT_CALL_BROADCAST:
        if (c->from == g->base.position && c->out != c->in)
            memcpy(c->out, c->in, bytes);
        return 0;
    default:
        break;
    }
    for (int i = 0; i < g->base.size; i++)
        in[i] = g->scratch + (size_t)i * bytes;
    in[g->base.position] = (const char *)c->in + (c->kind == CT_CALL_REDUCE_SCATTER ? at : 0);
    ct_reduce(c->out, in, g->base.size, c->count, c->dtype, c->reduction);
    return 0;
}

static int make_room(struct group *g, size_t bytes)
{
    char *scratch = bytes > g->room ? realloc(g->scratch, bytes) : g->scratch;

    if (bytes > g->room && !scratch)
        return fail(g->comm, "no room for %zu bytes", bytes);
    g->scratch = scratch;
    g->room = bytes > g->room ? bytes : g->room;
    return 0;
}

static int call(const struct ct_call *c)
{
    struct group *g = (struct group *)c->group;
    int rc = ct_first_failure_get(&g->comm->failure);

    memset(g->flow, 0, (size_t)g->base.size * sizeof(*g->flow));
    if (rc == 0 && ct_call_is_message(c->kind)) {
        if (c->kind != CT_CALL_RECEIVE)
            send_to(g, c->to, c, c->in, ct_call_in_bytes(c));
        if (c->kind != CT_CALL_SEND)
            receive_from(g, c->from, c, c->out, ct_call_out_bytes(c));
        return move_all(g, ct_call_name(c->kind));
    }
    if (rc == 0 && (c->kind == CT_CALL_ALL_REDUCE || c->kind == CT_CALL_REDUCE_SCATTER))
        rc = make_room(g, (size_t)g->base.size * c->count * ct_dtype_size(c->dtype));
    if (rc == 0)
        rc = exchange_all(g, c);
    return rc == 0 && c->count ? finish_all(g, c) : rc;
}

/* ---- opening and closing ---- */

static void free_group(struct group *g)
{
    for (int i = 0; g->socket && i < g->base.size; i++)
        if (g->socket[i] >= 0)
            close(g->socket[i]);
    free(g->socket);
    free(g->flow);
    free(g->poll);
    free(g->scratch);
    free(g);
}

static void close_comm(struct ct_comm *base)
{
    struct comm *comm = (struct comm *)base;

    while (comm && comm->groups) {
        struct group *g = comm->groups;

        comm->groups = g->next;
        free_group(g);
    }
    free(comm);
}

static int make_group(struct ct_comm *base, const int64_t *ranks, int count, const char *name,
                      struct ct_group **group)
{
    struct comm *comm = (struct comm *)base;
    size_t n = (size_t)count;
    struct group *g;
    int rc = ct_group_new(base, ranks, count, name, sizeof(*g), group);

    if (rc < 0)
        return rc;
    g = (struct group *)*group;
    g->comm = comm;
    g->socket = malloc(n * sizeof(*g->socket));
    g->flow = calloc(n, sizeof(*g->flow));
    g->poll = calloc(n, sizeof(*g->poll));
    for (int i = 0; g->socket && i < count; i++)
        g->socket[i] = -1;
    if (!g->socket || !g->flow || !g->poll)
        rc = ct_fail(CT_ENOMEM, "group '%s'", name);
    if (rc == 0)
        rc = connect_members(g);
    if (rc < 0) {
        free_group(g);
        return rc;
    }
    g->next = comm->groups;
    comm->groups = g;
    return 0;
}

static int open_comm(const struct ct_comm_request *request, struct ct_comm **comm);

static void set_timeout(struct ct_comm *base, double seconds)
{
    ((struct comm *)base)->timeout = seconds;
}

static const struct ct_comm_ops ops = {.size = sizeof(struct ct_comm_ops),
                                       .open = open_comm,
                                       .close = close_comm,
                                       .group = make_group,
                                       .call = call,
                                       .set_timeout = set_timeout};

/* Waits for all ranks in the making of a group of them, which stays. */
static int open_comm(const struct ct_comm_request *request, struct ct_comm **out)
{
    int64_t ranks[1024];
    struct ct_group *all;
    struct comm *comm;
    int rc = ct_comm_check_request(request);

    if (rc == 0 && (request->world != request->local_ranks || request->world > 1024))
        rc = ct_fail(CT_ECONFIG, "sockets serves up to 1024 ranks of one host: %d of %d are here",
                     request->local_ranks, request->world);
    comm = rc == 0 ? calloc(1, sizeof(*comm)) : NULL;
    if (!comm)
        return rc < 0 ? rc : ct_fail(CT_ENOMEM, "a communicator");
    comm->base = (struct ct_comm){&ops, request->rank, request->world};
    comm->timeout = request->timeout;
    comm->job = ct_rng_stream(request->job);
    for (int i = 0; i < request->world; i++)
        ranks[i] = i;
    rc = make_group(&comm->base, ranks, request->world, "all ranks", &all);
    if (rc < 0) {
        close_comm(&comm->base);
        return rc;
    }
    *out = &comm->base;
    return 0;
}

CT_PLUGIN(.name = "sockets", .version = "1.0",
          .summary = "Communicator: ranks of one host, by unix(7)",
          .offers = CT_OFFERS({CT_COMMUNICATOR, "sockets", &ops}));
