#include "common.h"

static struct config {
    const char *path;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, path, "path", NULL, "A file, which has no default"), {0}};

CT_PLUGIN(.name = "path_needed", .version = "1", .summary = "Has an option without a default",
          .options = options, .config = &config, .config_size = sizeof(config));
