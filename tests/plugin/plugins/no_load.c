#include "common.h"

static int create(struct ct_run *run, struct ct_model **model)
{
    (void)run, (void)model;
    return 0;
}

static int build(struct ct_model *model, struct ct_graph *graph, const struct ct_model_request *r)
{
    (void)model, (void)graph, (void)r;
    return 0;
}

static int64_t vocabulary(const struct ct_model *model)
{
    (void)model;
    return 1;
}

static void flops(const struct ct_model *model, int64_t seq_len, double *whole, double *halved)
{
    (void)model, (void)seq_len;
    *whole = *halved = 0;
}

static int save(struct ct_run *run, const char *folder)
{
    (void)run, (void)folder;
    return 0;
}

static const struct ct_weights_ops format = {.size = sizeof(format), .save = save};
static const struct ct_model_ops half = {.size = sizeof(half),
                                         .create = create,
                                         .build = build,
                                         .vocabulary = vocabulary,
                                         .flops_per_token = flops,
                                         .weights = &format};

CT_PLUGIN(.name = "no_load", .version = "1", .summary = "s",
          .offers = CT_OFFERS({CT_MODEL, "half", &half}));
