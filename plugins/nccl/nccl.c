/*
 * The nccl communicator: opening, closing, groups, failures.
 */
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <ctitan/config.h>
#include <ctitan/hook.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>

#include "cluster.h"

struct config nccl_config;

static struct comm *open_comm;

static const struct ct_option options[] = {
    CT_OPT_INT(
        struct config, port, "port", "0", 0, 65535,
        "TCP port where rank 0 listens; 0: MASTER_PORT + 1, or no port where all ranks are on "
        "one host"),
    CT_OPT_INT(struct config, max_ctas, "max_ctas", "0", 0, 64,
               "Most thread blocks (multiprocessors) of a collective; 0: NCCL's choice, and 8 "
               "between two ranks"),
    CT_OPT_BOOL(struct config, share_device, "share_device", "false",
                "Let ranks of one host share a device, by telling NCCL that each is a host of its "
                "own; slow, for tests"),
    CT_OPT_BOOL(struct config, windows, "windows", "false",
                "Register the device's memory with NCCL (2.28), and gather by copy engines; needs "
                "ranks with equal memory plans, on one host"),
    {0}};

/* ---- threads ---- */

int nccl_thread(pthread_t *thread, void *(*work)(void *), void *argument)
{
    sigset_t all, mask;
    int code;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    code = pthread_create(thread, NULL, work, argument);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    return code;
}

/* ---- failures ---- */

/*
 * Runs on a thread of its own. An abort waits for its communicator's last call on the device, which
 * may be queued after a call of another communicator, and for the destruction of graphs that hold
 * its calls. So all aborts are requested in one group, and the lock is not held: the main thread
 * sees the failure at once, and closes the device's graphs.
 */
static void *abort_groups(void *argument)
{
    struct comm *comm = argument;

    nccl.cuCtxSetCurrent(comm->context);
    nccl.ncclGroupStart();
    for (struct group *g = comm->groups; g; g = g->next)
        nccl.ncclCommAbort(g->nccl);
    nccl.ncclGroupEnd();
    comm->aborted = true;
    return NULL;
}

/* The list of groups is complete: none is added after a failure. */
static void start_abort(struct comm *comm)
{
    pthread_t thread;

    if (nccl_thread(&thread, abort_groups, comm) == 0)
        pthread_detach(thread);
}

void nccl_tell(struct comm *comm, const struct group *g, const char *message)
{
    if (!atomic_exchange(&comm->told, true))
        ct_hook_fire(&(struct ct_event_data){.event = CT_EVENT_COLLECTIVE_FAILED,
                                             .message = message,
                                             .group = g ? &g->base : NULL,
                                             .code = CT_EPEER});
}

int nccl_fail(struct comm *comm, const struct group *g, const char *fmt, ...)
{
    bool first;
    va_list args;
    int rc;

    pthread_mutex_lock(&comm->lock);
    va_start(args, fmt);
    rc = ct_first_failure_set(&comm->failure, fmt, args);
    va_end(args);
    first = !comm->failed;
    comm->failed = true;
    pthread_mutex_unlock(&comm->lock);
    if (!first)
        return rc;
    nccl_tell(comm, g, comm->failure.text);
    start_abort(comm);
    return nccl_failed(comm);
}

int nccl_failed(struct comm *comm)
{
    return ct_first_failure_get(&comm->failure);
}

int nccl_check_cuda(struct comm *comm, int code, const char *what)
{
    return code == CUDA_SUCCESS ? 0 : nccl_fail(comm, NULL, "%s: CUDA error %d", what, code);
}

/* NCCL's own threads take tens of microseconds for most calls, and seconds for some. */
static void pause_before(int look)
{
    if (look < 200)
        sched_yield();
    else
        ct_nap(1e-4);
}

int nccl_check(struct group *g, int code, const char *what)
{
    double deadline = ct_now() + g->comm->timeout;
    int looks = 0;

    while (code == ncclInProgress) {
        pthread_mutex_lock(&g->comm->lock);
        if (!g->comm->failed && nccl.ncclCommGetAsyncError(g->nccl, &code) != ncclSuccess)
            code = ncclInProgress;
        pthread_mutex_unlock(&g->comm->lock);
        if (g->comm->failed)
            return nccl_failed(g->comm);
        if (code == ncclInProgress && ct_now() > deadline)
            return nccl_fail(g->comm, g, "%s in group '%s': no answer within %g s", what,
                             g->base.name, g->comm->timeout);
        if (code == ncclInProgress)
            pause_before(looks++);
    }
    if (code == ncclSuccess)
        return 0;
    return nccl_fail(g->comm, g, "%s in group '%s': NCCL: %s", what, g->base.name,
                     nccl.ncclGetErrorString(code));
}

