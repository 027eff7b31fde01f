/* How gradients of attention are dealt out to tasks. */
#ifndef CPU_KERNELS_ATTENTION_TASKS_H
#define CPU_KERNELS_ATTENTION_TASKS_H

#include "attention.h"

/*
 * A key/value head of one sequence is one task. Heads that are left when each thread has had as
 * many as the others may instead be `parts` tasks that make dk and dv of some key tiles, and as
 * many that make dq of some queries: seven products instead of five, on all threads.
 */
struct dealt {
    int64_t whole, parts; /* heads that are one task; tasks of each kind of another head */
};

struct task {
    int64_t b, group;
    int64_t first, step; /* query tiles, or chunks of them */
    int64_t begin, end;  /* key tiles */
    bool queries, keys;  /* dq; dk and dv */
};

static inline struct dealt deal_out(const struct attention *a, int threads, int64_t query_steps)
{
    int64_t heads = a->batch * a->groups, rest = heads % threads, parts;

    if (7 * rest >= 5 * threads || rest == 0)
        return (struct dealt){heads, 0};
    parts = (4 * threads + rest - 1) / rest;
    parts = parts < query_steps ? parts : query_steps;
    return (struct dealt){heads - rest, parts < a->key_tiles ? parts : a->key_tiles};
}

static inline int64_t count_tasks(const struct attention *a, const struct dealt *d)
{
    return d->whole + (a->batch * a->groups - d->whole) * 2 * d->parts;
}

/* The longest first: whole heads, then dk and dv of the first keys, then dq. */
static inline struct task task_at(const struct attention *a, const struct dealt *d, int64_t index)
{
    int64_t rest = a->batch * a->groups - d->whole, after = index - d->whole,
            head = after < 0 ? index : d->whole + after % rest, part = after < 0 ? 0 : after / rest;
    struct task t = {
        .b = head / a->groups, .group = head % a->groups, .step = 1, .end = a->key_tiles};

    t.keys = after < 0 || part < d->parts;
    t.queries = after < 0 || part >= d->parts;
    if (after >= 0 && t.keys) {
        t.begin = a->key_tiles * part / d->parts;
        t.end = a->key_tiles * (part + 1) / d->parts;
    } else if (after >= 0) {
        t.step = d->parts;
        t.first = part - d->parts;
    }
    return t;
}

#endif
