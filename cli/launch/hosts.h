/* The hosts of a job, and commands that run on them. */
#ifndef CT_HOSTS_H
#define CT_HOSTS_H

#include <ctitan/arena.h>

struct host {
    const char *name;  /* as the remote shell knows it */
    int slots;         /* most ranks */
    bool answers;      /* to the last probe */
    const char *words; /* its answer, or why there is none */
    int failures;      /* starts of the job that it has ended */
    int ranks;         /* in the next start; 0: it is spare */
};

struct hosts {
    struct host *at;
    int count;
};

/* "a:8,b:8", or a file with a host in each line. each: ranks where the number is missing, 0: it
   must not. CT_ECONFIG. */
int hosts_read(struct ct_arena *arena, const char *text, int64_t each, struct hosts *hosts);
/* The hosts of the Slurm allocation that this process is in. CT_ECONFIG: it is in none. */
int hosts_of_slurm(struct ct_arena *arena, int64_t each, struct hosts *hosts);

/* Run a line on all hosts at once, and keep the last line of what each prints. A host that has
   not ended after so many seconds does not answer. */
void hosts_probe(struct ct_arena *arena, struct hosts *hosts, const char *shell, const char *line,
                 double seconds);

#endif
