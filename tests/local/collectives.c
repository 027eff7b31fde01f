/*
 * Every collective against a serial oracle, bit for bit: all dtypes, odd counts, buffers in the
 * symmetric arena, on the heap and on either by rank, in place and not, in sub-groups, and in
 * random sequences on overlapping groups from two threads. Contents depend on (rank, call, index)
 * only, so every rank knows what every other one sent.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "rank.h"

#define DTYPES CT_U4 /* smaller elements move as bytes */

#define GUARD 64

enum kind { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, BARRIER, KINDS };
static const char *const names[] = {"all_gather", "reduce_scatter", "all_reduce",
                                    "all_to_all", "broadcast",      "barrier"};

enum where { ARENA, HEAP, MIXED, WHERES };

/* One thread's buffers: the first half for inputs, the second for outputs. */
struct space {
    struct fixture *f;
    char *arena, *heap;
    size_t half;
    uint64_t calls;
};

struct call {
    enum kind kind;
    enum ct_dtype dtype;
    enum ct_reduction reduction;
    enum where where;
    bool in_place;
    int root;
    size_t count;
};

static struct ct_tensor vector(void *data, enum ct_dtype dtype, size_t count)
{
    int64_t n = (int64_t)count;

    return ct_tensor_dense(data, dtype, 1, &n);
}

/* Element `index` of what a rank contributes: of either sign, with long mantissas; now and then one
   that is not finite, or whose sum is not. */
static double content(int rank, uint64_t call, size_t index, enum ct_dtype dtype)
{
    static const double special[] = {INFINITY, -INFINITY, NAN, -0.0, 3e38, 60000, 448, 1e-40};
    uint64_t bits = mix((uint64_t)rank, call, index);
    double unit = (double)(int64_t)bits * 0x1p-63;

    if (dtype == CT_U8)
        return (double)(bits & 7);
    if (ct_dtype_is_float(dtype) && bits % 61 == 0)
        return special[bits / 61 % CT_COUNT(special)];
    return ct_dtype_is_float(dtype) ? unit * 3 : (double)((int64_t)bits >> 48);
}

static void fill(void *data, const struct call *c, int rank, uint64_t call, size_t count)
{
    struct ct_tensor t = vector(data, c->dtype, count);

    for (size_t i = 0; i < count; i++)
        ct_tensor_store(&t, (int64_t)i, content(rank, call, i, c->dtype));
}

/* The reduction in rank order of element `index` of all members, in the arithmetic that is
 * promised. */
static double reduced(const struct ct_group *g, const struct call *c, uint64_t call, size_t index)
{
    unsigned char one[8];
    struct ct_tensor t = vector(one, c->dtype, 1);
    double sum = 0;

    for (int i = 0; i < g->size; i++) {
        double x;

        ct_tensor_store(&t, 0, content(g->ranks[i], call, index, c->dtype));
        x = ct_tensor_load(&t, 0);
        if (i == 0)
            sum = x;
        else if (c->reduction == CT_REDUCE_MAX)
            sum = x > sum || isnan(x) ? x : sum;
        else if (c->dtype == CT_F64 || !ct_dtype_is_float(c->dtype))
            sum += x;
        else
            sum = (float)sum + (float)x;
    }
    return sum;
}

static size_t input_count(const struct ct_group *g, const struct call *c)
{
    bool split = c->kind == REDUCE_SCATTER || c->kind == ALL_TO_ALL;

    return c->kind == BARRIER ? 0 : c->count * (split ? (size_t)g->size : 1);
}

static size_t output_count(const struct ct_group *g, const struct call *c)
{
    bool many = c->kind == ALL_GATHER || c->kind == ALL_TO_ALL;

    return c->kind == BARRIER ? 0 : c->count * (many ? (size_t)g->size : 1);
}

/* The right value of output element `index` on this member. */
static double expected(const struct ct_group *g, const struct call *c, uint64_t call, size_t index)
{
    size_t me = (size_t)g->position, n = c->count;

    switch (c->kind) {
    case ALL_GATHER:
        return content(g->ranks[index / n], call, index % n, c->dtype);
    case REDUCE_SCATTER:
        return reduced(g, c, call, me * n + index);
    case ALL_REDUCE:
        return reduced(g, c, call, index);
    case ALL_TO_ALL:
        return content(g->ranks[index / n], call, me * n + index % n, c->dtype);
    default:
        return content(g->ranks[c->root], call, index, c->dtype);
    }
}

