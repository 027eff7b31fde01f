/*
 * Lanes of work that wait for each other, run without the work.
 *
 * A lane does its items one after the other, each as soon as it can: when the one before it in the
 * lane is done, and all that it comes after. Items that meet (a send and its receive, the calls of
 * a collective) wait for each other at the heads of their lanes, and are done together. The result
 * does not depend on the order in which lanes are looked at, and neither do times: each is the
 * latest of those that it depends on. Every edge is looked at once.
 */
#ifndef CT_LANES_H
#define CT_LANES_H

#include <ctitan/arena.h>

struct ct_lane_item {
    int32_t lane, next; /* the next item of the lane; -1: none */
    int32_t edge;       /* the first of its edges; they end where those of the next item begin */
    int32_t meets;      /* another item that it meets: a ring; itself: it meets none */
    int32_t waiting;    /* a lane that waits for it, the first of a list; -1: none */
    bool done, never;   /* never: it cannot be done */
    double cost, start, end;
};

struct ct_lane_edge {
    int32_t before; /* the item that comes first */
    double delay;   /* between its end and the other's start */
};

struct ct_lane_state {
    int32_t head, last; /* items; -1: none */
    int32_t seen;       /* edges of the head that are done */
    int32_t blocker;    /* item that it waits for; -1: none */
    int32_t next_waiting;
    bool there; /* the head waits for those that it meets, and for nothing else */
    bool queued;
    double free, ready; /* when the item before the head ended; when the edges seen allow it */
};

struct ct_lanes {
    struct ct_arena *arena;
    struct ct_lane_state *lane;
    struct ct_lane_item *item;
    struct ct_lane_edge *edge;
    int32_t *todo; /* lanes to look at */
    int32_t lanes, items, edges, todos;
    size_t item_room, edge_room;
};

void ct_lanes_init(struct ct_lanes *l, struct ct_arena *arena, int lanes);
/* The next item of a lane; items are numbered from 0 on, as they are added. */
int32_t ct_lanes_add(struct ct_lanes *l, int lane, double cost);
/* The item that was added last comes after another, which may be added later. */
void ct_lanes_after(struct ct_lanes *l, int32_t before, double delay);
/* Two items meet, and those that they meet already. */
void ct_lanes_meet(struct ct_lanes *l, int32_t a, int32_t b);

/* True: every lane came to its end. */
bool ct_lanes_run(struct ct_lanes *l);

/* An item, for people. */
struct ct_lane_name {
    int rank;
    size_t place; /* in the rank's list, from 0 on */
    char text[96];
};

/* How a client speaks of its items: "deadlock%s: rank 0 cannot do X (%s 3) before ..". */
struct ct_lane_words {
    const char *title, *noun;
    void (*name)(const void *client, int32_t item, struct ct_lane_name *name);
    const void *client;
};
/* The failure of a run that did not: who waits for whom, in the shortest circle. CT_EINVAL. */
int ct_lanes_stuck(const struct ct_lanes *l, const struct ct_lane_words *words);

#endif
