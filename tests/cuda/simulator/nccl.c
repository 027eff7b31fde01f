/*
 * The simulated NCCL: libnccl.so.2, for ranks of one host. A communicator is a shared segment named
 * after its id, with a barrier, a slot for each rank, and a mailbox for each pair. Calls are done
 * by the thread of their stream, and end when all ranks have come; a send, when its receiver has.
 * As with NCCL, the first message of a pair keeps its host until the other side is there, too. A
 * rank that waits longer than its patience fails, as an abort would make it.
 *
 * As with NCCL, the end of a communicator waits for its calls on the device and for the graphs that
 * hold some of them. An abort lets calls of its own communicator fail, not those of others before
 * them in the stream; several aborts of one group are all requested before one waits.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/comm.h>

#include "library.h"
#include <ctitan/lib/cuda/simulator.h>

#define RANKS 16
#define SLOT ((size_t)1 << 18)
#define MAIL ((size_t)1 << 14)
#define SYSTEM_ERROR 2
#define PATIENCE 20 /* s */

struct mailbox {
    _Atomic uint32_t full, met; /* met: 1, the sender was there; 2, the receiver */
    size_t bytes;
    char data[MAIL];
};

struct segment {
    _Atomic uint32_t arrived, generation;
    char slot[RANKS][SLOT];
    struct mailbox mail[RANKS][RANKS]; /* from, to */
};

struct ncclComm {
    struct segment *segment;
    int ranks, rank;
    char name[64];
    _Atomic int aborted; /* by this rank: as with NCCL, others wait on */
    _Atomic int failed;  /* a call of this rank was given up */
    _Atomic int calls;   /* in streams and graphs */
};

#define X(name, parameters) CT_API int name parameters;
NCCL_CALLS(X)
#undef X
CT_API const char *ncclGetErrorString(int code);

const char *ncclGetErrorString(int code)
{
    return code == SYSTEM_ERROR ? "a peer is gone (simulated)" : "an error (simulated)";
}

int ncclGetVersion(int *version)
{
    const char *other = getenv("SIMULATOR_NCCL");

    *version = other ? atoi(other) : 22809;
    return ncclSuccess;
}

int ncclGetUniqueId(ncclUniqueId *id)
{
    uint64_t random = 0;

    memset(id, 0, sizeof(*id));
    if (getrandom(&random, sizeof(random), 0) != sizeof(random))
        return SYSTEM_ERROR;
    snprintf(id->internal, sizeof(id->internal), "/ctitan-sim-%016llx", (unsigned long long)random);
    return ncclSuccess;
}

