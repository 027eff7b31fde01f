/* `ctitan launch`: its files. */
#ifndef CT_CLI_LAUNCH_H
#define CT_CLI_LAUNCH_H

#include <ctitan/lib/secret.h>

#include "../supervise.h"
#include "hosts.h"

struct launch_args {
    struct args args;
    const char *list;    /* --hosts */
    const char *shell;   /* that reaches a host */
    const char *starter; /* "shell", "mpirun", "srun" */
    const char *program; /* on the other hosts */
    const char *address; /* of rank 0's host, for the others */
    int64_t port, spares;
    const char *part; /* this process runs the ranks of one host */
    bool here;
};

struct hosts_job {
    struct launch_args *args;
    struct hosts hosts;
    int used;                    /* hosts that the job began with */
    char secret[CT_SECRET_ROOM]; /* of the job: the user's, or a new one */
};

/* start.c: run the job on the hosts that have ranks, by one command for each or for all of them. */
int launch_on_hosts(struct job *job);
/* Run the ranks that a part says, as an order of launch_on_hosts. */
int launch_part(struct launch_args *args);

/* gather.c: of struct ct_job_end. */
int launch_gather(const struct ct_job_end *end, const char *folder, const char *name);

/* The remote shell's default, in a job of Slurm and elsewhere. */
const char *launch_shell(const struct launch_args *args);

#endif
