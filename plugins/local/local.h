/*
 * The local communicator's own structures.
 *
 * All ranks map one memfd, handed out in extents that are never given back: the control block at
 * offset 0, then one block per group and one region per `reserve`, in any order. The memfd has no
 * name: rank 0 passes it through an abstract socket, so nothing is left behind however ranks end.
 *
 * A group's block holds a gate, at which members arrive, and for every member its announcements
 * (what it calls, where its buffers are), two staging slots, and a doorbell for messages.
 * Announcements and slots are used in turn: a member overwrites one only after all have passed a
 * later arrival than the last that used it.
 */
#ifndef LOCAL_H
#define LOCAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <ctitan/clock.h>
#include <ctitan/device/comm.h>

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
};
extern struct config local_config;

/* Beside the kinds of calls (comm.h): what `reserve` does. */
#define CALL_RESERVE CT_CALL_KINDS

/* ---- shared memory ---- */

/* Where a buffer is, as other ranks see it. */
struct place {
    int32_t region;   /* in the symmetric arena; -1: in the memory of its process only */
    uint64_t address; /* offset in its rank's part of the region, or virtual address */
};

struct buffers {
    struct place in, out;
};

/* What a member calls: written before it arrives; all must have the same. */
struct announcement {
    _Alignas(LINE) uint8_t call, dtype, reduction;
    int32_t root;
    uint64_t count, parts; /* parts: a digest of a batch's calls */
    struct buffers buffers;
};

/* What a member does, for failure messages only. */
struct status {
    _Alignas(LINE) _Atomic uint32_t arrivals, inside, call, number;
    _Atomic int32_t peer;
    _Atomic uint64_t bytes,
        time; /* time: when it was called, nanoseconds of CLOCK_MONOTONIC_COARSE */
};

/* For those who sleep; see local_ring. */
struct doorbell {
    _Atomic uint32_t word, sleepers;
};

/*
 * Where members arrive. Each adds 1 and, above the lowest 16 bits, a digest of what it calls, so
 * that one word tells that all are there and that they agree. Two words, in turn: nobody arrives
 * a second time at one while another member still looks at it. Nothing is ever reset.
 */
struct gate {
    _Alignas(LINE) _Atomic uint64_t sums[2];
    struct doorbell bell; /* in the line that is looked at anyway */
};

/* For those who wait for messages. */
struct inbox {
    _Alignas(LINE) struct doorbell bell;
};

struct packet {
    uint64_t bytes; /* of the whole message */
    uint32_t part;  /* bytes in the ring; 0: all of them are at `place` */
    int32_t tag;
    struct place place;
};

/* Messages from one member to another. Both counters only grow. */
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

/* A rank. */
struct member {
    _Alignas(LINE) _Atomic int32_t pid;
    _Atomic uint32_t left; /* has closed the communicator */
    _Atomic uint32_t readable;
    uint64_t probe; /* address of a word for others to try to read */
};

struct group_entry {
    uint64_t key, offset, bytes;
};

struct control {
    uint32_t magic, world;
    pthread_mutex_t lock; /* of end, group_count, groups */
    uint64_t end;         /* bytes handed out */
    uint32_t group_count;
    struct group_entry groups[MAX_GROUPS];
    uint64_t reserved; /* offset of the region being reserved */
    struct ct_first_failure failure;
    struct member members[];
};

/* ---- this process ---- */

struct region {
    char *base;  /* rank 0's part */
    size_t part; /* bytes of one rank's */
};

struct comm {
    struct ct_comm base;
    struct control *control;
    size_t control_bytes;
    int fd;
    int *pidfd; /* by rank; -1: not to be had */
    double timeout;
    bool crowded;     /* more ranks than processors: waiting must not spin */
    bool single_copy; /* all ranks may read and write each other's memory */
    struct region regions[MAX_REGIONS];
    _Atomic int region_count;
    struct group *world, *groups;
    uint64_t probe; /* a word for others to try to read */
};

struct group {
    struct ct_group base;
    struct comm *comm;
    struct group *next;
    uint64_t key;
    void *map;
    size_t map_bytes;

    struct block *block;
    const int *ranks; /* in the block: by position */
    struct announcement *announcements;
    struct status *status;
    struct inbox *inboxes;
    struct channel *channels;
    char *slots, *rings;

    uint32_t number;     /* of the current call */
    uint32_t arrivals;   /* of this member */
    uint64_t passed[2];  /* the gate's sums when all had arrived there last */
    uint32_t staged;     /* slots used so far */
    char *scratch;       /* for shards of peers' memory */
    bool *missing;       /* by position: whom this member waits for */
    const void **inputs; /* by position: of a reduction */
    struct transfer *sending, *receiving;
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
    size_t shard; /* bytes: count elements */
    size_t size;  /* of an element */
    int number;   /* in a batch; -1: alone */
    int n, me;
};

