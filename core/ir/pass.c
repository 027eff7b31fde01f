/*
 * The pass manager: orders the transforms, then runs each with the same steps around it (time,
 * verify, dump).
 */
#include <string.h>

#include <ctitan/app/verify.h>
#include <ctitan/calling.h>
#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/pass.h>

#include "ir/text/text.h"

static const char *const phases[] = {"partition",     "shard",  "precision",  "join",
                                     "differentiate", "update", "collective", "memory",
                                     "overlap",       "fuse"};

/* Transforms of libraries, after the core's own of every training. */
static const struct ct_transform *registered[64] = {&ct_pass_precision, &ct_pass_update};
static size_t registered_count = 2;

int ct_transform_register(const struct ct_transform *transform)
{
    for (size_t i = 0; i < registered_count; i++)
        if (!strcmp(registered[i]->name, transform->name))
            return ct_fail(CT_EINVAL, "a second transform named %s", transform->name);
    if (registered_count == CT_COUNT(registered))
        return ct_fail(CT_EINVAL, "more than %zu transforms of libraries", registered_count);
    registered[registered_count++] = transform;
    return 0;
}

const struct ct_transform *ct_transform_at(size_t index)
{
    return index < registered_count ? registered[index] : NULL;
}

int ct_transform_context(int rc, const struct ct_transform *transform)
{
    for (size_t i = 0; rc == CT_ECONFIG && i < registered_count; i++)
        if (registered[i] == transform)
            return rc;
    return ct_context(rc, "transform %s", transform->name);
}

const char *ct_phase_name(enum ct_phase phase)
{
    return phases[phase];
}

static bool lists(const char *const *names, const char *name)
{
    for (; names && *names; names++)
        if (!strcmp(*names, name))
            return true;
    return false;
}

/* Must a run before b, both in one phase? */
static bool precedes(const struct ct_transform *a, const struct ct_transform *b)
{
    for (const char *const *need = b->needs; need && *need; need++)
        if (lists(a->gives, *need))
            return true;
    for (const char *const *need = b->after; need && *need; need++)
        if (lists(a->gives, *need))
            return true;
    return false;
}

static int circle(const struct ct_transform *const *in, size_t count, const bool *placed)
{
    char names[256] = "";
    struct ct_line line = {names, sizeof(names), 0};

    for (size_t i = 0; i < count; i++)
        if (!placed[i])
            ct_line_add(&line, "%s%s", line.used ? ", " : "", in[i]->name);
    return ct_fail(CT_ECONFIG, "transforms need each other in a circle: %s", names);
}

/* Whether all that must run before transform i in its phase are placed. */
static bool is_ready(const struct ct_transform *const *in, size_t count, const bool *placed,
                     size_t i)
{
    for (size_t j = 0; j < count; j++)
        if (j != i && !placed[j] && in[j]->phase == in[i]->phase && precedes(in[j], in[i]))
            return false;
    return true;
}

/* The first transform of a phase that is ready and not placed; count: there is none. */
static size_t first_ready(const struct ct_transform *const *in, size_t count, const bool *placed,
                          int phase)
{
    size_t i = 0;

    while (i < count &&
           (placed[i] || (int)in[i]->phase != phase || !is_ready(in, count, placed, i)))
        i++;
    return i;
}

/* Sort transforms by phase, and within a phase place each after those whose results it needs. */
static int order(const struct ct_transform *const *in, size_t count,
                 const struct ct_transform **out)
{
    struct ct_arena scratch = {0};
    bool *placed = ct_arena_array(&scratch, bool, count + 1);
    size_t n = 0, next;

    for (int phase = 0; phase <= CT_PHASE_FUSE; phase++)
        while ((next = first_ready(in, count, placed, phase)) < count) {
            placed[next] = true;
            out[n++] = in[next];
        }
    if (n < count)
        circle(in, count, placed);
    ct_arena_finish(&scratch);
    return n < count ? CT_ECONFIG : 0;
}

static int check_needs(const struct ct_transform *const *t, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (const char *const *need = t[i]->needs; need && *need; need++) {
            bool given = false;

            for (size_t j = 0; j < i; j++) {
                given |= lists(t[j]->gives, *need);
                given &= !lists(t[j]->breaks, *need);
            }
            if (!given)
                return ct_fail(CT_ECONFIG,
                               "transform %s needs \"%s\", which nothing before it gives",
                               t[i]->name, *need);
        }
    return 0;
}

static int run_one(struct ct_graph *graph, const struct ct_transform *t, struct ct_run *run,
                   struct ct_dump *dump)
{
    struct ct_calling before;
    double begin;
    int rc;

    if (dump)
        ct_dump_before(dump, graph, t);
    begin = ct_now();
    before = ct_calling_begin("transform", t->name);
    rc = t->apply(graph, run);
    ct_calling_end(&before);
    rc = rc > 0 ? ct_fail(CT_EINVAL, "it returned %d, neither 0 nor a failure", rc) : rc;
    if (rc == 0)
        rc = ct_graph_verify(graph, NULL);
    if (rc == 0)
        ct_debug("transform %s: %.1f ms", t->name, 1e3 * (ct_now() - begin));
    if (dump)
        return ct_dump_after(dump, graph, t, rc);
    return rc < 0 ? ct_transform_context(rc, t) : 0;
}

/* The requested range [*begin, *end) of transforms. */
static int find_range(const struct ct_transform *const *t, size_t count,
                      const struct ct_pass_options *options, size_t *begin, size_t *end)
{
    enum ct_pass_range range = options->range;
    size_t split = 0;

    while (split < count && !t[split]->by_rank)
        split++;
    *begin = range == CT_PASSES_OF_ONE_RANK ? split : 0;
    *end = range == CT_PASSES_OF_ALL_RANKS ? split : count;
    for (size_t i = *begin; options->behind; i++) {
        if (i == *end)
            return ct_fail(CT_EINVAL, "no transform %s, to run those behind it", options->behind);
        if (strcmp(t[i]->name, options->behind))
            continue;
        *begin = i + 1;
        break;
    }
    return 0;
}

int ct_passes_run(struct ct_graph *graph, const struct ct_transform *const *transforms,
                  size_t count, struct ct_run *run, const struct ct_pass_options *options)
{
    struct ct_arena scratch = {0};
    const struct ct_transform **wanted =
        ct_arena_array(&scratch, const struct ct_transform *, count + 1);
    const struct ct_transform **t =
        ct_arena_array(&scratch, const struct ct_transform *, count + 1);
    size_t n = 0, begin = 0, end = 0;
    int rc;

    for (size_t i = 0; i < count; i++)
        if (options->training || transforms[i]->evaluation)
            wanted[n++] = transforms[i];
    rc = order(wanted, n, t);
    if (rc == 0 && options->dump)
        rc = ct_dump_ordered(options->dump, t, n);
    if (rc == 0 && options->training)
        rc = check_needs(t, n);
    if (rc == 0)
        rc = find_range(t, n, options, &begin, &end);
    if (rc == 0 && begin == 0)
        rc = ct_graph_verify(graph, NULL);
    for (size_t i = begin; rc == 0 && i < end; i++)
        rc = run_one(graph, t[i], run, options->dump);
    ct_arena_finish(&scratch);
    return rc;
}
