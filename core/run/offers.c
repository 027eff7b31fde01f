/*
 * The offers of the recipe's plugins that a run uses: one model, device, optimizer and so on.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/objective.h>
#include <ctitan/plugins.h>
#include <ctitan/run.h>

#include "run/open.h"

/* The optimizer of the parameters that no other one takes. */
static int choose_optimizer(struct ct_run *run)
{
    const struct ct_offer *offer, *rest = NULL;

    for (size_t i = 0; (offer = ct_offer_at(CT_OPTIMIZER, i)); i++) {
        if (((const struct ct_optimizer_ops *)offer->ops)->takes)
            continue;
        if (rest)
            return ct_fail(CT_ECONFIG,
                           "%s and %s are both loaded, and each updates all parameters: take one "
                           "out of [plugins] load",
                           rest->name, offer->name);
        rest = offer;
    }
    if (!rest && (offer = ct_offer_at(CT_OPTIMIZER, 0)))
        return ct_fail(CT_ECONFIG,
                       "%s updates some of the parameters only: load another optimizer for the "
                       "rest",
                       offer->name);
    if (!rest)
        return ct_offer_find(CT_OPTIMIZER, NULL, &offer);
    run->optimizer = rest->ops;
    return 0;
}

/* The offer of the plugin of this kind. NULL: none does and none is needed, or *rc says
   why there is none. */
static const void *offered(enum ct_kind kind, bool needed, int *rc)
{
    const struct ct_offer *offer;

    if (*rc < 0 || (!needed && !ct_offer_at(kind, 0)))
        return NULL;
    *rc = ct_offer_find(kind, NULL, &offer);
    return *rc < 0 ? NULL : offer->ops;
}

static int choose_objective(struct ct_run *run)
{
    const char *name = ct_config.objective ? ct_config.objective : "", *fallback;
    const struct ct_objective_ops *ops = ct_objective_default(&fallback);
    const struct ct_offer *offer;
    int rc;

    run->objective = ops;
    if (ops && (!*name || !strcmp(name, fallback)))
        return 0;
    rc = ct_offer_find(CT_OBJECTIVE, *name ? name : NULL, &offer);
    if (rc < 0)
        return ct_context(rc, "[objective] name = %s", name);
    run->objective = offer->ops;
    return 0;
}

int ct_run_find_offers(struct ct_run *run, bool train)
{
    const struct ct_offer *offer;
    const char *name = ct_config.model.name;
    int rc = ct_offer_find(CT_MODEL, *name ? name : NULL, &offer);

    if (rc < 0)
        return *name ? ct_context(rc, "[model] name = %s", name) : rc;
    ct_config.model.name = offer->name;
    run->model_ops = offer->ops;
    run->device_ops = offered(CT_DEVICE, true, &rc);
    run->tokenizer = offered(CT_TOKENIZER, false, &rc);
    if (rc < 0 || !train)
        return rc;
    run->lr_schedule = offered(CT_LR_SCHEDULE, false, &rc);
    rc = rc < 0 ? rc : choose_optimizer(run);
    rc = rc < 0 ? rc : choose_objective(run);
    run->data_ops = offered(CT_DATA, true, &rc);
    return rc;
}
