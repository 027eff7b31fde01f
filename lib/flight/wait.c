/*
 * R4 to R6, from a graph of who waits for whom. Its nodes are a rank's main thread and its calls of
 * groups. A call that has begun waits for the members that have not begun it. A call that was only
 * enqueued waits for the call before it on its stream, or for what its instruction waits for. The
 * main thread waits for what its instruction waits for. From every call that does not end, these
 * edges lead to the first cause: a node that waits for nothing, or a circle.
 */
#include <stdlib.h>
#include <string.h>

#include "analyse.h"

#define WAITERS 8    /* of which the verdict tells */
#define DEEPEST 1024 /* nodes that wait for each other in a row */

enum { MAIN = -1 };

/* The main thread of a rank, or its unfinished call of one of its groups. */
struct node {
    int rank, group; /* group: the rank's own number, or MAIN */
    bool begun;      /* a call: on its stream; else it was only enqueued */
    int64_t sequence;
};

/* Nodes are visited once each, and none after the first circle. */
struct walk {
    const struct ct_flight_run *run;
    struct ct_flight_verdict *v;
    struct ct_arena arena;
    size_t *first; /* by rank: the number of its main thread's node; two for each group follow */
    bool *visited; /* by number */
    struct node path[DEEPEST];
    int depth;
    struct node *root;
    size_t roots, root_room;
    bool circle, cut; /* cut: a path was longer */
};

static const struct ct_flight_header *header(const struct walk *w, int rank)
{
    return w->run->rank[rank].h;
}

static struct node main_of(int rank)
{
    return (struct node){.rank = rank, .group = MAIN};
}

static bool is_same(const struct node *a, const struct node *b)
{
    return a->rank == b->rank && a->group == b->group && a->begun == b->begun;
}

/* The record of the node's call. */
static const struct ct_flight_record *record_of(const struct walk *w, const struct node *n)
{
    struct ct_flight_query q = {.kind = CT_FLIGHT_CALL, .group = n->group, .sequence = n->sequence};

    return ct_flight_find(header(w, n->rank), &q);
}

static void add_root(struct walk *w, struct node n)
{
    w->root = ct_arena_grow(&w->arena, w->root, &w->root_room, w->roots + 1, sizeof(*w->root));
    w->root[w->roots++] = n;
}

static void number_nodes(struct walk *w)
{
    size_t count = 0;

    w->first = ct_arena_array(&w->arena, size_t, w->run->world);
    for (int r = 0; r < w->run->world; r++) {
        w->first[r] = count;
        count += 1 + 2 * (w->run->rank[r].h ? (size_t)header(w, r)->group_count : 0);
    }
    w->visited = ct_arena_array(&w->arena, bool, count);
}

static bool *is_visited(const struct walk *w, const struct node *n)
{
    size_t own = n->group == MAIN ? 0 : 1 + 2 * (size_t)n->group + n->begun;

    return &w->visited[w->first[n->rank] + own];
}

static void follow(struct walk *w, struct node n);

/* Follow what instruction `index` of a rank waits for. False: nothing that is unfinished. */
static bool follow_waits(struct walk *w, int rank, int program, int64_t index, int64_t step)
{
    const struct ct_flight_header *h = header(w, rank);
    const struct ct_flight_instruction *f = ct_flight_instruction(h, program, index);
    const int32_t *waits = CT_FLIGHT_AT(h, h->waits);
    bool any = false;

    for (uint32_t i = 0; f && i < f->wait_count; i++) {
        int64_t of = waits[f->waits + i];
        const struct ct_flight_instruction *made = ct_flight_instruction(h, program, of);
        struct ct_flight_query q = {
            .kind = CT_FLIGHT_CALL, .program = program, .index = of, .step = step};
        const struct ct_flight_record *r;

        if (!made || !ct_flight_is_group(h, made->group))
            continue;
        q.group = made->group;
        r = ct_flight_find(h, &q);
        if (!r || r->finished > 0)
            continue;
        follow(w, (struct node){rank, made->group, r->started > 0, r->sequence});
        any = true;
    }
    return any;
}

