/* Runs whose hosts fail: how much of the time is training. */
#ifndef CT_CLI_GOODPUT_H
#define CT_CLI_GOODPUT_H

#include <stdint.h>

/* Times are seconds. */
struct failing_run {
    double step;
    double mtbf;    /* of one host, between its failures */
    double repair;  /* until a failed host is back */
    double restart; /* from a failure until the job trains again: noticing it, starting, loading */
    double save;    /* until a checkpoint is whole, while training goes on */
    double stall;   /* training stands still for each checkpoint */
    int64_t hosts, spares;
};

/* Shares of the time. */
struct goodput {
    double trained; /* steps that count */
    double stalled; /* saving */
    double redone;  /* steps behind the newest whole checkpoint at a failure */
    double restarted;
    double waited; /* for hosts: more are broken than there are spares */
};

/* A run of some ten thousand failures, with a checkpoint after each `interval` steps. The same
   numbers give the same result. */
void goodput_simulate(const struct failing_run *run, int64_t interval, struct goodput *result);
/* The interval with the largest share of training, within 4 %. */
int64_t goodput_best(const struct failing_run *run, struct goodput *result);

#endif
