#include "common.h"

static int create(struct ct_run *run, struct ct_model **model)
{
    (void)run, (void)model;
    return 0;
}

static void destroy(struct ct_model *model)
{
    (void)model;
}

static const struct ct_model_ops hollow = {
    .size = sizeof(struct ct_model_ops), .create = create, .destroy = destroy};

CT_PLUGIN(.name = "no_function", .version = "1", .summary = "s",
          .offers = CT_OFFERS({CT_MODEL, "hollow", &hollow}));
