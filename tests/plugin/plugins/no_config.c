#include "common.h"

struct config {
    int64_t size;
};

static const struct ct_option options[] = {
    CT_OPT_INT(struct config, size, "size", "3", 1, 10, "How large"), {0}};

CT_PLUGIN(.name = "no_config", .version = "1", .summary = "s", .options = options,
          .offers = OFFER_VERB("h"));
