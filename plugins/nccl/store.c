/*
 * The store: a thread of rank 0 answers one request after the other. All ranks, including rank 0,
 * are its clients.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "cluster.h"

#define NAP 2e-3 /* seconds */

/* If rank 0 is stopped, the others must not block, because they have to report it. */
static const struct timeval answer_time = {.tv_sec = 10};

struct message {
    uint32_t magic, found; /* found: result in answers; in requests, 1 means set */
    char key[STORE_KEY], value[STORE_VALUE];
};
#define MAGIC 0x63746e32u

struct entry {
    struct entry *next;
    char key[STORE_KEY], value[STORE_VALUE];
};

struct store {
    int socket;   /* connected to the server */
    int listener; /* on rank 0; -1 elsewhere */
    int stop[2];  /* a pipe; tells the server to stop */
    pthread_t server;
    bool serves;
    struct entry *entries;
    pthread_mutex_t lock; /* protects socket */
};

/* ---- the server ---- */

static struct entry *find(struct store *s, const char *key)
{
    struct entry *e = s->entries;

    while (e && strncmp(e->key, key, STORE_KEY))
        e = e->next;
    return e;
}

static void answer(struct store *s, struct message *m)
{
    struct entry *e = find(s, m->key);

    if (m->found && !e && (e = calloc(1, sizeof(*e)))) {
        memcpy(e->key, m->key, sizeof(e->key));
        e->next = s->entries;
        s->entries = e;
    }
    if (m->found && e)
        memcpy(e->value, m->value, sizeof(e->value));
    m->found = e != NULL;
    if (e)
        memcpy(m->value, e->value, sizeof(e->value));
}

/* false: the client has left, or is not a client. */
static bool serve_one(struct store *s, int client)
{
    struct message m;

    if (recv(client, &m, sizeof(m), MSG_WAITALL) != sizeof(m) || m.magic != MAGIC)
        return false;
    answer(s, &m);
    return send(client, &m, sizeof(m), MSG_NOSIGNAL) == sizeof(m);
}

static void *serve(void *argument)
{
    struct store *s = argument;
    struct pollfd *fds = calloc(2, sizeof(*fds));
    int count = 2;

    fds[0] = (struct pollfd){.fd = s->stop[0], .events = POLLIN};
    fds[1] = (struct pollfd){.fd = s->listener, .events = POLLIN};
    while (poll(fds, (nfds_t)count, -1) >= 0 && !fds[0].revents) {
        for (int i = count - 1; i > 1; i--)
            if (fds[i].revents && !serve_one(s, fds[i].fd)) {
                close(fds[i].fd);
                fds[i] = fds[--count];
            }
        if (fds[1].revents) {
            int client = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
            struct pollfd *more = realloc(fds, (size_t)(count + 1) * sizeof(*fds));

            fds = more ? more : fds;
            if (client >= 0 && more)
                fds[count++] = (struct pollfd){.fd = client, .events = POLLIN};
        }
    }
    for (int i = 2; i < count; i++)
        close(fds[i].fd);
    free(fds);
    return NULL;
}

/* ---- connecting ---- */

#define ADDRESSES 16 /* of one host, at most */

struct address {
    struct sockaddr_storage at;
    socklen_t length;
};

/* Where rank 0 is: a name may have several addresses, which are tried in turn. */
struct addresses {
    struct address list[ADDRESSES];
    int count;
};

/* Ranks of one host, identified by the job's name, use an abstract socket. */
static int name_address(const char *job, struct addresses *addresses)
{
    struct address *a = &addresses->list[0];
    struct sockaddr_un *local = (struct sockaddr_un *)&a->at;
    int n;

    *local = (struct sockaddr_un){.sun_family = AF_UNIX};
    n = snprintf(local->sun_path + 1, sizeof(local->sun_path) - 1, "ctitan-nccl/%u/%s",
                 (unsigned)geteuid(), job);
    if (n >= (int)sizeof(local->sun_path) - 1)
        return ct_fail(CT_EINVAL, "job name '%s' is too long", job);
    a->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    addresses->count = 1;
    return 0;
}

static void add_address(struct addresses *a, const struct addrinfo *found)
{
    if (a->count == ADDRESSES)
        return;
    memcpy(&a->list[a->count].at, found->ai_addr, found->ai_addrlen);
    a->list[a->count++].length = found->ai_addrlen;
}

