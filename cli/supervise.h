/* Jobs that are started again after a failure. */
#ifndef CT_SUPERVISE_H
#define CT_SUPERVISE_H

#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/lib/launch.h>

#include "cli.h"

/* Text that a rank of another host has sent (ct_launch_tell). */
struct job_word {
    char text[512];
    double time; /* ct_now() */
};

struct job {
    struct args *args;
    struct ct_recipe *recipe;
    /* Run it to its end: fill in a request and call job_launch. */
    int (*start)(struct job *job);
    /* After a failure: set `ranks` to those that are left. CT_EPEER: there are too few. NULL: the
       same ones start again. */
    int (*renew)(struct job *job);
    /* See struct ct_job_end; its context is the job. NULL: all ranks are of this host. */
    int (*gather)(const struct ct_job_end *end, const char *folder, const char *name);
    void *context;

    int ranks;         /* of the next start */
    int restart;       /* how many there were */
    const char *batch; /* a setting that holds the global batch on fewer ranks; NULL: none */
    bool absent;       /* set by renew: what is missing may come back, so waiting helps */
    int first;         /* of the last launch: see ct_launch_request */
    int *status;
    double after;           /* seconds from the last start's first failure to its end */
    struct job_word *words; /* by rank; NULL: all ranks are of this host */
    int word_room;
    int64_t safe;                 /* last step that is saved, as of struct ct_job_end; -1: none */
    int64_t safe_before;          /* the same at the failure before the last one */
    int brief;                    /* characters of the failure before the last line; 0: no line */
    struct ct_error_kept failure; /* the last one */
};

/* ct_launch, and the event JOB_END. The job adds what it wants to know of the end. Sets
   ended_saved. */
int job_launch(struct job *job, struct ct_launch_request *request);
/* Set job->ranks to the largest number up to `left` that the recipe's mesh allows, with the global
   batch of the ranks before. CT_EPEER: there is none. */
int job_fit(struct job *job, int left);
/* Start it, and again after failures, as often as --max-restarts allows. */
int job_run(struct job *job);

#endif
