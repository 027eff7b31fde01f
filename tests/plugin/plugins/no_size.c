#include "common.h"

#include <ctitan/pass.h>

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    (void)graph;
    (void)run;
    return 0;
}

static const struct ct_transform transform = {.name = "unsized", .apply = apply};

CT_PLUGIN(.name = "no_size", .version = "1", .summary = "s",
          .offers = CT_OFFERS({CT_TRANSFORM, "unsized", &transform}));
