/*
 * The scalars that a graph fetches, besides the loss and the norm.
 */
#ifndef METRICS_H
#define METRICS_H

#include <ctitan/run.h>

struct metrics {
    struct ct_run *run;
    struct ct_executor *executor;
    const struct ct_graph *graph;
    struct ct_metric *metric;
    double *sum, *over; /* by metric, of all steps since metrics_begin */
    size_t count;
};

void metrics_init(struct metrics *metrics, struct ct_run *run, struct ct_executor *executor,
                  const struct ct_graph *graph);
/* Forget the steps before. */
void metrics_begin(struct metrics *metrics);
/* Read what the step that ended has fetched. */
int metrics_add(struct metrics *metrics);
/* Let hooks read them in the run. */
void metrics_publish(struct metrics *metrics);

/* A scalar of any dtype. NULL-safe: without the fetch it is 0. */
int metrics_read(struct ct_executor *executor, const struct ct_graph *graph, const char *name,
                 double *x);

#endif