/* All calls of a rank that have begun and not ended; stream -1: of any stream. */
static bool follow_begun(struct walk *w, int rank, int stream)
{
    const struct ct_flight_header *h = header(w, rank);
    bool any = false;

    for (int g = 0; g < (int)h->group_count; g++) {
        const struct ct_flight_group *group = ct_flight_group(h, g);
        const struct ct_flight_instruction *f =
            ct_flight_instruction(h, group->started.program, group->started.index);

        if (!ct_flight_unfinished(group) || (stream >= 0 && (!f || f->stream != stream)))
            continue;
        follow(w, (struct node){rank, g, true, group->started.sequence});
        any = true;
    }
    return any;
}

static bool follow_main(struct walk *w, int rank)
{
    const struct ct_flight_header *h = header(w, rank);
    const struct ct_flight_position p = ct_flight_position(h);
    const struct ct_flight_instruction *f = ct_flight_instruction(h, p.program, p.index);

    switch (p.phase) {
    case CT_FLIGHT_IN_CALL:
        if (!ct_flight_is_group(h, p.index))
            return false;
        follow(w,
               (struct node){rank, p.index, true, ct_flight_group(h, p.index)->started.sequence});
        return true;
    case CT_FLIGHT_IN_INSIDE:
        if (f && ct_flight_is_group(h, f->group) &&
            ct_flight_unfinished(ct_flight_group(h, f->group)) &&
            ct_flight_group(h, f->group)->started.index == p.index) {
            follow(w, (struct node){rank, f->group, true,
                                    ct_flight_group(h, f->group)->started.sequence});
            return true;
        }
        return follow_waits(w, rank, p.program, p.index, p.step);
    case CT_FLIGHT_IN_BETWEEN: /* after the last instruction it waits for all streams */
        return f && p.index + 1 == h->program[p.program].step_count && follow_begun(w, rank, -1);
    default:
        return false;
    }
}

/* A call that was only enqueued. */
static void follow_queued(struct walk *w, const struct node *n)
{
    const struct ct_flight_record *r = record_of(w, n);
    const struct ct_flight_instruction *f =
        r ? ct_flight_instruction(header(w, n->rank), r->program, r->index) : NULL;

    if (f && (follow_begun(w, n->rank, f->stream) ||
              follow_waits(w, n->rank, r->program, r->index, r->step)))
        return;
    follow(w, main_of(n->rank));
}

/* A call that has begun waits for the members that have not. */
static bool follow_call(struct walk *w, const struct node *n)
{
    const struct ct_flight_members *m = &w->run->group[w->run->rank[n->rank].group[n->group]];
    bool any = false;

    for (int i = 0; i < m->size; i++) {
        const struct ct_flight_group *g = ct_flight_member(w->run, m, i);

        if (!g || m->ranks[i] == n->rank || g->started.sequence >= n->sequence)
            continue;
        if (g->enqueued.sequence >= n->sequence)
            follow(w, (struct node){m->ranks[i], m->own[i], false, n->sequence});
        else
            follow(w, main_of(m->ranks[i]));
        any = true;
    }
    return any;
}

static void note_circle(struct walk *w, int from)
{
    w->circle = true;
    ct_flight_say(w->v, "deadlock: these ranks wait for each other in a cycle\n");
    for (int i = from; i < w->depth; i++) {
        const struct node *n = &w->path[i];
        char text[512];

        if (n->group == MAIN || !n->begun)
            continue;
        ct_flight_blame(w->v, CT_FLIGHT_R4, n->rank);
        ct_flight_describe_call(w->run, n->rank, n->group, n->sequence, text, sizeof(text));
        ct_flight_say(w->v, "  rank %d is in %s\n", n->rank, text);
    }
}

static void follow(struct walk *w, struct node n)
{
    for (int i = 0; i < w->depth && !w->circle; i++)
        if (is_same(&w->path[i], &n)) {
            note_circle(w, i);
            return;
        }
    if (w->circle || *is_visited(w, &n))
        return;
    if (w->depth == DEEPEST) {
        w->cut = true;
        return;
    }
    *is_visited(w, &n) = true;
    w->path[w->depth++] = n;
    if (n.group == MAIN) {
        if (!follow_main(w, n.rank))
            add_root(w, n);
    } else if (!n.begun) {
        follow_queued(w, &n);
    } else if (!follow_call(w, &n)) {
        add_root(w, n);
    }
    w->depth--;
}