/* Ranks may outnumber processors. */
static void rest(int *rounds)
{
    if (++*rounds < 100)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static int barrier(struct ncclComm *c)
{
    struct segment *s = c->segment;
    uint32_t generation = s->generation;
    int rounds = 0;

    if (atomic_fetch_add(&s->arrived, 1) + 1 == (uint32_t)c->ranks) {
        s->arrived = 0;
        s->generation++;
        return ncclSuccess;
    }
    for (time_t begin = time(NULL); s->generation == generation && !c->aborted; rest(&rounds))
        if (time(NULL) - begin > PATIENCE)
            c->aborted = 1;
    if (s->generation != generation)
        return ncclSuccess;
    c->failed = 1;
    return SYSTEM_ERROR;
}

int ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                           ncclConfig_t *config)
{
    struct ncclComm *c = calloc(1, sizeof(*c));
    int fd, rc;

    if (config->magic != 0xcafebeef || config->blocking != 0 || ranks > RANKS)
        return SYSTEM_ERROR;
    *c = (struct ncclComm){.ranks = ranks, .rank = rank};
    simulated_count("ncclCommInit of at most %d blocks", config->maxCTAs);
    if (getenv("NCCL_ALGO"))
        simulated_count("ncclCommInit with NCCL_ALGO=%s", getenv("NCCL_ALGO"));
    snprintf(c->name, sizeof(c->name), "%.60s", id.internal);
    fd = shm_open(c->name, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct segment)) < 0)
        return SYSTEM_ERROR;
    c->segment = mmap(NULL, sizeof(struct segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    rc = barrier(c);
    if (rank == 0)
        shm_unlink(c->name);
    *comm = c;
    return rc;
}

int ncclCommGetAsyncError(ncclComm_t comm, int *error)
{
    *error = comm->failed ? SYSTEM_ERROR : ncclSuccess;
    return ncclSuccess;
}

/* ---- the end of a communicator ---- */

static _Thread_local struct {
    bool open; /* a group */
    ncclComm_t comm[64];
    int count;
} ending;

int ncclCommFinalize(ncclComm_t comm)
{
    return comm->failed ? SYSTEM_ERROR : ncclSuccess;
}

int ncclCommDestroy(ncclComm_t comm)
{
    int rounds = 0;

    while (comm->calls)
        rest(&rounds);
    munmap(comm->segment, sizeof(*comm->segment));
    free(comm);
    return ncclSuccess;
}

int ncclCommAbort(ncclComm_t comm)
{
    comm->aborted = 1;
    if (!ending.open)
        return ncclCommDestroy(comm);
    if (ending.count == 64)
        return SYSTEM_ERROR;
    ending.comm[ending.count++] = comm;
    return ncclSuccess;
}

/* ---- collectives ---- */

struct call {
    struct ncclComm *comm;
    enum { GATHER, SCATTER, REDUCE, BROADCAST, SEND, RECEIVE } kind;
    const char *in;
    char *out;
    size_t count;
    int type, op, peer;
};

static enum ct_dtype dtype_of(int type)
{
    switch (type) {
    case 7:
        return CT_F32;
    case 9:
        return CT_BF16;
    case 8:
        return CT_F64;
    case 6:
        return CT_F16;
    case 2:
        return CT_I32;
    case 4:
        return CT_I64;
    case 10:
        return CT_E4M3;
    case 11:
        return CT_E5M2;
    default:
        return CT_U8;
    }
}

/* Everybody's part of in, from `at` on, in the slots. */
static int share(const struct call *c, const char *in, size_t bytes)
{
    int rc = barrier(c->comm);

    memcpy(c->comm->segment->slot[c->comm->rank], in, bytes);
    return rc ? rc : barrier(c->comm);
}

static int gather(const struct call *c, size_t bytes, size_t at, size_t part)
{
    int rc = share(c, c->in + at, part);

    for (int i = 0; i < c->comm->ranks; i++)
        memcpy(c->out + (size_t)i * bytes + at, c->comm->segment->slot[i], part);
    return rc;
}

/* The sum of everybody's `part` bytes at in, at out. */
static int reduce(const struct call *c, const char *in, char *out, size_t part)
{
    const void *inputs[RANKS];
    enum ct_dtype dtype = dtype_of(c->type);
    int rc = share(c, in, part);

    for (int i = 0; i < c->comm->ranks; i++)
        inputs[i] = c->comm->segment->slot[i];
    if (out)
        ct_reduce(out, inputs, c->comm->ranks, part / ct_dtype_size(dtype), dtype,
                  c->op == ncclMax ? CT_REDUCE_MAX : CT_REDUCE_SUM);
    return rc;
}

static int broadcast(const struct call *c, size_t at, size_t part)
{
    int rc = barrier(c->comm);

    if (c->comm->rank == c->peer)
        memcpy(c->comm->segment->slot[0], c->in + at, part);
    if (!rc)
        rc = barrier(c->comm);
    memcpy(c->out + at, c->comm->segment->slot[0], part);
    return rc;
}

static int run_part(const struct call *c, size_t bytes, size_t at, size_t part)
{
    int rc = 0;

    if (c->kind == GATHER)
        return gather(c, bytes, at, part);
    if (c->kind == BROADCAST)
        return broadcast(c, at, part);
    if (c->kind == REDUCE)
        return reduce(c, c->in + at, c->out + at, part);
    for (int i = 0; rc == 0 && i < c->comm->ranks; i++)
        rc = reduce(c, c->in + (size_t)i * bytes + at, i == c->comm->rank ? c->out + at : NULL,
                    part);
    return rc;
}

static int run_call(const void *arguments)
{
    const struct call *c = arguments;
    size_t bytes = c->count * ct_dtype_size(dtype_of(c->type));
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < bytes; at += SLOT)
        rc = run_part(c, bytes, at, bytes - at < SLOT ? bytes - at : SLOT);
    return rc;
}

static int submit(struct call c, void *stream)
{
    simulated_count("%s", ending.open ? "nccl call of a group" : "nccl call alone");
    return simulated_submit_waiting(stream, run_call, &c, sizeof(c), &c.comm->calls);
}

int ncclAllGather(const void *in, void *out, size_t count, int type, ncclComm_t comm, void *stream)
{
    return submit((struct call){comm, GATHER, in, out, count, type, 0, 0}, stream);
}

int ncclReduceScatter(const void *in, void *out, size_t count, int type, int op, ncclComm_t comm,
                      void *stream)
{
    return submit((struct call){comm, SCATTER, in, out, count, type, op, 0}, stream);
}

