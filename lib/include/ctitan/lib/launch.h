/*
 * Starting ranks, and knowing which rank one is.
 *
 * `ctitan train -n N` is a supervisor of N processes that run the same program again, told apart by
 * torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, and by CTITAN_JOB, a name
 * for what they share on this host. torchrun itself, mpirun and srun start ranks as well; a program
 * asks ct_launch_identify and need not know by whom it was started.
 */
#ifndef CT_LAUNCH_H
#define CT_LAUNCH_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

struct ct_identity {
    int rank, world;
    int local_rank, local_ranks; /* on this host */
    char job[64];                /* the same for all ranks of a host, and no other job's there */
    const char *by;              /* "torchrun", "Open MPI", "PMI", "Slurm"; NULL: alone */
};

/*
 * This process's place, from the environment; rank 0 of 1 if nothing says otherwise. CT_ECONFIG:
 * variables that contradict each other or are no numbers, by name.
 */
CT_API int ct_launch_identify(struct ct_identity *identity);

/* Whether ct_launch started this process. */
CT_API bool ct_launch_is_rank(void);

struct ct_launch_request {
    int ranks;
    char *const *argv; /* of each rank; the program is this one */
    double patience;   /* seconds for others to end by themselves after a failure; 0: 2 */
    double grace;      /* seconds between SIGTERM and SIGKILL; 0: 5 */
};

/*
 * Run the ranks and wait for all of them. Rank 0 has this process's standard output, and its
 * standard error passes through unchanged (CTITAN_TERMINAL=1 tells it that a terminal is behind
 * it); lines of the others appear as "[rank N] line", but for a line "argv[0]: .." that another
 * rank has said last, too. SIGINT, SIGTERM and (unless it is ignored: nohup) SIGHUP are passed on;
 * a second one kills. When a rank fails, the others get `patience`, then SIGTERM, then SIGKILL.
 * Ranks do not outlive this process, however it ends.
 *
 * 0 if all ranks returned 0. Otherwise the first failure: CT_ECONFIG if that rank returned 2, else
 * CT_EPEER, with the rank, its exit status or signal, and its last line on standard error.
 */
CT_API int ct_launch(const struct ct_launch_request *request);

CT_END_DECLS

#endif
