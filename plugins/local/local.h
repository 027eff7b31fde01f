/*
 * The local communicator's own structures.
 *
 * All ranks map one memfd, allocated in extents that are never freed: the control block at offset
 * 0, then one block per group and one region per `reserve`, in any order. The memfd has no name;
 * rank 0 passes it through an abstract socket. Nothing is left behind, however ranks end.
 *
 * A group's block holds a gate, at which members arrive. For every member it holds its
 * announcements (what it calls, where its buffers are), two staging slots, and a doorbell for
 * messages. Announcements and slots are used alternately. A member overwrites one only after all
 * members have passed an arrival later than the last one that used it.
 */
#ifndef LOCAL_H
#define LOCAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <ctitan/clock.h>
#include <ctitan/comm.h>

#define MAX_GROUPS (1 << 20) /* the table is sparse: only entries in use take memory */
#define MAX_REGIONS 256
#define SLOT_BYTES ((size_t)128 << 10)
#define PACKETS 4 /* in flight on a channel */
#define PACKET_BYTES ((size_t)16 << 10)
#define LINE 64
#define HUGE_PAGE ((size_t)2 << 20)

struct config {
    bool single_copy;
    int64_t yields;
    double link; /* 10^9 bytes per second; 0: none is added */
};
extern struct config local_config;

/* In addition to the kinds of calls (comm.h): the call of `reserve`. */
#define CALL_RESERVE CT_CALL_KINDS

/* ---- shared memory ---- */

/* Location of a buffer, as seen by other ranks. */
struct place {
    int32_t region;   /* in the symmetric arena; -1: only in its process's memory */
    uint64_t address; /* offset in its rank's part of the region, or virtual address */
};

struct buffers {
    struct place in, out;
};

/* A member's call, written before it arrives. It must be the same on all members. */
struct announcement {
    _Alignas(LINE) uint8_t call, dtype, reduction;
    int32_t root;
    uint64_t count, parts; /* parts: digest of a batch's calls */
    struct buffers buffers;
};

/* A member's current call, for failure messages only. */
struct status {
    _Alignas(LINE) _Atomic uint32_t arrivals, inside, call, number;
    _Atomic int32_t peer;
    _Atomic uint64_t bytes,
        time; /* time: start of the call, nanoseconds of CLOCK_MONOTONIC_COARSE */
};

/* Wakes sleepers; see local_ring. */
struct doorbell {
    _Atomic uint32_t word, sleepers;
};

/*
 * Where members arrive. Each adds 1 to the lowest 16 bits, and a digest of its call above them, so
 * that one word tells that all have arrived and that they agree. Two words are used alternately, so
 * no member arrives at one again while another still polls it. Nothing is ever reset.
 */
struct gate {
    _Alignas(LINE) _Atomic uint64_t sums[2];
    struct doorbell bell; /* in the cache line that waiters read anyway */
};

/* Wakes members that wait for messages. */
struct inbox {
    _Alignas(LINE) struct doorbell bell;
};

struct packet {
    uint64_t bytes; /* in the whole message */
    uint32_t part;  /* bytes in the ring; 0: the whole message is at `place` */
    int32_t tag;
    struct place place;
};

/* Messages from one member to another. Both counters only increase. */
struct channel {
    _Alignas(LINE) _Atomic uint32_t posted;
    struct packet packets[PACKETS];
    _Alignas(LINE) _Atomic uint32_t taken;
};

/* Followed by announcements[2][size], status[size], inboxes[size], channels[size][size],
   ranks[size], then, page-aligned, slots[2][size], rings[size][size]. */
struct block {
    struct gate gate;
    int32_t size;
    char name[48];
};

/* Shared state of a rank. */
struct member {
    _Alignas(LINE) _Atomic int32_t pid;
    _Atomic uint32_t left; /* it has closed the communicator */
    _Atomic uint32_t readable;
    uint64_t probe; /* address of a word that others try to read */
};

struct group_entry {
    uint64_t key, offset, bytes;
};

struct control {
    uint32_t magic, world;
    pthread_mutex_t lock; /* protects end, group_count, groups */
    uint64_t end;         /* bytes allocated */
    uint32_t group_count;
    struct group_entry groups[MAX_GROUPS];
    uint64_t reserved; /* offset of the region being reserved */
    struct ct_first_failure failure;
    struct member members[];
};

/* ---- this process ---- */

struct region {
    char *base;  /* rank 0's part */
    size_t part; /* bytes per rank */
};

struct comm {
    struct ct_comm base;
    struct control *control;
    size_t control_bytes;
    int fd;
    int *pidfd; /* by rank; -1: not available */
    double timeout;
    bool crowded;     /* more ranks than processors: waiters must not spin */
    bool single_copy; /* all ranks may read and write each other's memory */
    struct region regions[MAX_REGIONS];
    _Atomic int region_count;
    struct group *world, *groups;
    uint64_t probe; /* a word that others try to read */
};

struct group {
    struct ct_group base;
    struct comm *comm;
    struct group *next;
    uint64_t key;
    void *map;
    size_t map_bytes;

    struct block *block;
    const int *ranks; /* in the block, by position */
    struct announcement *announcements;
    struct status *status;
    struct inbox *inboxes;
    struct channel *channels;
    char *slots, *rings;

    uint32_t number;     /* of the current call */
    uint32_t arrivals;   /* of this member */
    uint64_t passed[2];  /* the gate's sums when all had last arrived */
    uint32_t staged;     /* number of slots used so far */
    char *scratch;       /* for copies of shards in peers' memory */
    bool *missing;       /* by position: this member waits for it */
    const void **inputs; /* by position: inputs of a reduction */
    struct transfer *sending, *receiving;
    double sent; /* bytes, since `link` was last waited for */
    struct batch {
        bool open;
        struct job *jobs;
        size_t count, room;
    } batch;
};