static int look_up(const char *host, const char *port, struct addresses *a)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int code = getaddrinfo(host, port, &hints, &found);

    if (code)
        return ct_fail(CT_ECONFIG, "MASTER_ADDR = %s: %s", host, gai_strerror(code));
    for (const struct addrinfo *f = found; f; f = f->ai_next)
        add_address(a, f);
    freeaddrinfo(found);
    return 0;
}

static int find_addresses(const struct ct_comm_request *request, struct addresses *a)
{
    const char *host = getenv("MASTER_ADDR"), *master = getenv("MASTER_PORT");
    char port[16];

    if (!nccl_config.port && request->job && request->local_ranks == request->world)
        return name_address(request->job, a);
    if (!nccl_config.port && !master)
        return ct_fail(CT_ECONFIG, "ranks on several hosts need MASTER_ADDR, and MASTER_PORT or "
                                   "[nccl] port, to find rank 0");
    snprintf(port, sizeof(port), "%d", nccl_config.port ? (int)nccl_config.port : atoi(master) + 1);
    return look_up(host ? host : "127.0.0.1", port, a);
}

static in_port_t port_of(const struct address *a)
{
    return a->at.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)&a->at)->sin6_port
                                       : ((const struct sockaddr_in *)&a->at)->sin_port;
}