int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, ncclComm_t comm,
                  void *stream)
{
    return submit((struct call){comm, REDUCE, in, out, count, type, op, 0}, stream);
}

int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, ncclComm_t comm,
                  void *stream)
{
    return submit((struct call){comm, BROADCAST, in, out, count, type, 0, root}, stream);
}

/* ---- messages: begun in a group, moved together until all are through ---- */

#define MESSAGES (2 * RANKS)

struct messages {
    void *stream;
    struct call call[MESSAGES];
    size_t done[MESSAGES];
    bool begun[MESSAGES], over[MESSAGES];
    int count;
};

static _Thread_local struct messages pending;

static struct mailbox *mailbox(const struct call *c)
{
    int me = c->comm->rank;

    return c->kind == SEND ? &c->comm->segment->mail[me][c->peer]
                           : &c->comm->segment->mail[c->peer][me];
}

/* One packet, if the mailbox allows. A message of no bytes is one empty packet. */
static void move(struct messages *m, int i)
{
    const struct call *c = &m->call[i];
    struct mailbox *box = mailbox(c);
    size_t left = c->count - m->done[i];

    if (m->over[i] || box->full != (c->kind == RECEIVE))
        return;
    if (c->kind == RECEIVE) {
        memcpy(c->out + m->done[i], box->data, box->bytes);
        m->done[i] += box->bytes;
        m->over[i] = m->done[i] >= c->count;
        box->full = 0;
    } else if (m->begun[i] && !left) {
        m->over[i] = true;
    } else {
        box->bytes = left < MAIL ? left : MAIL;
        memcpy(box->data, c->in + m->done[i], box->bytes);
        m->done[i] += box->bytes;
        m->begun[i] = true;
        box->full = 1;
    }
}

static int run_messages(const void *arguments)
{
    struct messages m = *(const struct messages *)arguments;
    int left = m.count, rounds = 0;

    while (left) {
        left = 0;
        for (int i = 0; i < m.count; i++) {
            move(&m, i);
            if (!m.over[i] && m.call[i].comm->aborted) {
                m.call[i].comm->failed = 1;
                return SYSTEM_ERROR;
            }
            left += !m.over[i];
        }
        rest(&rounds);
    }
    return ncclSuccess;
}

int ncclGroupStart(void)
{
    pending = (struct messages){.count = 0};
    ending.open = true;
    return ncclSuccess;
}

/* Windows change no result here. Outside of groups, as the communicator's next calls use them. */
CT_API int ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window,
                                  int flags);
int ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window,
                           int flags)
{
    if (ending.open || !memory || !bytes || flags != NCCL_WIN_COLL_SYMMETRIC)
        return SYSTEM_ERROR;
    simulated_count("ncclCommWindowRegister");
    *window = (ncclWindow_t)comm;
    return ncclSuccess;
}

/* Connections are made when they are first used, by both sides. */
static int connect_all(const struct messages *m)
{
    int rounds = 0;

    for (int i = 0; i < m->count; i++)
        atomic_fetch_or(&mailbox(&m->call[i])->met, m->call[i].kind == SEND ? 1 : 2);
    for (int i = 0; i < m->count; i++)
        for (time_t begin = time(NULL); mailbox(&m->call[i])->met != 3; rest(&rounds))
            if (m->call[i].comm->aborted || time(NULL) - begin > PATIENCE) {
                m->call[i].comm->failed = 1;
                return SYSTEM_ERROR;
            }
    return ncclSuccess;
}

int ncclGroupEnd(void)
{
    if (ending.open)
        simulated_count("ncclGroupEnd");
    ending.open = false;
    while (ending.count)
        ncclCommDestroy(ending.comm[--ending.count]);
    if (!pending.count)
        return ncclSuccess;
    if (connect_all(&pending))
        return SYSTEM_ERROR;
    return simulated_submit_waiting(pending.stream, run_messages, &pending, sizeof(pending),
                                    &pending.call[0].comm->calls);
}

static int add(struct call c, void *stream)
{
    simulated_count("nccl message");
    if (pending.count == MESSAGES || (pending.count && pending.stream != stream))
        return SYSTEM_ERROR;
    pending.stream = stream;
    pending.call[pending.count++] = c;
    return ncclSuccess;
}

int ncclSend(const void *data, size_t count, int type, int peer, ncclComm_t comm, void *stream)
{
    return add((struct call){comm, SEND, data, NULL, count, type, 0, peer}, stream);
}

int ncclRecv(void *data, size_t count, int type, int peer, ncclComm_t comm, void *stream)
{
    return add((struct call){comm, RECEIVE, NULL, data, count, type, 0, peer}, stream);
}