/* ---- R5, R6 ---- */

static const char *kind_of_stall(const struct ct_flight_header *h)
{
    const struct ct_flight_position p = ct_flight_position(h);
    const struct ct_flight_instruction *f = ct_flight_instruction(h, p.program, p.index);

    if (p.phase == CT_FLIGHT_IN_OPENING)
        return "still opening the run, or in a hook that loads a checkpoint";
    if (p.phase == CT_FLIGHT_IN_DATA)
        return "stuck while reading data; communication is not the cause";
    if (p.phase == CT_FLIGHT_IN_HOOKS)
        return "stuck after a step, in a hook (saving a checkpoint, for example) or in validation";
    if (p.phase == CT_FLIGHT_IN_INSIDE && f && f->work == CT_FLIGHT_PRODUCTS)
        return "slow or stuck in a matrix product";
    if (p.phase == CT_FLIGHT_IN_INSIDE)
        return "slow or stuck in a kernel, or in a hook on it";
    return "slow or stuck in host code";
}

static void say_root(struct walk *w, const struct node *n)
{
    const struct ct_flight_header *h = header(w, n->rank);
    char text[512];

    if (n->group == MAIN) {
        ct_flight_blame(w->v, CT_FLIGHT_R5, n->rank);
        ct_flight_say(w->v, "rank %d does not arrive: %s\n  ", n->rank, kind_of_stall(h));
        ct_flight_say_position(w->v, w->run, n->rank);
        ct_flight_say(w->v, "\n");
        return;
    }
    ct_flight_blame(w->v, CT_FLIGHT_R6, n->rank);
    ct_flight_describe_call(w->run, n->rank, n->group, n->sequence, text, sizeof(text));
    ct_flight_say(w->v, "all ranks are in the call, but rank %d makes no progress: %s\n", n->rank,
                  text);
}

/* Main threads before calls; of main threads those of ranks that have not failed. */
static bool is_better(const struct walk *w, const struct node *n, bool main, bool running)
{
    return (n->group == MAIN) == main && (header(w, n->rank)->state != CT_FLIGHT_FAILED) == running;
}

static void say_roots(struct walk *w)
{
    for (int pass = 0; pass < 4 && !w->v->rule; pass++)
        for (size_t i = 0; i < w->roots; i++)
            if (is_better(w, &w->root[i], pass < 2, pass % 2 == 0))
                say_root(w, &w->root[i]);
}

/* Say which ranks wait in calls, after the cause. */
void ct_flight_say_waiters(const struct ct_flight_run *run, struct ct_flight_verdict *v)
{
    int count = 0;

    for (int n = 0; n < run->group_count; n++) {
        const struct ct_flight_members *m = &run->group[n];

        for (int i = 0; i < m->size; i++) {
            const struct ct_flight_group *g = ct_flight_member(run, m, i);
            char text[512];

            if (!g || !ct_flight_unfinished(g) || ct_flight_is_guilty(v, m->ranks[i]) ||
                ++count > WAITERS)
                continue;
            ct_flight_describe_call(run, m->ranks[i], m->own[i], g->started.sequence, text,
                                    sizeof(text));
            ct_flight_say(v, "rank %d waits in %s\n", m->ranks[i], text);
        }
    }
    if (count > WAITERS)
        ct_flight_say(v, "and %d more\n", count - WAITERS);
}

void ct_flight_follow_waits(const struct ct_flight_run *run, struct ct_flight_verdict *v)
{
    struct walk *w = calloc(1, sizeof(*w));

    if (!w) {
        ct_flight_say(v, "out of memory: who waits for whom is not known\n");
        return;
    }
    w->run = run;
    w->v = v;
    number_nodes(w);
    for (int r = 0; r < run->world; r++)
        if (run->rank[r].h)
            follow_begun(w, r, -1);
    if (!w->circle)
        say_roots(w);
    if (w->cut)
        ct_flight_say(v,
                      "more than %d calls wait for each other in a row; those further on were "
                      "not looked at\n",
                      DEEPEST);
    ct_arena_finish(&w->arena);
    free(w);
}