/* ---- groups ---- */

/* The key under which the first member stores the id of this group: its ranks, and the number of
   earlier groups with these ranks. */
static void key_of(const struct group *g, char *key)
{
    uint64_t hash = 0xcbf29ce484222325u;
    int before = 0;

    for (int i = 0; i < g->base.size; i++)
        hash = (hash ^ (uint64_t)(uint32_t)g->base.ranks[i]) * 0x100000001b3u;
    for (const struct group *o = g->comm->groups; o; o = o->next)
        before += o->base.size == g->base.size &&
                  !memcmp(o->base.ranks, g->base.ranks, (size_t)g->base.size * sizeof(int));
    snprintf(key, STORE_KEY, "group/%d/%016llx/%d", g->base.size, (unsigned long long)hash, before);
}

static int exchange_id(struct group *g, ncclUniqueId *id)
{
    char key[STORE_KEY];
    int rc;

    key_of(g, key);
    if (g->base.position == 0) {
        rc = nccl_check(g, nccl.ncclGetUniqueId(id), "an id");
        return rc < 0 ? rc : nccl_store_set(g->comm->store, key, id, sizeof(*id));
    }
    rc = nccl_store_get(g->comm->store, key, id, sizeof(*id), g->comm->timeout);
    if (rc == 0)
        return nccl_fail(g->comm, g, "group '%s': rank %d did not create it within %g s",
                         g->base.name, g->base.ranks[0], g->comm->timeout);
    return rc < 0 ? rc : 0;
}

/* Thread blocks of a call between two ranks: a receive that is posted early waits on the device,
   and must leave room for products. */
#define PAIR_CTAS 8

static ncclConfig_t configuration(const char *name, int ranks)
{
    ncclConfig_t c = {.size = sizeof(c), .magic = 0xcafebeef, .version = 22800, .blocking = 0};
    int *undefined[] = {&c.cgaClusterSize,      &c.minCTAs,           &c.maxCTAs,
                        &c.splitShare,          &c.trafficClass,      &c.collnetEnable,
                        &c.CTAPolicy,           &c.shrinkShare,       &c.nvlsCTAs,
                        &c.nChannelsPerNetPeer, &c.nvlinkCentricSched};
    int version = 0;

    for (size_t i = 0; i < CT_COUNT(undefined); i++)
        *undefined[i] = NCCL_UNDEFINED;
    c.commName = name;
    if (nccl_config.max_ctas)
        c.maxCTAs = (int)nccl_config.max_ctas;
    else if (ranks == 2)
        c.maxCTAs = PAIR_CTAS;
    nccl.ncclGetVersion(&version);
    if (version < NCCL_WINDOWS) {
        c.size = offsetof(ncclConfig_t, trafficClass);
        c.version = 21800;
    } else if (nccl_config.windows) {
        c.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    }
    return c;
}

static int make_group(struct group *g)
{
    ncclConfig_t config = configuration(g->base.name, g->base.size);
    ncclUniqueId id = {{0}};
    int rc = exchange_id(g, &id);

    if (rc < 0)
        return rc;
    return nccl_check(
        g, nccl.ncclCommInitRankConfig(&g->nccl, g->base.size, id, g->base.position, &config),
        "starting");
}

/* NCCL connects two ranks at their first exchange, and blocks until both are there. Pipeline ranks
   send in different orders, so a blocked host could wait for ever. Pairs are therefore connected
   while groups are created, which happens in one order. */
static int connect_pair(struct group *g)
{
    char byte = 0;

    if (g->base.size != 2)
        return 0;
    return g->base.position == 0 ? ct_group_send(&g->base, &byte, 1, 1, 0)
                                 : ct_group_receive(&g->base, &byte, 1, 0, 0);
}

/* An abort ends all groups of the list, so a group that comes after it is not added. */
static int keep(struct group *g)
{
    struct comm *comm = g->comm;

    pthread_mutex_lock(&comm->lock);
    if (!comm->failed) {
        g->next = comm->groups;
        comm->groups = g;
    }
    pthread_mutex_unlock(&comm->lock);
    return nccl_failed(comm);
}

static int open_group(struct ct_comm *base, const int64_t *ranks, int count, const char *name,
                      struct ct_group **group)
{
    struct comm *comm = (struct comm *)base;
    struct group *g;
    int rc = nccl_failed(comm);

    if (rc == 0)
        rc = ct_group_new(base, ranks, count, name, sizeof(*g), group);
    if (rc < 0)
        return rc;
    g = (struct group *)*group;
    g->comm = comm;
    rc = make_group(g);
    if (rc == 0)
        rc = keep(g);
    if (rc < 0) {
        if (g->nccl)
            nccl.ncclCommAbort(g->nccl);
        free(g);
        return rc;
    }
    return connect_pair(g);
}

