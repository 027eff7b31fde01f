/*
 * The store: a thread of rank 0 answers requests as they become complete, and waits for no client,
 * as anything may connect to its port; for munged, on this host, it does wait. All ranks, including
 * rank 0, are its clients. A client that has not shown in time that it knows the job's secret
 * (greet.c) is sent away.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/log.h>

#include "address.h"
#include "cluster.h"

#define NAP 2e-3       /* seconds */
#define INCOMPLETE 1.0 /* seconds until the rest of a request must be there */
#define GREETING 2.0   /* seconds for a new client to show that it knows the secret */
#define STRANGERS 64   /* clients that have not shown it yet, beside as many as there are ranks */
#define ANSWER 10.0    /* seconds: if rank 0 is stopped, the others have to report it */

struct message {
    uint32_t magic, found; /* found: result in answers; in requests, 1 means set */
    char key[STORE_KEY], value[STORE_VALUE];
};
#define MAGIC 0x63746e33u

struct entry {
    struct entry *next;
    char key[STORE_KEY], value[STORE_VALUE];
};

struct client {
    struct greeter greeter;
    union {
        struct message request;
        struct greeting greeting; /* until it is known */
    };
    size_t bytes; /* of the request, or of a greeting, that have come */
    double since; /* the first of them; before it is known, when it came */
};

struct store {
    int socket;   /* connected to the server */
    int listener; /* on rank 0; -1 elsewhere */
    int stop[2];  /* a pipe; its end tells the server to stop */
    char place[160];
    char secret[CT_SECRET_ROOM];
    bool munge; /* hands it out */
    const char *interface;
    int world;
    pthread_t server;
    bool serves;
    struct entry *entries;
    pthread_mutex_t lock; /* protects socket */
};

/* Descriptors that the server polls: the pipe, the listener, and a client for each further
   descriptor. */
struct server {
    struct store *store;
    struct pollfd *fds;
    struct client *clients;
    int count;
    bool warned; /* of munge's failure */
};
#define FIRST 2

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

static size_t expected(const struct client *c)
{
    return nccl_is_known(&c->greeter) ? sizeof(struct message) : sizeof(struct greeting);
}

/* Take what has come of a request or greeting, which both begin with MAGIC. false: the client has
   left, or is not a client. */
static bool take(struct client *c, int socket)
{
    ssize_t n = recv(socket, (char *)&c->request + c->bytes, expected(c) - c->bytes, MSG_DONTWAIT);

    if (n < 0)
        return errno == EINTR || errno == EAGAIN;
    if (c->bytes == 0 && nccl_is_known(&c->greeter))
        c->since = ct_now();
    c->bytes += (size_t)n;
    return n > 0 && (c->bytes < sizeof(MAGIC) || c->request.magic == MAGIC);
}