/* How it is done. */
struct method {
    bool split;   /* a slot holds one part for each member */
    bool pushes;  /* writes to peers' outputs */
    bool sliced;  /* each member moves an n-th of a shard between any two */
    size_t small; /* bytes in a slot up to which one staged step is the faster way */
    void (*put)(const struct job *j, char *slot, size_t at, size_t bytes);
    int (*take)(const struct job *j, size_t at, size_t bytes);
    int (*direct)(const struct job *j);
};

/* segment.c */
int local_segment_create(struct comm *comm, const char *job);
int local_segment_map(struct comm *comm, int fd);
/* Hand out bytes at an aligned offset; the lock must be held. */
int local_segment_extend(struct comm *comm, size_t bytes, size_t align, uint64_t *offset);
int local_segment_lock(struct comm *comm);
void local_segment_unlock(struct comm *comm);
int local_region_map(struct comm *comm, uint64_t offset, size_t part, void **base);

/* rendezvous.c: all ranks get rank 0's memfd. */
int local_rendezvous(struct comm *comm, const char *job);

/* group.c */
int local_group_attach(struct comm *comm, const int64_t *ranks, int count, const char *name,
                       struct group **group);
void local_group_detach(struct group *group);
/* The parts of a mapped block. Returns where its ranks are written. */
int *local_block_layout(struct group *group);
/* Announce a call, wait for all members, and compare. */
int local_enter(struct group *group, const struct announcement *a);
/* Of what must be the same everywhere, mixed into that of calls before; never 0 in practice. */
uint64_t local_digest(uint64_t before, const struct announcement *a);
/* Wait until all members got here. */
int local_arrive(struct group *group);
/* What a member announced for the current call. */
static inline const struct announcement *local_announced(const struct group *g, int position)
{
    return g->announcements + (size_t)(g->number & 1) * (size_t)g->base.size + (size_t)position;
}

/* A member's slot that is in turn. */
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
/* When a call that begins now is out of time. */
double local_deadline(const struct comm *comm);
/*
 * Waiting is a loop: read bell->word, look whether it is over, else local_pause. That spins first,
 * then yields, then registers as a sleeper, then sleeps for at most a tenth of a second while the
 * word is the one that was seen. True if nothing happened in that time: then local_look. Call
 * local_rest when it is over.
 *
 * Whoever ends a wait changes what is waited for and then calls local_ring, which changes the word
 * and wakes if there are sleepers. Of a sleeper that registers and looks again, and a ringer that
 * changes things and looks for sleepers, one sees the other: no wake-up is lost.
 */
bool local_pause(struct comm *comm, struct patience *p, struct doorbell *bell, uint32_t seen);
void local_rest(struct patience *p, struct doorbell *bell);
void local_ring(struct doorbell *bell);

/* failure.c */
/* The communicator's first failure, or this one; returns CT_EPEER. */
int local_fail(struct comm *comm, const char *fmt, ...) CT_PRINTF(2, 3);
/* CT_EPEER if there has been a failure. */
int local_failed(const struct group *group);
/* Marks in group->missing those that this member waits for; false if there are none. */
typedef bool local_find_missing(struct group *group);
/* For a wait in which nothing happens: CT_EPEER if the communicator has failed, a rank died, one
   that is awaited left, or the deadline has passed; else 0. */
int local_look(struct group *group, double deadline, local_find_missing *find_missing);
void local_watch_members(struct comm *comm);
/* "all_reduce (sum, 1024 x bfloat16)" */
void local_describe(const struct announcement *a, char *text, size_t room);
/* Note what this member does, for others' messages. */
void local_note(struct group *group, enum ct_call_kind call, int peer, uint64_t bytes);
void local_note_done(struct group *group);

/* access.c */
struct place local_place(const struct comm *comm, const void *data, size_t bytes);
/* Memory of a member, at place + offset: in place, or copied to scratch; NULL: it is gone. */
const void *local_peek(struct group *g, int position, struct place place, size_t offset,
                       size_t bytes, void *scratch);
int local_read(struct group *g, int position, struct place place, size_t offset, size_t bytes,
               void *to);
int local_write(struct group *g, int position, struct place place, size_t offset, size_t bytes,
                const void *from);

/* collective.c */
int local_run(struct job *j);
/* The transfers alone: all have announced their buffers, and must arrive once more. */
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
