/*
 * Code shared by all communicators: checking requests, making groups, distributing work, and
 * recording the first failure.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/comm.h>
#include <ctitan/error.h>

#define LINE 64
#define WORDS_WAIT 2.0 /* seconds for a failing rank to write its message */

int ct_comm_check_request(const struct ct_comm_request *r)
{
    if (r->world < 1 || r->rank < 0 || r->rank >= r->world)
        return ct_fail(CT_EINVAL, "there is no rank %d in a world of %d", r->rank, r->world);
    if (!(r->timeout > 0))
        return ct_fail(CT_EINVAL, "the time-out is %g s: expected a number above 0", r->timeout);
    return 0;
}

/* ---- groups ---- */

static int check_ranks(const struct ct_comm *comm, const int64_t *ranks, int count,
                       const char *name)
{
    bool *seen = calloc((size_t)comm->world + 1, sizeof(*seen));
    int rc = 0;

    if (!seen)
        return ct_fail(CT_ENOMEM, "group '%s'", name);
    for (int i = 0; rc == 0 && i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= comm->world)
            rc = ct_fail(CT_EINVAL, "group '%s': there is no rank %lld in a world of %d", name,
                         (long long)ranks[i], comm->world);
        else if (seen[ranks[i]])
            rc = ct_fail(CT_EINVAL, "group '%s': rank %lld is listed twice", name,
                         (long long)ranks[i]);
        else
            seen[ranks[i]] = true;
    }
    if (rc == 0 && !seen[comm->rank])
        rc = ct_fail(CT_EINVAL, "group '%s': this rank, %d, is not listed", name, comm->rank);
    free(seen);
    return rc;
}

int ct_group_new(const struct ct_comm *comm, const int64_t *ranks, int count, const char *name,
                 size_t size, struct ct_group **group)
{
    size_t head = (size + sizeof(int) - 1) / sizeof(int) * sizeof(int);
    size_t list = (size_t)count * sizeof(int), length = strlen(name) + 1;
    int rc = check_ranks(comm, ranks, count, name);
    char *memory = rc < 0 ? NULL : calloc(1, head + list + length);
    struct ct_group *g = (struct ct_group *)memory;
    int *own;

    if (!g)
        return rc < 0 ? rc : ct_fail(CT_ENOMEM, "group '%s'", name);
    own = (int *)(memory + head);
    g->ops = comm->ops;
    g->name = memcpy(memory + head + list, name, length);
    g->size = count;
    g->ranks = own;
    for (int i = 0; i < count; i++) {
        own[i] = (int)ranks[i];
        if (own[i] == comm->rank)
            g->position = i;
    }
    *group = g;
    return 0;
}

size_t ct_comm_share(size_t bytes, int n, int position, size_t *begin)
{
    size_t ranks = (size_t)n, share = ((bytes + ranks - 1) / ranks + LINE - 1) / LINE * LINE;
    size_t from = (size_t)position * share;

    *begin = from < bytes ? from : bytes;
    return bytes - *begin < share ? bytes - *begin : share;
}

/* ---- the first failure ---- */

static uint32_t state_of(const struct ct_first_failure *f)
{
    return __atomic_load_n(&f->state, __ATOMIC_SEQ_CST);
}

int ct_first_failure_get(const struct ct_first_failure *f)
{
    double deadline;

    if (state_of(f) == 0)
        return 0;
    deadline = ct_now() + WORDS_WAIT;
    while (state_of(f) != 2) {
        if (ct_now() >= deadline) /* 1: a rank was killed while writing */
            return ct_fail(CT_EPEER, "a rank found a failure and died before it could report it");
        ct_nap(1e-4);
    }
    return ct_fail(CT_EPEER, "%s", f->text);
}

int ct_first_failure_set(struct ct_first_failure *f, const char *words, va_list args)
{
    uint32_t none = 0;

    if (__atomic_compare_exchange_n(&f->state, &none, 1, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST)) {
        vsnprintf(f->text, sizeof(f->text), words, args);
        __atomic_store_n(&f->state, 2, __ATOMIC_SEQ_CST);
    }
    return ct_first_failure_get(f);
}