/* ---- opening and closing ---- */

#define PATIENCE 2.0       /* seconds to wait for ranks that are not finished */
#define ABORT_PATIENCE 5.0 /* seconds to wait for NCCL to end its communicators */
#define LAST_QUESTIONS                                                                             \
    1.0 /* seconds for which rank 0 still answers others, which ask who is silent */

/* Data that a rank has sent may be in NCCL's buffers when its own stream is done, and the end of a
   communicator would drop it, so wait for all ranks. True: all are done. If the store is gone,
   rank 0 has seen that they are. */
static bool wait_for_others(struct comm *comm)
{
    double deadline = ct_now() + PATIENCE;
    char key[STORE_KEY];
    uint8_t done = 1;
    int rc;

    snprintf(key, sizeof(key), "done/%d", comm->base.rank);
    rc = nccl_store_set(comm->store, key, &done, sizeof(done));
    for (int i = 0; rc >= 0 && i < comm->base.world; i++) {
        double left = deadline - ct_now();

        snprintf(key, sizeof(key), "done/%d", i);
        rc = nccl_store_get(comm->store, key, &done, sizeof(done), left > 0 ? left : 0);
        if (rc == 0)
            return false;
    }
    return true;
}

/* True: the communicator is finalised within the time; it may be destroyed. */
static bool is_finalised(struct group *g, double deadline)
{
    int code = nccl.ncclCommFinalize(g->nccl);

    for (int looks = 0; code == ncclInProgress && ct_now() < deadline; looks++) {
        pause_before(looks);
        if (nccl.ncclCommGetAsyncError(g->nccl, &code) != ncclSuccess)
            return false;
    }
    return code == ncclSuccess;
}

/* All ranks are done, and come here. The run has succeeded: what NCCL does not end is left to the
   end of the process. */
static void end_groups(struct comm *comm)
{
    double deadline = ct_now() + ABORT_PATIENCE;
    bool all = true;

    for (struct group *g = comm->groups; g; g = g->next)
        all = is_finalised(g, deadline) && all;
    for (struct group *g = all ? comm->groups : NULL; g; g = g->next)
        nccl.ncclCommDestroy(g->nccl);
    if (!all)
        ct_warn("NCCL has not ended its communicators within %g s", ABORT_PATIENCE);
}

/* The rest of a step may never end, and NCCL's thread with it. Nothing can be freed then. */
static void wait_for_abort(struct comm *comm)
{
    double deadline = ct_now() + ABORT_PATIENCE;

    while (!comm->aborted && ct_now() < deadline)
        ct_nap(1e-3);
    if (comm->aborted)
        return;
    nccl_failed(comm);
    ct_log(CT_LOG_ERROR,
           "%s; NCCL has not ended its communicators within %g s, so the process ends here",
           ct_error_message(), ABORT_PATIENCE);
    _exit(1);
}

static void close_comm(struct ct_comm *base)
{
    struct comm *comm = (struct comm *)base;

    if (!comm)
        return;
    if (comm->groups && !comm->failed && !wait_for_others(comm))
        nccl_fail(comm, NULL, "other ranks are not done within %g s", PATIENCE);
    nccl_watchdog_stop(comm);
    if (!comm->failed)
        end_groups(comm);
    if (comm->failed)
        wait_for_abort(comm);
    if (comm->failed && comm->base.rank == 0)
        ct_nap(LAST_QUESTIONS);
    for (struct group *g = comm->groups, *next; g; g = next) {
        next = g->next;
        if (g->staging)
            nccl.cuMemFree(g->staging);
        if (g->stream)
            nccl.cuStreamDestroy(g->stream);
        free(g);
    }
    nccl_store_close(comm->store);
    pthread_mutex_destroy(&comm->lock);
    open_comm = NULL;
    free(comm);
}

static int check_request(const struct ct_comm_request *r)
{
    int rc = ct_comm_check_request(r);

    return rc == 0 && open_comm ? ct_fail(CT_EINVAL, "nccl is open already") : rc;
}

/* NCCL reads this variable when it is loaded. It refuses two ranks on one device only if they are
   on one host, and tells hosts apart by this id. All traffic then uses sockets. */