/* A collective. Ranges are bytes of a shard. */
struct job {
    struct group *g;
    const struct method *method;
    struct announcement a;
    const char *in;
    char *out;
    size_t shard; /* in bytes: count elements */
    size_t size;  /* bytes per element */
    int number;   /* in a batch; -1: alone */
    int n, me;
};

/* How a collective is done. */
struct method {
    bool split;   /* a slot holds one part for each member */
    bool pushes;  /* it writes to peers' outputs */
    bool sliced;  /* each member moves an n-th of a shard between any two members */
    size_t small; /* largest data, in bytes, for which one staged step is faster */
    void (*put)(const struct job *j, char *slot, size_t at, size_t bytes);
    int (*take)(const struct job *j, size_t at, size_t bytes);
    int (*direct)(const struct job *j);
};

/* segment.c */
int local_segment_create(struct comm *comm, const char *job);
int local_segment_map(struct comm *comm, int fd);
/* Allocate bytes at an aligned offset; the lock must be held. */
int local_segment_extend(struct comm *comm, size_t bytes, size_t align, uint64_t *offset);
int local_segment_lock(struct comm *comm);
void local_segment_unlock(struct comm *comm);
int local_region_map(struct comm *comm, uint64_t offset, size_t part, void **base);

/* rendezvous.c: give all ranks rank 0's memfd. */
int local_rendezvous(struct comm *comm, const char *job);

/* group.c */
int local_group_attach(struct comm *comm, const int64_t *ranks, int count, const char *name,
                       struct group **group);
void local_group_detach(struct group *group);
/* Set pointers to the parts of a mapped block. Returns the array of its ranks. */
int *local_block_layout(struct group *group);
/* Announce a call, wait for all members, and compare their announcements. */
int local_enter(struct group *group, const struct announcement *a);
/* Digest of what must be the same everywhere, combined with `before`; never 0 in practice. */
uint64_t local_digest(uint64_t before, const struct announcement *a);
/* Wait until all members have arrived. */
int local_arrive(struct group *group);
/* A member's announcement for the current call. */
static inline const struct announcement *local_announced(const struct group *g, int position)
{
    return g->announcements + (size_t)(g->number & 1) * (size_t)g->base.size + (size_t)position;
}

/* A member's current slot. */
static inline char *local_slot(const struct group *g, int position)
{
    return g->slots +
           ((size_t)(g->staged & 1) * (size_t)g->base.size + (size_t)position) * SLOT_BYTES;
}

/* wait.c */
struct patience {
    int turns;
    bool registered; /* as a sleeper */
    double deadline;
};
/* The time at which a call that begins now times out. */
double local_deadline(const struct comm *comm);
/*
 * A wait is a loop: read bell->word, check the condition, and if it does not hold call local_pause.
 * That first spins, then yields, then registers as a sleeper. It then sleeps for at most a tenth of
 * a second, as long as the word has the value that was read. It returns true if nothing happened in
 * that time; then call local_look. Call local_rest when the wait is over.
 *
 * To end a wait, change the condition and then call local_ring, which changes the word and wakes
 * sleepers, if any. A sleeper registers before it checks again, and a ringer changes the condition
 * before it looks for sleepers. One of them sees the other, so no wake-up is lost.
 */
bool local_pause(struct comm *comm, struct patience *p, struct doorbell *bell, uint32_t seen);
void local_rest(struct patience *p, struct doorbell *bell);
void local_ring(struct doorbell *bell);

/* failure.c */
/* Record this failure unless there is an earlier one; returns CT_EPEER with the first one. */
int local_fail(struct comm *comm, const char *fmt, ...) CT_PRINTF(2, 3);
/* CT_EPEER if there has been a failure. */
int local_failed(const struct group *group);
/* Mark in group->missing the members that this member waits for; false if there are none. */
typedef bool local_find_missing(struct group *group);
/* Call it when a wait makes no progress. CT_EPEER: the communicator has failed, a rank died, an
   awaited rank left, or the deadline has passed; else 0. */
int local_look(struct group *group, double deadline, local_find_missing *find_missing);
void local_watch_members(struct comm *comm);
/* "all_reduce (sum, 1024 x bfloat16)" */
void local_describe(const struct announcement *a, char *text, size_t room);
/* Record what this member does, for messages of other members. */
void local_note(struct group *group, enum ct_call_kind call, int peer, uint64_t bytes);
void local_note_done(struct group *group);

/* access.c */
struct place local_place(const struct comm *comm, const void *data, size_t bytes);
/* Memory of a member at place + offset, in place or copied to scratch; NULL: the member is gone. */
const void *local_peek(struct group *g, int position, struct place place, size_t offset,
                       size_t bytes, void *scratch);
int local_read(struct group *g, int position, struct place place, size_t offset, size_t bytes,
               void *to);
int local_write(struct group *g, int position, struct place place, size_t offset, size_t bytes,
                const void *from);

/* collective.c */
int local_run(struct job *j);
/* The transfers alone. All have announced their buffers, and must arrive again afterwards. */
int local_run_direct(struct job *j);
bool local_all_in_arena(const struct job *j);
struct buffers local_buffers(const struct job *j);

/* batch.c */
int local_batch_begin(struct ct_group *group);
int local_batch_end(struct ct_group *group);
int local_batch_add(const struct job *j);

/* collective.c, message.c */
int local_barrier(struct group *g);
int local_collective(const struct ct_call *call);
int local_message(const struct ct_call *call);

#endif
