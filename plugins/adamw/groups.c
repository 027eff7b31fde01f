/*
 * Groups of parameters, as in torch.optim: which have no weight decay, and which learn at another
 * rate. Each group has an op of its own, so kernels need no values by parameter.
 */
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
        if (ct_value_is_own_param(graph->values[i]) && graph->values[i]->grad &&
            !another_takes(graph->values[i]))
            r->param[r->count++] = graph->values[i];
}

int adamw_read_groups(struct ct_arena *arena, const struct ct_graph *graph, const char *no_decay,
                      const char *lr_factors, struct adamw_groups *groups)
{
    struct reading r = {.arena = arena};
    int rc;

    list_parameters(&r, graph);
    groups->no_decay = ct_patterns_read(arena, no_decay);
    rc = ct_factors_read(arena, lr_factors, r.param, r.count,
                         "[adamw] lr_factors, for the parameters that adamw updates",
                         &groups->factors);
    return rc < 0 ? rc
                  : ct_patterns_check(&groups->no_decay, r.param, r.count,
                                      "[adamw] no_decay, for the parameters that adamw updates");
}

struct adamw_hyper adamw_hyper_of(const struct adamw_groups *groups, const struct ct_value *param,
                                  const struct adamw_hyper *hyper)
{
    struct adamw_hyper own = *hyper;

    if (ct_patterns_find(&groups->no_decay, param->name) >= 0)
        own.weight_decay = 0;
    own.lr_factor = ct_factors_of(&groups->factors, param->name);
    return own;
}