/* Sends all of a message. It fits into the socket: a client has one request at a time. */
static bool send_whole(int socket, const void *data, size_t bytes)
{
    return send(socket, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

/* A client that munge fails for is sent away, and comes again. */
static bool greet(struct server *v, struct client *c, int socket)
{
    int rc = nccl_greet(&c->greeter, &c->greeting);

    if (rc == CT_EIO && !v->warned) {
        ct_warn("rendezvous: a rank must wait: %s", ct_error_message());
        v->warned = true;
    }
    return rc == 0 && send_whole(socket, &c->greeting, sizeof(c->greeting));
}

static bool serve_one(struct server *v, int i)
{
    struct client *c = &v->clients[i];
    int socket = v->fds[i].fd;

    if (v->fds[i].revents && !take(c, socket))
        return false;
    if (c->bytes < expected(c)) {
        double waited = ct_now() - c->since;

        return nccl_is_known(&c->greeter) ? c->bytes == 0 || waited < INCOMPLETE
                                          : waited < GREETING;
    }
    c->bytes = 0;
    if (!nccl_is_known(&c->greeter))
        return greet(v, c, socket);
    answer(v->store, &c->request);
    return send_whole(socket, &c->request, sizeof(c->request));
}

static void drop(struct server *v, int i)
{
    close(v->fds[i].fd);
    v->fds[i] = v->fds[--v->count];
    v->clients[i] = v->clients[v->count];
}

static void serve_all(struct server *v)
{
    for (int i = v->count - 1; i >= FIRST; i--)
        if (!serve_one(v, i))
            drop(v, i);
}

static bool grow(struct server *v)
{
    size_t count = (size_t)v->count + 1;
    struct pollfd *fds = realloc(v->fds, count * sizeof(*fds));
    struct client *clients;

    if (!fds)
        return false;
    v->fds = fds;
    clients = realloc(v->clients, count * sizeof(*clients));
    if (!clients)
        return false;
    v->clients = clients;
    return true;
}

/* Strangers must not take all descriptors: the oldest leaves, and comes again if it is a rank. */
static void make_room(struct server *v)
{
    int strangers = 0, oldest = -1;

    for (int i = FIRST; i < v->count; i++) {
        if (nccl_is_known(&v->clients[i].greeter))
            continue;
        strangers++;
        if (oldest < 0 || v->clients[i].since < v->clients[oldest].since)
            oldest = i;
    }
    if (strangers >= v->store->world + STRANGERS)
        drop(v, oldest);
}

/* One connection of the queue. */
static void admit(struct server *v)
{
    int socket;

    make_room(v);
    socket = grow(v) ? accept4(v->store->listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    if (socket < 0) {
        ct_nap(NAP); /* no descriptor or no memory is left: some other client may leave */
        return;
    }
    if (!nccl_address_may_come(socket, v->store->interface)) {
        close(socket);
        return;
    }
    v->fds[v->count] = (struct pollfd){.fd = socket, .events = POLLIN};
    v->clients[v->count++] = (struct client){
        .greeter = {.secret = v->store->secret, .munge = v->store->munge}, .since = ct_now()};
}

static bool is_waiting(const struct server *v)
{
    for (int i = FIRST; i < v->count; i++)
        if (v->clients[i].bytes || !nccl_is_known(&v->clients[i].greeter))
            return true;
    return false;
}

static void *serve(void *argument)
{
    struct server *v = argument;

    while (!v->fds[0].revents) {
        if (poll(v->fds, (nfds_t)v->count, is_waiting(v) ? 100 : -1) < 0) {
            ct_nap(NAP);
            continue;
        }
        serve_all(v);
        if (v->fds[1].revents)
            admit(v);
    }
    for (int i = FIRST; i < v->count; i++)
        close(v->fds[i].fd);
    free(v->fds);
    free(v->clients);
    free(v);
    return NULL;
}

static struct server *make_server(struct store *s)
{
    struct server *v = calloc(1, sizeof(*v));

    if (!v)
        return NULL;
    *v = (struct server){.store = s,
                         .fds = calloc(FIRST, sizeof(*v->fds)),
                         .clients = calloc(FIRST, sizeof(*v->clients)),
                         .count = FIRST};
    if (v->fds && v->clients) {
        v->fds[0] = (struct pollfd){.fd = s->stop[0], .events = POLLIN};
        v->fds[1] = (struct pollfd){.fd = s->listener, .events = POLLIN};
        return v;
    }
    free(v->fds);
    free(v->clients);
    free(v);
    return NULL;
}

static int host(struct store *s, const struct addresses *a, const struct ct_comm_request *request)
{
    struct server *v;

    s->listener = nccl_address_listen(a, request);
    if (s->listener < 0)
        return s->listener;
    if (pipe2(s->stop, O_CLOEXEC) < 0)
        return ct_fail(CT_EIO, "rendezvous: %s", strerror(errno));
    v = make_server(s);
    if (!v || nccl_thread(&s->server, serve, v))
        return ct_fail(CT_ENOMEM, "no thread for the rendezvous");
    s->serves = true;
    return 0;
}

/* ---- requests ---- */

/* Send (POLLOUT) or receive (POLLIN) until the deadline. Signals only interrupt it, and so does a
   stop of this process, during which time passes. */
static bool move(int socket, short direction, void *data, size_t bytes, double deadline)
{
    struct pollfd ready = {.fd = socket, .events = direction};

    for (size_t done = 0; done < bytes;) {
        double left = deadline - ct_now();
        char *at = (char *)data + done;
        ssize_t n;

        if (poll(&ready, 1, left > 0 ? (int)(left * 1e3) + 1 : 0) <= 0) {
            if (left <= 0)
                return false;
            continue;
        }
        n = direction == POLLIN ? recv(socket, at, bytes - done, 0)
                                : send(socket, at, bytes - done, MSG_NOSIGNAL);
        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
            return false;
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* Send a message, which begins with MAGIC, and get one of the same size. */
static int exchange(struct store *s, void *message, size_t bytes, double deadline)
{
    uint32_t *magic = message;
    char *rest = (char *)message + sizeof(*magic);

    if (!move(s->socket, POLLOUT, message, bytes, deadline) ||
        !move(s->socket, POLLIN, magic, sizeof(*magic), deadline))
        return ct_fail(CT_EPEER, "rendezvous: rank 0 ended, or does not answer");
    if (*magic != MAGIC)
        return ct_fail(CT_ECONFIG,
                       "rendezvous: another program answers at %s, not rank 0; another port: "
                       "[nccl] port",
                       s->place);
    if (!move(s->socket, POLLIN, rest, bytes - sizeof(*magic), deadline))
        return ct_fail(CT_EPEER, "rendezvous: rank 0 ended, or does not answer");
    return 0;
}

/* No requests after a failure: a late answer would be taken for that of a later request. */
static int ask(struct store *s, struct message *m)
{
    int rc;

    m->magic = MAGIC;
    pthread_mutex_lock(&s->lock);
    rc = exchange(s, m, sizeof(*m), ct_now() + ANSWER);
    if (rc < 0)
        shutdown(s->socket, SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
    return rc;
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

/* ---- joining ---- */

/* Show rank 0 that this rank knows the secret, and see that rank 0 does. */
static int introduce(struct store *s, double deadline)
{
    struct greeter greeter = {.secret = s->secret, .client = true, .munge = s->munge};
    struct greeting g = {.magic = MAGIC};
    int rc = 0;

    while (rc == 0 && !nccl_is_known(&greeter)) {
        rc = nccl_greet(&greeter, &g);
        if (rc == 0)
            rc = exchange(s, &g, sizeof(g), deadline);
        else if (rc == CT_ECONFIG)
            rc = ct_fail(CT_ECONFIG,
                         "rendezvous: who answers at %s has another secret than this rank: "
                         "CTITAN_SECRET must be the same for all ranks of a job",
                         s->place);
        else
            rc = ct_context(rc, "rendezvous at %s", s->place);
    }
    return rc;
}

/* Rank 0 may have sent this rank away because many others came at once: it comes again. */
static int join(struct store *s, const struct addresses *addresses, double timeout)
{
    double deadline = ct_now() + timeout;
    int rc;

    for (;;) {
        double left = deadline - ct_now();

        left = left > 0 ? left : 0;
        rc = s->socket = nccl_address_join(addresses, left);
        if (rc >= 0)
            rc = introduce(s, ct_now() + (left < ANSWER ? left : ANSWER));
        if (rc != CT_EPEER || s->socket < 0 || ct_now() > deadline)
            return rc;
        close(s->socket);
        s->socket = -1;
        ct_nap(NAP);
    }
}

/* ---- all ranks ---- */

/* A rank's report about itself. */
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

/* Without a secret, rank 0 makes one for munge to hand out. Munge's own failures are seen here,
   where they end rank 0. */
static int find_secret(struct store *s, int rank)
{
    int rc = ct_secret_find(s->secret);

    if (rc != 0)
        return rc;
    rc = ct_munge_find();
    s->munge = rc > 0;
    if (rc <= 0 || rank != 0)
        return rc;
    rc = ct_secret_make(s->secret);
    if (rc == 0)
        rc = ct_munge_identify();
    return rc < 0 ? ct_context(rc, "rendezvous, on the host of rank 0") : 0;
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
    s->world = request->world;
    s->interface = request->interface;
    rc = find_secret(s, request->rank);
    if (rc >= 0)
        rc = nccl_address_find(request, &addresses);
    memcpy(s->place, addresses.name, sizeof(s->place));
    if (rc == 0 && request->rank == 0)
        rc = host(s, &addresses, request);
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
    if (s->stop[1] >= 0)
        close(s->stop[1]);
    if (s->serves)
        pthread_join(s->server, NULL);
    for (struct entry *e = s->entries, *next; e; e = next) {
        next = e->next;
        free(e);
    }
    if (s->listener >= 0)
        close(s->listener);
    if (s->stop[0] >= 0)
        close(s->stop[0]);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
