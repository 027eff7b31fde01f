/*
 * Dumps of the graph between transforms, and the reproducer of a transform that fails.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/option.h>
#include <ctitan/text.h>

#include "ir/text/text.h"

static bool wants(const struct ct_dump *d, const char *name)
{
    return d->after && !strcmp(d->after, name);
}

void ct_dump_built(struct ct_dump *d, const struct ct_graph *graph)
{
    if (!wants(d, "all") && !wants(d, "changed") && !wants(d, "build"))
        return;
    fprintf(d->out, "# as built by model %s\n", graph->name);
    ct_graph_print(graph, d->out);
    fputc('\n', d->out);
}

/* Check that `after` names a transform or is one of the keywords. */
int ct_dump_ordered(struct ct_dump *d, const struct ct_transform *const *t, size_t count)
{
    const char *names[128] = {"all", "changed", "build"};
    size_t n = 3;

    d->transforms = t;
    d->count = count;
    for (size_t i = 0; i < count && n < CT_COUNT(names); i++)
        names[n++] = t[i]->name;
    for (size_t i = 0; i < n; i++)
        if (!d->after || wants(d, names[i]))
            return 0;
    return ct_fail(CT_ECONFIG, "no transform named %s to dump after%s", d->after,
                   ct_did_you_mean(d->after, names, n));
}

void ct_dump_before(struct ct_dump *d, const struct ct_graph *graph, const struct ct_transform *t)
{
    (void)t;
    d->text = wants(d, "changed") ? ct_graph_text(graph, &d->scratch) : NULL;
    d->before = d->reproducer ? ct_graph_clone(graph, &d->scratch) : NULL;
}

/* Write files that reproduce the failure. The message names them, unless the recipe is to blame. */
static int reproduce(const struct ct_dump *d, const struct ct_transform *t, int rc)
{
    struct ct_error_kept why = ct_error_keep();
    FILE *out = d->before ? fopen(d->reproducer, "w") : NULL;

    if (!out)
        return ct_transform_context(rc, t);
    fprintf(out, "# transform \"%s\" failed: %.*s\n# transforms:", t->name,
            (int)strcspn(why.message, "\n"), why.message);
    for (size_t i = 0; i < d->count; i++)
        fprintf(out, " %s", d->transforms[i]->name);
    fputc('\n', out);
    ct_graph_print(d->before, out);
    fclose(out);
    if (rc == CT_ECONFIG)
        return ct_transform_context(rc, t);
    return ct_fail(rc, "transform %s (%s has the graph before it): %s", t->name, d->reproducer,
                   why.message);
}

static void print(struct ct_dump *d, const struct ct_graph *graph, const struct ct_transform *t)
{
    const char *now;

    if (!wants(d, "all") && !wants(d, "changed") && !wants(d, t->name))
        return;
    now = ct_graph_text(graph, &d->scratch);
    if (!d->text || strcmp(d->text, now))
        fprintf(d->out, "# after %s (%s): %s\n%s\n", t->name, ct_phase_name(t->phase), t->summary,
                now);
}

int ct_dump_after(struct ct_dump *d, const struct ct_graph *graph, const struct ct_transform *t,
                  int rc)
{
    if (rc == 0)
        print(d, graph, t);
    else
        rc = reproduce(d, t, rc);
    ct_arena_finish(&d->scratch);
    return rc;
}

void ct_dump_init(struct ct_dump *dump, const char *name, FILE *out, const char *reproducer)
{
    *dump = (struct ct_dump){.after = name, .out = out, .reproducer = reproducer};
}
