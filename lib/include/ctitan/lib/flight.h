/*
 * The records of a run's ranks, read and explained: for `ctitan flight`, and for ranks and
 * launchers that explain a failure.
 *
 * A run is opened from its dump folder, while it runs or afterwards. Its files are mapped until it
 * is closed, so the state of ranks that live is the present one; `now`, `failed` and `process` are
 * of the moment of opening. Nothing in a file can lead a reader out of it: a file that is damaged
 * is refused. Neither the plugin flight_recorder nor a plugin of the run is needed.
 *
 * Ranks are numbered as in the run. Where a function takes a rank or a header and says nothing
 * else, the rank has a record.
 */
#ifndef CT_FLIGHT_H
#define CT_FLIGHT_H

#include <stdio.h>

#include <ctitan/arena.h>

CT_BEGIN_DECLS

struct ct_job_end;
/* Defined in flight_record.h. */
struct ct_flight_header;
struct ct_flight_group;

/* ---- the files of a run ---- */

struct ct_flight_rank {
    struct ct_flight_header *h; /* NULL: no file, or a stale one */
    size_t bytes;
    int *group;   /* by the rank's group: number in ct_flight_run.group */
    char process; /* letter of proc(5) now; 'X': gone, '?': another host */
    bool copied;  /* from another host, at the end of a job */
};

struct ct_flight_members {
    const char *name;
    int instance, size;
    const int32_t *ranks;
    int *own; /* by position: the member's number of the group, -1: it has none */
};

struct ct_flight_run {
    struct ct_arena arena;
    const char *folder;
    int world;
    struct ct_flight_rank *rank;
    struct ct_flight_members *group;
    int group_count;
    double now;    /* latest time that any rank showed, in seconds of CLOCK_REALTIME */
    double failed; /* when the first rank failed, as `now`; 0: none did */
    /* Set by the process that supervises the ranks; NULL: this is another. */
    const struct ct_job_end *job;
};

/* Map the files of a dump folder; writable: the caller notes what became of ranks. The folder's
   name is kept. CT_ENOENT: there are none; CT_EINVAL: one is damaged, or of another layout. */
CT_API int ct_flight_run_open(const char *folder, bool writable, struct ct_flight_run *run);
/* Map the file of one rank, in a run of as many ranks as it names; the others have none. CT_ENOENT;
   CT_EINVAL. */
CT_API int ct_flight_run_open_rank(const char *path, struct ct_flight_run *run);
CT_API void ct_flight_run_close(struct ct_flight_run *run);

/* Text that a rank without a file has sent (ct_job_end.told), and how many seconds ago; NULL:
   none. */
CT_API const char *ct_flight_told(const struct ct_flight_run *run, int rank, double *ago);
/* A group by the rank's own number, below group_count. */
CT_API struct ct_flight_group *ct_flight_group(const struct ct_flight_header *h, int group);
/* When the rank last did something, of its own clock. */
CT_API double ct_flight_progress(const struct ct_flight_header *h);
/* Seconds of CLOCK_REALTIME. */
CT_API double ct_flight_time(const struct ct_flight_header *h, double monotonic);

/* ---- why it failed or hangs ---- */

/* The rule that decided. docs/failures.md describes them; --json prints their numbers. */
enum ct_flight_rule {
    CT_FLIGHT_NOTHING,
    CT_FLIGHT_R1, /* a rank failed or died */
    CT_FLIGHT_R2, /* different recipes */
    CT_FLIGHT_R3, /* calls that do not match */
    CT_FLIGHT_R4, /* a deadlock */
    CT_FLIGHT_R5, /* a rank that does not arrive */
    CT_FLIGHT_R6, /* a call that does not end */
    CT_FLIGHT_R7, /* a slow rank */
    CT_FLIGHT_R8, /* ranks that diverge */
};

struct ct_flight_verdict {
    enum ct_flight_rule rule;
    bool *guilty;     /* by rank, in the run's arena */
    int ranks;        /* how many of these there are */
    int rank;         /* first guilty one; -1: none */
    char text[16384]; /* one sentence, then a line for each further fact */
};

CT_API void ct_flight_analyse(struct ct_flight_run *run, struct ct_flight_verdict *verdict);
/* A rank without a record counts as dead. */
CT_API bool ct_flight_is_dead(const struct ct_flight_run *run, int rank);
/* No rank has done anything for longer than steps took. */
CT_API bool ct_flight_is_stuck(const struct ct_flight_run *run);

/* ---- told to people and programs ---- */

/* The page that a person reads: the verdict, then what every rank did last. */
CT_API void ct_flight_page(const struct ct_flight_run *run, const struct ct_flight_verdict *verdict,
                           FILE *out);
/* The same for programs. CT_ENOMEM; CT_EIO. */
CT_API int ct_flight_json(const struct ct_flight_run *run, const struct ct_flight_verdict *verdict,
                          FILE *out);
/* Write a trace (trace.h): a process for each rank. CT_ENOMEM; CT_EIO. */
CT_API int ct_flight_trace(const struct ct_flight_run *run, const char *path);

/* In words: "all_gather of %w (F, microbatch 0, ..), call 12 of group 'tp' [0 1]", "step 3, reading
   data, since 1.50 s". group: the rank's own number. */
CT_API void ct_flight_describe_call(const struct ct_flight_run *run, int rank, int group,
                                    int64_t sequence, char *text, size_t room);
CT_API void ct_flight_describe_position(const struct ct_flight_run *run, int rank, char *text,
                                        size_t room);

CT_END_DECLS

#endif