static int listen_at(const struct address *a, int world, int *listener)
{
    int on = 1, off = 0;

    *listener = socket(a->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(*listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (a->at.ss_family == AF_INET6)
        setsockopt(*listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(*listener, (const struct sockaddr *)&a->at, a->length) == 0 &&
        listen(*listener, world) == 0)
        return 0;
    if (*listener >= 0)
        close(*listener);
    *listener = -1;
    return ct_fail(errno == EADDRINUSE ? CT_ECONFIG : CT_EIO,
                   "rendezvous: %s; another place: [nccl] port", strerror(errno));
}

/* All addresses of this host, as its own name often stands for its loopback address, which no
   other host reaches. The address of IPv6 serves IPv4 too. */
static int listen_everywhere(const struct address *a, int world, int *listener)
{
    struct address any = {.length = sizeof(struct sockaddr_in6)};

    *(struct sockaddr_in6 *)&any.at =
        (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = port_of(a)};
    if (listen_at(&any, world, listener) == 0)
        return 0;
    any.length = sizeof(struct sockaddr_in);
    *(struct sockaddr_in *)&any.at =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port_of(a)};
    return listen_at(&any, world, listener);
}

static int host(struct store *s, const struct address *a, const struct ct_comm_request *request)
{
    int rc = request->local_ranks == request->world
                 ? listen_at(a, request->world, &s->listener)
                 : listen_everywhere(a, request->world, &s->listener);

    if (rc < 0)
        return rc;
    if (pipe(s->stop) < 0 || pthread_create(&s->server, NULL, serve, s))
        return ct_fail(CT_ENOMEM, "no thread for the rendezvous");
    s->serves = true;
    return 0;
}

static bool join_at(struct store *s, const struct address *a)
{
    int on = 1;

    s->socket = socket(a->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(s->socket, (const struct sockaddr *)&a->at, a->length) < 0) {
        if (s->socket >= 0)
            close(s->socket);
        s->socket = -1;
        return false;
    }
    if (a->at.ss_family != AF_UNIX)
        setsockopt(s->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(s->socket, SOL_SOCKET, SO_RCVTIMEO, &answer_time, sizeof(answer_time));
    setsockopt(s->socket, SOL_SOCKET, SO_SNDTIMEO, &answer_time, sizeof(answer_time));
    return true;
}

static int join(struct store *s, const struct addresses *a, double timeout)
{
    double deadline = ct_now() + timeout;

    for (;;) {
        for (int i = 0; i < a->count; i++)
            if (join_at(s, &a->list[i]))
                return 0;
        if (ct_now() > deadline)
            return ct_fail(CT_EPEER, "rank 0 did not start within %g s", timeout);
        ct_nap(NAP);
    }
}

/* ---- requests ---- */

/* No requests after a failure: a late answer would be taken for that of a later request. */
static int ask(struct store *s, struct message *m)
{
    bool ok;

    m->magic = MAGIC;
    pthread_mutex_lock(&s->lock);
    ok = send(s->socket, m, sizeof(*m), MSG_NOSIGNAL) == sizeof(*m) &&
         recv(s->socket, m, sizeof(*m), MSG_WAITALL) == sizeof(*m);
    if (!ok)
        shutdown(s->socket, SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
    return ok ? 0 : ct_fail(CT_EPEER, "rendezvous: rank 0 ended, or does not answer");
}

static struct message message(const char *key)
{
    struct message m = {0};

    snprintf(m.key, sizeof(m.key), "%s", key);
    return m;
}

int nccl_store_set(struct store *s, const char *key, const void *value, size_t bytes)
{
    struct message m = message(key);

    m.found = 1;
    memcpy(m.value, value, bytes);
    return ask(s, &m);
}

int nccl_store_get(struct store *s, const char *key, void *value, size_t bytes, double patience)
{
    double deadline = ct_now() + patience;

    for (;;) {
        struct message m = message(key);
        int rc = ask(s, &m);

        if (rc < 0)
            return rc;
        if (m.found) {
            memcpy(value, m.value, bytes);
            return 1;
        }
        if (ct_now() > deadline)
            return 0;
        ct_nap(NAP);
    }
}

/* ---- all ranks ---- */

/* What a rank reports about itself. */
struct hello {
    int32_t world, pid;
};

/* Wait for the hello of every rank. The failure lists the ranks that did not come. */
static int find_ranks(struct store *s, const struct ct_comm_request *r)
{
    struct hello mine = {r->world, (int32_t)getpid()}, other = {0};
    double deadline = ct_now() + r->timeout;
    char key[STORE_KEY], list[160] = "";
    int missing = 0, rc;

    snprintf(key, sizeof(key), "rank/%d", r->rank);
    rc = nccl_store_get(s, key, &other, sizeof(other), 0);
    if (rc > 0)
        return ct_fail(CT_ECONFIG, "two processes are rank %d: %d and %d", r->rank, other.pid,
                       mine.pid);
    if (rc == 0)
        rc = nccl_store_set(s, key, &mine, sizeof(mine));
    for (int i = 0; rc >= 0 && i < r->world; i++) {
        size_t used = strlen(list);
        double left = deadline - ct_now();

        snprintf(key, sizeof(key), "rank/%d", i);
        rc = nccl_store_get(s, key, &other, sizeof(other), left > 0 ? left : 0);
        if (rc > 0 && other.world != r->world)
            return ct_fail(CT_ECONFIG, "rank %d has a world of %d ranks, but rank %d one of %d", i,
                           other.world, r->rank, r->world);
        missing += rc == 0;
        if (rc == 0 && used < sizeof(list) - 16)
            snprintf(list + used, sizeof(list) - used, "%s%d", used ? ", " : "", i);
    }
    if (rc >= 0 && missing)
        return ct_fail(CT_EPEER, "%d of %d ranks did not start within %g s: %s", missing, r->world,
                       r->timeout, list);
    return rc < 0 ? rc : 0;
}

int nccl_store_open(const struct ct_comm_request *request, struct store **store)
{
    struct store *s = calloc(1, sizeof(*s));
    struct addresses addresses = {.count = 0};
    int rc;

    if (!s)
        return ct_fail(CT_ENOMEM, "the rendezvous");
    *store = s;
    s->socket = s->listener = s->stop[0] = s->stop[1] = -1;
    pthread_mutex_init(&s->lock, NULL);
    rc = find_addresses(request, &addresses);
    if (rc == 0 && request->rank == 0)
        rc = host(s, &addresses.list[0], request);
    if (rc == 0)
        rc = join(s, &addresses, request->timeout);
    return rc < 0 ? rc : find_ranks(s, request);
}

void nccl_store_close(struct store *s)
{
    if (!s)
        return;
    if (s->socket >= 0)
        close(s->socket);
    if (s->serves) {
        if (write(s->stop[1], "", 1) == 1)
            pthread_join(s->server, NULL);
    }
    for (struct entry *e = s->entries, *next; e; e = next) {
        next = e->next;
        free(e);
    }
    if (s->listener >= 0)
        close(s->listener);
    for (int i = 0; i < 2; i++)
        if (s->stop[i] >= 0)
            close(s->stop[i]);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
