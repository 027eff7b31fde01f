/* Finding rank 0, listening there, and connecting to it. */
#include "address.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "cluster.h"

#define NAP 2e-3    /* seconds between attempts */
#define ATTEMPT 3.0 /* seconds for one address, at most: others may answer */
#define PORTS 65535

/* ---- where rank 0 is ---- */

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
    snprintf(addresses->name, sizeof(addresses->name), "job '%s'", job);
    return 0;
}

static void add_address(struct addresses *a, const struct addrinfo *found)
{
    if (a->count == ADDRESSES)
        return;
    memcpy(&a->list[a->count].at, found->ai_addr, found->ai_addrlen);
    a->list[a->count++].length = found->ai_addrlen;
}

/* A question to the system, which may ask name servers, and has no time-out of its own. */
struct question {
    const char *host;
    char port[16];
    struct addrinfo *found;
    int code;
};

static void *ask(void *argument)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct question *q = argument;

    q->code = getaddrinfo(q->host, q->port, &hints, &q->found);
    return NULL;
}

/* On a thread of its own. CT_EPEER: it has no answer in time, and keeps q. */
static int ask_within(struct question *q, double timeout)
{
    double until = ct_now() + timeout;
    struct timespec at = {.tv_sec = (time_t)until,
                          .tv_nsec = (long)(1e9 * (until - (double)(time_t)until))};
    pthread_t thread;

    if (nccl_thread(&thread, ask, q))
        return ct_fail(CT_ENOMEM, "no thread to look up MASTER_ADDR");
    if (pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &at) == 0)
        return 0;
    pthread_detach(thread);
    return ct_fail(CT_EPEER,
                   "MASTER_ADDR = %s: no name server answers within %g s ([comm] timeout); give "
                   "rank 0's number, like 10.0.0.1, or see /etc/resolv.conf",
                   q->host, timeout);
}

static int look_up(const char *host, int port, double timeout, struct addresses *a)
{
    struct question *q = calloc(1, sizeof(*q));
    int rc;

    if (!q)
        return ct_fail(CT_ENOMEM, "the rendezvous");
    q->host = host;
    snprintf(q->port, sizeof(q->port), "%d", port);
    rc = ask_within(q, timeout);
    if (rc == CT_EPEER)
        return rc;
    if (rc == 0 && q->code)
        rc = ct_fail(CT_ECONFIG, "MASTER_ADDR = %s: %s", host, gai_strerror(q->code));
    for (const struct addrinfo *f = q->found; rc == 0 && f; f = f->ai_next)
        add_address(a, f);
    if (q->found)
        freeaddrinfo(q->found);
    free(q);
    snprintf(a->name, sizeof(a->name), "%s, port %d", host, port);
    return rc;
}

/* The port after MASTER_PORT, where torchrun's own store listens. */
static int next_port(const char *master)
{
    char *end;
    long port = strtol(master, &end, 10);

    if (*master < '0' || *master > '9' || *end || port < 1 || port >= PORTS)
        return ct_fail(CT_ECONFIG,
                       "MASTER_PORT = %s: ranks rendezvous at the port after it, so it must be a "
                       "number from 1 to %d; or set [nccl] port",
                       master, PORTS - 1);
    return (int)port + 1;
}

int nccl_address_find(const struct ct_comm_request *request, struct addresses *a)
{
    const char *host = getenv("MASTER_ADDR"), *master = getenv("MASTER_PORT");
    bool one_host = request->local_ranks == request->world;
    int port = (int)nccl_config.port;

    a->count = 0;
    if (!port && request->job && one_host)
        return name_address(request->job, a);
    if ((!port && !master) || (!host && !one_host))
        return ct_fail(CT_ECONFIG, "ranks on several hosts need MASTER_ADDR, and MASTER_PORT or "
                                   "[nccl] port, to find rank 0");
    if (!port)
        port = next_port(master);
    return port < 0 ? port : look_up(host ? host : "127.0.0.1", port, request->timeout, a);
}

/* ---- listening ---- */

static in_port_t port_of(const struct address *a)
{
    return a->at.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)&a->at)->sin6_port
                                       : ((const struct sockaddr_in *)&a->at)->sin_port;
}

/* A socket, or -1 with errno. Strangers must not fill its queue: the system drops the connections
   that find it full, and those who want them try again after seconds. */
static int listen_at(const struct address *a)
{
    int listener = socket(a->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int on = 1, off = 0, error;

    if (listener < 0)
        return -1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (a->at.ss_family == AF_INET6)
        setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(listener, (const struct sockaddr *)&a->at, a->length) == 0 &&
        listen(listener, SOMAXCONN) == 0)
        return listener;
    error = errno;
    close(listener);
    errno = error;
    return -1;
}

/* All addresses of this host, as its own name often stands for its loopback address, which no
   other host reaches. The address of IPv6 serves IPv4 too. */