static void pretend_hosts(int rank)
{
    static const char *const settings[][2] = {
        {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_IB_DISABLE", "1"}, {"NCCL_MNNVL_ENABLE", "0"},
        {"NCCL_NVLS_ENABLE", "0"},    {"NCCL_MAX_CTAS", "2"},
    };
    char name[32];

    snprintf(name, sizeof(name), "rank%d", rank);
    setenv("NCCL_HOSTID", name, 0);
    for (size_t i = 0; i < CT_COUNT(settings); i++)
        setenv(settings[i][0], settings[i][1], 0);
}

/* '=': no other one whose name begins so. */
static void choose_interface(const char *name)
{
    char text[64];

    if (!name || !*name)
        return;
    snprintf(text, sizeof(text), "=%s", name);
    setenv("NCCL_SOCKET_IFNAME", text, 0);
}

/* Sums of NCCL's own algorithms have an order that the size, the ranks and their machines
   determine. Sums in switches (NVLS, CollNet) have none that is documented, and windows may use
   NVLS. */
#define ORDERED_ALGORITHMS "Ring,Tree"

/* An empty list names no algorithm. */
static bool names_algorithms(const char *list)
{
    return list && list[strspn(list, ", ")];
}

/* Separated by commas alone: NCCL does not skip blanks. */
static bool is_ordered(const char *algorithms)
{
    static const char *const names[] = {"ring", "tree"};
    const char *at = algorithms;

    for (at += strspn(at, ","); *at; at += strspn(at, ",")) {
        size_t length = strcspn(at, ","), n = 0;

        while (n < CT_COUNT(names) &&
               (length != strlen(names[n]) || strncasecmp(at, names[n], length)))
            n++;
        if (n == CT_COUNT(names))
            return false;
        at += length;
    }
    return true;
}

static const char *varies(void)
{
    const char *algorithms = getenv("NCCL_ALGO");

    if (nccl_config.windows)
        return "[nccl] windows = true lets switches add, in no fixed order";
    return names_algorithms(algorithms) && !is_ordered(algorithms)
               ? "NCCL_ALGO of the environment is no list of Ring and Tree, separated by commas "
                 "alone: sums of other algorithms have no fixed order"
               : NULL;
}

static int start(struct comm *comm, const struct ct_comm_request *request)
{
    int rc;

    choose_interface(request->interface);
    if (ct_config.deterministic && !names_algorithms(getenv("NCCL_ALGO")))
        setenv("NCCL_ALGO", ORDERED_ALGORITHMS, 1);
    if (nccl_config.share_device)
        pretend_hosts(request->rank);
    rc = nccl_library_open(nccl_config.windows);
    if (rc < 0)
        return rc;
    if (nccl.cuCtxGetCurrent(&comm->context) || !comm->context)
        return ct_fail(CT_ECONFIG, "nccl needs a CUDA device that is open: load cuda");
    rc = nccl_store_open(request, &comm->store);
    return rc < 0 ? rc : nccl_watchdog_start(comm);
}

static int open_nccl(const struct ct_comm_request *request, struct ct_comm **out);

static int check(struct ct_comm *base)
{
    nccl_watch_step((struct comm *)base, true);
    return nccl_look((struct comm *)base);
}

static void set_timeout(struct ct_comm *base, double seconds)
{
    ((struct comm *)base)->timeout = seconds;
}

static const struct ct_comm_ops ops = {.size = sizeof(struct ct_comm_ops),
                                       .open = open_nccl,
                                       .close = close_comm,
                                       .group = open_group,
                                       .call = nccl_host_call,
                                       .check = check,
                                       .group_memory = (size_t)512 << 20,
                                       .set_timeout = set_timeout};

static int open_nccl(const struct ct_comm_request *request, struct ct_comm **out)
{
    struct comm *comm;
    int rc = check_request(request);

    if (rc < 0)
        return rc;
    comm = calloc(1, sizeof(*comm));
    if (!comm)
        return ct_fail(CT_ENOMEM, "the communicator");
    comm->base = (struct ct_comm){.ops = &ops, .rank = request->rank, .world = request->world};
    comm->timeout = request->timeout;
    pthread_mutex_init(&comm->lock, NULL);
    rc = start(comm, request);
    if (rc < 0) {
        close_comm(&comm->base);
        return rc;
    }
    open_comm = comm;
    *out = &comm->base;
    return 0;
}

/* ---- the plugin ---- */

static int enqueued(const struct ct_event_data *data, void *context)
{
    (void)data;
    (void)context;
    if (open_comm)
        nccl_watch_step(open_comm, false);
    return 0;
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook), .events = 1u << CT_EVENT_COLLECTIVE_ENQUEUED, .call = enqueued};

CT_PLUGIN(.name = "nccl", .version = "1.0", .summary = "Ranks of NVIDIA GPUs, over NCCL",
          .needs = CT_NAMES("device:cuda"), .options = options, .config = &nccl_config,
          .config_size = sizeof(nccl_config), .varies = varies,
          .offers = CT_OFFERS({CT_COMMUNICATOR, "nccl", &ops},
                              {CT_TRANSPORT, "cuda", &nccl_transport}, {CT_HOOK, "nccl", &hook}));
