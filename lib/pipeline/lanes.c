/*
 * A lane waits for one thing at a time: an unfinished item, in whose list the lane is then kept, or
 * a partner that has not arrived. A stuck lane can thus be followed to a circle, or to an item that
 * can never be done.
 */
#include <ctitan/error.h>

#include "lanes.h"

/* ---- construction ---- */

void ct_lanes_init(struct ct_lanes *l, struct ct_arena *arena, int lanes)
{
    *l = (struct ct_lanes){.arena = arena, .lanes = lanes};
    l->lane = ct_arena_array(arena, struct ct_lane_state, lanes);
    l->todo = ct_arena_array(arena, int32_t, lanes);
    for (int i = 0; i < lanes; i++)
        l->lane[i].head = l->lane[i].last = l->lane[i].blocker = -1;
}

int32_t ct_lanes_add(struct ct_lanes *l, int lane, double cost)
{
    struct ct_lane_state *s = &l->lane[lane];
    int32_t item = l->items++;

    l->item = ct_arena_grow(l->arena, l->item, &l->item_room, (size_t)l->items, sizeof(*l->item));
    l->item[item] = (struct ct_lane_item){
        .lane = lane, .next = -1, .edge = l->edges, .match = item, .waiting = -1, .cost = cost};
    *(s->last < 0 ? &s->head : &l->item[s->last].next) = item;
    s->last = item;
    return item;
}

void ct_lanes_after(struct ct_lanes *l, int32_t before, double delay)
{
    l->edge =
        ct_arena_grow(l->arena, l->edge, &l->edge_room, (size_t)l->edges + 1, sizeof(*l->edge));
    l->edge[l->edges++] = (struct ct_lane_edge){before, delay};
}

void ct_lanes_match(struct ct_lanes *l, int32_t a, int32_t b)
{
    int32_t next = l->item[a].match;

    l->item[a].match = l->item[b].match;
    l->item[b].match = next;
}

/* ---- running ---- */

static void look_at(struct ct_lanes *l, int32_t lane)
{
    if (!l->lane[lane].queued)
        l->todo[l->todos++] = lane;
    l->lane[lane].queued = true;
}

/* Are all items done that the head comes after? If not, the lane waits. */
static bool is_clear(struct ct_lanes *l, int32_t lane)
{
    struct ct_lane_state *s = &l->lane[lane];
    const struct ct_lane_item *head = &l->item[s->head];
    int32_t end = s->head + 1 < l->items ? head[1].edge : l->edges;

    for (; head->edge + s->seen < end; s->seen++) {
        const struct ct_lane_edge *e = &l->edge[head->edge + s->seen];
        struct ct_lane_item *before = &l->item[e->before];

        if (!before->done) {
            s->blocker = e->before;
            s->next_waiting = before->waiting;
            before->waiting = lane;
            return false;
        }
        if (before->end + e->delay > s->ready)
            s->ready = before->end + e->delay;
    }
    return true;
}

/* Have all partners of the head arrived? */
static bool all_there(struct ct_lanes *l, int32_t lane)
{
    struct ct_lane_state *s = &l->lane[lane];

    s->there = true;
    for (int32_t i = l->item[s->head].match; i != s->head; i = l->item[i].match) {
        const struct ct_lane_state *other = &l->lane[l->item[i].lane];

        if (other->head != i || !other->there) {
            s->blocker = i;
            return false;
        }
    }
    return true;
}

static void finish(struct ct_lanes *l, int32_t item, double start, double end)
{
    struct ct_lane_item *i = &l->item[item];
    struct ct_lane_state *s = &l->lane[i->lane];

    i->done = true;
    i->start = start;
    i->end = end;
    s->head = i->next;
    s->free = end;
    s->ready = 0;
    s->seen = 0;
    s->there = false;
    s->blocker = -1;
    look_at(l, i->lane);
    for (int32_t w = i->waiting; w >= 0; w = l->lane[w].next_waiting)
        look_at(l, w);
}

static void finish_all(struct ct_lanes *l, int32_t item)
{
    double start = 0, cost = 0;
    int32_t i = item;

    do {
        const struct ct_lane_state *s = &l->lane[l->item[i].lane];

        start = s->free > start ? s->free : start;
        start = s->ready > start ? s->ready : start;
        cost = l->item[i].cost > cost ? l->item[i].cost : cost;
        i = l->item[i].match;
    } while (i != item);
    do {
        finish(l, i, start, start + cost);
        i = l->item[i].match;
    } while (i != item);
}

bool ct_lanes_run(struct ct_lanes *l)
{
    bool ended = true;

    for (int32_t i = l->lanes; i-- > 0;)
        look_at(l, i);
    while (l->todos) {
        int32_t lane = l->todo[--l->todos], head = l->lane[lane].head;

        l->lane[lane].queued = false;
        if (head >= 0 && !l->item[head].never && is_clear(l, lane) && all_there(l, lane))
            finish_all(l, head);
    }
    for (int32_t i = 0; i < l->lanes; i++)
        ended &= l->lane[i].head < 0;
    return ended;
}

/* ---- who waits for whom ---- */

/* The lane that a stuck lane waits for; itself: it waits for an item that cannot be done. */
static int32_t waits_for(const struct ct_lanes *l, int32_t lane)
{
    int32_t blocker = l->lane[lane].blocker;

    return blocker < 0 ? lane : l->item[blocker].lane;
}

/* Length of the circle reached from lane, or 0 if an earlier search has seen it. */
static int circle_from(const struct ct_lanes *l, int32_t lane, int *seen, int mark,
                       int32_t *in_circle)
{
    int length = 0;
    int32_t at;

    while (!seen[lane]) {
        seen[lane] = mark;
        lane = waits_for(l, lane);
    }
    if (seen[lane] != mark)
        return 0;
    *in_circle = at = lane;
    do {
        at = waits_for(l, at);
        length++;
    } while (at != lane);
    return length;
}

static int32_t shortest_circle(const struct ct_lanes *l, int *length)
{
    int *seen = ct_arena_array(l->arena, int, l->lanes);
    int32_t best = -1, in_circle = -1;

    *length = 0;
    for (int32_t lane = 0; lane < l->lanes; lane++) {
        int steps = l->lane[lane].head < 0 ? 0 : circle_from(l, lane, seen, lane + 1, &in_circle);

        if (steps && (!*length || steps < *length)) {
            *length = steps;
            best = in_circle;
        }
    }
    return best;
}

/* Report at most this many waits of a circle. */
#define TOLD 8

int ct_lanes_stuck(const struct ct_lanes *l, const struct ct_lane_words *words)
{
    struct ct_lane_name here, there;
    char text[1536] = "";
    struct ct_line line = {text, sizeof(text), 0};
    int length;
    int32_t at = shortest_circle(l, &length);

    for (int i = 0; i < length && i < TOLD; i++) {
        int32_t next = waits_for(l, at);

        words->name(words->client, l->lane[at].head, &here);
        words->name(words->client, l->lane[next].head, &there);
        ct_line_add(&line, "%srank %d cannot do %s (%s %zu) ", i ? ", " : "", here.rank, here.text,
                    words->noun, here.place + 1);
        if (next == at)
            ct_line_add(&line, "at all: no rank runs the other end of it");
        else
            ct_line_add(&line, "before rank %d gets past %s", there.rank, there.text);
        at = next;
    }
    if (length > TOLD)
        ct_line_add(&line, ", and so on, a cycle of %d", length);
    return ct_fail(CT_EINVAL, "deadlock%s: %s", words->title, text);
}