static int perform(struct ct_group *g, const struct call *c, void *in, void *out)
{
    static const enum ct_call_kind kinds[KINDS] = {CT_CALL_ALL_GATHER, CT_CALL_REDUCE_SCATTER,
                                                   CT_CALL_ALL_REDUCE, CT_CALL_ALL_TO_ALL,
                                                   CT_CALL_BROADCAST,  CT_CALL_BARRIER};

    return ct_call_run(&(struct ct_call){.kind = kinds[c->kind],
                                         .group = g,
                                         .in = c->kind == BROADCAST ? out : in,
                                         .out = out,
                                         .count = c->kind == BARRIER ? 0 : c->count,
                                         .dtype = c->dtype,
                                         .reduction = c->reduction,
                                         .from = c->root});
}

/* Where input and output lie; in place, one is the other or a slot of it. */
static void choose(const struct space *s, const struct ct_group *g, const struct call *c, char **in,
                   char **out)
{
    size_t slot = (size_t)g->position * c->count * ct_dtype_size(c->dtype);
    bool arena =
        s->arena && (c->where == ARENA || (c->where == MIXED && g->ranks[g->position] % 2));

    *in = arena ? s->arena : s->heap;
    *out = *in + s->half;
    if (c->kind == BROADCAST || (c->in_place && c->kind == ALL_REDUCE))
        *in = *out;
    else if (c->in_place && c->kind == ALL_GATHER)
        *in = *out + slot;
    else if (c->in_place && c->kind == REDUCE_SCATTER)
        *out = *in + slot;
}

static int complain(const struct space *s, const struct ct_group *g, const struct call *c,
                    const char *what)
{
    fprintf(stderr,
            "rank %d: %s of %zu x %s (%s, memory %d, in place %d) in group '%s' of %d: %s\n",
            s->f->comm->rank, names[c->kind], c->count, ct_dtype_name(c->dtype),
            c->reduction ? "max" : "sum", (int)c->where, c->in_place, g->name, g->size, what);
    return 1;
}

static int check_output(const struct space *s, const struct ct_group *g, const struct call *c,
                        uint64_t call, const char *out)
{
    size_t n = output_count(g, c), size = ct_dtype_size(c->dtype);
    unsigned char one[8];
    struct ct_tensor t = vector(one, c->dtype, 1);
    char text[96];

    for (size_t i = 0; i < n; i++) {
        ct_tensor_store(&t, 0, expected(g, c, call, i));
        if (memcmp(one, out + i * size, size)) {
            struct ct_tensor got = vector((char *)(uintptr_t)out + i * size, c->dtype, 1);

            if (isnan(ct_tensor_load(&got, 0)) && isnan(ct_tensor_load(&t, 0)))
                continue; /* of any bits */
            snprintf(text, sizeof(text), "element %zu is %.9g, not %.9g", i,
                     ct_tensor_load(&got, 0), ct_tensor_load(&t, 0));
            return complain(s, g, c, text);
        }
    }
    return 0;
}

static int check_guard(const struct space *s, const struct ct_group *g, const struct call *c,
                       const char *end)
{
    for (int i = 0; i < GUARD; i++)
        if (end[i] != 0x5a)
            return complain(s, g, c, "wrote behind its output");
    return 0;
}

/* A call with its buffers. */
struct trial {
    struct call c;
    uint64_t call;
    char *in, *out;
};

static bool is_inside(const struct call *c)
{
    return c->in_place && c->kind == REDUCE_SCATTER; /* output lies in the input */
}

static int prepare(struct space *s, const struct ct_group *g, struct trial *t)
{
    const struct call *c = &t->c;
    size_t size = ct_dtype_size(c->dtype), bytes = output_count(g, c) * size;

    t->call = mix(s->calls++, (uint64_t)g->ranks[0], (uint64_t)g->size);
    if (input_count(g, c) * size + GUARD > s->half || bytes + GUARD > s->half)
        return complain(s, g, c, "the test's buffers are too small");
    choose(s, g, c, &t->in, &t->out);
    if (!is_inside(c))
        memset(t->out, 0x5a, bytes + GUARD);
    if (c->kind != BROADCAST || g->position == c->root)
        fill(t->in, c, g->ranks[g->position], t->call, input_count(g, c));
    return 0;
}

