/*
 * Lanes of work that wait for each other, run without the work.
 *
 * A lane does its items in order. Each starts as soon as the one before it in the lane, and all
 * that it comes after, are done. Matched items (a send and its receive, the calls of a collective)
 * wait for each other at the heads of their lanes, and are done together, in the longest of their
 * times. The result and the times do not depend on the order in which lanes are visited: each time
 * is the latest of those that it depends on. Every edge is visited once.
 */
#ifndef CT_LANES_H
#define CT_LANES_H

#include <ctitan/arena.h>

struct ct_lane_item {
    int32_t lane, next; /* the next item of the lane; -1: none */
    int32_t edge;       /* its first edge; its edges end where the next item's begin */
    int32_t match;      /* next in the ring of matched items; itself: it has no match */
    int32_t waiting;    /* first of the list of lanes that wait for it; -1: none */
    bool done, never;   /* never: it can never be done */
    double cost, start, end;
};

struct ct_lane_edge {
    int32_t before; /* the item that comes first */
    double delay;   /* between its end and the other's start */
};

struct ct_lane_state {
    int32_t head, last; /* items; -1: none */
    int32_t seen;       /* edges of the head known to be done */
    int32_t blocker;    /* item that it waits for; -1: none */
    int32_t next_waiting;
    bool there; /* the head waits only for the items that it is matched with */
    bool queued;
    double free, ready; /* end of the item before the head; earliest start by the edges seen */
};

struct ct_lanes {
    struct ct_arena *arena;
    struct ct_lane_state *lane;
    struct ct_lane_item *item;
    struct ct_lane_edge *edge;
    int32_t *todo; /* lanes to visit */
    int32_t lanes, items, edges, todos;
    size_t item_room, edge_room;
};

void ct_lanes_init(struct ct_lanes *l, struct ct_arena *arena, int lanes);
/* Add an item to a lane. Items are numbered from 0 in the order of calls. */
int32_t ct_lanes_add(struct ct_lanes *l, int lane, double cost);
/* The item added last comes after `before`, which may be added later. */
void ct_lanes_after(struct ct_lanes *l, int32_t before, double delay);
/* Match two items, together with those that they are already matched with. */
void ct_lanes_match(struct ct_lanes *l, int32_t a, int32_t b);

/* True: every lane reached its end. */
bool ct_lanes_run(struct ct_lanes *l);

/* A description of an item. */
struct ct_lane_name {
    int rank;
    size_t place; /* in the rank's list, from 0 */
    char text[96];
};

/* Words for a client's items: "deadlock%s: rank 0 cannot do X (%s 3) before ..". */
struct ct_lane_words {
    const char *title, *noun;
    void (*name)(const void *client, int32_t item, struct ct_lane_name *name);
    const void *client;
};
/* Describe a failed run: who waits for whom, in the shortest circle. CT_EINVAL. */
int ct_lanes_stuck(const struct ct_lanes *l, const struct ct_lane_words *words);

#endif
