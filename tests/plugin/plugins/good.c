#include "common.h"

static struct config {
    int64_t size;
    const char *path;
} config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct config, size, "size", "3", 1, 10, "How large"),
    CT_OPT_STRING(struct config, path, "path", "", "Where from"),
    {0}};

CT_PLUGIN(.name = "good", .version = "1.2", .summary = "Loads", .options = options,
          .config = &config, .config_size = sizeof(config), .offers = OFFER_VERB("wave"));
