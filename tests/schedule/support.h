/* Shared parts of the tests of schedules: schedules by name, on a few ranks. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include "plugin_under_test.h"

#include <ctitan/lib/pipeline.h>

static const struct ct_communicate_options everything = {true, 3, true, NULL};

struct kind {
    const char *name;
    int loops; /* stages on each rank */
};

static const struct kind kinds[] = {
    {"gpipe", 1},
    {"1f1b", 1},
    {"interleaved_1f1b", 2},
    {"interleaved_1f1b", 3},
    {"looped_bfs", 1},
    {"looped_bfs", 3},
    {"zb1p", 1},
    {"interleaved_zero_bubble", 2},
    {"interleaved_zero_bubble", 3},
    {"zbv", 2},
    {"dualpipe_v", 2},
};

static inline int generate(struct ct_arena *arena, const struct kind *kind, int ranks,
                           int microbatches, struct ct_schedule **schedule)
{
    struct ct_schedule_request request = {ranks, ranks * kind->loops, microbatches, arena};

    return ct_schedule_generate(test_offer(test_plugin(kind->name), CT_SCHEDULE), kind->name,
                                &request, schedule);
}

/* The call works; else its own words. */
#define assert_works(call)                                                                         \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail_msg("%s: %s", #call, ct_error_message());                                         \
    } while (0)

#endif