static int verify(const struct space *s, const struct ct_group *g, const struct trial *t)
{
    size_t bytes = output_count(g, &t->c) * ct_dtype_size(t->c.dtype);
    int bad = check_output(s, g, &t->c, t->call, t->out);

    return bad || is_inside(&t->c) ? bad : check_guard(s, g, &t->c, t->out + bytes);
}

static int check(struct space *s, struct ct_group *g, const struct call *c)
{
    struct trial t = {.c = *c};

    if (prepare(s, g, &t))
        return 1;
    if (perform(g, c, t.in, t.out) < 0)
        return complain(s, g, c, ct_error_message());
    return verify(s, g, &t);
}

/* Calls of one kind and dtype, and all sizes, as one; some of them on the heap where it is MIXED.
 */
static int check_batch(struct space *s, struct ct_group *g, const struct call *all)
{
    static const size_t counts[] = {0, 1, 700, 33, 5000, 16};
    struct trial trials[CT_COUNT(counts)];
    struct space part[CT_COUNT(counts)];
    size_t n = CT_COUNT(counts), room = s->half / n / 4096 * 4096;
    int rc, bad = 0;

    for (size_t i = 0; i < n && !bad; i++) {
        part[i] = (struct space){.f = s->f, .half = room, .heap = s->heap + 2 * i * room};
        part[i].arena = s->arena ? s->arena + 2 * i * room : NULL;
        part[i].calls = s->calls++;
        trials[i].c = *all;
        trials[i].c.where = all->where == MIXED && i == 2 ? HEAP : ARENA;
        trials[i].c.in_place = all->kind == ALL_REDUCE && i % 2;
        trials[i].c.count = counts[i];
        bad = prepare(&part[i], g, &trials[i]);
    }
    rc = bad ? -1 : g->ops->begin(g);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = perform(g, &trials[i].c, trials[i].in, trials[i].out);
    if (rc == 0)
        rc = g->ops->end(g);
    if (rc < 0)
        return complain(s, g, &trials[0].c, ct_error_message());
    for (size_t i = 0; i < n && !bad; i++)
        bad = verify(&part[i], g, &trials[i]);
    return bad;
}

static int check_batches(struct space *s, struct ct_group *g)
{
    int bad = 0;

    if (!g->ops->begin)
        return 0;
    for (int k = 0; k < 6 * DTYPES && !bad; k++)
        bad = check_batch(s, g,
                          &(struct call){.kind = (enum kind)(k % 3),
                                         .dtype = (enum ct_dtype)(k / 6),
                                         .reduction = k / 3 % 2 ? CT_REDUCE_MAX : CT_REDUCE_SUM,
                                         .where = k % 4 == 3 ? MIXED : ARENA});
    return bad;
}

static int open_space(struct fixture *f, struct space *s, int part, int parts)
{
    size_t bytes = f->arena_bytes / (size_t)parts / 4096 * 4096;

    *s = (struct space){.f = f, .half = bytes / 2, .heap = malloc(bytes)};
    if (f->arena)
        s->arena = f->arena + (size_t)part * bytes;
    return s->heap ? 0 : 1;
}

static int all_of(struct space *s, struct ct_group *g, enum ct_dtype dtype, size_t count)
{
    struct call c = {.dtype = dtype, .count = count};
    int bad = 0;

    for (int kind = 0; kind < KINDS && !bad; kind++)
        for (int where = 0; where < WHERES && !bad; where++)
            for (int k = 0; k < 4 && !bad; k++) {
                bool reduces = kind == REDUCE_SCATTER || kind == ALL_REDUCE;

                c.kind = (enum kind)kind;
                c.where = (enum where)where;
                c.reduction = k & 1 ? CT_REDUCE_MAX : CT_REDUCE_SUM;
                c.in_place = k >> 1;
                c.root = (where + k) % g->size;
                if (reduces || !(k & 1))
                    bad = check(s, g, &c);
            }
    return bad;
}

