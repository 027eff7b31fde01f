#include "common.h"

static struct config {
    double ratio, other;
} config;

static const struct ct_option options[] = {
    CT_OPT_FLOAT(struct config, ratio, "ratio", "0", 0, 1, "A share"),
    CT_OPT_FLOAT(struct config, other, "ratio", "0", 0, 1, "Another share"),
    {0}};

CT_PLUGIN(.name = "same_options", .version = "1", .summary = "s", .options = options,
          .config = &config, .config_size = sizeof(config), .offers = OFFER_VERB("same"));
