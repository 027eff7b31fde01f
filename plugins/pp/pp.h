/* The pipeline plugin, between its sources. */
#ifndef PP_H
#define PP_H

#include <ctitan/run.h>

struct pp_config {
    int64_t degree, microbatch_size, layers_per_stage;
    const char *schedule, *schedule_csv, *split_points;
};
extern struct pp_config pp_config;

/* Give every op its stage; count stages of them. */
int pp_partition(struct ct_graph *graph, int stages);
/* How many stages [pp] layers_per_stage or split_points ask for; 0: neither does. */
int pp_count_stages(const struct ct_graph *graph);
/* Let less cross a cut: what is only summed behind it is summed in front of it. */
int pp_narrow(struct ct_graph *graph);

#endif