int check_collectives(struct fixture *f)
{
    static const size_t counts[] = {0, 1, 3, 65, 257};
    static const size_t large[] = {64, 1031, 5003, 33001, 70001};
    struct ct_group *world;
    int64_t ranks[64];
    struct space s;
    int bad = 0;

    for (int i = 0; i < f->comm->world; i++)
        ranks[i] = i;
    if (f->ops->group(f->comm, ranks, f->comm->world, "world", &world) < 0 ||
        open_space(f, &s, 0, 1)) {
        fprintf(stderr, "rank %d: %s\n", f->comm->rank, ct_error_message());
        return 1;
    }
    for (int dtype = 0; dtype < DTYPES && !bad; dtype++)
        for (size_t i = 0; i < CT_COUNT(counts) && !bad; i++)
            bad = all_of(&s, world, (enum ct_dtype)dtype, counts[i]);
    for (size_t i = 0; i < CT_COUNT(large) && !bad; i++) {
        if (large[i] * (size_t)f->comm->world > 300000)
            break;
        bad = all_of(&s, world, CT_F32, large[i]) || all_of(&s, world, CT_BF16, large[i]);
    }
    bad = bad || check_batches(&s, world);
    free(s.heap);
    return bad;
}

/* ---- several groups ---- */

static int random_calls(struct space *s, struct ct_group *g, uint64_t seed, int calls)
{
    static const size_t scale[] = {4, 100, 3000, 12000};
    int bad = 0;

    for (int i = 0; i < calls && !bad; i++) {
        uint64_t r = mix(seed, (uint64_t)i, (uint64_t)g->ranks[0] * 64 + (uint64_t)g->size);
        struct call c = {.kind = (enum kind)(r % KINDS),
                         .dtype = (enum ct_dtype)(r >> 8 & 0xff) % DTYPES,
                         .reduction = r >> 16 & 1,
                         .where = (enum where)((r >> 17 & 0xff) % WHERES),
                         .in_place = r >> 25 & 1,
                         .root = (int)((r >> 26 & 0xff) % (uint64_t)g->size),
                         .count = (r >> 34) % scale[r >> 60 & 3]};

        bad = check(s, g, &c);
    }
    return bad;
}

struct worker {
    struct space space;
    struct ct_group *group;
    uint64_t seed;
    int calls, bad;
};

static void *work(void *data)
{
    struct worker *w = data;

    w->bad = random_calls(&w->space, w->group, w->seed, w->calls);
    return NULL;
}

static int make_group(struct fixture *f, int first, int step, int count, const char *name,
                      struct ct_group **group)
{
    int64_t ranks[64];
    int rc;

    for (int i = 0; i < count; i++)
        ranks[i] = first + i * step;
    rc = f->ops->group(f->comm, ranks, count, name, group);
    if (rc < 0)
        fprintf(stderr, "rank %d: %s\n", f->comm->rank, ct_error_message());
    return rc;
}

/* The rows and columns of the world as a mesh: overlapping groups, used by two threads at once. */
int check_groups(struct fixture *f)
{
    int world = f->comm->world, rank = f->comm->rank, rows = world % 3 ? world % 2 ? 1 : 2 : 3;
    int columns = world / rows, row = rank / columns, column = rank % columns;
    struct worker w[2] = {{.seed = 11, .calls = 150}, {.seed = 12, .calls = 150}};
    struct ct_group *twin;
    pthread_t thread;
    int bad;

    if (make_group(f, row * columns, 1, columns, "row", &w[0].group) < 0 ||
        make_group(f, column, columns, rows, "column", &w[1].group) < 0 ||
        make_group(f, row * columns, 1, columns, "row", &twin) < 0 ||
        open_space(f, &w[0].space, 0, 2) || open_space(f, &w[1].space, 1, 2))
        return 1;
    if (pthread_create(&thread, NULL, work, &w[0]))
        return 1;
    work(&w[1]);
    pthread_join(thread, NULL);
    bad = w[0].bad + w[1].bad;
    if (!bad)
        bad = random_calls(&w[1].space, twin, 13, 50);
    free(w[0].space.heap);
    free(w[1].space.heap);
    return bad;
}