static int listen_everywhere(const struct address *a)
{
    struct address any = {.length = sizeof(struct sockaddr_in6)};
    int listener;

    *(struct sockaddr_in6 *)&any.at =
        (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = port_of(a)};
    listener = listen_at(&any);
    if (listener >= 0)
        return listener;
    any.length = sizeof(struct sockaddr_in);
    *(struct sockaddr_in *)&any.at =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port_of(a)};
    return listen_at(&any);
}

int nccl_address_listen(const struct addresses *addresses, const struct ct_comm_request *request)
{
    const struct address *a = &addresses->list[0];
    const char *interface = request->interface;
    int listener;

    if (interface && *interface && !if_nametoindex(interface))
        return ct_fail(CT_ECONFIG, "[comm] interface = %s: this host has none of this name",
                       interface);
    listener = request->local_ranks == request->world ? listen_at(a) : listen_everywhere(a);

    if (listener >= 0)
        return listener;
    return ct_fail(errno == EADDRINUSE ? CT_ECONFIG : CT_EIO,
                   "rendezvous: rank 0 cannot listen at %s: %s; another port: [nccl] port",
                   addresses->name, strerror(errno));
}

/* ---- who connects ---- */

/* An address of IPv4 that a socket of IPv6 shows is one of IPv4. */
static struct sockaddr_in6 as_six(const struct sockaddr *at)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};

    if (at->sa_family == AF_INET6) {
        six.sin6_addr = ((const struct sockaddr_in6 *)at)->sin6_addr;
    } else {
        six.sin6_addr.s6_addr[10] = six.sin6_addr.s6_addr[11] = 0xff;
        memcpy(&six.sin6_addr.s6_addr[12], &((const struct sockaddr_in *)at)->sin_addr, 4);
    }
    return six;
}

/* The loopback interface is that of this host's own ranks. */
static bool is_on(const struct sockaddr_in6 *six, const char *interface)
{
    struct ifaddrs *all = NULL;
    bool found = false;

    if (getifaddrs(&all) < 0)
        return false;
    for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
        const struct sockaddr *at = i->ifa_addr;
        struct sockaddr_in6 own;

        if (!at || (at->sa_family != AF_INET && at->sa_family != AF_INET6) ||
            (strcmp(i->ifa_name, interface) && !(i->ifa_flags & IFF_LOOPBACK)))
            continue;
        own = as_six(at);
        found = !memcmp(&own.sin6_addr, &six->sin6_addr, sizeof(own.sin6_addr));
    }
    freeifaddrs(all);
    return found;
}

bool nccl_address_may_come(int socket, const char *interface)
{
    struct sockaddr_storage here;
    struct ucred peer;
    socklen_t size = sizeof(here), room = sizeof(peer);
    struct sockaddr_in6 six;

    if (getsockname(socket, (struct sockaddr *)&here, &size) < 0)
        return false;
    if (here.ss_family == AF_UNIX)
        return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &room) == 0 &&
               peer.uid == geteuid();
    six = as_six((const struct sockaddr *)&here);
    return !interface || !*interface || is_on(&six, interface);
}

/* ---- connecting ---- */

/* 0, or errno. */
static int finish_connect(int socket, double deadline)
{
    struct pollfd ready = {.fd = socket, .events = POLLOUT};
    socklen_t size = sizeof(int);
    int error = 0;

    for (;;) {
        double left = deadline - ct_now();

        if (poll(&ready, 1, left > 0 ? (int)(left * 1e3) + 1 : 0) > 0)
            break;
        if (left <= 0)
            return ETIMEDOUT;
    }
    getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
    return error;
}

/* A socket, or -1 with errno. */
static int connect_to(const struct address *a, double deadline)
{
    int s = socket(a->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
    int error = 0;

    if (s < 0)
        return -1;
    if (connect(s, (const struct sockaddr *)&a->at, a->length) < 0)
        error = errno == EINPROGRESS || errno == EINTR ? finish_connect(s, deadline) : errno;
    if (error) {
        close(s);
        errno = error;
        return -1;
    }
    if (a->at.ss_family != AF_UNIX)
        setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return s;
}

/* Try each address once; each has its share of the time, as some may never answer. */
static int connect_to_any(const struct addresses *a, double deadline)
{
    for (int i = 0; i < a->count; i++) {
        double now = ct_now(), share = (deadline - now) / (a->count - i);
        int s = connect_to(&a->list[i], now + (share < ATTEMPT ? share : ATTEMPT));

        if (s >= 0)
            return s;
    }
    return -1;
}

int nccl_address_join(const struct addresses *a, double timeout)
{
    double deadline = ct_now() + timeout;

    for (;;) {
        int s = connect_to_any(a, deadline);

        if (s >= 0)
            return s;
        if (ct_now() > deadline)
            return ct_fail(CT_EPEER, "rank 0 did not start within %g s: %s: %s", timeout, a->name,
                           strerror(errno));
        ct_nap(NAP);
    }
}
