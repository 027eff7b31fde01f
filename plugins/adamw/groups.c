/*
 * Groups of parameters, as in torch.optim: which have no weight decay, and which learn at another
 * rate. Each group has an op of its own, so kernels need no values by parameter.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>

#include "adamw.h"

struct reading {
    struct ct_arena *arena;
    struct ct_value **param; /* of the graph that adamw updates, or would if they were trained */
    size_t count;
};

static bool another_takes(const struct ct_value *param)
{
    const struct ct_offer *offer;

    for (size_t i = 0; (offer = ct_offer_at(CT_OPTIMIZER, i)); i++) {
        const struct ct_optimizer_ops *ops = offer->ops;

        if (ops->takes && ops->takes(param))
            return true;
    }
    return false;
}

static void list_parameters(struct reading *r, const struct ct_graph *graph)
{
    r->param = ct_arena_array(r->arena, struct ct_value *, graph->value_count);
    for (size_t i = 0; i < graph->value_count; i++)
        if (ct_value_is_own_param(graph->values[i]) && !another_takes(graph->values[i]))
            r->param[r->count++] = graph->values[i];
}

/* Cut the factor off a pattern. */
static int read_factor(char *entry, double *factor)
{
    char *colon = strrchr(entry, ':'), *end = NULL;

    if (colon && colon > entry)
        *factor = strtod(colon + 1, &end);
    if (!end || end == colon + 1 || *end || !isfinite(*factor) || *factor < 0)
        return ct_fail(CT_ECONFIG,
                       "[adamw] lr_factors: %s: expected PATTERN:FACTOR with a factor of at least "
                       "0, such as *embed*:0.1",
                       entry);
    *colon = '\0';
    return 0;
}

static int read_factors(const struct reading *r, const char *text, struct adamw_groups *g)
{
    int rc = 0;

    g->scaled = ct_patterns_read(r->arena, text);
    g->factor = ct_arena_array(r->arena, double, g->scaled.count);
    for (size_t i = 0; rc == 0 && i < g->scaled.count; i++) {
        char *entry = ct_arena_strdup(r->arena, g->scaled.pattern[i]);

        rc = read_factor(entry, &g->factor[i]);
        g->scaled.pattern[i] = entry;
    }
    return rc;
}

/* An entry behind others that have all its parameters would be ignored. */
static int check_order(const struct reading *r, const struct adamw_groups *g)
{
    for (int k = 0; k < (int)g->scaled.count; k++) {
        size_t i = 0;

        while (i < r->count && ct_patterns_find(&g->scaled, r->param[i]->name) != k)
            i++;
        if (i == r->count)
            return ct_fail(CT_ECONFIG,
                           "[adamw] lr_factors: patterns before %s fit all its parameters: put it "
                           "in front of them",
                           g->scaled.pattern[k]);
    }
    return 0;
}

int adamw_read_groups(struct ct_arena *arena, const struct ct_graph *graph, const char *no_decay,
                      const char *lr_factors, struct adamw_groups *groups)
{
    struct reading r = {.arena = arena};
    int rc;

    list_parameters(&r, graph);
    groups->no_decay = ct_patterns_read(arena, no_decay);
    rc = read_factors(&r, lr_factors, groups);
    if (rc == 0)
        rc = ct_patterns_check(&groups->no_decay, r.param, r.count,
                               "[adamw] no_decay, for the parameters that adamw updates");
    if (rc == 0)
        rc = ct_patterns_check(&groups->scaled, r.param, r.count,
                               "[adamw] lr_factors, for the parameters that adamw updates");
    return rc == 0 ? check_order(&r, groups) : rc;
}

struct adamw_hyper adamw_hyper_of(const struct adamw_groups *groups, const struct ct_value *param,
                                  const struct adamw_hyper *hyper)
{
    struct adamw_hyper own = *hyper;
    int scaled = ct_patterns_find(&groups->scaled, param->name);

    if (ct_patterns_find(&groups->no_decay, param->name) >= 0)
        own.weight_decay = 0;
    if (scaled >= 0)
        own.lr_factor = groups->factor[scaled];
    return own;
}
