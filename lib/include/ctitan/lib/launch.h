/*
 * Starting ranks, and finding out which rank a process is.
 *
 * `ctitan train -n N` supervises N processes that run the same program again. Each learns its rank
 * from torchrun's variables RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE. CTITAN_JOB names
 * what they share on this host, and CTITAN_SECRET is a secret of the job (secret.h), a new one if
 * there is none. torchrun itself, mpirun and srun start ranks as well; a program
 * calls ct_launch_identify and need not know what started it.
 */
#ifndef CT_LAUNCH_H
#define CT_LAUNCH_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

struct ct_identity {
    int rank, world;
    int local_rank, local_ranks; /* on this host */
    int restart;                 /* how many times this job was started again; 0: the first time */
    char job[64];                /* the same for all ranks of a host, unique among its jobs */
    const char *by;              /* "torchrun", "Open MPI", "PMI", "Slurm"; NULL: started alone */
};

/*
 * This process's rank, from the environment; rank 0 of 1 if nothing says otherwise. CT_ECONFIG:
 * variables contradict each other or are not numbers; the message names them.
 */
CT_API int ct_launch_identify(struct ct_identity *identity);

/* Whether a launcher has started the ranks of this job before. */
CT_API bool ct_launch_is_restarted(void);
/* Whether ct_launch started this process. */
CT_API bool ct_launch_is_rank(void);

/* A command that runs ranks of the job on another host, like "ssh HOST ..". */
struct ct_launch_command {
    const char *name; /* for messages: "host a" */
    const char *const *argv;
    bool
        ordered; /* its standard input takes orders, and passes them to the other host's launcher */
    int ends_by; /* otherwise the signal that asks its ranks to end; 0: the one that came */
    const char *first; /* comes before the orders; NULL: nothing */
};

struct ct_launch_request {
    int ranks;         /* or commands */
    char *const *argv; /* of each rank; the program is this one. argv[0] begins messages */
    double patience; /* seconds for others to end after a failure, at most 2 after a cause; 0: 2 */
    double grace;    /* seconds between SIGTERM and SIGKILL; 0: 5 */
    int *status;     /* out, by rank: as of waitpid; NULL: not wanted */
    int *first;      /* out: the first rank that failed by itself, -1: none; NULL: not wanted */
    double leave;    /* seconds to end after a signal was passed on, before SIGTERM; 0: grace */
    int restart;     /* for ct_identity */
    int *brief;      /* out: characters of the message without the last line; NULL: not wanted */
    bool reads;      /* rank 0 reads standard input: it gets the terminal, and its Ctrl-C */
    const struct ct_launch_command *commands; /* started in the place of ranks; NULL: none */
    int rank0, world; /* these are ranks rank0 .. of a job of so many; world 0: they are all */
    bool ordered;     /* standard input has orders, as of a command's launcher */
    double silence;   /* seconds without an order, after which the ranks are ended; 0: for ever */
    bool *followed;   /* out: the failure is another host's; NULL: not wanted */
    const char *job;  /* for ct_identity; NULL: a new name */
    double *after;    /* out: seconds from the first failure to the end; NULL: not wanted */
    bool *saved;      /* out: a signal ended ranks, which have saved; NULL: not wanted */
    /* Gets the lines of ct_launch_tell; NULL: they are passed on to who started this process. */
    void (*hear)(void *context, int rank, const char *text);
    void *context;
};

/* The exit status of a rank that failed because another one did. `status` has 1 in its place. */
#define CT_LAUNCH_FOLLOWS 3
/* The exit status of a rank, and of a job, that a signal ended in order, after everything was
   saved: the same command goes on. EX_TEMPFAIL of sysexits.h. */
#define CT_LAUNCH_SAVED 75

/* Send the launcher of a job on several hosts a line about this rank, up to 400 bytes; nothing
   where there is none. It is not shown. Any thread may call this. */
CT_API void ct_launch_tell(int rank, const char *text);
/* Whether there is one. */
CT_API bool ct_launch_hears(void);

/*
 * Run the ranks and wait for all of them. Rank 0 has this process's standard output, and its
 * standard error passes through unchanged (terminal.h says how it learns that this is a terminal).
 * Lines of the others appear as "[rank N] line". A line "argv[0]: .." on standard error is dropped
 * if it is also the last line of another rank. SIGINT, SIGTERM and (unless it is ignored: nohup)
 * SIGHUP are passed on; a second signal kills. SIGQUIT is passed on each time: ranks with a flight
 * recorder answer it with a report and go on, others end. Ranks do not outlive this process,
 * however it ends. Lines go through the outlets (outlet.h), which the program flushes at its end.
 * SIGUSR1 is passed on like SIGTERM: mpirun and srun pass it to ranks on other hosts, SIGTERM they
 * answer themselves.
 *
 * When a rank fails, the others get some time, then one SIGTERM, and SIGKILL after `grace`, however
 * many fail in between. A failure is a cause unless its status is CT_LAUNCH_FOLLOWS: the others
 * then have `patience`, but at most 2 seconds. After a rank that followed they have `patience`,
 * which ends early where a cause comes. They have it too where a command ended with 255, as ssh
 * does when its connection is lost: that is a cause, of which others may know more.
 *
 * Commands are treated like ranks, but what they print has its tags already. One that takes orders
 * gets a letter for each signal through its standard input, and a beat once a second.
 *
 * 0 if all ranks returned 0 or CT_LAUNCH_SAVED; then *saved says whether one returned the latter.
 * Otherwise the first failure, of those that did not follow from another
 * rank's if there is one: CT_ECONFIG if that rank returned 2, else CT_EPEER, with the rank, its
 * exit status or signal, and its last line on standard error. *brief stays where there is none.
 */
CT_API int ct_launch(const struct ct_launch_request *request);

/* ---- commands on other hosts ---- */

#define CT_LAUNCH_SSH                                                                              \
    "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 " \
    "{}"

struct ct_arena;
/* A word in single quotes, for sh. */
CT_API const char *ct_launch_quote(struct ct_arena *arena, const char *word);
/* The command that runs `line` (as sh -c takes it) on a host; NULL ends it. shell: words of a
   remote shell. "{}" among them stands for the host, which otherwise comes last. */
CT_API const char *const *ct_launch_on_host(struct ct_arena *arena, const char *shell,
                                            const char *host, const char *line);
/* The line for sh whose process becomes the command argv; NULL ends argv. */
CT_API const char *ct_launch_line(struct ct_arena *arena, const char *const *argv);

CT_END_DECLS

#endif
